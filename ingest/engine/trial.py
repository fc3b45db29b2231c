"""Users' functions are tried on a worker before anything is launched: what is wrong with one is said in seconds."""

from __future__ import annotations

import ray

from ingest.errors import IngestError
from ingest.ops import User
from ingest.spec import Augment


def _try(augment: Augment, gpu: bool) -> None:
    from ingest.augment.trial import trial  # DALI is for workers alone

    trial(augment, gpu=gpu)


def try_functions(augment: Augment, *, gpu: bool) -> None:
    """Imports and builds the functions that a spec names, in a worker process; nothing is done where it names none.

    Raises:
        SpecError: one cannot be imported, pickled or built; the field is named.
    """
    if not any(isinstance(op, User) for op in augment.pipeline):
        return
    try:
        ray.get(ray.remote(_try).options(num_cpus=0, max_retries=0).remote(augment, gpu))
    except ray.exceptions.RayTaskError as error:
        raise (error.cause if isinstance(error.cause, IngestError) else error) from error
