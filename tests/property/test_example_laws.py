"""The Example parser's laws: what protobuf reads is read the same, nothing crashes it, neighbours do not matter."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.read.example import BAD_COLUMN, Feature, parse
from ingest.read.survey import Survey
from tests.example_fuzz import GAP, WANTED, check, damage, grow, run
from tests.examples import Example, extents

ROOT = Path(__file__).parents[2]

randoms = st.integers(0, 2**64 - 1).map(random.Random)
grown = randoms.map(grow)
damaged = st.builds(damage, grown, randoms)
anything = st.one_of(st.binary(max_size=60), grown, damaged)

int64s = st.integers(-(2**63), 2**63 - 1)
float32s = st.floats(width=32)
values = st.one_of(
    st.tuples(st.just("int64"), st.lists(int64s)),
    st.tuples(st.just("float"), st.lists(float32s)),
    st.tuples(st.just("bytes"), st.lists(st.binary())),
)


@given(st.lists(anything, min_size=1, max_size=20))
def test_whatever_the_bytes_protobuf_agrees(records):
    check(records)


@given(st.dictionaries(st.text(max_size=20), values, max_size=8), st.integers(1, 3))
def test_what_protobuf_writes_is_read_back(features, copies):
    message = Example()
    for name, (kind, held) in features.items():
        list_of = getattr(message.features.feature[name], f"{kind}_list")
        list_of.SetInParent()
        list_of.value.extend(held)
    wanted = [Feature(name, kind, (None,)) for name, (kind, _) in features.items()]
    table = parse(*extents([message.SerializeToString()] * copies, GAP), wanted)
    table.validate(full=True)
    for feature in wanted:
        kind, held = features[feature.name]
        dtype = {"int64": np.int64, "float": np.float32, "bytes": object}[kind]
        for row in table.column(feature.name).to_pylist():
            assert np.array(row, dtype).tobytes() == np.array(held, dtype).tobytes() if kind != "bytes" else row == held


@given(st.lists(anything, min_size=1, max_size=12), st.data())
def test_a_record_is_read_the_same_among_any_others(records, data):
    whole = parse(*extents(records, GAP), WANTED, on_bad="mark")
    cut = data.draw(st.integers(0, len(records)))
    parts = [parse(*extents(part, GAP), WANTED, on_bad="mark") for part in (records[:cut], records[cut:])]
    rows = [row for part in parts for row in part.to_pylist()]
    for row, other in zip(whole.to_pylist(), rows, strict=True):
        assert (row.pop(BAD_COLUMN) is None) == (other.pop(BAD_COLUMN) is None)
        assert repr(row) == repr(other)  # NaN is not equal to itself


@given(st.lists(anything, max_size=20), st.integers(0, 20))
def test_surveys_of_parts_merge_into_the_survey_of_all(records, cut):
    whole, first, second = Survey(), Survey(), Survey()
    for survey, part in ((whole, records), (first, records[:cut]), (second, records[cut:])):
        survey.add(*extents(part, GAP), on_bad="skip")
    second.merge(Survey.from_json(first.to_json()))
    assert second == whole


def test_a_few_thousand_damaged_records():
    counts = run(seed=1, seconds=60, inputs=5000)
    assert counts["good"] > 1000
    assert counts["bad"] > 1000


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bounds_check", ["0", "1"])
def test_a_million_damaged_records(bounds_check):
    line = [sys.executable, "-m", "tests.example_fuzz", "--seconds", "300", "--inputs", "1000000", "--seed", "2"]
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": bounds_check}
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '"inputs"' in done.stdout


_PAST_THE_END = """
import numpy as np
from ingest.read import example
from tests.examples import ints, entry, example as record

made = record(entry(b"a", ints(*range(60))))
data = np.frombuffer(made[:40], np.uint8)
example.checked_extents = lambda data, starts, stops: (data, starts, stops)  # what keeps wrong extents out
edges = np.array([0, len(made)])
edges.flags.writeable = False
example.parse(data, edges[:1], edges[1:], [example.Feature("a", "int64", (None,))])
"""


@pytest.mark.slow
def test_with_bounds_checks_an_index_past_the_end_is_seen():
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1"}
    line = [sys.executable, "-c", _PAST_THE_END]
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert "IndexError" in done.stderr
