"""One rank of a training job: a loader and a small model that learns from its batches."""

from __future__ import annotations

import importlib.util
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingest import Loader, Spec
from ingest.engine.cluster import PerTrainer
from ingest.errors import SchemaError, SpecError
from jobs.models import Parameters, make_model


@dataclass(frozen=True)
class Task:
    """What every rank of a job does.

    Attributes:
        spec: what to train on.
        epochs: in all, those of an earlier run included.
        label: the output that holds labels, taken modulo `classes`.
        kind: of model: `numpy` or `torch`.
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
        """A task whose model is chosen: `auto` is torch where it is installed.

        Raises:
            SpecError: there is nothing to learn from.
        """
        if not spec.augment.pipeline:
            raise SpecError("there is nothing to learn from encoded images", hint="Give augment.recipe: imagenet_train")
        if kind == "auto":
            kind = "torch" if importlib.util.find_spec("torch") else "numpy"
        return cls(spec, kind=kind, **values)


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
        self._model = make_model(task.kind, task.classes)
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
            steps; losses, float64, one for each step with valid rows; ids, int64, of valid rows; invalid rows; before
            and state, the loader's states.

        Raises:
            SchemaError: there are no labels.
        """
        task, before = self._task, self.loader.state_dict()
        losses, ids, invalid, taken = [], [np.zeros(0, np.int64)], 0, 0
        for batch in self.loader:
            if task.label not in batch:
                raise SchemaError(f"no output '{task.label}' to learn; there are {', '.join(batch)}")
            valid = np.asarray(batch["valid"]) if "valid" in batch else np.ones(len(batch["sample_id"]), bool)
            if valid.any():
                labels = np.asarray(batch[task.label])[valid].astype(np.int64) % task.classes
                losses.append(self._model.step(batch[task.spec.augment.column][valid], labels))
                ids.append(np.asarray(batch["sample_id"])[valid])
            invalid += len(valid) - int(np.count_nonzero(valid))
            taken += 1
            if task.step_s:
                time.sleep(task.step_s)
            if taken == steps:
                break
        return {
            "steps": taken,
            "losses": np.array(losses),
            "ids": np.concatenate(ids),
            "invalid": invalid,
            "before": before,
            "state": self.loader.state_dict(),
        }

    def close(self) -> None:
        """End the loader's actors and thread."""
        self.loader.close()
