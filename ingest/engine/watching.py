"""What a rank waits for, and a watchdog's questions about it: can its reads ever run, and where is it stuck."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import ray

from ingest.engine import cluster, gcs
from ingest.engine.jobs import Waiting
from ingest.engine.rank_actors import ANSWER_S, RankActors
from ingest.errors import ClusterError, IngestError, StageError


class Watch:
    """Of one rank.

    Args:
        actors: that it waits for.
        read_cpus: that each of its reads needs.
        rank: for errors.
    """

    def __init__(self, actors: RankActors, read_cpus: float, rank: int) -> None:
        self._actors, self._read_cpus, self._rank = actors, read_cpus, rank
        self._waiting_for: tuple[str, float] | None = None  # a stage, and since when

    @contextlib.contextmanager
    def waits(self, stage: str) -> Iterator[None]:
        """Say what is waited for, while it is."""
        self._waiting_for = (stage, time.monotonic())
        try:
            yield
        finally:
            self._waiting_for = None

    def starved(self) -> ClusterError | None:
        """The error of a rank whose reads can never run, since others hold all CPUs."""
        cpus = self._read_cpus
        free, have = cluster.free_cpus(), cluster.resources().cpus
        if free >= cpus or self._answer("warm") is not False or gcs.autoscaled():
            return None  # an autoscaler brings what waits, in minutes
        return ClusterError(
            f"no read can start: it needs {cpus:g} CPUs, and of the cluster's {have:g} others hold all but {free:g}",
            rank=self._rank,
            hint="Give trainers fewer CPUs, lower read.cpus, or add CPU nodes",
        )

    def stuck(self, waited_s: float) -> StageError:
        """The error of a rank that has waited too long: which stage, what it waits for, and where."""
        said = self._waiting_for
        stage, what = "feed", "the feeder's answer"
        waiting = self._answer("waiting")
        if isinstance(waiting, IngestError):
            what = f"the feeder, which {waiting.message}"
        elif waiting is not None:
            stage, what = "read", self._describe_read(waiting)
        elif said is not None and said[0] == "augment":
            stage, what = "augment", f"augmentation of a batch, in {self._describe_augmenters()}"
        elif said is not None and said[0] == "transfer":
            stage, what = "transfer", "blocks on their way from another node"
        seconds = time.monotonic() - said[1] if said is not None else waited_s
        return StageError(
            f"no batch for {waited_s:.0f} s (loader.timeout_s); waits for {what}, since {seconds:.0f} s",
            stage=stage,
            rank=self._rank,
            hint="Look at that stage; raise loader.timeout_s if it is only slow",
        )

    def _describe_read(self, waiting: Waiting) -> str:
        files = ", ".join(waiting.files[:3]) + (f" and {len(waiting.files) - 3} more" if len(waiting.files) > 3 else "")
        free, have = cluster.free_cpus(), cluster.resources().cpus
        # Ray counts a read that waits for its CPUs as one that runs.
        state = f"{waiting.running} of its reads are under way: each needs {self._read_cpus:g} CPUs, "
        state += f"{free:g} of {have:g} are free"
        return (
            f"window {waiting.window} of lane {waiting.lane}, a read of {waiting.units} units of {files}, "
            f"due for {waiting.seconds:.0f} s; {state}; {cluster.dead_nodes()}"
        )

    def _describe_augmenters(self) -> str:
        return ", ".join(gcs.actor_place(actor) for actor in self._actors.augmenters) + f"; {cluster.dead_nodes()}"

    def _answer(self, method: str) -> Any:
        """What the feeder says, or the error that it does not."""
        try:
            return ray.get(self._actors.control(method).remote(), timeout=ANSWER_S)
        except ray.exceptions.RayError as error:
            place = gcs.actor_place(self._actors.feeder)
            return StageError(f"does not answer ({place}): {type(error).__name__}", stage="feed", rank=self._rank)
