"""Reads whose images are decoded, up to the first random op, and kept so: `cache.decoded`.

What is kept is a table of up to 32 rows of a unit, all its columns, pixels in the place of images. Its name is a digest
of all that decides its bytes. So a read whose rows are kept asks the store for nothing and decodes nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ingest.engine.jobs import Decoding
from ingest.engine.replace import is_marked, without_marks
from ingest.loader.state import backend
from ingest.manifest.model import Manifest
from ingest.ops.leading import leading
from ingest.read.marks import marked
from ingest.read.parquet import READ_AHEAD
from ingest.read.windows import ReadOptions, window_call
from ingest.spec import Augment
from ingest.storage.base import Blob
from ingest.storage.filesystem import disk_cache
from ingest.storage.traffic import TRAFFIC

CHUNK_ROWS = 32
_VERSION = 2  # of what is kept; another one where decoding gives other pixels


class Part(NamedTuple):
    """Rows of one unit.

    Attributes:
        name: of its content; None where the store has no version of it, so that it is not kept.
        kept: how many rows of it are kept.
        rows: which of them are wanted, sorted int64 (n,); None: all.
        function: with `args`, reads all its kept rows.
        args: see `function`.
    """

    name: str | None
    kept: int
    rows: NDArray[np.int64] | None
    function: Callable[..., pa.Table]
    args: tuple[Any, ...]


def decoded_call(
    manifest: Manifest, units: Mapping[int, NDArray[np.int64] | None], options: ReadOptions, decoding: Decoding
) -> tuple[Callable[..., pa.Table], tuple[Any, ...]]:
    """As `window_call`, of a table whose images are pixels."""
    source, local = manifest.local(units)
    part = manifest.parts[source]
    how = _how(part, options, decoding)
    parts = []
    for unit, rows in zip(local, units.values(), strict=True):
        function, args = window_call(part, {unit: None}, options)
        parts.append(Part(_name(part, unit, how), int(part.units.rows[unit]), rows, function, args))
    return read_decoded, (tuple(parts), decoding)


def read_decoded(parts: Sequence[Part], decoding: Decoding) -> pa.Table:
    """The rows of several units one after another, decoded."""
    if len(parts) == 1:
        return _part(parts[0], decoding)
    with ThreadPoolExecutor(min(READ_AHEAD, len(parts))) as pool:  # one is read while another is decoded
        return _joined(list(pool.map(lambda part: _part(part, decoding), parts)))


def _part(part: Part, decoding: Decoding) -> pa.Table:
    wanted = np.arange(part.kept) if part.rows is None else part.rows
    numbers = np.unique(wanted // CHUNK_ROWS).tolist()
    unit: pa.Table | None = None
    chunks, hits, hit_bytes = [], 0, 0
    kept = disk_cache(decoding.cache)
    for number in numbers:
        name = None if part.name is None else _entry(part.name, number)
        blob = None if name is None else kept.get(name)
        if blob is not None:
            chunks.append(pa.ipc.open_stream(pa.py_buffer(blob)).read_all())
            hits, hit_bytes = hits + 1, hit_bytes + len(blob)
            continue
        if unit is None:
            unit = without_marks(part.function(*part.args))
        chunk = _leading(decoding.augment)(unit.slice(number * CHUNK_ROWS, CHUNK_ROWS))
        if name is not None and not is_marked(chunk):  # what could not be read may be repaired
            kept.put(name, _packed(chunk))
        chunks.append(chunk)
    TRAFFIC.add(cache_hits=hits, cache_misses=len(numbers) - hits, cache_hit_bytes=hit_bytes)
    table = _joined(chunks)
    if part.rows is None:
        return table
    # Where each wanted row stands in the chunks that were taken, all of them whole but the unit's last.
    places = np.searchsorted(numbers, wanted // CHUNK_ROWS) * CHUNK_ROWS + wanted % CHUNK_ROWS
    return table if len(places) == len(table) else table.take(pa.array(places))


def _joined(tables: list[pa.Table]) -> pa.Table:
    """One after another; where one of them says which rows are bad, so do all."""
    if any(map(is_marked, tables)):
        tables = [table if is_marked(table) else marked(table, None) for table in tables]
    return pa.concat_tables(tables)


def _packed(table: pa.Table) -> Blob:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue()


@lru_cache(maxsize=2)
def _opened(augment: Augment, _pid: int) -> Any:
    from ingest.augment.leading import Leading  # loads DALI, which a process that finds all it reads never needs

    return Leading(augment, rows=CHUNK_ROWS)


def _leading(augment: Augment) -> Any:
    return _opened(augment, os.getpid())


def _how(manifest: Manifest, options: ReadOptions, decoding: Decoding) -> str:
    """What decides the content of a unit's table beside the unit and the libraries: columns, types and ops."""
    augment = decoding.augment
    facts = (
        _VERSION,
        manifest.format,
        manifest.schema.to_string(show_field_metadata=False),
        sorted(manifest.columns.items()),
        sorted((name, kind.model_dump_json()) for name, kind in manifest.features.items()),
        sorted((name, tuple(one)) for name, one in manifest.classes.items()),
        sorted((name, repr(value)) for name, value in options.fill.items()),
        options.check_payload,
        (augment.column, augment.also),
        [op.model_dump_json() for op in leading(augment.pipeline)],
    )
    return repr(facts)


def _name(manifest: Manifest, unit: int, how: str) -> str | None:
    """Of a unit's content; None where its file has no version."""
    held = manifest.units
    entry = manifest.files[int(held.file[unit])]
    if entry.etag is None:
        return None
    rows = manifest.unit_rows(unit)
    kept = f"{rows.stop}" if isinstance(rows, slice) else hashlib.blake2b(rows.astype("<i8").tobytes()).hexdigest()
    place = (entry.url, entry.etag, entry.size, entry.partitions, int(held.ordinal[unit]), int(held.offset[unit]), kept)
    return hashlib.blake2b(f"{how}\n{place!r}".encode(), digest_size=20).hexdigest()


@cache
def _libraries() -> str:
    return repr(sorted(backend(gpu=False).items()))


def _entry(name: str, number: int) -> str:
    """The name of a chunk, by the libraries that decode here."""
    text = f"{name} {number} {_libraries()}"
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()
