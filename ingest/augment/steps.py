"""A list of operations as steps: which kinds there are, how many random numbers they take, and each batch's values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ingest.augment import colour, functions, geometry, policy, stored, texture, warps
from ingest.augment.kinds import KINDS, PLANNERS, Rows, Shapes, Slot, Step
from ingest.ops import Op, Random

FAMILIES = (colour, functions, geometry, policy, stored, texture, warps)  # loaded for what they register


def draws(ops: Sequence[Op]) -> int:
    """Random numbers that one sample needs: every op has columns of its own."""
    return sum(_draws(op) for op in ops)


def slots(ops: Sequence[Op]) -> tuple[Slot, ...]:
    """The steps that `steps` gives, without values: they depend on the ops alone. The first is the decoder's window."""
    found, _ = steps(ops, np.full((1, 2), 256, np.int64), np.zeros((1, draws(ops))))
    return tuple(Slot(step.kind, step.active is not None, step.constant) for step in found)


def fixed_shape(ops: Sequence[Op]) -> tuple[int, int] | None:
    """(height, width) of every result; None where it depends on the image."""
    shape: tuple[int, int] | None = None
    for op in ops:
        if type(op) in PLANNERS:
            after = PLANNERS[type(op)].fixed(op, shape)
            share = op.probability if isinstance(op, Random) else 1.0
            shape = after if share == 1 or after == shape else shape if share == 0 else None
    return shape


def steps(ops: Sequence[Op], shapes: Shapes, numbers: NDArray[np.float64]) -> tuple[list[Step], dict[int, str]]:
    """Every step of a batch.

    Args:
        ops: see `ingest.ops`.
        shapes: int64 (rows, 2), upright height and width of each image.
        numbers: float64 (rows, draws(ops)) in [0, 1).

    Returns:
        The steps, of the kinds that `slots` names, and for each row that an op cannot do, the reason. The steps of
        such a row are inside its image but mean nothing.
    """
    found: list[Step] = []
    problems: dict[int, str] = {}
    first, place = shapes, 0
    for op in ops:
        if type(op) not in PLANNERS:
            continue
        planner, count = PLANNERS[type(op)], _draws(op)
        own = numbers[:, place : place + count]
        place += count
        on = own[:, -1] < op.probability if isinstance(op, Random) and op.probability < 1 else None
        rows = Rows(shapes, own[:, :-1] if isinstance(op, Random) else own)
        for step in planner.steps(op, rows):
            found.append(_chosen(step, shapes, on))
            shapes = _after(found[-1], shapes)
        for row, problem in rows.problems.items():
            if on is None or on[row]:
                problems.setdefault(row, problem)
    if not found or found[0].kind != "window":
        found.insert(0, Step("window", np.concatenate([np.zeros_like(first), first], 1)))
    return found, problems


def _draws(op: Op) -> int:
    """An op's own, and one to decide whether it is taken."""
    return PLANNERS[type(op)].draws(op) + isinstance(op, Random) if type(op) in PLANNERS else 0


def _chosen(step: Step, shapes: Shapes, on: NDArray[np.bool_] | None) -> Step:
    """The step for the rows of `on` alone (None: all)."""
    active = step.active if on is None else on if step.active is None else on & step.active
    if active is None:
        return step
    neutral = KINDS[step.kind].neutral
    if neutral is None:
        return Step(step.kind, step.values, active, step.constant)
    return Step(step.kind, neutral(step.values, shapes, ~active), None, step.constant)


def _after(step: Step, shapes: Shapes) -> Shapes:
    change = KINDS[step.kind].shape
    if change is None:
        return shapes
    changed = change(step.values, shapes)
    return changed if step.active is None else np.where(step.active[:, None], changed, shapes)
