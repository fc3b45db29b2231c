"""Operations that begin a list for audio and for video: what of a recording is taken, and as what."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from ingest.ops.base import OpBase

Place = Literal["random", "start", "middle"]


class Waveform(OpBase):
    """Audio (WAV, FLAC, Ogg) as float32 samples of -1 to 1: one channel, resampled, a stretch of fixed length.

    A recording that is shorter is followed by silence.
    """

    name: ClassVar[str] = "waveform"
    seconds: PositiveFloat
    sample_rate: Annotated[int, Field(ge=100, le=768_000)] = 16_000
    place: Place = "random"

    @property
    def samples(self) -> int:
        return max(1, round(self.seconds * self.sample_rate))


class MelSpectrogram(OpBase):
    """A waveform's power in mel bands: float32 (bands, 1 + samples // hop), in decibels down from 1 or as it is."""

    name: ClassVar[str] = "mel_spectrogram"
    bands: Annotated[int, Field(ge=1, le=1024)] = 80
    window: Annotated[int, Field(ge=2, le=65_536)] = Field(400, description="samples of a Hann window, and of its FFT")
    hop: PositiveInt = 160
    low_hz: Annotated[float, Field(ge=0)] = 0.0
    high_hz: PositiveFloat | None = Field(None, description="half the sample rate when left out")
    decibels: bool = True
    floor_db: Annotated[float, Field(lt=0)] = -80.0

    @model_validator(mode="after")
    def _ordered(self) -> MelSpectrogram:
        if self.high_hz is not None and self.high_hz <= self.low_hz:
            raise ValueError(f"high_hz: {self.high_hz:g} is not above low_hz, {self.low_hz:g}")
        return self


class Clip(OpBase):
    """Video as frames, uint8 (frames, height, width, 3); the ops that follow do the same to every frame.

    A video that is shorter ends in copies of its last frame.
    """

    name: ClassVar[str] = "clip"
    frames: Annotated[int, Field(ge=1, le=4096)] = 16
    stride: Annotated[int, Field(ge=1, le=1024)] = Field(1, description="1 takes every frame, 2 every other one")
    place: Place = "random"
