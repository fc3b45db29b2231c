"""A run that changes its world again and again: the same global batches, or at least each remaining row once."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

import ingest

pytestmark = pytest.mark.usefixtures("cluster")

EPOCHS = 2
GLOBAL = 120  # divides by every world size below


class Ranks:
    """All ranks of a world, kept for several resumes, since they take seconds to start."""

    def __init__(self, values, world):
        self.loaders = [
            ingest.Loader(values, rank=rank, world_size=world, cache_dir=None, epochs=EPOCHS) for rank in range(world)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for loader in self.loaders:
            loader.close()

    def load(self, state):
        for loader in self.loaders:
            loader.load_state_dict(json.loads(json.dumps(state)))

    def state(self):
        states = [loader.state_dict() for loader in self.loaders]
        assert all(state == states[0] for state in states)
        return states[0]

    def step(self):
        """The next global batch, (epoch, then of each output the ranks' valid rows in their order); None at the end."""
        batches = [next(iter(loader), None) for loader in self.loaders]
        if batches[0] is None:
            assert batches == [None] * len(batches)
            return None
        epoch = batches[0].epoch
        assert all((batch.epoch, batch.after) == (epoch, batches[0].after) for batch in batches)
        return epoch, {
            name: np.concatenate([batch[name][: batch.valid_rows] for batch in batches])
            for name in sorted(batches[0])
            if name != "valid"
        }

    def rest(self):
        """All steps up to the last epoch's end."""
        return list(iter(self.step, None))


def equal(one, other):
    return one[0] == other[0] and all(np.array_equal(one[1][name], other[1][name]) for name in one[1] | other[1])


def reference(ranks):
    """(state before each step and after the last, global batches) of the whole run."""
    states, steps = [ranks.state()], []
    while (step := ranks.step()) is not None:
        steps.append(step)
        states.append(ranks.state())
    return states, steps


def hop(four, other, states, steps, at):
    """From the state before step `at` two steps on the other world, and from there two on the first."""
    other.load(states[at])
    for index in range(at, min(at + 2, len(steps))):
        assert equal(other.step(), steps[index]), (len(other.loaders), index)
        at = index + 1
    assert other.state() == states[at]
    four.load(other.state())
    for index in range(at, min(at + 2, len(steps))):
        assert equal(four.step(), steps[index]), (len(other.loaders), index)


def changed(values, size):
    return {**values, "batch": {**values["batch"], "global_size": size}}


def once(states, steps, at, rest):
    """`rest`, in other global batches, holds each row of the steps from `at` on, in their epochs, once."""
    for epoch in {epoch for epoch, _ in steps[at:]}:
        left, got = (
            np.concatenate([batch["sample_id"] for of, batch in some if of == epoch]) for some in (steps[at:], rest)
        )
        assert sorted(got.tolist()) == sorted(left.tolist()), (epoch, states[at]["position"])


def test_four_ranks_become_three_and_four_again_at_any_step(numbers):
    values = {"source": {"path": str(numbers)}, "batch": {"global_size": GLOBAL, "last": "keep"}}
    with Ranks(values, 4) as four, Ranks(values, 3) as three:
        states, steps = reference(four)
        assert len(steps) == EPOCHS * 9
        for at in (1, 8, 10):  # early, in the tail of an epoch, and in the second one
            hop(four, three, states, steps, at)
    with Ranks(changed(values, 99), 1) as one:
        one.load(states[4])
        once(states, steps, 4, one.rest())


IMAGES = {
    "order": {"lanes": 8, "interleave": 2},
    "augment": {"recipe": "imagenet_train", "threads": 1},
    "batch": {"global_size": GLOBAL, "last": "keep"},
}


@pytest.mark.slow
def test_augmented_batches_are_the_same_on_another_world(pictures):
    values = {**IMAGES, "source": {"path": str(pictures)}}
    with Ranks(values, 1) as one, Ranks(values, 2) as two:
        states, steps = reference(one)
        hop(one, two, states, steps, 1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("world", [1, 2, 3, 5, 6, 8])
def test_a_world_of_any_size_goes_on_at_twenty_random_steps(numbers, world):
    drawn = random.Random(world)
    values = {
        "source": {"path": str(numbers)},
        "order": {"shuffle": drawn.choice(["window", "full", "none"]), "lanes": 16, "interleave": 3},
        "batch": {"global_size": GLOBAL, "last": drawn.choice(["keep", "pad"])},
    }
    with Ranks(values, 4) as four, Ranks(values, world) as other:
        states, steps = reference(four)
        for at in sorted(drawn.randrange(len(steps)) for _ in range(20)):
            hop(four, other, states, steps, at)
    size = world * drawn.randrange(20, 60)
    with Ranks(changed(values, size), world) as other:
        for at in drawn.sample(range(len(steps)), 3):
            other.load(states[at])
            once(states, steps, at, other.rest())


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("world", [3, 8])
def test_augmented_batches_are_the_same_on_worlds_of_any_size(pictures, world):
    drawn, values = random.Random(world), {**IMAGES, "source": {"path": str(pictures)}}
    with Ranks(values, 4) as four, Ranks(values, world) as other:
        states, steps = reference(four)
        for at in range(len(steps)):
            hop(four, other, states, steps, at)
    with Ranks(changed(values, 25 * world), world) as other:
        at = drawn.randrange(len(steps))
        other.load(states[at])
        once(states, steps, at, other.rest())
