"""The peer of `imagenet_train`: torchvision's v2 transforms in a PyTorch DataLoader, fed from memory.

    python tests/peer_torchvision.py PARQUET_DIR [--policy rand_augment] [--workers 2] [--rows 8000]

Needs torch and torchvision, which belong into an environment of their own. Prints one JSON line; compare its
`samples_per_s` with that of `ingest run` on the same images and cores, in one sitting. Of the two ways to decode,
Pillow's and torchvision's own, the faster one counts.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from pathlib import Path

import pyarrow.parquet as pq
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms import v2

BATCH = 64


class Images(Dataset):
    """Encoded images, and how one becomes a uint8 tensor (3, 224, 224)."""

    def __init__(self, encoded: list[bytes], labels: list[int], policy: str | None, *, pillow: bool) -> None:
        self.encoded, self.labels, self.pillow = encoded, labels, pillow
        steps = [v2.RandomResizedCrop(224, antialias=False), v2.RandomHorizontalFlip()]
        if policy == "rand_augment":
            steps.append(v2.RandAugment())
        self.transform = v2.Compose([*steps, v2.PILToTensor()] if pillow else steps)

    def __len__(self) -> int:
        return len(self.encoded)

    def __getitem__(self, index: int):
        data = self.encoded[index]
        if self.pillow:
            image = Image.open(io.BytesIO(data)).convert("RGB")
        else:
            image = decode_image(torch.frombuffer(bytearray(data), dtype=torch.uint8), ImageReadMode.RGB)
        return self.transform(image), self.labels[index]


def samples_per_s(data: Images, workers: int) -> float:
    """Over one shuffled epoch, after its first batch."""
    loader = DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=workers, prefetch_factor=4, drop_last=True)
    batches = iter(loader)
    rows, began = len(next(batches)[1]), time.perf_counter()
    rows = sum(len(labels) for _, labels in batches)
    return rows / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("--policy", choices=["rand_augment"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=8000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    encoded: list[bytes] = []
    labels: list[int] = []
    for file in sorted(Path(args.path).glob("*.parquet")):
        if len(encoded) < args.rows:
            table = pq.read_table(file, columns=["image", "label"])
            encoded += table["image"].to_pylist()
            labels += table["label"].to_pylist()
    found = {
        name: samples_per_s(Images(encoded[: args.rows], labels, args.policy, pillow=pillow), args.workers)
        for name, pillow in (("pillow", True), ("torchvision", False))
    }
    best = max(found, key=lambda name: found[name])
    print(json.dumps({"what": "peer_torchvision", "decoder": best, "samples_per_s": found[best], **found}))


if __name__ == "__main__":
    main()
