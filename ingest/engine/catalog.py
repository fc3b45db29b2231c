"""The catalog: lists the data once for all ranks of a run, reads the footers as Ray Data work, keeps the manifest."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray

from ingest.engine import private
from ingest.engine.datasource import Call, error_in
from ingest.engine.segment import run_calls
from ingest.errors import ClusterError, IngestError
from ingest.manifest import store
from ingest.manifest.build import build_manifest
from ingest.manifest.listing import list_files
from ingest.manifest.model import FileEntry, Manifest
from ingest.manifest.parquet import index_files
from ingest.spec import Source, fingerprint

FILES_PER_TASK = 16
NAMESPACE = "ingest"


class Catalog:
    """Builds a source's manifest when first asked. Runs as a named Ray actor, found by all ranks of a run.

    Args:
        source: what to list.
        cache_dir: where manifests are kept between runs; None keeps none.
        cpus: CPUs of each task that reads footers.
    """

    def __init__(self, source: Source, cache_dir: str | None, cpus: float) -> None:
        private.silence_logs()
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
        manifest = build_manifest(files, self._index(files), self._source)
        if self._cache_dir:
            store.save(self._cache_dir, key, manifest)
        return manifest

    def _index(self, files: Sequence[FileEntry]) -> pa.Table:
        """The footers of all files; a handful is read here, since an execution would take longer to start."""
        chunks = [files[i : i + FILES_PER_TASK] for i in range(0, len(files), FILES_PER_TASK)]
        if len(chunks) == 1:
            return index_files(files, self._source.columns, self._source.storage)
        calls = [
            Call(index_files, (chunk, self._source.columns, self._source.storage), None, 1 << 20) for chunk in chunks
        ]
        tables = run_calls(calls, num_cpus=self._cpus, name="ingest-index")
        for table in tables:
            error = error_in(table)
            if error is not None:
                raise error
        return pa.concat_tables(tables).unify_dictionaries()


@dataclass(frozen=True)
class Found:
    """A manifest, its reference, the seconds it took to make, and the catalog that owns it, kept alive by this."""

    manifest: Manifest
    ref: ray.ObjectRef
    seconds: float
    catalog: Any


def find_manifest(source: Source, run: str, cache_dir: Path | None, cpus: float) -> Found:
    """The manifest of a source, made once for all that name the same run.

    Raises:
        SourceError: the data cannot be found, listed or opened.
        ClusterError: the actor that lists it died three times.
    """
    name = f"catalog-{run}-{fingerprint(source.model_dump(mode='json'))}"
    for _ in range(3):
        catalog = (
            ray.remote(Catalog)
            .options(name=name, namespace=NAMESPACE, get_if_exists=True, num_cpus=0)
            .remote(source, None if cache_dir is None else str(cache_dir), cpus)
        )
        try:
            ref, seconds = ray.get(catalog.manifest.remote())
            return Found(ray.get(ref), ref, float(seconds), catalog)
        except ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, IngestError) else error) from error
        except (ray.exceptions.ActorDiedError, ray.exceptions.OwnerDiedError):
            continue  # the rank that made it has left; the next one makes it again
    raise ClusterError("the actor that lists the data died three times", hint="See its log in Ray's dashboard")
