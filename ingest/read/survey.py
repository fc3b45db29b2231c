"""What a data set's records hold, from a sample of them: the types and shapes of features that nobody declared."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ingest.errors import SchemaError
from ingest.read.example import checked_extents, new_found, new_names, no_faults, record_error, warm_up
from ingest.read.feature import KINDS, Feature, Kind
from ingest.read.kernels import kernels

_NAMES = 256  # a table of names to begin with; it grows eightfold
_MOST_NAMES = 1 << 14  # of one data set: more are not features
_NAME_BYTES = 64  # of each, on average


@dataclass
class Summary:
    """What was seen of one feature.

    Attributes:
        records: that hold it, with any number of values.
        shortest: the fewest values in a record that holds it.
        longest: the most.
        kinds: of its values.
        empty_kinds: of its lists without values.
    """

    records: int = 0
    shortest: int = 0
    longest: int = 0
    kinds: set[str] = field(default_factory=set)
    empty_kinds: set[str] = field(default_factory=set)

    def merge(self, other: Summary) -> None:
        if other.records:
            self.shortest = min(self.shortest, other.shortest) if self.records else other.shortest
        self.longest = max(self.longest, other.longest)
        self.records += other.records
        self.kinds |= other.kinds
        self.empty_kinds |= other.empty_kinds


class Survey:
    """Of any number of records, in any order: surveys of parts merge into the survey of all.

    Attributes:
        records: seen and healthy.
        bad: that could not be parsed, and count nowhere else.
        features: name: what was seen of it.
    """

    def __init__(self) -> None:
        self.records = 0
        self.bad = 0
        self.features: dict[str, Summary] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Survey) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def add(
        self,
        data: NDArray[np.uint8],
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
        *,
        on_bad: Literal["raise", "skip"] = "raise",
    ) -> None:
        """Count these records in; arguments as of `example.parse`.

        Raises:
            RecordError: a record is damaged, or a SequenceExample, with `raise`.
            SchemaError: there are too many names.
        """
        warm_up()
        self.merge(survey(data, starts, stops, on_bad=on_bad))

    def merge(self, other: Survey) -> None:
        """Count in what another has seen.

        Raises:
            SchemaError: there are too many names.
        """
        self.records += other.records
        self.bad += other.bad
        for name, summary in other.features.items():
            self.features.setdefault(name, Summary()).merge(summary)
        if len(self.features) > _MOST_NAMES:
            raise _too_many_names()

    def to_json(self) -> str:
        features = {name: asdict(summary) for name, summary in self.features.items()}
        return json.dumps({"records": self.records, "bad": self.bad, "features": features}, default=sorted)

    @classmethod
    def from_json(cls, text: str) -> Survey:
        made, saved = cls(), json.loads(text)
        made.records, made.bad = saved["records"], saved["bad"]
        for name, told in saved["features"].items():
            sets = {key: set(told[key]) for key in ("kinds", "empty_kinds")}
            made.features[name] = Summary(**{**told, **sets})
        return made


def survey(data: Any, starts: Any, stops: Any, *, on_bad: str) -> Survey:
    """The survey of these records; as `Survey.add`."""
    wire = kernels()
    data, starts, stops = checked_extents(data, starts, stops)
    faults = no_faults(len(starts))
    most = _NAMES
    while True:
        names = new_names(most, most * _NAME_BYTES)
        seen = wire.Seen(*(np.zeros(most, np.int64) for _ in wire.Seen._fields))
        code, at = wire.survey_records(
            data, starts, stops, names, new_found(len(names.ends)), _no_columns(), seen, faults, on_bad == "skip"
        )
        if code == wire.OK:
            return _told(names, seen, len(starts), int((faults.code > 0).sum()))
        if code != wire.NAMES:
            raise record_error(faults, at, starts, stops, ())
        if most >= _MOST_NAMES:
            raise _too_many_names()
        most *= 8  # and begin again: this happens once or twice


def _told(names: Any, seen: Any, records: int, bad: int) -> Survey:
    made = Survey()
    made.records, made.bad = records - bad, bad
    for k in range(int(names.known[0])):
        if seen.records[k] == 0:
            continue
        name = names.text[names.ends[k] : names.ends[k + 1]].tobytes().decode()
        made.features[name] = Summary(
            int(seen.records[k]),
            int(seen.shortest[k]),
            int(seen.longest[k]),
            _kinds_of(int(seen.kinds[k])),
            _kinds_of(int(seen.empty_kinds[k])),
        )
    return made


def _kinds_of(bits: int) -> set[str]:
    return {kind for number, kind in enumerate(KINDS, 1) if bits >> number & 1}


def _no_columns() -> Any:
    none = np.zeros((2, 0), np.int64)
    empty = np.zeros(0, np.uint8)
    return kernels().Columns(np.zeros(0, np.int64), empty, empty, none, none, none)


def _too_many_names() -> SchemaError:
    return SchemaError(
        f"the records hold more than {_MOST_NAMES} different feature names: they are no schema",
        hint="Declare the features you want in source.schema",
    )


def features_of(survey: Survey, declared: Mapping[str, Feature], names: Iterable[str] | None = None) -> list[Feature]:
    """The features of a data set, sorted by name.

    What is declared is taken as it is, and nothing that was seen changes it. Of the others, the kind is that of the
    values found anywhere; or, where there never was one, that of its empty lists. A feature with one value in every
    record surveyed is a scalar; one with the same number, more than one, in all of them has a fixed shape; all else is
    ragged.

    Args:
        survey: of a sample of every file.
        declared: name: feature.
        names: the features wanted; None: all that were declared or seen.

    Raises:
        SchemaError: a feature holds values of two kinds, never holds one, or was never seen.
    """
    wanted = {*declared, *survey.features} if names is None else set(names)
    return [declared[name] if name in declared else _inferred(name, survey) for name in sorted(wanted)]


def _inferred(name: str, survey: Survey) -> Feature:
    hint = "Declare it in source.schema"
    summary = survey.features.get(name)
    if summary is None:
        near = ", ".join(sorted(survey.features)[:20]) or "none at all"
        raise SchemaError(f"feature '{name}' is in none of the {survey.records} records surveyed, which hold {near}")
    kinds = sorted(summary.kinds) or sorted(summary.empty_kinds)
    if len(kinds) != 1:
        what = "holds" if summary.kinds else "never holds a value, and its empty lists are of kind"
        raise SchemaError(f"feature '{name}' {what} {' and '.join(kinds)}", hint=hint)
    everywhere = summary.records == survey.records and summary.shortest == summary.longest
    shape: tuple[int | None, ...] = (None,)
    if everywhere and summary.longest > 0:
        shape = () if summary.longest == 1 else (summary.longest,)
    kind: Kind = kinds[0]  # type: ignore[assignment]
    return Feature(name, kind, shape)
