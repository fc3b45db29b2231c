"""The index of TFRecord files: units at record boundaries, damage told with its place, files that are none."""

from __future__ import annotations

import gzip
import json
import zlib

import numpy as np
import pytest

from ingest.errors import SampleError, SourceError
from ingest.manifest import stream, tfrecord
from ingest.manifest.model import FileEntry
from ingest.manifest.records import frame, masked_crc
from ingest.manifest.tfrecord import RECORD_INDEX_SCHEMA, index_file, index_records
from ingest.spec import Storage, TFRecord
from ingest.storage.filesystem import open_filesystem

pytestmark = pytest.mark.unit

PAYLOADS = [bytes([i]) * (7 * i) for i in range(20)]
DATA = b"".join(map(frame, PAYLOADS))
ENDS = np.cumsum([len(p) + 16 for p in PAYLOADS]).tolist()


class Sizes:
    """A survey that remembers how long the payloads were that it saw."""

    def __init__(self):
        self.seen = []

    def add(self, data, starts, stops, *, on_bad):
        self.seen += (stops - starts).tolist()

    def to_json(self):
        return json.dumps(self.seen)


def entry_of(folder, data, name="x.tfrecord", index=None):
    path = folder / name
    path.write_bytes(data)
    if index is not None:
        (folder / f"{name}.idx").write_text(index)
    info = open_filesystem(str(path), Storage()).info(str(path))
    return FileEntry(name, str(path), info.size, info.etag, (), None if index is None else f"{path}.idx")


def index_of(folder, data, *, check=True, survey=None, **options):
    entry = entry_of(folder, data, **options)
    return index_file(entry, open_filesystem(entry.url, Storage()), TFRecord(check_payload_crc=check), survey)


def tfrecord2idx(data):
    """What DALI's tool of that name writes."""
    lines, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "little") + 16
        lines.append(f"{at} {size}")
        at += size
    return "\n".join(lines) + "\n"


@pytest.fixture
def small_units(monkeypatch):
    monkeypatch.setattr(tfrecord, "UNIT_BYTES", 300)


def test_units_end_with_the_record_that_reaches_their_size(tmp_path, small_units):
    found = index_of(tmp_path, DATA)
    # By hand: records have 16, 23, 30, ... 149 bytes; eight make 324, the next four 330, then 321 and 384.
    assert found.rows == [8, 4, 3, 3, 2]
    assert found.file_row == [0, 8, 12, 15, 18]
    assert found.offset == [0, *(ENDS[row - 1] for row in found.file_row[1:])]
    assert [a + b for a, b in zip(found.offset, found.bytes, strict=True)] == [*found.offset[1:], len(DATA)]
    assert sum(found.memory_bytes) == sum(map(len, PAYLOADS))
    assert found.damage == []


def test_a_file_of_no_bytes_has_no_records(tmp_path):
    found = index_of(tmp_path, b"")
    assert (found.rows, found.damage) == ([], [])


@pytest.mark.parametrize(
    "pack",
    [
        gzip.compress, zlib.compress,
        lambda data: gzip.compress(data[:1000]) + gzip.compress(data[1000:]) + bytes(512),
    ],
    ids=["gzip", "zlib", "members"],
)  # fmt: skip
def test_compression_is_found_in_the_first_bytes(tmp_path, small_units, pack):  # T02
    packed = pack(DATA)
    found = index_of(tmp_path, packed, name="data")
    assert (found.rows, found.offset, found.file_row, found.bytes) == ([20], [0], [0], [len(packed)])
    assert found.memory_bytes == [sum(map(len, PAYLOADS))]
    assert found.damage == []


@pytest.mark.parametrize("packed", [gzip.compress(b""), zlib.compress(b"")], ids=["gzip", "zlib"])
def test_a_compressed_file_of_no_records_is_empty(tmp_path, packed):  # as TensorFlow leaves a shard without rows
    found = index_of(tmp_path, packed)
    assert (found.rows, found.damage) == ([], [])


@pytest.mark.parametrize("cut", [2, 7])
def test_less_than_an_empty_compressed_file_is_no_tfrecord(tmp_path, cut):
    with pytest.raises(SourceError, match="not a TFRecord file"):
        index_of(tmp_path, zlib.compress(b"")[:cut])


@pytest.mark.parametrize("length", [0x88B1F, 0x9C78, 0x0178, 0xDA78])
def test_a_length_that_looks_like_compressed_data_is_a_length(tmp_path, length):
    found = index_of(tmp_path, frame(bytes(length)))
    assert (found.rows, found.memory_bytes, found.damage) == ([1], [length], [])


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "a Git LFS pointer"),
        (b'{"features": [1, 2, 3]}', "it begins with"),
        (b"<!DOCTYPE html><html></html>", "it begins with"),
        (b"PAR1" + bytes(100) + b"PAR1", "which is Parquet"),
        (b"\x28\xb5\x2f\xfd" + bytes(100), "compressed by zstd"),
        (bytes(100), "it begins with"),
        (b"{}", "it has 2 bytes"),
        (gzip.compress(b'{"features": [1, 2, 3]}' * 9, mtime=0), "inside its gzip data it begins with"),
        (zlib.compress(b"short"), "inside its zlib data it begins with"),
        (b"\x1f\x8b\x08 and no gzip", "gzip data is damaged"),
        (b"\xff" * 7 + b"\x7f" + bytes(50), "it begins with"),  # a length of 2^63, which nothing is made of
    ],
)
def test_files_of_other_kinds_are_named(tmp_path, data, what):  # T05
    with pytest.raises(SourceError, match="not a TFRecord file: ") as caught:
        index_of(tmp_path, data)
    assert str(tmp_path / "x.tfrecord") in caught.value.message
    assert what in caught.value.message


def told(damage):
    return damage.record, damage.offset, damage.lost_records, damage.lost_bytes


@pytest.mark.parametrize("cut", [5, 1, 140])
def test_a_file_cut_inside_a_record_keeps_the_whole_ones(tmp_path, cut):  # T03
    found = index_of(tmp_path, DATA[:-cut])
    (damage,) = found.damage
    assert found.rows == [19]
    assert told(damage) == (19, ENDS[18], None, 149 - cut)
    assert f"record 19 at byte {ENDS[18]}: the file ends inside" in damage.message


def test_a_file_cut_inside_a_header_keeps_the_whole_records(tmp_path):  # T03
    found = index_of(tmp_path, DATA[: ENDS[9] + 7])
    (damage,) = found.damage
    assert found.rows == [10]
    assert told(damage) == (10, ENDS[9], None, 7)
    assert f"record 10 at byte {ENDS[9]}: the file ends inside its 12-byte header" in damage.message


def test_a_record_of_flipped_bits_is_left_out(tmp_path):  # T04
    data = bytearray(DATA)
    data[ENDS[4] + 12 + 3] ^= 0x10
    found = index_of(tmp_path, bytes(data))
    (damage,) = found.damage
    assert (found.rows, found.file_row, found.offset) == ([5, 14], [0, 6], [0, ENDS[5]])
    assert told(damage) == (5, ENDS[4], 1, 51)
    assert f"record 5 at byte {ENDS[4]}: its payload does not match" in damage.message
    unchecked = index_of(tmp_path, bytes(data), check=False)
    assert (unchecked.rows, unchecked.damage) == ([20], [])


def test_behind_a_length_of_flipped_bits_nothing_is_found(tmp_path):  # T04
    for flipped in (0, 3, 7, 8, 11):
        data = bytearray(DATA)
        data[ENDS[4] + flipped] ^= 1
        found = index_of(tmp_path, bytes(data))
        (damage,) = found.damage
        assert found.rows == [5]
        assert told(damage) == (5, ENDS[4], None, len(DATA) - ENDS[4])
        assert "the rest of the file cannot be read" in damage.message


def test_a_flipped_bit_in_the_first_length_makes_no_other_format(tmp_path):  # T04
    data = bytearray(frame(b"payload") + DATA)
    data[9] ^= 1
    (damage,) = index_of(tmp_path, bytes(data)).damage
    assert told(damage) == (0, 0, None, len(data))


def test_a_length_that_no_record_has_is_damage(tmp_path):
    head = (2**62).to_bytes(8, "little")
    found = index_of(tmp_path, DATA + head + masked_crc(head) + bytes(100))
    (damage,) = found.damage
    assert found.rows == [20]
    assert "more than the 2147483647 bytes" in damage.message


def test_a_record_longer_than_the_file_is_found_without_reading_on(tmp_path, monkeypatch):
    head = (2**30).to_bytes(8, "little")
    data = DATA + head + masked_crc(head) + bytes(100_000)
    asked = []
    entry = entry_of(tmp_path, data)
    filesystem = open_filesystem(entry.url, Storage())
    read = filesystem.read_ranges
    monkeypatch.setattr(
        filesystem, "read_ranges", lambda url, spans, etag=None: asked.extend(spans) or read(url, spans)
    )
    records = stream.RecordStream(entry, filesystem, check_payload=True, block_bytes=4096)
    assert sum(len(chunk.frames.starts) for chunk in records) == 20
    assert "it should have 1073741840 bytes" in records.damage.message
    assert len(asked) < 5


@pytest.mark.parametrize(
    ("damage", "kept", "what"),
    [
        (lambda packed: packed[:-200], None, "the file ends inside its gzip data"),
        (lambda packed: packed[:-8] + bytes(8), 3000, "the gzip data is damaged"),
        (lambda packed: packed + b"garbage", 3000, "the gzip data is damaged"),
    ],
    ids=["cut", "checksum", "garbage"],
)
def test_damaged_gzip_keeps_the_whole_records_before(tmp_path, damage, kept, what):
    rng = np.random.default_rng(0)
    data = b"".join(frame(rng.bytes(30)) for _ in range(3000))
    found = index_of(tmp_path, damage(gzip.compress(data)))
    (told_,) = found.damage
    assert what in told_.message
    assert found.rows == [kept] if kept else 2900 < found.rows[0] < 3000
    assert f"record {found.rows[0]} at byte {found.rows[0] * 46} of the gzip file's decompressed data" in told_.message


def test_other_bytes_behind_zlib_data_are_damage(tmp_path):
    (damage,) = index_of(tmp_path, zlib.compress(DATA) + b"x").damage
    assert "other bytes follow the end of the zlib data" in damage.message


def test_a_record_index_beside_the_file_is_used(tmp_path, small_units, monkeypatch):
    streamed = index_of(tmp_path, DATA)
    monkeypatch.setattr(tfrecord, "RecordStream", None)  # the file is not read through
    survey = Sizes()
    assert index_of(tmp_path, DATA, index=tfrecord2idx(DATA), survey=survey) == streamed
    assert survey.seen[:3] == [0, 7, 14]


@pytest.mark.parametrize(
    ("index", "what"),
    [
        ("", "it is empty"),
        ("0 16\n16\n", "lines of two numbers"),
        ("zero sixteen\n", "lines of two numbers"),
        (tfrecord2idx(DATA[: ENDS[9]]), f"its last record ends at byte {ENDS[9]}, and the file at byte {len(DATA)}"),
        ("0 16\n17 23\n", "do not follow each other after line 1"),
        (f"0 100\n100 {len(DATA) - 100}\n", "record 0 has 16 bytes, and in the index 100"),
        (f"0 16\n16 23\n39 30\n69 40\n109 {len(DATA) - 109}\n", "record 3 has 37 bytes, and in the index 40"),
    ],
)
def test_a_record_index_that_does_not_fit_names_the_pair(tmp_path, index, what):  # T18
    with pytest.raises(SourceError, match="does not fit") as caught:
        index_of(tmp_path, DATA, index=index)
    for part in (str(tmp_path / "x.tfrecord.idx"), str(tmp_path / "x.tfrecord:"), what):
        assert part in caught.value.message


def test_swapped_record_indices_name_the_pair(tmp_path):  # T18
    one, two = b"".join(map(frame, PAYLOADS)), b"".join(map(frame, PAYLOADS[::-1]))
    assert len(one) == len(two)
    with pytest.raises(SourceError, match=r"a\.tfrecord\.idx does not fit"):
        index_of(tmp_path, one, name="a.tfrecord", index=tfrecord2idx(two))


def test_no_index_leads_into_compressed_or_foreign_files(tmp_path):
    assert index_of(tmp_path, gzip.compress(DATA), index=tfrecord2idx(DATA)).rows == [20]
    with pytest.raises(SourceError, match="not a TFRecord file"):
        index_of(tmp_path, b'{"a": 1, "b": 2}', index="0 16\n")


def test_the_survey_sees_the_first_records_and_some_of_the_rest(tmp_path, monkeypatch):
    monkeypatch.setattr(stream, "BLOCK_BYTES", 8192)
    monkeypatch.setattr(tfrecord, "_SURVEY_FIRST", 5)
    monkeypatch.setattr(tfrecord, "_SURVEY_LATER", 2)
    survey = Sizes()
    payloads = [bytes(i) for i in range(300)]
    entry = entry_of(tmp_path, b"".join(map(frame, payloads)))
    records = stream.RecordStream(entry, open_filesystem(entry.url, Storage()), check_payload=True, block_bytes=8192)
    monkeypatch.setattr(tfrecord, "RecordStream", lambda *_, **__: records)
    index_file(entry, records.filesystem, TFRecord(), survey)
    assert survey.seen[:5] == [0, 1, 2, 3, 4]
    assert survey.seen[-1] == 299
    assert 5 < len(survey.seen) < 30


class Refusing(Sizes):
    def add(self, data, starts, stops, *, on_bad):
        if on_bad == "raise":
            raise SampleError("record 0 is none", hint="See to it")
        super().add(data, starts, stops, on_bad=on_bad)


def test_what_the_survey_cannot_parse_is_remembered(tmp_path):
    survey = Refusing()
    found = index_of(tmp_path, DATA, survey=survey)
    assert (found.unparsed, found.rows) == ("record 0 is none. See to it", [20])
    assert len(survey.seen) == 20


def test_a_table_has_a_row_for_each_file_whatever_is_wrong_with_it(tmp_path):
    files = [
        entry_of(tmp_path, DATA, "a"), entry_of(tmp_path, b"none" * 9, "b"), entry_of(tmp_path, DATA[:-1], "c"),
        entry_of(tmp_path, b"", "d"),
    ]  # fmt: skip
    table = index_records(files, TFRecord(), Sizes, Storage())
    assert table.schema == RECORD_INDEX_SCHEMA
    assert table["rows"].to_pylist() == [[20], [], [19], []]
    assert [error is None for error in table["error"].to_pylist()] == [True, False, True, True]
    assert [len(each) for each in table["damage"].to_pylist()] == [0, 0, 1, 0]
    assert table["damage"][2][0]["record"].as_py() == 19
    assert json.loads(table["survey"][0].as_py()) == [len(p) for p in PAYLOADS]
