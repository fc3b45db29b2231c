"""What sorting by length saves: padded tokens of batches, estimated by dealing lengths of a sample as a plan would."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingest.plan.buckets import Bucketing, Groups, Part, cut, lane_shares
from ingest.plan.lanes import rows_before
from ingest.plan.layout import Order
from ingest.plan.schedule import Chunk, Share

CHUNKS = 8  # that are dealt, of rows drawn from the sample
MOST_ROWS = 512  # of a batch that is dealt to find its tokens: in larger ones a row is padded no less


@dataclass(frozen=True)
class Waste:
    """Of one rank's batches.

    Attributes:
        mean_length: of the sample.
        batch_tokens: padded tokens (rows times longest row) of a batch, on average.
        batch_tokens_p99: the same, of the batch that one in a hundred exceeds.
        padding: the share of the padded tokens that is padding.
        padding_unsorted: the same without sorting.
    """

    mean_length: float
    batch_tokens: float
    batch_tokens_p99: float
    padding: float
    padding_unsorted: float


def estimate(lengths: NDArray[np.int64], order: Order, share: Share, bucketing: Bucketing) -> Waste:
    """The waste of a rank, from lengths that stand for the data's.

    Args:
        lengths: int64 (rows,), at least one.
        order: resolved.
        share: the rank's.
        bucketing: how rows are sorted.
    """
    draw = np.random.default_rng(0)
    batch = share.global_batch
    tokens, real, unsorted_ = [], 0, 0
    for number in range(CHUNKS):
        start = number * bucketing.batches * batch
        chunk = Chunk(start, start + bucketing.batches * batch, batch)
        first = rows_before(chunk.start, order.lanes)
        count = rows_before(chunk.end, order.lanes) - first
        lanes = [lane for lane, _, _ in lane_shares(share, order.lanes)]
        rows = {lane: draw.choice(lengths, int(count[lane])) for lane in lanes}
        groups = Groups(order, 0, chunk, share, rows)
        for index in range(chunk.groups):
            begin = chunk.start + index * batch
            own = [
                rows[lane][np.r_[some] - int(first[lane])]
                for lane, some in groups.step(Part(0, index, chunk, begin, begin + batch)).runs.by_lane()
            ]
            one = np.concatenate(own)
            tokens.append(len(one) * int(one.max()))
            real += int(one.sum())
        plain = draw.choice(lengths, (bucketing.batches, share.batch))
        unsorted_ += int(plain.max(axis=1).sum()) * share.batch
    return Waste(
        mean_length=float(lengths.mean()),
        batch_tokens=float(np.mean(tokens)),
        batch_tokens_p99=float(np.quantile(tokens, 0.99)),
        padding=1 - real / max(1, sum(tokens)),
        padding_unsorted=max(0.0, 1 - real / max(1, unsorted_)),
    )


def rows_for(lengths: NDArray[np.int64], tokens: int, batches: int) -> int:
    """The rows of a rank's batch whose padded tokens are so many on average.

    A function of the data and the spec alone: every rank finds the same, and so does a world that goes on later.

    Args:
        lengths: int64 (rows,), at least one, that stand for the data's.
        tokens: of a batch.
        batches: of a chunk.
    """
    rows = tokens / max(1.0, float(np.maximum(lengths, 1).mean()))
    for _ in range(3):
        rows = tokens / _row_tokens(lengths, max(1, min(MOST_ROWS, round(rows))), batches)
    return max(1, round(rows))


def _row_tokens(lengths: NDArray[np.int64], rows: int, batches: int) -> float:
    """Padded tokens of a row, on average, in one lane's batches of so many rows."""
    draw, total = np.random.default_rng(0), 0
    for _ in range(CHUNKS):
        chunk = np.maximum(draw.choice(lengths, rows * batches), 1)
        group = cut(chunk, batches)
        longest = np.zeros(batches, np.int64)
        np.maximum.at(longest, group, chunk)
        total += int((np.bincount(group, minlength=batches) * longest).sum())
    return total / (CHUNKS * rows * batches)
