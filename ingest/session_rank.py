"""Which rank of how many this process is: as it says, or as Ray Train or torch.distributed does."""

from __future__ import annotations

import sys

from ingest.errors import PlanError


def whoami(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """(rank, world size), as given or as the surrounding framework says.

    Raises:
        PlanError: only one of them was given.
    """
    if (rank is None) != (world_size is None):
        raise PlanError(f"rank is {rank} and world_size is {world_size}", hint="Give both, or neither")
    if rank is not None and world_size is not None:
        return rank, world_size
    if "ray.train" in sys.modules:
        context = sys.modules["ray.train"].get_context
        try:
            return int(context().get_world_rank()), int(context().get_world_size())
        except RuntimeError:
            pass  # not inside a train function
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank()), int(distributed.get_world_size())
    return 0, 1
