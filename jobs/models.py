"""Small models that really learn from batches: a convolution net where torch is installed, else softmax regression."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

SIDE = 16  # pixels of the softmax regression's view of an image
RATE, MOMENTUM = 0.05, 0.9

Parameters = list[NDArray[np.float32]]
Learnt = tuple[float, NDArray[np.float32] | None]  # mean loss in nats; scores of the rows, where there are two classes


class Model(Protocol):
    """A classifier that takes one step a batch; parameters are plain arrays, so that a driver can average them."""

    def step(self, inputs: Any, labels: NDArray[np.int64]) -> Learnt:
        """Learn from a batch and return its loss and scores, both as they were before the step."""

    def get(self) -> Parameters:
        """Copies of all parameters."""

    def set(self, parameters: Parameters) -> None:
        """Take parameters, such as the mean over ranks."""


class Softmax:
    """Multinomial logistic regression on a coarse view of the image, by stochastic gradient descent with momentum.

    Args:
        classes: labels run from 0 to classes - 1.
    """

    def __init__(self, classes: int) -> None:
        self._weights = np.zeros((SIDE * SIDE * 3 + 1, classes), np.float32)
        self._speed = np.zeros_like(self._weights)

    def step(self, inputs: Any, labels: NDArray[np.int64]) -> Learnt:
        x = coarse(np.asarray(inputs))
        logits = x @ self._weights
        logits -= logits.max(axis=1, keepdims=True)
        chances = np.exp(logits)
        chances /= chances.sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        loss = -np.log(chances[rows, labels] + 1e-9).mean()
        chances[rows, labels] -= 1
        self._speed = MOMENTUM * self._speed - RATE / len(labels) * (x.T @ chances)
        self._weights += self._speed
        return float(loss), None

    def get(self) -> Parameters:
        return [self._weights.copy()]

    def set(self, parameters: Parameters) -> None:
        self._weights[...] = parameters[0]


def coarse(images: NDArray[Any]) -> NDArray[np.float32]:
    """Float32 (rows, SIDE * SIDE * 3 + 1): every nth pixel around zero, and a one for the bias.

    Args:
        images: (rows, height, width, 3) or (rows, 3, height, width), uint8 or float, at least SIDE pixels a side.
    """
    if images.shape[1] == 3 and images.shape[-1] != 3:
        images = np.moveaxis(images, 1, -1)
    rows, height, width, _ = images.shape
    seen = images[:, :: height // SIDE, :: width // SIDE][:, :SIDE, :SIDE].reshape(rows, -1).astype(np.float32)
    if images.dtype == np.uint8:
        seen = seen / 127.5 - 1
    return np.concatenate([seen, np.ones((rows, 1), np.float32)], axis=1)


def load_torch() -> Any:
    """PyTorch, loaded in a working directory that is there.

    Where several raylets share a machine, each unpacks a job's files over what the others have unpacked, and takes the
    directory of processes that run there away. oneMKL, inside torch, ends a process that has none.
    """
    try:
        Path.cwd()
    except FileNotFoundError:
        os.chdir(Path(__file__).parents[1])
    import torch

    return torch


class Net:
    """Two convolutions and a linear layer in torch.

    Args:
        classes: labels run from 0 to classes - 1.
    """

    def __init__(self, classes: int) -> None:
        torch = load_torch()
        torch.manual_seed(0)  # every rank begins alike
        torch.set_num_threads(1)
        nn = torch.nn
        self._torch = torch
        self._net = nn.Sequential(
            nn.AvgPool2d(4),
            nn.Conv2d(3, 16, 3, stride=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
            nn.Linear(32 * 16, classes),
        )
        self._optimizer = torch.optim.SGD(self._net.parameters(), lr=RATE, momentum=MOMENTUM)

    def step(self, inputs: Any, labels: NDArray[np.int64]) -> Learnt:
        torch = self._torch
        # NumPy batches are views of shared memory: torch wants its own copy.
        x = inputs if isinstance(inputs, torch.Tensor) else torch.from_numpy(np.array(inputs))
        if x.shape[-1] == 3:
            x = x.permute(0, 3, 1, 2)
        x = x.float() / 127.5 - 1 if x.dtype == torch.uint8 else x.float()
        loss = torch.nn.functional.cross_entropy(self._net(x), torch.from_numpy(labels))
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return float(loss.detach()), None

    def get(self) -> Parameters:
        return [parameter.detach().numpy().copy() for parameter in self._net.parameters()]

    def set(self, parameters: Parameters) -> None:
        with self._torch.no_grad():
            for mine, given in zip(self._net.parameters(), parameters, strict=True):
                mine.copy_(self._torch.from_numpy(np.array(given)))


def average(ranks: list[Parameters]) -> Parameters:
    """The mean of each parameter over the ranks."""
    return [np.mean(same, axis=0, dtype=np.float32) for same in zip(*ranks, strict=True)]
