"""Images that land in the trainer's tensors: the bits of host memory, never written again, in the order of streams."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from unittest.mock import create_autospec

import device_checks
import numpy as np
import psutil
import pytest
from augment_images import augment, augmenter, jpegs, table
from handover import OPS, differing, growth, pictures

from ingest.engine.augmentation import Augmentation
from ingest.engine.jobs import Gather, Job
from ingest.engine.replace import BAD
from ingest.loader.landing import TorchLanding, landing_of, nothing
from ingest.spec import Augment

pytestmark = pytest.mark.unit
torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def on_graph(monkeypatch):
    device_checks.on_cpu_backend(monkeypatch)


def test_epochs_of_batches_keep_their_bits_while_the_trainer_holds_old_ones():
    wrong, count = differing("cpu", 0, epochs=20)
    assert (wrong, count) == ([], 60)


def test_memory_is_flat_over_batches_that_are_held_for_a_while():
    grown = growth("cpu", 0, rounds=80, used=lambda: psutil.Process().memory_info().rss)
    assert grown < 16 << 20  # 240 batches are 22 MB


def test_memory_that_is_handed_on_as_it_is_would_be_noticed(monkeypatch):
    """The check above fails where one buffer serves two batches."""
    shared = {}

    def empty(self, shape, dtype):
        return shared.setdefault((shape, dtype), torch.empty(shape, dtype=getattr(torch, dtype)))

    monkeypatch.setattr(TorchLanding, "empty", empty)
    wrong, _ = differing("cpu", 0, epochs=4)
    assert wrong


@pytest.mark.parametrize("end", [[], ["normalize"], [{"normalize": {"dtype": "float16", "layout": "HWC"}}], ["cast"]])
def test_every_end_is_that_of_host_memory(end):
    spec = {"ops": [*OPS, *end], "device_id": 0}
    expected = augment(pictures(), **spec)
    got = augment(pictures(), **spec, landing=TorchLanding("cpu"))
    assert isinstance(got, torch.Tensor)
    assert str(got.dtype) == f"torch.{expected.dtype}"
    assert np.array_equal(got.numpy(), expected)


@pytest.mark.parametrize(
    "end", [[], ["normalize"], [{"normalize": {"dtype": "float16", "layout": "HWC"}}], ["transpose"]]
)
@pytest.mark.parametrize("mix", [["mixup"], ["cutmix"], ["mixup", "cutmix"]])
def test_images_are_mixed_where_they_land(end, mix):
    ops = [{"resize": {"size": (20, 30)}}, *end, *({name: {"num_classes": 24}} for name in mix)]
    made = []
    for landing in (None, TorchLanding("cpu")):
        worker = augmenter(batch_rows=24, ops=ops, device_id=0, landing=landing)
        made.append(worker([(table(pictures(), label=np.arange(24)), np.arange(24))], np.arange(24), 0))
        worker.close()
    host, landed = made
    assert isinstance(landed["image"], torch.Tensor)
    assert str(landed["image"].dtype) == f"torch.{host['image'].dtype}"
    step = 1 if host["image"].dtype == np.uint8 else 2e-3 if host["image"].dtype == np.float16 else 1e-5
    assert np.abs(landed["image"].numpy().astype(float) - host["image"]).max() <= step * ("mixup" in mix)
    assert np.array_equal(landed["label"], host["label"])
    assert (landed["label"].max(1) < 1).any()


@pytest.mark.parametrize("ops", [["flip"], [{"resize": {"shorter": 40}}]])
def test_images_of_many_sizes_stay_in_host_memory(ops):
    worker_of = {"ops": ops, "device_id": 0, "landing": TorchLanding("cpu")}
    batch = augmenter(batch_rows=4, **worker_of)([(table(jpegs(4)), np.arange(4))], np.arange(4), 0)
    assert isinstance(batch["image"], np.ndarray)


def test_bad_images_leave_zeros_or_their_donor_in_a_tensor():
    held, ids = table([*jpegs(3), b"no image"]), np.arange(4)
    job = Job(0, (Gather(7, ids),), ids, np.zeros(4, np.int64))
    made = {}
    for name, landing in (("host", None), ("torch", TorchLanding("cpu"))):
        options = {"seed": 1, "batch_rows": 4, "threads": 1, "device_id": 0, "landing": landing}
        augmentation = Augmentation(Augment(ops=OPS), replace=True, **options)
        made[name] = augmentation(job, {7: held})
        augmentation.close()
    assert isinstance(made["torch"]["image"], torch.Tensor)
    assert [each.slot for each in made["torch"][BAD]] == [3]
    assert np.array_equal(made["torch"]["image"].numpy(), made["host"]["image"])
    assert torch.equal(made["torch"]["image"][3], made["torch"]["image"][0])
    worker = augmenter(batch_rows=4, ops=OPS, device_id=0, landing=TorchLanding("cpu"))
    batch, failures = worker.attempt([(held, ids)], ids, 0)
    worker.close()
    assert sorted(failures) == [3]
    assert not batch["image"][3].any()


# -- streams, as they are asked for: a CPU has none ------------------------------------------------------------------


class Recorded:
    """Stands for a device: says what is asked of it, and when, to the thread's current stream."""

    def __init__(self, landing, monkeypatch):
        self.said, self._current = [], threading.local()
        self.trainers = create_autospec(torch.cuda.Stream, instance=True)
        self.trainers.wait_event.side_effect = lambda event: self.say("trainer waits", event)
        self.own = create_autospec(torch.cuda.Stream, instance=True)
        self.own.record_event.side_effect = self.event
        landing._stream = self.own
        monkeypatch.setattr(torch.cuda, "stream", self.on)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.trainers)
        copy, told = torch.Tensor.copy_, self.say
        monkeypatch.setattr(torch.Tensor, "copy_", lambda out, made: (told("copy", self.current), copy(out, made))[1])
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda each, stream: told("kept for", stream))

    @property
    def current(self):
        return getattr(self._current, "stream", None)

    def say(self, *what):
        self.said.append(what)

    @contextmanager
    def on(self, stream):
        before, self._current.stream = self.current, stream
        yield
        self._current.stream = before

    def event(self):
        event = create_autospec(torch.cuda.Event, instance=True)
        event.synchronize.side_effect = lambda: self.say("put waits", event)
        self.say("event", event)
        return event


class Results:
    """What DALI gives: a list that is a tensor."""

    def __init__(self, values):
        self.values = values

    def as_tensor(self):
        return self.values


def test_a_copy_has_ended_when_its_source_may_be_written_again(monkeypatch):
    landing = TorchLanding("cpu")
    device = Recorded(landing, monkeypatch)
    out = landing.empty((4, 2), "uint8")
    landing.put(out, [1, 2], Results(np.full((2, 2), 9, np.uint8)))
    (copy, on), (_, recorded), (waits, event) = device.said
    assert (copy, on, waits) == ("copy", device.own, "put waits")
    assert event is recorded
    assert out[1:3].eq(9).all()


def test_the_trainers_stream_waits_for_the_last_change_of_a_batch_and_keeps_its_memory(monkeypatch):
    landing = TorchLanding("cpu")
    device = Recorded(landing, monkeypatch)
    one, two = landing.empty((4, 2), "uint8"), landing.empty((3,), "float32")
    arrive = landing.sealed({"image": one, "more": two, "label": np.zeros(4)})
    ((_, event),) = device.said
    arrive()
    assert device.said[1:] == [("trainer waits", event), ("kept for", device.trainers), ("kept for", device.trainers)]


def test_torch_takes_dalis_device_for_cuda_and_so_tells_it_the_stream():
    from nvidia.dali.backend import DLDeviceType as Dalis
    from torch.utils.dlpack import DLDeviceType

    assert Dalis.kDLCUDA == DLDeviceType.kDLCUDA  # of two enumerations: torch passes no stream where they differ


def test_a_batch_that_has_not_landed_needs_no_waiting(monkeypatch):
    landing = TorchLanding("cpu")
    device = Recorded(landing, monkeypatch)
    assert landing.sealed({"image": np.zeros(3)}) is nothing
    assert not device.said


def test_only_torch_with_cuda_takes_images_from_a_device():
    assert landing_of("numpy") is landing_of("jax") is landing_of("tf") is None
    assert (landing_of("torch") is not None) == torch.cuda.is_available()
