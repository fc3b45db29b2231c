"""A token target: each row once in equal steps, near the tokens asked for, the same rows on every rank and world."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ingest.plan.layout import EpochLayout, Order
from ingest.plan.schedule import Share
from ingest.plan.waste import rows_for
from tests.plans import BucketedRank

CHUNK, ROWS = 8, 4000
UNITS = np.full(40, ROWS // 40, np.int64)


def deliver(lengths, order, world, rows, position=0, chunk=None):
    """For each step, for each rank: the ids of its valid rows and the step."""
    layout = EpochLayout(UNITS, order, 0)
    shares = [Share(rank, world, rows, "keep") for rank in range(world)]
    ranks = [BucketedRank(layout, share, CHUNK, position, chunk, lengths.__getitem__) for share in shares]
    return [[(ids[: step.valid_rows], step) for ids, step in each] for each in zip(*ranks, strict=True)]


def ids_of(steps):
    return [np.concatenate([ids for ids, _ in each]).tolist() for each in steps]


@settings(max_examples=15)
@given(st.data())
def test_batches_hold_the_tokens_asked_for_and_every_row_comes_once_over_a_resume(data):
    seed, sigma = data.draw(st.integers(0, 99)), data.draw(st.floats(0.2, 0.8))
    lengths = np.clip(np.random.default_rng(seed).lognormal(3, sigma, ROWS), 1, 400).astype(np.int64)
    tokens = data.draw(st.integers(1000, 4000))
    world = data.draw(st.sampled_from([1, 2, 4]))
    order = Order(seed, "window", world, 4)
    rows = rows_for(lengths, tokens, CHUNK)
    steps = deliver(lengths, order, world, rows)
    assert sorted(itertools.chain(*ids_of(steps))) == list(range(ROWS))
    full = [each for each in steps if each[0][1].chunk and each[0][1].chunk.groups == CHUNK]
    padded = [len(ids) * int(lengths[ids].max()) for each in full for ids, _ in each]
    if padded:
        assert abs(np.mean(padded) - tokens) < 0.1 * tokens
        assert np.quantile(padded, 0.9) < 1.25 * tokens  # a chunk of a rank is a sample of a few hundred rows

    at = data.draw(st.integers(0, len(steps) - 2))
    state = steps[at][0][1]
    for other in (1, 2, 3, 4):
        rest = deliver(lengths, order, other, rows, state.after, state.chunk)
        assert sorted(itertools.chain(*ids_of([*steps[: at + 1], *rest]))) == list(range(ROWS))
        if other == world:
            assert ids_of(rest) == ids_of(steps[at + 1 :])


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=30), st.integers(1, 20_000), st.integers(1, 16))
@settings(max_examples=25)
def test_the_rows_follow_from_data_and_target_alone(lengths, tokens, batches):
    known = np.array(lengths, np.int64)
    rows = rows_for(known, tokens, batches)
    assert rows == rows_for(known.copy(), tokens, batches) >= 1
    assert rows <= tokens  # a row is at least a token
    longest = max(1, int(known.max()))
    assert rows >= tokens // longest  # and at most the longest one's
