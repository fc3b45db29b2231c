"""The spec as a whole: its sections, what they ask of each other, and what decides order and pixels."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from ingest.documents import read_yaml
from ingest.errors import SpecError
from ingest.ops import Function, Mix
from ingest.ops.leading import leading
from ingest.spec.augment import Augment
from ingest.spec.batch import Batch
from ingest.spec.delivery import Errors, LoaderOptions
from ingest.spec.explain import explain
from ingest.spec.facts import content_facts, fingerprint, row_facts
from ingest.spec.order import Mixing, Order
from ingest.spec.read import Read
from ingest.spec.section import Section
from ingest.spec.source import Source, WeightedSource
from ingest.spec.storage import Cache, CachedStorage, Storage


class Spec(Section):
    """What a run reads, in which order, augmented and batched how."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["source"]}, {"required": ["sources"]}]}  # as `_one_way` has it
    )

    source: Source | None = Field(None, description="what to read")
    sources: tuple[WeightedSource, ...] | None = Field(None, description="instead: several sources, mixed by weight")
    mix: Mixing = Field(Mixing.model_construct(), description="how several sources make an epoch")
    order: Order = Field(Order.model_construct(), description="the order of rows")
    read: Read = Field(Read.model_construct(), description="how read tasks run")
    augment: Augment = Field(Augment.model_construct(), description="what happens to images")
    batch: Batch = Field(Batch.model_construct(), description="rows per step")
    loader: LoaderOptions = Field(LoaderOptions.model_construct(), description="what the trainer receives")
    errors: Errors = Field(Errors.model_construct(), description="bad samples")
    cache: Cache = Field(Cache.model_construct(), description="what each node keeps on its disk")

    @model_validator(mode="after")
    def _one_way(self) -> Spec:
        if not self.inputs:
            raise ValueError("source: is missing: give source, or sources to mix several")
        if self.source is not None and self.sources is not None:
            raise ValueError("source: give source or sources, not both")
        if self.sources is not None and not any(source.weight for source in self.sources):
            raise ValueError("sources: give at least one of them a weight above 0")
        if self.sources is None and self.mix != Mixing():
            raise ValueError("mix: is of several sources, and there is one")
        named = [source.columns for source in self.inputs]
        for i, columns in enumerate(named):
            if columns is not None and named[0] is not None and set(columns) != set(named[0]):
                ours, theirs = (", ".join(sorted(one)) for one in (named[0], columns))
                raise ValueError(f"sources: outputs differ: sources.0 has {ours}; sources.{i} has {theirs}")
        return self

    @property
    def inputs(self) -> tuple[Source, ...]:
        """The sources, one or several."""
        return self.sources or ((self.source,) if self.source is not None else ())

    @property
    def weights(self) -> tuple[float, ...] | None:
        """Of the sources; None where there is one that is not mixed."""
        return None if self.sources is None else tuple(source.weight for source in self.sources)

    @property
    def _columns(self) -> dict[str, str] | None:
        """Outputs as far as the spec names them: of the first source that does."""
        return next((source.columns for source in self.inputs if source.columns is not None), None)

    @model_validator(mode="after")
    def _image_column(self) -> Spec:
        columns = self._columns
        if self.augment.pipeline and columns is not None and self.augment.column not in columns:
            near = difflib.get_close_matches(self.augment.column, columns, 1)
            raise ValueError(
                f"augment.column: '{self.augment.column}' is not an output of source.columns ({', '.join(columns)})"
                + (f"; did you mean '{near[0]}'?" if near else "")
            )
        return self

    @model_validator(mode="after")
    def _target_columns(self) -> Spec:
        columns, augment = self._columns, self.augment
        names = (augment.column, *augment.targets)
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"augment: '{name}' is named twice among column, also, boxes, keypoints and masks")
        for name in augment.targets if columns is not None else ():
            if name not in (columns or ()):
                raise ValueError(f"augment: '{name}' is not an output of columns ({', '.join(columns or ())})")
        return self

    @model_validator(mode="after")
    def _bucket_column(self) -> Spec:
        bucket_by, columns = self.batch.bucket_by, self._columns
        if bucket_by is None:
            return self
        if columns is not None and bucket_by.column not in columns:
            near = difflib.get_close_matches(bucket_by.column, columns, 1)
            raise ValueError(
                f"batch.bucket_by.column: '{bucket_by.column}' is not an output of source.columns"
                f" ({', '.join(columns)})" + (f"; did you mean '{near[0]}'?" if near else "")
            )
        return self

    @model_validator(mode="after")
    def _label_column(self) -> Spec:
        columns = self._columns
        for op in self.augment.pipeline:
            if isinstance(op, Mix) and columns is not None and op.label not in columns:
                known = ", ".join(columns)
                raise ValueError(f"augment.ops: {op.name}.label: '{op.label}' is not an output of columns ({known})")
        return self

    @model_validator(mode="after")
    def _decoded(self) -> Spec:
        """What is kept decoded must be the same in every pass, and to the bit what it would be without a cache."""
        augment = self.augment
        if not self.cache.decoded:
            return self
        if not augment.pipeline:
            raise ValueError("cache.decoded: nothing is decoded: augment is empty; leave cache.decoded out")
        first = augment.pipeline[0]
        if not leading(augment.pipeline):
            raise ValueError(
                f"cache.decoded: {first.name} is the first op and differs from pass to pass (or is a function of one's"
                " own), and what it makes is never kept: leave cache.decoded out, or put a resize before it"
            )
        moves = [name for name in ("boxes", "keypoints", "masks") if getattr(augment, name)]
        if moves or any(isinstance(op, Function) for op in augment.pipeline):
            raise ValueError(f"cache.decoded: with {moves[0] if moves else 'function'} is not there yet; leave one out")
        if augment.device == "gpu":
            raise ValueError("cache.decoded: images are decoded on the CPU then; use augment.device: cpu")
        return self

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise SpecError(explain(error, Spec)) from None

    @classmethod
    def load(cls, spec: Spec | Mapping[str, Any] | str | os.PathLike[str]) -> Spec:
        """A spec from itself, a mapping, or the path of a YAML file.

        Raises:
            SpecError: the file cannot be read, is not YAML, or does not validate.
        """
        if isinstance(spec, Spec):
            return spec
        if isinstance(spec, Mapping):
            return cls(**{str(key): value for key, value in spec.items()})
        if not isinstance(spec, (str, os.PathLike)):
            raise SpecError(
                f"a spec is a Spec, a mapping or the path of a YAML file, and this is a {type(spec).__name__}"
            )
        path = Path(spec)
        try:
            values = read_yaml(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:  # ValueError: not UTF-8, or no path
            raise SpecError(f"the spec cannot be read: {error}", path=str(path)) from None
        except yaml.YAMLError as error:
            raise SpecError(f"the spec is not YAML: {error}", path=str(path)) from None
        if not isinstance(values, dict):
            raise SpecError("the spec is not a mapping", path=str(path), hint="It starts with 'source:'")
        try:
            return cls(**{str(key): value for key, value in values.items()})
        except SpecError as error:
            error.path = str(path)
            raise

    def sized(self, size: int) -> Spec:
        """The spec with the rows of a rank's batch given."""
        batch = self.batch.model_copy(update={"size": size, "global_size": None})
        return self.model_copy(update={"batch": batch})

    def reading(self, source: Source) -> Storage:
        """How a source's units are read: as its `storage` says, from the cache where there is one."""
        if self.cache.path is None or self.cache.decoded:  # what is kept decoded need not be kept encoded too
            return source.storage
        return CachedStorage(**source.storage.model_dump(), cache=self.cache)

    def order_facts(self) -> dict[str, Any]:
        """What decides which rows come in which order, JSON-ready (lanes and interleave are kept beside it)."""
        facts: dict[str, Any] = {"seed": self.order.seed, "shuffle": self.order.shuffle}
        if self.batch.bucket_by is not None:
            facts["bucket_by"] = self.batch.bucket_by.model_dump(
                mode="json", exclude={"tokens"}
            )  # batch sizes are free
        if self.sources is None:
            return {**facts, **row_facts(self.inputs[0])}
        for i, source in enumerate(self.sources):
            facts[f"sources.{i}"] = {"weight": source.weight, **row_facts(source)}
        return {**facts, "mix": self.mix.model_dump(mode="json")}

    def pixel_facts(self) -> dict[str, Any]:
        """What decides the content of a row, JSON-ready."""
        ops = [op.model_dump(mode="json") for op in self.augment.pipeline]
        facts: dict[str, Any] = {
            "ops": ops,
            "image": self.augment.column if ops else None,
            **self.augment.target_facts(),
            **({"hardware_jpeg": True} if self.augment.hardware_jpeg else {}),
        }
        if self.sources is None:
            return {**facts, **content_facts(self.inputs[0])}
        return {**facts, **{f"sources.{i}": content_facts(source) for i, source in enumerate(self.sources)}}

    @property
    def fingerprint(self) -> str:
        """A digest of what decides order and pixels."""
        return fingerprint({"order": self.order_facts(), "pixels": self.pixel_facts()})


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the spec, for editors."""
    return TypeAdapter(Spec).json_schema()
