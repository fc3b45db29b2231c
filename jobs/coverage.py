"""What the ranks of a training job delivered, epoch by epoch, against what there was to deliver."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingest.plan.schedule import Chunk, Share
from ingest.spec import Spec
from jobs.clicks import auc


class Coverage:
    """Adds up parts of epochs as `Learner.train` returns them.

    Args:
        spec, world_size: of the loaders.
    """

    def __init__(self, spec: Spec, world_size: int) -> None:
        self._world_size, self._last = world_size, spec.batch.last
        self._parts: list[Sequence[dict[str, Any]]] = []
        self._began = time.perf_counter()
        self.epochs: list[dict[str, Any]] = []

    def add(self, ranks: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
        """Take the same part of every rank, in order; the epoch's facts when it ends with it."""
        self._parts.append(ranks)
        return self.end() if ranks[0]["state"]["epoch"] > ranks[0]["before"]["epoch"] else None

    def end(self) -> dict[str, Any] | None:
        """The facts of the epoch, or of the part of it that was run; None where nothing was."""
        parts, self._parts = self._parts, []
        now = time.perf_counter()
        seconds, self._began = now - self._began, now
        if not parts:
            return None
        share = Share(0, self._world_size, parts[0][0]["batch"], self._last)
        self.epochs.append(facts(parts, share, seconds))
        return self.epochs[-1]

    @property
    def ok(self) -> bool:
        """Whether all came once, in equal steps."""
        faults = ("missing", "repeated", "foreign")
        return all(epoch["steps_equal"] and not any(epoch[name] for name in faults) for epoch in self.epochs)


def numbered(ids: NDArray[np.int64], kept: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Int64 (rows,): the number of each sample among those that are kept; -1 for one that is not.

    Args:
        ids: int64 (rows,), of samples.
        kept: int64 (rows of an epoch,), sorted; None for all from 0 on.
    """
    if kept is None:
        return ids
    number = np.minimum(np.searchsorted(kept, ids), max(0, len(kept) - 1))
    return np.where(kept[number] == ids, number, -1) if len(kept) else np.full(len(ids), -1)


def under_way(state: Mapping[str, Any]) -> Chunk | None:
    """The chunk that a loader's state lies in, where rows are sorted by length; None at a border."""
    chunk = Chunk(*state["chunk"]) if "chunk" in state else None
    return chunk if chunk is not None and chunk.under_way(state["position"]) else None


def _came(state: Mapping[str, Any], left: int) -> int:
    """Rows of the epoch before a state. A position inside a chunk tells groups of it, whose rows vary."""
    chunk = under_way(state)
    return int(state["position"]) if chunk is None else chunk.end - left


def facts(parts: Sequence[Sequence[dict[str, Any]]], share: Share, seconds: float) -> dict[str, Any]:
    """An epoch, or what was run of it.

    Args:
        parts: one after the other, each of all ranks, as `Learner.train` returns them.
        share: rank 0's.
        seconds: it took.

    Returns:
        Rows `expected`, `missing` of them, `repeated` deliveries beyond the first, `foreign` ones that the epoch does
        not have, `dropped` and `padded` by `batch.last`, `quarantined`; steps, losses, AUC and speed.
    """
    before, after = parts[0][0]["before"], parts[-1][0]["state"]
    chunk, total = under_way(before), before["rows"]
    begin = _came(before, sum(rank["due"] for rank in parts[0]))
    ended = after["epoch"] > before["epoch"]
    dropped = share.dropped(total - (chunk.end if chunk else begin)) if ended else 0
    end = total - dropped if ended else _came(after, sum(rank["left"] for rank in parts[-1]))
    expected = end - begin
    ranks = [rank for part in parts for rank in part]
    rows = np.concatenate([rank["rows"] for rank in ranks])
    inside = rows[(rows >= 0) & (rows < total)]
    distinct = len(np.unique(inside))
    quarantined = sum(rank["quarantined"] for rank in ranks)
    losses = np.concatenate([rank["losses"] for rank in ranks])
    scores, labels = (np.concatenate([rank[name] for rank in ranks]) for name in ("scores", "labels"))
    steps = [sum(rank["steps"] for rank in of_rank) for of_rank in zip(*parts, strict=True)]
    first, last = _losses(parts, 0), _losses(reversed(parts), -1)
    return {
        "epoch": before["epoch"],
        "position": before["position"],
        "steps": max(steps),
        "steps_equal": len(set(steps)) == 1,
        "expected": expected,
        "missing": expected - distinct,
        "repeated": len(inside) - distinct,
        "foreign": len(rows) - len(inside),
        "dropped": dropped,
        "padded": sum(rank["invalid"] for rank in ranks) - quarantined,
        "quarantined": quarantined,
        "loss": float(losses.mean()) if len(losses) else None,
        "loss_first": first,
        "loss_last": last,
        "auc": auc(scores, labels),
        "seconds": seconds,
        "samples_per_s": len(rows) / seconds,
    }


def _losses(parts: Iterable[Sequence[dict[str, Any]]], at: int) -> float | None:
    """The mean over ranks of the loss at `at` of the first part that has any."""
    for part in parts:
        found = [rank["losses"][at] for rank in part if len(rank["losses"])]
        if found:
            return float(np.mean(found))
    return None


def line(epoch: dict[str, Any]) -> str:
    """One epoch in a line."""
    loss = (
        f"loss {epoch['loss_first']:.3f} -> {epoch['loss_last']:.3f} (mean {epoch['loss']:.3f})"
        if epoch["loss"] is not None
        else "no valid rows"
    )
    if epoch["auc"] is not None:
        loss += f", AUC {epoch['auc']:.3f}"
    return (
        f"epoch {epoch['epoch']}: {loss} in {epoch['steps']} steps, {epoch['samples_per_s']:,.0f} samples/s; "
        f"coverage: expected {epoch['expected']:,}, missing {epoch['missing']}, repeated {epoch['repeated']}, "
        f"dropped {epoch['dropped']}"
    )


def result(
    trainers: int,
    model: str,
    coverage: Coverage,
    reports: Sequence[dict[str, Any]],
    state: dict[str, Any] | None,
    *,
    ended_early: bool = False,
) -> dict[str, Any]:
    """A job's result, JSON-ready.

    Args:
        trainers: how many.
        model: its kind.
        coverage: of all epochs.
        reports: of the ranks' loaders.
        state: where it ended.
        ended_early: whether it was asked to.
    """
    return {
        "trainers": trainers,
        "model": model,
        "epochs": coverage.epochs,
        "ranks": list(reports),
        "state": state,
        "ok": coverage.ok,
        "ended_early": ended_early,
    }
