"""What operations are made of: *kinds* of steps, each with a CPU implementation, a piece of DALI graph and its inputs.

An operation becomes one step or several, with values for every row of a batch; a policy becomes a step of each kind it
may choose, of which each row takes some. A new operation is a model in `ingest.ops` and, in the module of its family
here, a planner, which turns random numbers into steps, and a kind where no present one will do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ingest.ops import OpBase

Pixels = NDArray[np.uint8]
Shapes = NDArray[np.int64]
Values = NDArray[Any]


@dataclass(frozen=True)
class Input:
    """A per-sample input of a kind's graph.

    Attributes:
        name: unique in the kind.
        dtype: of the arrays.
        ndim: of one sample's array; 0 for a number.
        of: the kind's values (rows, columns) to an array (rows, ...), or a list of arrays.
    """

    name: str
    dtype: Literal["float32", "int32", "int16", "uint8"]
    ndim: int
    of: Callable[[Values], Any]


@dataclass(frozen=True)
class Kind:
    """One kind of step.

    Attributes:
        name: its key.
        cpu: (uint8 (h, w, 3) not to be written to, one row's values, the step's constant) to uint8 (h', w', 3).
        graph: (DALI, images, inputs by name, the constant) to images; `DALI` has `fn`, `types` and `math`.
        inputs: what `graph` is given per sample.
        neutral: values (rows, columns), with those that change nothing where `off` (bool (rows,)); None: such rows skip
            the step.
        shape: the (rows, 2) heights and widths after the step; None: as before.
        matrix: one row's values and the (height, width) before, to float64 (3, 3): where a point (x, y, 1) goes, in
            pixels, the corner of the first pixel being (0, 0). None: nothing moves.
    """

    name: str
    cpu: Callable[[Pixels, Any, Any], Pixels]
    graph: Callable[[Any, Any, dict[str, Any], Any], Any]
    inputs: tuple[Input, ...] = ()
    neutral: Callable[[Values, Shapes, NDArray[np.bool_]], Values] | None = None
    shape: Callable[[Values, Shapes], Shapes] | None = None
    matrix: Callable[[Any, tuple[int, int]], NDArray[np.float64]] | None = None


@dataclass(frozen=True)
class Step:
    """One step over a batch.

    Attributes:
        kind: key of `KINDS`.
        values: (rows, columns), what the kind says.
        active: bool (rows,), the rows that take the step; None: all, whatever the numbers.
        constant: what is the same for all rows, and for all batches.
    """

    kind: str
    values: Values
    active: NDArray[np.bool_] | None = None
    constant: Any = None


@dataclass(frozen=True)
class Slot:
    """A step without its values: what depends on the operations alone."""

    kind: str
    optional: bool
    constant: Any


@dataclass
class Rows:
    """What a planner sees of a batch.

    Attributes:
        shapes: int64 (rows, 2), height and width of each image as the steps before left it.
        numbers: float64 (rows, draws) in [0, 1), this operation's own.
        ids: int64 (rows,), a number of 53 random bits for each row, for noise.
        problems: for each row that cannot be done, the reason; planners add to it.
    """

    shapes: Shapes
    numbers: NDArray[np.float64]
    problems: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Planner:
    """How an operation becomes steps.

    Attributes:
        draws: random numbers that a sample needs, whatever they turn out to be.
        steps: the operation and the rows to steps, of kinds that depend on the operation alone.
        fixed: the operation and the (height, width) before, to that after; None where it depends on the image.
    """

    draws: Callable[[Any], int]
    steps: Callable[[Any, Rows], Sequence[Step]]
    fixed: Callable[[Any, tuple[int, int] | None], tuple[int, int] | None] = lambda _, shape: shape


KINDS: dict[str, Kind] = {}
PLANNERS: dict[type[OpBase], Planner] = {}


def add(*kinds: Kind) -> None:
    """Registers kinds."""
    for kind in kinds:
        if kind.name in KINDS:
            raise ValueError(f"two kinds are named {kind.name}")
        KINDS[kind.name] = kind


def plan(op: type[OpBase], draws: int | Callable[[Any], int], **planner: Any) -> Callable[[Any], Any]:
    """Registers the decorated function as the planner of an operation."""

    def register(steps: Callable[[Any, Rows], Sequence[Step]]) -> Callable[[Any, Rows], Sequence[Step]]:
        count = draws if callable(draws) else lambda _: draws
        PLANNERS[op] = Planner(count, steps, **planner)
        return steps

    return register


def between(bounds: tuple[float, float], numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Numbers in [0, 1) spread evenly over [low, high)."""
    low, high = bounds
    return low + (high - low) * numbers


def column(values: Values, index: int = 0, dtype: str = "float32") -> Values:
    """One column of a step's values as a graph's input: (rows,), contiguous."""
    return np.ascontiguousarray(values[:, index], dtype)


def columns(values: Values, first: int, last: int, dtype: str = "int32") -> Values:
    """Columns first to last (excluded) as a graph's input: (rows, last - first), contiguous."""
    return np.ascontiguousarray(values[:, first:last], dtype)
