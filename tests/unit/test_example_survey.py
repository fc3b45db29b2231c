"""The survey of Example records: kinds and shapes found in a data set, over any split of it."""

from __future__ import annotations

import pytest

from ingest.errors import RecordError, SchemaError
from ingest.read.example import Feature, parse
from ingest.read.survey import Survey, features_of
from tests.examples import entry, example, extents, feature, floats, ints, strings, unpacked_ints


def surveyed(*files):
    whole = Survey()
    for records in files:
        part = Survey()
        part.add(*extents(records, b"\xff" * 12))
        whole.merge(Survey.from_json(part.to_json()))
    return whole


def inferred(*files, declared=(), names=None):
    return features_of(surveyed(*files), {one.name: one for one in declared}, names)


def test_shapes_follow_from_the_lengths_seen():
    def record(k):
        return example(
            entry(b"one", ints(k)),
            entry(b"three", unpacked_ints(1, 2, k)),
            entry(b"varies", floats(*range(k))),
            entry(b"text", strings(b"x")),
            *([entry(b"sometimes", ints(1))] if k % 2 else []),
        )

    features = inferred([record(k) for k in range(1, 4)], [record(7)])
    assert features == [
        Feature("one", "int64"),
        Feature("sometimes", "int64", (None,)),
        Feature("text", "bytes"),
        Feature("three", "int64", (3,)),
        Feature("varies", "float", (None,)),
    ]
    assert parse(*extents([record(2)]), features).num_rows == 1


@pytest.mark.parametrize("nothing", [b"", feature("float", b""), feature("int64", b""), None])
def test_empty_in_one_file_and_floats_in_another(nothing):  # T09
    empty = [example(*([] if nothing is None else [entry(b"a", nothing)]))] * 3
    full = [example(entry(b"a", floats(1, 2)))] * 3
    for files in ((empty, full), (full, empty)):
        (found,) = inferred(*files)
        assert found == Feature("a", "float", (None,))
        assert [parse(*extents(records), [found]).to_pylist() for records in (empty, full)] == [
            [{"a": []}] * 3,
            [{"a": [1.0, 2.0]}] * 3,
        ]
    declared = Feature("a", "float", (2,), 0)
    assert inferred(empty, full, declared=[declared]) == [declared]


def test_one_value_here_and_three_there_is_a_list_everywhere():  # T10
    one, three = example(entry(b"a", ints(1))), example(entry(b"a", ints(1, 2, 3)))
    assert inferred([one], [three]) == inferred([three, one]) == [Feature("a", "int64", (None,))]


def test_two_kinds_are_refused_naming_both():
    files = [example(entry(b"a", ints(1)))], [example(entry(b"a", floats(1)))]
    with pytest.raises(SchemaError, match=r"feature 'a' holds float and int64.*Declare it"):
        inferred(*files)
    assert inferred(*files, declared=[Feature("a", "int64")]) == [Feature("a", "int64")]
    assert inferred([*files[0], example(entry(b"b", ints(1)))], files[1], names=["b"]) == [
        Feature("b", "int64", (None,))
    ]


def test_without_a_value_anywhere_the_empty_lists_tell():
    assert inferred([example(entry(b"a", feature("float", b"")))]) == [Feature("a", "float", (None,))]
    two = [example(entry(b"a", feature(kind, b""))) for kind in ("float", "bytes")]
    with pytest.raises(SchemaError, match="never holds a value, and its empty lists are of kind bytes and float"):
        inferred(two)


def test_a_name_that_nobody_saw_is_refused():
    with pytest.raises(SchemaError, match="'b' is in none of the 1 records surveyed, which hold a"):
        inferred([example(entry(b"a", ints(1)))], names=["a", "b"])
    with pytest.raises(SchemaError, match="'a' is in none"):
        inferred([example(entry(b"a", b""))], names=["a"])  # no kind, no list: it is not there


def test_the_last_entry_of_a_name_counts_as_it_does_in_parsing():
    assert inferred([example(entry(b"a", floats(1)), entry(b"a", ints(1), ints(2)))]) == [Feature("a", "int64", (2,))]


def test_bad_records_raise_or_are_counted():
    good, bad = example(entry(b"a", ints(1))), example(entry(b"a", feature("int64", b"\x08")))
    with pytest.raises(RecordError, match="record 1 "):
        surveyed([good, bad])
    survey = Survey()
    survey.add(*extents([good, bad, good]), on_bad="skip")
    assert (survey.records, survey.bad) == (2, 1)
    assert features_of(survey, {}) == [Feature("a", "int64")]


def test_many_names_fit_and_names_that_are_values_are_refused():
    def records(count):
        return [
            example(*(entry(b"%d-%s" % (k, b"n" * 80), ints(1)) for k in range(first, first + 100)))
            for first in range(0, count, 100)
        ]

    assert len(inferred(records(3000))) == 3000
    with pytest.raises(SchemaError, match="more than 16384"):
        inferred(records(20_000))
