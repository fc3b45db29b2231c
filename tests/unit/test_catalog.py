"""How the catalog shares out work."""

from __future__ import annotations

import pytest

from ingest.engine.catalog import BYTES_PER_TASK, FILES_PER_TASK, group_files
from ingest.manifest.model import FileEntry

pytestmark = pytest.mark.unit

MIB = 1 << 20


def grouped(*sizes):
    files = [FileEntry(f"{i:05d}", f"/{i:05d}", size) for i, size in enumerate(sizes)]
    groups = group_files(files)
    assert [entry for group in groups for entry in group] == files
    return [[entry.size for entry in group] for group in groups]


def test_files_are_grouped_by_bytes_and_a_large_one_is_alone():
    assert BYTES_PER_TASK == 64 * MIB
    assert grouped(MIB, 2 * MIB) == [[MIB, 2 * MIB]]
    assert grouped(2 << 30, MIB, 63 * MIB, MIB, 2 << 30) == [[2 << 30], [MIB, 63 * MIB], [MIB], [2 << 30]]


def test_many_small_files_make_more_than_one_task():
    assert [len(group) for group in grouped(*[1] * (2 * FILES_PER_TASK + 3))] == [FILES_PER_TASK, FILES_PER_TASK, 3]
