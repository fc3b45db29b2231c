"""`show`: a picture of what the spec's augmentation does to the first samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ingest.augment.sheet import png, sheet
from ingest.cli_plan import find
from ingest.errors import SpecError
from ingest.ops import Clip, Waveform
from ingest.read.windows import ReadOptions, window_call
from ingest.session_choices import check_outputs
from ingest.spec import Spec


def show(spec: Spec, output: Path, *, samples: int, passes: int, cache_dir: Path | None) -> dict[str, Any]:
    """Writes the sheet.

    Raises:
        SpecError: the spec augments nothing.
        SchemaError: an image is to be where none is.
        SourceError: the data cannot be found, listed or opened.
        ReadError: the samples cannot be read.
    """
    if not spec.augment.pipeline:
        raise SpecError("the spec augments nothing", hint="Give augment.recipe, ops or a function")
    if isinstance(spec.augment.pipeline[0], (Clip, Waveform)):
        raise SpecError(f"show draws images, and the spec's first op is {spec.augment.pipeline[0].name}")
    manifest = find(spec, cache_dir).manifest
    check_outputs(spec, manifest.schema)
    tables: list[pa.Table] = []
    ids: list[NDArray[np.int64]] = []
    for unit in range(len(manifest.units)):
        if sum(map(len, ids)) >= samples:
            break
        function, args = window_call(manifest, {unit: None}, ReadOptions.of(spec, manifest.local([unit])[0]))
        tables.append(function(*args))
        ids.append(manifest.sample_ids(unit))
    table = pa.concat_tables(tables).slice(0, samples)
    sample_ids = np.concatenate(ids)[: len(table)]
    pixels, bad = sheet(spec.augment, table, sample_ids, seed=spec.order.seed, passes=passes)
    output.write_bytes(png(pixels))
    return {"samples": len(table), "passes": passes, "bad": bad, "output": str(output)}
