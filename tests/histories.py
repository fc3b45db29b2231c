"""What a run of trainers that die again and again was given: the history that survived, and what each death cost."""

from __future__ import annotations

import itertools
import sys
from typing import NamedTuple


class Record(NamedTuple):
    """A batch that a trainer was given: `state` is that after it, `at` an instant on this machine's clock."""

    attempt: int
    rank: int
    epoch: int
    state: dict
    ids: list[int]
    digests: list[int]
    at: float

    @property
    def place(self) -> tuple[int, int]:
        return self.state["epoch"], self.state["position"]


class Kill(NamedTuple):
    """`noticed_s`: how long Ray took to call a node dead; the death of a process it learns of at once."""

    kind: str
    at: float
    place: tuple[int, int]
    noticed_s: float


def reached(records: list[Record], attempt: int, world: int, before: dict | None) -> dict | None:
    """The last state of an attempt that all ranks have reached."""
    states = []
    for rank in range(world):
        own = [record.state for record in records if (record.attempt, record.rank) == (attempt, rank)]
        if not own:
            return before
        states.append(own[-1])
    return min(states, key=lambda state: (state["epoch"], state["position"]))


def surviving(records: list[Record], starts: list[tuple[int, int]]) -> list[Record]:
    """The records of the history that the last attempt descends from."""
    after = [*starts[1:], (sys.maxsize, 0)]
    return [record for record in records if starts[record.attempt] < record.place <= after[record.attempt]]


def recoveries(records: list[Record], kills: list[Kill], world: int) -> list[dict]:
    """For each kill the longest time that a rank was without a batch, from it to the next kill.

    `ours_s` is that less what Ray took to notice; `restarted` says whether the trainers began again meanwhile.
    """
    told = []
    for kill, following in itertools.zip_longest(kills, kills[1:]):
        longest, restarted = 0.0, False
        for rank in range(world):
            for before, after in itertools.pairwise(record for record in records if record.rank == rank):
                if after.at > kill.at and (following is None or before.at < following.at):
                    longest = max(longest, after.at - max(before.at, kill.at))
                    restarted |= after.attempt != before.attempt
        seconds = {"pause_s": longest, "noticed_s": kill.noticed_s, "ours_s": max(0.0, longest - kill.noticed_s)}
        facts = {"kind": kill.kind, "epoch": kill.place[0], "position": kill.place[1], "restarted": restarted}
        told.append({**facts, **{name: round(value, 1) for name, value in seconds.items()}})
    return told
