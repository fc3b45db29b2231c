"""Damaged footers are errors: where pyarrow would end the process on its own, ours is asked in a way that raises."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

# In a process of its own, since it ends when the guard fails. Each seed changes some bytes of a footer.
CODE = """
import collections, random, sys
import pyarrow as pa, pyarrow.parquet as pq
from ingest.errors import IngestError
from ingest.manifest.model import FileEntry
from ingest.manifest.parquet import _index_row, read_footer
from ingest.storage.base import FileInfo

n = 50
table = pa.table({
    "i": range(n), "s": [f"s{i}" for i in range(n)], "b": [bytes([i] * 30) for i in range(n)],
    "f": [i / 7 for i in range(n)], "o": [i % 2 == 0 for i in range(n)],
    "x": pa.array([bytes([i] * 16) for i in range(n)], pa.binary(16)),
    "l": [[1, 2]] * n, "t": [{"a": 1, "b": b"x"}] * n,
})
sink = pa.BufferOutputStream()
pq.write_table(table, sink, row_group_size=25)
whole = sink.getvalue().to_pybytes()
length = int.from_bytes(whole[-8:-4], "little")

class Files:
    def __init__(self, data):
        self.data = data
    def read_ranges(self, url, ranges, etag=None):
        return [self.data[start:end] for start, end in ranges]

seen = collections.Counter()
for seed in range(int(sys.argv[2]), int(sys.argv[3])):
    rng, raw = random.Random(seed), bytearray(whole)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        raw[len(raw) - 8 - length + rng.randrange(length)] = rng.randrange(256)
    entry = FileEntry("x", "x", len(raw), None, ())
    try:
        footer = read_footer(entry, Files(bytes(raw)))
        if sys.argv[1] == "ours":
            _index_row(entry, footer, None)
        else:
            for g in range(footer.metadata.num_row_groups):
                [footer.metadata.row_group(g).column(c).is_stats_set for c in range(footer.metadata.num_columns)]
        seen["read"] += 1
    except IngestError as error:
        assert "damaged" in str(error) or "truncated" in str(error), error
        seen["error"] += 1
print(seen["read"], seen["error"])
"""


# The same, of the statistics that `where` asks for. The schema gives a column's width, which is 16 bytes; where another
# stands in its place, the bounds in the statistics are too short, and pyarrow throws while it decodes them.
STATISTICS = """
import sys
import pyarrow as pa, pyarrow.parquet as pq
from ingest.manifest.model import FileEntry
from ingest.manifest.parquet import read_footer
from ingest.manifest.statistics import unit_bounds
from ingest.errors import SourceError

table = pa.table({"i": range(50), "x": pa.array([bytes([i] * 16) for i in range(50)], pa.binary(16))})
sink = pa.BufferOutputStream()
pq.write_table(table, sink)
whole = sink.getvalue().to_pybytes()
footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")

class Files:
    def read_ranges(self, url, ranges, etag=None):
        return [bytes(raw)[start:end] for start, end in ranges]

told = []
for at in range(footer, len(whole) - 8):
    if whole[at] == 32:  # 16, as Thrift writes integers
        raw = bytearray(whole)
        raw[at] = 94
        entry = FileEntry("x", "x", len(raw), None, ())
        try:
            found = read_footer(entry, Files())
            column = found.metadata.row_group(0).column(1)
            if sys.argv[1] == "ours":
                told.append(unit_bounds(entry, found, 0, "x", pa.binary(16)).low)
            elif column.is_stats_set:
                told.append(column.statistics.min)
        except SourceError:
            pass
print(len(told))
"""


def run(how, *places, code=CODE):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(
        [sys.executable, "-c", code, how, *map(str, places)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


def test_damaged_footers_are_errors():  # P15
    done = run("ours", 0, 1000)
    assert done.returncode == 0, done.stderr[-2000:]
    read, errors = map(int, done.stdout.split())
    assert read + errors == 1000
    assert errors > 200


def test_statistics_that_are_cut_say_nothing():
    done = run("ours", code=STATISTICS)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 0


def test_why_the_guards_are_there():
    """pyarrow ends the process; when it does no longer, the guards can go."""
    assert run("pyarrow's", 0, 1500).returncode == -signal.SIGABRT
    assert run("pyarrow's", code=STATISTICS).returncode == -signal.SIGABRT
