"""Click models and logs: what they learn, how they score, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ingest.errors import SchemaError, SpecError
from ingest.spec import Spec
from jobs.clicks import BUCKETS, CATEGORIES, NUMBERS, ClickNet, ClickRegression, Clicks, auc, places
from jobs.demo_clicks import write_clicks
from jobs.learner import Task


def batch_of(rows, seed=0):
    """Rows whose first number tells a click, with histories of 0 to 3 items."""
    rng = np.random.default_rng(seed)
    lengths = np.arange(rows) % 4
    batch = {
        "numbers": rng.normal(0, 1, (rows, NUMBERS)).astype(np.float32),
        "categories": rng.integers(0, 100, (rows, CATEGORIES)),
        "history": rng.integers(0, 50, lengths.sum()),
        "history_offsets": np.concatenate([[0], np.cumsum(lengths)]),
    }
    return batch, (batch["numbers"][:, 0] > 0).astype(np.int64)


def model(kind):
    if kind == "torch":
        pytest.importorskip("torch")
        return ClickNet()
    return ClickRegression()


def test_auc_is_the_share_of_pairs_in_the_right_order():
    scores, labels = np.array([0.1, 0.4, 0.4, 0.8], np.float32), np.array([0, 0, 1, 1])
    assert auc(scores, labels) == 3.5 / 4  # one pair is a tie
    assert auc(-scores, labels) == 0.5 / 4
    assert auc(scores, np.ones(4, np.int64)) is None
    assert auc(np.zeros(0, np.float32), np.zeros(0, np.int64)) is None


def test_the_same_number_of_two_categories_has_two_places():
    found = places(np.full((1, 2), 7), np.array([1, 2]))
    assert found[0, 0] != found[0, 1]
    many = places(np.arange(100_000), np.zeros(1, np.int64))
    assert (many.min(), many.max()) == (0, BUCKETS - 1)
    assert len(np.unique(places(np.arange(1000), np.zeros(1, np.int64)))) > 950


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_a_model_learns_what_tells_a_click(kind):
    learner = model(kind)
    batch, labels = batch_of(256)
    steps = [learner.step(Clicks.of(batch, np.ones(256, bool)), labels) for _ in range(60)]
    assert steps[0][0] == pytest.approx(np.log(2), abs=0.1)
    assert steps[-1][0] < steps[0][0] / 2
    assert auc(steps[-1][1], labels) > 0.95 > auc(steps[0][1], labels)


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_a_model_with_anothers_parameters_scores_as_it_does(kind):
    one, other = model(kind), model(kind)
    batch, labels = batch_of(64)
    for _ in range(3):
        one.step(Clicks.of(batch, np.ones(64, bool)), labels)
    other.set(one.get())
    np.testing.assert_allclose(
        *(each.step(Clicks.of(batch, np.ones(64, bool)), labels)[1] for each in (one, other)), rtol=1e-6
    )


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_rows_without_any_history_are_scored(kind):
    batch, labels = batch_of(1)  # its history is empty
    loss, scores = model(kind).step(Clicks.of(batch, np.ones(1, bool)), labels)
    assert np.isfinite([loss, *scores]).all()


def test_rows_that_are_not_valid_bring_nothing():
    batch, _ = batch_of(8)
    valid = np.array([1, 1, 0, 1, 0, 0, 1, 0], bool)  # their histories have 0, 1, 3 and 2 items
    few, whole = Clicks.of(batch, valid), Clicks.of(batch, np.ones(8, bool))
    np.testing.assert_array_equal(few.categories, whole.categories[valid])
    assert few.offsets.tolist() == [0, 0, 1, 4, 6]
    np.testing.assert_array_equal(few.history, whole.history[[0, 3, 4, 5, 7, 8]])


def test_a_batch_of_another_shape_is_refused_by_name():
    batch, _ = batch_of(4)
    with pytest.raises(SchemaError, match="no output 'numbers'"):
        Clicks.of({name: value for name, value in batch.items() if name != "numbers"}, np.ones(4, bool))
    with pytest.raises(SchemaError, match=r"output 'categories' has \[3\] a row, and the model \[26\]"):
        Clicks.of({**batch, "categories": batch["categories"][:, :3]}, np.ones(4, bool))


def test_a_task_of_clicks_wants_lists_with_offsets():
    with pytest.raises(SpecError, match=r"batch\.ragged is arrays"):
        Task.of(Spec(source={"path": "/d"}), kind="clicks", epochs=1)
    task = Task.of(Spec(source={"path": "/d"}, batch={"ragged": "offsets"}), kind="clicks", epochs=1)
    assert task.classes == 2
    assert task.kind in {"clicks-torch", "clicks-numpy"}


def test_a_log_is_the_same_for_the_same_seed(tmp_path):
    def content(seed):
        return [Path(file).read_bytes() for file in write_clicks(str(tmp_path / str(seed)), 60, seed=seed)]

    first = content(0)
    assert first == content(0) != content(1)
    assert len(set(map(len, first))) == len(first) == 6
