"""Several manifests as one: ids offset by source, samples found in their files, schemas merged or refused with both."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from whole import manifest_of, read_units

from ingest.errors import PlanError, SchemaError
from ingest.manifest.mixed import mix_manifests
from ingest.plan.sources import described, mix_of
from ingest.spec import Spec

pytestmark = pytest.mark.unit


def written(folder, name, group=4, **columns):
    (folder / name).mkdir()
    pq.write_table(pa.table(columns), folder / name / "0.parquet", row_group_size=group)
    return folder / name


@pytest.fixture
def folders(tmp_path):
    return [
        written(tmp_path, "a", x=pa.array(range(10), pa.int32())),
        written(tmp_path, "empty", x=pa.array([], pa.int64())),
        written(tmp_path, "b", group=3, x=pa.array(range(100, 107), pa.int64())),
    ]


def mixed(*manifests):
    return mix_manifests(manifests, [f"sources.{i}" for i in range(len(manifests))])


def test_units_and_ids_of_sources_follow_each_other(folders):
    manifest = mixed(*(manifest_of(folder) for folder in folders[:2]), manifest_of(folders[2], where="x > 101"))
    assert (manifest.rows, manifest.data_rows, manifest.first_ids) == (15, 17, (0, 10, 10))
    assert manifest.units.rows.tolist() == [4, 4, 2, 1, 3, 1]
    assert manifest.unit_first_id.tolist() == [0, 4, 8, 10, 13, 16]
    assert manifest.kept_ids().tolist() == [*range(10), 12, 13, 14, 15, 16]
    assert manifest.sample_ids(3).tolist() == [12]
    assert manifest.local([3, 5]) == (2, [0, 2])
    assert [manifest.files[i].url for i in manifest.units.file] == [
        *[str(folders[0] / "0.parquet")] * 3,
        *[str(folders[2] / "0.parquet")] * 3,
    ]


def test_samples_are_found_in_their_files(folders):
    manifest = mixed(*map(manifest_of, folders))
    assert manifest.locate(9) == (str(folders[0] / "0.parquet"), 9)
    assert manifest.locate(10) == (str(folders[2] / "0.parquet"), 0)
    with pytest.raises(PlanError, match="no sample 17: the sources have 17 rows, ids 0 to 16"):
        manifest.locate(17)


def test_numbers_are_widened_and_read_so(folders):
    manifest = mixed(manifest_of(folders[0]), manifest_of(folders[2]))
    assert manifest.schema == pa.schema([("x", pa.int64())])
    assert read_units(manifest, {1: np.array([0, 3])}) == pa.table({"x": [4, 7]})
    assert read_units(manifest, {4: None}) == pa.table({"x": [103, 104, 105]})


def test_the_digest_is_of_the_sources_in_their_order(folders):
    a, b = manifest_of(folders[0]), manifest_of(folders[2])
    assert mixed(a, b).digest == mixed(a, b).digest
    assert len({mixed(a, b).digest, mixed(b, a).digest, mixed(a, a).digest, a.digest}) == 4


def test_what_differs_is_refused_with_both(tmp_path, folders):
    first = manifest_of(folders[0])
    text = written(tmp_path, "t", x=["u", "v"])
    other = written(tmp_path, "o", y=[1])
    with pytest.raises(SchemaError, match=r"'x' has type int32 in sources\.0 and string in sources\.1"):
        mixed(first, manifest_of(text))
    with pytest.raises(SchemaError, match=r"outputs differ: sources\.0 gives x; sources\.1 gives y"):
        mixed(first, manifest_of(other))
    cats, dogs = (manifest_of(text, classes={"x": [first, "u", "v"]}) for first in ("cat", "dog"))
    with pytest.raises(SchemaError, match=r"classes of 'x' differ: sources\.0 has 3 classes, sources\.1 has 3 classes"):
        mixed(cats, dogs)
    assert mixed(cats, cats).content_facts() == cats.content_facts()


def test_a_spec_says_how_much_of_each(folders):
    manifest = mixed(*map(manifest_of, folders))
    values = {"sources": [{"path": str(folder), "weight": w} for folder, w in zip(folders, (1, 0, 1), strict=True)]}
    spec = Spec(**values)
    mix = mix_of(spec, manifest, 4)
    assert (mix.units, mix.take) == ((3, 0, 3), (7, 0, 7))
    shown = described(spec, manifest, mix)
    assert [(one["rows"], one["first_id"], one["passes"], one["share"]) for one in shown] == [
        (10, 0, 0.7, 0.5),
        (0, 10, 0, 0),
        (7, 10, 1, 0.5),
    ]
    steps = Spec(**values, mix={"stop": "steps", "steps": 5})
    assert mix_of(steps, manifest, 4).take == (10, 0, 10)
    assert mix_of(steps, manifest, 4, rows=6).take == (3, 0, 3)
