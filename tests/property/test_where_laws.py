"""Row filters: what Arrow keeps is what plain Python keeps, and statistics never say otherwise."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from ingest.errors import SpecError
from ingest.manifest.columns import Columns, output_type
from ingest.manifest.model import FileEntry
from ingest.manifest.parquet import parse_footer
from ingest.manifest.statistics import unit_bounds
from ingest.manifest.where import FALSE, NULL, TRUE, bind, outcomes, where_columns
from ingest.predicate import parse
from ingest.read.filtering import evaluate, kept
from tests.filters import SCHEMA, filters, parquet, rows

ENTRY = FileEntry("a.parquet", "a.parquet", 0)


def bound_to(text, table):
    columns = Columns(table.schema)
    found = {name: columns.find(name) for name in where_columns(text)}
    bound = bind(text, {name: output_type(column.type) for name, column in found.items()}, list)
    values = {}
    for name, column in found.items():
        array = table.column(column.field)
        for step in column.steps:
            array = pa.chunked_array([chunk.flatten()[step] for chunk in array.chunks])
        values[name] = array
    return bound, values


@given(st.data(), filters())
def test_a_filter_means_what_it_means_in_python(data, drawn):
    text, truth = drawn
    table_rows = rows(data.draw)
    bound, values = bound_to(text, pa.Table.from_pylist(table_rows, schema=SCHEMA))
    expected = [truth(row) for row in table_rows]
    assert evaluate(bound, values).to_pylist() == expected
    assert kept(bound, values).tolist() == [value is True for value in expected]


@given(st.data(), filters(), st.integers(1, 8))
def test_statistics_allow_all_that_rows_are(data, drawn, group):
    text, truth = drawn
    table_rows = rows(data.draw)
    written = parquet(table_rows, group)
    file = pq.ParquetFile(io.BytesIO(written))
    footer = parse_footer(written)
    bound, _ = bound_to(text, file.read())
    for ordinal in range(file.metadata.num_row_groups):
        inside = table_rows[ordinal * group : (ordinal + 1) * group]
        may = outcomes(bound, lambda name, kind, o=ordinal: unit_bounds(ENTRY, footer, o, name, kind))
        assert {{True: TRUE, False: FALSE, None: NULL}[truth(row)] & may for row in inside} <= {TRUE, FALSE, NULL}
        assert may in range(1, 8)


@given(filters())
def test_the_canonical_text_is_the_same_filter(drawn):
    assert parse(str(parse(drawn[0]))) == parse(drawn[0])


@given(st.text(alphabet="ax.\"'`()[]<>=!,- 0159eEnotandrisul\n~é", max_size=40))
def test_any_text_is_a_filter_or_a_named_error(text):
    try:
        tree = parse(text)
    except SpecError:
        return  # any other error fails the test
    assert parse(str(tree)) == tree
