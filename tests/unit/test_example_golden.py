"""Records written by TensorFlow, read as TensorFlow reads them; tests/data/make_examples.py made them."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ingest.read.example import Feature, parse
from tests.examples import extents

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "examples.json").read_text(encoding="utf-8"))["cases"]


def flat(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    while pa.types.is_fixed_size_list(array.type) or pa.types.is_large_list(array.type):
        array = array.flatten()
    return array


@pytest.mark.parametrize("case", GOLDEN)
def test_columns_equal_those_of_tensorflow_to_the_bit(case):
    golden = GOLDEN[case]
    features = [Feature(name, kind, tuple(shape), default) for name, kind, shape, default in golden["features"]]
    records = [base64.b64decode(record) for record in golden["records"]]
    table = parse(*extents(records, b"\xff" * 12), features)
    for feature in features:
        theirs, ours = golden["columns"][feature.name], table.column(feature.name)
        if feature.ragged:
            assert ours.combine_chunks().offsets.to_pylist() == theirs["offsets"]
        values = flat(ours)
        if feature.kind == "bytes":
            assert values.to_pylist() == [base64.b64decode(value) for value in theirs["values"]]
        else:
            bits = np.uint32 if feature.kind == "float" else np.int64
            assert values.to_numpy().view(bits).tolist() == theirs["values"]
