"""One Ray Data execution over a run of reads, and the thread that takes its blocks."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray

from ingest.engine import cluster, private
from ingest.engine.datasource import Call, Calls, traffic_in
from ingest.engine.flow import Flow, Stretch
from ingest.errors import IngestError, StageError

_context_lock = threading.Lock()  # a DataContext is current for the whole process while a data set is made


@dataclass
class Delivery:
    """What one read gave.

    Attributes:
        blocks: references to its blocks with their rows, in order.
        rows: rows received so far.
        expected_rows: rows that make it complete.
        error: why it gave nothing.
        away_bytes: of its blocks, those that lay on another node when they arrived, and cross the network to this one.
        traffic: what it asked of the store, by the names of `storage.counters`.
    """

    expected_rows: int
    blocks: list[tuple[ray.ObjectRef, int]] = field(default_factory=list)
    rows: int = 0
    error: IngestError | None = None
    away_bytes: int = 0
    traffic: dict[str, int] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return self.error is not None or self.rows >= self.expected_rows


class Segment:
    """Runs some calls as one Ray Data execution; blocks arrive in the calls' order.

    Args:
        calls: the reads, in order of need.
        deliveries: one for each call, filled as blocks arrive.
        stretch: the same reads as the flow sees them.
        flow: admits the reads; its condition is notified at each arrival.
        open_error: the error that a one-row block may carry, fetched from the store.
        place: of each read task: options of a Ray task.
        name: shown in Ray's dashboard.
    """

    def __init__(
        self,
        calls: Sequence[Call],
        deliveries: Sequence[Delivery],
        stretch: Stretch,
        flow: Flow,
        *,
        open_error: Callable[[ray.ObjectRef], IngestError | None],
        place: Mapping[str, Any],
        name: str,
    ) -> None:
        self._calls, self._deliveries, self._stretch, self._flow = calls, deliveries, stretch, flow
        self._open_error, self._place, self._name = open_error, place, name
        self._key = f"{name}-{uuid.uuid4().hex[:8]}"
        self._stopped = False
        self._arrived = 0  # reads whose blocks are all here
        self._thread = threading.Thread(target=self._run, name=self._key, daemon=True)

    @property
    def submitted_all(self) -> bool:
        return self._stretch.submitted >= len(self._calls)

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def start(self) -> None:
        private.register(self._key, self._flow, self._stretch)
        self._flow.open(self._stretch)
        self._thread.start()

    def stop(self) -> None:
        """End the execution; blocks that have not arrived never will."""
        self._stopped = True
        self._flow.close(self._stretch)
        private.stop_execution(self._key)
        self._thread.join()

    def _run(self) -> None:
        try:
            for bundle in self._bundles():
                if self._stopped:
                    break
                self._take(bundle)
                # Ray Data's own wait for a block looks a hundred times a second whether one is there.
                self._flow.wait_until_due(self._stretch, self._arrived, lambda: private.ended(self._key))
            self._finish(None)
        except Exception as error:  # noqa: BLE001 - carried to the trainer, with its cause, by the next delivery
            self._finish(error)
        finally:
            self._flow.close(self._stretch)
            private.unregister(self._key)

    def _bundles(self) -> Any:
        with _context_lock, ray.data.DataContext.current(private.quiet_context(self._key)):
            dataset = ray.data.read_datasource(
                Calls(self._calls, self._name), override_num_blocks=len(self._calls), **self._place
            )
        self._flow.wait_until_begun(lambda: self._stopped)
        return dataset.iter_internal_ref_bundles()

    def _take(self, bundle: Any) -> None:
        for entry in bundle.blocks:
            if self._arrived == len(self._deliveries):
                raise StageError("a read gave more rows than the manifest lists", stage="read")
            delivery = self._deliveries[self._arrived]
            rows = int(entry.metadata.num_rows)
            away = cluster.away_bytes(entry.ref)
            error = self._open_error(entry.ref) if rows <= 1 else None
            with self._flow.changed:
                delivery.error = error
                delivery.away_bytes += away
                delivery.traffic = delivery.traffic or traffic_in(bundle.schema)  # every block of a read carries it
                if error is None:
                    delivery.blocks.append((entry.ref, rows))
                    delivery.rows += rows
                while self._arrived < len(self._deliveries) and self._deliveries[self._arrived].complete:
                    self._arrived += 1
                self._flow.arrive()

    def _finish(self, cause: Exception | None) -> None:
        """Whatever has not arrived never will: its delivery says why."""
        if self._stopped:
            return
        with self._flow.changed:
            missing = [d for d in self._deliveries if not d.complete]
            for delivery in missing:
                delivery.error = _as_error(cause)
            self._flow.changed.notify_all()


def _as_error(cause: Exception | None) -> IngestError:
    if isinstance(cause, IngestError):
        return cause
    inner = getattr(cause, "cause", None)
    if isinstance(inner, IngestError):
        return inner
    text = "the read ended early" if cause is None else "a read task failed"
    return StageError(text, stage="read", cause=None if cause is None else f"{type(cause).__name__}: {cause}")


def run_calls(calls: Sequence[Call], *, num_cpus: float, name: str) -> list[Any]:
    """Run calls as Ray Data work and fetch their tables, in order.

    Raises:
        StageError: a task failed for a reason that is not the data's.
    """
    with _context_lock, ray.data.DataContext.current(private.quiet_context()):
        dataset = ray.data.read_datasource(Calls(calls, name), override_num_blocks=len(calls), num_cpus=num_cpus)
    try:
        bundles = list(dataset.iter_internal_ref_bundles())
    except ray.exceptions.RayError as error:
        raise _as_error(error) from error
    refs = itertools.chain.from_iterable((entry.ref for entry in bundle.blocks) for bundle in bundles)
    return list(ray.get(list(refs)))
