"""Hand-over on a GPU: the bits of host memory over 200 epochs, whatever the trainer is busy with, and flat memory."""

from __future__ import annotations

import numpy as np
import pytest
from augment_images import augmenter, table
from handover import ROWS, differing, growth, pictures

from ingest.loader.landing import landing_of

pytestmark = pytest.mark.gpu

EPOCHS = 200
BUSY_CYCLES = 2_000_000  # about a millisecond


@pytest.fixture
def torch():
    found = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    return found


def test_images_are_tensors_on_the_trainers_device(torch):
    landing = landing_of("torch")
    worker = augmenter(
        batch_rows=ROWS, device_id=torch.cuda.current_device(), landing=landing, ops=["flip", {"resize": {"size": 32}}]
    )
    batch = worker([(table(pictures()), np.arange(ROWS))], np.arange(ROWS), 0)
    landing.sealed(batch)()
    worker.close()
    assert batch["image"].device == torch.device("cuda", torch.cuda.current_device())
    assert batch["image"].shape == (ROWS, 32, 32, 3)


@pytest.mark.parametrize("own_stream", [False, True])
def test_epochs_of_batches_keep_their_bits_while_the_trainer_is_behind(torch, own_stream):
    stream = torch.cuda.Stream() if own_stream else torch.cuda.default_stream()
    with torch.cuda.stream(stream):
        wrong, count = differing("cuda:0", 0, EPOCHS // 2, busy=lambda: torch.cuda._sleep(BUSY_CYCLES))
    assert (wrong, count) == ([], EPOCHS // 2 * 3)


def test_memory_is_flat_over_batches_that_are_held_for_a_while(torch):
    def used():
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info(0)  # of the device: DALI's pools and torch's
        return total - free

    assert growth("cuda:0", 0, EPOCHS, used) < 8 << 20  # some pages; 450 batches are 41 MB
