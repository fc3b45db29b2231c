"""The catalog: lists the data once for all ranks of a run, indexes files as Ray Data work, keeps the manifest."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import ray
from numpy.typing import NDArray

from ingest.engine.jobs import Listed
from ingest.manifest import store
from ingest.manifest.build import build_manifest
from ingest.manifest.listing import format_of, list_files
from ingest.manifest.model import FileEntry, Manifest
from ingest.manifest.parquet import index_files
from ingest.manifest.question import Question, Target, grouped
from ingest.read.lengths import sample_lengths
from ingest.read.windows import ReadOptions
from ingest.spec import Source
from ingest.storage import counters

log = logging.getLogger(__name__)

FILES_PER_TASK = 256  # are read by several threads: starting tasks for fewer takes longer than that
BYTES_PER_TASK = 64 << 20  # of files that are read from beginning to end
SAID = 20  # damaged places that the log names


class Catalog:
    """Builds a source's manifest when first asked. Hosted by a named Ray actor, found by all ranks of a run.

    Args:
        source: what to list.
        cache_dir: where manifests are kept between runs; None keeps none.
        cpus: CPUs of each task that indexes files.
    """

    def __init__(self, source: Source, cache_dir: str | None, cpus: float) -> None:
        self._source, self._cache_dir, self._cpus = source, cache_dir, cpus
        self._listed: Listed | None = None
        self._asked: Counter[str] = Counter()  # of the store, by tasks
        self._lengths: dict[str, NDArray[np.int64]] = {}

    def manifest(self) -> Listed:
        """A reference to the manifest, and what it took to make.

        Raises:
            SourceError: the data cannot be found, listed or opened.
        """
        if self._listed is None:
            began, before = time.perf_counter(), counters()
            ref = ray.put(self._build())
            asked = {name: total - before[name] + self._asked[name] for name, total in counters().items()}
            self._listed = Listed(ref, time.perf_counter() - began, asked)
        return self._listed

    def lengths(self, column: str, options: ReadOptions) -> NDArray[np.int64]:
        """Int64 (rows,): the lengths of a sample, read when first asked for.

        Raises:
            SchemaError: the column has no lengths.
            ReadError: a unit cannot be read.
        """
        if column not in self._lengths:
            self._lengths[column] = sample_lengths(ray.get(self.manifest().ref), column, options)
        return self._lengths[column]

    def _build(self) -> Manifest:
        files = list_files(self._source)
        key = store.cache_key(files, self._source)
        kept = store.load(self._cache_dir, key) if self._cache_dir else None
        if kept is not None:
            return kept
        make = self._of_records if format_of(files, self._source) == "tfrecord" else self._of_footers
        manifest = make(files)
        if self._cache_dir:
            store.save(self._cache_dir, key, manifest)
        return manifest

    def _of_footers(self, files: Sequence[FileEntry]) -> Manifest:
        groups = [files[i : i + FILES_PER_TASK] for i in range(0, len(files), FILES_PER_TASK)]
        index = self._run("ingest-index", index_files, [(group, self._source.columns) for group in groups])
        return build_manifest(files, pa.concat_tables(index).unify_dictionaries(), self._source, self._look)

    def _of_records(self, files: Sequence[FileEntry]) -> Manifest:
        from ingest.manifest.tfrecord import index_records  # loads numba, of no use to Parquet
        from ingest.read.schema import needs_survey, record_manifest
        from ingest.read.survey import Survey

        survey = Survey if needs_survey(self._source) else None
        groups = [(group, self._source.tfrecord, survey) for group in group_files(files)]
        index = pa.concat_tables(self._run("ingest-index", index_records, groups))
        manifest = record_manifest(files, index, self._source, self._look)
        for damage in manifest.damage[:SAID]:
            log.warning("%s: %s", damage.url, damage.message)
        if len(manifest.damage) > SAID:
            log.warning("and %d more such places", len(manifest.damage) - SAID)
        return manifest

    def _look(self, question: Question, targets: Sequence[Target]) -> pa.Table:
        """Units asked for what footers do not tell, as Ray Data work; a few are asked here."""
        from ingest.read.answer import answer

        return pa.concat_tables(self._run("ingest-where", answer, [(question, group) for group in grouped(targets)]))

    def _run(
        self, name: str, function: Callable[..., pa.Table], arguments: Sequence[tuple[Any, ...]]
    ) -> list[pa.Table]:
        """The tables of one function over many arguments, the store's own added to each, as Ray Data work.

        One call alone is done here, sooner than a task would start.

        Raises:
            IngestError: the first that a call gave, in their order.
        """
        if len(arguments) == 1:
            return [function(*arguments[0], self._source.storage)]
        from ingest.engine.datasource import Call, error_in, traffic_in
        from ingest.engine.private import own_process
        from ingest.engine.segment import run_calls

        own_process()
        calls = [Call(function, (*args, self._source.storage), None, 1 << 20) for args in arguments]
        tables = run_calls(calls, num_cpus=self._cpus, name=name)
        for table in tables:
            error = error_in(table)
            if error is not None:
                raise error
            self._asked.update(traffic_in(table.schema))
        return tables


def group_files(files: Sequence[FileEntry]) -> list[list[FileEntry]]:
    """Files in runs of about `BYTES_PER_TASK`, a larger file alone; in one run where all are few bytes."""
    groups: list[list[FileEntry]] = [[]]
    size = 0
    for entry in files:
        if groups[-1] and (size + entry.size > BYTES_PER_TASK or len(groups[-1]) == FILES_PER_TASK):
            groups.append([])
            size = 0
        groups[-1].append(entry)
        size += entry.size
    return groups
