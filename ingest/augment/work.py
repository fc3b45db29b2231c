"""What one worker of the augmenter does with a chunk of a batch, on the CPU or on a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from ingest.augment.decode import CropDecoder
from ingest.augment.finish import finish
from ingest.augment.graph import Runner, device_pipeline, reason, result_dtype
from ingest.augment.headers import Header, first_bytes
from ingest.augment.host import HostLanding
from ingest.augment.kinds import KINDS, Input, Values
from ingest.augment.landing import Landing
from ingest.augment.render import Plan, Renderer
from ingest.augment.steps import slots
from ingest.errors import SampleError, StageError
from ingest.ops import Function, Op


@dataclass(frozen=True)
class Job:
    """One batch in the making; lists and arrays are by row.

    Attributes:
        encoded: uint8 (bytes,), or None.
        headers: None where the row has failed before.
        whole: images that DALI does not decode, decoded: uint8 (height, width, 3), upright.
        shapes: int64 (rows, 2), upright height and width of each image; (1, 1) where the row has failed before.
        numbers: float64 (rows, draws), the random numbers of each row.
        plan: windows and steps.
        out: where results go: of `Landing.empty`, or an object array of images of different sizes.
    """

    encoded: Sequence[NDArray[np.uint8] | None]
    headers: Sequence[Header | None]
    whole: dict[int, NDArray[np.uint8]]
    shapes: NDArray[np.int64]
    numbers: NDArray[np.float64]
    plan: Plan
    out: Any


class Worker(Protocol):
    """Not for two threads at a time."""

    @property
    def notes(self) -> Counter[str]: ...

    def warm_up(self) -> None: ...

    def run(self, job: Job, rows: list[int]) -> dict[int, SampleError]: ...

    def close(self) -> None: ...


class CpuWorker:
    """DALI decodes windows, OpenCV does the rest."""

    def __init__(self, ops: Sequence[Op], chunk_rows: int) -> None:
        self._decode = CropDecoder(chunk_rows)
        self._render = Renderer(ops)

    def warm_up(self) -> None:
        self._decode.warm_up()

    @property
    def notes(self) -> Counter[str]:
        """See `CropDecoder`."""
        return self._decode.notes

    def close(self) -> None:
        self._decode.close()

    def run(self, job: Job, rows: list[int]) -> dict[int, SampleError]:
        """Writes the rows' results; returns what is wrong with those that failed."""
        failures: dict[int, SampleError] = {}
        for row, pixels in crops(self._decode, job, rows):
            if isinstance(pixels, SampleError):
                failures[row] = pixels
                continue
            try:
                self._render(pixels, job.plan, row, job.out)
            except SampleError as error:  # a user's function
                failures[row] = error
            except cv2.error as error:
                failures[row] = SampleError(f"an image of {pixels.shape} that OpenCV cannot augment ({error.err})")
        return failures


class DeviceWorker:
    """DALI does everything on a GPU, and results go to where the batch lands.

    Images that DALI does not decode, and those that EXIF turns (no DALI graph transposes some images of a batch), are
    decoded on the CPU as `CpuWorker` does and join on the device after decoding. Which way an image goes depends on its
    header alone, so its pixels stay a function of the sample.

    Args:
        ops: what to do.
        rows: the most of a batch.
        threads: of DALI's, for the part that is the CPU's.
        device_id: the GPU; None runs its graph on the CPU.
        landing: where results go; None: into host memory.
        warm: makes a batch to go through first, see `warm_job`; None: none does.
        hardware: whether the GPU's JPEG engine may decode a share.
    """

    def __init__(
        self,
        ops: Sequence[Op],
        rows: int,
        threads: int,
        device_id: int | None,
        landing: Landing | None = None,
        *,
        warm: Callable[[], Job | None] | None = None,
        hardware: bool = False,
    ) -> None:
        layout, end = slots(ops), finish(ops)
        self._landing, self._dtype, self._warm = landing or HostLanding(), np.dtype(end.dtype), warm
        self._own = next((op.call for op in ops if isinstance(op, Function)), None)
        self._direct = Runner(
            lambda: device_pipeline(rows, threads, device_id, layout, end, decode=True, hardware=hardware)
        )
        self._uploaded = Runner(lambda: device_pipeline(rows, threads, device_id, layout, end, decode=False))
        self._decode = CropDecoder(rows)

    def warm_up(self) -> None:
        """Builds the pipeline and runs it once; the other two are rarely needed, and come with what needs them.

        Raises:
            StageError: DALI cannot build it, or not decode the batch to go through first.
        """
        self._direct.build()
        job = None if self._warm is None else self._warm()
        if job is not None and (failures := self.run(job, list(range(len(job.encoded))))):
            raise StageError("DALI cannot warm up", stage="augment", cause=next(iter(failures.values())).message)

    @property
    def notes(self) -> Counter[str]:
        """See `CropDecoder`."""
        return self._decode.notes

    def close(self) -> None:
        for part in (self._direct, self._uploaded, self._decode):
            part.close()

    def run(self, job: Job, rows: list[int]) -> dict[int, SampleError]:
        """Writes the rows' results; returns what is wrong with those that failed."""
        direct: list[int] = []
        hosted: list[int] = []
        for row in rows:
            header = job.headers[row]
            turned = header is not None and header.orientation != 1
            (hosted if row in job.whole or turned else direct).append(row)
        failures = self._run_all(job, direct, lambda some: self._direct(self._encoded(job, some)))
        kept: dict[int, NDArray[np.uint8]] = {}
        for row, pixels in crops(self._decode, job, hosted):
            if isinstance(pixels, SampleError):
                failures[row] = pixels
            else:
                kept[row] = np.array(pixels)  # the decoder's memory is good until the next row only

        def uploaded(some: list[int]) -> Any:
            return self._uploaded({"pixels": [kept[row] for row in some], **self._inputs(job, some)})

        return failures | self._run_all(job, list(kept), uploaded)

    def _run_all(self, job: Job, rows: list[int], run: Callable[[list[int]], Any]) -> dict[int, SampleError]:
        if not rows:
            return {}
        try:
            self._store(job, rows, run(rows))
        except RuntimeError as error:
            return self._one_by_one(job, rows, run, error)
        return {}

    def _one_by_one(
        self, job: Job, rows: list[int], run: Callable[[list[int]], Any], error: RuntimeError
    ) -> dict[int, SampleError]:
        failures: dict[int, SampleError] = {}
        for row in rows:
            try:
                self._store(job, [row], run([row]))
            except RuntimeError as bad:
                header, data = job.headers[row], job.encoded[row]
                what = "an image" if header is None else header.format
                begins = "" if data is None else f"; {first_bytes(data)}"
                failures[row] = SampleError(f"{what} that DALI cannot decode or augment ({reason(bad)}){begins}")
        if not failures:
            raise StageError(
                "DALI failed on several images together and on none of them alone", stage="augment", cause=reason(error)
            ) from error
        return failures

    def _encoded(self, job: Job, rows: list[int]) -> dict[str, Any]:
        window = job.plan.windows[rows].astype(np.int32)
        return {
            "encoded": [job.encoded[row] for row in rows],
            "anchor": np.ascontiguousarray(window[:, :2]),
            "shape": np.ascontiguousarray(window[:, 2:]),
            **self._inputs(job, rows),
        }

    def _inputs(self, job: Job, rows: list[int]) -> dict[str, Any]:
        inputs: dict[str, Any] = {}
        for i, step in enumerate(job.plan.steps[1:], 1):
            values = step.values[rows]
            on = None if step.active is None else step.active[rows]
            if on is not None:
                inputs[f"on{i}"] = on
            for each in KINDS[step.kind].inputs:
                # whole images are made for the rows that use them alone
                made = each.of(values) if on is None or each.ndim < 3 else _sparse(each, values, on)
                inputs[f"{each.name}{i}"] = made
        return inputs

    def _store(self, job: Job, rows: list[int], results: Any) -> None:
        if self._own is not None:
            self._check_own(job, results)
        if job.out.dtype != object:
            self._landing.put(job.out, rows, results)
        else:
            host = results.as_cpu()
            for i, row in enumerate(rows):
                job.out[row] = np.array(host[i])

    def _check_own(self, job: Job, results: Any) -> None:
        """Refuses what a user's function should not have returned."""
        dtype = result_dtype(results)
        for shape in results.shape():
            wanted = tuple(job.out.shape[1:]) if job.out.dtype != object else (*shape[:2], 3)
            if tuple(shape) != wanted or (job.out.dtype != object and dtype != self._dtype):
                raise StageError(
                    f"'{self._own}' returned images that end as {dtype} {tuple(shape)}, and {wanted} is expected",
                    stage="augment",
                    hint="Give the op the size that it returns; images are uint8 (height, width, 3)",
                )


def _sparse(each: Input, values: Values, on: NDArray[np.bool_]) -> list[NDArray[Any]]:
    made = iter(each.of(values[on]))
    nothing = np.zeros((1,) * each.ndim, each.dtype)
    return [next(made) if used else nothing for used in on.tolist()]


def crops(decode: CropDecoder, job: Job, rows: Sequence[int]) -> Iterator[tuple[int, NDArray[np.uint8] | SampleError]]:
    """(row, the pixels of its window or what is wrong), each to be used up before the next; in no promised order."""
    listed = [(row, job.encoded[row], job.headers[row]) for row in rows if row not in job.whole]
    if listed:
        kept, encoded, headers = zip(*listed, strict=True)
        for i, pixels in decode(encoded, headers, job.plan.windows[list(kept)]):
            yield kept[i], pixels
    if job.whole:
        for row in rows:
            if row in job.whole:
                y, x, height, width = job.plan.windows[row].tolist()
                yield row, job.whole[row][y : y + height, x : x + width]
