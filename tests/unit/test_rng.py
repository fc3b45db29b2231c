"""Random numbers: the published vectors, independence of grouping, and the values that saved states depend on."""

from __future__ import annotations

import numpy as np
import pytest

from ingest import rng

pytestmark = pytest.mark.unit

ONES = 0xFFFFFFFF
# Random123's kat_vectors for philox4x32-10 (Salmon et al. 2011): counter, key, output.
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers(counter, key, expected):
    out = rng.philox4x32(np.array(counter, np.uint64).reshape(4, 1), key)
    assert [hex(int(v)) for v in out[:, 0]] == [hex(v) for v in expected]


def test_known_answers_side_by_side():
    counters = np.array([KNOWN_ANSWERS[0][0], KNOWN_ANSWERS[1][0]], np.uint64).T
    out = rng.philox4x32(counters, (0, 0))
    assert tuple(out[:, 0]) == KNOWN_ANSWERS[0][2]
    assert (out < 2**32).all()


def test_uniforms_do_not_depend_on_which_samples_come_together():
    ids = np.array([7, 0, 2**40 + 5, 123, 7], np.int64)
    together = rng.uniforms(3, 1, ids, 5)
    alone = np.concatenate([rng.uniforms(3, 1, ids[i : i + 1], 5) for i in range(len(ids))])
    assert np.array_equal(together, alone)
    assert np.array_equal(together[::-1], rng.uniforms(3, 1, ids[::-1], 5))


def test_more_numbers_begin_with_the_fewer():
    ids = np.arange(10)
    assert np.array_equal(rng.uniforms(3, 1, ids, 7)[:, :4], rng.uniforms(3, 1, ids, 4))


def test_uniforms_fill_the_unit_interval_evenly():
    values = rng.uniforms(0, 0, np.arange(20_000), 2)
    assert values.dtype == np.float64
    assert values.shape == (20_000, 2)
    assert values.min() >= 0
    assert values.max() < 1
    for column in values.T:
        counts = np.histogram(column, 20, (0, 1))[0]
        assert ((counts - 1000) ** 2 / 1000).sum() < 43.8  # chi-squared, 19 degrees of freedom, p = 0.001


@pytest.mark.parametrize(
    "other",
    [
        (4, rng.AUGMENT, 1, 9),
        (3 + 2**32, rng.AUGMENT, 1, 9),
        (3, rng.ORDER_ROWS, 1, 9),
        (3, rng.AUGMENT, 2, 9),
        (3, rng.AUGMENT, 1, 10),
        (3, rng.AUGMENT, 1, 9 + 2**32),
    ],
)
def test_each_part_of_the_key_counts(other):
    *key, sample = other
    here, there = rng.bits(3, rng.AUGMENT, 1, np.array([9])), rng.bits(*key, np.array([sample]))
    assert not (here == there).any()


@pytest.mark.parametrize("n", [0, 1, 2, 3, 1000, (1 << 20) + 3])
def test_a_permutation_has_each_index_once(n):
    order = rng.permutation(1, rng.ORDER_ROWS, 0, 5, n)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(n))


def test_permutations_differ_by_seed_stream_epoch_and_key():
    keys = [(0, 1, 0, 0), (1, 1, 0, 0), (0, 2, 0, 0), (0, 1, 1, 0), (0, 1, 0, 1)]
    assert len({rng.permutation(*key, 50).tobytes() for key in keys}) == len(keys)


def test_golden_values():
    # Users' saved states depend on these literals: a resume replays the order from them, and the pixels too.
    # If this test fails, the change breaks every checkpoint in the field. Do not renew the literals; undo the change.
    assert rng.permutation(0, rng.ORDER_UNITS, 0, 0, 12).tolist() == GOLDEN_UNITS
    assert rng.permutation(2**62 + 1, rng.ORDER_ROWS, 3, 2**33, 12).tolist() == GOLDEN_ROWS
    assert rng.uniforms(42, 1, np.array([0, 10**10]), 3).tolist() == GOLDEN_UNIFORMS


GOLDEN_UNITS = [0, 3, 1, 9, 4, 2, 6, 10, 11, 8, 5, 7]
GOLDEN_ROWS = [10, 9, 7, 2, 3, 6, 11, 8, 0, 5, 1, 4]
GOLDEN_UNIFORMS = [
    [0.7082599946620679, 0.27619599338548784, 0.018217205805592385],
    [0.886771995628178, 0.5178148663946762, 0.7102432200382923],
]


def test_known_hashes():
    # The first outputs of SplitMix64 from 1234567, as every implementation prints them; splits depend on them.
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert rng.hashes(1234567, np.arange(5)).tolist() == known
    assert rng.hashes(1234567, np.array([4, 0])).tolist() == [known[4], known[0]]
    assert rng.hashes(2**63 - 1, np.array([2**62])).dtype == np.uint64


def test_equal_numbers_keep_their_order(monkeypatch):
    monkeypatch.setattr(rng, "philox4x32", lambda counter, _: np.zeros_like(counter))
    assert rng.permutation(0, rng.ORDER_ROWS, 0, 0, 1000).tolist() == list(range(1000))
