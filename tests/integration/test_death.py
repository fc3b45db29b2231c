"""An augmentation actor that dies in mid-epoch is replaced, and its jobs are done again, to the same bits."""

from __future__ import annotations

import os
import signal

import numpy as np
import psutil
import pytest

import ingest

pytestmark = pytest.mark.usefixtures("cluster")


def _augmenter_pids():
    children = psutil.Process().children(recursive=True)
    return [child.pid for child in children if "ray::AugmentHost" in " ".join(child.cmdline())]


def _epoch(folder, kill_at=None):
    values = {
        "source": {"path": str(folder)},
        "augment": {"ops": [{"random_resized_crop": {"size": 32}}, "flip"]},
        "order": {"lanes": 4, "interleave": 2},
        "batch": {"size": 8, "last": "keep"},
        "loader": {"prefetch_batches": 4},
    }
    out = {}
    with ingest.Loader(values, 0, 1, cache_dir=None, epochs=1) as loader:
        for step, batch in enumerate(loader):
            if step == kill_at:
                pids = _augmenter_pids()
                assert pids
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
            out.update(zip(batch["sample_id"].tolist(), np.array(batch["image"]), strict=True))
    return out


def test_a_killed_augmentation_actor_changes_nothing(pictures):
    clean, killed = _epoch(pictures), _epoch(pictures, kill_at=3)
    assert sorted(clean) == sorted(killed) == list(range(240))
    assert all((clean[sample] == killed[sample]).all() for sample in clean)
