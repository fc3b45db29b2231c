"""Makes what the trainer is handed of a batch's arrays: lists shaped, bad rows told, in the trainer's framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingest.engine.jobs import BatchInfo
from ingest.engine.replace import BAD, Bad
from ingest.loader.batch import Batch
from ingest.loader.convert import Convert
from ingest.loader.landing import TorchLanding, nothing
from ingest.loader.ragged import shape
from ingest.session_records import Records
from ingest.spec import Spec


class BatchMaker:
    """Called by the prefetching thread.

    Args:
        spec: how lists are given, and whether rows may be invalid.
        convert: arrays to the trainer's framework.
        empty_lists: of each list column, an array without an item.
        records: keep bad samples.
        lanes: of the order.
        landing: where images land that are made on the trainer's own GPU; None where none are.
    """

    def __init__(
        self,
        spec: Spec,
        convert: Convert,
        empty_lists: Mapping[str, NDArray[Any]],
        records: Records,
        lanes: int,
        landing: TorchLanding | None = None,
    ) -> None:
        self._ragged, self._convert, self._empty_lists = spec.batch.ragged, convert, empty_lists
        self._records, self._lanes, self._landing = records, lanes, landing
        self._tells_valid = spec.batch.last != "drop" or records.replaces or spec.batch.bucket_by is not None

    def __call__(self, fetched: tuple[BatchInfo, dict[str, Any]]) -> tuple[Batch, Callable[[], None]]:
        """A batch of what the feed gave, and what the trainer's thread calls when it takes it: `TorchLanding.sealed`.

        Raises:
            SampleError: the budget of bad samples is spent.
        """
        info, arrays = fetched
        bad: list[Bad] = arrays.get(BAD, [])
        arrays = {name: array for name, array in arrays.items() if name != BAD}
        arrays = shape(arrays, self._ragged, self._empty_lists)
        counted = [each for each in bad if each.slot < info.valid_rows]
        if counted:
            self._records.bad(info, counted)
        if self._tells_valid:
            valid = np.arange(len(arrays["sample_id"])) < info.valid_rows
            valid[[each.slot for each in bad]] = False
            arrays["valid"] = valid
        ids = arrays["sample_id"]
        if bad:
            ids = ids.copy()
            ids[[each.slot for each in bad]] = [each.sample_id for each in bad]
        batch = Batch.make(
            self._convert(arrays),
            epoch=info.epoch,
            after=info.after,
            ends_epoch=info.ends_epoch,
            valid_rows=info.valid_rows - len(counted),
            runs=info.runs,
            lanes=self._lanes,
            fill=info.fill,
            ids=ids,
            chunk=info.chunk,
            left=info.left,
            replaced={each.slot: each.sample_id for each in counted},
        )
        return batch, nothing if self._landing is None else self._landing.sealed(batch)
