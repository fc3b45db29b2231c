"""One line that answers "why is my training slow?", from counters alone."""

from __future__ import annotations

from dataclasses import dataclass

HOLDS_UP = 0.2  # a stage that is busy, or waited for, for less of the time than this is not to blame
KEEPS_UP = 0.05  # a trainer that waits for less of its time than this is not held up by its data


@dataclass(frozen=True)
class Measured:
    """Durations in seconds over the same stretch of a run.

    Attributes:
        elapsed_s: wall clock since the first batch.
        wait_s: the trainer waited for a batch in that time.
        read_wait_s: the feeder waited for blocks.
        augment_busy_s: augmentation calls ran, over all actors.
        augment_slots: calls that may run at a time, over all actors; 0 when there is nothing to augment.
    """

    elapsed_s: float
    wait_s: float
    read_wait_s: float
    augment_busy_s: float
    augment_slots: int

    @property
    def waiting_fraction(self) -> float:
        """The share of its time that the trainer waited."""
        return self.wait_s / self.elapsed_s if self.elapsed_s > 0 else 0.0


def verdict(measured: Measured) -> str:
    """The stage that limits the run, and what to do about it."""
    share = measured.waiting_fraction
    if measured.elapsed_s <= 0:
        return "no batch yet"
    if share < KEEPS_UP:
        return f"trainer: data keeps up, the trainer waits {share:.0%} of its time"
    read = min(1.0, measured.read_wait_s / measured.elapsed_s)
    busy = (
        min(1.0, measured.augment_busy_s / measured.elapsed_s / measured.augment_slots)
        if measured.augment_slots
        else 0.0
    )
    held_up = f"the trainer waits {share:.0%} of its time"
    if busy >= max(read, HOLDS_UP):
        return (
            f"augment: {held_up}, decoding is {busy:.0%} busy; "
            "add augment.actors_per_trainer or threads on free cores, or a GPU"
        )
    if read >= HOLDS_UP:
        return (
            f"read: {held_up}, the feeder waits {read:.0%} of it for blocks; "
            "add read.readers or CPUs, or look at the storage"
        )
    return f"transfer: {held_up}, reading and decoding do not; look at the network between nodes and at the loader"
