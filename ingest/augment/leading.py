"""The ops before the first random one, apart: done once where rows are read, and left out where they are augmented."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ingest.augment.augmenter import Augmenter
from ingest.augment.collate import gather
from ingest.augment.headers import Header
from ingest.augment.steps import draws, fixed_shape
from ingest.augment.stored import pack, unpack
from ingest.errors import SampleError
from ingest.ops.leading import Stored, leading
from ingest.spec import Augment


class Leading:
    """Does the leading ops of a section. For any number of threads at a time."""

    def __init__(self, augment: Augment, *, rows: int, threads: int = 1) -> None:
        self._columns = (augment.column, *augment.also)
        first = Augment(ops=leading(augment.pipeline), column=augment.column, also=augment.also, device="cpu")
        self._augmenter = Augmenter(first, seed=0, batch_rows=rows, threads=threads)

    def __call__(self, table: pa.Table) -> pa.Table:
        """The table with pixels in the place of its images; a row that fails keeps them as they are, encoded.

        Raises:
            ReadError: a column is missing or does not hold bytes.
        """
        rows = np.arange(len(table), dtype=np.int64)
        batch, failures = self._augmenter.attempt([(table.select(list(self._columns)), rows)], rows, 0)
        for name in self._columns:
            encoded = gather([(table, rows)], name)
            values = [
                (None if data is None else data.tobytes()) if row in failures else pack(batch[name][row])
                for row, data in enumerate(encoded)
            ]
            at = table.schema.get_field_index(name)
            table = table.set_column(at, name, pa.array(values, pa.large_binary()))
        return table

    def close(self) -> None:
        self._augmenter.close()


class Restorer:
    """Gives the pixels of stored images. One that is still encoded, since it is bad, fails here as it did there."""

    def __init__(self, augment: Augment) -> None:
        self._leading = Augment(ops=leading(augment.pipeline), device="cpu")

    def __call__(self, data: NDArray[np.uint8] | None, column: str) -> tuple[Header, NDArray[np.uint8]]:
        """Header and pixels of an image.

        Raises:
            SampleError: it cannot be used.
        """
        if data is None:
            raise SampleError(f"null in column '{column}', where an image should be")
        pixels = unpack(data)
        if pixels is None:
            pixels = self._made(data)
        height, width, _ = pixels.shape
        return Header("pixels", height, width, dali=False), pixels

    def _made(self, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
        augmenter = Augmenter(self._leading, seed=0, batch_rows=1, threads=1)  # rare: not kept
        try:
            table = pa.table({"image": pa.array([data.tobytes()], pa.large_binary())})
            row = np.zeros(1, np.int64)
            batch, failures = augmenter.attempt([(table, row)], row, 0)
        finally:
            augmenter.close()
        if failures:
            raise failures[0]
        pixels: NDArray[np.uint8] = batch["image"][0]
        return pixels


def stored_augmenter(augment: Augment, **options: Any) -> Augmenter:
    """An augmenter of rows that `Leading` has been at: the ops that are left, each with the numbers that it always had.

    Args:
        augment: the spec's section.
        options: of `Augmenter`.
    """
    first = leading(augment.pipeline)
    stands = Stored(draws=draws(first), shape=fixed_shape(first))
    rest = augment.model_copy(update={"recipe": None, "ops": (stands, *augment.pipeline[len(first) :])})
    return Augmenter(rest, restore=Restorer(augment), **options)
