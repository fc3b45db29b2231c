"""All of it together, on files: filters, splits and limits, like lengths, mixtures, both formats, resumed anywhere."""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ingest.manifest.mixed import mix_manifests
from ingest.manifest.records import frame
from ingest.manifest.selection import Part
from ingest.plan.layout import Order
from ingest.plan.mixture import Mix, layout_of, take_rows
from ingest.plan.schedule import Share
from ingest.spec import Split
from tests.examples import entry, example, ints
from tests.plans import BucketedRank, deliver
from tests.unit.whole import manifest_of, read_units

ROWS, RESUMES = 90, 10
SPLIT = {"take": "a", "of": {"a": 0.7, "b": 0.3}}
SELECTIONS = {
    "all": {},
    "where": {"where": "m != 0 and x >= 20"},
    "split and limit": {"split": SPLIT, "limit": 45},
    "where, split and limit": {"where": "m in (1, 2, 3)", "split": SPLIT, "limit": 30},
}
LENGTHS = np.clip(np.random.default_rng(0).lognormal(2, 0.8, 2 * ROWS), 1, 90).astype(np.int64)  # by sample id


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """`x` counts the rows of each source, `m` is x modulo 5."""
    root = tmp_path_factory.mktemp("combined")
    (root / "parquet").mkdir()
    (root / "tfrecord").mkdir()
    x = np.arange(ROWS)
    table = pa.table({"x": x, "m": x % 5})
    for i, (begin, end) in enumerate([(0, 40), (40, 41), (41, ROWS)]):
        pq.write_table(table.slice(begin, end - begin), root / "parquet" / f"{i}.parquet", row_group_size=13)
        records = [example(entry(b"x", ints(k)), entry(b"m", ints(k % 5))) for k in range(begin, end)]
        (root / "tfrecord" / f"{i}.tfrecord").write_bytes(b"".join(map(frame, records)))
    return root


def kept(selection):
    """The rows that a selection means, by plain masks."""
    x, options = np.arange(ROWS), SELECTIONS[selection]
    mask = np.ones(ROWS, bool)
    if selection == "where":
        mask = (x % 5 != 0) & (x >= 20)
    elif "where" in options:
        mask = np.isin(x % 5, (1, 2, 3))
    if "split" in options:
        mask &= Part.of(Split(**SPLIT)).holds(x)
    return x[mask][: options.get("limit")]


class Run:
    """A manifest and its plan; `deliver` gives the ids of each step and rank, and where the epoch stands behind it."""

    def __init__(self, folder, kind, selection, *, bucketed):
        names = ["parquet", "tfrecord"] if kind == "mixed" else [kind]
        parts = [manifest_of(folder / name, **SELECTIONS[selection]) for name in names]
        for part in parts:  # what reading gives for a sample id is that row
            assert read_units(part)["x"].to_pylist() == part.kept_ids().tolist() == kept(selection).tolist()
        self.manifest, self.mix = parts[0], None
        if kind == "mixed":
            self.manifest = mix_manifests(parts, names)
            take = take_rows([part.rows for part in parts], [2, 0.7], "all_exhausted")
            self.mix = Mix(tuple(len(part.units) for part in parts), take)
        self.rows = self.manifest.rows if self.mix is None else self.mix.rows
        self.order, self._bucketed = Order(3, "window", 4, 2), bucketed
        self.deliver = cache(self._deliver)

    def _deliver(self, world, batch, position=0, chunk=None):
        units, ids = self.manifest.units.rows, self.manifest.sample_ids
        if not self._bucketed:
            steps = deliver(units, self.order, 1, world, batch, "keep", position, ids, self.mix)
        else:
            layout = layout_of(units, self.order, 1, self.mix)
            shares = [Share(rank, world, batch, "keep") for rank in range(world)]
            ranks = [BucketedRank(layout, s, 3, position, chunk, LENGTHS.__getitem__, ids) for s in shares]
            steps = list(zip(*ranks, strict=True))
        return [
            ([found[: step.valid_rows].tolist() for found, step in each], (each[0][1].after, each[0][1].chunk))
            for each in steps
        ]

    def counts(self):
        """How often each sample id must come: once, or in every pass of its source."""
        out = np.zeros(self.manifest.data_rows, np.int64)
        if self.mix is None:
            out[self.manifest.kept_ids()] = 1
            return out, out
        low, high = out.copy(), out.copy()
        for part, first, take in zip(self.manifest.parts, self.manifest.first_ids, self.mix.take, strict=True):
            low[part.kept_ids() + first] = take // part.rows
            high[part.kept_ids() + first] = -(-take // part.rows)
        return low, high


@pytest.mark.parametrize("bucketed", [False, True], ids=["plain", "bucketed"])
@pytest.mark.parametrize(
    "selection", [pytest.param(each, marks=[pytest.mark.slow] * (0 < i < 3)) for i, each in enumerate(SELECTIONS)]
)
@pytest.mark.parametrize("kind", ["parquet", "tfrecord", "mixed"])
def test_each_row_comes_as_often_as_it_must_over_ten_resumes_of_one_to_four_ranks(folder, kind, selection, bucketed):
    run, draw = Run(folder, kind, selection, bucketed=bucketed), np.random.default_rng(7)
    low, high = run.counts()
    for resume in range(RESUMES):
        world = 1 + resume % 4
        steps = run.deliver(world, 4)
        at = int(draw.integers(len(steps)))
        place = steps[at][1]
        assert [ids for ids, _ in run.deliver(world, 4, *place)] == [ids for ids, _ in steps[at + 1 :]]
        rest = run.deliver(int(draw.integers(1, 5)), int(draw.integers(4, 9)), *place)
        came = [i for ids, _ in [*steps[: at + 1], *rest] for one in ids for i in one]
        times = np.bincount(came, minlength=len(low))
        assert len(came) == run.rows
        assert ((low <= times) & (times <= high)).all()
