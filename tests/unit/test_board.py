"""The board, without Ray: who belongs together, who learns of whose failure, and who is compared with whom."""

from __future__ import annotations

import asyncio

import pytest
from ray.exceptions import ActorUnavailableError, RayError

from ingest.engine.board import Board, died, owner_died
from ingest.errors import StageError, StateError


class Feeder:
    """Stands for a rank's feeder: `watch` returns when the rank leaves, and fails when something dies."""

    def __init__(self):
        self._end = asyncio.get_running_loop().create_future()

    @property
    def watch(self):
        return self

    def options(self, **_):
        return self

    async def remote(self):
        return await self._end

    async def leave(self):
        self._end.set_result(None)
        await asyncio.sleep(0)

    async def die(self, *, owner):
        text = "The actor is dead because its owner has died." if owner else "its worker has died"
        await self.fail(RayError(text))

    async def fail(self, error):
        end, self._end = self._end, asyncio.get_running_loop().create_future()
        end.set_exception(error)
        for _ in range(4):
            await asyncio.sleep(0)


class Run:
    """A board and the ranks that have entered it."""

    def __init__(self, opener=None):
        self.dead = set()
        self.board, self.feeders = Board(opener, self.dead.__contains__, again_s=0), {}

    def enter(self, rank, world=2, stream="s", opener=None, key=None):
        self.feeders[rank] = Feeder()
        return self.board.enter(stream, rank, world, self.feeders[rank], opener, f"node {rank}", key)

    def news(self, key, rank, owner=None, *, told=True):
        return asyncio.create_task(self.board.news(key, rank, owner, told=told))


def on_loop(test):
    def run():
        asyncio.run(asyncio.wait_for(test(), 10))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@on_loop
async def test_ranks_gather_in_one_attempt_and_a_rank_that_comes_again_begins_another():
    run = Run()
    first = run.enter(0)
    assert run.enter(1) == first
    second = run.enter(0)
    assert second != first
    assert run.enter(1) == second
    assert run.enter(0, world=3) not in {first, second}
    assert run.enter(0, stream="other") not in {first, second}


@on_loop
async def test_a_failure_reaches_the_others_and_the_next_attempt_knows_nothing_of_it():
    run = Run()
    key = run.enter(0)
    run.enter(1)
    news = run.news(key, 0)
    await asyncio.sleep(0)
    assert not news.done()
    run.board.fail(key, StageError("broke", stage="trainer", rank=1))
    run.board.fail(key, StageError("later"))
    assert (await news)[0].message == "broke"
    again = run.enter(0)
    assert again != key
    late = run.news(again, 0)
    await asyncio.sleep(0)
    assert not late.done()
    late.cancel()


@on_loop
async def test_a_rank_that_dies_is_told_and_one_that_leaves_or_makes_a_new_feeder_is_not():
    run = Run()
    key = run.enter(0, world=3)
    run.enter(1, world=3)
    run.enter(2, world=3)
    news = run.news(key, 0)
    await run.feeders[2].leave()
    await run.feeders[1].die(owner=False)
    assert run.enter(1, world=3, key=key) == key
    await asyncio.sleep(0)
    assert not news.done()
    await run.feeders[1].die(owner=True)
    failure = (await news).failure
    assert (failure.rank, failure.stage) == (1, "trainer")
    assert "died" in str(failure)


@on_loop
async def test_a_rank_whose_node_dies_is_told_and_one_that_is_cut_off_for_a_moment_is_not():
    run = Run()
    key = run.enter(0)
    run.enter(1)
    news = run.news(key, 0)
    for _ in range(2):
        await run.feeders[1].fail(ActorUnavailableError("cut off", None))
    assert not news.done()
    run.dead.add("node 1")
    await run.feeders[1].die(owner=False)
    assert (await news).failure.rank == 1


@on_loop
async def test_ranks_learn_each_others_nodes_once_all_are_there():
    run = Run()
    key = run.enter(0)
    news = run.news(key, 0, told=False)
    await asyncio.sleep(0)
    assert not news.done()
    run.enter(1)
    assert (await news) == (None, None, {0: "node 0", 1: "node 1"})


@on_loop
async def test_a_rank_that_leaves_is_answered_and_is_missed_by_nobody():
    run = Run()
    key = run.enter(0)
    run.enter(1)
    own, other = (run.news(key, rank) for rank in (0, 1))
    await asyncio.sleep(0)
    run.board.leave(key, 0)
    assert (await own)[:2] == (None, None)
    await run.feeders[0].die(owner=True)
    assert not other.done()
    other.cancel()


@on_loop
async def test_the_owner_of_the_board_is_known_to_all_while_it_is_there():
    run = Run(opener="p0")
    key = run.enter(1)
    news = run.news(key, 1)
    run.enter(0, opener="p0")
    assert (await news)[:2] == (None, 0)
    news = run.news(key, 1, 0)
    await asyncio.sleep(0)
    run.board.leave(key, 0)
    assert (await news)[:2] == (None, None)


@on_loop
async def test_what_ranks_start_from_is_compared_turn_by_turn_among_those_present():
    run = Run()
    key = run.enter(0)
    run.enter(1)
    compare = run.board.compare
    assert compare(key, "load", 0, 0, {"epoch": 1, "position": 8}) is None
    assert compare(key, "load", 0, 1, {"epoch": 1, "position": 8}) is None
    assert compare(key, "start from", 0, 0, {"epoch": 1}) is None
    assert compare(key, "load", 1, 0, {"epoch": 2, "position": 0}) is None
    error = compare(key, "load", 1, 1, {"epoch": 2, "position": 16})
    assert isinstance(error, StateError)
    assert "position is 0 on rank 0 and 16 on rank 1" in str(error)
    assert (await run.news(key, 0)).failure is error
    key = run.enter(0)
    run.enter(1)
    assert compare(key, "load", 0, 0, {"epoch": 1}) is None
    run.board.leave(key, 0)
    assert compare(key, "load", 0, 1, {"epoch": 9}) is None


@on_loop
async def test_bad_samples_count_once_over_all_ranks_and_old_epochs_are_forgotten():
    board = Board(None)
    assert board.bad("s", 0, [1, 2]) == 2
    assert board.bad("s", 0, [2, 3]) == 3
    assert board.bad("s", 1, [1]) == 1
    assert board.bad("t", 0, [5]) == 1
    board.bad("s", 3, [1])
    assert sorted(board._bad) == [("s", 3), ("t", 0)]


@pytest.mark.parametrize(("text", "owner"), [("because its owner has died. Owner Id", True), ("worker died", False)])
def test_rays_text_tells_a_dead_owner(text, owner):
    assert owner_died(RayError(text)) is owner
    assert died(3, text).rank == 3
