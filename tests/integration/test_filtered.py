"""Filters, splits, limits and classes on a real cluster: asked as Ray Data work, delivered exactly, verified."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

import ingest
from ingest import cli
from ingest.errors import SpecError, StateError
from ingest.manifest.question import TASK_FILES
from ingest.manifest.selection import Part
from ingest.spec import Split

pytestmark = pytest.mark.usefixtures("cluster")
FILES, ROWS = 2 * TASK_FILES + 3, 12  # three tasks
PARTS = {"take": "train", "of": {"train": 0.7, "val": 0.3}}


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    """1,572 rows in 131 files: `x` counts up, `kind` is one of three strings, every fifth `y` is null."""
    folder = tmp_path_factory.mktemp("clicks")
    x = np.arange(FILES * ROWS)
    kinds = np.array(["b", "c", "a"])[x % 3]
    table = pa.table({"x": x, "kind": kinds, "y": pa.array(x / 2, mask=x % 5 == 0)})
    for i in range(FILES):
        pq.write_table(table.slice(i * ROWS, ROWS), folder / f"{i:03}.parquet", row_group_size=5)
    return folder


def source(folder, **options):
    return {"path": str(folder), "columns": ["x", "kind"], **options}


def kept(limit=None):
    x = np.arange(FILES * ROWS)
    mask = (x % 5 != 0) & (x >= 100) & Part.of(Split(**PARTS)).holds(x)
    return x[mask][:limit].tolist()


def test_kept_rows_come_once_with_their_ids_and_classes(clicks):
    options = {"where": "y is not null and x >= 100", "split": PARTS, "limit": 700, "classes": {"kind": "auto"}}
    values = {"source": source(clicks, **options), "batch": {"size": 64, "last": "keep"}, "order": {"lanes": 4}}
    seen = []
    with ingest.Loader(values, 0, 1, cache_dir=None) as loader:
        for batch in loader:
            seen += batch["sample_id"].tolist()
            assert batch["x"].tolist() == batch["sample_id"].tolist()
            assert batch["kind"].tolist() == [[1, 2, 0][i % 3] for i in batch["x"].tolist()]
        state = json.loads(json.dumps(loader.state_dict()))
    assert sorted(seen) == kept(700)
    values["source"]["classes"] = {"kind": ["c", "b", "a"]}
    said = "what decides pixels has changed: classes of kind was '3, digest"
    with ingest.Loader(values, 0, 1, cache_dir=None) as loader, pytest.raises(StateError, match=said):
        loader.load_state_dict(state)


@pytest.mark.slow
def test_index_and_verify_count_what_is_kept(clicks, tmp_path):
    path = tmp_path / "spec.yaml"
    sections = {"source": source(clicks, where="y is not null and x >= 100", split=PARTS), "batch": {"size": 50}}
    path.write_text(yaml.safe_dump(sections), encoding="utf-8")

    def call(*arguments):
        done = CliRunner().invoke(cli.app, [*arguments, "--no-cache", "--json", "-"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    counted = call("index", str(path))
    assert (counted["rows"], counted["data_rows"]) == (len(kept()), FILES * ROWS)
    assert (counted["where"], counted["split"]) == ("y is not null and x >= 100", "train")
    checked = call("verify", str(path), "--world-size", "2")
    assert checked["ok"]
    assert checked["rows"] == len(kept())
    assert checked["expected"] == len(kept()) - checked["dropped"]
    assert (checked["missing"], checked["repeated"], checked["foreign"]) == (0, 0, 0)


def test_a_filter_that_does_not_fit_is_refused_before_training(clicks):
    with pytest.raises(SpecError, match=r"column 'kind' has type string, and 3 is a number"):
        ingest.Loader({"source": source(clicks, where="kind = 3")}, 0, 1, cache_dir=None)
