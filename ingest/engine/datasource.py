"""Read tasks for Ray Data: one function call a task, its table as one block, its failure as data."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from ray.data import Datasource, ReadTask
from ray.data.block import BlockMetadata

from ingest.errors import IngestError, ReadError
from ingest.storage import counters

ERROR_COLUMN = "__ingest_error__"
TRAFFIC_KEY = b"ingest.traffic"


@dataclass(frozen=True)
class Call:
    """One read task: `function(*args)` returns a table of `rows` rows and about `size_bytes` bytes."""

    function: Callable[..., pa.Table]
    args: tuple[Any, ...]
    rows: int | None
    size_bytes: int

    @property
    def __name__(self) -> str:
        """As a function has one: Ray Data names what reads where its arguments are large, of thousands of files say."""
        return self.function.__name__

    def __call__(self) -> Iterator[pa.Table]:
        before = counters()
        # A failure travels as a block: raised, it would overtake the good blocks of earlier windows.
        try:
            table = self.function(*self.args)
            if self.rows is not None and len(table) != self.rows:
                raise ReadError(
                    f"{self.rows} rows were planned, and {len(table)} were read", hint="Start the run again"
                )
        except IngestError as error:
            table = error_table(error)
        yield with_traffic(table, {name: total - before[name] for name, total in counters().items()})


class Calls(Datasource):
    """A fixed list of calls, one read task each."""

    def __init__(self, calls: Sequence[Call], name: str) -> None:
        super().__init__()
        self._calls, self._name = calls, name

    def get_name(self) -> str:
        return self._name

    def estimate_inmemory_data_size(self) -> int | None:
        return sum(call.size_bytes for call in self._calls)

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        del parallelism, per_task_row_limit, data_context  # the plan decides, not Ray Data
        return [
            ReadTask(
                call,
                BlockMetadata(num_rows=call.rows, size_bytes=call.size_bytes, input_files=None, exec_stats=None),
            )
            for call in self._calls
        ]


def with_traffic(table: pa.Table, traffic: Mapping[str, int]) -> pa.Table:
    """The table with what its read asked of the store beside its schema, where whoever holds no block can see it."""
    asked = {name: count for name, count in traffic.items() if count}
    return table.replace_schema_metadata({TRAFFIC_KEY: json.dumps(asked)} if asked else None)


def traffic_in(schema: Any) -> dict[str, int]:
    """What `with_traffic` put beside a schema."""
    raw = (getattr(schema, "metadata", None) or {}).get(TRAFFIC_KEY)
    return {} if raw is None else {str(name): int(count) for name, count in json.loads(raw).items()}


def error_table(error: IngestError) -> pa.Table:
    """A one-row table that stands for a failed read."""
    return pa.table({ERROR_COLUMN: pa.array([pickle.dumps(error)], pa.binary())})


def error_in(table: pa.Table) -> IngestError | None:
    """The error that a block carries, if it carries one."""
    if table.column_names != [ERROR_COLUMN]:
        return None
    error = pickle.loads(table.column(0)[0].as_py())  # noqa: S301 - written by our own read task
    assert isinstance(error, IngestError)
    return error
