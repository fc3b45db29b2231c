"""Makes examples.json: records written by TensorFlow, and what it reads in them. Needs tensorflow; run in this folder.

Each case: the records, base64; the features, as `ingest.read.example.Feature` takes them; what `tf.io.parse_example`
gives for them, column by column, bytes as base64 and floats as their bits.
"""

import base64
import json
from pathlib import Path

import numpy as np
import tensorflow as tf

TYPES = {"bytes": tf.string, "float": tf.float32, "int64": tf.int64}


def feature(kind, values):
    lists = {"bytes": tf.train.BytesList, "float": tf.train.FloatList, "int64": tf.train.Int64List}
    return tf.train.Feature(**{f"{kind}_list": lists[kind](value=values)})


def example(**features):
    made = {name: feature(*given) if given else tf.train.Feature() for name, given in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()


def clicks(count):
    rng = np.random.default_rng(1)
    for _ in range(count):
        made = {"label": ("int64", [int(rng.integers(0, 2))])}
        made |= {f"I{j}": ("float", [float(x)]) for j, x in enumerate(rng.random(13))}
        made |= {f"C{j}": ("int64", [int(x)]) for j, x in enumerate(rng.integers(0, 1 << 20, 26))}
        made["history"] = ("int64", rng.integers(0, 10_000, int(rng.integers(0, 20))).tolist())
        yield example(**made)


CLICKS = [("label", "int64", [], None), ("history", "int64", [None], None)]
CLICKS += [(f"I{j}", "float", [], None) for j in range(13)] + [(f"C{j}", "int64", [], None) for j in range(26)]
EDGES = [0, 1, -1, 127, 128, 2**31, -(2**31), 2**63 - 1, -(2**63)]
CASES = {
    "clicks": (list(clicks(20)), CLICKS),
    "every kind, ragged": (
        [
            example(b=("bytes", [b"x", b"", b"\xff" * 200]), f=("float", [0.1, -0.0, 1e38]), i=("int64", EDGES)),
            example(b=("bytes", []), f=("float", []), i=("int64", [])),
            example(b=None, f=None, i=None),
            example(other=("int64", [1])),
            b"",
        ],
        [("b", "bytes", [None], None), ("f", "float", [None], None), ("i", "int64", [None], None)],
    ),
    "fixed shapes with defaults": (
        [
            example(g=("int64", [1, 2, 3, 4, 5, 6]), f=("float", [1.5] * 13), s=("bytes", [b"there"])),
            example(g=("int64", [-1] * 6)),
            example(f=None, s=None),
        ],
        [("g", "int64", [2, 3], [0, 1, 2, 3, 4, 5]), ("f", "float", [13], [0.25] * 13), ("s", "bytes", [], ["none"])],
    ),
    "not finite": (
        [example(f=("float", [np.nan, np.inf, -np.inf, np.finfo(np.float32).tiny]))],
        [("f", "float", [None], None)],
    ),
}


def column(values, kind):
    if kind == "bytes":
        return [base64.b64encode(value).decode() for value in values.ravel().tolist()]
    return values.view(np.uint32 if kind == "float" else np.int64).ravel().tolist()


def main():
    cases = {}
    for name, (records, features) in CASES.items():
        spec = {}
        for key, kind, shape, default in features:
            fixed = tf.io.FixedLenFeature(shape, TYPES[kind], default and np.reshape(default, shape))
            spec[key] = tf.io.RaggedFeature(TYPES[kind]) if shape == [None] else fixed
        read = tf.io.parse_example(records, spec)
        columns = {}
        for key, kind, shape, _ in features:
            tensor = read[key]
            flat = tensor.flat_values if shape == [None] else tensor
            columns[key] = {"values": column(flat.numpy(), kind)}
            if shape == [None]:
                columns[key]["offsets"] = tensor.row_splits.numpy().tolist()
        cases[name] = {
            "features": features,
            "records": [base64.b64encode(record).decode() for record in records],
            "columns": columns,
        }
    text = json.dumps({"tensorflow": tf.__version__, "cases": cases})
    (Path(__file__).parent / "examples.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
