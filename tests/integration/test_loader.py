"""The loader on a real cluster: coverage, repeatability, resumption, errors in their place, and a clean end."""

from __future__ import annotations

import gc
import hashlib
import json
import threading

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ingest
from ingest.errors import IngestError, PlanError, ReadError, SampleError, SchemaError, SourceError, StateError

pytestmark = pytest.mark.usefixtures("cluster")

OPS = [{"random_resized_crop": {"size": 32}}, "flip"]


def spec(folder, **sections):
    return {"source": {"path": str(folder)}, **sections}


def loaders(values, world, **options):
    return [ingest.Loader(values, rank=r, world_size=world, cache_dir=None, **options) for r in range(world)]


def close(ranks):
    for rank in ranks:
        rank.close()


def epoch_of(ranks, steps=None):
    """For each step, the batches of all ranks; every rank must end with the others."""
    out, iterators = [], [iter(rank) for rank in ranks]
    while steps is None or len(out) < steps:
        batches = [next(iterator, None) for iterator in iterators]
        if all(batch is None for batch in batches):
            break
        assert all(batch is not None for batch in batches), "ranks have different numbers of steps"
        out.append(batches)
    return out


def by_position(steps):
    """Position in the epoch: (sample id, digest of the row's content), for rows that count."""
    found = {}
    for batches in steps:
        for batch in batches:
            for i in range(batch.valid_rows):
                content = hashlib.blake2b(digest_size=8)
                for name in sorted(set(batch) - {"sample_id", "valid"}):
                    content.update(np.ascontiguousarray(batch[name][i]).tobytes())
                position = int(batch.positions[i])
                assert position not in found
                found[position] = (int(batch["sample_id"][i]), content.hexdigest())
    return found


@pytest.mark.parametrize(("world", "last", "batch"), [(1, "pad", 16), (2, "drop", 16), (3, "keep", 100), (4, "pad", 7)])
def test_every_sample_once_and_equal_steps_on_files_that_differ_a_hundred_times(numbers, world, last, batch):
    ranks = loaders(spec(numbers, batch={"size": batch, "last": last}), world, epochs=1)
    try:
        steps = epoch_of(ranks)
    finally:
        close(ranks)
    seen = np.concatenate([b["sample_id"][: b.valid_rows] for batches in steps for b in batches])
    dropped = 1010 % (batch * world) if last == "drop" else 0
    assert len(seen) == len(set(seen.tolist())) == 1010 - dropped
    assert len(steps) == len(ranks[0])
    for b in (b for batches in steps for b in batches):
        assert (b["x"] == b["sample_id"]).all()
        assert (b["y"] == b["x"] / 2).all()
        assert ("valid" in b) == (last != "drop")
        if last != "drop":
            assert b["valid"].tolist() == [i < b.valid_rows for i in range(len(b["x"]))]


def test_order_and_pixels_do_not_depend_on_world_batch_actors_or_readers(pictures):
    base = {"order": {"lanes": 8, "interleave": 2, "seed": 3}, "augment": {"ops": OPS, "device": "cpu"}}

    def run(world, batch, actors=1, readers=1):
        values = spec(
            pictures,
            **{**base, "augment": {**base["augment"], "actors_per_trainer": actors}},
            batch={"size": batch, "last": "keep"},
            read={"readers": readers, "cpus": 0.5},
        )
        ranks = loaders(values, world, epochs=1)
        try:
            return by_position(epoch_of(ranks))
        finally:
            close(ranks)

    one = run(1, 32)
    assert sorted(one) == list(range(240))
    assert sorted(sample for sample, _ in one.values()) == list(range(240))
    assert run(3, 20, readers=4) == one
    assert run(1, 48, actors=3) == one


def test_resume_is_exact_at_every_step_on_any_world_and_batch(numbers):
    values = spec(numbers, batch={"size": 128, "last": "keep"}, order={"lanes": 8, "interleave": 2})
    (whole,) = loaders(values, 1)
    states = [whole.state_dict()]
    steps = []
    for _ in range(2):
        for batch in whole:
            steps.append([batch])
            states.append(json.loads(json.dumps(whole.state_dict())))
    whole.close()
    assert len({tuple(state) for state in states}) == 1
    per_epoch = len(steps) // 2
    assert states[per_epoch]["epoch"] == 1
    assert states[per_epoch]["position"] == 0
    first = by_position(steps[:per_epoch])
    (one,) = loaders(values, 1)
    for index in range(per_epoch):
        one.load_state_dict(states[index])
        rest = epoch_of([one])
        assert by_position(steps[:index] + rest) == first, index
        assert by_position(rest) == {p: row for p, row in first.items() if p >= states[index]["position"]}
    one.close()
    ranks = loaders(spec(numbers, batch={"size": 7, "last": "keep"}), 3)
    for rank in ranks:
        rank.load_state_dict(states[5])
    rest = by_position(epoch_of(ranks))
    close(ranks)
    assert rest == {p: row for p, row in first.items() if p >= states[5]["position"]}


def test_a_state_after_a_batch_of_the_past_serves_wrappers_that_run_ahead(numbers):
    with ingest.Loader(spec(numbers, batch={"size": 100}), 0, 1, cache_dir=None) as loader:
        batches = [batch for _, batch in zip(range(4), loader, strict=False)]
        assert loader.state_dict(after=batches[1])["position"] == 200
        assert loader.state_dict()["position"] == 400
        assert loader.step == 4


def test_set_epoch_breaks_and_epochs_follow_each_other(numbers):
    with ingest.Loader(spec(numbers, batch={"size": 100}), 0, 1, cache_dir=None) as loader:
        assert len(loader) == 10
        first = next(iter(loader))["sample_id"].tolist()
        second = next(iter(loader))["sample_id"].tolist()
        assert loader.step == 2
        loader.set_epoch(0)
        assert [b["sample_id"].tolist() for _, b in zip(range(2), loader, strict=False)] == [first, second]
        loader.set_epoch(1)
        other = next(iter(loader))
        assert other.epoch == 1
        assert other["sample_id"].tolist() != first
        assert len(list(loader)) == 9
        assert (loader.epoch, loader.step) == (2, 0)


def test_a_state_of_other_data_or_order_is_refused(numbers, pictures):
    with ingest.Loader(spec(numbers, batch={"size": 10}), 0, 1, cache_dir=None) as loader:
        state = loader.state_dict()
    changed = [
        (spec(pictures, batch={"size": 10}), "data has changed"),
        (spec(numbers, order={"seed": 5}, batch={"size": 10}), "seed was 0, and is 5"),
    ]
    for values, text in changed:
        with ingest.Loader(values, 0, 1, cache_dir=None) as other, pytest.raises(StateError, match=text):
            other.load_state_dict(state)


def test_a_bad_image_names_file_and_row_after_the_good_batches(pictures, tmp_path):
    table = pq.read_table(pictures / "part-1.parquet")
    images = table["image"].to_pylist()
    images[7] = b"<html>no image</html>"
    pq.write_table(table.set_column(0, "image", pa.array(images, pa.binary())), tmp_path / "bad.parquet")
    values = spec(tmp_path, order={"shuffle": "none", "lanes": 1}, augment={"ops": OPS}, batch={"size": 2})
    with ingest.Loader(values, 0, 1, cache_dir=None) as loader:
        good = []
        with pytest.raises(SampleError, match=r"\[augment\]") as raised:
            good += [batch["label"].tolist() for batch in loader]
        assert (raised.value.path, raised.value.row, raised.value.rank) == (str(tmp_path / "bad.parquet"), 7, 0)
        assert "html" in str(raised.value).lower()


def test_a_file_that_vanishes_is_an_error_in_its_place_that_names_it(tmp_path):
    for index in range(6):
        pq.write_table(pa.table({"x": np.arange(10)}), tmp_path / f"{index}.parquet")
    values = spec(tmp_path, order={"shuffle": "none", "lanes": 1, "interleave": 1}, batch={"size": 10})
    with ingest.Loader(values, 0, 1, cache_dir=None) as loader:
        (tmp_path / "4.parquet").unlink()
        seen = []
        with pytest.raises(ReadError, match=r"4\.parquet"):
            seen += [batch["x"].tolist() for batch in loader]


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"source": {"path": "/nowhere/at/all"}}, SourceError, "/nowhere/at/all"),
        ({"source": {"path": None, "columns": {"x": "z"}}}, SchemaError, "z"),
        ({"batch": {"size": 1011}}, PlanError, r"1010 rows.*1011"),
        ({"order": {"shuffle": "full"}, "batch": {"size": 2000}}, PlanError, "2000"),
    ],
)
def test_what_cannot_be_is_refused_before_training(numbers, change, error, text):
    values = spec(numbers, **{k: v for k, v in change.items() if k != "source"})
    values["source"] |= {k: v for k, v in change.get("source", {}).items() if v is not None}
    with pytest.raises(error, match=text):
        ingest.Loader(values, 0, 1, cache_dir=None)


def test_batches_are_read_only_and_say_so(pictures):
    with ingest.Loader(spec(pictures, augment={"ops": OPS}, batch={"size": 8}), 0, 1, cache_dir=None) as loader:
        batch = next(iter(loader))
        assert batch["image"].shape == (8, 32, 32, 3)
        assert batch["image"].dtype == np.uint8
        with pytest.raises(ValueError, match="read-only"):
            batch["image"] -= 1


def test_torch_batches_are_the_trainers_own(pictures):
    torch = pytest.importorskip("torch")
    values = spec(pictures, augment={"ops": OPS}, batch={"size": 8}, loader={"framework": "torch"})
    with ingest.Loader(values, 0, 1, cache_dir=None) as loader:
        batch = next(iter(loader))
        assert batch["image"].dtype == torch.uint8
        assert batch["sample_id"].dtype == torch.int64
        batch["image"] -= 1


def test_fifty_breaks_leave_everything_where_it_was(numbers):
    process = psutil.Process()

    def look():
        gc.collect()
        alive = [t.name for t in threading.enumerate() if t.name.startswith("ingest")]
        return len(alive), process.num_fds()

    with ingest.Loader(spec(numbers, batch={"size": 20}), 0, 1, cache_dir=None) as loader:
        next(iter(loader))
        before = look()
        for index in range(50):
            for _ in loader:
                break
            if index % 10 == 0:
                loader.set_epoch(index)
        after = look()
        assert after[0] == before[0]
        assert after[1] <= before[1] + 2
    assert [t.name for t in threading.enumerate() if t.name.startswith("ingest")] == []


def hosts():
    names = ("FeederHost", "AugmentHost", "CatalogHost")
    children = psutil.Process().children(recursive=True)
    return [child for child in children if any(name in " ".join(child.cmdline()) for name in names)]


def test_loaders_one_after_another_leave_no_actor_and_no_process(numbers):
    for _ in range(2):
        with ingest.Loader(spec(numbers, batch={"size": 20}), 0, 1, cache_dir=None) as loader:
            next(iter(loader))
            running = hosts()
            assert running
        _, alive = psutil.wait_procs(running, timeout=20)
        assert alive == []


def test_a_loader_that_is_forgotten_leaves_no_actor_and_no_process(numbers):
    loader = ingest.Loader(spec(numbers, batch={"size": 20}), 0, 1, cache_dir=None)
    next(iter(loader))
    running = hosts()
    assert running
    del loader
    gc.collect()
    _, alive = psutil.wait_procs(running, timeout=20)
    assert alive == []


def test_a_closed_loader_says_so(numbers):
    loader = ingest.Loader(spec(numbers, batch={"size": 20}), 0, 1, cache_dir=None)
    loader.close()
    loader.close()
    with pytest.raises(IngestError, match="closed"):
        next(iter(loader))


def test_the_report_names_a_stage_and_counts(numbers):
    with ingest.Loader(spec(numbers, batch={"size": 20}), 0, 1, cache_dir=None, epochs=1) as loader:
        assert sum(1 for _ in loader) == 50
        report = loader.report()
    assert report["samples"] == 1000
    assert report["steps"] == 50
    assert report["first_batch_s"] > 0
    assert report["verdict"].split(":")[0] in {"trainer", "read", "augment", "transfer"}
    assert report["peak_rss_bytes"] > 1 << 20


def test_a_rank_holds_no_more_than_its_memory_and_the_order_is_that_of_the_same_lanes(numbers):
    values = spec(numbers, batch={"size": 4}, order={"lanes": 2, "interleave": 2})
    most = 8 << 10  # half of the data
    found = []
    for memory in ("auto", most):
        with ingest.Loader({**values, "loader": {"memory_bytes": memory}}, 0, 1, epochs=1, cache_dir=None) as loader:
            epoch, held = epoch_of([loader]), loader.report()
            found.append(by_position(epoch))
    assert found[0] == found[1]
    assert len(found[0]) == 1008
    assert held["budget_bytes"] <= 0.6 * most


def test_a_memory_that_holds_no_step_is_refused_before_anything_is_read(numbers):
    with pytest.raises(PlanError, match=r"loader.memory_bytes is 1024, of which 60% are for this: the largest unit"):
        ingest.Loader(spec(numbers, loader={"memory_bytes": "1KiB"}, batch={"size": 4}), 0, 1, cache_dir=None)
