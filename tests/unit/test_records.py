"""TFRecord's framing and its checksum, against published values and files that were written by hand."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import numba
import numpy as np
import pytest

from ingest import jit
from ingest.manifest import records
from ingest.manifest.records import CUT, LENGTH, LONG, begins_record, crc, frame, framing, masked_crc, scan, seal

pytestmark = pytest.mark.unit


def array(data):
    return np.frombuffer(data, np.uint8)


@pytest.mark.parametrize("function", [crc._crc_portable, crc.crc32c], ids=["portable", "chosen"])
@pytest.mark.parametrize(
    ("data", "value"),
    [  # RFC 3720, appendix B.4, and the check value of the catalogue of CRCs
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"", 0),
    ],
)
def test_crc32c(function, data, value):
    assert function(array(b"x" + data + b"y"), 1, 1 + len(data)) == value


def test_the_frame_of_no_bytes():
    # TFRecord's empty record, the same in every file: a length of 0, its checksum, the checksum of nothing.
    assert frame(b"").hex() == "000000000000000029039807d8ea82a2"


def test_records_lie_where_they_were_written():
    payloads = [b"", b"a", bytes(5000), b"bc" * 7]
    data = b"".join(map(frame, payloads))
    found = scan(array(data), check_payload=True)
    assert [data[a:b] for a, b in zip(found.starts, found.stops, strict=True)] == payloads
    assert (found.end, found.stopped, found.need, len(found.bad)) == (len(data), CUT, 0, 0)


def test_more_records_than_there_is_room_for_at_first():
    found = scan(array(frame(b"") * 5000), check_payload=True)
    assert found.starts.tolist() == list(range(12, 80_000, 16))


def test_a_cut_record_says_how_long_it_is():
    data = frame(b"abc") + frame(bytes(100))
    found = scan(array(data[:-5]), check_payload=True)
    assert (len(found.starts), found.end, found.stopped, found.need) == (1, 19, CUT, 116)
    found = scan(array(data[:25]), check_payload=True)  # inside the second header
    assert (len(found.starts), found.end, found.stopped, found.need) == (1, 19, CUT, 0)


def test_flipped_bits_are_found():
    data = bytearray(frame(b"first") + frame(b"second") + frame(b"third"))
    data[21 + 12] ^= 1
    assert scan(array(data), check_payload=True).bad.tolist() == [1]
    assert scan(array(data), check_payload=False).bad.tolist() == []
    data[21 + 9] ^= 1
    found = scan(array(data), check_payload=True)
    assert (len(found.starts), found.end, found.stopped) == (1, 21, LENGTH)


@pytest.mark.parametrize("length", [2**31, 2**40, 2**63, 2**64 - 1])
def test_a_length_that_no_payload_has_is_never_used(length):
    head = length.to_bytes(8, "little")
    found = scan(array(frame(b"x") + head + masked_crc(head) + bytes(50)), check_payload=True)
    assert (len(found.starts), found.end, found.stopped, found.need) == (1, 17, LONG, 0)


def test_other_files_do_not_begin_with_a_record():
    assert begins_record(array(frame(b"x")[:12]))
    for head in (
        b"version https://git-lfs",
        b'{"a": 1, "b": 2}',
        b"PAR1\x15\x04\x15\x10\x15\x14\x4c",
        bytes(64),
        b"12",
    ):
        assert not begins_record(array(head))


def test_a_cache_of_compiled_functions_is_found_where_nothing_can_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setattr(jit, "_writable", lambda _: False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    jit.own_folder.cache_clear()
    jit._find_cache(tmp_path)
    jit.own_folder.cache_clear()
    folder = tmp_path / f"ingest-numba-{os.getuid()}"
    assert str(folder) == numba.config.CACHE_DIR
    assert folder.stat().st_mode & 0o777 == 0o700


def test_sealing_gives_what_framing_gives():
    payloads = [b"", b"a", bytes(5000), b"bc" * 7]
    whole = b"".join(map(frame, payloads))
    starts = np.cumsum([0, *(len(frame(payload)) for payload in payloads)])
    bare = bytearray(whole)
    for start, stop in itertools.pairwise(starts):
        bare[start + 8 : start + 12] = bare[stop - 4 : stop] = bytes(4)
    data = np.frombuffer(bare, np.uint8)
    seal(data, starts)
    assert data.tobytes() == whole


@pytest.mark.skipif(bool(numba.config.BOUNDSCHECK), reason="checked code is not kept")
def test_what_is_compiled_here_holds_as_long_as_the_folder():
    found = [
        value
        for module in (crc, framing)
        for value in vars(module).values()
        if isinstance(value, numba.core.dispatcher.Dispatcher)
    ]
    assert len(found) >= 8
    now = jit._content(Path(records.__file__).parent)
    assert {each._cache._cache_file._source_stamp for each in found} == {now}
