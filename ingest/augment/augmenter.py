"""The augmenter: rows of Arrow tables in, one finished batch out, the pixels a function of (seed, pass, sample id)."""

from __future__ import annotations

import queue
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingest import rng
from ingest.augment.collate import Pieces, collate, gather
from ingest.augment.companions import Companions
from ingest.augment.crew import workers
from ingest.augment.decode import decode_whole
from ingest.augment.finish import allocate, dense, finish
from ingest.augment.functions import check_loads
from ingest.augment.graph import release
from ingest.augment.headers import Header, read_header
from ingest.augment.host import HostLanding
from ingest.augment.landing import Landing
from ingest.augment.media import check_audio, check_media, open_video
from ingest.augment.mix import NO_GROUP, Mixer
from ingest.augment.render import Plan
from ingest.augment.steps import draws, fixed_shape, steps
from ingest.augment.work import Job, Worker
from ingest.errors import SampleError, StageError
from ingest.ops import Clip, Waveform
from ingest.spec import Augment

CHUNK_ROWS = (
    32  # decoded together, then resized: one DALI run costs 0.3 ms beside its images, and more rows leave the cache
)


class BadSampleError(SampleError):
    """One image of a batch cannot be used.

    Attributes:
        index: its position in the batch.
    """

    index: int


class Augmenter:
    """Decodes, augments and collates batches. For any number of threads at a time.

    A batch's rows are split into chunks, and each of `threads` workers takes a chunk at a time through its own
    single-threaded DALI pipeline and OpenCV. So two calls at a time keep all workers busy to the last row, and neither
    the number of threads nor the rows of a call can change a pixel.

    Attributes:
        notes: how many images had what fault that could be passed over (`broken EXIF`).
        landing: where images go.
    """

    def __init__(
        self,
        spec: Augment,
        *,
        seed: int,
        batch_rows: int,
        threads: int,
        device_id: int | None = None,
        reuse: int = 0,
        landing: Landing | None = None,
        restore: Callable[[NDArray[np.uint8] | None, str], tuple[Header, NDArray[np.uint8]]] | None = None,
    ) -> None:
        """Builds the pipelines.

        Args:
            spec: the spec's `augment`.
            seed: the spec's `order.seed`.
            batch_rows: rows of a usual call.
            threads: decoding threads, one core each when busy.
            device_id: the GPU to decode and augment on; None for the CPU.
            reuse: the array of images is good for so many calls of its thread, and then another's images take its
                place: for callers that copy them soon. Fresh memory costs the system a page fault every 4 KiB. 0: it
                stays.
            landing: where images go that a GPU makes, where all end in one size; None, and where they do not: into
                host memory.
            restore: gives the header and pixels of a value of a column, where pixels are stored instead of encoded
                images; the ops then begin with `Stored`.

        Raises:
            SpecError: the ops are in an order that has no meaning.
            StageError: the GPU has not the memory that the spec gives DALI, or DALI cannot build or run its pipeline.
        """
        self._ops = spec.pipeline
        self._column = spec.column
        self._seed = seed
        self._batch_rows = batch_rows
        self._draws = draws(self._ops)
        self._closed, self._restore, self._on_device = False, restore, device_id is not None
        self._reuse, self._reused = reuse, threading.local()
        self._workers: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._all: list[Worker] = []
        self.notes: Counter[str] = Counter()
        self._notes_lock = threading.Lock()
        self._companions = Companions(spec)
        check_media(self._ops, fixed_shape(self._ops), companions=bool(spec.targets))
        self._media = isinstance(self._ops[0] if self._ops else None, (Clip, Waveform))
        self._images = (self._column, *spec.also)
        stays = landing is not None and device_id is not None and dense(self._ops) is not None
        self.landing: Landing = landing if landing is not None and stays else HostLanding()
        self._mixer = Mixer(self._ops, self._column, self.landing, planar=finish(self._ops).planar)
        if not self._ops:
            return
        check_loads(self._ops, spec.fields)
        self._chunk = batch_rows if device_id is not None else max(1, min(CHUNK_ROWS, -(-batch_rows // threads)))
        for worker in workers(spec, self._ops, self._chunk, threads, device_id, self.landing, warm=restore is None):
            self._all.append(worker)
            worker.warm_up()
            self._workers.put(worker)
        self._pool = ThreadPoolExecutor(len(self._all), thread_name_prefix="augment")

    def __call__(
        self,
        pieces: Pieces,
        sample_ids: NDArray[np.int64],
        pass_: int | NDArray[np.int64],
        valid: NDArray[np.bool_] | None = None,
        groups: NDArray[np.int64] | None = None,
    ) -> dict[str, NDArray[Any]]:
        """One batch: `spec.column` augmented, every other column as `collate` gives it.

        Args:
            pieces: (table, row indices int64 (rows,)) in the order of the batch; any number of rows, at least one.
            sample_ids: int64 (rows,).
            pass_: how many times the data has been gone through before; or of each row, int64 (rows,).
            valid: bool (rows,); a bad image in a row that only fills up (false) leaves zeros there instead of failing.
            groups: int64 (rows,); samples are mixed inside their group only, and not where it is -1. None: one group.

        Returns:
            Images are uint8 (rows, height, width, 3), or as `normalize` says, in an array of the landing's; where the
            ops leave images of different sizes, an object array of (height, width, 3) arrays.

        Raises:
            BadSampleError: an image cannot be used: the first one in the order of the batch. The augmenter lives on.
            ReadError: a column is missing or does not hold what it must.
        """
        batch, failures = self.attempt(pieces, sample_ids, pass_, groups)
        for index in sorted(failures):
            if valid is None or valid[index]:
                raise _located(failures[index], index)
        return batch

    def attempt(
        self,
        pieces: Pieces,
        sample_ids: NDArray[np.int64],
        pass_: int | NDArray[np.int64],
        groups: NDArray[np.int64] | None = None,
    ) -> tuple[dict[str, NDArray[Any]], dict[int, SampleError]]:
        """As a call, but bad images are returned, by their position in the batch; their rows of images are zero.

        Raises:
            ReadError: a column is missing or does not hold what it must.
        """
        if self._closed:
            raise StageError("the augmenter is closed", stage="augment")
        if not self._ops:
            return collate(pieces), {}
        count = sum(len(rows) for _, rows in pieces)
        if count != len(sample_ids):
            raise StageError(f"{count} rows with {len(sample_ids)} sample ids", stage="augment")
        numbers = rng.uniforms(self._seed, pass_, sample_ids, max(1, self._draws + self._mixer.draws))
        jobs = {name: self._job(name, gather(pieces, name), numbers) for name in self._images}
        failures = {row: error for _, failed in reversed(jobs.values()) for row, error in failed.items()}
        rows = [row for row in range(len(sample_ids)) if row not in failures]
        chunks = [rows[at : at + self._chunk] for at in range(0, len(rows), self._chunk)]
        work = [self._pool.submit(self._run, job, chunk) for job, _ in jobs.values() for chunk in chunks]
        job = jobs[self._column][0]
        outs = {name: each.out for name, (each, _) in jobs.items()}
        for i, mask in enumerate(self._companions.masks):
            outs[mask.column] = self._companions.allocate(i, len(sample_ids))
            mover = self._companions.mover(i, gather(pieces, mask.column), job, outs[mask.column])
            work += [self._pool.submit(mover, chunk) for chunk in chunks]
        batch = {**outs, **collate(pieces, skip=tuple(outs))}
        found = self._companions.move(batch, job)
        for done in work:
            found.update(done.result())
        failures = {**found, **failures}
        with self.landing.order():
            for out in outs.values():
                _blank(out, failures)
        self._companions.clear(batch, failures)
        if self._mixer:
            self._mix(batch, failures, sample_ids, groups, numbers[:, self._draws :])
        return batch, failures

    def _mix(
        self,
        batch: dict[str, NDArray[Any]],
        failures: dict[int, SampleError],
        sample_ids: NDArray[np.int64],
        groups: NDArray[np.int64] | None,
        numbers: NDArray[np.float64],
    ) -> None:
        for row, problem in self._mixer.check(batch).items():
            failures.setdefault(row, SampleError(problem))
        groups = np.zeros(len(sample_ids), np.int64) if groups is None else groups.copy()
        groups[list(failures)] = NO_GROUP  # nobody is mixed with what is not there
        self._mixer(batch, sample_ids, groups, numbers)

    def noted(self) -> dict[str, int]:
        """How many images had what fault that could be passed over, or were decoded in another way than the rest."""
        with self._notes_lock:
            total = Counter(self.notes)
        for worker in self._all:
            total.update(worker.notes)
        return dict(total)

    def close(self) -> None:
        """Waits for running calls and gives threads, pipelines and device memory back."""
        if not self._closed:
            self._closed = True
            if self._all:
                self._pool.shutdown(wait=True)
            for worker in self._all:
                worker.close()
            if self._on_device:
                release()

    def _job(
        self, column: str, encoded: Sequence[NDArray[np.uint8] | None], numbers: NDArray[np.float64]
    ) -> tuple[Job, dict[int, SampleError]]:
        """Headers and windows of a batch, and what is wrong with rows that need no decoding to tell."""
        failures: dict[int, SampleError] = {}
        headers: list[Header | None] = [None] * len(encoded)
        whole: dict[int, NDArray[np.uint8]] = {}
        shapes = np.ones((len(encoded), 2), np.int64)
        for row, data in enumerate(encoded):
            try:
                if self._media:
                    shapes[row] = self._measured(data, column)
                    continue
                if self._restore is not None:
                    headers[row], whole[row] = self._restore(data, column)
                    shapes[row] = whole[row].shape[:2]
                    continue
                headers[row] = header = _header(data, column)
                shapes[row] = header.upright
                if data is not None and not header.dali:
                    whole[row] = decode_whole(data, header)
                    shapes[row] = whole[row].shape[:2]
            except SampleError as error:
                failures[row] = error
                continue
            for note in (header.note, None if header.dali else f"{header.format} decoded by OpenCV, not by DALI"):
                if note:
                    with self._notes_lock:
                        self.notes[note] += 1
        found, problems = steps(self._ops, shapes, numbers)
        for row, problem in problems.items():
            failures.setdefault(row, SampleError(problem))
        return Job(
            encoded, headers, whole, shapes, numbers, Plan(found), self._allocate(column, len(encoded))
        ), failures

    def _measured(self, data: NDArray[np.uint8] | None, column: str) -> tuple[int, int]:
        """Height and width of a video; of audio nothing is read before it is decoded, but whether it is whole."""
        if data is None:
            raise SampleError(f"null in column '{column}', where a recording should be")
        if isinstance(self._ops[0], Waveform):
            check_audio(data)
            return 1, 1
        with open_video(data) as (_, video):
            return video.height, video.width

    def _allocate(self, column: str, rows: int) -> Any:
        one = dense(self._ops)
        if one is not None and not isinstance(self.landing, HostLanding):
            return self.landing.empty((rows, *one[0]), one[1])
        if not self._reuse or fixed_shape(self._ops) is None:
            return allocate(self._ops, rows)
        ring: deque[NDArray[Any]] = self._reused.__dict__.setdefault(column, deque())  # this thread's own
        out = ring.popleft() if len(ring) >= self._reuse else None
        if out is None or len(out) < rows:
            out = allocate(self._ops, max(rows, self._batch_rows))
        ring.append(out)
        return out[:rows]

    def _run(self, job: Job, rows: list[int]) -> dict[int, SampleError]:
        worker = self._workers.get()
        try:
            return worker.run(job, rows)
        finally:
            self._workers.put(worker)


def _located(error: SampleError, index: int) -> BadSampleError:
    bad = BadSampleError(error.message, hint=error.hint)
    bad.index = index
    return bad


def _header(data: NDArray[np.uint8] | None, column: str) -> Header:
    if data is None:
        raise SampleError(f"null in column '{column}', where an image should be")
    return read_header(data)


def _blank(out: Any, rows: Iterable[int]) -> None:
    """Makes nothing of the rows that failed."""
    for row in rows:
        if out.dtype != object:
            out[row] = 0
        else:
            kind = out[row].dtype if out[row] is not None else np.dtype(np.uint8)
            out[row] = np.zeros((0, 0, 3) if out[row] is None or out[row].ndim == 3 else (0, 0), kind)
