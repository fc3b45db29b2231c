"""How many rows a step takes, and which go together."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from ingest.errors import SpecError
from ingest.spec.section import Count, Section


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
