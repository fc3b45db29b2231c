"""Where, split and limit: exactly the rows that plain Python would keep, in units, ids, reads and resumed epochs."""

from __future__ import annotations

import gzip
import itertools
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ingest import rng
from ingest.errors import PlanError
from ingest.manifest import store
from ingest.manifest.model import FileEntry, Manifest, Units
from ingest.manifest.records import frame
from ingest.manifest.selection import Kept, Part, select
from ingest.plan.layout import Order
from ingest.spec import Split
from tests.examples import entry, example, floats, ints, strings
from tests.filters import SCHEMA, filters, rows
from tests.plans import deliver
from tests.unit.whole import manifest_of, read_all, read_units

shares = st.lists(st.integers(1, 50), min_size=1, max_size=5).map(
    lambda weights: {name: w / (sum(weights) + 3) for name, w in zip("dbace", weights, strict=False)}
)
splits = st.builds(
    lambda of, take, seed: Split(take=sorted(of)[take % len(of)], of=of, seed=seed),
    shares,
    st.integers(0, 4),
    st.integers(0, 3),
)


def manifest_with(unit_rows, kept, split, limit):
    """A manifest of units without files, some of their rows kept."""
    left, rows_left, selection = select(unit_rows, kept, split, limit, "digest")
    units = Units(**{name: np.zeros(len(left), np.int64) for name in Units.__dataclass_fields__})
    units.rows[:] = rows_left
    units.file_row[:] = (np.cumsum(unit_rows) - unit_rows)[left]
    return Manifest("parquet", (FileEntry("a", "a", 1),), units, pa.schema([]), {}, selection)


@st.composite
def selections(draw):
    """(a manifest, the ids that it should keep, sorted)."""
    unit_rows = np.array(draw(st.lists(st.integers(1, 40), min_size=1, max_size=12)), np.int64)
    mask = np.random.default_rng(draw(st.integers(0, 99))).random(unit_rows.sum()) < draw(st.sampled_from([0.2, 0.9]))
    edges = np.cumsum(unit_rows)
    for unit in draw(st.sets(st.integers(0, len(unit_rows) - 1))):  # some units whole, some left out
        mask[edges[unit] - unit_rows[unit] : edges[unit]] = draw(st.booleans())
    split, limit = draw(st.none() | splits), draw(st.none() | st.integers(1, 300))
    kept = None
    if draw(st.booleans()):
        pieces = np.split(mask, edges[:-1])
        bits = [None if p.all() or not p.any() else np.packbits(p, bitorder="little").tobytes() for p in pieces]
        kept = Kept(np.array([p.sum() for p in pieces]), bits)
    else:
        mask[:] = True
    if split is not None:
        low = sum(share for name, share in split.of.items() if name < split.take)
        drawn = rng.hashes(split.seed, np.arange(len(mask))) / 2.0**64
        mask &= (drawn >= low) & (drawn < low + split.of[split.take])
    return manifest_with(unit_rows, kept, split, limit), np.flatnonzero(mask)[:limit]


@given(selections())
def test_ids_are_those_that_a_mask_over_all_rows_gives(drawn):
    manifest, expected = drawn
    assert manifest.kept_ids().tolist() == expected.tolist()
    assert manifest.rows == len(expected)
    assert (manifest.units.rows > 0).all()
    for unit in range(len(manifest.units)):
        ids = manifest.sample_ids(unit)
        some = np.arange(len(ids))[::-2]
        inside = manifest.unit_rows(unit, some)
        assert (manifest.unit_first_id[unit] + inside == ids[some]).all()
        assert (manifest.sample_ids(unit, some) == ids[some]).all()
    kept = set(expected.tolist())
    for sample_id in range(manifest.data_rows):
        try:
            assert manifest.locate(sample_id) == ("a", sample_id)
            assert sample_id in kept
        except PlanError:
            assert sample_id not in kept


@given(selections())
def test_a_selection_is_kept_on_disk_to_the_bit(drawn):
    manifest, _ = drawn
    with tempfile.TemporaryDirectory() as folder:
        store.save(folder, "key", manifest)
        loaded = store.load(folder, "key")
    assert loaded.kept_ids().tolist() == manifest.kept_ids().tolist()
    assert (loaded.digest, loaded.data_rows, loaded.selection.part) == (
        "digest",
        manifest.data_rows,
        manifest.selection.part,
    )


@settings(max_examples=15)  # each resumes at every step
@given(selections(), st.integers(0, 5), st.integers(1, 4), st.integers(1, 9), st.data())
def test_an_epoch_of_kept_rows_resumes_at_every_step(drawn, seed, world, batch, data):
    manifest, expected = drawn
    assume(len(expected))
    order = Order(seed, data.draw(st.sampled_from(["none", "window"])), data.draw(st.sampled_from([1, 2, 8])), 2)

    def ids(position, world, batch):
        steps = deliver(manifest.units.rows, order, 1, world, batch, "keep", position, manifest.sample_ids)
        return [(ranks[0][1].after, [i[: s.valid_rows] for i, s in ranks]) for ranks in steps]

    position, seen = 0, []
    for after, ranks in ids(0, world, batch):
        rest = [part for _, parts in ids(position, 3, 2) for part in parts]
        assert sorted(np.concatenate([*seen, *rest]).tolist()) == expected.tolist()
        seen += ranks
        position = after
    assert sorted(np.concatenate(seen).tolist()) == expected.tolist()


@given(shares, st.integers(0, 9))
def test_parts_share_the_ids_between_them(of, seed):
    ids = np.arange(5000)
    of = {**of, "rest": 1 - sum(of.values())}
    held = {name: Part.of(Split(take=name, of=of, seed=seed)).holds(ids) for name in of}
    assert (sum(mask.astype(int) for mask in held.values()) == 1).all()
    for name, share in of.items():
        assert abs(held[name].mean() - share) < 6 * np.sqrt(share * (1 - share) / len(ids)) + 1e-3
        turned = Part.of(Split(take=name, of=dict(reversed(of.items())), seed=seed))
        assert (turned.holds(ids) == held[name]).all()


@settings(max_examples=10)  # each hashes several blocks
@given(st.lists(st.integers(1, 9), min_size=1, max_size=50), splits)
def test_counts_of_runs_are_sums_over_their_ids(lengths, split):
    edges = np.concatenate([[0], np.cumsum(lengths)]) * 300_000 // sum(lengths) + np.arange(len(lengths) + 1)
    part = Part.of(split)
    held = part.holds(np.arange(edges[-1]))
    assert part.counts(edges).tolist() == [int(held[a:b].sum()) for a, b in itertools.pairwise(edges)]


@settings(max_examples=18)  # each writes files
@given(st.data(), filters(), st.none() | splits, st.none() | st.integers(1, 40), st.integers(1, 7))
def test_files_give_the_rows_that_the_filter_means(data, drawn, split, limit, group):
    """Two Parquet files under hive directories, one of which lacks a column; the filter also asks the hive key."""
    text, truth = drawn
    tables = [rows(data.draw, 15), [{**row, "f": None} for row in rows(data.draw, 15)]]
    hive = data.draw(st.sampled_from(["k = 'a'", "k != 'a'", "k is not null"]))
    means = {"k = 'a'": [True, False], "k != 'a'": [False, True], "k is not null": [True, True]}[hive]
    kept = [means[i] and truth(row) is True for i in (0, 1) for row in tables[i]]
    if split is not None:
        kept = (np.array(kept) & Part.of(split).holds(np.arange(len(kept)))).tolist()
    expected = np.flatnonzero(kept)[:limit].tolist()
    with tempfile.TemporaryDirectory() as folder:
        for i, key in enumerate("ab"):
            path = Path(folder) / f"k={key}"
            path.mkdir()
            table = pa.Table.from_pylist(tables[i], schema=SCHEMA)
            pq.write_table(table.drop_columns(["f"]) if i else table, path / "x.parquet", row_group_size=group)
        options = {
            "columns": {"s": "s", "key": "k"}, "where": f"({text}) and {hive}", "limit": limit,
            "split": None if split is None else split.model_dump(),
        }  # fmt: skip
        if not expected:
            with pytest.raises(PlanError, match=f"no row is left of {len(kept)}"):
                manifest_of(folder, **options)
            return
        manifest = manifest_of(folder, **options)
        assert manifest.kept_ids().tolist() == expected
        assert manifest.digest == manifest_of(folder, columns=options["columns"]).digest
        got = read_all(folder, **options).to_pylist()
    whole = [{"s": row["s"], "key": "ab"[i]} for i in (0, 1) for row in tables[i]]
    assert got == [whole[i] for i in expected]


FEATURES = {  # of TFRecord: column: (declared type, how a value is written)
    "i": ("int64", ints), "g": ("float32", floats), "s": ("string", lambda v: strings(v.encode())),
    "b": ("bytes", strings),
}  # fmt: skip


@settings(max_examples=18)  # each writes files
@given(st.data(), filters(list(FEATURES)), st.booleans(), st.none() | st.integers(1, 20))
def test_records_give_the_rows_that_the_filter_means(data, drawn, compressed, limit):
    """A feature that a record lacks is a null, whether types are declared or found."""
    text, truth = drawn
    table_rows = rows(data.draw, 20, list(FEATURES))
    for row in table_rows:  # what TFRecord cannot tell apart, or hold
        row["i"] = None if row["i"] is None else abs(row["i"])
    records = [
        example(*(entry(n.encode(), FEATURES[n][1](v)) for n, v in row.items() if v is not None), entry(b"n", ints(k)))
        for k, row in enumerate(table_rows)
    ]
    expected = [k for k, row in enumerate(table_rows) if truth(row) is True][:limit]
    pack = gzip.compress if compressed else bytes
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.tfrecord").write_bytes(pack(b"".join(map(frame, records))))
        schema = {name: {"dtype": dtype} for name, (dtype, _) in FEATURES.items()}
        options = {"columns": ["n"], "schema": schema, "where": text, "limit": limit}
        if not expected:
            with pytest.raises(PlanError, match=f"no row is left of {len(records)}"):
                manifest_of(folder, **options)
            return
        manifest = manifest_of(folder, **options)
        assert manifest.kept_ids().tolist() == expected
        assert read_units(manifest)["n"].to_pylist() == expected
        if all(any(row[name] is not None for row in table_rows) for name in FEATURES):
            found = manifest_of(folder, **{**options, "schema": {}})
            assert found.kept_ids().tolist() == expected
