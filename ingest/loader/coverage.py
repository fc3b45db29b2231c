"""The coverage log: what each rank of each attempt was given, in a few bytes a stretch of steps, written as it trains.

A folder holds a `.plan.parquet` for each plan, from which positions can be turned into sample ids without the data, and
for each rank and attempt `.coverage.jsonl` files, only ever added to: a header, then a line for each turn to a position
and for each stretch of steps taken. What a line says was handed out; what came after the last line is not proven. A
line that a death cut in two counts as not written.

Where rows are sorted by length, positions alone do not tell rows: there a stretch holds which places of the epoch each
of its steps took, in 1.3 bytes a row.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingest.errors import SourceError
from ingest.loader.batch import Batch
from ingest.loader.took import Took
from ingest.plan.schedule import Chunk

LOG_SUFFIX = ".coverage.jsonl"
VERSION = 1
_MOST_RANKS = 2**20
STRETCH_S = 30.0  # a stretch is closed at least this often
REMOTE_S = 5.0  # where a file cannot be added to, a new one is written no more often than this


@dataclass(frozen=True)
class Header:
    """Who writes a file.

    Attributes:
        attempt: names the ranks that train together.
        rank, world_size, batch, last: the rank's share of every global batch.
        plan: the plan's name.
        began: an instant, seconds since 1970.
    """

    attempt: str
    rank: int
    world_size: int
    batch: int
    last: str
    plan: str
    began: float
    version: int = VERSION


@dataclass(frozen=True)
class Stretch:
    """Steps taken one after another.

    Attributes:
        turn: how many times the loader had turned to a position before.
        epoch: the epoch.
        first, after: positions before its first and after its last step.
        steps: how many.
        digest: of the ids handed out, in order (`digest_of`).
        bad: ids among them whose sample was bad and replaced.
        taken: where rows are sorted by length, what each of the steps took, packed (`Took.pack`).
    """

    turn: int
    epoch: int
    first: int
    after: int
    steps: int
    digest: str
    bad: tuple[int, ...] = ()
    taken: str = ""


@dataclass
class RankLog:
    """What a rank of an attempt has written.

    Attributes:
        header: who.
        turns: the (epoch, position) that it turned to, one after the other.
        stretches: in the order written.
        chunks: turn: the chunk that its position lies in, where rows are sorted by length.
    """

    header: Header
    turns: list[tuple[int, int]] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    chunks: dict[int, Chunk] = field(default_factory=dict)


class CoverageLog:
    """One rank's side. For the trainer's thread.

    Args:
        header: who writes.
        folder: a folder on this machine that is added to; None where there is no adding.
        writer: (file name, content), for all other places.
        bucketed: whether rows are sorted by length.
    """

    def __init__(
        self,
        header: Header,
        folder: Path | None,
        writer: Callable[[str, bytes], None],
        *,
        bucketed: bool = False,
    ) -> None:
        self._took: list[Took] | None = [] if bucketed else None
        self._folder, self._writer = folder, writer
        self._name = f"{header.attempt}-rank{header.rank:05d}-{os.getpid():x}{time.time_ns():x}"
        self._lines = [json.dumps({"header": asdict(header)})]
        self._files, self._written_at, self._turn = 0, 0.0, -1
        self._open: tuple[int, int, int, int] | None = None  # epoch, first, after, steps
        self._digest = hashlib.blake2b(digest_size=8)
        self._bad: list[int] = []
        self._opened_at = 0.0
        self._at = (0, 0)

    def turn(self, epoch: int, position: int, chunk: Chunk | None = None) -> None:
        """The loader turns to a position, and the chunk that it lies in."""
        self._close()
        self._turn += 1
        around = [] if chunk is None else [[chunk.start, chunk.end, chunk.batch]]
        self._lines.append(json.dumps({"turn": [epoch, position, *around]}))
        self._at = (epoch, position)
        self.flush()

    def add(self, batch: Batch, rows: int) -> None:
        """A batch has been handed out; `rows` is of an epoch."""
        after = rows if batch.ends_epoch else batch.after
        if self._open is None:
            first = self._at[1] if self._at[0] == batch.epoch else 0
            self._open, self._opened_at = (batch.epoch, first, after, 1), time.monotonic()
        else:
            epoch, first, _, steps = self._open
            self._open = (epoch, first, after, steps + 1)
        counted = batch.ids[: batch.planned_rows]
        self._digest.update(counted.astype("<i8").tobytes())
        self._bad += batch.replaced.values()
        if self._took is not None:
            places = batch.positions[: batch.planned_rows]
            self._took.append(Took(after, batch.chunk.end if batch.chunk else 0, batch.left, places))
        self._at = (batch.epoch + 1, 0) if batch.ends_epoch else (batch.epoch, batch.after)
        if batch.ends_epoch or time.monotonic() - self._opened_at > STRETCH_S:
            self.flush()

    def flush(self, *, last: bool = False) -> None:
        """Write what has been taken so far.

        Raises:
            SourceError: it cannot be written.
        """
        self._close()
        if not self._lines:
            return
        data = ("\n".join(self._lines) + "\n").encode()
        if self._folder is not None:
            _append(self._folder / f"{self._name}{LOG_SUFFIX}", data)
        else:
            if not last and time.monotonic() - self._written_at < REMOTE_S:
                return
            self._writer(f"{self._name}-{self._files:06d}{LOG_SUFFIX}", data)
            self._files, self._written_at = self._files + 1, time.monotonic()
        self._lines = []

    def _close(self) -> None:
        if self._open is None:
            return
        epoch, first, after, steps = self._open
        stretch: list[Any] = [self._turn, epoch, first, after, steps, self._digest.hexdigest()]
        if self._took is not None:
            stretch += [self._bad, Took.pack(self._took)]
            self._took = []
        elif self._bad:
            stretch.append(self._bad)
        self._lines.append(json.dumps({"took": stretch}))
        self._open, self._bad, self._digest = None, [], hashlib.blake2b(digest_size=8)


def digest_of(ids: NDArray[np.int64]) -> str:
    """The digest of ids in order."""
    return hashlib.blake2b(ids.astype("<i8").tobytes(), digest_size=8).hexdigest()


def _append(path: Path, data: bytes) -> None:
    """Add to a file in one write, which a death of this process cannot cut."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SourceError(f"the coverage log cannot be written: {error.strerror}", path=str(path)) from error


# -- reading -----------------------------------------------------------------------------------------------------------


def decode_log(files: Mapping[str, bytes]) -> Iterator[RankLog]:
    """What the ranks of all attempts have written, by (name, content) of their files.

    Raises:
        SourceError: a file is something else.
    """
    parts: dict[str, list[tuple[str, bytes]]] = {}
    for name, data in files.items():
        stem = name.removesuffix(LOG_SUFFIX)
        head, _, number = stem.rpartition("-")
        parts.setdefault(head if len(number) == 6 and number.isdigit() else stem, []).append((name, data))
    for own in parts.values():
        log: RankLog | None = None
        for name, data in sorted(own):
            for line in data.split(b"\n")[:-1]:  # what follows the last line end was cut
                log = _decode_line(log, line, name)
        if log is not None:
            yield log


def _decode_line(log: RankLog | None, line: bytes, name: str) -> RankLog:
    try:
        said = json.loads(line)
        if log is None:
            return RankLog(_header(**said["header"]))
        if "turn" in said:
            epoch, position, *around = said["turn"]
            if around:
                log.chunks[len(log.turns)] = Chunk(*map(_number, around[0]))
            log.turns.append((_number(epoch), _number(position)))
        elif "took" in said:
            log.stretches.append(_stretch(*said["took"]))
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise SourceError(f"not a coverage log: {type(error).__name__}: {error}", path=name) from error
    return log


def _header(**said: Any) -> Header:
    header = Header(**said)
    if header.version != VERSION:
        raise ValueError(f"version {header.version}, and this release reads version {VERSION}")
    words = (header.attempt, header.plan, header.last)
    ranks = 0 <= _number(header.rank) < _number(header.world_size) <= _MOST_RANKS and _number(header.batch) > 0
    if not (ranks and all(isinstance(word, str) for word in words) and header.last in ("drop", "pad", "keep")):
        raise ValueError(f"{header}")
    return replace(header, began=float(header.began))


def _stretch(turn: Any, epoch: Any, first: Any, after: Any, steps: Any, digest: Any, *rest: Any) -> Stretch:
    bad, packed = [*rest, (), ""][:2] if len(rest) < 2 else rest
    if not (isinstance(digest, str) and isinstance(packed, str)):
        raise TypeError(f"{digest!r} and {packed!r} where texts should be")
    places = _number(first), _number(after)
    return Stretch(_number(turn), _number(epoch), *places, _number(steps), digest, tuple(map(_number, bad)), packed)


def _number(value: Any) -> int:
    """A whole number that is no less than 0.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**62:
        raise ValueError(f"{value!r} where a whole number should be")
    return value
