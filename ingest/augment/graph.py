"""DALI's graphs, and how to run one safely: the only importer of DALI.

A graph is a function of the ops alone. All that varies (the window to decode, sizes, flips) enters as named per-sample
inputs, so a sample's pixels do not depend on the batch it is in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from nvidia.dali import fn, math, pipeline_def, types
from nvidia.dali.backend import PreallocateDeviceMemory, ReleaseUnusedMemory  # type: ignore[attr-defined]  # no stubs
from nvidia.dali.pipeline import Pipeline, do_not_convert

from ingest.augment.finish import Finish
from ingest.augment.kinds import KINDS, Slot
from ingest.errors import StageError
from ingest.ops import MelSpectrogram, Waveform

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


def preallocate(device_bytes: int, device_id: int) -> None:
    """Makes DALI's pool of a device so large that this much can be taken from it without asking the driver.

    It is no bound: DALI has none, and its pool grows when a batch needs more. It stays the process's until that ends.

    Raises:
        StageError: the device has not as much left.
    """
    try:
        PreallocateDeviceMemory(device_bytes, device_id)
    except (RuntimeError, MemoryError) as error:
        raise StageError(
            f"GPU {device_id} does not give DALI the {device_bytes} bytes of augment.gpu_memory_bytes",
            stage="augment",
            cause=" ".join(str(error).split()),
            hint="Give less, or auto: DALI then asks for memory as it needs it",
        ) from error


def release() -> None:
    """Gives the parts of DALI's pools back that nothing uses, of the device and of host memory that it can reach."""
    ReleaseUnusedMemory()


def device_pipeline(
    rows: int,
    threads: int,
    device_id: int | None,
    slots: Sequence[Slot],
    end: Finish,
    *,
    decode: bool,
    hardware: bool = False,
) -> Pipeline:
    """The whole augmentation on a GPU; not built, so that it can be defined without one.

    Without a `device_id` the same graph runs on the CPU, slower than `CpuWorker`: a test without a GPU can run it.
    `hardware` gives a share of each batch to the GPU's JPEG engine, where it has one, whose pixels are others.

    Inputs: as `crop_pipeline` where `decode`, else `pixels` uint8 (h, w, 3), decoded elsewhere; then for each further
    slot i the inputs that its kind names, followed by i, and bool `on{i}` () where rows may skip it.
    Output: uint8 (h, w, 3), or finished, on the device.
    """
    graph: Pipeline = _conditional(
        slots,
        end,
        decode=decode,
        hardware=hardware,
        batch_size=rows,
        num_threads=threads,
        device_id=device_id,
        **_OPTIONS,
    )
    return graph


def video_pipeline(frames: int, stride: int) -> Pipeline:
    """Encoded videos of one codec each to frames, on the CPU; not built.

    Inputs: `encoded` uint8 (bytes,); `start` int32 (), the first frame. Output: uint8 (frames, h, w, 3).
    """
    pipe = _pipeline(1, 1, None)
    with pipe:
        encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
        start = fn.external_source(name="start", dtype=types.INT32, ndim=0)
        pipe.set_outputs(
            fn.decoders.video(
                encoded, device="cpu", start_frame=start, sequence_length=frames, stride=stride, pad_mode="edge"
            )
        )
    return pipe


def audio_pipeline(rows: int, wave: Waveform, mel: MelSpectrogram | None) -> Pipeline:
    """Encoded audio to stretches of it, on the CPU; not built.

    Inputs: `encoded` uint8 (bytes,); `share` float32 (), how far from the first to the last possible start.
    Output: float32 (samples,), or (bands, 1 + samples // hop).
    """
    pipe = _pipeline(rows, 1, None)
    with pipe:
        encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
        share = fn.external_source(name="share", dtype=types.FLOAT, ndim=0)
        whole, _ = fn.decoders.audio(encoded, dtype=types.FLOAT, downmix=True, sample_rate=float(wave.sample_rate))
        room = math.max(fn.cast(whole.shape(), dtype=types.FLOAT) - float(wave.samples), 0.0)
        start = fn.cast(math.floor(room * share), dtype=types.INT32)
        taken = fn.slice(
            whole, start=start, shape=[wave.samples], axes=[0], out_of_bounds_policy="pad", fill_values=[0.0]
        )
        pipe.set_outputs(taken if mel is None else _mel(taken, wave, mel))
    return pipe


def _mel(wave_: Any, wave: Waveform, mel: MelSpectrogram) -> Any:
    power = fn.spectrogram(wave_, nfft=mel.window, window_length=mel.window, window_step=mel.hop)
    rate = float(wave.sample_rate)
    bands = fn.mel_filter_bank(
        power, sample_rate=rate, nfilter=mel.bands, freq_low=mel.low_hz, freq_high=mel.high_hz or rate / 2
    )
    if not mel.decibels:
        return bands
    return fn.to_decibels(bands, multiplier=10.0, reference=1.0, cutoff_db=mel.floor_db)


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


def result_dtype(results: Any) -> np.dtype[Any]:
    """The dtype of a run's results, wherever they are."""
    dtype: np.dtype[Any] = np.dtype(types.to_numpy_type(results.dtype))
    return dtype


def reason(error: RuntimeError) -> str:
    """What DALI says about a failed run, without its trace, in one line."""
    text = str(error)
    _, found, tail = text.partition("encountered:")
    tail = (tail if found else text).replace("Current pipeline object is no longer valid.", "")
    tail = re.sub(r"C\+\+ context:.*|\[/opt/dali[^]]*\]", "", tail)
    return re.sub(r"\s+", " ", tail).strip(" :") or "DALI cannot decode it"


# Named inputs to run() need a queue of one; several pipelines at a time overlap. The dynamic executor hands decoded
# images over as they are, where the older one copies each once more.
_OPTIONS: dict[str, Any] = {"prefetch_queue_depth": 1, "exec_dynamic": True}


def _pipeline(rows: int, threads: int, device_id: int | None) -> Pipeline:
    return Pipeline(batch_size=rows, num_threads=threads, device_id=device_id, **_OPTIONS)


@pipeline_def(enable_conditionals=True)  # type: ignore[untyped-decorator]
def _conditional(slots: Sequence[Slot], end: Finish, *, decode: bool, hardware: bool) -> Any:
    """DALI rewrites this function: an `if` on a per-sample input splits the batch, and only its rows do the work."""
    device = "gpu" if Pipeline.current().device_id is not None else "cpu"
    images = _source(device, decode, hardware)
    kept = []
    for i, slot in enumerate(slots):
        if i == 0:
            continue
        inputs = _inputs(slot, i)
        if slot.kind == "function":  # it may leave its numbers alone, and DALI drops an input that leads nowhere
            kept.append(inputs["numbers"])
        if slot.optional:
            if fn.external_source(name=f"on{i}", dtype=types.BOOL, ndim=0):
                images = _step(slot, images, inputs, device)
        else:
            images = _step(slot, images, inputs, device)
    return (_finished(images, end), *kept)


@do_not_convert  # type: ignore[untyped-decorator]
def _source(device: str, decode: bool, hardware: bool) -> Any:
    if decode:
        return _decoded("mixed" if device == "gpu" else "cpu", hardware=hardware)
    images = fn.external_source(name="pixels", dtype=types.UINT8, ndim=3, layout="HWC")
    return images.gpu() if device == "gpu" else images


@do_not_convert  # type: ignore[untyped-decorator]
def _inputs(slot: Slot, i: int) -> dict[str, Any]:
    return {
        each.name: fn.external_source(name=f"{each.name}{i}", dtype=_TYPES[each.dtype], ndim=each.ndim)
        for each in KINDS[slot.kind].inputs
    }


@do_not_convert  # type: ignore[untyped-decorator]
def _step(slot: Slot, images: Any, inputs: dict[str, Any], device: str) -> Any:
    return KINDS[slot.kind].graph(_DALI[device], images, inputs, slot.constant)


@do_not_convert  # type: ignore[untyped-decorator]
def _finished(images: Any, end: Finish) -> Any:
    if end.plain:
        return images
    if end.dtype == "uint8":
        return fn.transpose(images, perm=[2, 0, 1])
    return fn.crop_mirror_normalize(
        images,
        mean=[value / end.scale for value in end.mean],
        std=[value / end.scale for value in end.std],
        dtype={"float32": types.FLOAT, "float16": types.FLOAT16}[end.dtype],
        output_layout="CHW" if end.planar else "HWC",
    )


_TYPES = {"float32": types.FLOAT, "int32": types.INT32, "int16": types.INT16, "uint8": types.UINT8}
_DALI = {
    device: SimpleNamespace(fn=fn, types=types, math=math, device=device, to_device=move)
    for device, move in (("cpu", lambda node: node), ("gpu", lambda node: node.gpu()))
}


def _decoded(device: str, *, hardware: bool = False) -> Any:
    encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1, no_copy=True)
    anchor = fn.external_source(name="anchor", dtype=types.INT32, ndim=1)
    shape = fn.external_source(name="shape", dtype=types.INT32, ndim=1)
    # The hardware engine's pixels differ from the CUDA decoder's, and it takes a share of each batch.
    engine = {} if hardware else {"hw_decoder_load": 0.0}
    # A GPU repeats chroma where the CPU's decoder interpolates it, unless it is told not to.
    special = {"jpeg_fancy_upsampling": True, **engine} if device == "mixed" else {"use_fast_idct": True}
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
