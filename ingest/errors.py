"""The error tree: what was asked, what was found, where, and what to do."""

from __future__ import annotations

from typing import Any


class IngestError(Exception):
    """Base of every error that `ingest` raises on purpose.

    Attributes:
        message: what was asked and what was found.
        stage: `spec`, `manifest`, `plan`, `read`, `augment`, `feed`, `loader` or `cluster`.
        path: the file concerned, as the user wrote it or as listing found it.
        row: the row inside `path` (0-based).
        rank: the rank that failed.
        hint: what to do about it.
        cause: the original exception as text, when it happened in another process.
        sample_id: the sample concerned, before anybody has looked up its file and row.
    """

    default_stage: str | None = None

    def __init__(
        self,
        message: str,
        *,
        stage: str | None = None,
        path: str | None = None,
        row: int | None = None,
        rank: int | None = None,
        hint: str | None = None,
        cause: str | None = None,
        sample_id: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.stage = stage or self.default_stage
        self.path = path
        self.row = row
        self.rank = rank
        self.hint = hint
        self.cause = cause
        self.sample_id = sample_id

    def __str__(self) -> str:
        where = [
            f"{name} {value}"
            for name, value in (("rank", self.rank), ("file", self.path), ("row", self.row))
            if value is not None
        ]
        text = f"[{self.stage}] {self.message}" if self.stage else self.message
        if where:
            text += f" ({', '.join(where)})"
        if self.cause:
            text += f"; cause: {self.cause}"
        if self.hint:
            text += f". {self.hint}"
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle their positional arguments only; ours cross processes with every field.
        fields = {k: v for k, v in self.__dict__.items() if k != "message"}
        return _rebuild, (type(self), self.message, fields)


def _rebuild(kind: type[IngestError], message: str, fields: dict[str, Any]) -> IngestError:
    error = kind(message)
    error.__dict__.update(fields)
    return error


class SpecError(IngestError, ValueError):
    """The spec is not valid, or asks for what cannot be done."""

    default_stage = "spec"


class SourceError(IngestError):
    """The data cannot be found, listed or opened."""

    default_stage = "manifest"


class SchemaError(SourceError):
    """A column is missing, or files disagree on its type."""


class PlanError(IngestError, ValueError):
    """No plan fits what was asked: too few rows, or too little memory."""

    default_stage = "plan"


class ReadError(IngestError):
    """A unit that listing saw could not be read."""

    default_stage = "read"


class DamagedError(ReadError):
    """What was read, whole, is not what it must be: it cannot be parsed, or a checksum does not fit.

    A failure of content, as opposed to one of access.
    """


class SampleError(IngestError):
    """One sample's content is bad: it cannot be parsed or decoded."""

    default_stage = "augment"


class RecordError(SampleError):
    """A record's bytes are not what its format, or its schema, says.

    Attributes:
        index: the record, counted in the call that parsed it (0-based); a reader that knows the file sets `path`
            and `row`.
        offset: the byte of the parsed data at which it was seen.
    """

    default_stage = "read"

    def __init__(self, message: str, *, index: int = -1, offset: int = -1, **where: Any) -> None:
        super().__init__(message, **where)
        self.index = index
        self.offset = offset


class StageError(IngestError):
    """A stage failed for a reason that is not the data's: a bug, or a process that died."""


class ClusterError(IngestError):
    """The cluster lacks what the run needs."""

    default_stage = "cluster"


class StateError(IngestError, ValueError):
    """A saved state does not fit the data or the spec."""

    default_stage = "loader"
