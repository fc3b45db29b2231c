"""Audio and video: stretches that the sample's own numbers place, spectra as NumPy computes them, frames alike."""

from __future__ import annotations

import io
import wave
from pathlib import Path

import numpy as np
import pytest
from augment_images import augmenter, table

from ingest.augment.media import open_video, start_of
from ingest.errors import SampleError, SpecError
from ingest.spec import Augment, Spec

pytestmark = pytest.mark.unit

DATA = Path(__file__).parents[1] / "data"
FLAC = (DATA / "tone.flac").read_bytes()  # 0.25 s, 8 kHz, two channels: 440 Hz at 0.5 and 880 Hz at 0.25
WEBM = (DATA / "clip.webm").read_bytes()  # VP9, 24 frames of 64 x 48; frame i is grey 10 i, its left half redder
MP4 = (DATA / "clip.mp4").read_bytes()  # the same in H.264, which DALI leaves to GPUs


def wav(samples, rate=16_000):
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes(np.rint(np.asarray(samples) * 32767).astype("<i2").tobytes())
    return file.getvalue()


def run(files, ids=None, threads=1, **spec):
    worker = augmenter(batch_rows=len(files), threads=threads, **spec)
    try:
        rows = np.arange(len(files))
        return worker.attempt([(table(files), rows)], rows if ids is None else np.asarray(ids), 0)
    finally:
        worker.close()


RAMP = [wav(np.arange(20_000) / 40_000 + 0.1) for _ in range(6)]


@pytest.mark.parametrize("place", ["random", "start", "middle"])
def test_a_stretch_lies_where_its_place_says(place):
    batch, failures = run(RAMP, ops=[{"waveform": {"seconds": 0.5, "place": place}}])
    assert not failures
    assert (batch["image"].shape, batch["image"].dtype) == ((6, 8000), np.float32)
    starts = np.rint((batch["image"][:, 0] - 0.1) * 40_000).astype(int)
    for one, start in zip(batch["image"], starts.tolist(), strict=True):
        assert np.abs(one - (0.1 + np.arange(start, start + 8000) / 40_000)).max() < 1e-4
    assert ((starts >= -1) & (starts <= 12_001)).all()
    if place == "random":
        assert len(set(starts.tolist())) == 6
    else:
        assert np.abs(starts - (6000 if place == "middle" else 0)).max() <= 1


def test_a_stretch_is_a_function_of_the_sample():
    spec = {"ops": [{"waveform": {"seconds": 0.25}}, {"mel_spectrogram": {"bands": 20}}]}
    whole, _ = run(RAMP, **spec)
    some, _ = run([RAMP[4], RAMP[1]], ids=[4, 1], threads=3, **spec)
    assert np.array_equal(some["image"], whole["image"][[4, 1]])


def test_flac_is_mixed_down_and_what_is_short_ends_in_silence():
    batch, _ = run([FLAC], ops=[{"waveform": {"seconds": 0.5, "sample_rate": 8000}}])
    (got,) = batch["image"]
    t = np.arange(2000) / 8000
    want = (0.5 * np.sin(2 * np.pi * 440 * t) + 0.25 * np.sin(2 * np.pi * 880 * t)) / 2
    assert np.abs(got[:2000] - want).max() < 1e-4
    assert not got[2000:].any()


@pytest.mark.parametrize("left", [44, 45, 1000, -1])
def test_a_wav_cut_short_is_an_error_and_not_silence(left):
    odd = b"LIST\3\0\0\0abc\0"  # a chunk of an odd length, before the samples
    whole = RAMP[0][:36] + odd + RAMP[0][36:]
    batch, failures = run(
        [whole, RAMP[0][:left], whole[:left] if left < 0 else whole], ops=[{"waveform": {"seconds": 1}}]
    )
    assert sorted(failures) == ([1, 2] if left < 0 else [1])
    assert "a WAV cut short" in str(failures[1])
    assert batch["image"][0].any()
    assert not batch["image"][1].any()


@pytest.mark.parametrize("length", [0x7FFFFFFF, 0xFFFFFFFF])
def test_a_wav_that_was_streamed_is_as_long_as_it_is(length):
    streamed = RAMP[0][:40] + length.to_bytes(4, "little") + RAMP[0][44:]
    batch, failures = run([RAMP[0], streamed], ops=[{"waveform": {"seconds": 1, "place": "start"}}])
    assert not failures
    assert np.array_equal(batch["image"][0], batch["image"][1])


def mel_reference(samples, rate, window, hop, bands):
    """Slaney's mel scale, triangles of unit area, power of a centred Hann window, borders mirrored."""
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * (np.arange(window) + 0.5) / window)
    framed = np.pad(samples.astype(np.float64), window // 2, mode="reflect")
    frames = np.stack([framed[i * hop : i * hop + window] * hann for i in range(1 + len(samples) // hop)])
    power = np.abs(np.fft.rfft(frames, axis=1)) ** 2

    def hz(mel):
        return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * np.log(6.4) / 27))

    top = 15 + 27 * np.log(rate / 2 / 1000) / np.log(6.4)
    edges = hz(np.linspace(0, top, bands + 2))
    at = np.arange(window // 2 + 1) * rate / window
    up = (at - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    down = (edges[2:, None] - at) / (edges[2:] - edges[1:-1])[:, None]
    weights = np.maximum(0, np.minimum(up, down)) * (2 / (edges[2:] - edges[:-2]))[:, None]
    return weights @ power.T


def test_a_mel_spectrogram_is_what_numpy_computes():
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 4000)
    for decibels in (False, True):
        spec = [{"waveform": {"seconds": 0.25}}, {"mel_spectrogram": {"bands": 40, "decibels": decibels}}]
        (got,) = run([wav(noise)], ops=spec)[0]["image"]
        (samples,) = run([wav(noise)], ops=spec[:1])[0]["image"]
        want = mel_reference(samples, 16_000, 400, 160, 40)
        assert got.shape == want.shape == (40, 26)
        if decibels:
            assert np.abs(got - np.maximum(10 * np.log10(np.maximum(want, 1e-30)), -80)).max() < 0.05
        else:
            assert np.allclose(got, want, rtol=1e-3, atol=1e-6)


def test_a_bad_recording_is_one_samples_error():
    batch, failures = run([RAMP[0], b"RIFF no", RAMP[1], None], recipe="audio_waveform")
    assert sorted(failures) == [1, 3]
    assert "audio that DALI cannot decode" in str(failures[1])
    assert "null in column 'image', where a recording should be" in str(failures[3])
    assert batch["image"][2].any()
    assert not batch["image"][1].any()


@pytest.mark.parametrize("data", [WEBM, MP4], ids=["VP9 by DALI", "H.264 by OpenCV"])
def test_a_clip_takes_frames_at_their_stride_and_ends_in_the_last(data):
    ops = [{"clip": {"frames": 5, "stride": 3, "place": "middle"}}, {"resize": {"size": [48, 64]}}]
    (got,) = run([data], ops=ops)[0]["image"]
    assert (got.shape, got.dtype) == ((5, 48, 64, 3), np.uint8)
    first = (24 - 13) // 2
    for at, frame in enumerate(got):
        assert np.abs(frame[8:40, 40:60].mean((0, 1)) - 10 * (first + 3 * at)).max() < 4
        assert frame[8:40, 4:24, 0].mean() > 240 - 10 * (first + 3 * at)
    (long,) = run([data], ops=[{"clip": {"frames": 30, "place": "start"}}, {"resize": {"size": 32}}])[0]["image"]
    assert (long[24:] == long[23]).all()


def test_all_frames_of_a_clip_are_augmented_alike_and_clips_are_functions_of_the_sample():
    ops = [{"clip": {"frames": 4}}, {"random_resized_crop": {"size": 32}}, "flip", "normalize"]
    batch, _ = run([WEBM] * 6, ops=ops)
    assert batch["image"].shape == (6, 4, 3, 32, 32)
    again, _ = run([WEBM] * 2, ids=[5, 2], threads=2, ops=ops)
    assert np.array_equal(again["image"], batch["image"][[5, 2]])
    assert len({clip[0].tobytes() for clip in batch["image"]}) > 3
    mirrored = [[frame[0, :, :4].mean() < frame[0, :, -4:].mean() - 0.1 for frame in clip] for clip in batch["image"]]
    assert all(len(set(clip)) == 1 for clip in mirrored)


def test_a_bad_video_is_one_samples_error():
    batch, failures = run([WEBM, b"no video", WEBM[:700], None], recipe="video_clip")
    assert batch["image"].shape == (4, 16, 112, 112, 3)
    assert sorted(failures)[:1] == [1]
    assert 3 in failures
    assert "not a video" in str(failures[1])
    with pytest.raises(SampleError, match="not a video"), open_video(np.frombuffer(b"x" * 100, np.uint8)):
        pass


def test_random_places_cover_all_starts():
    assert {start_of("random", n / 100, 10, 4) for n in range(100)} == set(range(7))
    assert start_of("random", 0.99, 3, 4) == 0


@pytest.mark.parametrize(
    ("ops", "said"),
    [
        (["flip", {"waveform": {"seconds": 1}}], "waveform must be the first op"),
        ([{"waveform": {"seconds": 1}}, "flip"], "flip is not for audio"),
        (["mel_spectrogram"], "mel_spectrogram must follow waveform"),
        (["clip", "flip"], "clip needs frames of one size"),
        (["clip", {"resize": {"size": 8}}, {"mixup": {"num_classes": 2}}], "mixup is not for video"),
    ],
)
def test_what_recordings_cannot_do_is_refused(ops, said):
    with pytest.raises(SpecError, match=said):
        augmenter(ops=ops)
    with pytest.raises(SpecError, match="clip takes no also, boxes"):
        augmenter(ops=["clip", {"resize": {"size": 8}}], boxes="b")
    with pytest.raises(SpecError, match="waveform runs on the CPU"):
        Spec(source={"path": "x"}, augment={"recipe": "audio_mel", "device": "gpu"})
    assert [op.name for op in Augment(recipe="video_clip").pipeline] == ["clip", "random_resized_crop", "flip"]
