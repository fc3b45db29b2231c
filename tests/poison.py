"""A clean epoch and one with poisoned images side by side: `python -m tests.poison FOLDER [--rows N]`.

FOLDER holds Parquet files with columns `image`, bytes or a struct of them, and `label`. One row in a hundred is spoiled
in one of ten ways, three of which must decode all the same: those stand in the clean copy too. What healthy rows became
is compared by digest, what stands in quarantine with what is unreadable, and the throughput of the second epochs as a
ratio.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import statistics
import sys
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import ray
from PIL import Image

import ingest
from ingest.loader.quarantine import decode, distinct

EVERY = 100
UNREADABLE = ("empty", "random", "truncated", "HTML", "null", "zero-sized", "huge header")
READABLE = ("CMYK", "16-bit", "wrong extension")


def spoil(kind: str, data: bytes, drawn: random.Random) -> bytes | None:
    """An image spoiled in one of the ten ways."""
    if kind in ("empty", "null"):
        return b"" if kind == "empty" else None
    if kind == "random":
        return drawn.randbytes(len(data))
    if kind == "HTML":
        return b"<html><body>404 Not Found</body></html>"
    image = Image.open(io.BytesIO(data)).convert("RGB")
    if kind == "truncated":  # a JPEG's end is looked for before it is decoded, a PNG's is not
        whole = data if drawn.random() < 0.5 else _encoded(image, "PNG")
        return whole[: len(whole) * 9 // 10]
    if kind in ("zero-sized", "huge header"):
        head = bytearray(_encoded(image, "PNG"))
        head[16:24] = bytes(8) if kind == "zero-sized" else (20_000).to_bytes(4, "big") * 2
        return bytes(head)
    if kind == "CMYK":
        return _encoded(image.convert("CMYK"), "JPEG")
    if kind == "16-bit":
        return _encoded(Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257), "PNG")
    return _encoded(image, "PNG")  # a JPEG by its name alone


def _encoded(image: Image.Image, kind: str) -> bytes:
    out = io.BytesIO()
    image.save(out, kind)
    return out.getvalue()


def copies(folder: Path, target: Path, rows: int | None) -> tuple[int, dict[int, str]]:
    """Clean and poisoned copies of the first rows; how many there are, and the kind of each spoiled one, by sample."""
    kinds, drawn, start = {}, random.Random(0), 0
    for name in ("clean", "poisoned"):
        (target / name).mkdir(parents=True)
    for file in sorted(folder.glob("*.parquet")):
        if rows is not None and start >= rows:
            break
        source = pq.ParquetFile(file)
        table = source.read(["image", "label"])
        column = table["image"]
        column = pc.struct_field(column, "bytes") if pa.types.is_struct(column.type) else column
        clean, poisoned = column.to_pylist(), column.to_pylist()
        for row in range(-start % EVERY, len(table), EVERY):
            row = row + drawn.randrange(min(EVERY, len(table) - row))  # noqa: PLW2901
            kind = (*UNREADABLE, *READABLE)[len(kinds) % 10]
            kinds[start + row] = kind
            poisoned[row] = spoil(kind, clean[row], drawn)
            clean[row] = poisoned[row] if kind in READABLE else clean[row]
        for name, images in (("clean", clean), ("poisoned", poisoned)):
            made = table.set_column(0, "image", pa.array(images, pa.binary()))
            group = source.metadata.row_group(0).num_rows
            pq.write_table(made, target / name / file.name, row_group_size=group, compression="none")
        start += len(table)
    return start, kinds


def epochs(folder: Path, quarantine: Path) -> tuple[dict[int, tuple[int, int]], list[int], float, dict]:
    """Two epochs: what each row of the first became (image, label), steps of each, samples/s of the second, report."""
    values = {
        "source": {"path": str(folder)},
        "augment": {"recipe": "imagenet_train"},
        "batch": {"size": 64, "last": "keep"},
        "errors": {"on_bad_sample": "replace", "budget": 0.02, "quarantine": str(quarantine)},
    }
    found: dict[int, tuple[int, int]] = {}
    steps = [0, 0]
    with ingest.Loader(values, 0, 1, cache_dir=None, epochs=2) as loader:
        for batch in loader:
            steps[0] += 1
            for i in np.flatnonzero(batch["valid"]).tolist():
                found[int(batch["sample_id"][i])] = zlib.crc32(batch["image"][i]), int(batch["label"][i])
        began, rows = 0.0, 0
        for batch in loader:
            steps[1] += 1
            if began:
                rows += len(batch["label"])
            else:
                began = time.perf_counter()
        return found, steps, rows / (time.perf_counter() - began), loader.report()


def compare(target: Path, rows: int, kinds: dict[int, str], repeats: int) -> dict:
    """What `copies` has made, read by one trainer: clean, then poisoned, and both again for each further repeat."""
    unreadable = {sample for sample, kind in kinds.items() if kind in UNREADABLE}
    clean, dirty = [], []
    ray.init(address="local", logging_level="ERROR", log_to_driver=False, include_dashboard=False)
    try:
        for number in range(repeats):
            clean.append(epochs(target / "clean", target / f"kept-clean-{number}"))
            dirty.append(epochs(target / "poisoned", target / f"kept-{number}"))
            print("samples/s", round(clean[-1][2]), round(dirty[-1][2]), file=sys.stderr, flush=True)
    finally:
        ray.shutdown()
    healthy, found = clean[0][0], dirty[0][0]
    files = sorted((target / "kept-0").glob("*"))
    kept = distinct(record for file in files for record in decode(file.name, file.read_bytes()))
    expected = {(epoch, sample) for epoch in (0, 1) for sample in unreadable}
    return {
        "rows": rows,
        "poisoned": len(kinds),
        "unreadable": len(unreadable),
        "clean_bad": rows - len(healthy),
        "lost": len(set(healthy) - unreadable - set(found)),
        "changed": sum(found[sample] != healthy[sample] for sample in found),
        "quarantine_missing": len(expected - {(each.epoch, each.sample_id) for each in kept}),
        "quarantine_extra": len({(each.epoch, each.sample_id) for each in kept} - expected),
        "steps_clean": clean[0][1],
        "steps_poisoned": dirty[0][1],
        "samples_per_s_clean": [round(each[2]) for each in clean],
        "samples_per_s_poisoned": [round(each[2]) for each in dirty],
        "ratio": round(statistics.median(d[2] / c[2] for c, d in zip(clean, dirty, strict=True)), 3),
        "notes": dirty[0][3]["notes"],
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--repeats", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder.parent) as target:
        result = compare(Path(target), *copies(asked.folder, Path(target), asked.rows), asked.repeats)
    print(json.dumps(result))
    right = not any(result[name] for name in ("clean_bad", "lost", "changed", "quarantine_missing", "quarantine_extra"))
    return 0 if right and result["steps_clean"] == result["steps_poisoned"] else 1


if __name__ == "__main__":
    sys.exit(main())
