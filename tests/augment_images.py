"""Images for the augmentation tests: smooth random pictures, encoded by Pillow, and a short way to augment them."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
from PIL import Image

from ingest.augment.augmenter import Augmenter
from ingest.spec import Augment

# Against Pillow's slow integer IDCT and float bilinear, measured: JPEG mean 1.1, 99.9th percentile 4, largest 7.
JPEG_MEAN, JPEG_P999, JPEG_MOST = 1.5, 6, 12


def smooth(height, width, channels=3, seed=0):
    """Uint8 (height, width[, channels]): random blobs of about 8 pixels, asymmetric under every turn."""
    rng = np.random.default_rng([seed, height, width])
    small = rng.integers(0, 256, (height // 8 + 2, width // 8 + 2, channels), dtype=np.uint8)
    picture = Image.fromarray(small[..., 0] if channels == 1 else small)
    return np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC))


def encoded(pixels, kind="JPEG", **options):
    """Bytes of an image from an array or a Pillow image."""
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def oriented(pixels, orientation, kind="JPEG", **options):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(pixels, kind, exif=exif, **options)


def jpegs(count, seed=0):
    """JPEGs of different sizes, every fourth one grey."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(40, 200, (count, 2)).tolist()
    return [encoded(smooth(h, w, 1 if i % 4 == 3 else 3, seed=i), quality=90) for i, (h, w) in enumerate(sizes)]


def table(images, **columns):
    return pa.table({"image": pa.array(images, pa.binary()), **columns})


def augmenter(batch_rows=64, threads=2, seed=1, device_id=None, reuse=0, landing=None, **spec):
    options = {"batch_rows": batch_rows, "threads": threads, "device_id": device_id, "reuse": reuse, "landing": landing}
    return Augmenter(Augment(**spec), seed=seed, **options)


def augment(images, ids=None, pass_=0, seed=1, **spec):
    """The images of one batch, from a fresh augmenter."""
    worker = augmenter(batch_rows=len(images), seed=seed, **spec)
    try:
        rows = np.arange(len(images))
        return worker([(table(images), rows)], rows if ids is None else np.asarray(ids), pass_)["image"]
    finally:
        worker.close()


def whole(image):
    """One image, decoded and otherwise untouched."""
    return augment([image], ops=[{"flip": {"probability": 0}}])[0]


def assert_close(got, expected, mean=JPEG_MEAN, p999=JPEG_P999, most=JPEG_MOST):
    """Within a stated distance of the reference, in steps of 255."""
    assert len(got) == len(expected)
    assert [one.shape for one in got] == [one.shape for one in expected]
    pairs = zip(got, expected, strict=True)
    apart = np.concatenate([np.abs(a.astype(float) - b.astype(float)).ravel() for a, b in pairs])
    found = (apart.mean(), np.quantile(apart, 0.999), apart.max())
    assert found[0] <= mean, found
    assert found[1] <= p999, found
    assert found[2] <= most, found
