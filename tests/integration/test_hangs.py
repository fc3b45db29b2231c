"""Ranks that pause, data that vanishes: the others neither fill their memory nor wait for ever."""

from __future__ import annotations

import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ingest
from ingest.errors import IngestError

pytestmark = pytest.mark.usefixtures("cluster")

FILES, ROWS = 64, 2048


@pytest.fixture
def files(tmp_path):
    """64 files of 16 KiB, of which `window_bytes` holds four."""
    for index in range(FILES):
        table = pa.table({"x": np.arange(ROWS) + index * ROWS})
        pq.write_table(table, tmp_path / f"{index:02d}.parquet", use_dictionary=False, compression="none")
    return tmp_path


def two(files, epochs):
    values = {
        "source": {"path": str(files)},
        "order": {"window_bytes": "64KiB", "lanes": 2, "interleave": 1},
        "batch": {"size": 512},
        "loader": {"prefetch_batches": 2},
    }
    return [ingest.Loader(values, rank, 2, cache_dir=None, epochs=epochs) for rank in range(2)]


def test_a_rank_that_pauses_holds_no_more_than_its_budget_and_stops_nobody(files):  # D05
    one, other = two(files, 1)
    with one, other:
        seen = [batch["x"] for _, batch in zip(range(8), one, strict=False)]
        seen += [batch["x"] for batch in other]  # all of its epoch, while the first rank takes nothing
        report = one.report()
        assert report["budget_bytes"] == 96 << 10
        # What the batches in hand are made of stays, and what they need is read whatever the budget.
        assert 0 < report["held_bytes"] <= report["budget_bytes"] + 3 * (18 << 10)
        assert report["ready_batches"] <= 2
        seen += [batch["x"] for batch in one]
    assert sorted(np.concatenate(seen).tolist()) == list(range(FILES * ROWS))


def test_files_that_vanish_between_epochs_are_an_error_on_every_rank_that_names_one(files):  # D07
    ranks = two(files, 2)
    for rank in ranks:
        assert sum(1 for _ in rank) == len(rank)
    for file in files.iterdir():
        file.unlink()
    errors = {}

    def train(number):
        try:
            with ranks[number] as loader:
                for _ in loader:
                    pass
        except IngestError as error:
            errors[number] = str(error)

    began = time.monotonic()
    threads = [threading.Thread(target=train, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert time.monotonic() - began < 60
    assert sorted(errors) == [0, 1]
    assert all("[read]" in text and ".parquet" in text for text in errors.values()), errors
