"""Functions as users write them, for the tests; and some that cannot be used."""

from __future__ import annotations

import threading

import numpy as np


def brighter(pixels, numbers):
    """By up to 100."""
    return np.clip(pixels.astype(np.int64) + int(100 * numbers[0]), 0, 255).astype(np.uint8)


def halved(pixels, numbers):
    return np.ascontiguousarray(pixels[:8, :8])


def floats(pixels, numbers):
    return pixels / 255


_SCRATCH = np.zeros((20, 30, 3), np.uint8)


def into_one_array(pixels, numbers):
    """Gives the same array back for every image."""
    return np.subtract(255, pixels, out=_SCRATCH)


def in_place(pixels, numbers):
    pixels -= 1
    return pixels


def nodes(images, numbers):
    """DALI: mirrored, and darker by a random factor."""
    from nvidia.dali import fn, types

    return fn.cast(fn.flip(images, horizontal=1) * numbers[0], dtype=types.UINT8)


def cropped(images, numbers):
    from nvidia.dali import fn

    assert numbers is None
    return fn.crop(images, crop=(8, 10))


def unbuildable(images, numbers):
    from nvidia.dali import fn

    return fn.resize(images, size=[1, 2, 3, 4])


def raises(images, numbers):
    raise KeyError("nothing here")


class Locked:
    def __init__(self):
        self.lock = threading.Lock()

    def __call__(self, pixels, numbers):
        return pixels


locked = Locked()


def _made():
    lock = threading.Lock()

    def inner(pixels, numbers):
        with lock:
            return pixels

    return inner


closed_over = _made()
