"""Filters, splits, limits, like lengths, mixtures and both formats together through real loaders, resumed ten times."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ingest
from ingest.manifest.records import frame
from ingest.manifest.selection import Part
from ingest.spec import Split
from tests.examples import entry, example, ints

pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.slow]
ROWS, RESUMES = 200, 10
SPLIT = {"take": "a", "of": {"a": 0.7, "b": 0.3}}
SELECTION = {"where": "n > 2 and x >= 10", "split": SPLIT, "limit": 110}
LENGTHS = np.clip(np.random.default_rng(0).lognormal(2, 0.8, ROWS), 1, 90).astype(np.int64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The same rows in both formats: `x` counts them, `n` is a skewed length."""
    root = tmp_path_factory.mktemp("combined")
    for name in ("parquet", "tfrecord"):
        (root / name).mkdir()
    x = np.arange(ROWS)
    for i, (begin, end) in enumerate([(0, 90), (90, 91), (91, ROWS)]):
        table = pa.table({"x": x[begin:end], "n": LENGTHS[begin:end]})
        pq.write_table(table, root / "parquet" / f"{i}.parquet", row_group_size=30)
        records = [example(entry(b"x", ints(k)), entry(b"n", ints(int(LENGTHS[k])))) for k in range(begin, end)]
        (root / "tfrecord" / f"{i}.tfrecord").write_bytes(b"".join(map(frame, records)))
    return root


def kept():
    x = np.arange(ROWS)
    mask = (LENGTHS > 2) & (x >= 10) & Part.of(Split(**SPLIT)).holds(x)
    return x[mask][: SELECTION["limit"]]


def spec_of(folder, kind, size, *, bucketed):
    one = {name: {"path": str(folder / name), **SELECTION} for name in ("parquet", "tfrecord")}
    source = (
        {"source": one[kind]} if kind != "mixed" else {"sources": [{**one["parquet"], "weight": 2}, one["tfrecord"]]}
    )
    by = {"bucket_by": {"column": "n", "chunk": 4}} if bucketed else {}
    mix = {"mix": {"stop": "all_exhausted"}} if kind == "mixed" else {}
    return {**source, **mix, "batch": {"size": size, "last": "keep", **by}, "order": {"lanes": 4}}


def rest(ranks, state=None):
    """For each step the ids of every rank's valid rows; and the state after each."""
    steps, states = [], []
    for rank in ranks if state is not None else ():
        rank.load_state_dict(state)
    epoch = ranks[0].epoch
    for batches in zip(*ranks, strict=True):
        for batch in batches:
            assert (batch["x"] == batch["sample_id"] % ROWS).all()  # the second source's ids begin behind the first's
            assert (batch["n"] == LENGTHS[batch["x"]]).all()
        steps.append([batch["sample_id"][: batch.valid_rows].tolist() for batch in batches])
        found = [json.loads(json.dumps(rank.state_dict())) for rank in ranks]
        assert all(one == found[0] for one in found)
        states.append(found[0])
    assert all(rank.epoch == epoch + 1 for rank in ranks)
    return steps, states


def opened(spec, world):
    return [ingest.Loader(spec, rank, world, cache_dir=None) for rank in range(world)]


def close(ranks):
    for rank in ranks:
        rank.close()


@pytest.mark.parametrize(
    ("kind", "bucketed", "world", "other"),
    [
        ("parquet", True, 3, 1),
        ("tfrecord", False, 2, 4),
        ("tfrecord", True, 1, 2),
        ("mixed", False, 1, 3),
        ("mixed", True, 2, 3),
        ("mixed", True, 4, 1),
    ],
)
def test_resumes_at_ten_random_steps_are_exact_and_another_world_takes_each_row_once(
    folder, kind, bucketed, world, other
):
    ranks = opened(spec_of(folder, kind, 8, bucketed=bucketed), world)
    try:
        whole, states = rest(ranks)
        rng = np.random.default_rng(5)
        chosen = rng.choice(len(whole) - 1, RESUMES, replace=len(whole) <= RESUMES).tolist()
        for at in chosen:
            again, after = rest(ranks, states[at])
            assert again == whole[at + 1 :]
            assert after == states[at + 1 :]
    finally:
        close(ranks)
    ids = kept()
    times = np.zeros(2 * ROWS, np.int64)
    times[ids] = 1
    if kind == "mixed":  # twice the weight and as many rows: the first source comes twice
        times[ids], times[ids + ROWS] = 2, 1
    for steps in (whole, [*whole[: chosen[0] + 1], *elsewhere(folder, kind, bucketed, other, states[chosen[0]])]):
        came = [i for each in steps for one in each for i in one]
        assert np.bincount(came, minlength=2 * ROWS).tolist() == times.tolist()


def elsewhere(folder, kind, bucketed, world, state):
    ranks = opened(spec_of(folder, kind, 5, bucketed=bucketed), world)
    try:
        return rest(ranks, state)[0]
    finally:
        close(ranks)
