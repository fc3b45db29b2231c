"""Units asked what a manifest must know of their rows: which a filter keeps, which values a label has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ingest.errors import ReadError, RecordError
from ingest.manifest.question import ANSWERS, Question, Target, answer_of, check_count
from ingest.manifest.statistics import unit_bounds
from ingest.manifest.where import FALSE, NULL, TRUE, Bound, outcomes
from ingest.read.example import BAD_COLUMN
from ingest.read.filtering import kept
from ingest.read.finish import text_of
from ingest.read.parquet import read_unit
from ingest.read.sources import cached_footer
from ingest.spec import Storage
from ingest.storage.filesystem import open_filesystem

_THREADS = 16


class Reader(NamedTuple):
    """How a format's units are asked.

    Attributes:
        may: what a filter may be for a unit's rows, by what is known without reading them.
        columns: source columns of all rows of a unit, nulls kept, as a table of the given schema.
    """

    may: Callable[[Target, Bound, Storage], int]
    columns: Callable[[Question, Target, pa.Schema, Storage], pa.Table]


def answer(question: Question, targets: Sequence[Target], storage: Storage) -> pa.Table:
    """Ask some units, several at a time where they lie far away.

    Args:
        question: what is asked.
        targets: units of one store.
        storage: how to reach it.

    Returns:
        A table of `ANSWERS`, one row for each unit, in order.

    Raises:
        ReadError: a unit cannot be read, or is not what was listed.
        SchemaError: a class column has too many values.
    """
    reader = READERS[question.format]

    def one(target: Target) -> dict[str, Any]:
        return _answer(question, target, reader, storage)

    if len(targets) > 1 and open_filesystem(targets[0].entry.url, storage).remote:
        with ThreadPoolExecutor(min(_THREADS, len(targets))) as pool:
            answers = list(pool.map(one, targets))
    else:
        answers = [one(target) for target in targets]
    _without_repeats(question, answers)
    return pa.Table.from_pylist(answers, schema=ANSWERS)


def _answer(question: Question, target: Target, reader: Reader, storage: Storage) -> dict[str, Any]:
    count, fields = target.rows, list(question.class_schema)
    if question.where is not None:
        decided = answer_of(reader.may(target, question.where, storage), target.rows)
        count = -1 if decided is None else decided
    if count < 0:
        fields += [field for field in question.where_schema if field.name not in question.class_schema.names]
    bits = None
    if fields:
        table = reader.columns(question, target, pa.schema(fields), storage)
        if len(table) != target.rows:
            raise ReadError(
                f"the file has changed since it was listed: {target.rows} rows then, {len(table)} now",
                path=target.entry.url,
                hint="Start the run again",
            )
        if question.where is not None and count < 0:
            mask = kept(question.where, {name: table[name] for name in question.where_schema.names})
            if BAD_COLUMN in table.column_names:  # kept, so that reading it says what is wrong, or replaces it
                mask |= table[BAD_COLUMN].is_valid().to_numpy()
            count = int(np.count_nonzero(mask))
            bits = np.packbits(mask, bitorder="little").tobytes() if 0 < count < len(mask) else None
    if fields and BAD_COLUMN in table.column_names:
        table = table.filter(table[BAD_COLUMN].is_null())
    values = [_distinct(table[name]) for name in question.class_schema.names] if fields else []
    return {"unit": target.unit, "kept": count, "bits": bits, "values": values}


def _distinct(column: pa.ChunkedArray) -> list[bytes]:
    values: list[bytes] = pc.drop_null(pc.unique(text_of(column))).to_pylist()
    return values


def _without_repeats(question: Question, answers: list[dict[str, Any]]) -> None:
    """Leave a value in the first unit only that has it."""
    seen: list[set[bytes]] = [set() for _ in question.class_schema.names]
    for answer in answers:
        for i, (name, values) in enumerate(zip(question.class_schema.names, answer["values"], strict=True)):
            answer["values"][i] = [value for value in values if value not in seen[i]]
            seen[i].update(values)
            check_count(name, len(seen[i]))


def _parquet_may(target: Target, bound: Bound, storage: Storage) -> int:
    footer = cached_footer(target.entry, open_filesystem(target.entry.url, storage))
    if target.ordinal >= footer.metadata.num_row_groups:
        return TRUE | FALSE | NULL  # reading says what is wrong
    return outcomes(bound, lambda name, kind: unit_bounds(target.entry, footer, target.ordinal, name, kind))


def _parquet_columns(question: Question, target: Target, schema: pa.Schema, storage: Storage) -> pa.Table:
    del question
    return read_unit(target.entry, target.ordinal, None, schema, {name: name for name in schema.names}, storage, None)


def _record_may(target: Target, bound: Bound, storage: Storage) -> int:
    """Nothing is known of records that were not read."""
    del target, bound, storage
    return TRUE | FALSE | NULL


def _record_columns(question: Question, target: Target, schema: pa.Schema, storage: Storage) -> pa.Table:
    """A record that cannot be parsed has a row that means nothing, and says so in a last column."""
    from ingest.read.schema import arrow_type
    from ingest.read.tfrecord import Run, Wanted, read_records  # loads numba, of no use to Parquet

    features = {name: question.features[name] for name in schema.names if name in question.features}
    single = [
        name
        for name, kind in features.items()
        if kind.shape == () and kind.default is None and name not in dict(target.entry.partitions)
    ]
    for name in single:  # read as a list, which may be empty; a single value must be there
        features[name] = features[name].model_copy(update={"shape": (None,)})
        schema = schema.set(schema.get_field_index(name), pa.field(name, arrow_type(name, features[name])))
    run = Run(target.entry, target.offset, target.size, target.first_record, slice(0, target.rows))
    columns = {name: name for name in schema.names}
    wanted = Wanted(schema, columns, features, {}, None, question.check_payload, "mark")
    table = read_records([run], wanted, storage)
    for name in single:
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, _single(table[name], name, target))
    return table


def _single(lists: pa.ChunkedArray, name: str, target: Target) -> pa.ChunkedArray:
    """The values of lists of one value or none, which are nulls."""
    lengths = pc.list_value_length(lists).to_numpy()
    if lengths.max(initial=0) > 1:
        row = int(np.argmax(lengths > 1))
        raise RecordError(
            f"feature '{name}' has {lengths[row]} values, and a filter or class list takes single ones",
            path=target.entry.url,
            row=target.first_record + row,
            hint=f"Leave it out of them, or declare it as a list: source.schema: {{{name}: {{shape: [null]}}}}",
        )
    places = pa.array(np.cumsum(lengths) - 1, mask=lengths == 0)
    return pc.list_flatten(lists).take(places)


READERS = {"parquet": Reader(_parquet_may, _parquet_columns), "tfrecord": Reader(_record_may, _record_columns)}
