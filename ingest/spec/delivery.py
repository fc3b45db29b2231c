"""What the trainer receives, and what becomes of samples that it cannot."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from ingest.spec.section import Amount, Auto, Count, Fraction, Section, Size
from ingest.spec.storage import no_credentials


class LoaderOptions(Section):
    """What the trainer receives, and how far ahead."""

    framework: Literal["numpy", "torch", "jax", "tf"] = Field("numpy", description="what arrays the trainer receives")
    prefetch_batches: Count | Auto = Field("auto", description="ready batches kept ahead of the trainer")
    memory_bytes: Size | Auto = Field(
        "auto", description="that a rank's blocks and ready batches may take; auto: its share of the object store"
    )
    timeout_s: Amount = Field(300.0, description="no batch for so long is an error that says what is waited for")
    log: str | None = Field(
        None, description="a folder, any fsspec URL, that keeps what each rank was given, for `ingest verify --log`"
    )
    _no_secret_log = field_validator("log")(no_credentials)


class Errors(Section):
    """What happens to a sample that cannot be decoded."""

    on_bad_sample: Literal["raise", "replace"] = Field(
        "raise", description="end the run, naming file and row; or put a healthy row in its place, counted"
    )
    budget: Fraction = Field(0.001, description="bad samples that `replace` allows, as a share of an epoch's rows")
    quarantine: str | None = Field(
        None, description="a folder, any fsspec URL, that keeps what was replaced; beside the manifests when left out"
    )
    _no_secret_quarantine = field_validator("quarantine")(no_credentials)
