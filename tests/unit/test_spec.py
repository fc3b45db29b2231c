"""The spec: what it accepts, what it refuses and how it says so, and what its fingerprint depends on."""

from __future__ import annotations

import copy
import datetime as dt
import json
from pathlib import Path

import jsonschema
import pydantic
import pytest
import yaml

from ingest.errors import SpecError
from ingest.ops import CenterCrop, Flip, Normalize, RandomResizedCrop, Resize, sides
from ingest.spec import Spec, fingerprint, json_schema

pytestmark = pytest.mark.unit

FULL = {
    "source": {
        "path": "s3://bucket/train/",
        "format": "parquet",
        "columns": {"image": "image.bytes", "label": "label"},
        "fill": {"label": -1},
        "limit": 1000,
        "storage": {"endpoint_url": "http://127.0.0.1:9000", "region": "us-east-1", "anonymous": True},
    },
    "order": {"seed": 7, "shuffle": "window", "window_bytes": "64MiB", "interleave": 4, "lanes": 8},
    "read": {"readers": 2, "cpus": 0.5},
    "augment": {"ops": [{"random_resized_crop": {"size": 224}}, "flip", {"normalize": {}}], "device": "cpu"},
    "batch": {"size": 32, "last": "pad"},
    "loader": {"framework": "torch", "prefetch_batches": 3},
    "errors": {"on_bad_sample": "raise"},
}


def with_(path: str, value) -> dict:
    """FULL with one dotted key set."""
    spec = copy.deepcopy(FULL)
    *sections, key = path.split(".")
    place = spec
    for section in sections:
        place = place.setdefault(section, {})
    place[key] = value
    return spec


def refusal(spec: dict) -> str:
    with pytest.raises(SpecError) as caught:
        Spec.load(spec)
    return str(caught.value)


def test_a_path_is_enough():
    spec = Spec(source={"path": "data"})
    assert spec.source.paths == ("data",)
    assert (spec.order.seed, spec.order.shuffle, spec.order.window_bytes) == (0, "window", 256 * 2**20)
    assert (spec.order.lanes, spec.order.interleave) == ("auto", "auto")
    assert spec.augment.pipeline == ()
    assert spec.batch.per_rank(3) == 256
    assert (spec.batch.last, spec.loader.framework, spec.errors.on_bad_sample) == ("drop", "numpy", "raise")


def test_yaml_and_mapping_agree(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text(yaml.safe_dump(FULL), encoding="utf-8")
    assert Spec.load(path) == Spec.load(str(path)) == Spec.load(FULL) == Spec(**FULL)


def test_a_spec_is_its_own_spec():
    spec = Spec.load(FULL)
    assert Spec.load(spec) is spec


def test_json_keeps_a_spec():
    spec = Spec.load(FULL)
    assert json.loads(spec.model_dump_json())["order"]["window_bytes"] == 64 * 2**20
    plain = Spec.load(with_("augment", {"recipe": "imagenet_train"}))
    again = Spec.load(json.loads(plain.model_dump_json()))
    assert again == plain
    assert again.fingerprint == plain.fingerprint


def test_loading_leaves_the_mapping_as_it_was():
    before = copy.deepcopy(FULL)
    Spec.load(FULL)
    assert before == FULL


@pytest.mark.parametrize(
    ("section", "key"),
    [(None, "batch"), ("batch", "size"), ("source", "path"), ("order", "seed"), ("augment", "ops")],
)
def test_frozen(section, key):
    spec = Spec.load(FULL)
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        setattr(getattr(spec, section) if section else spec, key, None)


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("sorce", "source"),
        ("order.sed", "seed"),
        ("order.shufle", "shuffle"),
        ("batch.sise", "size"),
        ("source.storage.endpoint", "endpoint_url"),
        ("loader.prefetch", "prefetch_batches"),
        ("augment.recipes", "recipe"),
        ("source.split.took", "take"),
        ("source.schema.label.dtpe", "dtype"),
        ("source.schema.7.dtpe", "dtype"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(path, nearest):
    assert f"{path}: unknown key; did you mean '{nearest}'?" in refusal(with_(path, 1))


def test_an_unknown_key_near_to_none_lists_them_all():
    assert "batch.zzz: unknown key; known: size, global_size, last" in refusal(with_("batch.zzz", 1))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("source.path", "", "source.path: is empty"),
        ("source.path", [], "source.path: is empty"),
        ("source.path", ["a", ""], "source.path: is empty"),
        ("source.format", "csv", "got 'csv'"),
        ("source.columns", {}, "columns: is empty"),
        ("source.fill", {"lable": 0}, "lable is not an output name"),
        ("source.limit", 0, "source.limit"),
        ("source.where", "label <", "source.where: at its end: expected a value"),
        ("source.where", 'x = "a"', "Strings take single quotes"),
        ("source.split", {"take": "vall", "of": {"train": 0.9, "val": 0.1}}, "did you mean 'val'?"),
        ("source.split", {"take": "val", "of": {"train": 0.9, "val": 0.2}}, "the shares sum to 1.1"),
        ("source.split", {"take": "val", "of": {"val": 0}}, "source.split.of.val"),
        ("source.split", {"take": "val", "of": {}}, "there are: none"),
        ("source.split", {"of": {"val": 1}}, "source.split.take"),
        ("source.classes", {"lable": "auto"}, "classes: lable is not an output name"),
        ("source.classes", {"label": []}, "classes: the list for 'label' is empty"),
        ("source.classes", {"label": ["a", "b", "a"]}, "holds a value twice"),
        ("source.classes", {"label": "all"}, "source.classes.label"),
        ("order.seed", -1, "order.seed"),
        ("order.seed", 2**63, "order.seed"),
        ("order.shuffle", "global", "'none', 'window' or 'full'"),
        ("order.window_bytes", 0, "order.window_bytes"),
        ("order.window_bytes", "12 parsecs", "order.window_bytes"),
        ("order.interleave", 0, "order.interleave"),
        ("order.lanes", 12, "is 12, and must be a power of two: 8 or 16, say"),
        ("order.lanes", "many", "order.lanes"),
        ("read.readers", 0, "read.readers"),
        ("read.cpus", 0, "read.cpus"),
        ("augment.recipe", "imagenet", "augment.recipe"),
        ("augment.recipe", "none", "give recipe or ops, not both"),
        ("augment.ops", ["flop"], "unknown op 'flop'; did you mean 'flip'?"),
        ("augment.ops", ["sharpen"], "unknown op 'sharpen'"),
        ("augment.ops", [{"flip": {}, "resize": {}}], "an op is its name, or a mapping of one name"),
        ("augment.ops", [7], "an op is its name, or a mapping of one name"),
        ("augment.ops", [{"flip": {"probability": 1.5}}], "less than or equal to 1"),
        ("augment.ops", [{"resize": {}}], "give one of size, shorter and longer"),
        ("augment.ops", [{"resize": {"size": 8, "shorter": 8}}], "give one of size, shorter and longer"),
        ("augment.ops", [{"center_crop": {"size": 0}}], "greater than 0"),
        ("augment.ops", [{"random_resized_crop": {"size": 8, "area": [0.5, 0.1]}}], "area: 0.5 is above 0.1"),
        ("augment.ops", [{"random_resized_crop": {"size": 8, "area": [0.5, 2]}}], "area: 2.0 is above 1"),
        ("augment.ops", [{"random_resized_crop": {"size": 8, "ratio": [2, 1]}}], "ratio: 2.0 is above 1.0"),
        ("augment.ops", [{"normalize": {"std": [1, 0, 1]}}], "greater than 0"),
        ("augment.ops", [{"normalize": {"dtype": "float16", "std": [1, 1, 1e-6]}}], "would become 5.94e+05"),
        (
            "augment.ops",
            [{"cast": {"dtype": "float16", "scale": 300}}],
            "would become 7.65e+04, and float16 ends at 6.55",
        ),
        ("augment.masks", [{"column": "m", "fill": 300}], "fill: 300 is above 255, the most that uint8 holds"),
        ("augment.device", "tpu", "augment.device"),
        ("augment.actors_per_trainer", 0, "augment.actors_per_trainer"),
        ("augment.gpus", 0, "augment.gpus"),
        ("augment.gpu_memory_bytes", 0, "augment.gpu_memory_bytes"),
        ("augment.gpu_memory_bytes", "some", "augment.gpu_memory_bytes"),
        ("augment.largest_image", [0, 9], "augment.largest_image"),
        ("augment.largest_image", 4000, "augment.largest_image"),
        ("augment.hardware_jpeg", True, "device is cpu: use device: gpu"),
        ("batch.size", 0, "batch.size"),
        ("batch.global_size", 64, "give size or global_size, not both"),
        ("batch.last", "wrap", "batch.last"),
        ("loader.framework", "mxnet", "loader.framework"),
        ("loader.prefetch_batches", 0, "loader.prefetch_batches"),
        ("errors.on_bad_sample", "ignore", "errors.on_bad_sample"),
    ],
)
def test_what_cannot_be_is_refused(path, value, said):
    text = refusal(with_(path, value))
    assert text.startswith("[spec] ")
    assert said in text


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"sample_id": "id", "image": "i"}, "columns: sample_id names what every batch has already"),
        (["image", "valid"], "columns: valid names what every batch has already"),
        ({"imge": "image"}, "'image' is not an output of source.columns (imge); did you mean 'imge'?"),
        ({"label": "label"}, "'image' is not an output of source.columns (label)"),
    ],
)
def test_column_names_that_cannot_be_are_refused(columns, said):
    assert said in refusal({"source": {"path": "x", "columns": columns}, "augment": {"recipe": "imagenet_train"}})


def test_a_missing_source_is_named():
    assert "source: is missing" in refusal({"batch": {"size": 8}})
    assert "source: is missing" in refusal({"sources": []})


def mixed(*weights, **sections):
    sources = [{"path": f"/{i}", **({} if w is None else {"weight": w})} for i, w in enumerate(weights)]
    return {"sources": sources, **sections}


def test_several_sources_are_mixed_by_weight():
    spec = Spec.load(mixed(None, 2.5, mix={"stop": "steps", "steps": 9}))
    assert (spec.weights, [source.paths for source in spec.inputs]) == ((1, 2.5), [("/0",), ("/1",)])
    assert Spec.load({"source": {"path": "/0"}}).weights is None
    facts = spec.order_facts()
    assert facts["sources.1"] == {"weight": 2.5, "limit": None}
    assert facts["mix"] == {"stop": "steps", "steps": 9}
    assert spec.fingerprint != Spec.load(mixed(1, 2, mix={"stop": "steps", "steps": 9})).fingerprint
    assert spec.fingerprint != Spec.load(mixed(1, 2.5)).fingerprint


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (mixed(1, source={"path": "/d"}), "give source or sources, not both"),
        (mixed(0, 0), "give at least one of them a weight above 0"),
        (mixed(1, -1), "sources.1.weight: Input should be greater than or equal to 0"),
        ({"source": {"path": "/d"}, "mix": {"stop": "all_exhausted"}}, "mix: is of several sources, and there is one"),
        (mixed(1, mix={"stop": "steps"}), "give steps with stop: steps"),
        (mixed(1, mix={"steps": 3}), "give steps with stop: steps"),
        ({"sources": [{"path": "/d", "wieght": 2}]}, "sources.0.wieght: unknown key; did you mean 'weight'?"),
        (
            {"sources": [{"path": "/d", "columns": ["x", "y"]}, {"path": "/e", "columns": ["x"]}]},
            "sources.0 has x, y; sources.1 has x",
        ),
    ],
)
def test_a_mixture_that_makes_no_sense_is_refused(values, said):
    assert said in refusal(values)


def test_every_problem_is_told_at_once():
    spec = with_("batch.size", 0)
    spec["order"]["sed"] = 1
    text = refusal(spec)
    assert "batch.size" in text
    assert "order.sed" in text


def test_credentials_have_no_place_and_are_not_repeated():
    text = refusal(with_("source.storage.secret", "hunter2"))
    assert "source.storage.secret: unknown key" in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    ("ops", "said"),
    [
        (["normalize", "flip"], "augment: ops: normalize must be the last op, found normalize, flip"),
        (["cast", "normalize"], "cast must be the last op"),
        ([{"resize": {"size": 8}}, {"mixup": {"num_classes": 2}}, "flip"], "mixup must be the last op"),
        (["normalize", "transpose"], "transpose after a normalize whose layout is CHW already"),
    ],
)
def test_ops_in_an_order_without_a_meaning_are_refused(ops, said):
    assert said in refusal(with_("augment", {"ops": ops}))


def test_ops_that_end_a_list_follow_each_other():
    ops = [{"resize": {"size": 8}}, {"normalize": {"layout": "HWC"}}, "transpose", {"mixup": {"num_classes": 2}}]
    assert len(Spec.load(with_("augment", {"ops": ops})).augment.pipeline) == 4


@pytest.mark.parametrize("place", ["source.path", "loader.log", "errors.quarantine"])
@pytest.mark.parametrize(
    "url",
    [
        "https://h/x?X-Amz-Signature=hunter2", "az://container/x?sv=2024&sig=hunter2", "S3://b/x?a=1&secret_key=hunter2",
        "abfs://c/x?account_key=hunter2", "s3://b/x?access_key=a&secret_access_key=hunter2", "https://h/a\nb?token=hunter2",
        "gs://b/x?api-key=hunter2", "sftp://h/x?password=hunter2", "s3://key:hunter2@b/x",
    ],
)  # fmt: skip
def test_a_url_that_opens_what_it_names_is_refused_unseen(place, url):
    text = refusal(with_(place, url))
    assert f"{place}: has " in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    "url", ["s3://b/design=1/x?", "s3://b/what?sig", "abfs://c@a.dfs.core.windows.net/x", "/a?sig=b"]
)
def test_odd_names_are_no_secrets(url):
    assert Spec.load(with_("source.path", url)).source.paths == (url,)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"source: [", "is not YAML"),
        (b"source: {path: /a, path: /b}", "'path' is there twice"),
        (b"source: {path: /a}\nsource: {path: /b}", "'source' is there twice"),
        (b"- a\n- b\n", "is not a mapping"),
        (b"", "is not a mapping"),
        (b"\xff\xfe\xff", "cannot be read"),
        (b"batch: {size: 0}\nsource: {path: x}", "batch.size"),
        (b"1: 2\nsource: {path: x}", "1: unknown key"),
        (b"source: {path: x, fill: {day: 2024-02-30}}", "is not YAML: day is out of range"),
        (b"[" * 2000, "is not YAML: it is nested too deep"),
    ],
)
def test_a_bad_file_is_named(tmp_path, content, said):
    path = tmp_path / "spec.yaml"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=said) as caught:
        Spec.load(path)
    assert caught.value.path == str(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SpecError, match="cannot be read") as caught:
        Spec.load(tmp_path / "none.yaml")
    assert caught.value.path.endswith("none.yaml")


def test_columns_may_be_a_list():
    assert Spec.load(with_("source.columns", ["image", "label"])).source.columns == {"image": "image", "label": "label"}


@pytest.mark.parametrize("odd", [{"image": "image.bytes"}, ["image"], 7, None])
def test_a_list_of_columns_holds_names_alone(odd):
    said = refusal(with_("source.columns", ["label", odd]))
    assert f"source.columns: lists {odd!r}" in said
    assert "give one mapping" in said


@pytest.mark.parametrize(
    "path",
    [
        "batch.size", "batch.bucket_by.chunk", "order.seed", "order.lanes", "order.interleave", "order.window_bytes",
        "read.cpus", "read.readers", "loader.timeout_s", "loader.memory_bytes", "errors.budget", "source.limit",
        "source.split.of.val", "source.storage.retry_s", "augment.cpus",
    ],
)  # fmt: skip
def test_true_is_no_number(path):
    spec = with_(path, True)
    if "bucket_by" in path:
        spec["batch"]["bucket_by"]["column"] = "label"
    if "split" in path:
        spec["source"]["split"]["take"] = "val"
    assert "is true, and a number is wanted" in refusal(spec)


@pytest.mark.parametrize("size", ["1,5GiB", "1.5.5GiB", "1_000MiB", "64MiB per rank", "٣MiB", "MiB", "1.KB", "-1", ""])
def test_what_is_no_size_is_refused_and_not_read_in_part(size):
    assert f"order.window_bytes: is {size!r}, which is no size" in refusal(with_("order.window_bytes", size))


@pytest.mark.parametrize(
    ("size", "count"), [("1.5GiB", 3 << 29), (" 64 mib ", 64 << 20), (".5KiB", 512), ("12", 12), (5, 5)]
)
def test_sizes_in_their_spellings(size, count):
    assert Spec.load(with_("order.window_bytes", size)).order.window_bytes == count


def test_a_path_object_is_a_path(tmp_path):
    assert Spec(source={"path": tmp_path}).source.paths == (str(tmp_path),)
    assert Spec(source={"path": ["a", "b"]}).source.paths == ("a", "b")


def test_recipes_are_lists_of_ops():
    def ops(name):
        return Spec(source={"path": "x"}, augment={"recipe": name}).augment.pipeline

    assert ops("imagenet_train") == (RandomResizedCrop(size=224), Flip())
    assert ops("imagenet_eval") == (Resize(shorter=256), CenterCrop(size=224))
    assert ops("none") == ()


def test_ops_are_read_in_every_spelling():
    ops = ({"random_resized_crop": {"size": [224, 160]}}, "flip", {"flip": None}, Normalize(layout="HWC"))
    assert Spec(source={"path": "x"}, augment={"ops": ops}).augment.pipeline == (
        RandomResizedCrop(size=(224, 160)),
        Flip(),
        Flip(),
        Normalize(layout="HWC"),
    )
    assert (sides(7), sides((7, 9))) == ((7, 7), (7, 9))


def test_a_global_size_is_divided_or_refused_with_both_numbers():
    batch = Spec(source={"path": "x"}, batch={"global_size": 96}).batch
    assert [batch.per_rank(n) for n in (1, 2, 3, 32)] == [96, 48, 32, 3]
    with pytest.raises(SpecError, match=r"batch\.global_size 96 does not divide by the world size 5"):
        batch.per_rank(5)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("order.seed", 8),
        ("order.shuffle", "none"),
        ("source.limit", 999),
        ("source.where", "label < 5"),
        ("source.split", {"take": "a", "of": {"a": 0.5}}),
        ("source.split", {"take": "a", "of": {"a": 0.5}, "seed": 1}),
        ("source.classes", {"label": ["cat", "dog"]}),
        ("source.columns", {"image": "image.bytes", "label": "other"}),
        ("source.fill", {"label": 0}),
        ("augment.ops", ["flip"]),
        ("augment.ops", [{"random_resized_crop": {"size": 225}}, "flip", {"normalize": {}}]),
        ("augment.ops", ["flip", {"random_resized_crop": {"size": 224}}, {"normalize": {}}]),
    ],
)
def test_the_fingerprint_changes_with_order_and_pixels(path, value):
    assert Spec.load(with_(path, value)).fingerprint != Spec.load(FULL).fingerprint


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("source.path", "gs://elsewhere/copy"),  # the data's digest stands for the data
        ("source.storage", {}),
        ("batch", {"global_size": 64, "last": "keep"}),
        ("read", {}),
        ("loader", {}),
        ("augment.device", "auto"),
        ("augment.actors_per_trainer", 5),
        ("augment.threads", 3),
        ("augment.gpu_memory_bytes", "2GiB"),
        ("augment.largest_image", [3000, 4000]),
        ("augment.ops", [{"random_resized_crop": {"size": 224}}, {"flip": {"probability": 0.5}}, "normalize"]),
        # kept in a state beside the fingerprint, since `auto` resolves them
        ("order.lanes", 4),
        ("order.interleave", "auto"),
    ],
)
def test_the_fingerprint_keeps_through_what_is_free(path, value):
    assert Spec.load(with_(path, value)).fingerprint == Spec.load(FULL).fingerprint


def test_bits_that_are_waived_are_part_of_the_fingerprint():
    """A GPU's JPEG engine gives other pixels, and the device alone is not told apart."""
    engine = with_("augment", {**FULL["augment"], "device": "gpu", "hardware_jpeg": True})
    assert Spec.load(with_("augment.device", "gpu")).fingerprint == Spec.load(FULL).fingerprint
    assert Spec.load(engine).fingerprint != Spec.load(FULL).fingerprint


def test_golden_fingerprint():
    # Saved states hold fingerprints: if this changes without a new field, every one of them is refused at a resume.
    assert Spec.load(FULL).fingerprint == GOLDEN


def test_the_json_schema_validates_what_the_spec_does():
    schema = json_schema()
    validator = jsonschema.validators.validator_for(schema)
    validator.check_schema(schema)
    plain = with_("augment", {"recipe": "imagenet_train"})
    validator(schema).validate(plain)
    for bad in (with_("batch.sise", 1), with_("order.shuffle", "global"), {"batch": {}}):
        assert not validator(schema).is_valid(bad)


def test_the_json_schema_describes_itself():
    text = json.dumps(json_schema())
    for description in (
        "a power of two",
        "units per window",
        "output name: source column",
        "rows per trainer and step",
    ):
        assert description in text


def test_how_a_filter_is_written_and_parts_are_ordered_decides_nothing():
    def facts(**source):
        return Spec(source={"path": "x", **source}).order_facts()

    assert facts(where="x<1 AND y is  null") == facts(where="(x < 1) and (y is null)")
    parts = {"take": "b", "of": {"a": 0.5, "b": 0.25}}
    turned = {"take": "b", "of": {"b": 0.25, "a": 0.5}, "seed": 0}
    assert fingerprint(facts(split=parts)) == fingerprint(facts(split=turned))
    long = "x in (" + ", ".join(map(str, range(10_000))) + ")"
    assert len(facts(where=long)["where"]) < 300
    assert facts(where=long) != facts(where=long + " or y")
    assert facts(limit=3) == {"seed": 0, "shuffle": "window", "limit": 3}  # states of data without filters keep


GOLDEN = "cdd11fad30e7b01c"


def test_a_merged_key_may_be_overridden(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text("source: &a {path: /a, limit: 3}\nbatch: {<<: {size: 4}, size: 8}\n", encoding="utf-8")
    assert Spec.load(path).batch.size == 8


@pytest.mark.parametrize("spec", [None, 3, [], b"spec.yaml"])
def test_what_is_no_spec_is_refused(spec):
    with pytest.raises(SpecError, match="the path of a YAML file, and this is a"):
        Spec.load(spec)


def test_names_that_are_no_strings_are_unknown_keys():
    with pytest.raises(SpecError, match="1: unknown key"):
        Spec.load({"source": {"path": "/a"}, 1: 2})


@pytest.mark.parametrize("path", [3, dt.date(2024, 1, 1), b"/a", ["/a", 3], "  ", "a\0b", {}])
def test_a_path_that_is_none_is_refused(path):
    with pytest.raises(SpecError, match=r"source\.path"):
        Spec(source={"path": path})


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("source", "limit", 10**30),
        ("source", "columns", ["a", "a"]),
        ("order", "lanes", 2**17),
        ("order", "interleave", 10**30),
        ("order", "window_bytes", 10**30),
        ("read", "cpus", float("inf")),
        ("read", "readers", 10**12),
        ("augment", "gpus", float("inf")),
        ("batch", "size", 10**30),
        ("loader", "prefetch_batches", 10**30),
    ],
)
def test_numbers_beyond_all_use_are_refused(section, key, value):
    with pytest.raises(SpecError, match=rf"{section}\.{key}"):
        Spec(**{"source": {"path": "/a"}, section: {"path": "/a", key: value} if section == "source" else {key: value}})


@pytest.mark.parametrize("shape", [[10**12], [10**5, 10**5]])
def test_a_shape_that_no_row_holds_is_refused(shape):
    with pytest.raises(
        SpecError, match=r"source\.schema\.x\.shape.*(more values than a row may hold|less than 2147483648)"
    ):
        Spec(source={"path": "/a", "schema": {"x": {"dtype": "int64", "shape": shape, "default": 0}}})


def test_paths_may_be_given_as_such():
    assert Spec(source={"path": [Path("/a"), "/b"]}).source.paths == ("/a", "/b")
