"""The Example parser: each form that the wire format allows, each way in which a record can be wrong."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError

from ingest.errors import RecordError, SchemaError
from ingest.read.example import BAD_COLUMN, Feature, arrow_schema, parse
from ingest.read.feature import varint
from tests.examples import (
    entry,
    example,
    extents,
    feature,
    field,
    floats,
    ints,
    protobuf_reads,
    strings,
    unpacked_floats,
    unpacked_ints,
)

GAP = b"\xff" * 12  # as TFRecord has between records; bytes that spoil whatever is read past an end
LIST = {kind: Feature("a", kind, (None,)) for kind in ("bytes", "float", "int64")}


def rows(records, *features, **how):
    return parse(*extents(records, GAP), features, **how).to_pylist()


def values(value: bytes, kind: str = "int64"):
    """What a record with this Feature holds; protobuf must agree."""
    return read(example(entry(b"a", value)), kind)


def read(record: bytes, kind: str = "int64"):
    (row,) = rows([record], LIST[kind])
    held, expected = protobuf_reads(record).get("a", ("", []))
    assert held in {"", kind} or not expected
    assert row["a"] == expected
    return row["a"]


def error(record: bytes, *features, before=()):
    features = features or (LIST["int64"],)
    with pytest.raises(RecordError) as caught:
        rows([*before, record], *features)
    assert caught.value.index == len(before)
    return caught.value


def test_columns_have_the_types_and_shapes_asked_for():
    record = example(
        entry(b"one", ints(7)),
        entry(b"many", floats(1, 2)),
        entry(b"grid", ints(1, 2, 3, 4, 5, 6)),
        entry(b"text", strings(b"x", b"", b"zz")),
        entry(b"image", strings(b"\xff\xd8" * 100)),
        entry(b"pair", strings(b"l", b"right")),
    )
    features = [
        Feature("text", "bytes", (None,)),
        Feature("grid", "int64", (2, 3)),
        Feature("many", "float", (None,)),
        Feature("one", "int64"),
        Feature("image", "bytes"),
        Feature("pair", "bytes", (2,)),
    ]
    table = parse(*extents([record, record], GAP), features)
    table.validate(full=True)
    assert table.schema == arrow_schema(features)
    assert table.schema.types == [
        pa.large_list(pa.large_binary()),
        pa.list_(pa.list_(pa.int64(), 3), 2),
        pa.large_list(pa.float32()),
        pa.int64(),
        pa.large_binary(),
        pa.list_(pa.large_binary(), 2),
    ]
    row = {
        "text": [b"x", b"", b"zz"],  # T11
        "grid": [[1, 2, 3], [4, 5, 6]],
        "many": [1.0, 2.0],
        "one": 7,
        "image": b"\xff\xd8" * 100,
        "pair": [b"l", b"right"],
    }
    assert table.to_pylist() == [row, row]


def test_no_records_and_no_features():
    assert parse(*extents([]), [LIST["int64"], Feature("b", "bytes", (2,))]).to_pylist() == []
    assert parse(*extents([example()]), []).num_columns == 0


@pytest.mark.parametrize(
    "value",
    [
        ints(1, -1, 300),
        unpacked_ints(1, -1, 300),
        feature("int64", field(1, varint(1) + varint(-1)) + b"\x08" + varint(300)),
        feature("int64", b"\x08" + varint(1) + field(1, varint(-1)) + field(1, b"") + field(1, varint(300))),
    ],
)
def test_packed_unpacked_and_mixed_ints_are_the_same(value):  # T13
    assert values(value) == [1, -1, 300]


@pytest.mark.parametrize(
    "value",
    [
        floats(1.5, -2),
        unpacked_floats(1.5, -2),
        feature("float", b"\x0d" + np.float32(1.5).tobytes() + field(1, np.float32(-2).tobytes())),
    ],
)
def test_packed_unpacked_and_mixed_floats_are_the_same(value):  # T13
    assert values(value, "float") == [1.5, -2.0]


def test_every_int64_and_every_length_of_varint():
    numbers = [0, 1, -1, 2**63 - 1, -(2**63), *(sign << k for k in range(63) for sign in (1, -1))]
    assert values(ints(*numbers)) == numbers
    assert values(feature("int64", field(1, b"\x81" + b"\x80" * 8 + b"\x00"))) == [1]
    assert values(feature("int64", field(1, b"\xff" * 9 + b"\x7f"))) == [-1]  # bits past the 64th are dropped


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (example(entry(b"a", ints(1)), entry(b"a", ints(2, 3))), [2, 3]),  # the last entry of a key
        (example(entry(b"a", floats(1)), entry(b"a", ints(2, 3))), [2, 3]),
        (example(entry(b"a", ints(1)), entry(b"a", b"")), []),
        (example(entry(b"a", ints(1))) + example(entry(b"b", ints(2))), [1]),  # merged messages
        (example(entry(b"a", ints(1))) + example(entry(b"a", ints(2))), [2]),
        (example(entry(b"a", ints(1) + ints(2, 3))), [1, 2, 3]),
        (example(entry(b"a", ints(1), ints(2))), [1, 2]),
        (example(entry(b"a", floats(1) + ints(2, 3))), [2, 3]),  # another member of the oneof
        (example(entry(b"a", ints(1) + floats(1) + ints(2, 3))), [2, 3]),
        (example(entry(b"a", ints(1), floats(1), ints(2))), [2]),
        (example(entry(b"a", ints(1) + feature("float", b""))), []),
        (example(field(1, field(2, ints(2)) + field(1, b"a"))), [2]),  # the value before the key
        (example(field(1, field(1, b"b") + field(1, b"a") + field(2, ints(2)))), [2]),
        (example(field(1, field(1, b"a"))), []),
        (example(), []),
        (b"", []),
    ],
)
def test_what_is_repeated_is_merged_as_protobuf_does(record, expected):
    assert read(record) == expected


UNKNOWN = [
    b"\x78\x05",
    b"\x79" + b"12345678",
    b"\x7d" + b"1234",
    field(15, b"anything"),
    b"\x7b" + b"\x08\x01" + b"\x13\x14" + field(7, b"\x7c") + b"\x7c",
    b"\x7b" * 90 + b"\x7c" * 90,
    b"\x08\x05",  # a known number with another wire type
    b"\x0d1234",
]


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_unknown_fields_of_every_wire_type_are_skipped_everywhere(unknown):
    one = ints(1)
    read(unknown + example(entry(b"a", one)) + unknown)
    read(field(1, unknown + entry(b"a", one)))
    read(example(entry(b"a", unknown + one)))
    if unknown[0] not in {0x08, 0x0D}:
        read(example(entry(b"a", feature("int64", unknown + field(1, b"\x01")))))
    # upb would drop such an entry; C++ and Java skip the field.
    inside = field(1, field(1, b"a") + unknown + field(2, one))
    assert rows([example(inside)], LIST["int64"]) == [{"a": [1]}]


DAMAGED = {
    "cut length": b"\x0a\x80",
    "past the end": b"\x0a\x05\x0a",
    "cut packed": example(entry(b"a", feature("int64", field(1, b"\x01\x80")))),
    "cut unpacked": example(entry(b"a", feature("int64", b"\x08"))),
    "cut float": example(entry(b"a", feature("float", b"\x0d123"))),
    "5 bytes of floats": example(entry(b"a", feature("float", field(1, b"12345")))),
    "6 bytes of floats, more than fit": example(entry(b"a", feature("float", field(1, b"123456" * 31)))),
    "varint of 11": example(entry(b"a", feature("int64", field(1, b"\xff" * 10 + b"\x01")))),
    "length of 6": b"\x0a" + b"\x80" * 5 + b"\x00",
    "length past 2 GiB": b"\x7a" + varint(1 << 31),
    "length below 0": b"\x7a" + varint(-1),
    "tag of 6": b"\xf8" + b"\x80" * 5 + b"\x00",
    "tag of 35 bits": b"\x8a\x80\x80\x80\x70\x00",
    "field 0": b"\x00\x01",
    "wire type 6": b"\x7e",
    "wire type 7": b"\x0f",
    "end of no group": b"\x7c",
    "group ends as another": b"\x7b\x74",
    "group unended": b"\x7b\x08\x01",
    "groups crossed": b"\x7b\x73\x7c\x74",
    "groups too deep": b"\x7b" * 101 + b"\x7c" * 101,
    "groups too deep, further in": example(entry(b"a", feature("int64", b"\x7b" * 97 + b"\x7c" * 97))),
    "cut fixed64": b"\x791234567",
    "name F0 80": example(entry(b"\xf0\x80", ints(1))),  # T19
    "name F0 80 in an odd entry": example(field(1, field(2, ints(1)) + field(1, b"\xf0\x80"))),
    "a surrogate": example(entry(b"\xed\xa0\x80", ints(1))),
    "past the last code point": example(entry(b"\xf4\x90\x80\x80", ints(1))),
    "a long form": example(entry(b"\xc0\x80", ints(1))),
    "a cut name": example(entry(b"\xc3", ints(1))),
}


@pytest.mark.parametrize("record", DAMAGED.values(), ids=DAMAGED)
def test_what_protobuf_refuses_is_an_error_that_names_record_and_byte(record):
    with pytest.raises(DecodeError):
        protobuf_reads(record)
    kind = "float" if b"\x12" in record and b"1234" in record else "int64"
    good = example(entry(b"a", b""))
    caught = error(record, LIST[kind], before=[good])
    start = len(good) + 2 * len(GAP)
    assert start <= caught.offset <= start + len(record)
    assert f"record 1 (byte {caught.offset - start} of its {len(record)})" in str(caught)


@pytest.mark.parametrize("name", ["é", "\uffff", "\U0010ffff", "a\0b", "", "x" * 200])
def test_names_of_any_utf8(name):
    record = example(entry(name.encode(), ints(1)), entry(b"other" * 100, ints(2)))
    assert rows([record], Feature(name, "int64")) == [{name: 1}]


def test_each_cut_of_a_record_is_refused_or_shorter():
    record = example(entry(b"b", strings(b"xyz")), entry(b"a", ints(1, 300)), entry(b"c", unpacked_floats(1)))
    for size in range(1, len(record)):
        error(record[:size])


def test_a_sequence_example_is_refused_by_name():  # T17
    context = field(1, entry(b"a", ints(1)))
    lists = field(2, field(1, field(1, b"z") + field(2, field(1, ints(1)))))
    assert "SequenceExample" in str(error(context + lists))
    assert "SequenceExample" in str(error(lists + context))


def test_a_wrong_kind_names_both():
    caught = error(example(entry(b"a", floats(1))))
    assert "feature 'a' of record 0" in str(caught)
    assert "holds float values, and int64 was asked" in str(caught)
    error(example(entry(b"a", ints(1) + floats(1))))
    error(example(entry(b"a", strings(b""))), Feature("a", "float", default=1))


@pytest.mark.parametrize("value", [b"", feature("float", b""), feature("int64", b""), feature("int64", field(1, b""))])
def test_an_empty_list_of_any_kind_is_empty(value):  # T09
    assert rows([example(entry(b"a", value))], LIST["int64"]) == [{"a": []}]


@pytest.mark.parametrize("shape", [(), (2,), (2, 2), (40,), (200,)])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 40, 41, 200])
@pytest.mark.parametrize(("kind", "make"), [("int64", ints), ("float", floats), ("bytes", strings)])
def test_a_fixed_shape_takes_its_own_number_of_values_only(shape, count, kind, make):
    wanted = Feature("a", kind, shape)
    given = [b"s" if kind == "bytes" else 7] * count
    record = example(entry(b"a", make(*given)))
    if count == wanted.width:
        flat = parse(*extents([record]), [wanted]).column("a").combine_chunks()
        while pa.types.is_fixed_size_list(flat.type):
            flat = flat.flatten()
        assert flat.to_pylist() == given
    else:
        assert f"has {count} values, and shape {list(shape)} has {wanted.width}" in str(error(record, wanted))


def test_defaults_stand_for_what_is_not_there():
    features = [
        Feature("i", "int64", (), -5),
        Feature("f", "float", (2,), 0.5),
        Feature("g", "float", (2, 1), [[1], [2]]),
        Feature("b", "bytes", (), b"none"),
        Feature("s", "bytes", (2,), ["x", "yy"]),
        Feature("r", "float", (None,)),
    ]
    absent = {"i": -5, "f": [0.5, 0.5], "g": [[1.0], [2.0]], "b": b"none", "s": [b"x", b"yy"], "r": []}
    there = example(entry(b"i", ints(0)), entry(b"b", strings(b"")), entry(b"r", floats(1)))
    records = [example(), there, example(entry(b"i", b""), entry(b"f", b"")), b""] * 50
    assert rows(records, *features) == [absent, {**absent, "i": 0, "b": b"", "r": [1.0]}, absent, absent] * 50


def test_a_required_feature_that_is_not_there_is_named():
    caught = error(example(entry(b"b", ints(1))), Feature("b", "int64"), Feature("a", "int64"))
    assert "feature 'a' of record 0" in str(caught)
    assert "default" in str(caught)


def test_marked_records_leave_the_others_alone():
    features = [
        Feature("i", "int64"),
        Feature("l", "int64", (None,)),
        Feature("b", "bytes", (None,)),
        Feature("s", "bytes"),
        Feature("f", "float", (3,)),
    ]

    def record(k):
        return example(
            entry(b"i", ints(k)),
            entry(b"l", ints(*range(k))),
            entry(b"b", strings(*[b"%d" % k] * k)),
            entry(b"s", strings(b"s" * k)),
            entry(b"f", floats(k, k, k)),
        )

    good = [record(k) for k in range(300)]
    last = record(5)[:-30] + b"\xff" * 30  # bad in the column read last
    bad = {0: b"\x7e", 7: last, 8: example(), 150: last, 299: record(9)[:-1]}
    table = parse(*extents([bad.get(k, one) for k, one in enumerate(good)], GAP), features, on_bad="mark")
    table.validate(full=True)
    said = table.column(BAD_COLUMN).to_pylist()
    assert {k for k, message in enumerate(said) if message} == set(bad)
    assert all(f"record {k} (" in said[k] for k in bad)
    expected = parse(*extents(good), features).to_pylist()
    blank = {"i": 0, "l": [], "b": [], "s": b"", "f": [0.0, 0.0, 0.0]}
    assert table.drop_columns(BAD_COLUMN).to_pylist() == [blank if k in bad else row for k, row in enumerate(expected)]


def test_order_of_features_and_unknown_ones_do_not_matter():
    rng = np.random.default_rng(0)
    names = [f"feature{k}" for k in range(400)]  # more than the parser learns
    records, expected = [], []
    for k in range(200):
        chosen = rng.permutation(400)[: rng.integers(0, 400)].tolist()
        records.append(example(*(entry(names[n].encode(), ints(n + k)) for n in chosen)))
        expected.append({names[n]: n + k if n in chosen else -1 for n in (3, 141, 399)})
    assert rows(records, *(Feature(names[n], "int64", (), -1) for n in (3, 141, 399))) == expected


def test_room_is_made_for_lists_that_grow_late():
    sizes = [0] * 100 + [5000, 0, 1, 70_000] + [3] * 100
    records = [example(entry(b"a", ints(*range(n))), entry(b"b", strings(b"x" * n, b""))) for n in sizes]
    got = parse(*extents(records, GAP), [LIST["int64"], Feature("b", "bytes", (2,))])
    got.validate(full=True)
    assert got.column("a").to_pylist() == [list(range(n)) for n in sizes]
    assert got.column("b").to_pylist() == [[b"x" * n, b""] for n in sizes]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "double"}, "none of bytes, float, int64"),
        ({"shape": (0,)}, "shape"),
        ({"shape": (None, 3)}, "shape"),
        ({"shape": (-1,)}, "shape"),
        ({"default": 1.5}, "not of kind int64"),
        ({"default": 2**63}, "not of kind int64"),
        ({"kind": "float", "default": 1e300}, "larger than a float32"),
        ({"default": [1, 2]}, "has 1 values, the default 2"),
        ({"shape": (None,), "default": 0}, "no default"),
        ({"name": "\ud800"}, "UTF-8"),
    ],
)
def test_a_feature_that_cannot_be_is_refused(wrong, message):
    with pytest.raises(SchemaError, match=message):
        Feature(**{"name": "a", "kind": "int64", **wrong})


def test_a_feature_twice_is_refused():
    with pytest.raises(SchemaError, match="'a' is asked for twice"):
        rows([], LIST["int64"], LIST["float"])


@pytest.mark.parametrize(("starts", "stops"), [([0], [9]), ([-1], [2]), ([2], [1]), ([0, 1], [1])])
def test_extents_outside_the_data_are_refused(starts, stops):
    with pytest.raises(ValueError, match=r"record|stops"):
        parse(np.zeros(8, np.uint8), np.array(starts), np.array(stops), [LIST["int64"]])


@pytest.mark.slow
def test_nine_million_ints_in_one_record():  # T16
    numbers = np.arange(-4_500_000, 4_500_000)
    packed = b"".join(map(varint, numbers.tolist()))
    record = example(entry(b"a", feature("int64", field(1, packed))))
    table = parse(*extents([b"", record, b""], GAP), [LIST["int64"]])
    (column,) = table.column("a").chunks
    assert column.offsets.to_pylist() == [0, 0, len(numbers), len(numbers)]
    assert np.array_equal(column.values.to_numpy(), numbers)
    assert table.nbytes < 8 * len(numbers) + 100
    caught = error(record, Feature("a", "int64", (3,)))
    assert len(str(caught)) < 300
    assert "has 9000000 values" in str(caught)
