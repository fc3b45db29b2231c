"""The GPU graph as it is defined, on any machine: operators, devices, inputs, and the settings that bits depend on."""

from __future__ import annotations

import pytest

from ingest.augment.augmenter import Augmenter
from ingest.augment.finish import finish
from ingest.augment.graph import Runner, crop_pipeline, device_pipeline, preallocate, reason
from ingest.augment.steps import slots
from ingest.errors import StageError
from ingest.ops import Normalize
from ingest.spec import Augment

pytestmark = pytest.mark.unit

OPS = Augment(
    ops=[{"random_resized_crop": {"size": 224}}, {"center_crop": {"size": 200}}, "flip", "normalize"]
).pipeline


def described(pipe):
    """The operators of a pipeline that is not built, from its one output back: [{'name', 'device', arguments}]."""
    (output,) = pipe._graph_out
    found, todo = [], [output.source]
    while todo:
        operator = todo.pop(0)
        lines = str(operator.spec).splitlines()
        arguments = dict(line.strip().split(": ", 1) for line in lines[1:] if ": " in line)
        found.append({"name": operator.name, **arguments})
        todo += [node.source for node in operator.inputs]
    return found


def split(pipe):
    """(operators in the order of the data, names of the external inputs)."""
    found = described(pipe)
    return (
        [one for one in reversed(found) if one["_display_name"] != "external_source"],
        {one["name"] for one in found if one["_display_name"] == "external_source"},
    )


def test_the_gpu_graph_does_everything_on_the_device():
    operators, inputs = split(device_pipeline(8, 2, 0, slots(OPS), finish(OPS), decode=True))
    assert [(one["_display_name"], one["device"]) for one in operators] == [
        ("image_slice", "mixed"),
        ("resize", "gpu"),
        ("slice", "gpu"),
        ("flip", "gpu"),
        ("crop_mirror_normalize", "gpu"),
    ]
    assert inputs == {"encoded", "anchor", "shape", "size1", "anchor2", "shape2", "horizontal3", "vertical3"}


def test_settings_that_bits_depend_on():
    decode, resize, *_ = split(device_pipeline(8, 2, 0, slots(OPS), finish(OPS), decode=True))[0]
    assert float(decode["hw_decoder_load"]) == 0  # the hardware engine's pixels are not the CUDA decoder's
    assert decode["jpeg_fancy_upsampling"] == "True"  # as the CPU's decoder does
    assert decode["adjust_orientation"] == "False"
    assert decode["normalized_anchor"] == decode["normalized_shape"] == "False"
    assert (resize["antialias"], resize["interp_type"]) == ("False", "1")


def test_the_hardware_engine_decodes_only_where_bits_are_waived():
    decode, *_ = split(device_pipeline(8, 2, 0, slots(OPS), finish(OPS), decode=True, hardware=True))[0]
    assert float(decode.get("hw_decoder_load", 0.65)) == 0.65  # DALI's own


def test_memory_that_a_gpu_has_not_is_refused_before_anything_is_built(monkeypatch):
    asked = []

    def none_left(*args):
        asked.append(args)
        raise MemoryError("CUDA allocation failed")

    monkeypatch.setattr("ingest.augment.graph.PreallocateDeviceMemory", none_left)
    with pytest.raises(StageError, match=r"GPU 0 does not give DALI the 1073741824 bytes of augment\.gpu_memory_bytes"):
        Augmenter(Augment(ops=["flip"], gpu_memory_bytes="1GiB"), seed=0, batch_rows=2, threads=1, device_id=0)
    assert asked == [(1 << 30, 0)]


def test_dali_says_why_it_gives_no_memory():
    with pytest.raises(StageError, match=r"does not give DALI the 1152921504606846976 bytes .*cause: .*(CUDA|alloc)"):
        preallocate(1 << 60, 0)


def test_images_decoded_elsewhere_are_uploaded():
    operators, inputs = split(device_pipeline(8, 2, 0, slots(OPS[:-1]), finish(OPS[:-1]), decode=False))
    assert [one["_display_name"] for one in operators] == ["resize", "slice", "flip"]
    assert inputs == {"pixels", "size1", "anchor2", "shape2", "horizontal3", "vertical3"}


def test_normalize_is_in_steps_of_the_pixels():
    op = Normalize(mean=(0.5, 0.25, 0.0), std=(0.5, 0.25, 2.0), scale=0.5, dtype="float16", layout="HWC")
    *_, last = split(device_pipeline(8, 2, 0, slots([op]), finish([op]), decode=True))[0]
    assert [float(value) for value in last["mean"].strip("[], ").split(",")] == [1, 0.5, 0]  # mean / scale
    assert [float(value) for value in last["std"].strip("[], ").split(",")] == [1, 0.5, 4]
    assert last["output_layout"] == "HWC"


def test_the_cpu_graph_only_decodes():
    ((decode,), inputs) = split(crop_pipeline(8, 1))
    assert (decode["device"], decode["use_fast_idct"], decode["adjust_orientation"]) == ("cpu", "True", "False")
    assert inputs == {"encoded", "anchor", "shape"}


class Unbuildable:
    def build(self):
        raise RuntimeError("no CUDA here")


def test_a_pipeline_that_cannot_be_built_says_why():
    with pytest.raises(StageError, match="DALI cannot build its pipeline; cause: no CUDA here"):
        Runner(Unbuildable).build()


def test_a_reason_is_dalis_one_sentence():
    text = (
        "Critical error in pipeline:\nError in CPU operator `x`,\nwhich was used ... traceback:\n\n  File ...\n\n"
        "encountered:\n\n[/opt/dali/dali/x.cc:91] The cropping window is not valid\n"
        "C++ context: [/opt/dali/dali/util/crop_window.h:91] \nCurrent pipeline object is no longer valid."
    )
    assert reason(RuntimeError(text)) == "The cropping window is not valid"
    assert reason(RuntimeError("")) == "DALI cannot decode it"
