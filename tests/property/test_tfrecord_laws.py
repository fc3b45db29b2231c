"""Laws of the TFRecord index: it is a function of the records alone, whichever way their bytes arrive."""

from __future__ import annotations

import gzip
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.manifest import tfrecord
from ingest.manifest.model import FileEntry
from ingest.manifest.records import frame
from ingest.manifest.stream import RecordStream, inflate
from ingest.spec import TFRecord

pytestmark = pytest.mark.property


class Bytes:
    """A file in memory."""

    remote = False

    def __init__(self, data):
        self.data = data

    def read_ranges(self, url, ranges, etag=None):
        return [self.data[start:stop] for start, stop in ranges]


def index(data, block_bytes, unit_bytes):
    """(rows, offset, bytes, file_row, damage) of a file that arrives in blocks."""
    old_unit, old_stream = tfrecord.UNIT_BYTES, tfrecord.RecordStream
    tfrecord.UNIT_BYTES = unit_bytes
    tfrecord.RecordStream = lambda entry, files, check_payload: RecordStream(entry, files, check_payload, block_bytes)
    try:
        found = tfrecord.index_file(FileEntry("x", "x", len(data)), Bytes(data), TFRecord(), None)
    finally:
        tfrecord.UNIT_BYTES, tfrecord.RecordStream = old_unit, old_stream
    return found


records = st.lists(st.integers(0, 300).map(bytes), min_size=1, max_size=30)


@given(records, st.integers(16, 500), st.integers(1, 2000), st.data())
def test_any_block_cuts_give_the_same_index(payloads, block_bytes, unit_bytes, draw):
    data = bytearray(b"".join(map(frame, payloads)))
    for at in draw.draw(st.lists(st.integers(12, len(data) - 1), max_size=2)):
        data[at] ^= 4
    data = bytes(data[: draw.draw(st.integers(12, len(data)))])
    assert index(data, block_bytes, unit_bytes) == index(data, len(data), unit_bytes)


@given(records, st.integers(1, 2000))
def test_units_cover_the_records_of_a_whole_file_once(payloads, unit_bytes):
    data = b"".join(map(frame, payloads))
    found = index(data, 64, unit_bytes)
    ends = np.cumsum([len(p) + 16 for p in payloads])
    assert sum(found.rows) == len(payloads)
    assert found.file_row == [0, *itertools.accumulate(found.rows)][:-1]
    assert found.offset == [0, *itertools.accumulate(found.bytes)][:-1]
    assert sum(found.bytes) == len(data)
    for offset, size, row, count in zip(found.offset, found.bytes, found.file_row, found.rows, strict=True):
        assert ends[row + count - 1] == offset + size
        assert size >= unit_bytes or row + count == len(payloads)
        assert ends[row + count - 2] - offset < unit_bytes or count == 1


@given(st.binary(max_size=2000), st.integers(1, 300), st.integers(1, 400), st.integers(1, 4))
def test_gzip_inflates_in_any_pieces(data, piece, most, members):
    step = -(-len(data) // members) or 1
    packed = b"".join(gzip.compress(data[at : at + step]) for at in range(0, len(data) or 1, step))
    blocks = (packed[at : at + piece] for at in range(0, len(packed), piece))
    assert b"".join(inflate(blocks, gzip=True, most_bytes=most)) == data
