"""Laws of TFRecord's framing: the checksum is one function on every processor, and no bytes confuse a scan."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.manifest.records import crc, frame, scan

pytestmark = pytest.mark.property


def array(data):
    return np.frombuffer(data, np.uint8)


@given(st.binary(max_size=100), st.integers(0, 9), st.integers(0, 9))
def test_the_instruction_and_the_table_agree(data, before, after):
    start, stop = min(before, len(data)), max(min(before, len(data)), len(data) - after)
    assert crc._crc_portable(array(data), start, stop) == crc.crc32c(array(data), start, stop)


@given(st.lists(st.binary(max_size=60), max_size=12), st.data())
def test_a_cut_keeps_the_whole_records_before_it(payloads, draw):
    data = b"".join(map(frame, payloads))
    cut = draw.draw(st.integers(0, len(data)))
    ends = np.cumsum([0, *(len(p) + 16 for p in payloads)])
    found = scan(array(data[:cut]), check_payload=True)
    whole = int(np.searchsorted(ends, cut, side="right")) - 1
    assert [data[a:b] for a, b in zip(found.starts, found.stops, strict=True)] == payloads[:whole]
    assert found.end == ends[whole]


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=12), st.data())
def test_any_flipped_bit_is_found_in_its_record(payloads, draw):
    data = bytearray(b"".join(map(frame, payloads)))
    bit = draw.draw(st.integers(0, 8 * len(data) - 1))
    data[bit // 8] ^= 1 << bit % 8
    ends = np.cumsum([len(p) + 16 for p in payloads])
    record = int(np.searchsorted(ends, bit // 8, side="right"))
    found = scan(array(bytes(data)), check_payload=True)
    if found.end == len(data):
        assert found.bad.tolist() == [record]
    else:  # in a header, where what follows is lost
        assert (len(found.starts), found.end, len(found.bad)) == (record, ends[record] - len(payloads[record]) - 16, 0)


@given(st.binary(max_size=400))
def test_no_bytes_make_a_scan_leave_its_buffer(data):
    found = scan(array(data), check_payload=True)
    assert 0 <= found.end <= len(data)
    assert all(12 <= a <= b <= len(data) - 4 for a, b in zip(found.starts, found.stops, strict=True))
