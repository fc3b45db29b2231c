"""Trainers as Ray actors: started, watched and ended together, their errors brought to the caller with their rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import ray

from ingest.engine import cluster
from ingest.errors import ClusterError, IngestError, PlanError, SourceError, SpecError, StageError

TICK_S = 0.5
THREADS = 3  # of an actor: its work, its progress, and its verdict, which waits for other actors
_NO_RANKS_FAULT = (SpecError, SourceError, PlanError, ClusterError)  # the same on every rank


def result(ref: ray.ObjectRef, rank: int) -> Any:
    """What a trainer's call returned.

    Raises:
        IngestError: what it failed with, its rank filled in.
    """
    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if not isinstance(cause, IngestError):
            text = f"{type(cause).__name__}: {cause}"
            raise StageError("the trainer failed", stage="trainer", rank=rank, cause=text) from error
        if cause.rank is None and not isinstance(cause, _NO_RANKS_FAULT):
            cause.rank = rank
        raise cause from error
    except ray.exceptions.RayActorError as error:
        text = str(error).strip().splitlines()[0]
        raise StageError("the trainer died", stage="trainer", rank=rank, cause=text) from error


class Trainers:
    """One actor for each rank, spread over the cluster, with no CPU of its own unless said.

    Args:
        kind: the actors' class; made with (rank, *args).
        world_size: how many.
        args: the same for all ranks.
        each: what Ray counts for each actor; anything is reserved for all of them at once, so that no two jobs wait
            for each other with half their trainers.
    """

    def __init__(self, kind: type, world_size: int, *args: Any, each: cluster.PerTrainer | None = None) -> None:
        each = each or cluster.PerTrainer()
        options: dict[str, Any] = {"num_cpus": each.cpus, "num_gpus": each.gpus, "max_concurrency": THREADS}
        self._group = cluster.reserve(each, world_size) if each.cpus or each.gpus else None
        remote = ray.remote(kind)
        self.actors = [
            remote.options(**options, **self._place(rank, each)).remote(rank, *args) for rank in range(world_size)
        ]

    def _place(self, rank: int, each: cluster.PerTrainer) -> dict[str, Any]:
        if self._group is not None:
            return {"scheduling_strategy": cluster.in_bundle(self._group, rank)}
        return {"scheduling_strategy": "SPREAD", "label_selector": dict(each.labels) or None}

    def call(self, method: str, *args: Any, tick: Callable[[], None] = lambda: None) -> list[Any]:
        """Call a method on every rank and wait for all; `tick` runs about twice a second meanwhile.

        Returns:
            One result for each rank, in order.

        Raises:
            IngestError: of the first rank that fails, as soon as it does; the other ranks still run then.
        """
        refs = {getattr(actor, method).remote(*args): rank for rank, actor in enumerate(self.actors)}
        results: dict[int, Any] = {}
        waiting = list(refs)
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=TICK_S)
            for ref in done:
                results[refs[ref]] = result(ref, refs[ref])
            tick()
        return [results[rank] for rank in range(len(self.actors))]

    def close(self) -> None:
        """End all actors, whatever they do; those that they made end with them."""
        cluster.kill(*self.actors)
        if self._group is not None:
            cluster.release(self._group)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class Poll:
    """Asks actors for something now and then, without ever waiting for the answer.

    Args:
        actors: whom to ask.
        method: what for.
        every_s: no more often than this.
    """

    def __init__(self, actors: Sequence[Any], method: str, every_s: float) -> None:
        self._actors, self._method, self._every_s = actors, method, every_s
        self._asked: list[ray.ObjectRef] = []
        self._asked_at = float("-inf")
        self.latest: list[Any] = []

    def __call__(self) -> None:
        """Take the answers if all are there, and ask again if it is time."""
        if self._asked:
            done, _ = ray.wait(self._asked, num_returns=len(self._asked), timeout=0)
            if len(done) < len(self._asked):
                return
            try:
                self.latest = ray.get(self._asked)
            except ray.exceptions.RayError:
                return  # whoever waits for the actor's work learns the cause
            finally:
                self._asked = []
        if time.monotonic() - self._asked_at >= self._every_s:
            self._asked_at = time.monotonic()
            self._asked = [getattr(actor, self._method).remote() for actor in self._actors]
