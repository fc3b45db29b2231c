"""Answers of actors: what one says, its error as ours, or that a process or node died with it."""

from __future__ import annotations

from typing import Any

import ray

from ingest.engine.jobs import GoneError
from ingest.errors import IngestError, StageError

_LOST = (  # what a process or node that died takes with it; Ray's other errors are no accident
    ray.exceptions.RayActorError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.NodeDiedError,
)


class LostError(Exception):
    """Something died: what has not been received yet must be asked for again."""


def ask(refs: Any, rank: int) -> Any:
    """What one or several of a rank's actors answer, as `ray.get` gives it.

    Raises:
        IngestError: one failed.
        LostError: one died, or an object did.
    """
    try:
        return ray.get(refs)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, (*_LOST, GoneError)) or isinstance(error, _LOST):
            raise LostError(str(cause)) from error
        if not isinstance(cause, IngestError):
            text = f"{type(cause).__name__}: {cause}"
            raise StageError("an actor failed", stage="feed", rank=rank, cause=text) from error
        cause.rank = rank
        raise cause from error
    except _LOST as error:
        raise LostError(str(error)) from error
    except ray.exceptions.RayError as error:
        text = f"{type(error).__name__}: {error}"
        raise StageError("an object was lost", stage="feed", rank=rank, cause=text) from error
