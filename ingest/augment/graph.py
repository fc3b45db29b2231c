"""DALI's graphs, and how to run one safely: the only importer of DALI.

A graph is a function of the ops alone. All that varies (the window to decode, sizes, flips) enters as named per-sample
inputs, so a sample's pixels do not depend on the batch it is in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline

from ingest.augment.windows import Kind
from ingest.errors import StageError
from ingest.ops import Normalize

Inputs = Mapping[str, Any]


def crop_pipeline(rows: int, threads: int) -> Pipeline:
    """Encoded bytes to the pixels of a window, on the CPU; not built.

    Inputs: `encoded` uint8 (bytes,); `anchor` and `shape` int32 (2,), y and x, of the stored image.
    Output: uint8 (h, w, 3).
    """
    pipe = _pipeline(rows, threads, None)
    with pipe:
        pipe.set_outputs(_decoded("cpu"))
    return pipe


def device_pipeline(
    rows: int, threads: int, device_id: int | None, steps: Sequence[Kind], normalize: Normalize | None, *, decode: bool
) -> Pipeline:
    """The whole augmentation on a GPU; not built, so that it can be defined without one.

    Without a `device_id` the same graph runs on the CPU, slower than `CpuWorker`: a test without a GPU can run it.

    Inputs: as `crop_pipeline` where `decode`, else `pixels` uint8 (h, w, 3), decoded elsewhere; then for each further
    step i of `steps`: `anchor{i}` and `shape{i}` int32 (2,), `size{i}` float32 (2,) or `flip{i}` int32 ().
    Output: uint8 (h, w, 3), or normalised, on the device.
    """
    pipe = _pipeline(rows, threads, device_id)
    with pipe:
        if decode:
            images = _decoded("cpu" if device_id is None else "mixed")
        else:
            images = fn.external_source(name="pixels", dtype=types.UINT8, ndim=3, layout="HWC")
            images = images if device_id is None else images.gpu()
        for i, kind in enumerate(steps[1:], 1):
            images = _STEPS[kind](images, i)
        pipe.set_outputs(images if normalize is None else _normalized(images, normalize))
    return pipe


class Runner:
    """A built pipeline that comes back to life after a failed run. Not for two threads at a time."""

    def __init__(self, make: Callable[[], Pipeline]) -> None:
        self._make = make
        self._pipe: Pipeline | None = None

    def __call__(self, inputs: Inputs) -> Any:
        """The output tensor list, valid until the next call.

        Raises:
            RuntimeError: DALI's, about one or more of the samples; the next call starts afresh.
            StageError: DALI cannot build the pipeline.
        """
        pipe = self.build()
        try:
            return pipe.run(**inputs)[0]
        except RuntimeError:
            self._pipe = None  # a pipeline is dead after one bad sample
            raise

    def build(self) -> Pipeline:
        """The pipeline, built if there is none.

        Raises:
            StageError: DALI cannot build it on this machine.
        """
        if self._pipe is None:
            pipe = self._make()
            try:
                pipe.build()
            except RuntimeError as error:
                raise StageError("DALI cannot build its pipeline", stage="augment", cause=reason(error)) from error
            self._pipe = pipe
        return self._pipe

    def close(self) -> None:
        """Gives the pipeline's threads and memory back."""
        self._pipe = None


def reason(error: RuntimeError) -> str:
    """What DALI says about a failed run, without its trace, in one line."""
    text = str(error)
    _, found, tail = text.partition("encountered:")
    tail = (tail if found else text).replace("Current pipeline object is no longer valid.", "")
    tail = re.sub(r"C\+\+ context:.*|\[/opt/dali[^]]*\]", "", tail)
    return re.sub(r"\s+", " ", tail).strip(" :") or "DALI cannot decode it"


def _pipeline(rows: int, threads: int, device_id: int | None) -> Pipeline:
    # Named inputs to run() need a queue of one; several pipelines at a time overlap. The dynamic executor hands
    # decoded images over as they are, where the older one copies each once more.
    return Pipeline(
        batch_size=rows, num_threads=threads, device_id=device_id, prefetch_queue_depth=1, exec_dynamic=True
    )


def _decoded(device: str) -> Any:
    encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1, no_copy=True)
    anchor = fn.external_source(name="anchor", dtype=types.INT32, ndim=1)
    shape = fn.external_source(name="shape", dtype=types.INT32, ndim=1)
    # The hardware engine's pixels differ from the CUDA decoder's, and it takes a share of each batch.
    special = {"hw_decoder_load": 0.0} if device == "mixed" else {"use_fast_idct": True}
    return fn.decoders.image_slice(
        encoded,
        anchor,
        shape,
        device=device,
        axis_names="HW",
        normalized_anchor=False,
        normalized_shape=False,
        output_type=types.RGB,
        adjust_orientation=False,  # ours is the same for every decoder, and survives broken EXIF
        **special,
    )


def _window(images: Any, i: int) -> Any:
    anchor = fn.external_source(name=f"anchor{i}", dtype=types.INT32, ndim=1)
    shape = fn.external_source(name=f"shape{i}", dtype=types.INT32, ndim=1)
    return fn.slice(images, anchor, shape, axis_names="HW", normalized_anchor=False, normalized_shape=False)


def _scale(images: Any, i: int) -> Any:
    size = fn.external_source(name=f"size{i}", dtype=types.FLOAT, ndim=1)
    return fn.resize(images, size=size, interp_type=types.INTERP_LINEAR, antialias=False)


def _flip(images: Any, i: int) -> Any:
    return fn.flip(images, horizontal=fn.external_source(name=f"flip{i}", dtype=types.INT32, ndim=0))


_STEPS: dict[Kind, Callable[[Any, int], Any]] = {"window": _window, "scale": _scale, "flip": _flip}


def _normalized(images: Any, op: Normalize) -> Any:
    return fn.crop_mirror_normalize(
        images,
        mean=[value / op.scale for value in op.mean],
        std=[value / op.scale for value in op.std],
        dtype={"float32": types.FLOAT, "float16": types.FLOAT16}[op.dtype],
        output_layout=op.layout,
    )
