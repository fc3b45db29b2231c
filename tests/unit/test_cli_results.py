"""What `run` and `verify` conclude from the ranks' results, and what the train job counts; no cluster."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from ingest.cli_run import LiveLine, report
from ingest.cli_verify import Resume, Seen, compare, resumed, row_by_row, row_digests
from ingest.errors import StateError
from ingest.loader.batch import Batch
from ingest.plan.schedule import Share
from ingest.spec import Spec
from jobs.coverage import Coverage, facts, numbered
from jobs.models import Softmax, average, coarse
from jobs.saved import Store

pytestmark = pytest.mark.unit


def seen(ids, positions=None, steps=2, invalid=0, content=1, state=None):
    ids = np.array(ids, np.int64)
    places = np.arange(len(ids)) if positions is None else np.array(positions, np.int64)
    return Seen(steps, ids, places, invalid, content, state or {})


def two_ranks(first=(5, 2, 0), second=(1, 3, 4), **changes):
    ranks = [seen(first, [0, 2, 4], **changes), seen(second, [1, 3, 5])]
    return compare([ranks], kept=np.arange(6), dropped=0, padded=0, limit=None)


def test_an_epoch_that_came_once_is_fine_and_digested_in_its_order():
    result = two_ranks()
    assert result["ok"]
    counts = {name: result[name] for name in ("expected", "delivered", "missing", "repeated", "foreign", "padded")}
    assert counts == {"expected": 6, "delivered": 6, "missing": 0, "repeated": 0, "foreign": 0, "padded": 0}
    by_position = np.array([5, 1, 2, 3, 0, 4], "<i8")
    assert result["order_digest"] == hashlib.blake2b(by_position.tobytes(), digest_size=16).hexdigest()
    assert result["content_digest"] == "0000000000000002"


@pytest.mark.parametrize(
    ("changes", "fault", "count"),
    [
        ({"first": (5, 2, 2)}, "missing", 1),
        ({"first": (5, 2, 1)}, "repeated", 1),
        ({"first": (5, 2, 6)}, "foreign", 1),
        ({"first": (5, 2, -1)}, "foreign", 1),
        ({"invalid": 2}, "padded", 2),
        ({"steps": 3}, "steps_equal", False),
        ({"state": {"position": 4}}, "states_equal", False),
    ],
)
def test_each_fault_is_found_and_counted(changes, fault, count):
    result = two_ranks(**changes)
    assert result[fault] == count
    assert not result["ok"]


def test_dropped_rows_are_not_missing_and_positions_must_be_the_first_ones():
    kept = compare([[seen([4, 0, 3])]], kept=np.arange(5), dropped=2, padded=0, limit=None)
    assert kept["ok"]
    assert (kept["expected"], kept["missing"]) == (3, 0)
    skipped = compare([[seen([4, 0, 3], [0, 1, 3])]], kept=np.arange(5), dropped=2, padded=0, limit=None)
    assert not skipped["positions_once"]
    assert not skipped["ok"]


def test_the_parts_before_and_after_a_resume_make_one_epoch():
    before = [seen([3, 1], [0, 1], steps=1), seen([0, 5], [2, 3], steps=1)]
    after = [seen([2, 4], [4, 5], steps=1)]
    result = compare([before, after], kept=np.arange(6), dropped=0, padded=0, limit=None)
    assert result["ok"]
    assert result["steps_per_rank"] == [1]


def test_digests_of_a_prefix_do_not_see_the_rest():
    one = compare([[seen([3, 1, 0, 2])]], kept=np.arange(4), dropped=0, padded=0, limit=2)
    other = compare([[seen([3, 1, 2])]], kept=np.arange(4), dropped=1, padded=0, limit=2)
    assert one["positions"] == other["positions"] == 2
    assert one["order_digest"] == other["order_digest"]


def batch_of(**arrays):
    rows = len(arrays["sample_id"])
    places = np.arange(rows)
    return Batch.make(arrays, epoch=0, after=rows, ends_epoch=True, positions=places, valid_rows=rows)


def digests(**arrays):
    ids = np.array([7, 8])
    return list(row_digests(batch_of(sample_id=ids, **arrays), np.arange(2)))


def test_a_row_digest_is_of_id_names_types_and_bytes_alone():
    x = np.array([[1, 2], [3, 4]], np.int32)
    text = np.array(["a", None], object)
    base = digests(x=x, t=text)
    assert base == digests(t=text, x=x, valid=np.array([True, False]))
    changed = [
        digests(x=x + 1, t=text),
        digests(x=x.astype(np.int64), t=text),
        digests(y=x, t=text),
        digests(x=x, t=np.array([b"a", "None"], object)),
        digests(x=x.reshape(2, 1, 2), t=text),
    ]
    assert all(a != b for other in changed for a, b in zip(base, other, strict=True))


@pytest.mark.parametrize("form", ["arrays", "padded", "offsets"])
def test_lists_are_proved_row_by_row_whatever_form_a_batch_gives_them(form):
    lists = {"source": {"path": "/d"}, "batch": {"size": 8, "last": "keep"}}
    given = Spec(**{**lists, "batch": {**lists["batch"], "ragged": form}})
    assert row_by_row(given) == Spec(**lists)
    assert row_by_row(given).fingerprint == given.fingerprint  # so that a state fits both


def test_a_row_digest_takes_ragged_arrays():
    def ragged(last):
        column = np.empty(2, object)
        column[:] = [np.arange(3), last]
        return digests(x=column)

    assert ragged(np.arange(4)) == ragged(np.arange(4))
    assert ragged(np.arange(4)) != ragged(np.arange(5))


def test_a_resume_changes_the_batch_and_nothing_else():
    spec = Spec(source={"path": "/d"}, batch={"global_size": 64, "last": "keep"})
    assert resumed(spec, Resume(3, 2, None)) is spec
    other = resumed(spec, Resume(3, 2, 17))
    assert (other.batch.per_rank(2), other.batch.last) == (17, "keep")
    assert other.fingerprint == spec.fingerprint


def rank_result(rank, first_at, last_at, samples, waiting, gaps):
    inner = {
        "seconds": last_at - first_at,
        "wait_s": waiting * (last_at - first_at),
        "waiting_fraction": waiting,
        "first_batch_s": 1.0 + rank,
        "epoch_gap_s": gaps,
        "loader_cpu_s": 0.5,
        "peak_rss_bytes": 100 * (rank + 1),
        "fetched_bytes": 10,
        "away_bytes": 4,
        "quarantined": rank,
        "lanes": 8,
        "interleave": 2,
        "verdict": f"verdict of {rank}",
    }
    return {
        "steps": 4,
        "samples": samples,
        "invalid": rank,
        "first_rows": 10,
        "first_at": first_at,
        "last_at": last_at,
        "rows": 100,
        "digest": "d",
        "dropped": 6,
        "report": inner,
    }


def test_the_report_of_a_run_is_that_of_all_ranks():
    ranks = [rank_result(0, 10.0, 18.0, 50, 0.1, [0.1, 0.4]), rank_result(1, 12.0, 20.0, 44, 0.5, [0.3, 0.2])]
    result = report(ranks, 3, store_peak_bytes=7, spilled_bytes=0, wall_s=30.0)
    assert result["seconds"] == 10.0
    assert (result["samples"], result["samples_per_s"], result["samples_per_s_after_first"]) == (94, 9.4, 7.4)
    assert (result["first_batch_s"], result["epoch_gap_s"], result["peak_rss_bytes"]) == (2.0, [0.3, 0.4], 200)
    assert (result["padded"], result["quarantined"], result["dropped"]) == (1, 1, 6)
    assert result["steps_per_rank"] == [4, 4]
    assert result["waiting_fraction"] == pytest.approx(0.3)
    assert (result["verdict"], result["loader_cpu_s"], result["object_store_peak_bytes"]) == ("verdict of 1", 1.0, 7)


def test_the_live_line_names_rate_and_waiting_and_what_waits():
    line = LiveLine(epochs=2)
    assert line.line([], [], now=0.0) == "starting: no batch yet"
    rank = {"epoch": 0, "step": 3, "steps_per_epoch": 9, "samples": 100, "wait_s": 1.0, "elapsed_s": 4.0}
    line.line([rank], [], now=10.0)
    text = line.line([{**rank, "step": 5, "samples": 300, "wait_s": 2.0}], ["read: slow"], now=12.0)
    assert text == "epoch 1/2  step 5/9  100 samples/s  waiting 50%  read: slow"


def part_of(rows, before, after, steps=2, invalid=0, quarantined=0, **places):
    """`before` and `after` are (epoch, position), and a chunk where one is under way."""
    begin, end = (
        {"rows": 9, "epoch": place[0], "position": place[1], **({"chunk": list(place[2])} if place[2:] else {})}
        for place in (before, after)
    )
    return {
        "rows": np.array(rows),
        "steps": steps,
        "losses": np.array([2.0, 1.0]),
        "scores": np.array([0.1, 0.7, 0.4], np.float32),
        "labels": np.array([0, 1, 1]),
        "invalid": invalid,
        "quarantined": quarantined,
        "batch": 2,
        "before": begin,
        "state": end,
        "due": 0,
        "left": 0,
        **places,
    }


def test_the_train_job_counts_whole_epochs_and_parts():
    def counted(*parts):
        return facts([[part_of(ids, *rest) for ids in ranks] for ranks, *rest in parts], Share(0, 2, 2), 1.0)

    start, middle, end = (0, 0), (0, 4), (1, 0)
    whole = counted(([[0, 1, 2, 3], [4, 5, 6, 7]], start, end))
    assert (whole["expected"], whole["missing"], whole["repeated"], whole["dropped"]) == (8, 0, 0, 1)
    lost = counted(([[0, 1, 2, 3], [4, 5, 6, 6]], start, end))
    assert (lost["missing"], lost["repeated"]) == (1, 1)
    part = counted(([[0, 1], [4, 5]], start, middle, 1))
    assert (part["expected"], part["missing"], part["dropped"]) == (4, 0, 0)
    tail = counted(([[2, 3], [6, 7]], middle, end, 1))
    assert (tail["expected"], tail["missing"], tail["dropped"]) == (4, 0, 1)
    both = counted(([[0, 1], [4, 5]], start, middle, 1), ([[2, 3], [6, 7]], middle, end, 1))
    assert (both["expected"], both["missing"], both["repeated"], both["dropped"], both["steps"]) == (8, 0, 0, 1, 2)
    assert (both["loss_first"], both["loss_last"], both["steps_equal"]) == (2.0, 1.0, True)
    again = counted(([[0, 1], [4, 5]], start, middle, 1), ([[2, 1], [6, 7]], middle, end, 1))
    assert (again["missing"], again["repeated"]) == (1, 1)


def test_the_train_job_tells_foreign_rows_from_repeated_ones_and_bad_ones_from_padded():
    parts = [
        part_of(rows, (0, 0), (0, 8), 2, invalid, bad) for rows, invalid, bad in (([0, 1, 2, -1], 2, 1), ([4], 1, 0))
    ]
    found = facts([parts], Share(0, 2, 2), 1.0)
    assert (found["expected"], found["missing"], found["repeated"], found["foreign"]) == (8, 4, 0, 1)
    assert (found["padded"], found["quarantined"]) == (2, 1)


def test_rows_are_numbered_among_those_that_are_kept():
    kept = np.array([2, 5, 6, 9])
    assert numbered(np.array([9, 2, 4, 10, 0, 6]), kept).tolist() == [3, 0, -1, -1, -1, 2]
    assert numbered(np.array([7, 0]), None).tolist() == [7, 0]
    assert numbered(np.array([7]), kept[:0]).tolist() == [-1]


def test_a_position_inside_a_chunk_stands_for_groups_and_not_for_rows():
    # Nine rows, two chunks of 4 and 5; the first's two groups have 1 and 3 rows, the second's 4 and 1.
    one, two = (0, 4, 2), (4, 9, 2)

    def counted(*parts):
        return facts(
            [[part_of(*rank[:3], **rank[3]) for rank in ranks] for ranks in parts], Share(0, 2, 1, "keep"), 1.0
        )

    first = counted([([0], (0, 0), (0, 2, one), {"left": 2}), ([], (0, 0), (0, 2, one), {"left": 1})])
    assert (first["expected"], first["missing"], first["repeated"]) == (1, 0, 0)
    rest = counted(
        [
            ([1, 2], (0, 2, one), (0, 6, two), {"due": 2, "left": 0}),
            ([3, 4, 5, 6, 7], (0, 2, one), (0, 6, two), {"due": 1, "left": 1}),
        ],
        [([8], (0, 6, two), (1, 0), {}), ([], (0, 6, two), (1, 0), {})],
    )
    assert (rest["expected"], rest["missing"], rest["repeated"]) == (8, 0, 0)
    dropped = facts([[part_of([1, 2, 3, *range(4, 8)], (0, 2, one), (1, 0), due=3)]], Share(0, 1, 4), 1.0)
    assert (dropped["expected"], dropped["dropped"], dropped["missing"]) == (7, 1, 0)


def test_parts_make_an_epoch_when_it_ends():
    coverage = Coverage(Spec(source={"path": "/d"}, batch={"size": 2}), 2)
    assert coverage.add([part_of(ids, (0, 0), (0, 4), 1) for ids in ([0, 1], [4, 5])]) is None
    assert coverage.add([part_of(ids, (0, 4), (1, 0), 1) for ids in ([2, 3], [6, 7])])["steps"] == 2
    assert coverage.ok
    coverage.add([part_of(ids, (1, 0), (1, 4), 1) for ids in ([0, 1], [4, 4])])
    assert coverage.end()["expected"] == 4
    assert coverage.end() is None
    assert not coverage.ok


@pytest.mark.parametrize("scheme", ["", "file://", "memory://"])
def test_a_train_state_is_read_back_as_written(tmp_path, scheme):
    store = Store(f"{scheme}{tmp_path}/deep/state", Spec(source={"path": "s3://b/d"}))
    assert store.load() == (None, None)
    for position in (64, 96):  # the second in place of the first
        store.save({"epoch": 1, "position": position}, [np.arange(3, dtype=np.float32)])
    state, parameters = store.load()
    assert state == {"epoch": 1, "position": 96}
    np.testing.assert_array_equal(parameters[0], [0, 1, 2])
    if scheme != "memory://":
        assert [path.name for path in (tmp_path / "deep").iterdir()] == ["state"]


def test_what_is_no_train_state_is_refused_and_never_run(tmp_path):
    file = tmp_path / "state"
    np.savez(tmp_path / "evil.npz", ingest=np.array([{"a": 1}], dtype=object))
    for content in (b"", b"PK\x03\x04 cut", (tmp_path / "evil.npz").read_bytes()):
        file.write_bytes(content)
        with pytest.raises(StateError, match="not a state of this job"):
            Store(str(file), Spec(source={"path": "/d"})).load()


def test_a_state_uses_the_datas_storage_options_in_a_store_of_the_same_kind():
    spec = Spec(source={"path": "s3://b/d", "storage": {"endpoint_url": "http://127.0.0.1:9"}})
    assert Store("s3://other/state", spec).storage.endpoint_url == "http://127.0.0.1:9"
    assert Store("gs://other/state", spec).storage.endpoint_url is None
    assert Store("/disk/state", spec).storage.endpoint_url is None


def test_the_softmax_model_learns_what_brightness_tells():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 96)
    images = (labels[:, None, None, None] * 80 + rng.integers(0, 40, (96, 32, 32, 3))).astype(np.uint8)
    model = Softmax(3)
    losses = [model.step(images, labels)[0] for _ in range(40)]
    assert losses[0] == pytest.approx(np.log(3), abs=1e-4)
    assert losses[-1] < losses[0] / 2


def test_the_coarse_view_is_the_same_for_either_layout():
    images = np.random.default_rng(0).random((2, 48, 64, 3), np.float32)
    np.testing.assert_array_equal(coarse(images), coarse(np.moveaxis(images, -1, 1)))


def test_parameters_are_averaged_one_by_one():
    (mean,) = average([[np.array([0.0, 2.0], np.float32)], [np.array([4.0, 4.0], np.float32)]])
    np.testing.assert_array_equal(mean, [2.0, 3.0])
