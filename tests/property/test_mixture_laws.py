"""The laws of a mixture: a row once a pass, proportions in every global batch, one position whatever changes."""

from __future__ import annotations

import numpy as np
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from ingest.errors import PlanError
from ingest.plan.lanes import bit_reversal, rows_before
from ingest.plan.layout import Order
from ingest.plan.mixture import Mix, MixtureLayout, take_rows
from ingest.plan.pattern import Pattern, phases
from ingest.plan.reads import gather_reads
from ingest.plan.schedule import Schedule, Share
from tests.plans import deliver, orders_up_to, sizes_of

STOPS = ("first_exhausted", "all_exhausted", "steps")
orders = orders_up_to(lanes=16, interleave=4)
sources = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=6), min_size=1, max_size=4)
weights = st.sampled_from([1, 2, 3, 10, 0.5, 0.1, 2.5, 1 / 3])
worlds, batches = st.integers(1, 4), st.integers(1, 20)


@st.composite
def mixtures(draw):
    """(unit rows, Mix): up to four sources, of a few hundred rows an epoch."""
    units = draw(sources)
    rows = [sum(one) for one in units]
    given_weights = draw(st.lists(weights, min_size=len(units), max_size=len(units)))
    stop = draw(st.sampled_from(STOPS))
    take = take_rows(rows, given_weights, stop, draw(st.integers(1, 400)) if stop == "steps" else None)
    assume(0 < sum(take) <= 1500)
    return np.array([rows for one in units for rows in one], np.int64), Mix(tuple(map(len, units)), take)


def source_of(ids, unit_rows, mix):
    return np.searchsorted(np.cumsum(mix.source_rows(unit_rows)), ids, side="right")


def check_passes(ids, places, unit_rows, mix, layout):
    """Of each source and pass every row once; of the last pass, as many as are left."""
    source, pass_ = layout.origins(places)
    assert (source == source_of(ids, unit_rows, mix)).all()
    rows = mix.source_rows(unit_rows)
    for k, take in enumerate(mix.take):
        for p in range(-(-take // max(1, int(rows[k])))):
            seen = ids[(source == k) & (pass_ == p)]
            assert len(np.unique(seen)) == len(seen) == min(int(rows[k]), take - p * int(rows[k]))


def places_of(step, lanes):
    return step.runs.positions(lanes, step.fill)[: step.valid_rows]


@settings(max_examples=30)
@given(mixtures(), orders, st.integers(0, 5), st.data())
def test_each_row_once_a_pass_under_any_change_of_world_and_batch_in_mid_epoch(mixture, order, epoch, data):
    (unit_rows, mix), position, ids, places = mixture, 0, [], []
    while position < mix.rows:
        world, batch = data.draw(worlds), data.draw(batches)
        last = data.draw(st.sampled_from(["pad", "keep"]))
        steps = deliver(unit_rows, order, epoch, world, batch, last, position, mix=mix)
        for ranks in steps[: data.draw(st.integers(1, 9))]:
            counts = [step.valid_rows for _, step in ranks]
            assert max(counts) - min(counts) <= 1
            ids += [found[: step.valid_rows] for found, step in ranks]
            places += [places_of(step, order.lanes) for _, step in ranks]
            position = ranks[0][1].after
            assert all(step.after == position for _, step in ranks)
    ids, places = np.concatenate(ids), np.concatenate(places)
    assert sorted(places.tolist()) == list(range(mix.rows))
    check_passes(ids, places, unit_rows, mix, MixtureLayout(unit_rows, order, epoch, mix))


@settings(max_examples=20)
@given(mixtures(), orders, worlds, batches)
def test_a_resume_at_every_step_goes_on_with_the_same_rows(mixture, order, world, batch):
    unit_rows, mix = mixture
    assume(mix.rows // (world * batch) <= 30)
    whole = deliver(unit_rows, order, 1, world, batch, "keep", mix=mix)
    for index in range(0, len(whole), 1 + len(whole) // 4):
        rest = deliver(unit_rows, order, 1, world, batch, "keep", whole[index][0][1].after, mix=mix)
        assert len(rest) == len(whole) - index - 1
        for then, now in zip(whole[index + 1 :], rest, strict=True):
            assert [ids.tolist() for ids, _ in then] == [ids.tolist() for ids, _ in now]


@settings(max_examples=20)
@given(mixtures(), orders, worlds, batches)
def test_positions_give_one_sequence_whatever_the_world_and_the_batch(mixture, order, world, batch):
    unit_rows, mix = mixture

    def sequence(world, batch):
        out = np.full(mix.rows, -1, np.int64)
        for ranks in deliver(unit_rows, order, 2, world, batch, "keep", mix=mix):
            for ids, step in ranks:
                out[places_of(step, order.lanes)] = ids[: step.valid_rows]
        return out

    assert (sequence(world, batch) == sequence(1, 7)).all()


@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=5), st.integers(0, 6).map(lambda k: 2**k), st.integers(1, 300)
)
def test_every_global_batch_holds_the_proportions_within_a_few_rows(take, lanes, batch):
    pattern, rows = Pattern(take, lanes), sum(take)
    at = np.arange(rows)
    lane, row = bit_reversal(lanes)[at % lanes], at // lanes
    gave = pattern.before(lane, row + 1) - pattern.before(lane, row)
    assert (gave.sum(axis=0) == 1).all()
    assert gave.sum(axis=1).tolist() == take
    before = np.concatenate([np.zeros((len(take), 1), np.int64), np.cumsum(gave, axis=1)], axis=1)
    edges = np.arange(0, rows - batch + 1, batch)
    off = before[:, edges + batch] - before[:, edges] - np.array(take)[:, None] / rows * batch
    assert np.abs(off).max(initial=0) <= 2 + 2 * np.log2(lanes)


@given(st.lists(st.integers(0, 400), min_size=1, max_size=5).filter(any), st.integers(0, 5).map(lambda k: 2**k))
def test_the_pattern_is_its_own_inverse_and_deals_every_lane_its_share(take, lanes):
    pattern = Pattern(take, lanes)
    assert pattern.rows.sum(axis=0).tolist() == rows_before(sum(take), lanes).tolist()
    assert (np.ptp(pattern.rows, axis=1) <= 1).all()
    for lane in {0, lanes // 2, lanes - 1}:
        length = int(pattern.rows[:, lane].sum())
        before = pattern.before(lane, np.arange(length + 1))
        assert before[:, -1].tolist() == pattern.rows[:, lane].tolist()
        for source in np.flatnonzero(take):
            stands = np.flatnonzero(np.diff(before[source]))
            assert pattern.row(int(source), lane, np.arange(len(stands))).tolist() == stands.tolist()


@given(st.integers(0, 10).map(lambda k: 2**k))
def test_phases_are_a_permutation_spread_over_every_half_and_quarter_of_the_lanes(lanes):
    found = phases(lanes)
    assert sorted(found.tolist()) == list(range(lanes))
    for parts in (2, 4, 8):
        for order in (found, found[bit_reversal(lanes)]) if lanes >= parts else ():
            for part in order.reshape(parts, -1):  # each holds as many of each stretch of phases
                cells = len(part)
                assert sorted((part * cells // lanes).tolist()) == list(range(cells))


@example(both=[(20, 0.1), (68, 1 / 3)], stop="all_exhausted")
@given(
    st.lists(st.tuples(st.integers(1, 90), weights), min_size=1, max_size=5),
    st.sampled_from(["first_exhausted", "all_exhausted"]),
)
def test_stop_rules_deliver_one_source_once_and_the_rest_by_weight(both, stop):
    rows, given_weights = zip(*both, strict=True)
    take = take_rows(rows, given_weights, stop)
    once = [k for k, n in enumerate(take) if n == rows[k]]
    assert once
    if stop == "first_exhausted":
        assert all(n <= have for n, have in zip(take, rows, strict=True))
    else:
        assert all(n >= have for n, have in zip(take, rows, strict=True))
    share = np.array(given_weights, float) / sum(given_weights)
    # Rounding may leave several sources delivered once: that which ended the epoch has the others within half a row.
    off = [np.abs(np.array(take) - share * rows[k] / share[k]).max() for k in once]
    assert min(off) <= 0.5 + 1e-6 * max(take)


@given(st.integers(1, 3000), st.lists(weights, min_size=1, max_size=5))
def test_steps_take_exactly_their_rows(total, given_weights):
    take = take_rows([10] * len(given_weights), given_weights, "steps", total)
    assert sum(take) == total
    exact = np.array(given_weights, float) / sum(given_weights) * total
    assert np.abs(np.array(take) - exact).max() < 1 + 1e-9


@settings(max_examples=20)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), orders, st.integers(0, 3))
def test_a_mixture_of_one_source_is_that_source(unit_rows, order, epoch):
    rows = np.array(unit_rows, np.int64)
    alone = deliver(rows, order, epoch, 2, 3, "keep")
    mixed = deliver(rows, order, epoch, 2, 3, "keep", mix=Mix((len(rows),), (int(rows.sum()),)))
    assert [[ids.tolist() for ids, _ in ranks] for ranks in alone] == [
        [ids.tolist() for ids, _ in ranks] for ranks in mixed
    ]


def test_a_source_a_thousand_times_smaller_repeats_as_often():
    lanes = 8
    unit_rows, order = np.array([2, 1, *[500] * 6]), Order(1, "window", lanes, 2)
    mix = Mix((2, 6), take_rows([3, 3000], [1, 1], "all_exhausted"))
    assert mix.passes(unit_rows).tolist() == [1000, 1]
    seen, places = [], []
    for ranks in deliver(unit_rows, order, 0, 2, 250, "keep", mix=mix):
        ids, rows = np.concatenate([ids for ids, _ in ranks]), np.concatenate([places_of(s, lanes) for _, s in ranks])
        assert abs(np.count_nonzero(ids < 3) - 250) <= 2 + 2 * np.log2(lanes)
        seen.append(ids)
        places.append(rows)
    check_passes(np.concatenate(seen), np.concatenate(places), unit_rows, mix, MixtureLayout(unit_rows, order, 0, mix))


def test_passes_and_epochs_are_permuted_afresh_and_sources_apart():
    unit_rows = np.array([7, 9, 7, 9])
    mix = Mix((2, 2), (48, 16))
    order = Order(3, "window", 1, 2)
    seen = {}
    for epoch in range(2):
        layout = MixtureLayout(unit_rows, order, epoch, mix)
        [(ids, _)] = [ranks[0] for ranks in deliver(unit_rows, order, epoch, 1, 64, "keep", mix=mix)]
        source, pass_ = layout.origins(np.arange(64))
        for k, p in ((0, 0), (0, 1), (0, 2), (1, 0)):
            seen[epoch, k, p] = tuple(ids[(source == k) & (pass_ == p)] - 16 * k)
    assert all(sorted(one) == list(range(16)) for one in seen.values())
    assert len(set(seen.values())) == 8


def test_a_window_stays_open_and_its_unit_is_read_once_a_pass():
    unit_rows = np.full(40, 100)
    mix = Mix((20, 20), take_rows([2000, 2000], [9, 1], "all_exhausted"))
    layout = MixtureLayout(unit_rows, Order(0, "window", 4, 2), 0, mix)
    reads = gather_reads(Schedule(layout, Share(0, 1, 50)), sizes_of(unit_rows))
    fetched = sum(len(read.units) for read in reads)
    assert fetched <= 1.2 * layout.demand.sum()


def refusal(rows, given_weights, stop="all_exhausted"):
    try:
        take_rows(rows, given_weights, stop)
    except PlanError as error:
        return str(error)
    return None


def test_sources_without_rows_or_weight():
    assert take_rows([100, 50, 0], [1, 0, 0], "all_exhausted") == (100, 0, 0)
    assert "sources.1 has a weight of 1 and no rows" in refusal([10, 0], [1, 1])
    assert "no source has a weight" in refusal([10, 5], [0, 0])
    assert "would come 20000 times" in refusal([1, 20_000], [1, 1])
    assert refusal([1, 20_000], [1, 1], "first_exhausted") is None
    mix = Mix((0, 2, 1), (0, 9, 0))
    ids = np.concatenate(
        [ids for [(ids, _)] in deliver(np.array([4, 5, 6]), Order(0, "none", 1, 1), 0, 1, 4, "keep", mix=mix)]
    )
    assert ids.tolist() == list(range(9))


def test_golden_pattern():
    # Users resume from a position in this order: a release that changes it breaks their runs.
    at = np.arange(16)
    pattern = Pattern((12, 4), 2)
    lane, row = bit_reversal(2)[at % 2], at // 2
    gave = pattern.before(lane, row + 1) - pattern.before(lane, row)
    assert np.argmax(gave, axis=0).tolist() == GOLDEN


GOLDEN = [1, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0]
