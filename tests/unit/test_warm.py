"""The batch that a GPU's pipeline goes through first: every list of ops takes it, and it leaves no trace in others."""

from __future__ import annotations

import numpy as np
import pytest
from augment_images import augmenter, jpegs, table
from augment_ops import CASES, op

from ingest.augment.host import HostLanding
from ingest.augment.warm import USUAL, warm_job
from ingest.augment.work import DeviceWorker
from ingest.errors import SampleError, StageError
from ingest.ops import RECIPES, recipe
from ingest.spec import Augment

pytestmark = pytest.mark.unit
SIZE = (90, 120)


@pytest.mark.parametrize("name", CASES)
def test_every_op_goes_through_it(name):
    ops, landing = [op(name)], HostLanding()
    done = []

    def warm():
        done.append(warm_job(ops, SIZE, 4, landing))
        return done[0]

    worker = DeviceWorker(ops, 8, 1, None, landing, warm=warm)
    worker.warm_up()
    worker.close()
    ((job),) = done
    assert [header.upright for header in job.headers] == [SIZE] * 4
    assert all(each is not None for each in job.out)


def test_its_windows_are_of_the_least_and_the_most():
    job = warm_job(Augment(ops=[{"random_resized_crop": {"size": 32}}]).pipeline, SIZE, 4, HostLanding())
    least, most, *rest = job.plan.windows[:, 2:].prod(1).tolist()
    assert rest == [least, most]
    assert least < 0.1 * SIZE[0] * SIZE[1] < 0.9 * SIZE[0] * SIZE[1] < most


def test_images_that_the_ops_refuse_are_left_out():
    ops = Augment(ops=[{"center_crop": {"size": 100}}]).pipeline
    assert warm_job(ops, SIZE, 4, HostLanding()) is None
    worker = DeviceWorker(ops, 4, 1, None, warm=lambda: warm_job(ops, SIZE, 4, HostLanding()))
    worker.warm_up()
    worker.close()


def test_a_pipeline_that_fails_at_it_says_so(monkeypatch):
    ops = Augment(ops=["flip"]).pipeline
    worker = DeviceWorker(ops, 4, 1, None, warm=lambda: warm_job(ops, SIZE, 4, HostLanding()))
    monkeypatch.setattr(worker, "run", lambda job, rows: {0: SampleError("no engine")})
    with pytest.raises(StageError, match="DALI cannot warm up; cause: no engine"):
        worker.warm_up()
    worker.close()


@pytest.mark.parametrize(("largest", "seen"), [(None, USUAL), ((70, 50), (70, 50))])
def test_a_gpu_goes_through_the_largest_image_before_the_first_batch(monkeypatch, largest, seen):
    sizes, hardware = [], []

    def host(ops, rows, threads, device_id, landing, *, warm, **options):
        sizes.append(tuple(warm().shapes[0].tolist()))
        hardware.append(options)
        return DeviceWorker(ops, rows, threads, None, landing, warm=warm, **options)

    monkeypatch.setattr("ingest.augment.crew.DeviceWorker", host)
    spec = {"ops": [{"random_resized_crop": {"size": 32}}, "flip"], "device": "gpu"}
    plain = augmenter(batch_rows=4, ops=spec["ops"], device_id=0)
    warmed = augmenter(batch_rows=4, device_id=0, largest_image=largest, hardware_jpeg=True, **spec)
    assert sizes == [USUAL, USUAL, seen, seen]
    assert [each["hardware"] for each in hardware] == [False, False, True, True]
    held, rows = table(jpegs(4)), np.arange(4)
    one, two = (each([(held, rows)], rows, 0)["image"] for each in (plain, warmed))
    assert np.array_equal(one, two)
    for each in (plain, warmed):
        each.close()


@pytest.mark.parametrize("name", [each for each in RECIPES if each.startswith("imagenet")])
def test_every_recipe_for_images_takes_the_usual_size(name):
    job = warm_job(recipe(name), USUAL, 2, HostLanding())
    assert job is not None
    assert job.out.shape[0] == 2
