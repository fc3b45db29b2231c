"""Which ops end a list, and in which order: what stands behind them would get no pixels."""

from __future__ import annotations

from collections.abc import Sequence

from ingest.ops.base import OpBase
from ingest.ops.finish import Cast, Normalize, Transpose
from ingest.ops.mix import Cutmix, Mixup

_ENDS: dict[type[OpBase], int] = {Normalize: 1, Cast: 1, Transpose: 2, Mixup: 3, Cutmix: 3}
_ONCE = (1, 2)  # places of which a list has one op at most


def misplaced(ops: Sequence[OpBase]) -> str | None:
    """Why an order of ops has no meaning: one on pixels stands behind one that ends them, or two do not go together."""
    reached, last = 0, ""
    for op in ops:
        place = _ENDS.get(type(op), 0)
        if place < reached or (place == reached and place in _ONCE):
            return f"{last} must be the last op, found {', '.join(each.name for each in ops)}"
        reached, last = place, op.name
    planar = any(isinstance(op, Normalize) and op.layout == "CHW" for op in ops)
    if planar and any(isinstance(op, Transpose) for op in ops):
        return "transpose after a normalize whose layout is CHW already"
    return None
