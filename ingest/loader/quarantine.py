"""Bad samples that were replaced: each counted once by (epoch, id), kept in Parquet files, held against the budget."""

from __future__ import annotations

import io
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ingest.errors import SampleError, SourceError

SCHEMA = pa.schema(
    [
        ("sample_id", pa.int64()),
        ("epoch", pa.int64()),
        ("path", pa.string()),
        ("row", pa.int64()),
        ("error", pa.string()),
        ("first_bytes", pa.binary()),
    ]
)
SUFFIX = ".quarantine.parquet"
FILE_ROWS = 10_000  # a fuller file is closed, and the next one begun: a file is written anew as it grows
FLUSH_S = 10.0
LAST = 3  # bad samples that the error over the budget shows


@dataclass(frozen=True)
class Record:
    """One bad sample, as its file has it; `first_bytes` are of its encoded content, where there is any."""

    sample_id: int
    epoch: int
    path: str
    row: int
    error: str
    first_bytes: bytes


class Quarantine:
    """One rank's record of bad samples.

    Attributes:
        total: different ones, by epoch and id, since this loader began.

    Args:
        name: begins its files' names; those of earlier attempts on the same data and columns begin the same way.
        writer: (file name, content): keeps a file, in the place of one of that name.
        kept: records of earlier attempts, which are not written again.
        budget: bad samples allowed, as a share of an epoch's rows.
        rows: of an epoch.
        count: (epoch, new ids) to the distinct bad ids of that epoch so far, over all ranks.
    """

    def __init__(
        self,
        name: str,
        writer: Callable[[str, bytes], None],
        kept: Iterable[Record],
        *,
        budget: float,
        rows: int,
        count: Callable[[int, list[int]], int],
    ) -> None:
        self._name, self._writer, self._count = f"{name}-{uuid.uuid4().hex[:12]}", writer, count
        self._budget, self._rows = budget, rows
        # A sample that is bad in one epoch is bad in all: a bit for each epoch, so that this does not grow with them.
        self._kept: dict[int, int] = {}
        self._mine: dict[int, int] = {}
        for record in kept:
            _mark(self._kept, record)
        self._resumed: int | None = None
        self._file: list[Record] = []
        self._files, self._written, self._flushed_at = 0, 0, time.monotonic()
        self._last: deque[Record] = deque(maxlen=LAST)
        self.total = 0
        self._lock = threading.RLock()  # bad samples come in one thread, and the trainer's saves what there is

    def resume(self, epoch: int) -> None:
        """An earlier attempt has taken a part of this epoch: what it found counts against the budget too."""
        self._resumed = epoch

    def add(self, records: Sequence[Record]) -> None:
        """Take the bad samples of a batch.

        Raises:
            SampleError: they are more than the budget allows.
            SourceError: they cannot be kept.
        """
        if records:
            with self._lock:
                self._take(records)

    def _take(self, records: Sequence[Record]) -> None:
        epoch = records[0].epoch
        for record in records:
            if _mark(self._mine, record):
                self.total += 1
                if _mark(self._kept, record):
                    self._file.append(record)
        self._last.extend(records)
        if len(self._file) >= FILE_ROWS or time.monotonic() - self._flushed_at > FLUSH_S:
            self.flush()
        ids = [record.sample_id for record in records]
        if epoch == self._resumed:
            self._resumed = None  # said once, it is known to all ranks
            ids += [sample for sample, epochs in self._kept.items() if epochs >> epoch & 1]
        allowed = int(self._budget * self._rows)
        found = self._count(epoch, ids)
        if found > allowed:
            self.flush()
            last = self._last[-1]
            raise SampleError(
                f"{found} bad samples in epoch {epoch} are more than errors.budget allows: {self._budget:g} of "
                f"{self._rows} rows is {allowed}. The last ones: "
                + "; ".join(f"{each.path} row {each.row}: {each.error}" for each in self._last),
                path=last.path,
                row=last.row,
                hint="Repair the data, or raise errors.budget",
            )

    def flush(self) -> None:
        """Write what has not been written yet.

        Raises:
            SourceError: it cannot be written.
        """
        with self._lock:
            self._flushed_at = time.monotonic()
            if len(self._file) == self._written:
                return
            self._writer(f"{self._name}-{self._files:04d}{SUFFIX}", encode(self._file))
            self._written = len(self._file)
            if self._written >= FILE_ROWS:
                self._file, self._written, self._files = [], 0, self._files + 1


def _mark(seen: dict[int, int], record: Record) -> bool:
    """Add a record to the epochs seen of each sample; whether it is new."""
    before = seen.get(record.sample_id, 0)
    seen[record.sample_id] = before | 1 << record.epoch
    return not before >> record.epoch & 1


def encode(records: Sequence[Record]) -> bytes:
    """Records as a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([asdict(record) for record in records], schema=SCHEMA), sink)
    return sink.getvalue()


def decode(name: str, data: bytes) -> Iterator[Record]:
    """The records of a Parquet file.

    Raises:
        SourceError: it is not a quarantine file.
    """
    try:
        table = pq.read_table(pa.BufferReader(data)).select(SCHEMA.names).cast(SCHEMA)
    except (pa.ArrowException, OSError, KeyError) as error:
        raise SourceError(f"not a quarantine file: {error}", path=name) from error
    if any(column.null_count for column in table.columns) or pc.any(pc.less(table["epoch"], 0)).as_py():
        raise SourceError("not a quarantine file: it has nulls, or epochs before the first", path=name)
    for values in table.to_pylist():
        yield Record(**values)


def distinct(records: Iterable[Record]) -> list[Record]:
    """Each (epoch, sample) once, sorted by them."""
    found = {(record.epoch, record.sample_id): record for record in records}
    return [found[key] for key in sorted(found)]
