"""The pattern of a mixture: from which source each row of a lane comes, spread evenly and in closed form.

A tree splits a lane's rows in two again and again, the rarest sources deepest (Huffman 1952), until each leaf is one
source. Of r rows that come to a split, its left side gets floor((r * left + phase) / all) (Bresenham 1965). The phases
of the lanes are a permutation of 0/L ... (L-1)/L: so of r rows of every lane, floor(L * r * left / all) go left in all
(Hermite's identity). The permutation is the second coordinate of Sobol's sequence (1967), which with the bit reversal
that deals rows to lanes is spread evenly over runs of rows as well as over runs of lanes, which are ranks.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ingest.errors import PlanError
from ingest.plan.lanes import bit_reversal, rows_before

_GOLDEN = 0.6180339887498949
MOST_LANE_ROWS = 3_037_000_499  # its square fits 63 bits


@lru_cache(maxsize=32)
def phases(lanes: int) -> NDArray[np.int64]:
    """Int64 (lanes,), read-only: a permutation; `lanes` is a power of two."""
    bits = lanes.bit_length() - 1
    turn, out = bit_reversal(lanes), np.zeros(lanes, np.int64)
    direction = lanes >> 1
    for bit in range(bits):
        out ^= np.where(turn >> bit & 1, direction, 0)
        direction ^= direction >> 1
    out.setflags(write=False)
    return out


@dataclass(frozen=True)
class _Split:
    """Two sides, each a split or a source; int64 (lanes,) each: rows of the left side, of both, and the phase."""

    left: _Split | int
    right: _Split | int
    first: NDArray[np.int64]
    total: NDArray[np.int64]
    phase: NDArray[np.int64]

    def before(self, lane: NDArray[np.int64] | int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many of the first `rows` rows go left."""
        taken: NDArray[np.int64] = (rows * self.first[lane] + self.phase[lane]) // self.total[lane]
        return taken

    def row(self, lane: NDArray[np.int64] | int, index: NDArray[np.int64], *, left: bool) -> NDArray[np.int64]:
        """Which row of both sides is the one numbered `index` of a side."""
        total, first, phase = self.total[lane], self.first[lane], self.phase[lane]
        share, shift = (first, phase) if left else (total - first, total - 1 - phase)
        found: NDArray[np.int64] = -(-((index + 1) * total - shift) // share) - 1
        return found


class Pattern:
    """Which source gives each row of each lane.

    Args:
        take: rows that each source gives to an epoch.
        lanes: a power of two.

    Attributes:
        rows: int64 (sources, lanes), rows that each source gives to each lane. Those of all sources, laid end to end
            and dealt to the lanes in turn, give each source's lanes lengths that differ by at most one, and so those
            of the mixture.

    Raises:
        PlanError: a lane has more rows than can be reckoned with.
    """

    def __init__(self, take: Sequence[int], lanes: int) -> None:
        ends = np.cumsum(np.array(take, np.int64))
        dealt = np.array([rows_before(int(end), lanes) for end in (0, *ends)], np.int64)
        self.rows = np.diff(dealt, axis=0)
        if int(dealt[-1].max()) > MOST_LANE_ROWS:
            raise PlanError(
                f"an epoch of {int(ends[-1])} mixed rows on {lanes} lanes has more than {MOST_LANE_ROWS} rows a lane",
                hint="Give order.lanes, a higher power of two",
            )
        self._lanes, self._splits = lanes, 0
        leaves = [(rows, source) for source, rows in enumerate(take) if rows]
        self._root = self._split(_tree(leaves)) if leaves else None
        self._up: dict[int, list[tuple[_Split, bool]]] = {}
        self._climb(self._root, [])

    def _split(self, node: _Node | int) -> _Split | int:
        if isinstance(node, int):
            return node
        f = phases(self._lanes)
        if self._splits:  # each split has phases of its own, or splits below one another would move together
            f = f * (int(self._lanes * (self._splits * _GOLDEN % 1)) | 1) % self._lanes
        self._splits += 1
        sides = [self.rows[_leaves(side)].sum(axis=0) for side in node]
        total = np.maximum(sides[0] + sides[1], 1)
        return _Split(self._split(node[0]), self._split(node[1]), sides[0], total, f * total // self._lanes)

    def _climb(self, node: _Split | int | None, above: list[tuple[_Split, bool]]) -> None:
        if isinstance(node, int):
            self._up[node] = above
        elif node is not None:
            self._climb(node.left, [(node, True), *above])
            self._climb(node.right, [(node, False), *above])

    def before(self, lane: NDArray[np.int64] | int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Int64 (sources, n): how many of the first `rows` (n,) rows of a lane come from each source."""
        out = np.zeros((len(self.rows), len(rows)), np.int64)
        todo: list[tuple[_Split | int, NDArray[np.int64]]] = [] if self._root is None else [(self._root, rows)]
        while todo:
            node, count = todo.pop()
            if isinstance(node, int):
                out[node] = count
            else:
                left = node.before(lane, count)
                todo += [(node.left, left), (node.right, count - left)]
        return out

    def row(self, source: int, lane: int, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Int64 (n,): the lane's row at which the row numbered `index` (n,) of a source stands."""
        for split, left in self._up[source]:
            index = split.row(lane, index, left=left)
        return index


_Node = tuple["_Node | int", "_Node | int"]


def _tree(leaves: Sequence[tuple[int, int]]) -> _Node | int:
    """Pairs of pairs, those of few rows deepest; from (rows, source)."""
    heap: list[tuple[int, int, _Node | int]] = [(rows, source, source) for rows, source in leaves]
    heapq.heapify(heap)
    number = max(source for _, source in leaves)
    while len(heap) > 1:
        few, more = heapq.heappop(heap), heapq.heappop(heap)
        number += 1  # so that equals are told apart
        heapq.heappush(heap, (few[0] + more[0], number, (more[2], few[2])))
    return heap[0][2]


def _leaves(node: _Node | int) -> list[int]:
    return [node] if isinstance(node, int) else [*_leaves(node[0]), *_leaves(node[1])]
