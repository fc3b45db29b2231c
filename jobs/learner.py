"""One rank of a training job: a loader and a small model that learns from its batches."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingest import Loader, Spec
from ingest.engine.cluster import PerTrainer
from ingest.errors import SchemaError, SpecError
from ingest.loader.batch import Batch
from jobs.clicks import ClickNet, ClickRegression, Clicks
from jobs.coverage import numbered, under_way
from jobs.models import Model, Net, Parameters, Softmax

CLICKS = ("clicks-torch", "clicks-numpy")


@dataclass(frozen=True)
class Task:
    """What every rank of a job does.

    Attributes:
        spec: what to train on.
        epochs: in all, those of an earlier run included.
        label: the output that holds labels, taken modulo `classes`.
        kind: of model: `numpy` or `torch` of images, `clicks-numpy` or `clicks-torch` of click logs.
        classes: of the model.
        step_s: a step takes at least so many seconds, as one of a larger model would.
    """

    spec: Spec
    epochs: int
    label: str = "label"
    kind: str = "numpy"
    classes: int = 1000
    step_s: float = 0.0

    @classmethod
    def of(cls, spec: Spec, *, kind: str = "auto", **values: Any) -> Task:
        """A task whose model is chosen: `auto` (of images) and `clicks` are of torch where it is installed.

        Raises:
            SpecError: there is nothing to learn from.
        """
        found = "torch" if importlib.util.find_spec("torch") else "numpy"
        if kind == "clicks":
            if spec.batch.ragged != "offsets":
                raise SpecError(
                    f"batch.ragged is {spec.batch.ragged}, and the click model takes lists as values with offsets",
                    hint="Give batch.ragged: offsets",
                )
            return cls(spec, kind=f"clicks-{found}", **{**values, "classes": 2})
        if not spec.augment.pipeline:
            raise SpecError(
                "there is nothing to learn from encoded images",
                hint="Give augment.recipe: imagenet_train, or for a click log --model clicks",
            )
        return cls(spec, kind=found if kind == "auto" else kind, **values)

    def model(self) -> Model:
        """A new model of the task's kind."""
        if self.kind in CLICKS:
            return ClickNet() if self.kind == "clicks-torch" else ClickRegression()
        return Net(self.classes) if self.kind == "torch" else Softmax(self.classes)

    def inputs(self, batch: Mapping[str, Any], valid: NDArray[np.bool_]) -> Any:
        """What the model learns from: of the valid rows of a batch."""
        return Clicks.of(batch, valid) if self.kind in CLICKS else batch[self.spec.augment.column][valid]


@dataclass(frozen=True)
class Run:
    """How a job runs.

    Attributes:
        trainers: how many.
        state: URL of the file where the loaders' state and the parameters are kept.
        save_every: steps from one averaging and saving to the next.
        each: what Ray counts for a trainer.
    """

    trainers: int
    state: str | None = None
    save_every: int = 20
    each: PerTrainer = field(default_factory=PerTrainer)


class Learner:
    """A loader and a model, kept over epochs.

    Args:
        task: what to do.
        rank, world_size: the loader's; found from Ray Train when left out.
    """

    def __init__(self, task: Task, rank: int | None = None, world_size: int | None = None) -> None:
        self._task = task
        self._model = task.model()
        self.loader = Loader(task.spec, rank, world_size, epochs=task.epochs)

    def restore(self, state: dict[str, Any] | None, parameters: Parameters | None) -> None:
        """Turn to a state, and take parameters; either may be left as it is."""
        if state is not None:
            self.loader.load_state_dict(state)
        if parameters is not None:
            self._model.set(parameters)

    def parameters(self) -> Parameters:
        return self._model.get()

    def train(self, steps: int | None) -> dict[str, Any]:
        """Train on the rest of the epoch, or its next `steps` steps.

        Returns:
            steps; losses, float64, one for each step with valid rows; rows, int64, which of the epoch's rows came;
            scores, float32, and labels, int64, of the valid ones, where the model scores; invalid rows, and quarantined
            ones among them; batch, rows of one; before and state, the loader's states; due and left, rows that were to
            come at either place of a chunk under way there, on this rank's account (see `Batch.left`).

        Raises:
            SchemaError: there are no labels.
        """
        task, before = self._task, self.loader.state_dict()
        losses, rows, invalid, quarantined, taken = [], [np.zeros(0, np.int64)], 0, 0, 0
        due = left = 0
        scored, told = [np.zeros(0, np.float32)], [np.zeros(0, np.int64)]
        for batch in self.loader:
            if task.label not in batch:
                raise SchemaError(f"no output '{task.label}' to learn; there are {', '.join(batch)}")
            valid = np.asarray(batch["valid"]) if "valid" in batch else np.ones(len(batch["sample_id"]), bool)
            if valid.any():
                labels = np.asarray(batch[task.label])[valid].astype(np.int64) % task.classes
                loss, scores = self._model.step(task.inputs(batch, valid), labels)
                losses.append(loss)
                if scores is not None:
                    scored.append(scores)
                    told.append(labels)
            rows.append(self._rows(batch))
            invalid += len(valid) - int(np.count_nonzero(valid))
            quarantined += len(batch.replaced)
            left = 0 if batch.ends_epoch else batch.left
            if taken == 0 and under_way(before):
                due = batch.planned_rows + batch.left
            taken += 1
            if task.step_s:
                time.sleep(task.step_s)
            if taken == steps:
                break
        return {
            "steps": taken,
            "losses": np.array(losses),
            "rows": np.concatenate(rows),
            "scores": np.concatenate(scored),
            "labels": np.concatenate(told),
            "invalid": invalid,
            "quarantined": quarantined,
            "batch": self.loader.spec.batch.per_rank(self.loader.world_size),
            "before": before,
            "state": self.loader.state_dict(),
            "due": due,
            "left": left,
        }

    def _rows(self, batch: Batch) -> NDArray[np.int64]:
        """Which of the epoch's rows a batch delivers, as numbers from 0 that come once each; -1 for a foreign one."""
        if self._task.spec.sources is not None:  # a mixture repeats ids in an epoch, but no place
            return batch.positions[: batch.planned_rows]
        return numbered(batch.ids[: batch.planned_rows], self._kept)

    @cached_property
    def _kept(self) -> NDArray[np.int64] | None:
        manifest = self.loader.manifest
        return None if manifest.selection is None else manifest.kept_ids()

    def close(self) -> None:
        """End the loader's actors and thread."""
        self.loader.close()
