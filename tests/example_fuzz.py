"""Fuzzes the Example parser against protobuf: python -m tests.example_fuzz [--seconds N] [--inputs N] [--seed N].

Records are grown from the wire format's own pieces, mostly with lengths that fit, and then damaged. Each goes through
the parser twice over (all features at once, records one after another in one buffer) and through protobuf's parser,
and both must say the same. With NUMBA_BOUNDSCHECK=1, an index out of bounds is an error as well.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import time
from collections.abc import Callable

import numpy as np
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from ingest.read.example import BAD_COLUMN, Feature, parse
from ingest.read.feature import varint
from ingest.read.survey import Survey
from tests.examples import Example, extents, field

GAP = b"\xff" * 3
NAMES = (b"a", b"bb", b"c" * 40, b"\xc3\xa9")
WANTED = (
    Feature("a", "int64", (None,)),
    Feature("bb", "float", (None,)),
    Feature("c" * 40, "bytes", (None,)),
    Feature("é", "int64", (2,), 7),
)
KINDS = ("", "bytes", "float", "int64")


def expected(record: bytes) -> list[list] | str | None:
    """A row of WANTED as protobuf reads it, 'bad', or None: it is not known.

    upb keeps a map entry with a field it does not know among the unknown fields of the map; the parser reads it.
    """
    try:
        example = Example.FromString(record)
    except DecodeError:
        return "bad"
    if any(f.field_number == 1 for f in UnknownFieldSet(example.features)):
        return None
    if any(f.field_number == 2 and f.wire_type == 2 for f in UnknownFieldSet(example)):
        return "bad"  # a SequenceExample
    row, held = [], example.features.feature
    for feature in WANTED:
        there = held.get(feature.name)
        kind = there.WhichOneof("kind") if there is not None else None
        values = list(getattr(there, kind).value) if kind else []
        if values and kind != f"{feature.kind}_list":
            return "bad"
        if not feature.ragged and not kind:
            values = list(feature.default)
        if not feature.ragged and len(values) != feature.width:
            return "bad"
        row.append(values)
    return row


def check(records: list[bytes]) -> dict[str, int]:
    """Parse records and compare.

    Returns:
        How many were good, bad, refused by protobuf alone (damage in a feature that nobody asked for), not compared.

    Raises:
        AssertionError: the parser and protobuf disagree; the record is shown.
    """
    data, starts, stops = extents(records, GAP)
    table = parse(data, starts, stops, WANTED, on_bad="mark")
    table.validate(full=True)
    assert table.nbytes <= 64 * len(data) + 4096 * len(records) + (1 << 20)
    Survey().add(data, starts, stops, on_bad="skip")
    said = table.column(BAD_COLUMN).to_pylist()
    columns = [table.column(feature.name).to_pylist() for feature in WANTED]
    counts = {"good": 0, "bad": 0, "protobuf_refuses": 0, "not_compared": 0}
    for k, record in enumerate(records):
        want, got = expected(record), [column[k] for column in columns]
        if want is None:
            counts["not_compared"] += 1
        elif want == "bad":
            counts["bad" if said[k] else "protobuf_refuses"] += 1
        else:
            assert said[k] is None, f"{record!r}: {said[k]}, where protobuf reads {want}"
            same = all(
                np.array_equal(mine, its, equal_nan=feature.kind == "float")
                for mine, its, feature in zip(got, want, WANTED, strict=True)
            )
            assert same, f"{record!r}: {got}, where protobuf reads {want}"
            counts["good"] += 1
    return counts


def grow(rng: random.Random) -> bytes:
    """A record, mostly a valid one, in odd forms."""
    pieces = [_features(rng) for _ in range(rng.choice((0, 1, 1, 1, 1, 2)))]
    if rng.random() < 0.1:
        pieces.insert(rng.randrange(len(pieces) + 1), _unknown(rng))
    return b"".join(pieces)


def damage(record: bytes, rng: random.Random) -> bytes:
    """The record with one to four things wrong."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        record = rng.choice(_DAMAGES)(record, rng)
    return record


def _number(rng: random.Random) -> int:
    return rng.choice((0, 1, 127, 128, 300, -1, 2**31, 2**63 - 1, -(2**63), rng.getrandbits(64) - 2**63))


def _any_varint(rng: random.Random) -> bytes:
    text = varint(_number(rng))
    if rng.random() < 0.05:
        text = text[:-1] + bytes([text[-1] | 0x80]) + b"\x80" * rng.randrange(9) + b"\x00"
    return text


def _unknown(rng: random.Random, depth: int = 0) -> bytes:
    number = rng.choice((1, 2, 3, 4, 15, 16, 2**29 - 1))
    wire = rng.choice((0, 1, 2, 3, 5))
    tag = varint(number << 3 | wire)
    if wire == 0:
        return tag + _any_varint(rng)
    if wire == 1:
        return tag + rng.randbytes(8)
    if wire == 2:
        return field(max(number, 4), rng.randbytes(rng.randrange(6)))
    if wire == 5:
        return tag + rng.randbytes(4)
    inside = b"" if depth > 3 else b"".join(_unknown(rng, depth + 1) for _ in range(rng.randrange(3)))
    return tag + inside + varint(number << 3 | 4)


def _list(kind: int, rng: random.Random) -> bytes:
    pieces = []
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        count = rng.choice((1, 1, 2, 2, 5, 40))
        if kind == 1:
            pieces.append(field(1, rng.randbytes(rng.choice((0, 1, 5, 130)))))
        elif kind == 2:
            packed = rng.randbytes(4 * count)
            pieces.append(field(1, packed) if rng.random() < 0.7 else b"\x0d" + packed[:4])
        elif rng.random() < 0.7:
            pieces.append(field(1, b"".join(_any_varint(rng) for _ in range(count))))
        else:
            pieces.append(b"\x08" + _any_varint(rng))
        if rng.random() < 0.05:
            pieces.append(_unknown(rng))
    return b"".join(pieces)


def _feature(kind: int, rng: random.Random) -> bytes:
    pieces = []
    for _ in range(rng.choice((0, 1, 1, 1, 1, 1, 2, 3))):
        held = kind if rng.random() < 0.9 else rng.randint(1, 3)
        pieces.append(field(held, _list(held, rng)))
        if rng.random() < 0.03:
            pieces.append(_unknown(rng))
    return b"".join(pieces)


def _features(rng: random.Random) -> bytes:
    entries = []
    for _ in range(rng.choice((0, 1, 2, 3, 5))):
        which = rng.randrange(4)
        name = NAMES[which] if rng.random() < 0.9 else rng.choice((b"", b"other", b"\xf0\x80", rng.randbytes(3)))
        kind = (3, 2, 1, 3)[which]
        value = _feature(kind, rng)
        if which == 3 and rng.random() < 0.8:  # as many values as were asked for
            value = field(3, field(1, _any_varint(rng) + _any_varint(rng)))
        pieces = [field(1, name), field(2, value)]
        if rng.random() < 0.1:
            pieces = rng.choices([*pieces, field(2, _feature(kind, rng))], k=rng.randrange(4))
        if rng.random() < 0.02:
            pieces.append(_unknown(rng))
        entries.append(field(1, b"".join(pieces)))
    return field(1, b"".join(entries))


def _flip(record: bytes, rng: random.Random) -> bytes:
    if not record:
        return b"\x0a"
    at = rng.randrange(len(record))
    return record[:at] + bytes([record[at] ^ 1 << rng.randrange(8)]) + record[at + 1 :]


def _cut(record: bytes, rng: random.Random) -> bytes:
    return record[: rng.randrange(len(record) + 1)]


def _remove(record: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(record) + 1)
    return record[:at] + record[at + rng.randrange(1, 5) :]


def _insert(record: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(record) + 1)
    return record[:at] + rng.randbytes(rng.randrange(1, 5)) + record[at:]


def _repeat(record: bytes, rng: random.Random) -> bytes:
    at, end = sorted(rng.randrange(len(record) + 1) for _ in range(2))
    return record[:end] + record[at:end] + record[end:]


def _inflate(record: bytes, rng: random.Random) -> bytes:
    """A byte, perhaps a length, made large or long."""
    if not record:
        return b"\xff" * 11
    at = rng.randrange(len(record))
    large = rng.choice(
        (
            b"\xff\xff\xff\xff\x07",
            b"\xff" * 9 + b"\x01",
            b"\x7f",
            b"\xff\x7f",
            b"\x80" * 10 + b"\x01",
            bytes([record[at] | 0x80, 0]),
            bytes([record[at] | 0x80, 0x80, 0x80, 0]),
        )
    )
    return record[:at] + large + record[at + 1 :]


def _set(record: bytes, rng: random.Random) -> bytes:
    if not record:
        return b"\x0b"
    at = rng.randrange(len(record))
    return record[:at] + rng.choice((b"\0", b"\x0a", b"\x12", b"\x1a", b"\x0b", b"\x0c", b"\x80")) + record[at + 1 :]


_DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (_flip, _cut, _remove, _insert, _repeat, _inflate, _set)


def run(seed: int, seconds: float, inputs: int, batch: int = 500) -> dict[str, int | float]:
    """Check records until the time or the number is used up.

    Raises:
        AssertionError: as `check`.
    """
    rng = random.Random(seed)
    total: dict[str, int | float] = {"seed": seed, "inputs": 0}
    began = time.perf_counter()
    while total["inputs"] < inputs and time.perf_counter() - began < seconds:
        records: list[bytes] = []
        while len(records) < batch:
            record = grow(rng)
            records += [record, damage(record, rng), damage(record, rng), damage(record, rng)]
            if rng.random() < 0.1:
                records.append(rng.randbytes(rng.randrange(40)))
        for name, count in check(records).items():
            total[name] = total.get(name, 0) + count
        total["inputs"] += len(records)
    total["seconds"] = round(time.perf_counter() - began, 1)
    return total


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=60.0)
    options.add_argument("--inputs", type=int, default=10**9)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))  # an allocation out of proportion fails
    print(json.dumps(run(given.seed, given.seconds, given.inputs)), flush=True)


if __name__ == "__main__":
    main()
