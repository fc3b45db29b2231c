"""What can be found out about a spec's `augment` before anything is launched: do its functions load, build and run?"""

from __future__ import annotations

import numpy as np

from ingest.augment.finish import finish
from ingest.augment.functions import check_loads
from ingest.augment.graph import Runner, device_pipeline
from ingest.augment.kinds import KINDS
from ingest.augment.mix import mixes
from ingest.augment.steps import draws, fixed_shape, slots, steps
from ingest.errors import IngestError, SpecError
from ingest.ops import Function, User
from ingest.spec import Augment

SHAPE = (256, 256)  # of the grey image that is tried, where the ops before leave the size open


def trial(spec: Augment, *, gpu: bool) -> None:
    """Imports the spec's own functions and tries each on one grey image.

    Raises:
        SpecError: the ops do not go together, or a function cannot be used; the field is named.
    """
    ops = spec.pipeline
    mixes(ops)
    check_loads(ops, spec.fields)
    for i, (op, field) in enumerate(zip(ops, spec.fields, strict=True)):
        if isinstance(op, User):
            try:
                _try(op.model_copy(update={"probability": 1.0}), fixed_shape(ops[:i]) or SHAPE, gpu=gpu)
            except IngestError as error:
                raise SpecError(f"{field}: {error.message}", hint=error.hint, cause=error.cause) from error
            except Exception as error:
                said = str(error.args[0]) if error.args else str(error)  # DALI puts the traceback before it
                last = said.strip().splitlines()[-1].strip() if said.strip() else type(error).__name__
                raise SpecError(f"{field}: it does not work ({last})") from error


def _try(op: User, shape: tuple[int, int], *, gpu: bool) -> None:
    pixels = np.full((*shape, 3), 128, np.uint8)
    step = steps([op], np.array([shape], np.int64), np.full((1, draws([op])), 0.5))[0][1]
    kind = KINDS[step.kind]
    if not isinstance(op, Function):
        kind.cpu(pixels, step.values[0].tolist(), step.constant)
    elif gpu:  # without CUDA, a graph for a GPU can be defined, not built
        device_pipeline(1, 1, 0, slots([op]), finish([op]), decode=False)
    else:
        runner = Runner(lambda: device_pipeline(1, 1, None, slots([op]), finish([op]), decode=False))
        runner({"pixels": [pixels], **{f"{each.name}1": each.of(step.values) for each in kind.inputs}})
