"""The verdict names the stage."""

from __future__ import annotations

import pytest

from ingest.metrics.verdict import Measured, verdict


@pytest.mark.parametrize(
    ("wait", "read", "busy", "slots", "stage"),
    [
        (0.2, 9.0, 9.0, 2, "trainer"),
        (8.0, 9.0, 4.0, 2, "read"),
        (8.0, 1.0, 19.0, 2, "augment"),
        (8.0, 0.1, 0.2, 2, "transfer"),
        (8.0, 9.0, 0.0, 0, "read"),
        (8.0, 0.5, 0.0, 0, "transfer"),
    ],
)
def test_the_stage_that_limits_comes_first(wait, read, busy, slots, stage):
    found = verdict(Measured(10.0, wait, read, busy, slots))
    assert found.startswith(stage + ":")
    assert f"{wait / 10:.0%}" in found


def test_nothing_is_said_before_the_first_batch():
    assert verdict(Measured(0.0, 0.0, 0.0, 0.0, 0)) == "no batch yet"
