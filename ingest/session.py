"""`ingest.Loader`: puts the parts together for one rank."""

from __future__ import annotations

import atexit
import math
import os
import sys
import time
import uuid
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import ray

from ingest.engine import cluster
from ingest.engine.bulletin import Bulletin
from ingest.engine.hosts import Found, find_manifests, open_catalog, sized
from ingest.engine.jobs import BatchInfo, FeedConfig
from ingest.engine.rank_feed import RankFeed
from ingest.engine.replace import BAD, Bad
from ingest.engine.trial import try_functions
from ingest.errors import IngestError, PlanError, StageError
from ingest.loader import state as states
from ingest.loader.batch import Batch
from ingest.loader.convert import converter
from ingest.loader.prefetch import Prefetcher
from ingest.loader.ragged import empty_lists, shape
from ingest.manifest.model import Manifest, refuse_damage
from ingest.metrics.process import peak_rss_bytes
from ingest.plan.layout import Order
from ingest.plan.mixture import Mix
from ingest.plan.reads import UnitSizes
from ingest.plan.resolve import check_share, resolve
from ingest.plan.schedule import Chunk, Share
from ingest.plan.sources import described, epoch_rows, mix_of, row_bytes
from ingest.read.lengths import check_column
from ingest.read.windows import ReadOptions
from ingest.session_choices import (
    READ_AHEAD,
    arranged,
    batch_row_bytes,
    bucketing_of,
    call_batches,
    check_memory,
    chunk_bytes,
    decoded_bytes,
    decoding_of,
    memory_of,
    prefetch_depth,
    wanted,
)
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
        self.rank, self.world_size = _whoami(rank, world_size)
        if self.spec.batch.target is None:
            self.spec.batch.per_rank(self.world_size)  # refused before anything is started
        self._convert = converter(self.spec.loader.framework)
        cluster.ensure()
        have = cluster.resources()
        cluster.check(self.spec, have, self.world_size)
        self._epochs = epochs
        self._memory = memory_of(self.spec, have.object_store_bytes, self.world_size)
        self._gpu = gpu = cluster.uses_gpu(self.spec, have, self.world_size)
        try_functions(self.spec.augment, gpu=gpu)
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
        self._share = share = Share(self.rank, self.world_size, batch.per_rank(self.world_size), batch.last)
        self._feed = RankFeed(
            self.spec,
            batch_rows=share.batch,
            threads=self._threads(),
            gpu=gpu,
            rank=self.rank,
            call_batches=call_batches(self.spec, share.batch),
        )
        try:
            found = found or find_manifests(self.spec.inputs, *listing, opened=opened, mixed=mixed)
            self._prepare(found, have.cpus)
            del found
            self._bulletin = self._enter(listing)
            self._records = Records(self.spec, self.manifest, self._facts, share, self._bulletin, cache_dir, self._rows)
        except BaseException:
            self._feed.close()
            raise
        self._epoch, self._position = 0, 0
        self._chunk: Chunk | None = None  # that the position lies in, where rows are sorted by length
        self._tally = Tally(began)
        self._prefetcher: Prefetcher | None = None
        self._closed = False
        # Actors must end before Ray's own shutdown does, and when the loader is forgotten.
        self._finalizer = weakref.finalize(self, _close, self._feed, self._holder)
        self._atexit = atexit.register(self._finalizer)

    # -- set-up --------------------------------------------------------------------------------------------------------

    def _threads(self) -> int:
        """A node's cores, over the augmentation actors that are likely to share it."""
        if self.spec.augment.threads != "auto":
            return self.spec.augment.threads
        nodes = max(1, sum(1 for node in ray.nodes() if node["Alive"]))
        here = math.ceil(self.world_size / nodes) * self.spec.augment.actors_per_trainer
        return max(1, int(cluster.node_cpus()) // here)

    def _prepare(self, found: Found, cpus: float) -> None:
        spec, manifest = self.spec, found.manifest
        if spec.errors.on_bad_sample == "raise":
            refuse_damage(manifest)
        if spec.batch.bucket_by is not None:
            check_column(manifest.schema, spec.batch.bucket_by.column)
        self._found = found
        self._sizes = UnitSizes(manifest.units.bytes, manifest.units.memory_bytes)
        mix = mix_of(spec, manifest, self._share.global_batch)
        unit_rows = manifest.units.rows
        order = resolve(wanted(spec), unit_rows, self._sizes, self.world_size, self._memory.blocks_bytes, mix)
        self._rows, self._mean_bytes = epoch_rows(manifest, mix), row_bytes(manifest, mix)
        self._row_bytes = batch_row_bytes(spec, self._mean_bytes)
        check_share(self._share, self._rows, self._row_bytes, cluster.resources().object_store_bytes)
        check_memory(spec, self._memory, self._share.batch * self._row_bytes, int(manifest.units.memory_bytes.max()))
        self._empty_lists = empty_lists(manifest.schema, spec.batch.ragged)
        self._cpus = cpus
        self._holder: list[Prefetcher] = []
        self._configure(order, mix)

    def _configure(self, order: Order, mix: Mix | None) -> None:
        spec, manifest = self.spec, self._found.manifest
        auto_readers = cluster.readers_for(self._cpus, spec.read.cpus, self.world_size)
        memory_bytes = self._memory.blocks_bytes
        window_bytes = min(spec.order.window_bytes, (memory_bytes or spec.order.window_bytes * 2) // 2)
        bucketing, decoding, budget_bytes = bucketing_of(spec), decoding_of(spec, self._mean_bytes), 0
        if bucketing is not None:
            each = self._mean_bytes + (0 if decoding is None else decoding.row_bytes)
            budget_bytes = chunk_bytes(bucketing, order, self._share, each, memory_bytes)
        if decoding is not None:
            rows = min(window_bytes // max(1, self._mean_bytes), manifest.rows)
            each = decoding.row_bytes + self._mean_bytes
            window_bytes = decoded_bytes(rows, each, self.world_size, memory_bytes)
        budget_bytes = min(budget_bytes + int(window_bytes * READ_AHEAD), memory_bytes or sys.maxsize)
        self._order, self._mix = order, mix
        self._rows = epoch_rows(manifest, mix)
        self._config = FeedConfig(
            share=self._share,
            order=order,
            read=tuple(ReadOptions.of(spec, number) for number in range(len(spec.inputs))),
            readers=auto_readers if spec.read.readers == "auto" else spec.read.readers,
            first_readers=max(1, int(self._cpus / spec.read.cpus) // 2),
            grows=spec.read.readers == "auto",
            place=spec.read.place,
            budget_bytes=budget_bytes,
            arranged=arranged(spec, self._mean_bytes),
            epochs=self._epochs,
            depth=prefetch_depth(spec, self._share.batch, self._row_bytes, self._memory.batches_bytes),
            bucketing=bucketing,
            mix=mix,
            decoding=decoding,
        )
        self._feed.configure(manifest, self._found.ref, self._config)
        self._facts = states.Facts(
            digest=manifest.digest,
            order=spec.order_facts(),
            pixels={**spec.pixel_facts(), **manifest.content_facts()},
            lanes=order.lanes,
            interleave=order.interleave,
            rows=self._rows,
            backend=states.backend(gpu=self._gpu) if spec.augment.pipeline else {},
        )

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
        return self._share.steps(self._rows)

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
        return self._position // self._share.global_batch

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
        if self._chunk is None and self._share.steps(self._facts.rows - self._position) == 0:
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
            self._records.turn(self._order, self._mix, self._epoch, self._position, self._chunk)
            self._feed.start(self._epoch, self._position, self._chunk)
            self._prefetcher = Prefetcher(self._feed, self._config.depth, self._finish, self._tally.timings)
            self._holder.append(self._prefetcher)
        return self._prefetcher

    def _finish(self, fetched: tuple[BatchInfo, dict[str, Any]]) -> Batch:
        """In the prefetching thread: the arrays of a batch, with ids, in the trainer's framework."""
        info, arrays = fetched
        bad: list[Bad] = arrays.get(BAD, [])
        arrays = {name: array for name, array in arrays.items() if name != BAD}
        arrays = shape(arrays, self.spec.batch.ragged, self._empty_lists)
        counted = [each for each in bad if each.slot < info.valid_rows]
        if counted:
            self._records.bad(info, counted)
        if self._share.last != "drop" or self._records.replaces or self._config.bucketing is not None:
            valid = np.arange(len(arrays["sample_id"])) < info.valid_rows
            valid[[each.slot for each in bad]] = False
            arrays["valid"] = valid
        ids = arrays["sample_id"]
        if bad:
            ids = ids.copy()
            ids[[each.slot for each in bad]] = [each.sample_id for each in bad]
        return Batch.make(
            self._convert(arrays),
            epoch=info.epoch,
            after=info.after,
            ends_epoch=info.ends_epoch,
            valid_rows=info.valid_rows - len(counted),
            runs=info.runs,
            lanes=self._order.lanes,
            fill=info.fill,
            ids=ids,
            chunk=info.chunk,
            left=info.left,
            replaced={each.slot: each.sample_id for each in counted},
        )

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
            chunk = Chunk(position, position, self._share.global_batch)
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
        facts, mix = self._facts, self._mix
        if self.spec.mix.stop == "steps" and isinstance(state.get("rows"), int):
            facts = replace(facts, rows=state["rows"])  # an epoch keeps its rows where a global batch has others now
        epoch, position, lanes, interleave = states.check(state, facts, asked, allow_changed_data=allow_changed_data)
        chunk = states.chunk(state, position, facts.rows) if self._config.bucketing is not None else None
        self._bulletin.compare("load", {"epoch": epoch, "position": position, "lanes": lanes, "interleave": interleave})
        if facts.rows != self._rows:
            mix = mix_of(self.spec, self._found.manifest, self._share.global_batch, facts.rows)
        if (lanes, interleave, mix) != (self._order.lanes, self._order.interleave, self._mix):
            self._stop_prefetch()
            self._configure(Order(self._order.seed, self._order.shuffle, lanes, interleave), mix)
        self._records.seek(epoch, position)
        self._seek(epoch, position, chunk)

    def _place(self, epoch: int, position: int, chunk: Chunk | None) -> dict[str, Any]:
        """What all ranks must agree on before they take a batch."""
        order, share = self._order, self._share
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
            "batch_size": self._share.batch,
            "lanes": self._order.lanes,
            "interleave": self._order.interleave,
            **({"sources": described(self.spec, self._found.manifest, self._mix)} if self._mix else {}),
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


def _whoami(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """(rank, world size), as given or as the surrounding framework says.

    Raises:
        PlanError: only one of them was given.
    """
    if (rank is None) != (world_size is None):
        raise PlanError(f"rank is {rank} and world_size is {world_size}", hint="Give both, or neither")
    if rank is not None and world_size is not None:
        return rank, world_size
    if "ray.train" in sys.modules:
        context = sys.modules["ray.train"].get_context
        try:
            return int(context().get_world_rank()), int(context().get_world_size())
        except RuntimeError:
            pass  # not inside a train function
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    return 0, 1
