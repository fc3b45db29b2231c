"""`ingest.Loader`: puts the parts together for one rank."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from ingest.engine.rank_feed import RankFeed
from ingest.errors import IngestError, PlanError, StageError
from ingest.loader.batch import Batch
from ingest.loader.convert import converter
from ingest.loader.prefetch import Prefetcher
from ingest.manifest.model import Manifest
from ingest.plan.schedule import Chunk
from ingest.session_batches import BatchMaker
from ingest.session_rank import whoami
from ingest.session_run import Place, RankRun
from ingest.session_tally import Tally
from ingest.spec import Spec

CACHE_DIR = Path.home() / ".cache" / "ingest"
READERS_START_S = 30.0  # for the first read to get its CPUs


class Loader:
    """One rank's batches, epoch after epoch.

    Args:
        spec: a `Spec`, a mapping, or the path of a YAML file.
        rank: of data parallelism; peers of one replica (tensor or pipeline parallelism) pass the same rank. Found from
            Ray Train or torch.distributed when left out, where every process then counts as a data-parallel rank.
        world_size: data-parallel ranks.
        epochs: the epoch after the last one, so that nothing is read beyond it; None when there is no last.
        cache_dir: where manifests are kept between runs; None keeps none.

    Raises:
        SpecError, SourceError, SchemaError, PlanError, ClusterError: before any batch, what and where.
    """

    def __init__(
        self,
        spec: Spec | Mapping[str, Any] | str | os.PathLike[str],
        rank: int | None = None,
        world_size: int | None = None,
        *,
        epochs: int | None = None,
        cache_dir: str | os.PathLike[str] | None = CACHE_DIR,
    ) -> None:
        began = time.perf_counter()
        loaded = Spec.load(spec)
        me = whoami(rank, world_size)
        self._convert = converter(loaded.loader.framework)
        self._run = RankRun(loaded, *me, epochs, cache_dir)
        self._at = Place(0, 0)
        self._tally = Tally(began)
        self._prefetcher: Prefetcher | None = None
        self._closed = False
        # Actors must end before Ray's own shutdown does, and when the loader is forgotten.
        self._holder: list[Prefetcher] = []
        self._finalizer = weakref.finalize(self, _close, self._run.feed, self._holder)
        self._atexit = atexit.register(self._finalizer)

    @property
    def spec(self) -> Spec:
        """What is run."""
        return self._run.spec

    @property
    def rank(self) -> int:
        """Of data parallelism."""
        return self._run.rank

    @property
    def world_size(self) -> int:
        """Data-parallel ranks."""
        return self._run.world_size

    @property
    def manifest(self) -> Manifest:
        """What there is."""
        return self._run.manifest

    # -- iteration -----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Steps in an epoch."""
        plan = self._run.plan
        return plan.share.steps(plan.rows)

    @property
    def epoch(self) -> int:
        """The epoch that `iter` goes on with."""
        return self._at.epoch

    @property
    def step(self) -> int:
        """Steps of the current epoch taken so far, by this run's global batch."""
        return self._at.position // self._run.plan.share.global_batch

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the current epoch."""
        epoch = self.epoch
        while self.epoch == epoch:
            batch = self._next()
            if batch is None:
                return
            yield batch

    def _next(self) -> Batch | None:
        if self._closed:
            raise IngestError("the loader is closed", stage="loader", hint="Make a new one")
        at, run = self._at, self._run
        if at.chunk is None and run.plan.share.steps(run.plan.rows - at.position) == 0:
            self._turn_page()  # a resume left less than a global batch, and the tail is dropped
            return None
        if self._ended():
            return None
        try:
            run.hear()
            batch = self._take()
        except IngestError as error:
            run.fail(error)
            raise
        self._tally.add(batch, begins_epoch=at.position == 0)
        run.records.given(batch)
        if batch.ends_epoch:
            self._turn_page()
        else:
            self._at = _behind(batch)
        return batch

    def _take(self) -> Batch:
        made: tuple[Batch, Callable[[], None]] | None = self._start().get(self._watch)
        if made is None:
            raise IngestError("the feed ended before the epoch did", stage="feed", rank=self.rank)
        batch, arrive = made
        arrive()
        return batch

    def _watch(self, waited_s: float) -> None:
        """About once a second while the trainer waits."""
        self._run.hear()
        watch = self._run.feed.watch
        if waited_s >= self.spec.loader.timeout_s:
            raise watch.stuck(waited_s)
        if not self._tally.begun and waited_s >= READERS_START_S and int(waited_s) % 5 == 0:
            starved = watch.starved()
            if starved is not None:
                raise starved

    def _turn_page(self) -> None:
        self._at = Place(self.epoch + 1, 0)
        self._run.records.flush()
        if self._ended():
            self._run.leave()

    def _ended(self) -> bool:
        """Whether there is no epoch left."""
        return self._run.epochs is not None and self.epoch >= self._run.epochs

    def _start(self) -> Prefetcher:
        if self._prefetcher is None:
            run = self._run
            run.turn(self._at)
            make = BatchMaker(run.spec, self._convert, run.empty_lists, run.records, run.plan.order.lanes, run.landing)
            self._prefetcher = Prefetcher(run.feed, run.config.depth, make, self._tally.timings)
            self._holder.append(self._prefetcher)
        return self._prefetcher

    # -- position ------------------------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Start epoch `epoch` afresh at the next `iter`; what is ready for that very place is kept."""
        if epoch < 0:
            raise PlanError(f"epoch {epoch} is negative")
        self._seek(Place(epoch, 0))

    def state_dict(self, after: Batch | None = None) -> dict[str, Any]:
        """A small JSON-ready state: continue after the last batch handed out, or after the batch given."""
        self._run.records.flush()
        return self._run.saved(self._at if after is None else _behind(after))

    def load_state_dict(self, state: Mapping[str, Any], *, allow_changed_data: bool = False) -> None:
        """Continue where a state was saved, on any world and with any batch size.

        Args:
            state: what `state_dict` gave.
            allow_changed_data: at the start of an epoch, other data than it was saved on will do.

        Raises:
            StateError: the data, the order or the pixels have changed, or ranks differ; both sides are shown.
        """
        run = self._run
        place, plan = run.loaded(state, allow_changed_data=allow_changed_data)
        if plan != run.plan:
            self._stop_prefetch()
            run.configure(plan)
        run.records.seek(place.epoch, place.position)
        self._seek(place)

    def _seek(self, place: Place) -> None:
        if place != self._at:
            self._stop_prefetch()
            self._at = place

    # -- report and end ------------------------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """Throughput, waiting and verdict since the first batch; durations in seconds."""
        feed = self._run.feed
        return {
            "rank": self.rank,
            "world_size": self.world_size,
            **self._tally.report(feed.counters()),
            "ready_batches": self._prefetcher.occupancy() if self._prefetcher else 0,
            "loader_cpu_s": self._tally.timings.cpu_s + feed.submit_cpu_s,
            **self._run.report(),
        }

    def _stop_prefetch(self) -> None:
        if self._prefetcher is not None:
            self._prefetcher.stop(self._run.feed.interrupt)
            self._holder.clear()
            self._prefetcher = None

    def close(self) -> None:
        """End the rank's thread and actors. Safe to call again."""
        self._closed = True
        self._prefetcher = None
        self._finalizer()
        self._run.close()
        atexit.unregister(self._atexit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, IngestError):
            self._run.fail(error)
        elif isinstance(error, Exception):
            text = f"{type(error).__name__}: {error}"
            self._run.fail(StageError("the trainer failed", stage="trainer", rank=self.rank, cause=text))
        self.close()


def _behind(batch: Batch) -> Place:
    """Where a rank goes on that has taken a batch; in a chunk that lies on both sides of the batch's end."""
    if batch.ends_epoch:
        return Place(batch.epoch + 1, 0)
    around: Chunk | None = batch.chunk if batch.chunk is not None and batch.chunk.under_way(batch.after) else None
    return Place(batch.epoch, batch.after, around)


def _close(feed: RankFeed, prefetchers: list[Prefetcher]) -> None:
    """Kill the actors first: a thread that waits for them then ends at once."""
    feed.close()
    for prefetcher in prefetchers:
        prefetcher.stop()
    prefetchers.clear()
