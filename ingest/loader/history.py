"""The turns that ranks made to positions, and the history that the last one descends from.

Each time the ranks of an attempt turn to a position, what earlier turns delivered from there on is rolled back, since
the state that they now start from does not know of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ingest.errors import SourceError
from ingest.loader.coverage import Header, RankLog, Stretch
from ingest.plan.schedule import Chunk

SHOWN = 10  # faults told one by one

Place = tuple[int, int]  # epoch, position


@dataclass
class Turn:
    """All ranks of an attempt, from one position on.

    Attributes:
        headers: of its ranks.
        start: where they turned to.
        stretches: by rank.
        end: where the next turn of the history begins; None for the last one.
        chunk: that `start` lies in, where rows are sorted by length; None at a border.
    """

    headers: dict[int, Header] = field(default_factory=dict)
    start: Place = (0, 0)
    stretches: defaultdict[int, list[Stretch]] = field(default_factory=lambda: defaultdict(list))
    end: Place | None = None
    chunk: Chunk | None = None

    @property
    def header(self) -> Header:
        return next(iter(self.headers.values()))


@dataclass
class Proof:
    """Counts of rows over the history, and what is wrong in words."""

    expected: int = 0
    delivered: int = 0
    missing: int = 0
    repeated: int = 0
    dropped: int = 0
    mismatched: int = 0
    bad: set[tuple[int, int]] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)

    def fault(self, text: str) -> None:
        if len(self.faults) < SHOWN:
            self.faults.append(text)


def turns(logs: Sequence[RankLog]) -> list[Turn]:
    """The turns of all attempts, in the order in which they began."""
    began: dict[str, float] = {}
    found: defaultdict[tuple[str, int], Turn] = defaultdict(Turn)
    for log in logs:
        key = log.header.attempt
        began[key] = min(began.get(key, log.header.began), log.header.began)
        for number, start in enumerate(log.turns):
            turn = found[key, number]
            turn.chunk = log.chunks.get(number)
            turn.start = min(turn.start, start) if turn.headers else start
            turn.headers[log.header.rank] = log.header
            turn.stretches[log.header.rank] += [each for each in log.stretches if each.turn == number]
    order = sorted(found, key=lambda key: (began[key[0]], key[0], key[1]))
    return [found[key] for key in order if any(found[key].stretches.values())]


def descent(all_turns: Iterable[Turn]) -> Iterator[Turn]:
    """The turns that the last one descends from, each up to where the next begins.

    Raises:
        SourceError: nothing was taken.
    """
    kept: list[Turn] = []
    for turn in all_turns:
        while kept and kept[-1].start >= turn.start:
            kept.pop()  # rolled back as a whole
        if kept:
            kept[-1].end = turn.start
        kept.append(turn)
    if not kept:
        raise SourceError("the coverage log says of no batch that it was taken")
    kept[-1].end = None
    yield from kept


def final_place(turn: Turn) -> Place:
    """The place that all ranks of the last turn have reached."""
    # A rank without a log of its own proves nothing, and holds nothing back: what it should have taken is missing.
    return min(_reached(turn.stretches.get(rank, []), turn.start) for rank in turn.headers)


def _reached(stretches: Sequence[Stretch], start: Place) -> Place:
    return max(((each.epoch, each.after) for each in stretches), default=start)
