"""The coverage log: what each rank of each attempt was given, in a few bytes a stretch of steps, written as it trains.

A folder holds a `.plan.parquet` for each plan, from which positions can be turned into sample ids without the data, and
for each rank and attempt `.coverage.jsonl` files, only ever added to: a header, then a line for each turn to a position
and for each stretch of steps taken. What a line says was handed out; what came after the last line is not proven. A
line that a death cut in two counts as not written.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ingest.errors import SourceError
from ingest.loader.batch import Batch
from ingest.plan.layout import Order

PLAN_SUFFIX, LOG_SUFFIX = ".plan.parquet", ".coverage.jsonl"
VERSION = 1
STRETCH_S = 30.0  # a stretch is closed at least this often
REMOTE_S = 5.0  # where a file cannot be added to, a new one is written no more often than this
_META = b"ingest.plan"


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
    """

    turn: int
    epoch: int
    first: int
    after: int
    steps: int
    digest: str
    bad: tuple[int, ...] = ()


@dataclass
class RankLog:
    """What a rank of an attempt has written.

    Attributes:
        header: who.
        turns: the (epoch, position) that it turned to, one after the other.
        stretches: in the order written.
    """

    header: Header
    turns: list[tuple[int, int]] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)


class CoverageLog:
    """One rank's side. For the trainer's thread.

    Args:
        header: who writes.
        folder: a folder on this machine that is added to; None where there is no adding.
        writer: (file name, content), for all other places.
    """

    def __init__(self, header: Header, folder: Path | None, writer: Callable[[str, bytes], None]) -> None:
        self._folder, self._writer = folder, writer
        self._name = f"{header.attempt}-rank{header.rank:05d}-{os.getpid():x}{time.time_ns():x}"
        self._lines = [json.dumps({"header": asdict(header)})]
        self._files, self._written_at, self._turn = 0, 0.0, -1
        self._open: tuple[int, int, int, int] | None = None  # epoch, first, after, steps
        self._digest = hashlib.blake2b(digest_size=8)
        self._bad: list[int] = []
        self._opened_at = 0.0
        self._at = (0, 0)

    def turn(self, epoch: int, position: int) -> None:
        """The loader turns to a position."""
        self._close()
        self._turn += 1
        self._lines.append(json.dumps({"turn": [epoch, position]}))
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
        self._lines.append(json.dumps({"took": [*stretch, self._bad] if self._bad else stretch}))
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
            return RankLog(Header(**said["header"]))
        if "turn" in said:
            epoch, position = said["turn"]
            log.turns.append((int(epoch), int(position)))
        elif "took" in said:
            turn, epoch, first, after, steps, digest, *bad = said["took"]
            log.stretches.append(Stretch(turn, epoch, first, after, steps, digest, tuple(*bad)))
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise SourceError(f"not a coverage log: {type(error).__name__}: {error}", path=name) from error
    return log


# -- the plan ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlanFacts:
    """What gives a plan's ids back.

    Attributes:
        digest: of the data.
        order: resolved.
        unit_rows, first_id: int64 (units,): kept rows of each unit, and the id of the first row it has in its file.
        kept: unit: int64 (rows,), which of the unit's rows are kept, where they are not its first ones.
    """

    digest: str
    order: Order
    unit_rows: NDArray[np.int64]
    first_id: NDArray[np.int64]
    kept: Mapping[int, NDArray[np.int64]]

    @property
    def rows(self) -> int:
        return int(self.unit_rows.sum())

    def sample_ids(self, unit: int, rows: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """The ids of a unit's rows, numbered as they are kept; all when None."""
        inside = np.arange(self.unit_rows[unit]) if rows is None else rows
        kept = self.kept.get(unit)
        ids: NDArray[np.int64] = self.first_id[unit] + (inside if kept is None else kept[inside])
        return ids

    def encode(self) -> bytes:
        """As a Parquet file, a row for each unit."""
        units = len(self.unit_rows)
        listed = [self.kept.get(unit, np.zeros(0, np.int64)) for unit in range(units)]
        offsets = np.concatenate([[0], np.cumsum([len(each) for each in listed])]).astype(np.int64)
        missing = pa.array([unit not in self.kept for unit in range(units)], pa.bool_())
        values = pa.array(np.concatenate([np.zeros(0, np.int64), *listed]))
        kept = pa.LargeListArray.from_arrays(offsets, values, mask=missing)
        table = pa.table({"rows": self.unit_rows, "first_id": self.first_id, "kept": kept})
        facts = {"version": VERSION, "digest": self.digest, "order": asdict(self.order)}
        sink = io.BytesIO()
        table = table.replace_schema_metadata({_META: json.dumps(facts, sort_keys=True).encode()})
        pq.write_table(table, sink, compression="zstd")
        return sink.getvalue()

    @property
    def name(self) -> str:
        """Names the plan by what it says."""
        whole = hashlib.blake2b(json.dumps([self.digest, asdict(self.order)], sort_keys=True).encode(), digest_size=8)
        for array in (self.unit_rows, self.first_id, *(self.kept[unit] for unit in sorted(self.kept))):
            whole.update(array.astype("<i8").tobytes())
        return whole.hexdigest()


def decode_plan(name: str, data: bytes) -> PlanFacts:
    """The plan in a Parquet file.

    Raises:
        SourceError: it is something else.
    """
    try:
        table = pq.read_table(pa.BufferReader(data))
        facts = json.loads((table.schema.metadata or {})[_META])
        lists = table["kept"].combine_chunks()
        kept = {unit: lists[unit].values.to_numpy() for unit in range(len(lists)) if lists[unit].is_valid}
        order = Order(**facts["order"])
        rows, first = (table[column].to_numpy() for column in ("rows", "first_id"))
        return PlanFacts(str(facts["digest"]), order, rows, first, kept)
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise SourceError(f"not a plan of a coverage log: {error}", path=name) from error
