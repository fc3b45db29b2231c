"""`ingest.Loader`: puts the parts together for one rank."""

from __future__ import annotations

import atexit
import os
import time
import uuid
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import ray

from ingest.engine import cluster
from ingest.engine.bulletin import Bulletin
from ingest.engine.hosts import find_manifests, open_catalog, sized
from ingest.engine.rank_feed import RankFeed
from ingest.engine.trial import try_functions
from ingest.errors import IngestError, PlanError, StageError
from ingest.loader import state as states
from ingest.loader.batch import Batch
from ingest.loader.convert import converter
from ingest.loader.prefetch import Prefetcher
from ingest.loader.ragged import empty_lists
from ingest.manifest.model import Manifest, refuse_damage
from ingest.metrics.process import peak_rss_bytes
from ingest.plan.schedule import Chunk, Share
from ingest.plan.sources import described, epoch_rows, mix_of
from ingest.read.lengths import check_column
from ingest.session_batches import BatchMaker
from ingest.session_choices import Memory, call_batches, memory_of
from ingest.session_feed import feed_config, threads_of
from ingest.session_plan import Plan, facts_of, plan_of
from ingest.session_rank import whoami
from ingest.session_records import Records
from ingest.session_tally import Tally
from ingest.spec import Spec, fingerprint

CACHE_DIR = Path.home() / ".cache" / "ingest"
READERS_START_S = 30.0  # for the first read to get its CPUs
_PROCESS = uuid.uuid4().hex  # names this process to the others


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
        self.spec = Spec.load(spec)
        self.rank, self.world_size = whoami(rank, world_size)
        if self.spec.batch.target is None:
            self.spec.batch.per_rank(self.world_size)  # refused before anything is started
        self._convert = converter(self.spec.loader.framework)
        cluster.ensure()
        have = cluster.resources()
        cluster.check(self.spec, have, self.world_size)
        self._cpus, self._epochs = have.cpus, epochs
        memory = memory_of(self.spec, have.object_store_bytes, self.world_size)
        self._gpu = cluster.uses_gpu(self.spec, have, self.world_size)
        try_functions(self.spec.augment, gpu=self._gpu)
        listing = (
            ray.get_runtime_context().get_job_id(),
            None if cache_dir is None else Path(cache_dir),
            min(self.spec.read.cpus, have.cpus),
            _PROCESS,
        )
        opened = [open_catalog(source, *listing) for source in self.spec.inputs]  # first, since all else waits for it
        mixed, found = self.spec.weights is not None, None
        if self.spec.batch.target is not None:
            found = find_manifests(self.spec.inputs, *listing, opened=opened, mixed=mixed)
            self.spec = sized(self.spec, found)
        batch = self.spec.batch
        share = Share(self.rank, self.world_size, batch.per_rank(self.world_size), batch.last)
        self._feed = self._start_actors(share)
        try:
            self._found = found or find_manifests(self.spec.inputs, *listing, opened=opened, mixed=mixed)
            del found
            self._prepare(share, memory)
            self._bulletin = self._enter(listing)
            self._records = Records(
                self.spec, self.manifest, self._facts, share, self._bulletin, cache_dir, self._plan.rows
            )
        except BaseException:
            self._feed.close()
            raise
        self._epoch, self._position = 0, 0
        self._chunk: Chunk | None = None  # that the position lies in, where rows are sorted by length
        self._tally = Tally(began)
        self._prefetcher: Prefetcher | None = None
        self._closed = False
        # Actors must end before Ray's own shutdown does, and when the loader is forgotten.
        self._holder: list[Prefetcher] = []
        self._finalizer = weakref.finalize(self, _close, self._feed, self._holder)
        self._atexit = atexit.register(self._finalizer)

    # -- set-up --------------------------------------------------------------------------------------------------------

    def _start_actors(self, share: Share) -> RankFeed:
        return RankFeed(
            self.spec,
            batch_rows=share.batch,
            threads=threads_of(self.spec, self.world_size),
            gpu=self._gpu,
            rank=self.rank,
            call_batches=call_batches(self.spec, share.batch),
        )

    def _prepare(self, share: Share, memory: Memory) -> None:
        """Settle what follows from the data, and tell the feeder."""
        spec, manifest = self.spec, self.manifest
        if spec.errors.on_bad_sample == "raise":
            refuse_damage(manifest)
        if spec.batch.bucket_by is not None:
            check_column(manifest.schema, spec.batch.bucket_by.column)
        plan = plan_of(spec, manifest, share, memory, cluster.resources().object_store_bytes)
        self._empty_lists = empty_lists(manifest.schema, spec.batch.ragged)
        self._configure(plan)

    def _configure(self, plan: Plan) -> None:
        self._plan = plan
        self._config = feed_config(self.spec, plan, self.manifest.rows, self._cpus, self._epochs)
        self._feed.configure(self.manifest, self._found.ref, self._config)
        self._facts = facts_of(self.spec, self.manifest, plan, gpu=self._gpu)

    def _enter(self, listing: tuple[Any, ...]) -> Bulletin:
        """Make this rank known to the others."""
        stream = fingerprint({"spec": self.spec.model_dump(mode="json"), "world_size": self.world_size})
        # The handle is the bulletin's alone, which must let it go when the catalog dies.
        catalog, self._found = self._found.catalog, replace(self._found, catalog=None)
        bulletin = Bulletin(
            catalog,
            lambda: open_catalog(self.spec.inputs[0], *listing)[0],
            stream,
            self.rank,
            self.world_size,
            _PROCESS,
        )
        del catalog
        bulletin.enter(self._feed.feeder)
        self._feed.on_feeder = bulletin.change_feeder
        return bulletin

    # -- iteration -----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Steps in an epoch."""
        return self._plan.share.steps(self._plan.rows)

    @property
    def manifest(self) -> Manifest:
        """What there is."""
        return self._found.manifest

    @property
    def epoch(self) -> int:
        """The epoch that `iter` goes on with."""
        return self._epoch

    @property
    def step(self) -> int:
        """Steps of the current epoch taken so far, by this run's global batch."""
        return self._position // self._plan.share.global_batch

    def __iter__(self) -> Iterator[Batch]:
        """The rest of the current epoch."""
        epoch = self._epoch
        while self._epoch == epoch:
            batch = self._next()
            if batch is None:
                return
            yield batch

    def _next(self) -> Batch | None:
        if self._closed:
            raise IngestError("the loader is closed", stage="loader", hint="Make a new one")
        if self._chunk is None and self._plan.share.steps(self._facts.rows - self._position) == 0:
            self._turn_page()  # a resume left less than a global batch, and the tail is dropped
            return None
        if self._epochs is not None and self._epoch >= self._epochs:
            return None
        try:
            self._hear()
            batch = self._take()
        except IngestError as error:
            self._bulletin.fail(error)
            raise
        self._tally.add(batch, begins_epoch=self._position == 0)
        self._records.given(batch)
        if batch.ends_epoch:
            self._turn_page()
        else:
            self._position, self._chunk = batch.after, _around(batch)
        return batch

    def _take(self) -> Batch:
        batch: Batch | None = self._start().get(self._watch)
        if batch is None:
            raise IngestError("the feed ended before the epoch did", stage="feed", rank=self.rank)
        return batch

    def _hear(self) -> None:
        """Raise the failure of another rank, if there is one."""
        failure = self._bulletin.check()
        if failure is not None:
            raise failure

    def _watch(self, waited_s: float) -> None:
        """About once a second while the trainer waits."""
        self._hear()
        if waited_s >= self.spec.loader.timeout_s:
            raise self._feed.watch.stuck(waited_s)
        if not self._tally.begun and waited_s >= READERS_START_S and int(waited_s) % 5 == 0:
            starved = self._feed.watch.starved()
            if starved is not None:
                raise starved

    def _turn_page(self) -> None:
        self._epoch, self._position, self._chunk = self._epoch + 1, 0, None
        self._records.flush()
        if self._epochs is not None and self._epoch >= self._epochs:
            self._bulletin.leave()

    def _start(self) -> Prefetcher:
        if self._prefetcher is None:
            self._bulletin.compare("start from", self._place(self._epoch, self._position, self._chunk))
            self._records.turn(self._plan.order, self._plan.mix, self._epoch, self._position, self._chunk)
            self._feed.start(self._epoch, self._position, self._chunk)
            make = BatchMaker(self.spec, self._convert, self._empty_lists, self._records, self._plan.order.lanes)
            self._prefetcher = Prefetcher(self._feed, self._config.depth, make, self._tally.timings)
            self._holder.append(self._prefetcher)
        return self._prefetcher

    # -- position ------------------------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Start epoch `epoch` afresh at the next `iter`; what is ready for that very place is kept."""
        if epoch < 0:
            raise PlanError(f"epoch {epoch} is negative")
        self._seek(epoch, 0)

    def state_dict(self, after: Batch | None = None) -> dict[str, Any]:
        """A small JSON-ready state: continue after the last batch handed out, or after the batch given."""
        self._records.flush()
        if after is None:
            return self._save(self._epoch, self._position, self._chunk)
        if after.ends_epoch:
            return self._save(after.epoch + 1, 0, None)
        return self._save(after.epoch, after.after, _around(after))

    def _save(self, epoch: int, position: int, chunk: Chunk | None) -> dict[str, Any]:
        if self._config.bucketing is not None and chunk is None:
            chunk = Chunk(position, position, self._plan.share.global_batch)
        return states.save(self._facts, epoch, position, chunk)

    def load_state_dict(self, state: Mapping[str, Any], *, allow_changed_data: bool = False) -> None:
        """Continue where a state was saved, on any world and with any batch size.

        Args:
            state: what `state_dict` gave.
            allow_changed_data: at the start of an epoch, other data than it was saved on will do.

        Raises:
            StateError: the data, the order or the pixels have changed, or ranks differ; both sides are shown.
        """
        asked = {"lanes": self.spec.order.lanes, "interleave": self.spec.order.interleave}
        plan, facts = self._plan, self._facts
        if self.spec.mix.stop == "steps" and isinstance(state.get("rows"), int):
            facts = replace(facts, rows=state["rows"])  # an epoch keeps its rows where a global batch has others now
        epoch, position, lanes, interleave = states.check(state, facts, asked, allow_changed_data=allow_changed_data)
        chunk = states.chunk(state, position, facts.rows) if self._config.bucketing is not None else None
        self._bulletin.compare("load", {"epoch": epoch, "position": position, "lanes": lanes, "interleave": interleave})
        if facts.rows != plan.rows:
            mix = mix_of(self.spec, self.manifest, plan.share.global_batch, facts.rows)
            plan = replace(plan, mix=mix, rows=epoch_rows(self.manifest, mix))
        plan = replace(plan, order=replace(plan.order, lanes=lanes, interleave=interleave))
        if (plan.order, plan.mix) != (self._plan.order, self._plan.mix):
            self._stop_prefetch()
            self._configure(plan)
        self._records.seek(epoch, position)
        self._seek(epoch, position, chunk)

    def _place(self, epoch: int, position: int, chunk: Chunk | None) -> dict[str, Any]:
        """What all ranks must agree on before they take a batch."""
        order, share = self._plan.order, self._plan.share
        return {
            "epoch": epoch,
            "position": position,
            "chunk": None if chunk is None else [chunk.start, chunk.end, chunk.batch],
            "lanes": order.lanes,
            "interleave": order.interleave,
            "batch": share.batch,
            "digest": self._facts.digest,
        }

    def _seek(self, epoch: int, position: int, chunk: Chunk | None = None) -> None:
        if (epoch, position, chunk) != (self._epoch, self._position, self._chunk):
            self._stop_prefetch()
            self._epoch, self._position, self._chunk = epoch, position, chunk

    # -- report and end ------------------------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """Throughput, waiting and verdict since the first batch; durations in seconds."""
        return {
            "rank": self.rank,
            "world_size": self.world_size,
            **self._tally.report(self._feed.counters()),
            "ready_batches": self._prefetcher.occupancy() if self._prefetcher else 0,
            "loader_cpu_s": self._tally.timings.cpu_s + self._feed.submit_cpu_s,
            "peak_rss_bytes": peak_rss_bytes() + self._feed.peak_rss_bytes(),
            "manifest_s": self._found.seconds,
            "quarantined": self._records.quarantined,
            "quarantine": self._records.quarantine_url,
            "notes": self._feed.notes(),
            "batch_size": self._plan.share.batch,
            "lanes": self._plan.order.lanes,
            "interleave": self._plan.order.interleave,
            **({"sources": described(self.spec, self.manifest, self._plan.mix)} if self._plan.mix else {}),
            "index_storage": self._found.storage,
        }

    def _stop_prefetch(self) -> None:
        if self._prefetcher is not None:
            self._prefetcher.stop()
            self._holder.clear()
            self._prefetcher = None

    def close(self) -> None:
        """End the rank's thread and actors. Safe to call again."""
        self._closed = True
        self._prefetcher = None
        self._finalizer()
        self._records.flush(last=True)
        self._bulletin.close()
        self._found = replace(self._found, others=())  # the next loader of this process lists anew
        atexit.unregister(self._atexit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, IngestError):
            self._bulletin.fail(error)
        elif isinstance(error, Exception):
            text = f"{type(error).__name__}: {error}"
            self._bulletin.fail(StageError("the trainer failed", stage="trainer", rank=self.rank, cause=text))
        self.close()


def _around(batch: Batch) -> Chunk | None:
    """The chunk that lies on both sides of a batch's end."""
    return batch.chunk if batch.chunk is not None and batch.chunk.under_way(batch.after) else None


def _close(feed: RankFeed, prefetchers: list[Prefetcher]) -> None:
    """Kill the actors first: a thread that waits for them then ends at once."""
    feed.close()
    for prefetcher in prefetchers:
        prefetcher.stop()
    prefetchers.clear()
