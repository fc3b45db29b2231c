"""What the ranks of a training job delivered, epoch by epoch, against what there was to deliver."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ingest.plan.schedule import Share
from ingest.spec import Spec
from jobs.clicks import auc


class Coverage:
    """Adds up parts of epochs as `Learner.train` returns them.

    Args:
        spec, world_size: of the loaders.
    """

    def __init__(self, spec: Spec, world_size: int) -> None:
        self._share = Share(0, world_size, spec.batch.per_rank(world_size), spec.batch.last)
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
        self.epochs.append(facts(parts, self._share, seconds))
        return self.epochs[-1]

    @property
    def ok(self) -> bool:
        """Whether all came once, in equal steps."""
        return all(not epoch["missing"] and not epoch["repeated"] and epoch["steps_equal"] for epoch in self.epochs)


def facts(parts: Sequence[Sequence[dict[str, Any]]], share: Share, seconds: float) -> dict[str, Any]:
    """An epoch, or what was run of it.

    Args:
        parts: one after the other, each of all ranks, as `Learner.train` returns them.
        share: rank 0's.
        seconds: it took.
    """
    before, after = parts[0][0]["before"], parts[-1][0]["state"]
    left = before["rows"] - before["position"]
    ended = after["epoch"] > before["epoch"]
    expected = left - share.dropped(left) if ended else after["position"] - before["position"]
    ranks = [rank for part in parts for rank in part]
    ids = np.concatenate([rank["ids"] for rank in ranks])
    distinct = len(np.unique(ids[(ids >= 0) & (ids < before["rows"])]))
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
        "repeated": len(ids) - distinct,
        "dropped": share.dropped(left) if ended else 0,
        "padded": sum(rank["invalid"] for rank in ranks),
        "loss": float(losses.mean()) if len(losses) else None,
        "loss_first": first,
        "loss_last": last,
        "auc": auc(scores, labels),
        "seconds": seconds,
        "samples_per_s": len(ids) / seconds,
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
