"""The feeder: one rank's reads, cut into batches and sent to augmentation, across epochs without a gap."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any

import ray

from ingest.engine import cluster, private
from ingest.engine.assembler import Assembler, TableRows, job_of
from ingest.engine.datasource import Call, error_in
from ingest.engine.decoded import decoded_call
from ingest.engine.flow import ColdReaders, Flow, Stretch
from ingest.engine.jobs import BatchInfo, FeedConfig, GoneError, Taken, Waiting
from ingest.engine.segment import Delivery, Segment
from ingest.engine.under_way import EpochUnderWay, OpenRead, OpenWindow
from ingest.errors import IngestError, StageError
from ingest.manifest.model import Manifest
from ingest.plan.buckets import BucketSchedule, Part
from ingest.plan.mixture import Layout, layout_of
from ingest.plan.reads import Read, UnitSizes, gather_reads
from ingest.plan.schedule import Chunk, Schedule, Step
from ingest.read.arranged import read_arranged
from ingest.read.windows import window_call
from ingest.storage.traffic import NAMES

FIRST_SEGMENT, SEGMENT = 32, 256  # windows; the first is short because each read costs 1 ms before the first block
STORAGE = "storage_{}"  # a name of `storage.counters` among ours
MOST_EPOCHS = 64  # under way at a time


class _Restarted(Exception):  # noqa: N818 - a signal, not an error
    """The trainer turned to another position while a take was waiting."""


class Feeder:
    """Plans and runs a rank's reads; `take` gives one batch after another. Hosted by a Ray actor.

    Args:
        first_key: of its tables.
        warm: the result of a task that starts a reader's process; no read starts before it ends, one way or another,
            since it would be given a cold process, which loads everything once more while the first batch waits.
    """

    _manifest: Manifest
    _config: FeedConfig
    _sizes: UnitSizes
    _flow: Flow
    _assembler: Assembler

    def __init__(self, first_key: int = 0, warm: ray.ObjectRef | None = None) -> None:
        private.own_process()
        self._warm = warm
        self._augmenters: Sequence[Any] = ()
        self._keys = itertools.count(first_key)
        self._drops: list[list[int]] = []  # for each augmenter (or the loader), keys that it may forget
        self._generation = self._taking = -1  # the trainer's latest, and that of the take under way
        self._turn = -1  # of the augmenters
        self._waiting_since: float | None = None
        self._waiting_for: tuple[OpenWindow, int, int] | None = None
        self._lock = threading.Lock()  # held by a take while it runs: starting anew waits for it to give way
        self._counters = {"read_wait_s": 0.0, "fetched_bytes": 0, "reads": 0, "away_bytes": 0}
        self._counters |= dict.fromkeys(map(STORAGE.format, NAMES), 0)
        self._asked: dict[int, Counter[str]] = {}  # of the store, by epoch
        self._clear()

    def _clear(self) -> None:
        self._epochs: deque[EpochUnderWay] = deque()
        self._segments: deque[Segment] = deque()
        self._expiring: list[tuple[int, int, OpenRead]] = []
        self._open: dict[int, OpenRead] = {}
        self._steps: Iterator[tuple[EpochUnderWay, Step | Part]] = iter(())
        self._failed: IngestError | None = None

    # -- called by the loader ------------------------------------------------------------------------------------------

    def configure(self, manifest: Manifest, config: FeedConfig, augmenters: Sequence[Any]) -> None:
        """Take what is there, how to feed it, and the actors that augment in turn (none: nothing is augmented)."""
        self._manifest, self._config, self._augmenters = manifest, config, augmenters
        memory_bytes = manifest.units.memory_bytes
        if config.decoding is not None:
            memory_bytes = memory_bytes + manifest.units.rows * config.decoding.row_bytes
        self._sizes = UnitSizes(manifest.units.bytes, memory_bytes)
        self._assembler = Assembler(manifest, config, self._await)
        self._flow = Flow(
            config.budget_bytes,
            config.readers,
            ColdReaders(config.first_readers, begun=self._warm is None),
            most=self._readers_now if config.grows else None,
            asked_at=time.monotonic(),
        )
        if self._warm is not None:
            flow = self._flow
            self._warm.future().add_done_callback(lambda _: flow.begin())
        if len(self._drops) != max(1, len(augmenters)):
            self._drops = [[] for _ in range(max(1, len(augmenters)))]

    def _readers_now(self) -> int:
        config = self._config
        return cluster.readers_for(cluster.resources().cpus, config.place["num_cpus"], config.share.world_size)

    def start(self, generation: int, epoch: int, position: int, chunk: Chunk | None = None) -> None:
        """Turn to a position, and the chunk that it lies in; batches of earlier generations are forgotten."""
        self.give_way(generation)
        with self._lock:
            self._drop_all()
            self._add_epoch(epoch, position, 0, chunk)
            self._steps = self._walk()
            self._extend()

    def give_way(self, generation: int) -> None:
        """Let takes of earlier generations end, whatever they wait for."""
        with self._flow.changed:
            self._generation = max(self._generation, generation)
            self._flow.changed.notify_all()

    def take(self, generation: int, count: int) -> list[Taken | IngestError | None]:
        """The next batches, all for the same augmentation actor.

        Returns:
            None in the place of a batch when another generation has begun or the last epoch has ended; an error in the
            place of the batch that it spoils, and of all that follow.
        """
        self._turn = (self._turn + 1) % max(1, len(self._augmenters))
        return [self._take(generation) for _ in range(count)]

    def _take(self, generation: int) -> Taken | IngestError | None:
        with self._lock:
            if generation != self._generation:
                return None
            self._taking = generation
            if self._failed is not None:
                return self._failed
            try:
                found = next(self._steps, None)
                return None if found is None else self._assemble(*found)
            except _Restarted:
                return None
            except IngestError as error:
                error.rank = self._config.share.rank
                self._failed = error
                return error

    def blocks(self, key: int) -> list[ray.ObjectRef]:
        """The blocks of a table that an actor should have and has not: it was started anew.

        Raises:
            GoneError: nobody needs that table any more.
        """
        held = self._open.get(key)
        if held is None:
            raise GoneError(f"table {key} is gone")
        return [ref for ref, _ in held.delivery.blocks]

    def counters(self) -> dict[str, Any]:
        """Totals since the feeder began, what it waits for now, and `storage_epochs`: the reads' traffic by epoch."""
        waiting = time.monotonic() - self._waiting_since if self._waiting_since is not None else 0.0
        return {
            **self._counters,
            "storage_epochs": {epoch: dict(asked) for epoch, asked in list(self._asked.items())},
            "waiting_for_read_s": waiting,
            "held_bytes": self._flow.held_bytes,
            "budget_bytes": self._flow.budget_bytes,
        }

    def waiting(self) -> Waiting | None:
        """The read that a take waits for now, if it waits for one."""
        with self._flow.changed:
            since, wanted = self._waiting_since, self._waiting_for
            if since is None or wanted is None:
                return None
            opened, lane, window = wanted
            units = list(opened.read.read.units)
            files = dict.fromkeys(self._manifest.files[self._manifest.units.file[unit]].url for unit in units)
            running = sum(stretch.running for stretch in self._flow.stretches)
            return Waiting(tuple(files), len(units), lane, window, running, time.monotonic() - since)

    # -- planning ------------------------------------------------------------------------------------------------------

    def _add_epoch(self, epoch: int, position: int, first_step: int, chunk: Chunk | None = None) -> None:
        share = self._config.share
        layout = layout_of(self._manifest.units.rows, self._config.order, epoch, self._config.mix)
        schedule: Schedule | BucketSchedule = Schedule(layout, share, position)
        if self._config.bucketing is not None:
            schedule = BucketSchedule(layout, share, self._config.bucketing.batches, position, chunk)
        self._epochs.append(EpochUnderWay(schedule, first_step))

    def _walk(self) -> Iterator[tuple[EpochUnderWay, Step | Part]]:
        """Steps in order, one epoch after the other; an epoch leaves the queue when its last step has been taken."""
        while True:
            epoch = self._epochs[0]
            for step in epoch.schedule:
                yield epoch, step
            if len(self._epochs) == 1 and not self._add_next_epoch():
                return
            self._epochs.popleft()

    def _add_next_epoch(self) -> bool:
        last = self._epochs[-1]
        number = last.schedule.layout.epoch + 1
        if self._config.epochs is not None and number >= self._config.epochs:
            return False
        self._add_epoch(number, 0, last.first_step + last.schedule.steps)
        return True

    def _extend(self) -> None:
        """Start the next execution once the one before has started all its reads: no gap, and no second budget."""
        while not self._segments or self._segments[-1].submitted_all:
            if len(self._segments) > 1 and self._segments[0].done:
                self._segments.popleft()
            planned = self._plan_reads()
            if not planned:
                return
            self._start_segment(planned)

    def _plan_reads(self) -> list[tuple[EpochUnderWay, OpenRead]]:
        """The next windows' reads; of several epochs where these are short, for an execution costs 0.1 s to begin."""
        room = SEGMENT if self._segments or self._epochs[0].windows_planned else FIRST_SEGMENT
        planned: list[tuple[EpochUnderWay, OpenRead]] = []
        while room > 0:
            epoch = self._epochs[-1]
            if epoch.all_planned:
                if len(self._epochs) > MOST_EPOCHS or not self._add_next_epoch():
                    break
                continue
            begin = epoch.windows_planned
            epoch.windows_planned = min(begin + room, len(epoch.schedule.windows))
            room -= epoch.windows_planned - begin
            reads = gather_reads(epoch.schedule, self._sizes, start=begin, stop=epoch.windows_planned)
            planned.extend((epoch, self._open_read(epoch, read)) for read in reads)
        return planned

    def _open_read(self, epoch: EpochUnderWay, read: Read) -> OpenRead:
        layout = epoch.schedule.layout
        held = OpenRead(next(self._keys), read, Delivery(read.rows(layout)), read.memory_bytes(layout, self._sizes))
        self._open[held.key] = held
        for window, begin in zip(read.windows, read.window_starts(layout), strict=True):
            epoch.windows[window.lane, window.window] = OpenWindow(held, window, begin)
        # Kept until the last batch made from it has been received, in case its augmentation must be done again.
        heapq.heappush(self._expiring, (epoch.first_step + read.last_step + self._config.depth, held.key, held))
        self._counters["fetched_bytes"] += read.fetched_bytes(self._sizes)
        self._counters["reads"] += 1
        return held

    def _start_segment(self, planned: Sequence[tuple[EpochUnderWay, OpenRead]]) -> None:
        stretch = Stretch(
            [held.held_bytes for _, held in planned],
            [epoch.first_step + held.read.first_step for epoch, held in planned],
        )
        segment = Segment(
            [self._call(epoch.schedule.layout, held) for epoch, held in planned],
            [held.delivery for _, held in planned],
            stretch,
            self._flow,
            open_error=lambda ref: error_in(ray.get(ref)),
            place=self._config.place,
            name=f"ingest-read-{self._config.share.rank}",
        )
        self._segments.append(segment)
        segment.start()

    def _call(self, layout: Layout, held: OpenRead) -> Call:
        manifest = self._manifest
        source, _ = manifest.local(held.read.units)
        options, decoding = self._config.read[source], self._config.decoding
        if decoding is None:
            function, args = window_call(manifest, held.read.units, options)
        else:
            function, args = decoded_call(manifest, held.read.units, options, decoding)
        if self._config.arranged:
            read, first_ids = held.read, manifest.unit_first_id[list(held.read.units)].tolist()
            args = (read.arrangement(layout), tuple(read.units.values()), first_ids, function, *args)
            function = read_arranged
        return Call(function, args, held.delivery.expected_rows, held.held_bytes)

    # -- assembling ----------------------------------------------------------------------------------------------------

    def _assemble(self, epoch: EpochUnderWay, step: Step | Part) -> Taken:
        number = epoch.first_step + step.index
        self._flow.advance(number)
        waited = time.monotonic()
        if isinstance(step, Part):
            step = self._assembler.sorted_step(epoch, step)
        parts, fill = self._assembler.rows(epoch, step)
        waited = time.monotonic() - waited
        self._counters["read_wait_s"] += waited
        info = BatchInfo(
            epoch=step.epoch,
            after=step.after,
            ends_epoch=step.index + 1 == epoch.schedule.steps,
            valid_rows=step.valid_rows,
            runs=step.runs,
            fill=fill,
            chunk=step.chunk,
            left=step.left,
            read_wait_s=waited,
        )
        taken = self._dispatch(step, parts, info.pack())
        self._expire(number)
        self._extend()
        return taken

    def _dispatch(self, step: Step, parts: list[TableRows], info: bytes) -> Taken:
        """The job, once the tables that its taker has not seen are on their way."""
        turn = self._turn
        drops, self._drops[turn] = self._drops[turn], []
        job = job_of(step, parts, drops, mixed=self._config.mix is not None).pack()
        new = {part.read.key: part.read for part in parts if turn not in part.read.given}
        tables = [(held.key, [ref for ref, _ in held.delivery.blocks]) for held in new.values()]
        for held in new.values():
            if not held.given:
                self._asked.setdefault(step.epoch, Counter()).update(held.delivery.traffic)
                for name, count in held.delivery.traffic.items():
                    self._counters[STORAGE.format(name)] += count
        self._counters["away_bytes"] += sum(held.delivery.away_bytes for held in new.values() if not held.given)
        for held in new.values():
            held.given.add(turn)
        if not self._augmenters:
            return Taken(info, job, -1, tuple(tables))
        for key, blocks in tables:
            self._augmenters[turn].hold.options(concurrency_group="hold").remote(key, *blocks)
        return Taken(info, job, turn)

    def _await(self, epoch: EpochUnderWay, lane: int, window: int) -> OpenWindow:
        while (opened := epoch.windows.get((lane, window))) is None:
            if epoch.all_planned:
                raise StageError(f"lane {lane} has no window {window} in the plan", stage="feed")
            self._extend_when_possible()
        delivery = opened.read.delivery
        with self._flow.changed:
            self._waiting_since, self._waiting_for = time.monotonic(), (opened, lane, window)
            try:
                while not delivery.complete:
                    if self._taking != self._generation:
                        raise _Restarted
                    self._flow.changed.wait(1.0)
            finally:
                self._waiting_since = self._waiting_for = None
        if delivery.error is not None:
            raise delivery.error
        return opened

    def _extend_when_possible(self) -> None:
        """The step needs a window whose execution has not begun: wait for its turn."""
        with self._flow.changed:
            while self._segments and not self._segments[-1].submitted_all:
                if self._taking != self._generation:
                    raise _Restarted
                self._flow.changed.wait(0.05)
        self._extend()

    def _expire(self, step: int) -> None:
        """Drop what no later step needs, here and, with their next job, in the actors that were handed it."""
        while self._expiring and self._expiring[0][0] <= step:
            _, key, held = heapq.heappop(self._expiring)
            del self._open[key]
            held.delivery.blocks.clear()
            for turn in held.given:
                self._drops[turn].append(key)
            for epoch in self._epochs:
                for window in held.read.windows:
                    opened = epoch.windows.get((window.lane, window.window))
                    if opened is not None and opened.read is held:
                        del epoch.windows[window.lane, window.window]
            self._flow.release(held.held_bytes)

    def _drop_all(self) -> None:
        for segment in self._segments:
            segment.stop()
        self._flow.reset()
        for held in self._open.values():
            for turn in held.given:
                self._drops[turn].append(held.key)
        self._clear()
