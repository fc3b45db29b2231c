"""Write the TFRecord files of this folder, with TensorFlow, and beside them what TensorFlow reads from them.

Usage: python make_tfrecords.py, with TensorFlow 2.x installed. What it writes is kept in the repository, so that the
tests need no TensorFlow.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import tensorflow as tf
from PIL import Image

HERE = Path(__file__).parent


def ints(*values):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def floats(*values):
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def strings(*values):
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def example(**features):
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write(name, records, compression=""):
    with tf.io.TFRecordWriter(str(HERE / name), tf.io.TFRecordOptions(compression_type=compression)) as writer:
        for record in records:
            writer.write(record)


def clicks():
    """Forty records as a click log has them: a label, numbers, categories, a list of any length, a text."""
    rng = np.random.default_rng(1)
    for i in range(40):
        yield example(
            label=ints(int(rng.integers(0, 2))),
            numbers=floats(*rng.normal(size=3).astype(np.float32).tolist()),
            category=ints(int(rng.integers(-(2**62), 2**62))),
            history=ints(*rng.integers(0, 10_000, i % 7).tolist()),
            query=strings(f"Größe {i}".encode()),
            tags=strings(*[b"a", b"bc", b""][: i % 4]),
        )


def read_clicks(name, compression=""):
    """What TensorFlow makes of them, JSON-ready."""
    spec = {
        "label": tf.io.FixedLenFeature([], tf.int64),
        "numbers": tf.io.FixedLenFeature([3], tf.float32),
        "category": tf.io.FixedLenFeature([], tf.int64),
        "history": tf.io.RaggedFeature(tf.int64),
        "query": tf.io.FixedLenFeature([], tf.string),
        "tags": tf.io.RaggedFeature(tf.string),
    }
    rows = []
    for record in tf.data.TFRecordDataset(str(HERE / name), compression_type=compression):
        row = {key: value.numpy() for key, value in tf.io.parse_single_example(record, spec).items()}
        rows.append(
            {
                "label": int(row["label"]),
                "numbers": [float(x) for x in row["numbers"]],
                "category": int(row["category"]),
                "history": [int(x) for x in row["history"]],
                "query": row["query"].decode(),
                "tags": [x.decode() for x in row["tags"]],
            }
        )
    return rows


def jpeg(i):
    out = io.BytesIO()
    pixels = np.random.default_rng(i).integers(0, 256, (3, 4, 3), np.uint8)
    Image.fromarray(pixels).resize((32, 24), Image.Resampling.BICUBIC).save(out, "JPEG", quality=80)
    return out.getvalue()


def sequence():
    lists = {"frames": tf.train.FeatureList(feature=[ints(1), ints(2, 3)])}
    context = tf.train.Features(feature={"id": ints(7)})
    record = tf.train.SequenceExample(context=context, feature_lists=tf.train.FeatureLists(feature_list=lists))
    return record.SerializeToString()


def main():
    write("clicks.tfrecord-00000-of-00001", clicks())
    write("clicks-gzip", clicks(), "GZIP")
    write("clicks-zlib", clicks(), "ZLIB")
    names = {"clicks.tfrecord-00000-of-00001": "", "clicks-gzip": "GZIP", "clicks-zlib": "ZLIB"}
    rows = [read_clicks(*item) for item in names.items()]
    assert rows[0] == rows[1] == rows[2]
    (HERE / "clicks.json").write_text(json.dumps(rows[0], ensure_ascii=False) + "\n", encoding="utf-8")
    # A feature that is empty in every record of one file and holds floats in the next.
    write("sparse-00000-of-00002", [example(x=ints(i), y=tf.train.Feature()) for i in range(3)])
    write("sparse-00001-of-00002", [example(x=ints(i), y=floats(i / 2, i)) for i in range(3)])
    # A list of one value in one record and of three in the next.
    write("lists.tfrecord", [example(x=ints(1)), example(x=ints(2, 3, 4)), example(x=ints(5))])
    write(
        "images-00000-of-00001",
        [example(**{"image/encoded": strings(jpeg(i)), "image/class/label": ints(i)}) for i in range(12)],
    )
    write("sequence.tfrecord", [sequence()])
    write("empty.tfrecord", [])


if __name__ == "__main__":
    main()
