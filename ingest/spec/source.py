"""What is read: the files, their columns, and which of their rows."""

from __future__ import annotations

import difflib
import math
import os
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from ingest.errors import SpecError
from ingest.predicate import parse
from ingest.spec.section import NUMBER, Count, Section, Seed
from ingest.spec.storage import Storage, no_credentials


class Split(Section):
    """A share of the rows, by a hash of the sample id: the same at any seed of the order."""

    take: str = Field(description="the part to read")
    of: dict[str, Annotated[float, Field(gt=0, le=1), NUMBER]] = Field(
        description="part: its share of the rows; their sum is at most 1, and what is left is in no part"
    )
    seed: Seed = Field(0, description="of the hash; another one gives other parts")

    @model_validator(mode="after")
    def _fits(self) -> Split:
        if self.take not in self.of:
            near = difflib.get_close_matches(self.take, self.of, 1)
            advice = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(self.of) or 'none'}"
            raise ValueError(f"take: '{self.take}' is no part of `of`; {advice}")
        if sum(self.of.values()) > 1 + 1e-9:
            raise ValueError(f"of: the shares sum to {sum(self.of.values()):g}, which is more than 1")
        return self


class FeatureType(Section):
    """The type of a feature of TFRecord Examples."""

    dtype: Literal["int64", "float32", "bytes", "string"] = Field(description="string is UTF-8, bytes are anything")
    shape: tuple[Count | None, ...] = Field((), description="[] one value, [13] so many, [null] a list of any length")
    default: int | float | str | list[int] | list[float] | list[str] | None = Field(
        None, description="stands where the feature is missing; that is an error when left out"
    )

    @field_validator("shape")
    @classmethod
    def _one_axis_or_fixed(cls, value: tuple[int | None, ...]) -> tuple[int | None, ...]:
        if None in value and len(value) > 1:
            raise ValueError(f"is {list(value)}; a list of any length has one axis, [null]")
        if math.prod(size or 1 for size in value) >= 2**31:
            raise ValueError(f"is {list(value)}, more values than a row may hold")
        return value


class TFRecord(Section):
    """How TFRecord files are read."""

    check_payload_crc: bool = Field(
        True, description="compare every payload with its checksum; lengths are compared always"
    )


class Source(Section):
    """What to read."""

    path: str | tuple[str, ...] = Field(description="a directory, a file, a glob, or a list of them; any fsspec URL")
    format: Literal["auto", "parquet", "tfrecord"] = Field("auto", description="found from names and first bytes")
    columns: dict[str, str] | None = Field(
        None, description="output name: source column; dots go into structs; all columns when left out"
    )
    fill: dict[str, int | float | bool | str] = Field(
        default_factory=dict, description="output name: the value that stands for a null"
    )
    where: str | None = Field(
        None, description="a row filter over source columns, such as \"label < 100 and split = 'train'\""
    )
    split: Split | None = Field(None, description="a share of the rows that `where` leaves")
    classes: dict[str, Literal["auto"] | tuple[str, ...]] = Field(
        default_factory=dict,
        description="output name: the strings that become 0, 1, ...; auto: all that the data holds, sorted",
    )
    limit: Annotated[int, Field(gt=0, lt=2**63), NUMBER] | None = Field(
        None, description="the first rows only, in sorted file order, of those that `where` and `split` leave"
    )
    schema_: dict[str, FeatureType] = Field(
        default_factory=dict,
        alias="schema",
        description="feature: its type, of TFRecord; features that are not here are found by looking at every file",
    )
    tfrecord: TFRecord = Field(TFRecord.model_construct(), description="how TFRecord files are read")
    storage: Storage = Field(Storage.model_construct(), description="how to reach the store")

    @field_validator("path", mode="before")
    @classmethod
    def _not_empty(cls, value: Any) -> Any:
        paths = [os.fspath(path) if isinstance(path, os.PathLike) else path for path in _several(value)]
        if not paths or any(path is None or (isinstance(path, str) and not path.strip()) for path in paths):
            raise ValueError("is empty: give a directory, a file, a glob or a list of them")
        for path in paths:
            if not isinstance(path, str):
                wrong = f"is {path!r}: give a directory, a file, a glob or a list of them"
                raise ValueError(wrong)  # noqa: TRY004  # pydantic reports ValueErrors alone
            if "\0" in path:
                raise ValueError("has a null character in it")
            no_credentials(path)
        return paths if isinstance(value, (list, tuple)) else paths[0]

    @field_validator("columns", mode="before", json_schema_input_type=dict[str, str] | list[str] | None)
    @classmethod
    def _columns_as_mapping(cls, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            odd = [name for name in value if not isinstance(name, str)]
            if odd:
                raise ValueError(f"lists {odd[0]!r}: a list holds names; to rename, give one mapping, output: column")
            twice = [name for i, name in enumerate(value) if name in value[:i]]
            if twice:
                raise ValueError(f"names {twice[0]!r} twice")
            return {name: name for name in value}
        return value

    @field_validator("where")
    @classmethod
    def _grammatical(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                parse(value)
            except SpecError as error:
                hint = f". {error.hint}" if error.hint else ""
                raise ValueError(error.message.removeprefix("source.where, ") + hint) from None
        return value

    @model_validator(mode="after")
    def _names(self) -> Source:
        reserved = {"sample_id", "valid"} & set(self.columns or ())
        if reserved:
            raise ValueError(f"columns: {', '.join(sorted(reserved))} names what every batch has already; rename it")
        if self.columns is not None and not self.columns:
            raise ValueError("columns: is empty; leave it out to read all columns")
        for section, names in (("fill", self.fill), ("classes", self.classes)):
            unknown = set(names) - set(self.columns) if self.columns else set()
            if unknown:
                raise ValueError(f"{section}: {', '.join(sorted(unknown))} is not an output name of columns")
        for name, classes in self.classes.items():
            if classes != "auto" and (not classes or len(set(classes)) < len(classes)):
                raise ValueError(f"classes: the list for '{name}' is empty or holds a value twice")
        return self

    @model_validator(mode="after")
    def _schema_of_tfrecord(self) -> Source:
        if self.format == "parquet" and self.schema_:
            raise ValueError("schema: is for TFRecord, and the format is parquet, whose files have their own")
        return self

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,) if isinstance(self.path, str) else self.path


class WeightedSource(Source):
    """One of several sources."""

    weight: Annotated[float, Field(ge=0, lt=1e9), NUMBER] = Field(
        1, description="its rows in an epoch, relative to the others"
    )


def _several(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
