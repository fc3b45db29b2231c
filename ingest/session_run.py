"""One rank's part in a run: connected, its actors started, its data listed and planned, known to the other ranks."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import ray

from ingest.engine import cluster
from ingest.engine.bulletin import Bulletin
from ingest.engine.hosts import find_manifests, open_catalog, sized
from ingest.engine.rank_feed import RankFeed
from ingest.engine.trial import try_functions
from ingest.errors import IngestError
from ingest.loader import state as states
from ingest.loader.landing import landing_of
from ingest.loader.ragged import empty_lists
from ingest.manifest.model import Manifest, refuse_damage
from ingest.metrics.process import peak_rss_bytes
from ingest.plan.schedule import Chunk, Share
from ingest.plan.sources import described, epoch_rows, mix_of
from ingest.read.lengths import check_column
from ingest.session_choices import Memory, call_batches, memory_of
from ingest.session_feed import feed_config, threads_of
from ingest.session_plan import Plan, facts_of, plan_of
from ingest.session_records import Records
from ingest.spec import Spec, fingerprint

_PROCESS = uuid.uuid4().hex  # names this process to the others


class Place(NamedTuple):
    """Where a rank goes on, the same on all of them.

    Attributes:
        epoch: the epoch.
        position: rows of it consumed.
        chunk: that the position lies in, where rows are sorted by length.
    """

    epoch: int
    position: int
    chunk: Chunk | None = None


class RankRun:
    """Starts what the rank needs and refuses what cannot be, before any batch.

    Args:
        spec: what is run.
        rank: of data parallelism.
        world_size: data-parallel ranks.
        epochs: the epoch after the last one; None when there is no last.
        cache_dir: where manifests are kept between runs; None keeps none.

    Attributes:
        spec: with the rows of a batch, where they follow from the data.
        plan: in force.
        config: of the feeder, by that plan.
        facts: what a state is compared with.
        feed: where batches come from.
        records: what is written down beside them.
        empty_lists: of each list column, an array without an item.
        landing: where images land that are made on this process's own GPU; None where they go through host memory.

    Raises:
        SourceError, SchemaError, PlanError, ClusterError: what and where.
    """

    def __init__(
        self, spec: Spec, rank: int, world_size: int, epochs: int | None, cache_dir: str | os.PathLike[str] | None
    ) -> None:
        if spec.batch.target is None:
            spec.batch.per_rank(world_size)  # refused before anything is started
        cluster.ensure()
        have = cluster.resources()
        cluster.check(spec, have, world_size)
        self.rank, self.world_size, self.epochs, self._cpus = rank, world_size, epochs, have.cpus
        memory = memory_of(spec, have.object_store_bytes, world_size)
        self._gpu = cluster.uses_gpu(spec, have, world_size)
        own = self._gpu and spec.augment.placement == "trainer"
        self.landing = landing_of(spec.loader.framework) if own else None
        try_functions(spec.augment, gpu=self._gpu)
        folder = None if cache_dir is None else Path(cache_dir)
        listing = (ray.get_runtime_context().get_job_id(), folder, min(spec.read.cpus, have.cpus), _PROCESS)
        opened = [open_catalog(source, *listing) for source in spec.inputs]  # first, since all else waits for it
        mixed, found = spec.weights is not None, None
        if spec.batch.target is not None:
            found = find_manifests(spec.inputs, *listing, opened=opened, mixed=mixed)
            spec = sized(spec, found)
        self.spec = spec
        share = Share(rank, world_size, spec.batch.per_rank(world_size), spec.batch.last)
        self.feed = self._start_actors(share)
        try:
            self._found = found or find_manifests(spec.inputs, *listing, opened=opened, mixed=mixed)
            del found
            self._prepare(share, memory)
            self._bulletin = self._enter(listing)
            self.records = Records(spec, self.manifest, self.facts, share, self._bulletin, cache_dir, self.plan.rows)
        except BaseException:
            self.feed.close()
            raise

    @property
    def manifest(self) -> Manifest:
        """What there is."""
        return self._found.manifest

    # -- set-up --------------------------------------------------------------------------------------------------------

    def _start_actors(self, share: Share) -> RankFeed:
        return RankFeed(
            self.spec,
            batch_rows=share.batch,
            threads=threads_of(self.spec, self.world_size),
            gpu=self._gpu,
            rank=self.rank,
            call_batches=call_batches(self.spec, share.batch),
            landing=self.landing,
        )

    def _prepare(self, share: Share, memory: Memory) -> None:
        """Settle what follows from the data, and tell the feeder."""
        spec, manifest = self.spec, self.manifest
        if spec.errors.on_bad_sample == "raise":
            refuse_damage(manifest)
        if spec.batch.bucket_by is not None:
            check_column(manifest.schema, spec.batch.bucket_by.column)
        plan = plan_of(spec, manifest, share, memory, cluster.resources().object_store_bytes)
        self.empty_lists = empty_lists(manifest.schema, spec.batch.ragged)
        self.configure(plan)

    def configure(self, plan: Plan) -> None:
        """Go by a plan from the next start on."""
        self.plan = plan
        self.config = feed_config(self.spec, plan, self.manifest.rows, self._cpus, self.epochs)
        self.feed.configure(self.manifest, self._found.ref, self.config)
        self.facts = facts_of(self.spec, self.manifest, plan, gpu=self._gpu)

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
        bulletin.enter(self.feed.feeder)
        self.feed.on_feeder = bulletin.change_feeder
        return bulletin

    # -- position ------------------------------------------------------------------------------------------------------

    def turn(self, place: Place) -> None:
        """Feed from a place on.

        Raises:
            StateError: another rank goes on elsewhere.
        """
        plan = self.plan
        chunk = place.chunk
        agreed = {
            "epoch": place.epoch,
            "position": place.position,
            "chunk": None if chunk is None else [chunk.start, chunk.end, chunk.batch],
            "lanes": plan.order.lanes,
            "interleave": plan.order.interleave,
            "batch": plan.share.batch,
            "digest": self.facts.digest,
        }
        self._bulletin.compare("start from", agreed)
        self.records.turn(plan.order, plan.mix, *place)
        self.feed.start(*place)

    def saved(self, place: Place) -> dict[str, Any]:
        """The state of a place."""
        epoch, position, chunk = place
        if self.config.bucketing is not None and chunk is None:
            chunk = Chunk(position, position, self.plan.share.global_batch)
        return states.save(self.facts, epoch, position, chunk)

    def loaded(self, state: Mapping[str, Any], *, allow_changed_data: bool) -> tuple[Place, Plan]:
        """The place that a state is of, and the plan to go on by.

        Raises:
            StateError: see `Loader.load_state_dict`.
        """
        order, plan, facts = self.spec.order, self.plan, self.facts
        states.check_form(state)
        if self.spec.mix.stop == "steps":
            facts = replace(facts, rows=state["rows"])  # an epoch keeps its rows where a global batch has others now
        asked = {"lanes": order.lanes, "interleave": order.interleave}
        epoch, position, lanes, interleave = states.check(state, facts, asked, allow_changed_data=allow_changed_data)
        chunk = states.chunk(state, position, facts.rows) if self.config.bucketing is not None else None
        self._bulletin.compare("load", {"epoch": epoch, "position": position, "lanes": lanes, "interleave": interleave})
        if facts.rows != plan.rows:
            mix = mix_of(self.spec, self.manifest, plan.share.global_batch, facts.rows)
            plan = replace(plan, mix=mix, rows=epoch_rows(self.manifest, mix))
        plan = replace(plan, order=replace(plan.order, lanes=lanes, interleave=interleave))
        return Place(epoch, position, chunk), plan

    # -- others --------------------------------------------------------------------------------------------------------

    def hear(self) -> None:
        """Raise the failure of another rank, if there is one."""
        failure = self._bulletin.check()
        if failure is not None:
            raise failure

    def fail(self, error: IngestError) -> None:
        """Tell the others that this rank failed."""
        self._bulletin.fail(error)

    def leave(self) -> None:
        """Tell the others that this rank has all its batches."""
        self._bulletin.leave()

    def report(self) -> dict[str, Any]:
        """What is known without its batches; durations in seconds."""
        plan = self.plan
        return {
            "peak_rss_bytes": peak_rss_bytes() + self.feed.peak_rss_bytes(),
            "manifest_s": self._found.seconds,
            "quarantined": self.records.quarantined,
            "quarantine": self.records.quarantine_url,
            "notes": self.feed.notes(),
            "batch_size": plan.share.batch,
            "lanes": plan.order.lanes,
            "interleave": plan.order.interleave,
            **({"sources": described(self.spec, self.manifest, plan.mix)} if plan.mix else {}),
            "index_storage": self._found.storage,
        }

    def close(self) -> None:
        """Write what is not written yet, once the feed is closed, and let the others go."""
        self.records.flush(last=True)
        self._bulletin.close()
        self._found = replace(self._found, others=())  # the next loader of this process lists anew
