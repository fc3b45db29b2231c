"""Coverage logs as the ranks of a run would leave them, written without one; proven, and damaged line by line."""

from __future__ import annotations

import numpy as np

from ingest.loader.batch import Batch
from ingest.loader.coverage import CoverageLog, Header, decode_log
from ingest.loader.planned import PlanFacts
from ingest.loader.proof import prove
from ingest.plan.layout import Order
from ingest.plan.schedule import Share

ROWS = np.array([7, 40, 3, 25, 11, 30], np.int64)
PLAN = PlanFacts("d", Order(5, "window", 4, 2), ROWS, np.cumsum(ROWS) - ROWS, {})
TOTAL = int(ROWS.sum())


class Logs(dict):
    """What the files of all attempts hold, by their names.

    Args:
        bucketed: the batches are of rows of like lengths.
        plan: of all attempts.
    """

    def __init__(self, *, bucketed=False, plan=PLAN):
        super().__init__()
        self._bucketed, self.plan = bucketed, plan

    def rank(self, attempt, share):
        began = float(attempt)
        header = Header(
            f"attempt{attempt}", share.rank, share.world_size, share.batch, share.last, self.plan.name, began
        )
        return CoverageLog(header, None, self.__setitem__, bucketed=self._bucketed)


def train(files, batches, attempt, world, batch, last, start, steps, behind=()):
    """All ranks take `steps` steps from a place; those in `behind` one less. Returns the place after each step.

    `batches` gives the batches of a share from a place on, each with the place after it.
    """
    places = []
    for rank in range(world):
        share = Share(rank, world, batch, last)
        log = files.rank(attempt, share)
        log.turn(*start)
        taken = batches(share, *start)
        for step in range(steps - (rank in behind)):
            given, place = next(taken)
            log.add(given, files.plan.rows)
            if step % 3 == 1:
                log.flush(last=True)
            if rank == 0:
                places.append(place)
        log.flush(last=True)
    return [start, *places]


def given_batch(step, ids, schedule):
    """The batch of a rank's step, and the place after it."""
    ends = step.index + 1 == schedule.steps
    batch = Batch.make(
        {},
        epoch=step.epoch,
        after=step.after,
        ends_epoch=ends,
        valid_rows=step.valid_rows,
        ids=ids,
        replaced={},
        runs=step.runs,
        fill=step.fill,
        lanes=schedule.layout.order.lanes,
        chunk=step.chunk,
        left=step.left,
    )
    around = step.chunk if step.chunk and step.chunk.under_way(step.after) else None
    return batch, (step.epoch + 1, 0, None) if ends else (step.epoch, step.after, around)


def proof(files, **options):
    return prove(list(decode_log(files)), {files.plan.name: files.plan}, **options)


def took_lines(files, rank):
    """(name, number) of each line in which a rank says what it took."""
    names = sorted(name for name in files if f"rank{rank:05d}-" in name)
    return [(name, i) for name in names for i, line in enumerate(files[name].splitlines()) if b"took" in line]


def change(files, rank, number, edit):
    """Put what `edit` makes of a file's lines, given with the place of one of `took_lines`, in their place."""
    name, i = took_lines(files, rank)[number]
    files[name] = b"".join(line + b"\n" for line in edit(files[name].splitlines(), i))
