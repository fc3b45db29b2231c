"""Click models: embeddings and a small network where torch is installed, else a logistic regression over the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingest.errors import SchemaError
from jobs.models import Learnt, Parameters, load_torch

NUMBERS, CATEGORIES = (
    13,
    26,
)  # outputs `numbers` and `categories`, as in Criteo's logs; `history` is a list of any length
BUCKETS, WIDTH, HIDDEN = 1 << 14, 8, 64  # rows of the one table of embeddings, its columns, and the hidden layer's
RATE = 0.05
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: Fibonacci hashing (Knuth)


@dataclass(frozen=True)
class Clicks:
    """The rows of a batch, ready for a model.

    Attributes:
        numbers: float32 (rows, NUMBERS).
        categories: int64 (rows, CATEGORIES), places in the table of embeddings.
        history: int64 (total,), places in the same table, of all rows one after another.
        offsets: int64 (rows + 1,): row i has history[offsets[i] : offsets[i + 1]].
    """

    numbers: NDArray[np.float32]
    categories: NDArray[np.int64]
    history: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, batch: Mapping[str, Any], valid: NDArray[np.bool_]) -> Clicks:
        """The valid rows of a batch whose lists came as `batch.ragged: offsets`.

        Raises:
            SchemaError: an output is missing, or has another shape.
        """
        for name, shape in (("numbers", (NUMBERS,)), ("categories", (CATEGORIES,)), ("history_offsets", ())):
            if name not in batch:
                raise SchemaError(f"no output '{name}' to learn from; there are {', '.join(batch)}")
            found = list(batch[name].shape[1:])
            if found != list(shape):
                raise SchemaError(f"output '{name}' has {found} a row, and the model {list(shape)}")
        lengths = np.diff(np.asarray(batch["history_offsets"]))
        return cls(
            np.asarray(batch["numbers"])[valid].astype(np.float32),
            places(np.asarray(batch["categories"])[valid], np.arange(1, CATEGORIES + 1)),
            places(np.asarray(batch["history"])[np.repeat(valid, lengths)], np.zeros(1, np.int64)),
            np.concatenate([[0], np.cumsum(lengths[valid])]).astype(np.int64),
        )


def places(values: NDArray[Any], salt: NDArray[np.int64]) -> NDArray[np.int64]:
    """Int64, as `values`: where the table of embeddings has them, the same number elsewhere for another salt."""
    mixed = (values.astype(np.uint64) + (salt.astype(np.uint64) << np.uint64(40))) * _GOLDEN
    return (mixed >> np.uint64(64 - (BUCKETS.bit_length() - 1))).astype(np.int64)


class ClickNet:
    """An embedding for each category, the mean of the history's, and a network of one hidden layer, in torch."""

    def __init__(self) -> None:
        torch = load_torch()
        torch.manual_seed(0)  # every rank begins alike
        torch.set_num_threads(1)
        nn = torch.nn
        self._torch = torch
        self._table = nn.EmbeddingBag(BUCKETS, WIDTH, mode="mean", include_last_offset=True)
        nn.init.normal_(self._table.weight, std=0.05)
        inputs = NUMBERS + (CATEGORIES + 1) * WIDTH
        self._net = nn.Sequential(nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
        self._parameters = [self._table.weight, *self._net.parameters()]
        self._optimizer = torch.optim.Adagrad(self._parameters, lr=RATE)

    def step(self, inputs: Clicks, labels: NDArray[np.int64]) -> Learnt:
        torch = self._torch
        categories, history, offsets, numbers = (
            torch.from_numpy(part) for part in (inputs.categories, inputs.history, inputs.offsets, inputs.numbers)
        )
        embedded = torch.nn.functional.embedding(categories, self._table.weight).flatten(1)
        logits = self._net(torch.cat([numbers, embedded, self._table(history, offsets)], 1)).squeeze(1)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.from_numpy(labels).float())
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return float(loss.detach()), logits.detach().numpy().copy()

    def get(self) -> Parameters:
        return [parameter.detach().numpy().copy() for parameter in self._parameters]

    def set(self, parameters: Parameters) -> None:
        with self._torch.no_grad():
            for mine, given in zip(self._parameters, parameters, strict=True):
                mine.copy_(self._torch.from_numpy(np.array(given)))


class ClickRegression:
    """Logistic regression on the numbers, a weight for each category, and the mean weight of the history."""

    def __init__(self) -> None:
        self._weights = [np.zeros(size, np.float32) for size in (NUMBERS + 1, BUCKETS)]
        self._squares = [np.zeros_like(weights) for weights in self._weights]

    def step(self, inputs: Clicks, labels: NDArray[np.int64]) -> Learnt:
        rows, (dense, table) = len(labels), self._weights
        x = np.concatenate([inputs.numbers, np.ones((rows, 1), np.float32)], axis=1)
        lengths = np.diff(inputs.offsets)
        row_of = np.repeat(np.arange(rows), lengths)
        share = np.maximum(lengths, 1)
        logits = x @ dense + table[inputs.categories].sum(axis=1)
        logits += np.bincount(row_of, table[inputs.history], rows) / share
        loss = float((np.logaddexp(0, logits) - labels * logits).mean())
        slope = (1 / (1 + np.exp(-logits)) - labels) / rows
        of_table = np.bincount(inputs.categories.ravel(), np.repeat(slope, CATEGORIES), BUCKETS)
        of_table += np.bincount(inputs.history, (slope / share)[row_of], BUCKETS)
        for i, gradient in enumerate((slope @ x, of_table)):  # Adagrad (Duchi et al. 2011)
            self._squares[i] += gradient**2
            self._weights[i] -= RATE * gradient / np.sqrt(self._squares[i] + 1e-10)
        return loss, logits.astype(np.float32)

    def get(self) -> Parameters:
        return [weights.copy() for weights in self._weights]

    def set(self, parameters: Parameters) -> None:
        for mine, given in zip(self._weights, parameters, strict=True):
            mine[...] = given


def auc(scores: NDArray[np.float32], labels: NDArray[np.int64]) -> float | None:
    """The chance that a click is scored above a row without one, ties counting half; None where either is missing.

    Args:
        scores: (rows,).
        labels: (rows,), 1 for a click.
    """
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[place]
    clicks = int((labels > 0).sum())
    pairs = clicks * (len(labels) - clicks)
    return float((ranks[labels > 0].sum() - clicks * (clicks + 1) / 2) / pairs) if pairs else None
