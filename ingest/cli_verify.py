"""`verify`: the proof that an epoch delivers every sample once, taken from what the ranks really received."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingest.cli_plan import find
from ingest.cli_trainers import Trainers
from ingest.engine.hosts import sized
from ingest.errors import PlanError
from ingest.loader.batch import Batch
from ingest.manifest.model import Manifest
from ingest.plan.layout import Order
from ingest.plan.mixture import Mix, MixtureLayout
from ingest.plan.schedule import Share
from ingest.plan.sources import described, epoch_rows, mix_of
from ingest.session import Loader
from ingest.spec import Spec

_MASK = (1 << 64) - 1
_NOT_CONTENT = ("sample_id", "valid")


@dataclass(frozen=True)
class Resume:
    """Leave an epoch after some steps and go on with another world and batch size."""

    at_step: int
    world_size: int
    batch_size: int | None


@dataclass(frozen=True)
class Seen:
    """What one rank received.

    Attributes:
        steps: batches.
        ids, positions: int64 (rows,), of the valid rows.
        invalid: rows that only fill up.
        content: the sum of the rows' digests, modulo 2^64.
        state: of the loader afterwards.
        bad: id: position, of samples that were replaced since their content is bad.
    """

    steps: int
    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    invalid: int
    content: int
    state: dict[str, Any]
    bad: dict[int, int] = field(default_factory=dict)


class Checker:
    """One rank that takes an epoch, or a part of it, and remembers who came. Runs as a Ray actor.

    Args:
        rank, spec, world_size, cache_dir: the loader's.
    """

    def __init__(self, rank: int, spec: Spec, world_size: int, cache_dir: Path | None) -> None:
        self._rank, self._spec, self._world_size, self._cache_dir = rank, row_by_row(spec), world_size, cache_dir

    def check(self, epoch: int, steps: int | None, state: dict[str, Any] | None, positions: int | None) -> Seen:
        """Take the rest of an epoch, from a state where there is one, or only its next `steps` steps.

        Args:
            epoch: where to begin without a state.
            steps: leave after so many.
            state: of a loader.
            positions: digest the content of rows at earlier positions only.
        """
        ids, places, taken, invalid, content = [], [], 0, 0, 0
        bad: dict[int, int] = {}
        with Loader(self._spec, self._rank, self._world_size, epochs=epoch + 1, cache_dir=self._cache_dir) as loader:
            if state is not None:
                loader.load_state_dict(state)
            else:
                loader.set_epoch(epoch)
            for batch in loader:
                valid = np.setdiff1d(np.arange(batch.valid_rows + len(batch.replaced)), list(batch.replaced))
                ids.append(np.asarray(batch["sample_id"])[valid].astype(np.int64))
                places.append(np.array(batch.positions[valid], np.int64))
                digested = valid if positions is None else valid[places[-1] < positions]
                content += sum(row_digests(batch, digested))
                bad |= {sample: int(batch.positions[row]) for row, sample in batch.replaced.items()}
                invalid += len(batch.positions) - len(valid) - len(batch.replaced)
                taken += 1
                if taken == steps:
                    break
            none = np.zeros(0, np.int64)
            return Seen(
                taken,
                np.concatenate([none, *ids]),
                np.concatenate([none, *places]),
                invalid,
                content & _MASK,
                loader.state_dict(),
                bad,
            )


def row_by_row(spec: Spec) -> Spec:
    """The spec with lists as an array a row: offsets and padding tell of a whole batch, and a digest is of one row."""
    return spec.model_copy(update={"batch": spec.batch.model_copy(update={"ragged": "arrays"})})


def row_digests(batch: Batch, rows: NDArray[np.int64]) -> Iterator[int]:
    """For each of the rows, 64 bits of its sample id and all its outputs: names, types, shapes and bytes."""
    columns = [(name.encode(), np.asarray(batch[name])) for name in sorted(batch) if name not in _NOT_CONTENT]
    ids = np.asarray(batch["sample_id"])
    for row in rows.tolist():
        digest = hashlib.blake2b(int(ids[row]).to_bytes(8, "little"), digest_size=8)
        for name, column in columns:
            digest.update(name)
            for part in _bytes_of(column[row]):
                digest.update(part)
        yield int.from_bytes(digest.digest(), "little")


def _bytes_of(value: Any) -> Iterator[bytes]:
    """A value as type, size and bytes, so that no two values look alike."""
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.ascontiguousarray(value)
        yield f"|{array.dtype.str}{np.shape(value)}|".encode()
        if array.dtype == object:
            for item in array.ravel():
                yield from _bytes_of(item)
        else:
            yield array.tobytes()
        return
    data = value if isinstance(value, bytes) else repr(value).encode()
    yield f"|{type(value).__name__}{len(data)}|".encode()
    yield data


def verify(
    spec: Spec,
    world_size: int,
    *,
    cache_dir: Path | None,
    epoch: int = 0,
    positions: int | None = None,
    resume: Resume | None = None,
) -> dict[str, Any]:
    """Consume one epoch through all ranks and compare what came with what there is.

    Args:
        spec: what to consume.
        world_size: ranks.
        cache_dir: of manifests.
        epoch: which.
        positions: limit the digests to the first so many rows of the epoch.
        resume: leave in mid-epoch and go on elsewhere.

    Returns:
        See `compare`.

    Raises:
        PlanError: there is no such step to resume at.
        IngestError: of the first rank that fails.
    """
    began = time.perf_counter()
    found = find(spec, cache_dir)
    spec, manifest = sized(spec, found), found.manifest
    mix = mix_of(spec, manifest, spec.batch.per_rank(world_size) * world_size)
    rows, start, state = epoch_rows(manifest, mix), 0, None
    parts: list[list[Seen]] = []
    if resume is not None:
        share = Share(0, world_size, spec.batch.per_rank(world_size), spec.batch.last)
        if resume.at_step >= share.steps(rows):
            raise PlanError(f"no step {resume.at_step} to resume at: the epoch has {share.steps(rows)} steps")
        parts.append(_consume(spec, world_size, cache_dir, epoch, resume.at_step, None, positions))
        state = parts[0][0].state
        start = state["chunk"][1] if "chunk" in state else state["position"]  # a chunk under way is delivered whole
        spec, world_size = resumed(spec, resume), resume.world_size
    parts.append(_consume(spec, world_size, cache_dir, epoch, None, state, positions))
    share = Share(0, world_size, spec.batch.per_rank(world_size), spec.batch.last)
    last_state = parts[-1][0].state
    dropped, padded = share.dropped(rows - start), share.padded(rows - start)
    bucketed = spec.batch.bucket_by is not None
    padded = 0 if bucketed and share.last == "keep" else padded
    if mix is None:
        compared = compare(parts, manifest.kept_ids(), dropped, padded, positions, or_more=bucketed)
    else:
        order = Order(spec.order.seed, spec.order.shuffle, last_state["lanes"], last_state["interleave"])
        passes = Passes(manifest, MixtureLayout(manifest.units.rows, order, epoch, mix))
        compared = compare(parts, passes.kept, dropped, padded, positions, or_more=bucketed, passes=passes)
        compared["sources"] = passes.summary(parts, described(spec, manifest, mix))
    return {
        "world_size": world_size,
        "epoch": epoch,
        **compared,
        "lanes": last_state["lanes"],
        "interleave": last_state["interleave"],
        "digest": manifest.digest,
        "seconds": time.perf_counter() - began,
    }


class Passes:
    """What must come of a mixture: of each source and pass every row once, of a part of a pass no row twice.

    A row is told by a number that its id and its pass make, by the pass that the plan has at its position; where the
    plan has another source there, the number is one that nobody has.

    Args:
        manifest: of all sources.
        layout: of the epoch.

    Attributes:
        kept: int64, the numbers that may come, sorted.
        rows: that an epoch has.
    """

    def __init__(self, manifest: Manifest, layout: MixtureLayout) -> None:
        self._layout, self._ids = layout, manifest.data_rows
        self._starts = np.array(manifest.first_ids, np.int64)
        mix: Mix = layout.mix
        self.rows = mix.rows
        kept = [np.zeros(0, np.int64)]
        for source, count in enumerate(mix.passes(layout.unit_rows).tolist()):
            ids = manifest.parts[source].kept_ids() + self._starts[source]
            kept += [ids + pass_ * self._ids for pass_ in range(count)]
        self.kept = np.sort(np.concatenate(kept))

    def numbers(self, ids: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Int64 (n,): that of each row, by its id and its position."""
        source, pass_ = self._layout.origins(places)
        right = self.source_of(ids) == source
        return np.where(right, ids + pass_ * self._ids, -1)

    def source_of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Int64 (n,): the source of each sample; of those that begin at one id, the last: the others have no rows."""
        return np.searchsorted(self._starts, ids, side="right") - 1

    def summary(self, parts: Sequence[Sequence[Seen]], sources: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Of each source, beside what is planned: rows `delivered`, and how often, `passes_delivered` and `share`."""
        ids = np.concatenate([seen.ids for part in parts for seen in part])
        counts = np.bincount(self.source_of(ids), minlength=len(sources)).tolist()
        return [
            {
                **source,
                "delivered": count,
                "passes_delivered": count / max(1, source["rows"]),
                "share": count / max(1, len(ids)),
            }
            for source, count in zip(sources, counts, strict=True)
        ]


def resumed(spec: Spec, resume: Resume) -> Spec:
    """The spec that goes on: the same, but for the batch size where another is asked for."""
    if resume.batch_size is None:
        return spec
    return spec.sized(resume.batch_size)


def _consume(
    spec: Spec,
    world_size: int,
    cache_dir: Path | None,
    epoch: int,
    steps: int | None,
    state: dict[str, Any] | None,
    positions: int | None,
) -> list[Seen]:
    with Trainers(Checker, world_size, spec, world_size, cache_dir) as trainers:
        seen: list[Seen] = trainers.call("check", epoch, steps, state, positions)
        return seen


def compare(
    parts: Sequence[Sequence[Seen]],
    kept: NDArray[np.int64],
    dropped: int,
    padded: int,
    limit: int | None,
    *,
    or_more: bool = False,
    passes: Passes | None = None,
) -> dict[str, Any]:
    """Compare what the ranks received with what there is.

    Args:
        parts: the ranks of each world that took a part of the epoch, one after the other.
        kept: int64 (rows,), the ids of which an epoch consists, sorted.
        dropped: rows that the plan leaves out.
        padded: invalid rows that the plan adds.
        limit: positions that the digests cover; None for all.
        or_more: whether lengths, which the plan does not know, may leave a rank without rows, and add invalid ones.
        passes: of a mixture, whose rows are told by source and pass too, and `kept` holds their numbers.

    Returns:
        `expected` is the rows that must come, `missing` those of them that did not, `repeated` the deliveries beyond
        the first, `quarantined` those whose content is bad, which is no fault of coverage,
        `foreign` ids that the epoch does not have; `steps_per_rank` are those of the last world;
        `order_digest` is over the sample ids by position,
        `content_digest` over (sample id, outputs) in any order, both over the first `positions` rows; `ok` says
        whether all of it is as it must be.
    """
    ranks = [seen for part in parts for seen in part]
    bad = [pair for seen in ranks for pair in seen.bad.items()]
    ids = np.concatenate([*(seen.ids for seen in ranks), np.array([sample for sample, _ in bad], np.int64)])
    places = np.concatenate([*(seen.positions for seen in ranks), np.array([place for _, place in bad], np.int64)])
    numbers = ids if passes is None else passes.numbers(ids, places)
    rows = len(kept) if passes is None else passes.rows
    nearest = np.minimum(np.searchsorted(kept, numbers), max(0, len(kept) - 1))
    inside = nearest[kept[nearest] == numbers] if rows else nearest[:0]
    times = np.bincount(inside, minlength=len(kept))
    expected = rows - dropped
    distinct = int(np.count_nonzero(times))
    by_place = np.argsort(places, kind="stable")
    covered = len(ids) if limit is None else int(np.count_nonzero(places < limit))
    ordered = np.ascontiguousarray(ids[by_place][:covered], "<i8")
    result = {
        "rows": rows,
        "expected": expected,
        "delivered": len(ids) - len(bad),
        "quarantined": len(bad),
        "missing": max(0, expected - distinct),
        "repeated": int(times.sum()) - distinct,
        "foreign": len(ids) - len(inside),
        "dropped": dropped,
        "padded": sum(seen.invalid for seen in ranks),
        "steps_per_rank": [seen.steps for seen in parts[-1]],
        "steps_equal": all(len({seen.steps for seen in part}) == 1 for part in parts),
        "states_equal": all(seen.state == part[0].state for part in parts for seen in part),
        "positions_once": bool(np.array_equal(places[by_place], np.arange(expected))),
        "positions": covered,
        "order_digest": hashlib.blake2b(ordered.tobytes(), digest_size=16).hexdigest(),
        "content_digest": f"{sum(seen.content for seen in ranks) & _MASK:016x}",
    }
    invalid = sum(seen.invalid for seen in ranks)
    faults = result["missing"] or result["repeated"] or result["foreign"]
    faults = faults or (invalid < padded if or_more else invalid != padded)
    fine = result["steps_equal"] and result["states_equal"] and result["positions_once"]
    return {**result, "ok": bool(fine and not faults)}
