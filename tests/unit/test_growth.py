"""How far a cluster may grow: as it is, as its autoscaler says, or further than anybody knows."""

from __future__ import annotations

import pytest

from ingest.engine import cluster, gcs
from ingest.engine.cluster import Growth, Resources

pytestmark = pytest.mark.unit
HAVE = Resources(4.0, 1.0, 1 << 30)


@pytest.mark.parametrize(
    ("grown", "autoscaled", "found"),
    [
        ({}, False, Growth(HAVE, more=False)),
        ({}, True, Growth(None, more=True)),
        ({"CPU": 64.0}, True, Growth(Resources(64.0, 1.0, 1 << 30), more=True)),
        ({"CPU": 2.0, "GPU": 8.0}, True, Growth(Resources(4.0, 8.0, 1 << 30), more=True)),
    ],
)
def test_a_cluster_may_grow_as_far_as_its_autoscaler_says(monkeypatch, grown, autoscaled, found):
    monkeypatch.setattr(gcs, "grown_resources", lambda: grown)
    monkeypatch.setattr(gcs, "autoscaled", lambda: autoscaled)
    assert cluster.growth(HAVE) == found
