"""Actors that die in mid-epoch are replaced, and the epoch goes on: each sample once, to the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from deaths import kill

import ingest

pytestmark = pytest.mark.usefixtures("cluster")


def epoch_of(folder, kills=(), **sections):
    """Sample id: the row, of one epoch in which actors of the named kinds are killed after some steps."""
    values = {
        "source": {"path": str(folder)},
        "order": {"lanes": 4, "interleave": 2},
        "batch": {"size": 8, "last": "keep"},
        "loader": {"prefetch_batches": 4},
        **sections,
    }
    out, positions = {}, []
    with ingest.Loader(values, 0, 1, cache_dir=None, epochs=1) as loader:
        for step, batch in enumerate(loader):
            for name in dict(kills).get(step, ()):
                kill(name)
            rows = zip(*(np.array(batch[name]) for name in sorted(set(batch) - {"sample_id", "valid"})), strict=True)
            out.update(zip(batch["sample_id"].tolist(), rows, strict=True))
            positions += batch.positions.tolist()
        loader.report()
    assert sorted(positions) == list(range(len(positions)))
    return out


def same(one, other):
    return all(all((a == b).all() for a, b in zip(one[i], other[i], strict=True)) for i in one)


def test_a_killed_augmentation_actor_and_a_killed_feeder_change_nothing(pictures):  # D11
    augment = {"ops": [{"random_resized_crop": {"size": 32}}, "flip"]}
    clean = epoch_of(pictures, augment=augment)
    killed = epoch_of(
        pictures, {3: ["AugmentHost"], 9: ["FeederHost"], 20: ["FeederHost", "AugmentHost"]}, augment=augment
    )
    assert sorted(clean) == sorted(killed) == list(range(240))
    assert same(clean, killed)


def test_a_killed_feeder_and_catalog_change_nothing_where_nothing_is_augmented(numbers):
    killed = epoch_of(numbers, {2: ["FeederHost"], 40: ["CatalogHost"], 60: ["FeederHost"]})
    assert sorted(killed) == list(range(1010))
    assert all(x == sample for sample, (x, _) in killed.items())


def test_a_killed_feeder_changes_nothing_where_the_trainer_augments_ahead(pictures):
    augment = {"ops": [{"random_resized_crop": {"size": 32}}, "flip"], "device": "cpu"}
    clean = epoch_of(pictures, augment=augment)
    own = {**augment, "placement": "trainer", "threads": 2}
    killed = epoch_of(pictures, {3: ["FeederHost"], 20: ["FeederHost"]}, augment=own)
    assert sorted(clean) == sorted(killed) == list(range(240))
    assert same(clean, killed)
