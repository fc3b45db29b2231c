"""The board: what the ranks of a run tell each other: who is there, who failed and why, which samples are bad.

It lives in the catalog's process and costs nothing a batch: a rank that enters leaves a call open, which is answered
when another rank fails. A rank that dies is noticed by its feeder, which ends with it; one whose node dies takes its
feeder along, and sometimes the board: so the others know which rank is on which node.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ray

from ingest.engine import gcs
from ingest.errors import IngestError, StageError, StateError

_OWNER_DIED = "its owner has died"  # in Ray's text for an actor that ended with the process that made it


class News(NamedTuple):
    """What a rank is told.

    Attributes:
        failure: the first one of the attempt's ranks, once there is one.
        owner: the rank whose process owns the board, while it is there.
        nodes: of each rank, once all have entered.
    """

    failure: IngestError | None
    owner: int | None
    nodes: dict[int, str]


@dataclass
class Attempt:
    """The ranks that train together, from their start until one of them ends.

    Attributes:
        key: names it, uniquely.
        world_size: ranks that it has when all have entered.
        ranks: that have entered, whether they are still there or not.
        present: that are still there.
        nodes: of each rank that has entered, the node that it runs on.
        failure: the first one, once there is one.
        owner: the rank whose process owns the board, while it is there.
        changed: set, and replaced, when either changes.
        starts: for each turn that a loader took to a position, what it said by rank.
    """

    key: str
    world_size: int
    ranks: set[int] = field(default_factory=set)
    present: set[int] = field(default_factory=set)
    nodes: dict[int, str] = field(default_factory=dict)
    failure: IngestError | None = None
    owner: int | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    starts: dict[tuple[str, int], dict[int, dict[str, Any]]] = field(default_factory=dict)

    def fail(self, error: IngestError) -> None:
        if self.failure is None:
            self.failure = error
            self.tell()

    def leave(self, rank: int) -> None:
        self.present.discard(rank)
        if self.owner == rank:
            self.owner = None
        self.tell()

    def news(self) -> News:
        return News(self.failure, self.owner, dict(self.nodes) if self.complete else {})

    @property
    def complete(self) -> bool:
        """Whether all ranks have entered."""
        return len(self.nodes) >= self.world_size

    def tell(self) -> None:
        """Answer the calls that wait for news."""
        self.changed.set()
        self.changed = asyncio.Event()


class Board:
    """Hosted by the catalog's actor, whose event loop calls it.

    Args:
        opener: names the process that made, and so owns, that actor.
        node_died: whether the node of an id is gone.
        again_s: after which a feeder that is cut off is called again.
    """

    def __init__(
        self, opener: str | None, node_died: Callable[[str], bool] = gcs.node_died, again_s: float = 1.0
    ) -> None:
        self._opener, self._node_died, self._again_s = opener, node_died, again_s
        self._latest: dict[str, Attempt] = {}
        self._attempts: dict[str, Attempt] = {}
        self._bad: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
        self._watches: set[asyncio.Task[None]] = set()

    def enter(
        self, stream: str, rank: int, world_size: int, feeder: Any, opener: str | None, node: str, key: str | None
    ) -> str:
        """Join the attempt that is gathering, or begin one; watch the rank's feeder from now on.

        Args:
            stream: what the ranks of an attempt have in common: their spec.
            rank: who enters.
            world_size: ranks of its attempt.
            feeder: its feeder's actor.
            opener: names its process.
            node: that it runs on.
            key: of the attempt that the rank is in already, known to a board that has died.

        Returns:
            The attempt's key.
        """
        attempt = self._attempts.get(key) if key else self._latest.get(stream)
        used = attempt is None or (
            key is None and (attempt.world_size != world_size or rank in attempt.ranks or attempt.failure is not None)
        )
        if attempt is None or used:
            attempt = Attempt(key or uuid.uuid4().hex, world_size)
            self._attempts[attempt.key] = self._latest[stream] = attempt
        attempt.ranks.add(rank)
        attempt.present.add(rank)
        attempt.nodes[rank] = node
        if opener is not None and opener == self._opener:
            attempt.owner = rank
        attempt.tell()
        task = asyncio.get_running_loop().create_task(self._watch(attempt, rank, feeder))
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)
        return attempt.key

    async def news(self, key: str, rank: int, owner: int | None, *, told: bool) -> News:
        """What has happened to an attempt, once a rank failed, the board's owner is another, or all have entered.

        A rank that leaves is answered too: an open call would keep the board.

        Args:
            key: the attempt.
            rank: who asks.
            owner: of the board, as the rank knows it.
            told: whether it knows the nodes of all ranks.
        """
        attempt = self._attempts.get(key)
        if attempt is None:
            return News(None, None, {})  # a board made anew, which this rank has not entered yet
        while (
            attempt.failure is None
            and attempt.owner == owner
            and rank in attempt.present
            and (told or not attempt.complete)
        ):
            await attempt.changed.wait()
        return attempt.news()

    def leave(self, key: str, rank: int) -> None:
        """A rank needs the others no more: its end is no failure."""
        if key in self._attempts:
            self._attempts[key].leave(rank)

    def fail(self, key: str, error: IngestError) -> None:
        """Tell the other ranks of a failure."""
        if key in self._attempts:
            self._attempts[key].fail(error)

    def compare(self, key: str, kind: str, turn: int, rank: int, facts: dict[str, Any]) -> StateError | None:
        """Hold what a rank starts from against what the others said; all of them learn of a difference.

        Args:
            key: the attempt.
            kind: of thing that is said.
            turn: how often the rank has said something of this kind before.
            rank: who says it.
            facts: what it says.
        """
        attempt = self._attempts.get(key)
        if attempt is None:
            return None
        said = attempt.starts.setdefault((kind, turn), {})
        said[rank] = facts
        attempt.starts.pop((kind, turn - 2), None)
        for other in sorted(attempt.present & set(said)):
            if said[other] != facts:
                error = StateError(
                    f"ranks differ in what they {kind}: "
                    + "; ".join(
                        f"{name} is {said[other].get(name)!r} on rank {other} and {facts.get(name)!r} on rank {rank}"
                        for name in facts
                        if said[other].get(name) != facts.get(name)
                    ),
                    hint="Give every rank the same state",
                )
                attempt.fail(error)
                return error
        return None

    def bad(self, stream: str, epoch: int, ids: list[int]) -> int:
        """Add bad samples of an epoch; the number of different ones so far, over all ranks."""
        for old in [each for each in self._bad if each[0] == stream and each[1] < epoch - 1]:
            del self._bad[old]
        self._bad[stream, epoch].update(ids)
        return len(self._bad[stream, epoch])

    async def _watch(self, attempt: Attempt, rank: int, feeder: Any) -> None:
        """Wait until a rank leaves (its feeder says so), or dies (its feeder ends with it)."""
        while True:
            try:
                await feeder.watch.options(concurrency_group="watch").remote()
            except ray.exceptions.ActorUnavailableError:
                await asyncio.sleep(
                    self._again_s
                )  # cut off for a moment, or a node's death that Ray has not noticed yet
            except ray.exceptions.RayError as error:
                # A feeder that died alone is no failure: its rank makes another and enters with it.
                if rank in attempt.present and (owner_died(error) or self._node_died(attempt.nodes[rank])):
                    attempt.leave(rank)
                    attempt.fail(died(rank, str(error)))
                return
            else:
                attempt.leave(rank)
                return


def died(rank: int, why: str) -> StageError:
    """The error of a rank whose process is gone."""
    return StageError("the trainer died", stage="trainer", rank=rank, cause=why.strip().splitlines()[-1])


def owner_died(error: BaseException) -> bool:
    """Whether an actor ended because the process that made it did, of itself or not."""
    return _OWNER_DIED in str(error)
