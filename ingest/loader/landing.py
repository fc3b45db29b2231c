"""Images that are made on the trainer's own GPU, as its framework's tensors: without a trip through host memory.

One stream takes all copies, beside the trainer's. A batch is sealed by an event on it when nothing more is done to the
batch, and the stream that the trainer is on when it takes the batch waits for that event. The tensors are of torch's
own allocator and are told that stream, so that their memory is not used again before it is done with them, whenever
they die.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray


class TorchLanding:
    """Tensors on a device. For any number of threads at a time.

    On a CPU there are no streams to order, and all else is the same.

    Args:
        device: `torch.device`, or its name.
    """

    def __init__(self, device: Any) -> None:
        import torch

        self._torch, self._device = torch, torch.device(device)
        self._stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None

    def order(self) -> AbstractContextManager[Any]:
        """What this thread does to tensors inside comes after what was put into them."""
        return nullcontext() if self._stream is None else self._torch.cuda.stream(self._stream)

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        """A tensor whose values are not set yet."""
        with self.order():
            return self._torch.empty(shape, dtype=getattr(self._torch, dtype), device=self._device)

    def put(self, out: Any, rows: list[int], results: Any) -> None:
        """Copies results of one shape into some rows; their memory may be written again when this returns.

        Args:
            out: what `empty` gave.
            rows: distinct places in it.
            results: a tensor list whose `as_tensor()` speaks DLPack, as many as rows.
        """
        with self.order():
            made = self._torch.from_dlpack(results.as_tensor())  # makes the stream wait for what is still written
            first = rows[0]
            if rows == list(range(first, first + len(rows))):
                out[first : first + len(rows)].copy_(made)
            else:
                out.index_copy_(0, self._torch.tensor(rows, device=self._device), made)
            self._settle()

    def _settle(self) -> None:
        """Until what this thread has put is there: others go on, and pipelines keep the device busy meanwhile."""
        if self._stream is not None:
            self._stream.record_event().synchronize()

    def blend(self, images: Any, partner: NDArray[np.int64], own: NDArray[np.float64]) -> Any:
        """Each image with another one's share in it, as a new tensor.

        Args:
            images: (rows, height, width, channels) or (rows, channels, height, width), uint8 or floats.
            partner: int64 (rows,), whose the rest is.
            own: float64 (rows,), the share of its own.
        """
        with self.order():
            share = self._tensor(own.astype(np.float32)).view(-1, 1, 1, 1)
            mixed = share * images.float() + (1 - share) * images[self._tensor(partner)].float()
            return (mixed if images.is_floating_point() else mixed.round_()).to(images.dtype)

    def paste(self, images: Any, partner: NDArray[np.int64], boxes: NDArray[np.int64], *, planar: bool) -> Any:
        """Each image with a rectangle of another one's in it, as a new tensor.

        Args:
            images: (rows, height, width, channels), or (rows, channels, height, width) where `planar`.
            partner: int64 (rows,), whose the rectangle is.
            boxes: int64 (rows, 4), of (top, left, bottom, right), the last two not included; may be empty.
            planar: see `images`.
        """
        torch, (height, width) = self._torch, images.shape[2:] if planar else images.shape[1:3]
        with self.order():
            top, left, bottom, right = self._tensor(boxes).T[:, :, None]
            y, x = (torch.arange(side, device=self._device) for side in (height, width))
            inside = ((top <= y) & (y < bottom))[:, :, None] & ((left <= x) & (x < right))[:, None]
            inside = inside[:, None] if planar else inside[..., None]
            return torch.where(inside, images[self._tensor(partner)], images)

    def _tensor(self, values: NDArray[Any]) -> Any:
        return self._torch.from_numpy(values).to(self._device)

    def sealed(self, arrays: Mapping[str, Any]) -> Callable[[], None]:
        """Says that nothing more is done to a batch here.

        Args:
            arrays: of the batch.

        Returns:
            To be called by the thread that uses the batch, on the stream that it uses it on.
        """
        stream = self._stream
        landed = [each for each in arrays.values() if getattr(each, "device", None) == self._device]
        if stream is None or not landed:
            return nothing
        done = stream.record_event()

        def arrive() -> None:
            current = self._torch.cuda.current_stream(self._device)
            current.wait_event(done)
            for each in landed:
                each.record_stream(current)

        return arrive


def nothing() -> None:
    """What is left to do where no tensor has landed."""


def landing_of(framework: str) -> TorchLanding | None:
    """Where the images of this process's own GPU land; None where they go through host memory.

    Args:
        framework: the spec's `loader.framework`, which is installed.
    """
    if framework != "torch":
        return None
    import torch

    return TorchLanding(torch.device("cuda", torch.cuda.current_device())) if torch.cuda.is_available() else None
