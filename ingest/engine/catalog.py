"""The catalog: lists the data once for all ranks of a run, reads the footers as Ray Data work, keeps the manifest."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import ray

from ingest.manifest import store
from ingest.manifest.build import build_manifest
from ingest.manifest.listing import list_files
from ingest.manifest.model import FileEntry, Manifest
from ingest.manifest.parquet import index_files
from ingest.manifest.question import Question, Target, grouped
from ingest.spec import Source

FILES_PER_TASK = 256  # footers of a chunk are read by several threads: starting tasks for fewer takes longer than that


class Catalog:
    """Builds a source's manifest when first asked. Hosted by a named Ray actor, found by all ranks of a run.

    Args:
        source: what to list.
        cache_dir: where manifests are kept between runs; None keeps none.
        cpus: CPUs of each task that reads footers.
    """

    def __init__(self, source: Source, cache_dir: str | None, cpus: float) -> None:
        self._source, self._cache_dir, self._cpus = source, cache_dir, cpus
        self._manifest: tuple[ray.ObjectRef, float] | None = None

    def manifest(self) -> tuple[ray.ObjectRef, float]:
        """A reference to the manifest, and the seconds it took to make.

        Raises:
            SourceError: the data cannot be found, listed or opened.
        """
        if self._manifest is None:
            began = time.perf_counter()
            manifest = self._build()
            self._manifest = (ray.put(manifest), time.perf_counter() - began)
        return self._manifest

    def _build(self) -> Manifest:
        files = list_files(self._source)
        key = store.cache_key(files, self._source)
        kept = store.load(self._cache_dir, key) if self._cache_dir else None
        if kept is not None:
            return kept
        manifest = build_manifest(files, self._index(files), self._source, self._look)
        if self._cache_dir:
            store.save(self._cache_dir, key, manifest)
        return manifest

    def _index(self, files: Sequence[FileEntry]) -> pa.Table:
        """The footers of all files, as Ray Data work; one chunk alone is read here, sooner than a task would start."""
        chunks = [files[i : i + FILES_PER_TASK] for i in range(0, len(files), FILES_PER_TASK)]
        if len(chunks) == 1:
            return index_files(files, self._source.columns, self._source.storage)
        tables = self._run("ingest-index", index_files, [(c, self._source.columns) for c in chunks])
        return pa.concat_tables(tables).unify_dictionaries()

    def _look(self, question: Question, targets: Sequence[Target]) -> pa.Table:
        """Units asked for what footers do not tell, as Ray Data work; a few are asked here."""
        from ingest.read.answer import answer

        groups = grouped(targets)
        if len(groups) == 1:
            return answer(question, targets, self._source.storage)
        return pa.concat_tables(self._run("ingest-where", answer, [(question, group) for group in groups]))

    def _run(
        self, name: str, function: Callable[..., pa.Table], arguments: Sequence[tuple[Any, ...]]
    ) -> list[pa.Table]:
        """The tables of one function over many arguments, the store's own added to each.

        Raises:
            IngestError: the first that a call gave, in their order.
        """
        from ingest.engine.datasource import Call, error_in
        from ingest.engine.private import own_process
        from ingest.engine.segment import run_calls

        own_process()
        calls = [Call(function, (*args, self._source.storage), None, 1 << 20) for args in arguments]
        tables = run_calls(calls, num_cpus=self._cpus, name=name)
        for table in tables:
            error = error_in(table)
            if error is not None:
                raise error
        return tables
