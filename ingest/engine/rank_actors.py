"""One rank's actors, its feeder and those that augment: made, asked together, replaced where they died, and ended."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any

import ray

from ingest.engine import cluster
from ingest.engine.asking import LostError, ask
from ingest.engine.hosts import CALLS_AT_A_TIME, NAMESPACE, AugmentHost, FeederHost, warm_reader
from ingest.engine.jobs import FeedConfig
from ingest.errors import StageError
from ingest.manifest.listing import seems_tfrecord
from ingest.plan.schedule import Chunk
from ingest.spec import Spec

FOREVER = -1
CLOSE_S = 10.0
ANSWER_S = 10.0  # for an actor that is asked how it is
GONE_S = 0.5  # for one that Ray starts anew: if it is dead for good, that is known at once
KEYS_EACH = 1 << 40  # table keys of each feeder, so that a new one never repeats one of the old


class RankActors:
    """Starts them at once.

    Args:
        spec: what to do.
        batch_rows: rows of a batch.
        threads: decoding threads of each augmentation actor.
        gpu: whether augmentation actors get GPUs.
        rank: for names and errors.
        call_batches: the most batches that an augmentation actor makes in a call.

    Attributes:
        feeder: lives as long as this process unless it dies before; then another takes its place.
        augmenters: in the order in which they take turns.
    """

    def __init__(self, spec: Spec, *, batch_rows: int, threads: int, gpu: bool, rank: int, call_batches: int) -> None:
        self._spec, self._batch_rows, self._threads, self._gpu, self._rank = spec, batch_rows, threads, gpu, rank
        self._call_batches = call_batches
        self._feeders = 0
        self._totals: dict[str, Any] = {}
        self._make_feeder()
        self.augmenters = [self._make_augmenter() for _ in range(spec.augment.actors)]

    def _make_feeder(self) -> None:
        self._name = f"feeder-{self._rank}-{uuid.uuid4().hex}"
        # A reader's process starts beside the feeder's, while the data is being listed.
        records = any(seems_tfrecord(source) for source in self._spec.inputs)
        warm = ray.remote(warm_reader).options(**self._spec.read.place, max_retries=0).remote(records=records)
        # Takes must run in order, and a restart must reach a feeder whose take is waiting: two groups of one thread.
        self.feeder = (
            ray.remote(concurrency_groups={"take": 1, "control": 1, "watch": 1})(FeederHost)
            .options(name=self._name, namespace=NAMESPACE, num_cpus=0, **cluster.beside_me())
            .remote([warm], first_key=self._feeders * KEYS_EACH)
        )
        self._feeders += 1

    def _make_augmenter(self) -> Any:
        augment = self._spec.augment
        return (
            ray.remote(concurrency_groups={"hold": 1})(AugmentHost)
            .options(
                num_cpus=augment.cpus,
                num_gpus=augment.gpus if self._gpu else 0,
                max_concurrency=CALLS_AT_A_TIME,
                max_restarts=FOREVER,
                max_task_retries=FOREVER,
                **cluster.beside_me(),
            )
            .remote(
                self._name,
                augment,
                self._spec.order.seed,
                self._batch_rows,
                self._threads,
                self._spec.errors.on_bad_sample == "replace",
                self._call_batches,
                self._spec.cache.decoded,
            )
        )

    # -- feeding -------------------------------------------------------------------------------------------------------

    def control(self, method: str) -> Any:
        """A method of the feeder that answers also while a take waits."""
        return getattr(self.feeder, method).options(concurrency_group="control")

    def configure(self, manifest: ray.ObjectRef, config: FeedConfig) -> None:
        """Tell the feeder what there is, how to feed, and whom.

        Raises:
            LostError: the feeder died, or who owns the manifest.
        """
        ask(self.control("configure").remote(manifest, config, self.augmenters), self._rank)

    def start(self, generation: int, epoch: int, position: int, chunk: Chunk | None) -> None:
        """Turn the feeder to a position.

        Raises:
            LostError: it died.
        """
        ask(self.control("start").remote(generation, epoch, position, chunk), self._rank)

    def give_way(self, generation: int) -> None:
        """Let the feeder's takes of earlier generations end; not waited for."""
        self.control("give_way").remote(generation)

    def take(self, generation: int, count: int) -> ray.ObjectRef:
        """The feeder's answer to come for the next batches."""
        return self.feeder.take.options(concurrency_group="take").remote(generation, count)

    # -- recovery ------------------------------------------------------------------------------------------------------

    def replace_dead(self) -> bool:
        """Make those anew that are gone; whether the feeder is another one now, which must be configured."""
        feeder = self.control("counters").remote()
        asked = [actor.counters.options(concurrency_group="hold").remote() for actor in self.augmenters]
        fresh = _gone(feeder, ANSWER_S)
        self.augmenters = [
            self._make_augmenter() if _gone(answer, GONE_S) else actor
            for actor, answer in zip(self.augmenters, asked, strict=True)
        ]
        if fresh:
            cluster.kill(self.feeder)  # it may live on a node that is cut off
            self._make_feeder()
        for actor in self.augmenters:  # one that Ray has started anew knows the first feeder only
            actor.adopt.options(concurrency_group="hold").remote(self._name, (self._feeders - 1) * KEYS_EACH)
        return fresh

    # -- totals --------------------------------------------------------------------------------------------------------

    def counters(self) -> dict[str, Any]:
        """Their totals; the last known ones where an actor is being replaced.

        Raises:
            StageError: an actor died before any were known.
        """
        feeder = self.control("counters").remote()
        augmenters = [actor.counters.remote() for actor in self.augmenters]
        try:
            totals = dict(ask(feeder, self._rank))
            for counters in ask(augmenters, self._rank):
                for name, value in counters.items():
                    totals[f"augment_{name}"] = totals.get(f"augment_{name}", 0) + value
        except LostError as lost:
            if not self._totals:
                raise StageError("an actor died", stage="feed", rank=self._rank, cause=str(lost)) from lost
        else:
            self._totals = {**totals, "augment_slots": CALLS_AT_A_TIME * len(augmenters)}
        return dict(self._totals)

    def notes(self) -> dict[str, int]:
        """How many images had what fault that could be passed over; none where an actor is being replaced."""
        totals: Counter[str] = Counter()
        try:
            for notes in ask([actor.notes.remote() for actor in self.augmenters], self._rank):
                totals.update(notes)
        except LostError:
            return {}  # its counts are gone
        return dict(totals)

    def peak_rss_bytes(self) -> int:
        """Their peak resident memory, added up; shared memory that they touched is counted in."""
        feeder = self.control("peak_rss_bytes").remote()
        try:
            return sum(ask([feeder, *(actor.peak_rss_bytes.remote() for actor in self.augmenters)], self._rank))
        except LostError:
            return 0

    # -- end -----------------------------------------------------------------------------------------------------------

    def end_feeder(self) -> None:
        """First, since it would send more."""
        cluster.settle([self.control("end")], CLOSE_S)
        cluster.kill(self.feeder)

    def end_augmenters(self, calls: Sequence[ray.ObjectRef]) -> None:
        """Once their calls under way have ended: Ray reports tasks that end with their actor."""
        cluster.settle([actor.end.options(concurrency_group="hold") for actor in self.augmenters], CLOSE_S)
        cluster.drain(calls, CLOSE_S)
        cluster.kill(*self.augmenters)


def _gone(answer: ray.ObjectRef, timeout_s: float) -> bool:
    """Whether an actor that was asked is dead for good."""
    try:
        ray.get(answer, timeout=timeout_s)
    except (ray.exceptions.GetTimeoutError, ray.exceptions.ActorUnavailableError):
        return False  # busy, or starting anew
    except ray.exceptions.RayActorError:
        return True
    return False
