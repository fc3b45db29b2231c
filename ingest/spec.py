"""The spec: what to read, in which order, augmented how, batched how. Validated, frozen, data only."""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import (
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from ingest.documents import read_yaml
from ingest.errors import SpecError
from ingest.ops import RECIPES, Clip, Function, Mix, Numpy, Op, SpelledFunction, SpelledNumpy, SpelledOp, Waveform
from ingest.ops.leading import leading
from ingest.ops.targets import SpelledBoxes, SpelledKeypoints, SpelledMask
from ingest.predicate import parse

Auto = Literal["auto"]
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(gt=0, lt=2**31)]
Amount = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Recipe = Literal["imagenet_train", "imagenet_eval", "audio_waveform", "audio_mel", "video_clip", "none"]


class Section(BaseModel):
    """A frozen part of the spec that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True)


def _several(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _refuse(name: str, value: str, *later: str) -> None:
    if value in later:
        raise ValueError(f"{name}: '{value}' is not there yet in this release")


class Storage(Section):
    """How to reach the bucket. Credentials come from the cloud's usual chain where it is read, never from here."""

    endpoint_url: str | None = Field(None, description="an S3-compatible endpoint; http:// is allowed when written so")
    region: str | None = Field(None, description="of the bucket; found by the cloud's usual chain when left out")
    anonymous: bool = Field(False, description="send unsigned requests (public buckets)")
    profile: str | None = Field(None, description="S3: a profile of ~/.aws on the machine that reads")
    requester_pays: bool = Field(False, description="S3: accept the costs of a requester-pays bucket")
    path_style: bool | None = Field(
        None, description="S3: the bucket in the path (so when left out), or in the host name"
    )
    proxy_url: str | None = Field(None, description="an HTTP proxy; else the environment's HTTPS_PROXY and NO_PROXY")
    ca_file: str | None = Field(None, description="certificates to trust besides the usual ones, PEM")
    headers: dict[str, str] = Field(default_factory=dict, description="sent with every request; never a credential")
    retry_s: Amount = Field(30.0, description="how long a request that fails is asked for again, in seconds")
    concurrency: Count | Auto = Field("auto", description="requests of one process and bucket at a time")

    def __hash__(self) -> int:
        return hash(self.model_dump_json())  # headers are a dict

    @model_validator(mode="after")
    def _no_secrets(self) -> Storage:
        """The spec is pickled, logged and kept in states: no secret may be in it."""
        for name in ("endpoint_url", "proxy_url"):
            if "@" in (getattr(self, name) or ""):
                raise ValueError(
                    f"{name}: has credentials in it: leave them to the environment of the machine that reads"
                )
        for name in self.headers:
            if re.search(
                r"authorization|cookie|token|secret|password|api-?key|signature|customer-key", name, re.IGNORECASE
            ):
                raise ValueError(f"headers: {name} carries a credential: leave it to the cloud's usual chain")
        return self


class Split(Section):
    """A share of the rows, by a hash of the sample id: the same at any seed of the order."""

    take: str = Field(description="the part to read")
    of: dict[str, Annotated[float, Field(gt=0, le=1)]] = Field(
        description="part: its share of the rows; their sum is at most 1, and what is left is in no part"
    )
    seed: int = Field(0, ge=0, lt=2**63, description="of the hash; another one gives other parts")

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


class Cache(Section):
    """What each node keeps on its own disk of what it has read from a store."""

    path: str | None = Field(None, description="a directory on each node; nothing is kept when left out")
    bytes: Annotated[ByteSize, Field(gt=0, lt=2**62)] | None = Field(None, description="that it may fill, on each node")
    decoded: bool = Field(
        False, description="keep rows with their images decoded, after the ops before the first random one"
    )

    @model_validator(mode="after")
    def _built(self) -> Cache:
        if (self.path is None) != (self.bytes is None):
            raise ValueError("give path and bytes together: where to keep, and how much")
        if self.path is not None and not Path(self.path).is_absolute():
            raise ValueError("path: is not absolute, and every node has another working directory")
        if self.decoded and self.path is None:
            raise ValueError("decoded: needs path and bytes: where to keep, and how much")
        return self


class CachedStorage(Storage):
    """How to reach a store, with a cache before it: what `Spec.reading` gives to those who read units."""

    cache: Cache = Field(Cache())

    def __hash__(self) -> int:
        return super().__hash__()


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
    limit: Annotated[int, Field(gt=0, lt=2**63)] | None = Field(
        None, description="the first rows only, in sorted file order, of those that `where` and `split` leave"
    )
    schema_: dict[str, FeatureType] = Field(
        default_factory=dict,
        alias="schema",
        description="feature: its type, of TFRecord; features that are not here are found by looking at every file",
    )
    tfrecord: TFRecord = Field(TFRecord(), description="how TFRecord files are read")
    storage: Storage = Field(Storage(), description="how to reach the store")

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
            azure = re.match(r"abfss?://[^/@:]+@[^/@:]+/", str(path))  # container@account
            if not azure and re.match(r"[^/]+://[^/]*@", str(path)):  # the message must not repeat it
                raise ValueError("has credentials in its URL: leave them to the environment of the machine that reads")
            if re.match(r"https?://[^?]*\?.*(sig|signature|token|credential)=", str(path), re.IGNORECASE):
                raise ValueError("has a signature in its URL, which would be logged: give the bucket's own URL instead")
        return paths if isinstance(value, (list, tuple)) else paths[0]

    @field_validator("columns", mode="before", json_schema_input_type=dict[str, str] | list[str] | None)
    @classmethod
    def _columns_as_mapping(cls, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
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

    weight: Annotated[float, Field(ge=0, lt=1e9)] = Field(1, description="its rows in an epoch, relative to the others")


class Mixing(Section):
    """How several sources make an epoch."""

    stop: Literal["first_exhausted", "all_exhausted", "steps"] = Field(
        "first_exhausted",
        description="the epoch ends with the source that is used up first; or last, others repeating; or after steps",
    )
    steps: Count | None = Field(None, description="of an epoch, with stop: steps")

    @model_validator(mode="after")
    def _steps_with_steps(self) -> Mixing:
        if (self.stop == "steps") != (self.steps is not None):
            raise ValueError("give steps with stop: steps, and only then")
        return self


class Order(Section):
    """The order of rows, which the seed decides."""

    seed: int = Field(0, ge=0, lt=2**63, description="of order and augmentation")
    shuffle: Literal["none", "window", "full"] = Field(
        "window", description="file order, permuted within windows, or over all that a rank reads"
    )
    window_bytes: Annotated[ByteSize, Field(gt=0, lt=2**62)] = Field(
        ByteSize(256 << 20), description="read ahead for shuffling, per rank"
    )
    interleave: Count | Auto = Field("auto", description="units per window")
    lanes: Annotated[int, Field(gt=0, le=2**16)] | Auto = Field("auto", description="a power of two")

    @field_validator("lanes")
    @classmethod
    def _power_of_two(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value & (value - 1):
            low = 1 << (value.bit_length() - 1)
            raise ValueError(f"is {value}, and must be a power of two: {low} or {2 * low}, say")
        return value


class Read(Section):
    """How read tasks run."""

    readers: Count | Auto = Field("auto", description="read tasks of one rank that run at a time")
    cpus: Amount = Field(1.0, description="CPUs that Ray counts for each read task")
    resources: dict[str, Amount] = Field(
        default_factory=dict, description="custom resources that Ray counts for each read task"
    )
    labels: dict[str, str] = Field(
        default_factory=dict,
        description="labels of the nodes that read, {ingest-role: reader} say; Ray's selectors",
    )

    @field_validator("resources")
    @classmethod
    def _custom(cls, value: dict[str, float]) -> dict[str, float]:
        own = {"CPU": "read.cpus", "GPU": None, "memory": None, "object_store_memory": None}
        for name in value:
            if name in own:
                hint = f"; give {own[name]}" if own[name] else ""
                raise ValueError(f"{name} is no custom resource{hint}")
        return value

    @property
    def place(self) -> dict[str, Any]:
        """What Ray counts for a read task, and looks for in its node: options of a task."""
        return {
            "num_cpus": self.cpus,
            **({"resources": dict(self.resources)} if self.resources else {}),
            **({"label_selector": dict(self.labels)} if self.labels else {}),
        }


class Augment(Section):
    """What happens to images."""

    recipe: Literal["imagenet_train", "imagenet_eval", "audio_waveform", "audio_mel", "video_clip", "none"] | None = (
        Field(None, description="a named list of ops; `none` when neither recipe, ops nor function is given")
    )
    ops: tuple[SpelledOp, ...] | None = Field(
        None, description="instead of a recipe: a list such as [{random_resized_crop: {size: 224}}, flip]"
    )
    function: SpelledFunction = Field(
        None, description="instead: package.module:name, of (DALI images, numbers) to images; or {call, draws, size}"
    )
    numpy: SpelledNumpy = Field(
        None, description="instead: package.module:name, of one image's (pixels, numbers) to pixels; on the CPU"
    )
    column: str = Field("image", description="the output that holds encoded images")
    also: tuple[str, ...] = Field((), description="further outputs that do, augmented by the same numbers")
    boxes: SpelledBoxes = Field(None, description="an output that holds boxes, which move with the image")
    keypoints: SpelledKeypoints = Field(None, description="an output that holds points, which move with the image")
    masks: tuple[SpelledMask, ...] = Field((), description="outputs that hold encoded masks, which move with the image")
    device: Literal["auto", "gpu", "cpu"] = Field("auto", description="the GPU where Ray has enough of them")
    placement: Literal["actor", "trainer"] = Field(
        "actor", description="in actors beside the trainer, or in the trainer's own process"
    )
    actors_per_trainer: Count = Field(1, description="augmentation actors of each rank")
    cpus: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        0.0, description="CPUs that Ray counts for each augmentation actor"
    )
    gpus: Amount = Field(1.0, description="GPUs of each augmentation actor, on device gpu")
    threads: Count | Auto = Field("auto", description="decoding threads of each augmentation actor")

    @model_validator(mode="after")
    def _one_of(self) -> Augment:
        given = [name for name in ("recipe", "ops", "function", "numpy") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"give {' or '.join(given)}, not both")
        own = {type(op) for op in self.pipeline if isinstance(op, (Function, Numpy))}
        if len(own) > 1:
            raise ValueError("ops: function and numpy do not go together: DALI's graph has no place for NumPy")
        if self.pipeline and isinstance(self.pipeline[0], (Clip, Waveform)) and self.device == "gpu":
            raise ValueError(f"device: is gpu, and {self.pipeline[0].name} runs on the CPU: use device: cpu")
        if Numpy in own and self.device == "gpu":
            raise ValueError("device: is gpu, and numpy functions run on the CPU: use device: cpu")
        return self

    @property
    def pipeline(self) -> tuple[Op, ...]:
        """The ops, whichever way they were given; empty when there is nothing to augment."""
        own = self.function or self.numpy
        return (own,) if own else self.ops if self.ops is not None else RECIPES[self.recipe or "none"]

    @property
    def actors(self) -> int:
        """Augmentation actors of each rank; none where there is nothing to augment, or the trainer does it itself."""
        return self.actors_per_trainer if self.pipeline and self.placement == "actor" else 0

    def target_facts(self) -> dict[str, Any]:
        """What decides the content of the columns that move with the image, JSON-ready; empty where none does."""
        named = {"also": self.also, "boxes": self.boxes, "keypoints": self.keypoints, "masks": self.masks}
        return {name: self.model_dump(mode="json")[name] for name, value in named.items() if value}

    @property
    def targets(self) -> tuple[str, ...]:
        """The outputs that move with the image."""
        boxes = (self.boxes.column, *self.boxes.labels) if self.boxes else ()
        points = (self.keypoints.column,) if self.keypoints else ()
        return (*self.also, *boxes, *points, *(mask.column for mask in self.masks))

    @property
    def fields(self) -> tuple[str, ...]:
        """Where each op of the pipeline stands in the spec."""
        if self.ops is not None:
            return tuple(f"augment.ops.{i}.{op.name}" for i, op in enumerate(self.ops))
        return tuple(f"augment.{op.name if self.recipe is None else 'recipe'}" for op in self.pipeline)


class BucketBy(Section):
    """Batches of rows of like lengths."""

    column: str = Field(description="an output: lists, sorted by their lengths, or integers, the lengths themselves")
    chunk: Count = Field(32, description="global batches whose rows are sorted together")
    tokens: Count | None = Field(
        None,
        description="in place of batch.size: padded tokens of a trainer's batch, on average; its rows follow from a "
        "sample of the lengths",
    )


class Batch(Section):
    """How many rows a step takes."""

    size: Count | None = Field(None, description="rows per trainer and step; 256 when neither size is given")
    global_size: Count | None = Field(None, description="rows per step over all trainers, whatever their number")
    last: Literal["drop", "pad", "keep"] = Field(
        "drop", description="the rows that do not fill a global batch: left out, filled up, or a smaller batch"
    )
    ragged: Literal["arrays", "padded", "offsets"] = Field(
        "arrays",
        description="lists of any length: an array a row; padded with NAME_length; or all values with NAME_offsets",
    )
    bucket_by: BucketBy | None = Field(
        None, description="rows of like lengths: a batch then has size rows on average, and near-equal padded tokens"
    )

    @model_validator(mode="after")
    def _one_size(self) -> Batch:
        if self.size is not None and self.global_size is not None:
            raise ValueError("give size or global_size, not both")
        if self.target is None and self.bucket_by is not None and self.bucket_by.tokens is not None:
            raise ValueError(
                f"give {'size' if self.size else 'global_size'} or bucket_by.tokens, from which it follows, not both"
            )
        return self

    @property
    def target(self) -> int | None:
        """Padded tokens of a rank's batch, where `size` follows from them and the data; None where it is known."""
        open_ = self.bucket_by is not None and self.size is None and self.global_size is None
        return self.bucket_by.tokens if open_ and self.bucket_by is not None else None

    def per_rank(self, world_size: int) -> int:
        """Rows per rank and step.

        Raises:
            SpecError: `global_size` does not divide by `world_size`; or the data has not been looked at yet.
        """
        if self.target is not None:
            raise SpecError("batch.size follows from batch.bucket_by.tokens and the data", hint="Give batch.size")
        if self.global_size is None:
            return self.size or 256
        if self.global_size % world_size:
            raise SpecError(
                f"batch.global_size {self.global_size} does not divide by the world size {world_size}",
                hint="Change one of them, or give batch.size",
            )
        return self.global_size // world_size


class LoaderOptions(Section):
    """What the trainer receives, and how far ahead."""

    framework: Literal["numpy", "torch", "jax", "tf"] = Field("numpy", description="what arrays the trainer receives")
    prefetch_batches: Count | Auto = Field("auto", description="ready batches kept ahead of the trainer")
    timeout_s: Amount = Field(300.0, description="no batch for so long is an error that says what is waited for")
    log: str | None = Field(
        None, description="a folder, any fsspec URL, that keeps what each rank was given, for `ingest verify --log`"
    )


class Errors(Section):
    """What happens to a sample that cannot be decoded."""

    on_bad_sample: Literal["raise", "replace"] = Field(
        "raise", description="end the run, naming file and row; or put a healthy row in its place, counted"
    )
    budget: Fraction = Field(0.001, description="bad samples that `replace` allows, as a share of an epoch's rows")
    quarantine: str | None = Field(
        None, description="a folder, any fsspec URL, that keeps what was replaced; beside the manifests when left out"
    )


class Spec(Section):
    """What a run reads, in which order, augmented and batched how."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["source"]}, {"required": ["sources"]}]}  # as `_one_way` has it
    )

    source: Source | None = Field(None, description="what to read")
    sources: tuple[WeightedSource, ...] | None = Field(None, description="instead: several sources, mixed by weight")
    mix: Mixing = Field(Mixing(), description="how several sources make an epoch")
    order: Order = Field(Order(), description="the order of rows")
    read: Read = Field(Read(), description="how read tasks run")
    augment: Augment = Field(Augment(), description="what happens to images")
    batch: Batch = Field(Batch(), description="rows per step")
    loader: LoaderOptions = Field(LoaderOptions(), description="what the trainer receives")
    errors: Errors = Field(Errors(), description="bad samples")
    cache: Cache = Field(Cache(), description="what each node keeps on its disk")

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
        if self.sources is not None and self.loader.log is not None:
            raise ValueError("loader.log: is not there yet for several sources; leave it out")
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
            raise SpecError(_explain(error)) from None

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
            return {**facts, **_row_facts(self.inputs[0])}
        for i, source in enumerate(self.sources):
            facts[f"sources.{i}"] = {"weight": source.weight, **_row_facts(source)}
        return {**facts, "mix": self.mix.model_dump(mode="json")}

    def pixel_facts(self) -> dict[str, Any]:
        """What decides the content of a row, JSON-ready."""
        ops = [op.model_dump(mode="json") for op in self.augment.pipeline]
        facts: dict[str, Any] = {
            "ops": ops,
            "image": self.augment.column if ops else None,
            **self.augment.target_facts(),
        }
        if self.sources is None:
            return {**facts, **_content_facts(self.inputs[0])}
        return {**facts, **{f"sources.{i}": _content_facts(source) for i, source in enumerate(self.sources)}}

    @property
    def fingerprint(self) -> str:
        """A digest of what decides order and pixels."""
        return fingerprint({"order": self.order_facts(), "pixels": self.pixel_facts()})


def _row_facts(source: Source) -> dict[str, Any]:
    """What decides which rows of a source there are."""
    facts: dict[str, Any] = {"limit": source.limit}
    if source.where is not None:
        text = str(parse(source.where))
        short = text[:200] + f"... ({len(text)} characters, digest {fingerprint({'where': text})})"
        facts["where"] = text if len(text) <= 1000 else short  # states are small
    if source.split is not None:
        facts["split"] = source.split.model_dump(mode="json")
    return facts


def _content_facts(source: Source) -> dict[str, Any]:
    """What a source decides of the content of its rows."""
    facts: dict[str, Any] = {
        "columns": source.columns,
        "fill": source.fill,
        **class_facts({name: one for name, one in source.classes.items() if one != "auto"}),
    }
    if source.schema_:
        facts["schema"] = {name: kind.model_dump(mode="json") for name, kind in source.schema_.items()}
    return facts


def fingerprint(facts: Mapping[str, Any]) -> str:
    """A short, stable digest of JSON-ready facts."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def class_facts(classes: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """What stands for class lists, which may be long, among the facts that decide a row's content."""
    return {
        f"classes of {name}": f"{len(one)}, digest {fingerprint({'classes': one})}" for name, one in classes.items()
    }


def json_schema() -> dict[str, Any]:
    """The JSON Schema of the spec, for editors."""
    return TypeAdapter(Spec).json_schema()


def _explain(error: ValidationError) -> str:
    """Every problem on a line of its own, with its path in the spec and, for an unknown key, the nearest known one."""
    lines = []
    for problem in error.errors():
        where = [str(part) for part in problem["loc"]]
        if problem["type"] == "extra_forbidden":
            known = _known_keys(where[:-1])
            near = difflib.get_close_matches(where[-1], known, 1, cutoff=0.5)
            advice = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"
            lines.append(f"{'.'.join(where)}: unknown key; {advice}")
        else:
            text = problem["msg"].removeprefix("Value error, ")
            silent = problem["type"] in ("missing", "value_error") or "storage" in where  # may hold a secret
            got = "" if silent else f", got {problem['input']!r}"
            lines.append(f"{'.'.join(where) or 'spec'}: {text}{got}")
    return "; ".join(dict.fromkeys(lines))


def _known_keys(path: list[str]) -> list[str]:
    model: Any = Spec
    for part in path:
        if part.isdigit():  # one of a list's sections
            continue
        field = model.model_fields.get(part)
        kinds = () if field is None else (field.annotation, *get_args(field.annotation))  # a section, or one or None
        kinds = (*kinds, *(inner for kind in kinds for inner in get_args(kind)))  # a list of sections, or None
        sections = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        if not sections:
            return []
        model = sections[0]
    return [field.alias or name for name, field in model.model_fields.items()]
