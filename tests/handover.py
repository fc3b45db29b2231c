"""A trainer that takes batches from a landing, on a GPU or without one: what it sees of each, and what it should."""

from __future__ import annotations

import itertools
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from augment_images import augmenter, encoded, jpegs, oriented, smooth, table
from PIL import Image

from ingest.loader.landing import TorchLanding

OPS = [{"random_resized_crop": {"size": (48, 64)}}, "flip"]
ROWS, BATCH, HELD = 24, 8, 6
IDS = np.arange(ROWS) * 977 + 5


def pictures():
    """JPEGs, and some that are decoded on the CPU and join behind the decoder: a GIF, one that EXIF turns."""
    made = jpegs(ROWS)
    made[5] = encoded(Image.fromarray(smooth(50, 60)).quantize(32), "GIF")
    made[10] = oriented(smooth(50, 60), 6, quality=90, subsampling=0)
    return made


def checksum(images):
    """Of uint8 images, an array or a tensor: one that changes with each pixel, and with their places."""
    flat = images.reshape(-1)
    if isinstance(flat, np.ndarray):
        return int((flat.astype(np.int64) * (np.arange(len(flat)) % 8191 + 1)).sum())
    import torch

    return (flat.long() * (torch.arange(len(flat), device=flat.device) % 8191 + 1)).sum()


def batches(held, epochs, **options):
    """(images, what the taking thread must call) of each batch, two in the making, with the landing given or none."""
    worker, landing = augmenter(batch_rows=BATCH, threads=1, ops=OPS, **options), options.get("landing")

    def make(which):
        epoch, rows = which[0], np.random.default_rng(which[0]).permutation(ROWS)[which[1] : which[1] + BATCH]
        batch = worker([(held, rows)], IDS[rows], epoch)
        return batch["image"], (landing.sealed(batch) if landing else None)

    todo = itertools.product(range(epochs), range(0, ROWS, BATCH))
    with ThreadPoolExecutor(2) as pool:
        begun = deque(pool.submit(make, which) for which in itertools.islice(todo, 2))
        while begun:
            images, arrive = begun.popleft().result()
            begun.extend(pool.submit(make, which) for which in itertools.islice(todo, 1))
            yield images, arrive
    worker.close()


def differing(device, device_id, epochs, busy=lambda: None):
    """Batches of some epochs that are not what the same backend gives through host memory.

    Each is summed up when it is taken, and half of them again when a few more have been: what DALI's memory is used for
    by then may not show. The others are dropped as soon as their sum is asked for, which a device may not have begun.

    Args:
        device: torch's name of where they land.
        device_id: DALI's.
        epochs: how many.
        busy: gives the trainer's stream something to do before each sum.

    Returns:
        Their numbers, and how many there were.
    """
    held, landing = table(pictures()), TorchLanding(device)
    wanted = [checksum(images) for images, _ in batches(held, epochs, device_id=device_id)]
    kept, sums = deque(), []
    for number, (images, arrive) in enumerate(batches(held, epochs, device_id=device_id, landing=landing)):
        arrive()
        assert images.device == landing.empty((1,), "uint8").device
        busy()
        sums.append((number, checksum(images)))
        if number % 2:
            kept.append((number, images))
        if len(kept) > HELD:
            old, still = kept.popleft()
            sums.append((old, checksum(still)))
        del images
    return sorted({number for number, found in sums if int(found) != wanted[number]}), len(wanted)


def growth(device, device_id, rounds, used):
    """How much more memory is used after some rounds of three batches, a few of which are kept, than after the first.

    Args:
        device: torch's name of where they land.
        device_id: DALI's.
        rounds: how many.
        used: says how many bytes are used now.
    """
    held, landing = table(pictures()), TorchLanding(device)
    kept, after = deque(maxlen=HELD), []
    for number, (images, arrive) in enumerate(batches(held, rounds, device_id=device_id, landing=landing)):
        arrive()
        kept.append(images)
        if number % (ROWS // BATCH) == ROWS // BATCH - 1:
            after.append(used())
    settled = len(after) // 4  # pools have found their size by then
    return max(after[settled:]) - after[settled]
