"""Bad samples under `on_bad_sample: replace`: found, described, and their slots filled with healthy rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ingest.augment.collate import Pieces, collate, gather
from ingest.engine.jobs import Job
from ingest.errors import SampleError
from ingest.read.arranged import SAMPLE_ID
from ingest.read.mark import MARK

BAD = "__bad__"  # beside the arrays of a batch: its list of `Bad`, where there are any
ALONE = -1  # the group of a row that is mixed with no other
HEAD_BYTES = 64  # of a bad sample, kept to tell what it is


@dataclass(frozen=True)
class Bad:
    """One bad sample of a batch.

    Attributes:
        slot: its place in the batch.
        donor: the place of the row that is shown there instead.
        sample_id: whose content is bad.
        message: what is wrong with it.
        head: its first bytes; empty where there are none to show.
    """

    slot: int
    donor: int
    sample_id: int
    message: str
    head: bytes


def is_marked(table: pa.Table) -> bool:
    """Whether the table has a column of marks."""
    return MARK in table.column_names


def without_marks(table: pa.Table) -> pa.Table:
    """The table without its column of marks, where that marks nothing."""
    return table.drop_columns([MARK]) if is_marked(table) and table.column(MARK).null_count == len(table) else table


def unmark(pieces: Pieces) -> tuple[Pieces, dict[int, str]]:
    """The pieces without the reader's marks, and what the marks say, by place in the batch."""
    plain, marks, at = [], {}, 0
    for table, rows in pieces:
        if is_marked(table):
            column = table.column(MARK)
            if column.null_count < len(column):
                said = pc.take(column, pa.array(rows)).to_pylist()
                marks.update({at + i: text for i, text in enumerate(said) if text is not None})
            table = table.drop_columns([MARK])  # noqa: PLW2901
        plain.append((table, rows))
        at += len(rows)
    return plain, marks


def donors(count: int, bad: Collection[int]) -> NDArray[np.int64]:
    """For each of `count` places itself where it is healthy, else the next healthy one, round the end; int64 (count,).

    Some place must be healthy.
    """
    healthy = np.setdiff1d(np.arange(count, dtype=np.int64), np.fromiter(bad, np.int64, len(bad)))
    after: NDArray[np.int64] = healthy[np.searchsorted(healthy, np.arange(count)) % len(healthy)]
    return after


def chosen(pieces: Pieces, places: NDArray[np.int64]) -> Pieces:
    """The rows at some places of a batch, in their order, as pieces."""
    part = np.repeat(np.arange(len(pieces)), [len(rows) for _, rows in pieces])[places]
    rows = np.concatenate([rows for _, rows in pieces])[places]
    cuts = np.concatenate([[0], np.flatnonzero(np.diff(part)) + 1])
    return [(pieces[index][0], run) for index, run in zip(part[cuts].tolist(), np.split(rows, cuts[1:]), strict=True)]


def collate_healthy(pieces: Pieces, sample_ids: NDArray[np.int64]) -> dict[str, Any]:
    """`collate` with marked rows replaced; the bad ones, if any, under `BAD`.

    Raises:
        SampleError: no row of the batch is healthy.
        ReadError: as `collate`.
    """
    plain, marks = unmark(pieces)
    if not marks:
        return collate(plain)
    bad = described(marks, sample_ids, {})
    return {**collate(chosen(plain, donors(len(sample_ids), marks))), BAD: bad}


def replaced(attempt: Callable[..., Any], job: Job, pieces: Pieces, column: str) -> dict[str, Any]:
    """A job's batch with bad samples replaced; they are listed under `BAD`, where there are any.

    Args:
        attempt: `Augmenter.attempt`.
        job: the job.
        pieces: its rows.
        column: that holds encoded images.

    Raises:
        SampleError: no row of the batch is healthy.
        ReadError: as `attempt`.
    """
    plain, messages = unmark(pieces)
    ids, groups, used, pass_ = job.sample_ids, job.lanes, plain, job.pass_
    if messages:  # what the reader marked has nothing to decode: a healthy row stands there, and mixes with nobody
        described(messages, ids, {})
        places = donors(len(ids), messages)
        used, ids = chosen(plain, places), ids[places]
        pass_ = pass_ if isinstance(pass_, int) else pass_[places]
        groups = groups.copy()
        groups[list(messages)] = ALONE
    arrays, failures = attempt(used, ids, pass_, groups)
    for slot, failure in failures.items():
        messages.setdefault(slot, failure.message)
    if not messages:
        return dict(arrays)
    bad = described(messages, job.sample_ids, heads(plain, column, messages))
    fill(arrays, bad)
    return {**arrays, BAD: bad}


def described(messages: Mapping[int, str], sample_ids: NDArray[np.int64], heads: Mapping[int, bytes]) -> list[Bad]:
    """The bad samples of a batch, in its order.

    Raises:
        SampleError: no row of the batch is healthy.
    """
    if len(messages) == len(sample_ids):
        raise SampleError(
            f"none of the {len(sample_ids)} rows of a batch is healthy, so none can stand for the others; the first: "
            f"{messages[0]}",
            sample_id=int(sample_ids[0]),
            hint="Repair the data, leave the rows out, or use larger batches",
        )
    source = donors(len(sample_ids), messages)
    return [
        Bad(slot, int(source[slot]), int(sample_ids[slot]), messages[slot], heads.get(slot, b""))
        for slot in sorted(messages)
    ]


def identified(arrays: dict[str, Any], ids: NDArray[np.int64]) -> dict[str, Any]:
    """The arrays with the ids of what stands there, those of donors where samples are bad; int64 (rows,)."""
    if BAD in arrays:
        ids = ids.copy()
        ids[[bad.slot for bad in arrays[BAD]]] = ids[[bad.donor for bad in arrays[BAD]]]
    return {**arrays, SAMPLE_ID: ids}


def heads(pieces: Pieces, column: str, slots: Collection[int]) -> dict[int, bytes]:
    """The first bytes of a column of bytes at some places of a batch."""
    values = gather(pieces, column)
    return {slot: data[:HEAD_BYTES].tobytes() for slot in slots if (data := values[slot]) is not None}


def fill(arrays: Mapping[str, NDArray[Any]], bad: Collection[Bad]) -> None:
    """Copy each bad sample's donor over it, in every array."""
    slots = [each.slot for each in bad]
    sources = [each.donor for each in bad]
    for array in arrays.values():
        array[slots] = array[sources]
