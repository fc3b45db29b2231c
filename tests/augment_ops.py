"""Every operation with parameters worth testing, and pictures to test it on."""

from __future__ import annotations

import numpy as np
from augment_images import smooth

from ingest import rng
from ingest.augment.finish import allocate
from ingest.augment.render import Plan, Renderer
from ingest.augment.steps import draws, steps
from ingest.augment.work import DeviceWorker, Job
from ingest.ops import OPS, Clip, MelSpectrogram, Mix, User, Waveform, parse_op

CASES = {
    "random_resized_crop": {"size": [24, 31], "area": [0.3, 1]},
    "resize": {"size": [30, 50]},
    "resize shorter": {"shorter": 24},
    "resize longer": {"longer": 33},
    "center_crop": {"size": [21, 18]},
    "random_crop": {"size": 17},
    "flip": {"p": 1},
    "flip vertical": {"p": 1, "direction": "vertical"},
    "rotate": {"degrees": 170, "fill": 9},
    "affine": {
        "degrees": 40,
        "translate": [0.3, 0.2],
        "scale": [0.5, 1.8],
        "shear_x": 30,
        "shear_y": [-10, 20],
        "fill": 200,
    },
    "perspective": {"distortion": 0.7},
    "pad": {"size": [70, 40], "fill": 7},
    "pad border": {"border": 5},
    "erase": {"fill": [1, 2, 3]},
    "color_jitter": {"brightness": 0.6, "contrast": [0.2, 1.9], "saturation": 0.7, "hue": 0.5},
    "color_jitter brightness": {"brightness": [0, 3]},
    "color_jitter contrast": {"contrast": [0, 3]},
    "color_jitter saturation": {"saturation": [0, 3]},
    "color_jitter hue": {"hue": 0.5},
    "grayscale": {},
    "posterize": {"bits": 3},
    "solarize": {"threshold": 100},
    "equalize": {},
    "autocontrast": {},
    "invert": {},
    "sharpness": {"factor": [0, 3]},
    "gaussian_blur": {"sigma": [0.1, 3]},
    "gaussian_blur window": {"sigma": 1.5, "window": 5},
    "gaussian_noise": {"std": [5, 60]},
    "jpeg_distortion": {"quality": [1, 100]},
    "trivial_augment": {},
    "rand_augment": {"ops": 3, "magnitude": 20},
    "auto_augment": {},
    "normalize": {"layout": "HWC"},
    "cast": {"dtype": "float16", "scale": 0.5},
    "transpose": {},
}
PIXEL_CASES = [name for name in CASES if name not in ("normalize", "cast", "transpose")]
_ELSEWHERE = (Mix, User, Waveform, MelSpectrogram, Clip)
assert {name.split()[0] for name in CASES} == {name for name, one in OPS.items() if not issubclass(one, _ELSEWHERE)}


def op(name, **changes):
    """The op of a case."""
    return parse_op({name.split()[0]: {**CASES[name], **changes}})


def images(count, seed=0):
    """Uint8 images of 24 to 64 pixels a side: blobs, some grey, some flat, some noise, some dark."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        height, width = rng.integers(24, 65, 2).tolist()
        image = smooth(height, width, seed=seed * 1000 + i)
        if i % 10 == 3:
            image = np.repeat(image[..., :1], 3, 2)
        elif i % 10 == 5:
            image = np.full_like(image, rng.integers(0, 256, 3))
        elif i % 10 == 7:
            image = rng.integers(0, 256, image.shape, dtype=np.uint8)
        elif i % 10 == 9:
            image = (image // 4 + 20).astype(np.uint8)
        made.append(np.ascontiguousarray(image))
    return made


def planned(ops, pictures, ids=None, seed=3):
    """(steps, problems) of a batch of pictures."""
    shapes = np.array([one.shape[:2] for one in pictures], np.int64)
    ids = np.arange(len(pictures)) if ids is None else np.asarray(ids)
    return steps(ops, shapes, rng.uniforms(seed, 0, ids, max(1, draws(ops))))


def rendered(ops, pictures, found):
    """The CPU path after decoding."""
    render, plan, out = Renderer(ops), Plan(found), allocate(ops, len(pictures))
    for row, image in enumerate(pictures):
        y, x, height, width = plan.windows[row].tolist()
        image.flags.writeable = False
        render(image[y : y + height, x : x + width], plan, row, out)
    return list(out)


def apart(got, expected):
    assert [one.shape for one in got] == [one.shape for one in expected]
    return max(np.abs(a.astype(float) - b.astype(float)).max() for a, b in zip(got, expected, strict=True))


def run_graph(ops, pictures, found, device_id=None):
    """The GPU's graph, on DALI's CPU backend unless a device is given, from pixels."""
    worker = DeviceWorker(ops, len(pictures), 1, device_id)
    none, shapes = [None] * len(pictures), np.array([one.shape[:2] for one in pictures])
    job = Job(none, none, {}, shapes, np.zeros((len(pictures), 1)), Plan(found), allocate(ops, len(pictures)))
    rows = list(range(len(pictures)))
    windows = Plan(found).windows.tolist()
    crops = [np.array(image[y : y + h, x : x + w]) for image, (y, x, h, w) in zip(pictures, windows, strict=True)]
    results = worker._uploaded({"pixels": crops, **worker._inputs(job, rows)}).as_cpu()
    done = [np.array(results[row]) for row in rows]
    worker.close()
    return done
