"""Large values decoded by our own reader: the same as pyarrow's for every way to write them, and damage is an error."""

from __future__ import annotations

import uuid

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from whole import manifest_of, pieces_of, read_all

from ingest.errors import ReadError
from ingest.read import blobs, parquet
from ingest.read.blobs import hybrid
from ingest.read.page_headers import page_header
from ingest.read.parquet import read_window
from ingest.spec import Storage

pytestmark = pytest.mark.unit

RNG = np.random.default_rng(0)
DISTINCT = [RNG.bytes(int(size)) for size in RNG.integers(3000, 9000, 40)]
COLUMNS = {
    "distinct": DISTINCT,
    "repeated": [DISTINCT[i % 7] for i in range(40)],
    "nulls": [None if i % 5 == 2 else DISTINCT[i] for i in range(40)],
    "all null but one": [DISTINCT[0] * 30 if i == 17 else None for i in range(40)],
    "empty ones": [b"" if i % 3 else DISTINCT[i] * 3 for i in range(40)],
    "one": DISTINCT[:1],
}
WRITTEN = {
    "dictionary": {},
    "plain": {"use_dictionary": False},
    "overflowing dictionary": {"dictionary_pagesize_limit": 20_000, "write_batch_size": 4},
    "many pages": {"use_dictionary": False, "data_page_size": 10_000, "write_batch_size": 3},
    "checksums": {"write_page_checksum": True, "data_page_size": 10_000, "write_batch_size": 3},
}


@pytest.fixture
def decoded(monkeypatch):
    """How many column chunks our reader took."""
    taken = []
    read = blobs.read_blobs

    def counted(*arguments):
        taken.append(arguments)
        return read(*arguments)

    monkeypatch.setattr(parquet, "read_blobs", counted)
    return taken


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip", "lz4"])
def test_the_same_as_pyarrow(tmp_path, decoded, monkeypatch, written, version, compression):
    monkeypatch.setattr(blobs, "MIN_VALUE_BYTES", 0)
    path = tmp_path / "a.parquet"
    for name, values in COLUMNS.items():
        table = pa.table({"b": pa.array(values, pa.binary()), "n": range(len(values))})
        pq.write_table(table, path, compression=compression, data_page_version=version, **WRITTEN[written])
        decoded.clear()
        got = read_all(path)
        got.validate(full=True)
        assert got.equals(table), name
        assert len(decoded) == (compression != "lz4"), name  # of which Parquet has two that go by one name


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()], ids=str)
@pytest.mark.parametrize("nullable", [True, False])
def test_types(tmp_path, decoded, kind, nullable):
    schema = pa.schema([pa.field("b", kind, nullable=nullable)])
    values = [chr(97 + i) * (3000 + i) for i in range(20)]
    if not pa.types.is_string(kind) and not pa.types.is_large_string(kind):
        values = [value.encode() for value in values]
    pq.write_table(pa.table({"b": values}, schema), tmp_path / "a.parquet")
    got = read_all(tmp_path)
    assert got.schema.field("b").type == kind
    assert got["b"].to_pylist() == values
    assert len(decoded) == 1


def test_fields_of_structs_with_nulls_at_every_depth(tmp_path, decoded):
    rows = [
        {"image": {"bytes": DISTINCT[0], "path": "a"}},
        {"image": {"bytes": None, "path": "b"}},
        {"image": None},
        None,
        *({"image": {"bytes": value, "path": None}} for value in DISTINCT[1:20]),
    ]
    pq.write_table(pa.table({"s": rows, "n": range(len(rows))}), tmp_path / "a.parquet")
    got = read_all(tmp_path, columns={"image": "s.image.bytes", "path": "s.image.path", "n": "n"})
    assert got["image"].to_pylist() == [DISTINCT[0], None, None, None, *DISTINCT[1:20]]
    assert got["path"].to_pylist() == ["a", "b"] + [None] * 21
    assert got["n"].to_pylist() == list(range(23))
    assert len(decoded) == 1
    both = read_all(tmp_path, columns={"image": "s.image.bytes", "whole": "s"})
    assert both["whole"].to_pylist() == rows
    assert len(decoded) == 1  # the struct is read whole anyway


@pytest.mark.parametrize("written", WRITTEN)
def test_from_a_store(decoded, written):
    table = pa.table({"b": DISTINCT, "n": range(40)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=15, **WRITTEN[written])
    name = uuid.uuid4().hex
    fsspec.filesystem("memory").pipe(f"/{name}/a.parquet", sink.getvalue().to_pybytes())
    assert read_all(f"memory://{name}").equals(table)
    assert len(decoded) == 3


def test_one_output_twice_and_indices(tmp_path, decoded):
    pq.write_table(pa.table({"b": DISTINCT}), tmp_path / "a.parquet")
    manifest = manifest_of(tmp_path, columns={"x": "b", "y": "b"})
    (piece,) = pieces_of(manifest)
    rows = np.array([3, 4, 30])
    got = read_window([piece._replace(rows=rows)], manifest.schema, manifest.columns, Storage(), {})
    assert got.to_pydict() == {"x": [DISTINCT[i] for i in rows], "y": [DISTINCT[i] for i in rows]}
    assert len(decoded) == 1


@pytest.mark.parametrize("options", [{}, {"use_dictionary": False}, {"compression": "none"}], ids=str)
def test_damage_anywhere_is_an_error_or_other_bytes_never_a_crash(tmp_path, decoded, options):
    path = tmp_path / "a.parquet"
    values = [None if i == 3 else value for i, value in enumerate(DISTINCT[:10])]
    pq.write_table(pa.table({"b": values}), path, **options)
    manifest = manifest_of(path)
    whole = path.read_bytes()
    data_end = pq.read_metadata(path).row_group(0).column(0).total_compressed_size + 4
    rng = np.random.default_rng(1)
    # Headers, levels and lengths are where damage bites: the first bytes, and the last before the footer.
    places = [*range(4, 44), *range(data_end - 40, data_end), *rng.integers(4, data_end, 20)]
    errors = []
    for place in places:
        data = bytearray(whole)
        data[place] ^= int(rng.integers(1, 256))
        path.write_bytes(data)
        entry = manifest_of(path).files[0]
        try:
            got = read_window(
                [pieces_of(manifest)[0]._replace(entry=entry)], manifest.schema, manifest.columns, Storage(), {}
            )
            got.validate(full=True)
            assert len(got) == 10
        except ReadError as error:
            errors.append(error)
    assert len(errors) > 20
    assert {error.path for error in errors} == {str(path)}
    assert len(decoded) == len(places)


def test_a_checksum_that_is_wrong_is_an_error(tmp_path, decoded):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"b": DISTINCT}), path, write_page_checksum=True, compression="none")
    data = bytearray(path.read_bytes())
    data[10_000] ^= 1
    path.write_bytes(data)
    with pytest.raises(ReadError, match="checksum"):
        read_all(path)
    assert len(decoded) == 1


def test_hybrid_numbers_by_hand():
    packed = bytes([0b00000011, 0b10001000, 0b11000110, 0b11111010])  # the format's own example: 0 to 7 in 3 bits
    assert hybrid(memoryview(packed), 3, 8).tolist() == list(range(8))
    assert hybrid(memoryview(bytes([10, 4])), 3, 5).tolist() == [4] * 5
    assert hybrid(memoryview(bytes([4, 1]) + packed), 3, 6).tolist() == [1, 1, 0, 1, 2, 3]
    assert hybrid(memoryview(bytes([8])), 0, 4).tolist() == [0] * 4
    for damaged in (b"", b"\x00", b"\x01", b"\xff" * 12):
        with pytest.raises((IndexError, ValueError)):
            hybrid(memoryview(damaged), 3, 8)


def test_page_headers_by_hand():
    #        type=0    uncompressed=10  compressed=12  data page {values=4, encoding=0, levels 3, 3}
    header = b"\x15\x00\x15\x14\x15\x18\x2c\x15\x08\x15\x00\x15\x06\x15\x06\x00\x00"
    parsed = page_header(header + b"rest")
    assert (parsed.type, parsed.uncompressed_bytes, parsed.compressed_bytes, parsed.values) == (0, 10, 12, 4)
    assert (parsed.header_bytes, parsed.crc, parsed.encoding) == (len(header), None, 0)
    with pytest.raises(IndexError):
        page_header(header[:-1])
    for damaged in (b"\x00", b"\x1f\x00", b"\x1c" * 50, b"\x15\x09\x15\x00\x15\x00\x00"):
        with pytest.raises(ValueError, match="page header"):
            page_header(damaged)
