"""Audio and video on the CPU: DALI decodes, and OpenCV's FFmpeg the video codecs that DALI leaves to GPUs."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from ingest.augment.graph import Runner, audio_pipeline, reason, video_pipeline
from ingest.augment.headers import MAX_PIXELS, first_bytes
from ingest.augment.kinds import Rows, Step, plan
from ingest.augment.render import Renderer
from ingest.augment.work import Job
from ingest.errors import SampleError, SpecError
from ingest.ops import Clip, Function, MelSpectrogram, Mix, Op, Waveform

_STREAMED = 0x7FFF0000  # from here on a WAV's length says that its writer could not know it
_DALI_CODECS = frozenset(["VP80", "VP90", "MJPG", "vp08", "vp09", "mjpg"])


class Video(NamedTuple):
    """What a container says: pixels, frames, and whether DALI decodes its codec on a CPU."""

    height: int
    width: int
    frames: int
    dali: bool


def check_audio(data: NDArray[np.uint8]) -> None:
    """Refuses a WAV that is cut short, whose end DALI would give as silence. Other formats tell DALI themselves.

    Raises:
        SampleError: there are fewer samples than the header says.
    """
    if data[:4].tobytes() != b"RIFF" or data[8:12].tobytes() != b"WAVE":
        return
    at = 12
    while at + 8 <= len(data):
        kind, length = data[at : at + 4].tobytes(), int.from_bytes(data[at + 4 : at + 8].tobytes(), "little")
        if kind == b"data":
            if len(data) < at + 8 + length < _STREAMED:
                raise SampleError(f"a WAV cut short, of {length} bytes of samples; {first_bytes(data)}")
            return
        at += 8 + length + length % 2


@contextlib.contextmanager
def open_video(data: NDArray[np.uint8]) -> Iterator[tuple[cv2.VideoCapture, Video]]:
    """An encoded video, open for the block.

    Raises:
        SampleError: not a video, one without frames, or too large.
    """
    # A file in memory: OpenCV reads Python streams too, but crashed when one was released.
    held = os.memfd_create("video")
    try:
        with open(held, "wb", closefd=False) as file:
            data.tofile(file)
        capture = cv2.VideoCapture(f"/proc/self/fd/{held}", cv2.CAP_FFMPEG)
        try:
            yield capture, _video(capture, data)
        finally:
            capture.release()
    finally:
        os.close(held)


def _video(capture: cv2.VideoCapture, data: NDArray[np.uint8]) -> Video:
    if not capture.isOpened():
        raise SampleError(f"not a video; {first_bytes(data)}")
    names = (cv2.CAP_PROP_FRAME_HEIGHT, cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_COUNT, cv2.CAP_PROP_FOURCC)
    height, width, frames, code = (int(capture.get(name)) for name in names)
    codec = code.to_bytes(4, "little", signed=True).decode("latin-1")
    if frames < 1 or height < 1 or width < 1:
        raise SampleError(f"a video ({codec}) of {frames} frames of {width} x {height}; {first_bytes(data)}")
    if height * width > MAX_PIXELS:
        raise SampleError(f"a video of {width} x {height} pixels, over the limit of {MAX_PIXELS}")
    return Video(height, width, frames, codec in _DALI_CODECS)


def start_of(place: str, number: float, length: int, wanted: int) -> int:
    """Where a stretch of `wanted` begins in `length`, by a uniform number where the place is random."""
    room = max(0, length - wanted)
    return {"random": min(room, int(number * (room + 1))), "start": 0, "middle": room // 2}[place]


class ClipWorker:
    """Decodes stretches of videos, and does the same to all frames of one. Not for two threads at a time."""

    def __init__(self, ops: Sequence[Op]) -> None:
        assert isinstance(ops[0], Clip)
        self._clip = ops[0]
        self._render = Renderer(ops)
        self._decode = Runner(lambda: video_pipeline(self._clip.frames, self._clip.stride))
        self.notes: Counter[str] = Counter()

    def warm_up(self) -> None:
        self._decode.build()

    def close(self) -> None:
        self._decode.close()

    def run(self, job: Job, rows: list[int]) -> dict[int, SampleError]:
        """Writes the rows' results; returns what is wrong with those that failed."""
        failures: dict[int, SampleError] = {}
        for row in rows:
            data = job.encoded[row]
            assert data is not None
            y, x, height, width = job.plan.windows[row].tolist()
            try:
                for at, frame in enumerate(self._frames(data, float(job.numbers[row, 0]))):
                    self._render(frame[y : y + height, x : x + width], job.plan, row, job.out[row], at)
            except SampleError as error:
                failures[row] = error
            except cv2.error as error:
                failures[row] = SampleError(f"a frame that OpenCV cannot augment ({error.err})")
        return failures

    def _frames(self, data: NDArray[np.uint8], number: float) -> Sequence[NDArray[np.uint8]]:
        clip = self._clip
        with open_video(data) as (capture, video):
            start = start_of(clip.place, number, video.frames, 1 + (clip.frames - 1) * clip.stride)
            if not video.dali:
                return _read(capture, start, clip.frames, clip.stride, data)
        try:
            decoded = self._decode({"encoded": [data], "start": np.array([start], np.int32)})
        except RuntimeError as error:
            raise SampleError(f"a video that DALI cannot decode ({reason(error)}); {first_bytes(data)}") from error
        return list(np.asarray(decoded[0]))


class AudioWorker:
    """Decodes stretches of recordings, all in DALI. Not for two threads at a time."""

    def __init__(self, ops: Sequence[Op], rows: int) -> None:
        wave = ops[0]
        assert isinstance(wave, Waveform)
        mel = ops[1] if len(ops) > 1 else None
        assert mel is None or isinstance(mel, MelSpectrogram)
        self._wave = wave
        self._run = Runner(lambda: audio_pipeline(rows, wave, mel))
        self.notes: Counter[str] = Counter()

    def warm_up(self) -> None:
        self._run.build()

    def close(self) -> None:
        self._run.close()

    def run(self, job: Job, rows: list[int]) -> dict[int, SampleError]:
        """Writes the rows' results; returns what is wrong with those that failed."""
        try:
            self._store(job, rows)
        except RuntimeError:  # one bad recording spoils the run of all, and DALI does not say which it was
            return self._one_by_one(job, rows)
        return {}

    def _one_by_one(self, job: Job, rows: list[int]) -> dict[int, SampleError]:
        failures = {}
        for row in rows:
            data = job.encoded[row]
            assert data is not None
            try:
                self._store(job, [row])
            except RuntimeError as error:
                failures[row] = SampleError(f"audio that DALI cannot decode ({reason(error)}); {first_bytes(data)}")
        return failures

    def _store(self, job: Job, rows: list[int]) -> None:
        place = {"random": job.numbers[rows, 0], "start": np.zeros(len(rows)), "middle": np.full(len(rows), 0.5)}
        share = np.ascontiguousarray(place[self._wave.place], np.float32)
        job.out[rows] = np.asarray(
            self._run({"encoded": [job.encoded[row] for row in rows], "share": share}).as_tensor()
        )


def _read(
    capture: cv2.VideoCapture, start: int, count: int, stride: int, data: NDArray[np.uint8]
) -> list[NDArray[np.uint8]]:
    """Frames by OpenCV, from the first one on: seeking is not exact in every container."""
    found: list[NDArray[np.uint8]] = []
    at = 0
    while len(found) < count and capture.grab():
        if at >= start and (at - start) % stride == 0:
            done, frame = capture.retrieve()
            if not done:
                break
            found.append(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB))
        at += 1
    if not found:
        raise SampleError(f"a video that OpenCV cannot decode; {first_bytes(data)}")
    return found + [found[-1]] * (count - len(found))


def _nothing(_: Op, __: Rows) -> list[Step]:
    return []


plan(Clip, 1)(_nothing)
plan(Waveform, 1)(_nothing)
plan(MelSpectrogram, 0)(_nothing)


def check_media(ops: Sequence[Op], fixed: tuple[int, int] | None, *, companions: bool) -> None:
    """Refuses what audio and video cannot do.

    Raises:
        SpecError: an op stands where it has no meaning, or the frames of clips would differ in size.
    """
    names = ", ".join(op.name for op in ops)
    for i, op in enumerate(ops):
        if isinstance(op, (Clip, Waveform)) and i:
            raise SpecError(f"augment.ops: {op.name} must be the first op, found {names}")
        if isinstance(op, MelSpectrogram) and not (i == 1 and isinstance(ops[0], Waveform)):
            raise SpecError(f"augment.ops: mel_spectrogram must follow waveform, found {names}")
        if i and isinstance(ops[0], Waveform) and not isinstance(op, MelSpectrogram):
            raise SpecError(f"augment.ops: {op.name} is not for audio, found {names}")
    for op in ops if ops and isinstance(ops[0], Clip) else ():
        if isinstance(op, (Mix, Function)):
            raise SpecError(f"augment.ops: {op.name} is not for video, found {names}")
    if ops and isinstance(ops[0], Clip) and fixed is None:
        raise SpecError("augment.ops: clip needs frames of one size", hint="Add resize with a size, or a crop")
    if companions and isinstance(ops[0] if ops else None, (Clip, Waveform)):
        raise SpecError(f"augment: {ops[0].name} takes no also, boxes, keypoints or masks along")
