"""The columns that move with an image: its boxes, keypoints and masks, row by row through the image's own steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingest.augment.masks import decode_mask, move_mask
from ingest.augment.steps import fixed_shape
from ingest.augment.targets import move_boxes, move_keypoints, moves, pick, ragged
from ingest.augment.work import Job
from ingest.errors import SampleError, SpecError
from ingest.ops import Mix, User
from ingest.spec import Augment


class Companions:
    """Moves what a spec's `boxes`, `keypoints` and `masks` name.

    Raises:
        SpecError: an op of the spec cannot take them along.
    """

    def __init__(self, spec: Augment) -> None:
        self._boxes, self._keypoints, self.masks = spec.boxes, spec.keypoints, spec.masks
        self._shape = fixed_shape(spec.pipeline)
        if self._boxes is None and self._keypoints is None and not self.masks:
            return
        if not spec.pipeline:
            raise SpecError("augment.boxes, keypoints and masks move with an image, and there are no ops")
        for op, field in zip(spec.pipeline, spec.fields, strict=True):
            if isinstance(op, Mix) or (isinstance(op, User) and op.moves):
                raise SpecError(
                    f"{field}: boxes, keypoints and masks cannot follow {op.name}",
                    hint="A function that leaves every pixel in its place says so by moves: false",
                )

    def move(self, batch: dict[str, NDArray[Any]], job: Job) -> dict[int, SampleError]:
        """Replaces boxes and keypoints of a batch, as object arrays of float32 (n, 4) and (n, columns).

        Args:
            batch: its columns.
            job: its images.

        Returns:
            What is wrong with the rows that failed.

        Raises:
            ReadError: a column is missing.
        """
        failures: dict[int, SampleError] = {}
        if self._boxes is None and self._keypoints is None:
            return failures
        boxes, keypoints = self._boxes, self._keypoints
        names = [*((boxes.column, *boxes.labels) if boxes else ()), *((keypoints.column,) if keypoints else ())]
        found = {name: ragged(batch, name) for name in names}
        for row in range(len(job.shapes)):
            height, width = job.shapes[row].tolist()
            path = moves(job.plan.steps, row, (height, width))
            try:
                if boxes is not None:
                    moved, kept = move_boxes(found[boxes.column][row], boxes, path, (height, width))
                    labels = [pick(found[name][row], kept, name) for name in boxes.labels]
                    for name, value in zip(names, [moved, *labels], strict=False):
                        found[name][row] = value
                if keypoints is not None:
                    values = found[keypoints.column][row]
                    found[keypoints.column][row] = move_keypoints(values, keypoints, path, (height, width))
            except SampleError as error:
                failures[row] = error
        batch.update(found)
        return failures

    def clear(self, batch: dict[str, NDArray[Any]], rows: Iterable[int]) -> None:
        """Leaves the rows that failed without boxes and keypoints."""
        nothing = {} if self._boxes is None else {self._boxes.column: np.zeros((0, 4), np.float32)}
        if self._keypoints is not None:
            nothing[self._keypoints.column] = np.zeros((0, 2), np.float32)
        for name in (*nothing, *(self._boxes.labels if self._boxes else ())):
            for row in rows:
                batch[name][row] = nothing.get(name, np.zeros(0))

    def allocate(self, index: int, rows: int) -> NDArray[Any]:
        """Where a mask column's results go: zeros (rows, height, width), or an object array of (height, width)."""
        if self._shape is None:
            out = np.empty(rows, object)
            out[:] = [np.zeros((0, 0), self.masks[index].dtype)] * rows
            return out
        return np.zeros((rows, *self._shape), self.masks[index].dtype)

    def mover(
        self, index: int, encoded: Sequence[NDArray[np.uint8] | None], job: Job, out: NDArray[Any]
    ) -> Callable[[list[int]], dict[int, SampleError]]:
        """A function that decodes and moves the masks of rows, and returns what is wrong with those that failed."""
        spec = self.masks[index]

        def run(rows: list[int]) -> dict[int, SampleError]:
            failures: dict[int, SampleError] = {}
            for row in rows:
                height, width = job.shapes[row].tolist()
                try:
                    mask = decode_mask(encoded[row], spec, (height, width))
                except SampleError as error:
                    failures[row] = error
                else:
                    out[row] = move_mask(mask, job.plan.steps, row, spec.fill)
            return failures

        return run
