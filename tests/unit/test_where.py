"""Row filters: the grammar's errors, values against types, and what statistics and directories say."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ingest.errors import SpecError
from ingest.manifest.columns import output_type
from ingest.manifest.model import FileEntry
from ingest.manifest.parquet import parse_footer
from ingest.manifest.statistics import unit_bounds
from ingest.manifest.where import FALSE, NULL, TRUE, Bounds, Joint, Leaf, Negation, bind, outcomes, where_columns
from ingest.predicate import MAX_CHARACTERS, parse
from ingest.read.filtering import evaluate

pytestmark = pytest.mark.unit
NONE, ALL = FALSE, TRUE


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "at its end: expected '(', 'not', a column or a value"),
        ("x adn 3", "at character 3, 'adn 3': expected '.', 'and', 'in', 'is', 'not', 'or', a comparison or the end"),
        ("x < 3 and and y = 2", "at character 11, 'and y = 2': expected '(', 'not', a column or a value"),
        ("x = cat", "at character 5, 'cat': expected a value. A column is compared with a value; strings take single"),
        ('x = "cat"', "at character 5, '\"cat\"': expected a value. Strings take single quotes"),
        ("x = null", "Write `is null` or `is not null`"),
        ("x in ()", "at character 7, ')': expected a value"),
        ("x = 'abc", "at character 5, ''abc': the quote is not closed"),
        ("(x < 3", "at its end: expected ')'"),
        ("x ~ 3", "at character 3, '~ 3': '~' means nothing here"),
        ("x = 1_000", "at character 5, '1_000': is no number"),
        ("x = 1e9999", "at character 5, '1e9999': is no number"),
        ("x = " + "9" * 500, "a number has 500 digits"),
        ("not (x and y or " * 150 + "x" + ")" * 150, "nested more than 100 deep"),
        ("x" * (MAX_CHARACTERS + 1), "may have 1048576"),
    ],
    ids=lambda text: text[:20],
)
def test_errors_say_where_and_what_was_expected(text, said):
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert said in str(caught.value)


def test_names_values_and_keywords_are_read_as_documented():
    text = "class = 1 AND \"and\" = 'it''s' Or größe<=-.5e1 or not `a \"b`.c in [TRUE, False]"
    assert str(parse(text)) == (
        """((class = 1) and ("and" = 'it''s')) or (größe <= -5) or (not ("a ""b.c" in (true, false)))"""
    )
    assert where_columns(text) == ("class", "and", "größe", 'a "b.c')
    assert parse("((" * 400 + "x" + "))" * 400) == parse("x")
    assert parse("not not not x") == parse("not x")


TYPES = {
    "i": pa.uint8(), "s": pa.string(), "o": pa.bool_(), "l": pa.list_(pa.int64()), "t": pa.timestamp("us"),
    "z": pa.timestamp("us", "Europe/Paris"), "d": pa.date32(),
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("i = 'x'", "at character 5, ''x'': column 'i' has type uint8, and 'x' is a string. Compare it with a number"),
        ("i in (1, true)", "at character 10, 'true)': column 'i' has type uint8, and true is a boolean"),
        ("s < 3", "column 's' has type string, and 3 is a number. Compare it with a string in single quotes"),
        ("o < true", "column 'o' has type bool, which '<' does not order"),
        ("l = 3", "type list<item: int64>, and 3 is a number. A column of this type can only be tested for null"),
        ("t > 5", "Compare it with a string such as '2024-05-01'"),
        ("t > 'May 1'", "'May 1' is no value of it: it is not ISO 8601"),
        ("t > '2024-02-30'", "'2024-02-30' is no value of it"),
        ("t > '2024-05-01T00:00:00Z'", "it has an offset from UTC, and the column has no time zone"),
        ("i < 3 and lable = 1", "at character 11, 'lable = 1': there is no column 'lable'. There are: i, s, o"),
        ("i and o", "column 'i' has type uint8, and only a boolean one is a condition by itself"),
    ],
)
def test_values_that_do_not_fit_are_refused_with_both_types(text, said):
    with pytest.raises(SpecError) as caught:
        bind(text, TYPES, lambda: list(TYPES))
    assert said in str(caught.value)


def test_the_nearest_column_is_named():
    with pytest.raises(SpecError, match=r"there is no column 'lable'\. Did you mean 'label'\?"):
        bind("lable = 1", {}, lambda: ["image", "label"])


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("z = '2024-05-01T10:00:00Z'", [True, False, None]),
        ("z = '2024-05-01T12:00:00+0200'", [True, False, None]),
        ("z < '2024-05-01T10:00:00.0000001'", [True, False, None]),
        ("d < '2024-05-01T12:00'", [True, False, None]),
        ("d = '2024-05-01T12:00'", [False, False, None]),
        ("h in (0, 0.1)", [True, True, None]),
        ("h = 0.1", [False, True, None]),
        ("h < 1e300", [True, True, None]),
        ("n is null and not n = 3", [None, None, None]),
    ],
)
def test_what_values_of_odd_types_give(text, kept):
    moments = pa.array([1714557600_000000, 1714600000_000000, None], pa.int64()).cast(pa.timestamp("us", "UTC"))
    columns = {
        "z": moments.cast(pa.timestamp("us", "Europe/Paris")),
        "d": pa.array([19844, 19845, None], pa.int32()).cast(pa.date32()),
        "h": pa.array([-0.0, 0.1, None], pa.float16()),
        "n": pa.nulls(3),
    }
    bound = bind(text, {name: array.type for name, array in columns.items()}, list)
    assert evaluate(bound, {k: pa.chunked_array([v]) for k, v in columns.items()}).to_pylist() == kept


def may(table, text, entry=None, **options):
    """What the first row group's statistics allow."""
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    footer = parse_footer(out.getvalue())
    types = {"k": pa.string(), "n": pa.int64()}
    types |= {n: output_type(c.type) for n in where_columns(text) if (c := footer.columns.find(n)) is not None}
    entry = entry or FileEntry("a", "a", 0)
    return outcomes(bind(text, types, list), lambda name, kind: unit_bounds(entry, footer, 0, name, kind))


ints, nullable = pa.array([3, 7, 5]), pa.array([3, None, 7])
nan = pa.array([1.0, float("nan"), 2.0])
strings, long = pa.array(["bx", "c\U0010ffff"]), pa.array(["b" * 5000, "c"])  # writers leave out long bounds


@pytest.mark.parametrize(
    ("values", "text", "allowed"),
    [
        (ints, "x < 3", NONE),
        (ints, "x <= 3", TRUE | FALSE),
        (ints, "x >= 3 and x <= 7", ALL),
        (ints, "x = 4", TRUE | FALSE),
        (ints, "x != 8 and x is not null", ALL),
        (ints, "x in (1, 9)", NONE),
        (ints, "x in (4, 9)", TRUE | FALSE),
        (ints, "x < 2.5", NONE),
        (ints, "x < 1e30", ALL),
        (nullable, "x < 3", FALSE | NULL),
        (nullable, "not x < 3", TRUE | NULL),
        (nullable, "x is null", TRUE | FALSE),
        (pa.array([None, None], pa.int64()), "x < 3 or x >= 3", NULL),
        (pa.array([None, None], pa.int64()), "x is null", ALL),
        (pa.array([4, 4]), "x in (4, 9)", ALL),
        (nan, "x < 5", TRUE | FALSE),
        (nan, "x > 5", NONE),
        (nan, "x != 5", ALL),
        (pa.array([1.0, 1.0]), "x != 1", TRUE | FALSE),  # a NaN would not show in the statistics
        (pa.array([-0.0, 0.0]), "x < 0", NONE),
        (pa.array([2**63, 2**64 - 1], pa.uint64()), "x > 9223372036854775807", ALL),
        (pa.array([200, 255], pa.uint8()), "x < 200", NONE),
        (strings, "x < 'b'", NONE),
        (strings, "x >= 'bx' and x < 'd'", ALL),
        (strings.cast(pa.binary()), "x >= 'd'", NONE),
        (strings.dictionary_encode(), "x >= 'e' or x = 'a'", NONE),
        (long, "x < 'b'", TRUE | FALSE),
        (pa.array(["1.25", "-3.50"]).cast(pa.decimal128(7, 2)), "x > 1.255", NONE),
        (pa.array(["1.25", "-3.50"]).cast(pa.decimal128(7, 2)), "x <= 1.25", ALL),
        (pa.array([1, 5], pa.int32()).cast(pa.date32()), "x > '1970-01-06'", NONE),
        (pa.array([1, 5]).cast(pa.timestamp("s")), "x >= '1970-01-01T00:00:01'", ALL),
        (pa.array([1, 5]).cast(pa.timestamp("ns", "UTC")), "x > '1970-01-01'", ALL),
        (pa.array([2**62]).cast(pa.timestamp("us")), "x > '9999-12-31'", ALL),  # beyond Python's datetime
        (pa.array([True, True]), "x", ALL),
        (pa.array([0.5, 1.5], pa.float16()), "x > 7", TRUE | FALSE),
        (pa.array([{"a": 1}, None, {"a": 3}]), "x.a > 3", FALSE | NULL),
        (pa.array([{"a": None}, {"a": None}], pa.struct({"a": pa.int8()})), "x is null", TRUE | FALSE),
        (pa.array([[1], None]), "x is not null", TRUE | FALSE),
    ],
)
def test_what_statistics_allow(values, text, allowed):
    assert may(pa.table({"x": values}), text) == allowed


@pytest.mark.parametrize("text", ["x < 3", "x >= 3", "not x = 5"])
def test_without_statistics_nothing_is_known(text):
    assert may(pa.table({"x": ints}), text, write_statistics=False) == TRUE | FALSE | NULL


def test_a_directory_has_one_value_for_all_rows():
    table = pa.table({"x": ints})
    for value, text, allowed in [
        ("a", "k = 'a'", ALL),
        ("a", "k > 'a'", NONE),
        ("__HIVE_DEFAULT_PARTITION__", "k = 'a'", NULL),
        ("a", "n = 3 or k is null", NULL),  # no file and no directory has n here
    ]:
        assert may(table, text, FileEntry("p", "p", 0, None, (("k", value),))) == allowed, (value, text)
    numbered = FileEntry("p", "p", 0, None, (("n", "007"),))
    assert may(table, "n = 7", numbered) == ALL
    assert may(table, "n != 7", numbered) == NONE


def test_logic_over_sets_is_logic_over_each_of_their_members():
    """Every pair of sets of outcomes, against the three values one by one."""
    value = {TRUE: True, FALSE: False, NULL: None}
    known = {
        TRUE: Bounds(1, 1, nulls=False), FALSE: Bounds(0, 0, nulls=False), NULL: Bounds(values=False),
        TRUE | NULL: Bounds(1, 1), FALSE | NULL: Bounds(0, 0), TRUE | FALSE: Bounds(0, 1, nulls=False), 7: Bounds(0, 1),
    }  # fmt: skip
    leaves = [Leaf(name, pa.int64(), "=", (1,)) for name in "ab"]

    def join(op, one, other):
        if (one, other) == (None, None):
            return None
        strong = op == "or"
        return strong if strong in (one, other) else None if None in (one, other) else not strong

    for op, a, b in itertools.product(("and", "or"), known, known):
        members = [[value[bit] for bit in (1, 2, 4) if chosen & bit] for chosen in (a, b)]
        each = {join(op, one, other) for one, other in itertools.product(*members)}
        found = outcomes(Joint(op, tuple(leaves)), lambda name, _, a=a, b=b: known[a if name == "a" else b])
        assert {value[bit] for bit in (1, 2, 4) if found & bit} == each
        turned = outcomes(Negation(leaves[0]), lambda _, __, a=a: known[a])
        assert {value[bit] for bit in (1, 2, 4) if turned & bit} == {None if v is None else not v for v in members[0]}


def test_a_literal_has_the_precision_of_its_column():
    bound = bind("x = 0.1", {"x": pa.float32()}, list)
    assert evaluate(bound, {"x": pa.chunked_array([np.array([0.1, 0.2], np.float32)])}).to_pylist() == [True, False]
