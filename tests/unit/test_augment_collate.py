"""Arrow to NumPy: dtypes by Arrow type alone, whatever chunks, slices and nulls; encoded images as views."""

from __future__ import annotations

import datetime as dt
import decimal

import numpy as np
import pyarrow as pa
import pytest

from ingest.augment.collate import collate, gather
from ingest.errors import ReadError

pytestmark = pytest.mark.unit


def rows(*values):
    return np.array(values, np.int64)


def column(values, kind, picked=None):
    """One column, collated from two tables: the first chunked and sliced."""
    half = len(values) // 2
    first = pa.chunked_array(
        [pa.array([*values[:1], *values[:1]], kind).slice(1), pa.array(values[1:half], kind)], kind
    )
    tables = [pa.table({"c": first}), pa.table({"c": pa.array(values[half:], kind)})]
    spans = [np.arange(half), np.arange(len(values) - half)] if picked is None else picked
    return collate(list(zip(tables, spans, strict=True)))["c"]


@pytest.mark.parametrize(
    ("kind", "values", "dtype"),
    [
        (pa.int8(), [1, -2, 3, 4], "int8"),
        (pa.uint64(), [1, 2**63, 3, 4], "uint64"),
        (pa.int64(), [1, 2, 3, 4], "int64"),
        (pa.bool_(), [True, False, True, True], "bool"),
        (pa.float16(), [1.5, 2, 3, 4], "float16"),
        (pa.float32(), [1.5, 2, 3, 4], "float32"),
        (pa.float64(), [1.5, 2, 3, 4], "float64"),
        (pa.date32(), ["2024-01-01", "1970-01-01", "9999-12-31", "2000-02-29"], "datetime64[D]"),
        (
            pa.timestamp("us", "Europe/Berlin"),
            ["2024-01-01", "1970-01-01", "2100-12-31", "2000-02-29"],
            "datetime64[us]",
        ),
        (pa.duration("s"), [1, 2, 3, 4], "timedelta64[s]"),
    ],
)
def test_plain_types_keep_their_dtype_and_values(kind, values, dtype):
    temporal = dtype.startswith("datetime")
    parse = dt.date if dtype.endswith("[D]") else dt.datetime
    got = column([parse.fromisoformat(v) for v in values] if temporal else values, kind)
    assert got.dtype == dtype
    assert got.tolist() == np.array(values, dtype).tolist()
    assert got.flags.writeable


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
def test_null_floats_are_nan_and_change_no_dtype(kind):
    got = column([1.0, None, 3.0, None], kind)
    assert got.dtype == kind.to_pandas_dtype()
    assert np.isnan(got).tolist() == [False, True, False, True]
    assert column([None] * 4, kind).dtype == got.dtype


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("ms"), pa.duration("s")])
def test_null_instants_are_nat(kind):
    got = column([None, None, None, None], kind)
    assert np.isnat(got).all()
    assert got.dtype == column([0, 1, 2, 3], kind).dtype


@pytest.mark.parametrize("kind", [pa.int32(), pa.bool_(), pa.list_(pa.int64(), 1)])
def test_nulls_that_numpy_has_no_value_for_are_refused_by_name(kind):
    values = [[1], None, [1], [1]] if pa.types.is_fixed_size_list(kind) else [1, None, 1, 1]
    if kind == pa.bool_():
        values = [None if one is None else bool(one) for one in values]
    with pytest.raises(ReadError, match=r"column 'c' is .* null"):
        column(values, kind)


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
)
def test_strings_are_objects(kind):
    got = column(["a", None, "é" * 40, ""], kind)
    assert got.dtype == object
    assert got.tolist() == ["a", None, "é" * 40, ""]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2)])
def test_bytes_are_objects(kind):
    got = column([b"ab", None, b"\0\1", b"cd"], kind)
    assert got.dtype == object
    assert got.tolist() == [b"ab", None, b"\0\1", b"cd"]


def test_fixed_size_lists_are_rows():
    got = column([[1, 2], [3, 4], [5, 6], [7, 8]], pa.list_(pa.int16(), 2))
    assert (got.dtype, got.tolist()) == (np.int16, [[1, 2], [3, 4], [5, 6], [7, 8]])
    got = column([[1, 2], None, [5, None], [7, 8]], pa.list_(pa.float32(), 2))
    assert got.dtype == np.float32
    assert np.array_equal(got, np.array([[1, 2], [np.nan] * 2, [5, np.nan], [7, 8]], np.float32), equal_nan=True)
    nested = column([[[1, 2], [3, 4]]] * 4, pa.list_(pa.list_(pa.int8(), 2), 2))
    assert nested.shape == (4, 2, 2)


@pytest.mark.parametrize("values", [[[1], [1, 2, 3], [], None], [[1, 2], [3, 4], [5, 6], [7, 8]], [None] * 4, [[]] * 4])
@pytest.mark.parametrize("outer", [pa.list_, pa.large_list])
def test_lists_of_numbers_are_arrays_whatever_their_lengths(values, outer):  # R02, T10
    got = column(values, outer(pa.int64()))
    assert (got.dtype, got.shape) == (object, (4,))
    assert [None if one is None else one.tolist() for one in got] == values
    assert {one.dtype for one in got if one is not None} <= {np.dtype(np.int64)}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.struct({"a": pa.int32(), "b": pa.string()}), {"a": 1, "b": "x"}),
        (pa.map_(pa.string(), pa.int32()), [("k", 1)]),
        (pa.list_(pa.string()), ["a", "b"]),
        (pa.list_(pa.list_(pa.int32())), [[1], [2, 3]]),
        (pa.decimal128(5, 2), decimal.Decimal("1.25")),
        (pa.time32("s"), dt.time(1, 2, 3)),
    ],
)
def test_other_types_are_python_values(kind, value):
    got = column([value, None, value, value], kind)
    assert (got.dtype, got.shape) == (object, (4,))
    assert list(got) == [value, None, value, value]


def test_a_column_of_nulls_and_a_tensor():
    assert column([None] * 4, pa.null()).tolist() == [None] * 4
    kind = pa.fixed_shape_tensor(pa.int8(), (2, 3))
    storage = pa.array([list(range(6)), list(range(6, 12))], pa.list_(pa.int8(), 6))
    table = pa.table({"c": pa.ExtensionArray.from_storage(kind, storage)})
    assert collate([(table, rows(1, 0))])["c"].tolist() == [[[6, 7, 8], [9, 10, 11]], [[0, 1, 2], [3, 4, 5]]]


def test_rows_come_in_the_order_asked_for_across_chunks():
    chunks = pa.chunked_array([[0, 1], [], [2, 3, 4], [5]])
    images = pa.chunked_array([[b"0", b"11"], [], [b"2", None, b""], [b"5"]], pa.binary())
    table = pa.table({"n": chunks, "image": images, "left": chunks}).slice(1)  # rows 1 to 5
    picked = rows(4, 0, 2, 0, 3)
    pieces = [(table, picked), (table, rows(1)), (table, rows())]
    assert list(collate(pieces, skip={"left", "image"})) == ["n"]
    assert collate(pieces)["n"].tolist() == [5, 1, 3, 1, 4, 2]
    got = [None if view is None else view.tobytes() for view in gather(pieces, "image")]
    assert got == [b"5", b"11", None, b"11", b"", b"2"]


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.binary(3),
        pa.string(),
        pa.binary_view(),
        pa.dictionary(pa.int32(), pa.binary()),
    ],
)
def test_gather_takes_every_type_of_bytes(kind):
    values = ["abc", None, "ghi", "abc"] if kind == pa.string() else [b"abc", None, b"ghi", b"abc"]
    table = pa.table({"image": pa.array(values, kind).slice(1)})
    got = gather([(table, rows(2, 0, 1))], "image")
    assert [None if view is None else view.tobytes() for view in got] == [b"abc", None, b"ghi"]
    assert {view.dtype for view in got if view is not None} == {np.dtype(np.uint8)}


def test_gather_copies_nothing():
    image = pa.array([b"first", b"second"], pa.binary())
    (view,) = gather([(pa.table({"image": image}), rows(1))], "image")
    assert view.ctypes.data == image.buffers()[2].address + len(b"first")
    assert not view.flags.writeable


def test_collated_memory_is_its_own():
    numbers = pa.array([1.0, 2.0])
    collate([(pa.table({"n": numbers}), rows(0, 1))])["n"][:] = 0
    assert numbers.to_pylist() == [1.0, 2.0]


def test_what_cannot_be_collated_is_refused_by_name():
    with pytest.raises(ReadError, match="no column 'image' in a block; it has n"):
        gather([(pa.table({"n": [1]}), rows(0))], "image")
    with pytest.raises(ReadError, match=r"column 'image' is struct.*\. Name a field"):
        gather([(pa.table({"image": [{"bytes": b"x"}]}), rows(0))], "image")
    with pytest.raises(ReadError, match="column 'n' is int64 here and string there"):
        collate([(pa.table({"n": [1]}), rows(0)), (pa.table({"n": ["a"]}), rows(0))])


def test_no_rows_keep_the_dtype():
    empty = pa.table({"n": pa.array([], pa.float32()), "v": pa.array([], pa.list_(pa.float32(), 3))})
    got = collate([(empty, rows())])
    assert (got["n"].dtype, got["n"].shape, got["v"].shape) == (np.float32, (0,), (0, 3))
    chunkless = pa.table({"n": pa.chunked_array([], pa.int8())})
    assert collate([(chunkless, rows())])["n"].dtype == np.int8
    assert collate([]) == {}


_NOT_UTF_8 = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())


@pytest.mark.parametrize(
    "array",
    [
        pa.StructArray.from_arrays([pa.array([10**7], pa.int32()).cast(pa.date32())], ["t"]),
        pa.StructArray.from_arrays([pa.array([2**62], pa.timestamp("us"))], ["t"]),
        pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["t", "t"]),
        pa.array([86_399_999_999_999], pa.time64("ns")),
        pa.ListArray.from_arrays([0, 1], _NOT_UTF_8),
    ],
    ids=lambda array: str(array.type),
)
def test_values_that_python_has_not_are_an_error_that_names_the_column(array):
    with pytest.raises(ReadError, match=r"column 'x'.*Python has not.*Leave the column out"):
        collate([(pa.table({"x": array}), rows(0))])
