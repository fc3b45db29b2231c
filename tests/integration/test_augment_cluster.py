"""Mixing and users' functions on a real cluster."""

from __future__ import annotations

import sys

import device_checks
import numpy as np
import own_functions
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
from augment_images import augmenter

import ingest
from ingest.errors import SpecError
from ingest.loader.landing import TorchLanding

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.mark.slow
def test_mixed_samples_do_not_depend_on_the_world(pictures):
    ops = [{"resize": {"size": 16}}, {"mixup": {"num_classes": 240}}, {"cutmix": {"num_classes": 240, "p": 0.5}}]

    def rows(world):
        values = {
            "source": {"path": str(pictures)},
            "order": {"lanes": 8, "interleave": 2, "seed": 3},
            "augment": {"ops": ops, "device": "cpu"},
            "batch": {"global_size": 64},
        }
        ranks = [ingest.Loader(values, rank=r, world_size=world, epochs=1, cache_dir=None) for r in range(world)]
        found = {}
        try:
            for rank in ranks:
                for batch in rank:
                    for i, sample in enumerate(batch["sample_id"].tolist()):
                        found[sample] = (batch["image"][i].copy(), batch["label"][i].copy())
        finally:
            for rank in ranks:
                rank.close()
        return found

    one, two = rows(1), rows(2)
    assert one.keys() == two.keys()
    assert len(one) == 192
    assert all(np.array_equal(one[key][0], two[key][0]) for key in one)
    assert all(np.array_equal(one[key][1], two[key][1]) for key in one)
    assert all(abs(label.sum() - 1) < 1e-6 for _, label in one.values())
    assert sum((label > 0).sum() > 1 for _, label in one.values()) > 150


def test_a_function_is_tried_before_anything_is_launched(pictures):  # D15
    values = {"source": {"path": str(pictures)}, "augment": {"numpy": "own_functions:locked", "device": "cpu"}}
    with pytest.raises(SpecError, match=r"augment\.numpy: 'own_functions:locked' cannot be"):
        ingest.Loader(values, rank=0, world_size=1, cache_dir=None)
    assert own_functions.__name__ in sys.modules
    assert ray.is_initialized()


def test_a_trainer_that_augments_itself_gets_the_pixels_of_an_actor(pictures):
    augment = {"ops": [{"random_resized_crop": {"size": 24}}, "rand_augment"], "device": "cpu"}
    values = {
        "source": {"path": str(pictures)},
        "order": {"seed": 3},
        "augment": {**augment, "placement": "trainer", "threads": 2},
        "batch": {"size": 50, "last": "keep"},
    }
    held = pq.read_table(pictures)
    alone = augmenter(batch_rows=50, threads=1, seed=3, **augment)
    with ingest.Loader(values, rank=0, world_size=1, epochs=1, cache_dir=None) as loader:
        seen = 0
        for batch in loader:
            ids = batch["sample_id"]
            expected = alone([(held, ids)], ids, 0)
            assert np.array_equal(batch["image"], expected["image"])
            assert np.array_equal(batch["label"], expected["label"])
            seen += len(ids)
        report = loader.report()
    alone.close()
    assert seen == 240
    assert report["augment_busy_s"] > 0


def test_a_trainers_images_land_in_its_tensors(pictures, monkeypatch):
    """As on a trainer's GPU, on DALI's CPU backend: all but the device."""
    torch = pytest.importorskip("torch")
    device_checks.on_cpu_backend(monkeypatch)
    monkeypatch.setattr("ingest.session_run.landing_of", lambda framework: TorchLanding("cpu"))
    broken = pq.read_table(pictures).slice(0, 100)
    images = [b"no image" if row == 40 else image for row, image in enumerate(broken["image"].to_pylist())]
    folder = pictures.parent / "some are bad"
    folder.mkdir()
    pq.write_table(
        broken.set_column(0, "image", pa.array(images, pa.binary())), folder / "a.parquet", row_group_size=20
    )
    augment = {"ops": [{"random_resized_crop": {"size": 24}}, "flip", "normalize"], "device": "gpu"}
    values = {
        "source": {"path": str(folder)},
        "order": {"seed": 3},
        "augment": {**augment, "placement": "trainer", "threads": 1},
        "batch": {"size": 12, "last": "keep"},
        "loader": {"framework": "torch"},
        "errors": {"on_bad_sample": "replace", "budget": 0.1},
    }
    alone = augmenter(batch_rows=12, threads=1, seed=3, device_id=0, **augment)
    held, kept = pq.read_table(folder), []
    with ingest.Loader(values, rank=0, world_size=1, epochs=2, cache_dir=None) as loader:
        for epoch in range(2):
            kept += [(epoch, batch, batch["image"].clone()) for batch in loader]
    for epoch, batch, then in kept:  # long after the loader has ended
        ids = batch["sample_id"].numpy()
        assert isinstance(batch["image"], torch.Tensor)
        assert torch.equal(batch["image"], then)
        assert np.array_equal(then.numpy(), alone([(held, ids)], ids, epoch)["image"])
    alone.close()
    assert sum(len(batch["valid"]) for _, batch, _ in kept) == 200
    assert [int((~batch["valid"]).sum()) for _, batch, _ in kept if not batch["valid"].all()] == [1, 1]
