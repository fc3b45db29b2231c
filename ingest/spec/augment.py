"""What happens to images, and who does it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ingest.ops import Clip, Function, Numpy, Op, SpelledFunction, SpelledNumpy, SpelledOp, Waveform, recipe
from ingest.ops.base import Side
from ingest.ops.ends import misplaced
from ingest.ops.targets import SpelledBoxes, SpelledKeypoints, SpelledMask
from ingest.spec.section import NUMBER, Amount, Auto, Count, Section, Size

Recipe = Literal["imagenet_train", "imagenet_eval", "audio_waveform", "audio_mel", "video_clip", "none"]


class Augment(Section):
    """What happens to images."""

    recipe: Recipe | None = Field(
        None, description="a named list of ops; `none` when neither recipe, ops nor function is given"
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
    cpus: Annotated[float, Field(ge=0, allow_inf_nan=False), NUMBER] = Field(
        0.0, description="CPUs that Ray counts for each augmentation actor"
    )
    gpus: Amount = Field(1.0, description="GPUs of each augmentation actor, on device gpu")
    threads: Count | Auto = Field("auto", description="decoding threads of each augmentation actor")
    gpu_memory_bytes: Size | Auto = Field(
        "auto", description="of each GPU, taken for DALI at the start; no bound, since DALI has none"
    )
    largest_image: tuple[Side, Side] | None = Field(
        None,
        description="(height, width) of the data's largest image: a GPU decodes one like it before the first batch",
    )
    hardware_jpeg: bool = Field(
        False, description="let the GPU's JPEG engine decode a share of each batch: faster, and bits do not repeat"
    )

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
        if self.hardware_jpeg and self.device != "gpu":
            raise ValueError(f"hardware_jpeg: is the GPU's, and device is {self.device}: use device: gpu")
        return self

    @model_validator(mode="after")
    def _in_order(self) -> Augment:
        why = misplaced(self.pipeline)
        if why is not None:
            raise ValueError(f"ops: {why}")
        return self

    @property
    def pipeline(self) -> tuple[Op, ...]:
        """The ops, whichever way they were given; empty when there is nothing to augment."""
        own = self.function or self.numpy
        return (own,) if own else self.ops if self.ops is not None else recipe(self.recipe or "none")

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
