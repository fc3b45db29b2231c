"""States: a fixed JSON shape; what may not change is refused, showing both sides."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ingest.errors import StateError
from ingest.loader import state
from ingest.loader.state import Facts

FACTS = Facts("d1", {"seed": 1, "shuffle": "window", "limit": None}, {"columns": {"a": "a"}, "ops": []}, 8, 3, 100)
AUTO = {"lanes": "auto", "interleave": "auto"}


def test_a_state_is_json_of_the_same_shape_at_every_place():
    shapes = set()
    for epoch, position in [(0, 0), (0, 50), (7, 99), (1, 100)]:
        saved = json.loads(json.dumps(state.save(FACTS, epoch, position)))
        shapes.add(tuple(saved))
        assert state.check(saved, FACTS, AUTO) == (epoch, position, 8, 3)
    assert len(shapes) == 1
    assert {"version", "digest", "lanes", "interleave", "epoch", "position"} <= set(shapes.pop())


def test_lanes_and_interleave_come_from_the_state_when_the_spec_leaves_them_open():
    saved = state.save(FACTS, 0, 0)
    assert state.check(saved, replace(FACTS, lanes=64, interleave=1), AUTO)[2:] == (8, 3)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"digest": "d2", "rows": 90}, ["d1", "d2", "100", "90"]),
        ({"order": {"seed": 2, "shuffle": "window", "limit": None}}, ["seed was 1", "is 2"]),
        ({"pixels": {"columns": {"a": "b"}, "ops": []}}, ["columns was", "'a': 'a'", "'a': 'b'"]),
    ],
)
def test_a_change_is_refused_showing_both(change, shown):
    saved = state.save(FACTS, 0, 10)
    with pytest.raises(StateError) as raised:
        state.check(saved, replace(FACTS, **change), AUTO)
    assert all(part in str(raised.value) for part in shown)


def test_other_lanes_in_the_spec_are_refused():
    with pytest.raises(StateError, match=r"order.lanes was 8, and is 16"):
        state.check(state.save(FACTS, 0, 10), FACTS, {"lanes": 16, "interleave": "auto"})


@pytest.mark.parametrize(
    "broken", [{"version": 99}, {"position": -1}, {"position": 101}, {"epoch": "1"}, {"epoch": -1}]
)
def test_a_broken_state_is_refused(broken):
    with pytest.raises(StateError):
        state.check({**state.save(FACTS, 0, 10), **broken}, FACTS, AUTO)


@pytest.mark.parametrize("state_", [None, "{}", b"", 7, [1]])
def test_what_is_no_state_is_refused(state_):
    with pytest.raises(StateError, match="a mapping is expected"):
        state.check(state_, FACTS, AUTO)


@pytest.mark.parametrize("key", ["order", "pixels", "lanes", "interleave", "rows", "backend", "epoch", "position"])
@pytest.mark.parametrize("value", [None, "4", [], -1, True, 4.0, float("nan"), 2**70])
def test_an_edited_state_is_refused_by_the_key(key, value):
    with pytest.raises(StateError, match=f"the state's {key} is "):
        state.check({**state.save(FACTS, 0, 10), key: value}, FACTS, AUTO)


@pytest.mark.parametrize(
    ("lanes", "said"), [(0, "lanes is 0"), (3, "must be a power of two"), (2**17, "lanes is 131072")]
)
def test_lanes_that_no_order_has_are_refused(lanes, said):
    with pytest.raises(StateError, match=said):
        state.check({**state.save(FACTS, 0, 10), "lanes": lanes}, FACTS, AUTO)


def test_a_state_that_lacks_something_says_what():
    saved = state.save(FACTS, 0, 10)
    del saved["position"]
    with pytest.raises(StateError, match="lacks position"):
        state.check(saved, FACTS, AUTO)


def test_changed_data_is_allowed_at_the_start_of_an_epoch_alone():
    other = replace(FACTS, digest="d2", rows=90, lanes=16)
    saved = state.save(FACTS, 2, 0)
    assert state.check(saved, other, AUTO, allow_changed_data=True) == (2, 0, 16, 3)
    with pytest.raises(StateError, match=r"d1.*d2"):
        state.check(saved, other, AUTO)
    with pytest.raises(StateError, match=r"d1.*d2.*position 5 is not the start"):
        state.check(state.save(FACTS, 2, 5), other, AUTO, allow_changed_data=True)


def test_another_backend_is_a_warning_that_shows_both(caplog):
    here = replace(FACTS, backend=state.backend(gpu=False))
    assert here.backend["device"] == "cpu"
    assert here.backend["nvidia-dali-cuda120"][0].isdigit()
    state.check(state.save(here, 0, 5), here, AUTO)
    assert caplog.text == ""
    state.check(state.save(here, 0, 5), replace(here, backend={**here.backend, "device": "gpu"}), AUTO)
    assert "device was 'cpu', and is 'gpu'" in caplog.text
