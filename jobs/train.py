"""Job: train with two or more trainers. `python -m jobs.train SPEC --trainers 2 --epochs 2 [--state FILE]`.

Each trainer is a Ray actor with a loader and a copy of a small model; copies are averaged after every epoch. What came
is checked against what there is, epoch by epoch. With `--state`, the job saves where it stands and goes on from there,
on any number of trainers.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray

from ingest import Loader, Spec
from ingest.cli_common import FAULT, OK, cluster_session, guarded, humane, load_spec, write_json
from ingest.cli_trainers import Trainers
from ingest.errors import SchemaError, SpecError, StateError
from ingest.plan.schedule import Share
from jobs.models import Parameters, average, make_model

REPORTED = ("samples_per_s", "first_batch_s", "waiting_fraction", "peak_rss_bytes", "verdict")


class Trainer:
    """One rank: a loader and a model, kept over epochs. Runs as a Ray actor.

    Args:
        rank, spec, world_size, epochs: the loader's.
        label: the batch's label column.
        kind, classes: of the model; labels are taken modulo the classes.
    """

    def __init__(
        self, rank: int, spec: Spec, world_size: int, epochs: int, label: str, kind: str, classes: int
    ) -> None:
        self._rank, self._spec, self._world_size, self._epochs = rank, spec, world_size, epochs
        self._label, self._classes = label, classes
        self._model = make_model(kind, classes)
        self._loader: Loader | None = None

    def open(self, state: dict[str, Any] | None) -> dict[str, Any]:
        """Make the loader and turn it to a state; returns the state it stands at."""
        self._loader = Loader(self._spec, self._rank, self._world_size, epochs=self._epochs)
        if state is not None:
            self._loader.load_state_dict(state)
        return self._loader.state_dict()

    def train(self, parameters: Parameters | None, steps: int | None) -> dict[str, Any]:
        """Train on the rest of the epoch, or its next `steps` steps.

        Returns:
            steps; losses, float64, one for each step with valid rows; ids, int64, of valid rows; invalid rows;
            parameters, state and report.

        Raises:
            SchemaError: there are no labels.
        """
        loader = self._loader
        if loader is None:
            raise RuntimeError("open comes first")
        if parameters is not None:
            self._model.set(parameters)
        losses, ids, invalid, taken = [], [np.zeros(0, np.int64)], 0, 0
        for batch in loader:
            if self._label not in batch:
                raise SchemaError(f"no output '{self._label}' to learn; there are {', '.join(batch)}")
            rows = batch.valid_rows
            if rows:
                labels = np.asarray(batch[self._label][:rows]).astype(np.int64) % self._classes
                losses.append(self._model.step(batch[self._spec.augment.column][:rows], labels))
                ids.append(np.array(batch["sample_id"][:rows]))
            invalid += len(batch.positions) - rows
            taken += 1
            if taken == steps:
                break
        return {
            "steps": taken,
            "losses": np.array(losses),
            "ids": np.concatenate(ids),
            "invalid": invalid,
            "parameters": self._model.get(),
            "state": loader.state_dict(),
            "report": loader.report(),
        }

    def close(self) -> None:
        """End the loader's actors and thread."""
        if self._loader is not None:
            self._loader.close()


def train(
    spec: Spec,
    *,
    trainers: int,
    epochs: int,
    state_file: Path | None = None,
    label: str = "label",
    kind: str = "auto",
    classes: int = 1000,
    steps: int | None = None,
) -> dict[str, Any]:
    """Train up to epoch `epochs`, from the state file where there is one.

    Args:
        spec: what to train on.
        trainers: how many.
        epochs: in all, those of an earlier run included.
        state_file: where the loaders' state and the parameters are kept.
        label: the batch's label column.
        kind: of model: numpy, torch, or auto for torch where it is installed.
        classes: of the model.
        steps: stop after so many, in mid-epoch, as an interruption would.

    Returns:
        What each epoch delivered and cost, a report of each rank, and whether all came once.

    Raises:
        IngestError: of the first rank that fails; the others are ended.
    """
    if not spec.augment.pipeline:
        raise SpecError("there is nothing to learn from encoded images", hint="Give augment.recipe: imagenet_train")
    if kind == "auto":
        kind = "torch" if importlib.util.find_spec("torch") else "numpy"
    state, parameters = load_state(state_file)
    share = Share(0, trainers, spec.batch.per_rank(trainers), spec.batch.last)
    done: list[dict[str, Any]] = []
    reports: list[dict[str, Any]] = []
    with Trainers(Trainer, trainers, spec, trainers, epochs, label, kind, classes) as group:
        state = group.call("open", state)[0]
        while state["epoch"] < epochs and steps != 0:
            began = time.perf_counter()
            ranks = group.call("train", ray.put(parameters), steps)
            parameters = average([rank["parameters"] for rank in ranks])
            done.append(facts(ranks, state, share, time.perf_counter() - began))
            print(line(done[-1]), flush=True)
            reports = [rank["report"] for rank in ranks]
            state = ranks[0]["state"]
            save_state(state_file, state, parameters)
            steps = None if steps is None else steps - done[-1]["steps"]
        group.call("close")
    ok = all(not epoch["missing"] and not epoch["repeated"] and epoch["steps_equal"] for epoch in done)
    return {"trainers": trainers, "model": kind, "epochs": done, "ranks": reports, "state": state, "ok": ok}


def facts(ranks: Sequence[dict[str, Any]], before: dict[str, Any], share: Share, seconds: float) -> dict[str, Any]:
    """What an epoch, or the part of it that was run, delivered, against what it had to.

    Args:
        ranks: what `Trainer.train` returned.
        before: the state that it began at.
        share: rank 0's.
        seconds: it took.
    """
    left = before["rows"] - before["position"]
    after = ranks[0]["state"]
    ended = after["epoch"] > before["epoch"]
    expected = left - share.dropped(left) if ended else after["position"] - before["position"]
    ids = np.concatenate([rank["ids"] for rank in ranks])
    distinct = len(np.unique(ids[(ids >= 0) & (ids < before["rows"])]))
    losses = np.concatenate([rank["losses"] for rank in ranks])
    steps = [rank["steps"] for rank in ranks]
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
        "loss_first": float(np.mean([rank["losses"][0] for rank in ranks if len(rank["losses"])])),
        "loss_last": float(np.mean([rank["losses"][-1] for rank in ranks if len(rank["losses"])])),
        "seconds": seconds,
        "samples_per_s": len(ids) / seconds,
    }


def line(epoch: dict[str, Any]) -> str:
    """One epoch in a line."""
    return (
        f"epoch {epoch['epoch']}: loss {epoch['loss_first']:.3f} -> {epoch['loss_last']:.3f} "
        f"(mean {epoch['loss']:.3f}) in {epoch['steps']} steps, {epoch['samples_per_s']:,.0f} samples/s; "
        f"coverage: expected {epoch['expected']:,}, missing {epoch['missing']}, repeated {epoch['repeated']}, "
        f"dropped {epoch['dropped']}"
    )


def save_state(path: Path | None, state: dict[str, Any], parameters: Parameters) -> None:
    """Write the loaders' state (the same on all ranks) and the parameters; the file is whole at any time."""
    if path is None:
        return
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        arrays: dict[str, Any] = {f"p{i}": p for i, p in enumerate(parameters)}
        np.savez(file, ingest=np.array(json.dumps(state)), **arrays)
    partial.replace(path)


def load_state(path: Path | None) -> tuple[dict[str, Any] | None, Parameters | None]:
    """What `save_state` wrote; nothing where there is no such file yet.

    Raises:
        StateError: the file is something else.
    """
    if path is None or not path.exists():
        return None, None
    try:
        with np.load(path, allow_pickle=False) as file:
            parameters = [file[f"p{i}"] for i in range(len(file.files) - 1)]
            return json.loads(str(file["ingest"])), parameters
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise StateError("not a state of this job", path=str(path), cause=str(error)) from error


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, train, show, write; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m jobs.train", description="Train with two or more trainers.")
    parser.add_argument("spec", metavar="SPEC", help="the spec, a YAML file")
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2, help="in all, those of an earlier run included")
    parser.add_argument("--state", type=Path, metavar="FILE", help="resume from it where it exists; saved every epoch")
    parser.add_argument("--steps", type=int, help="stop after so many steps, in mid-epoch")
    parser.add_argument("--label", default="label", help="the output that holds labels")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--model", choices=["auto", "numpy", "torch"], default="auto")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args(argv)
    if min(args.trainers, args.epochs, args.classes) < 1 or (args.steps is not None and args.steps < 1):
        parser.error("--trainers, --epochs, --classes and --steps must be at least 1")

    def work() -> int:
        spec = load_spec(args.spec, args.sets)
        with cluster_session():
            result = train(
                spec,
                trainers=args.trainers,
                epochs=args.epochs,
                state_file=args.state,
                label=args.label,
                kind=args.model,
                classes=args.classes,
                steps=args.steps,
            )
        for rank in result["ranks"]:
            print(f"rank {rank['rank']}: " + ", ".join(f"{name} {humane(name, rank[name])}" for name in REPORTED))
        write_json(result, args.json)
        return OK if result["ok"] else FAULT

    return guarded(work)


if __name__ == "__main__":
    sys.exit(main())
