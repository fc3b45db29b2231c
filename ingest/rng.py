"""Counter-based random numbers: a value is a function of its key and counter, never of a stream's history.

The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011),
vectorised over counters. It is written here, and not taken from `numpy.random`, because NumPy does not promise the
same stream in its next release, and resumes depend on ours never changing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ORDER_UNITS, ORDER_ROWS, ORDER_WINDOW, AUGMENT, ORDER_GROUPS = 1, 2, 3, 4, 5  # separate streams of one seed

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_BLOCK = 1 << 13
_LOW, _SHIFT = np.uint64(0xFFFFFFFF), np.uint64(32)


def philox4x32(counter: NDArray[np.uint64], key: tuple[int, int]) -> NDArray[np.uint64]:
    """Ten rounds of Philox4x32.

    Args:
        counter: uint64 (4, n), each value below 2**32.
        key: two integers below 2**32.

    Returns:
        uint64 (4, n), each value below 2**32.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = (
            (p1 >> _SHIFT) ^ c1 ^ np.uint64(k0),
            p1 & _LOW,
            (p0 >> _SHIFT) ^ c3 ^ np.uint64(k1),
            p0 & _LOW,
        )
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3])


def bits(
    seed: int, stream: int, major: int | NDArray[np.int64], ids: NDArray[np.int64], draws: int = 1
) -> NDArray[np.uint64]:
    """Uint64 (n, 2 * draws): 128 * draws random bits for each id, keyed by (seed, stream, major, id).

    Args:
        seed: 0 <= seed < 2**63.
        stream: which use of the seed, below 2**8.
        major: the epoch or pass, below 2**32; or int64 (n,), that of each id.
        ids: int64 (n,), not negative.
        draws: blocks of 128 bits for each id, below 2**24.
    """
    ids = np.repeat(np.asarray(ids, np.int64).astype(np.uint64), draws)
    major = major if isinstance(major, int) else np.repeat(np.asarray(major, np.uint64), draws)
    counter = np.empty((4, len(ids)), np.uint64)
    counter[0], counter[1], counter[2] = ids & _LOW, ids >> _SHIFT, major
    counter[3].reshape(-1, draws)[:] = np.arange(draws) + (stream << 24)
    out = philox4x32(counter, (seed & 0xFFFFFFFF, seed >> 32))
    return np.stack([out[0] << _SHIFT | out[1], out[2] << _SHIFT | out[3]], axis=1).reshape(-1, 2 * draws)


def uniforms(
    seed: int, pass_: int | NDArray[np.int64], sample_ids: NDArray[np.int64], count: int
) -> NDArray[np.float64]:
    """Float64 (n, count) in [0, 1): the augmentation numbers of each sample, 53 bits each; passes may be by sample."""
    drawn = bits(seed, AUGMENT, pass_, sample_ids, -(-count // 2))[:, :count]
    return (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutation(seed: int, stream: int, major: int, key: int, n: int) -> NDArray[np.int64]:
    """A permutation of range(n), int64 (n,): the stable argsort of n random 64-bit numbers keyed by (..., key, i)."""
    if n < 2:
        return np.zeros(n, np.int64)
    base = bits(seed, stream, major, np.array([key], np.int64))[0]
    out = np.empty(n, np.uint64)
    for start in range(0, n, _BLOCK):  # a block's arrays stay in the processor's cache
        index = np.arange(start, min(n, start + _BLOCK), dtype=np.uint64)
        counter = np.empty((4, len(index)), np.uint64)
        counter[0], counter[1] = index & _LOW, index >> _SHIFT
        counter[2], counter[3] = base[0] & _LOW, base[0] >> _SHIFT
        c = philox4x32(counter, (int(base[1] & _LOW), int(base[1] >> _SHIFT)))
        out[start : start + len(index)] = c[0] << _SHIFT | c[1]
    order = np.argsort(out)  # several times as fast as a stable sort, and the same where no two numbers are
    sorted_ = out[order]
    return np.argsort(out, kind="stable") if (sorted_[1:] == sorted_[:-1]).any() else order


def hashes(seed: int, ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Uint64 (n,): 64 bits for each id, a function of (seed, id) alone.

    They are the outputs numbered by the ids of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number
    generators", OOPSLA 2014) started at `seed`: much faster than Philox, for where every row of a data set is asked.
    """
    z = np.asarray(ids, np.int64).astype(np.uint64)
    z += np.uint64(1)
    z *= _GOLDEN
    z += np.uint64(seed)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z
