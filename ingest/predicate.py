"""Row filters as text: one grammar for every format, and the tree that it gives.

    label < 100 and (split = 'train' or split is null) and not source in ('web', 'ads') and meta.width >= 64

- A comparison is `column OP value` or `value OP column`, OP being `=` (or `==`), `!=` (or `<>`), `<`, `<=`, `>`, `>=`;
  `column in (value, ...)`, `column not in (...)`, square brackets as well; `column is null`, `column is not null`;
  or a boolean column by itself.
- Comparisons are joined by `not`, `and`, `or`, which bind in this order, and by parentheses. Keywords may be written in
  any case.
- A column is named as in the files, with dots into structs. Names with other characters than letters, digits and
  `_`, and names that are keywords, are quoted: "my column", `my column`; the quote itself is doubled inside.
- A value is a number (12, -0.5, 1e6), a string ('cat', the quote doubled inside), `true` or `false`. Dates and times
  are strings in ISO 8601 ('2024-05-01', '2024-05-01T12:30:00Z').
- Logic has three values, as in SQL: a comparison with null is neither true nor false, nor is its negation, and only
  rows for which the whole is true are kept. NaN compares as in IEEE 754: unequal to all, neither less nor greater.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeAlias

from ingest.errors import SpecError

MAX_CHARACTERS = 1 << 20
MAX_DEPTH = 100  # of nesting; what walks the tree may recurse
MAX_DIGITS = 400  # of a number; doubles end at 309

_PLAIN_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_KEYWORDS = frozenset({"and", "or", "not", "in", "is", "null", "true", "false"})

Value: TypeAlias = int | Decimal | str | bool


@dataclass(frozen=True)
class Name:
    """A column as written, its dots joined, and the character at which it stands."""

    text: str
    at: int = field(compare=False)

    def __str__(self) -> str:
        plain = _PLAIN_NAME.fullmatch(self.text) and not _KEYWORDS & set(self.text.lower().split("."))
        return self.text if plain else '"' + self.text.replace('"', '""') + '"'


@dataclass(frozen=True)
class Compare:
    """`column op value`; op is one of `=`, `<`, `<=`, `>`, `>=`."""

    column: Name
    op: str
    value: Value
    at: int = field(compare=False)  # the character at which the value stands
    depth: int = field(default=1, compare=False)

    def __str__(self) -> str:
        return f"{self.column} {self.op} {spelled(self.value)}"


@dataclass(frozen=True)
class In:
    """`column in (values)`."""

    column: Name
    values: tuple[Value, ...]
    at: tuple[int, ...] = field(compare=False)
    depth: int = field(default=1, compare=False)

    def __str__(self) -> str:
        return f"{self.column} in ({', '.join(map(spelled, self.values))})"


@dataclass(frozen=True)
class IsNull:
    """`column is null`: always true or false."""

    column: Name
    depth: int = field(default=1, compare=False)

    def __str__(self) -> str:
        return f"{self.column} is null"


@dataclass(frozen=True)
class IsTrue:
    """A boolean column by itself."""

    column: Name
    depth: int = field(default=1, compare=False)

    def __str__(self) -> str:
        return str(self.column)


@dataclass(frozen=True)
class Not:
    """True where the part is false, false where it is true."""

    part: Node
    depth: int = field(compare=False)

    def __str__(self) -> str:
        return f"not ({self.part})"


@dataclass(frozen=True)
class Junction:
    """Several parts joined by `and` or `or`."""

    op: str
    parts: tuple[Node, ...]
    depth: int = field(compare=False)

    def __str__(self) -> str:
        return f" {self.op} ".join(f"({part})" for part in self.parts)


Node: TypeAlias = Compare | In | IsNull | IsTrue | Not | Junction

_GRAMMAR = r"""
?start: disjunction
?disjunction: conjunction (OR conjunction)*
?conjunction: negation (AND negation)*
?negation: NOT negation -> negated
         | test
?test: "(" disjunction ")"
     | name operator value -> compared
     | value operator name -> compared_backwards
     | name IN list -> listed
     | name NOT IN list -> unlisted
     | name IS NULL -> null
     | name IS NOT NULL -> not_null
     | name -> true
!operator: "=" | "==" | "!=" | "<>" | "<=" | ">=" | "<" | ">"
list: "(" value ("," value)* ")" | "[" value ("," value)* "]"
name: part ("." part)*
part: NAME | QUOTED
value: NUMBER | STRING | TRUE | FALSE

AND.2: /and(?!\w)/i
OR.2: /or(?!\w)/i
NOT.2: /not(?!\w)/i
IN.2: /in(?!\w)/i
IS.2: /is(?!\w)/i
NULL.2: /null(?!\w)/i
TRUE.2: /true(?!\w)/i
FALSE.2: /false(?!\w)/i
NAME: /[^\W\d]\w*/
QUOTED: /"(?:[^"]|"")+"|`(?:[^`]|``)+`/
STRING: /'(?:[^']|'')*'/
NUMBER: /[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d{1,3})?(?![\w.])/i
%ignore /\s+/
"""
_SPELLED = {
    "NAME": "a column", "QUOTED": "a column", "STRING": "a value", "NUMBER": "a value", "TRUE": "a value",
    "FALSE": "a value", "LPAR": "'('", "RPAR": "')'", "LSQB": "'['", "RSQB": "']'", "COMMA": "','", "DOT": "'.'",
    "EQUAL": "a comparison", "__ANON_0": "a comparison", "__ANON_1": "a comparison", "__ANON_2": "a comparison",
    "__ANON_3": "a comparison", "__ANON_4": "a comparison", "LESSTHAN": "a comparison", "MORETHAN": "a comparison",
    "$END": "the end",
}  # fmt: skip
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}
_SAME = {"==": "=", "<>": "!="}


def parse(text: str) -> Node:
    """The tree of a row filter.

    Raises:
        SpecError: it does not follow the grammar; says at which character, and what was expected there.
    """
    if len(text) > MAX_CHARACTERS:
        raise SpecError(f"source.where has {len(text)} characters, and may have {MAX_CHARACTERS}")
    import lark

    try:
        tree: Node = _parser().parse(text)
    except lark.exceptions.UnexpectedInput as error:
        raise _unexpected(text, error) from None
    return tree


def spelled(value: Value) -> str:
    """A value as the grammar writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def columns_of(node: Node) -> dict[str, Name]:
    """The columns that a filter names, each as it is first named."""
    if isinstance(node, Not):
        return columns_of(node.part)
    if isinstance(node, Junction):
        found: dict[str, Name] = {}
        for part in node.parts:
            for text, name in columns_of(part).items():
                found.setdefault(text, name)
        return found
    return {node.column.text: node.column}


def failure(text: str, at: int, what: str, hint: str | None = None) -> SpecError:
    """An error at a character of a filter, which it shows from there on."""
    shown = text[at : at + 40] + ("..." if len(text) > at + 40 else "")
    place = f"at character {at + 1}, '{shown}'" if shown else "at its end"
    return SpecError(f"source.where, {place}: {what}", hint=hint)


def _unexpected(text: str, error: Any) -> SpecError:
    import lark

    if isinstance(error, lark.exceptions.UnexpectedCharacters):
        at = int(error.pos_in_stream or 0)
        if text[at] in "'\"`":
            return failure(text, at, "the quote is not closed")
        what = "is no number" if text[at].isdigit() or text[at] in "+-." else f"{text[at]!r} means nothing here"
        return failure(text, at, what, "A column name with such characters is quoted")
    if not isinstance(error, lark.exceptions.UnexpectedToken):
        raise error
    ended = error.token.type == "$END"
    at, found = (len(text), "") if ended else (int(error.token.start_pos), str(error.token))
    expected = sorted({_SPELLED.get(name, f"'{name.lower()}'") for name in error.accepts or error.expected})
    hint = None
    if found.lower() == "null":
        hint = "Write `is null` or `is not null`"
    elif found.startswith('"') and expected == ["a value"]:
        hint = "Strings take single quotes, double quotes are for column names"
    elif error.token.type == "NAME" and expected == ["a value"]:
        hint = "A column is compared with a value; strings take single quotes"
    return failure(text, at, f"expected {', '.join(expected[:-1])}{' or ' if expected[1:] else ''}{expected[-1]}", hint)


@lru_cache(maxsize=1)
def _parser() -> Any:
    """The parser, made when first needed: the library takes longer to load than all of the spec."""
    import lark

    @lark.v_args(inline=True)
    class Build(lark.Transformer[Any, Any]):
        def disjunction(self, *parts: Any) -> Node:
            return _joined("or", parts[::2])

        def conjunction(self, *parts: Any) -> Node:
            return _joined("and", parts[::2])

        def negated(self, _: Any, part: Node) -> Node:
            return _negated(part)

        def compared(self, name: Name, operator: str, value: tuple[Value, int]) -> Node:
            return _compared(name, operator, value)

        def compared_backwards(self, value: tuple[Value, int], operator: str, name: Name) -> Node:
            return _compared(name, _TURNED.get(operator, operator), value)

        def operator(self, token: Any) -> str:
            return _SAME.get(str(token), str(token))

        def listed(self, name: Name, _: Any, values: tuple[tuple[Value, int], ...]) -> Node:
            return In(name, tuple(value for value, _ in values), tuple(at for _, at in values))

        def unlisted(self, name: Name, _: Any, keyword: Any, values: tuple[tuple[Value, int], ...]) -> Node:
            return _negated(self.listed(name, keyword, values))

        def list(self, *values: tuple[Value, int]) -> tuple[tuple[Value, int], ...]:
            return values

        def null(self, name: Name, *_: Any) -> Node:
            return IsNull(name)

        def not_null(self, name: Name, *_: Any) -> Node:
            return _negated(IsNull(name))

        def true(self, name: Name) -> Node:
            return IsTrue(name)

        def name(self, *parts: tuple[str, int]) -> Name:
            return Name(".".join(text for text, _ in parts), parts[0][1])

        def part(self, token: Any) -> tuple[str, int]:
            text, at = str(token), int(token.start_pos)
            return (text if token.type == "NAME" else text[1:-1].replace(text[0] * 2, text[0])), at

        def value(self, token: Any) -> tuple[Value, int]:
            if token.type == "NUMBER" and len(token) > MAX_DIGITS:
                raise SpecError(f"source.where: a number has {len(token)} digits, and may have {MAX_DIGITS}")
            return _value(token.type, str(token)), int(token.start_pos)

    return lark.Lark(_GRAMMAR, parser="lalr", lexer="basic", transformer=Build(), maybe_placeholders=False)


def _value(kind: str, text: str) -> Value:
    if kind == "STRING":
        return text[1:-1].replace("''", "'")
    if kind == "NUMBER":
        return Decimal(text) if set(text) & set(".eE") else int(text)
    return kind == "TRUE"


def _compared(name: Name, operator: str, value: tuple[Value, int]) -> Node:
    if operator == "!=":
        return _negated(Compare(name, "=", *value))
    return Compare(name, operator, *value)


def _negated(part: Node) -> Node:
    return part.part if isinstance(part, Not) else Not(part, _deeper(part.depth))


def _joined(op: str, parts: tuple[Node, ...]) -> Node:
    """One junction, with those of the same kind inside it made part of it."""
    flat: list[Node] = []
    for part in parts:
        flat += part.parts if isinstance(part, Junction) and part.op == op else [part]
    return Junction(op, tuple(flat), _deeper(max(part.depth for part in flat)))


def _deeper(depth: int) -> int:
    if depth >= MAX_DEPTH:
        raise SpecError(f"source.where is nested more than {MAX_DEPTH} deep")
    return depth + 1
