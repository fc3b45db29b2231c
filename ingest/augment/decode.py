"""Windows of encoded images to RGB pixels on the CPU: by DALI, and by OpenCV what DALI cannot decode.

Every image comes out as 8-bit RGB, upright: grey is replicated, CMYK and palettes are converted, 16 bits are scaled to
8 (not clipped), alpha is dropped (the colours beneath show, whatever their opacity), and EXIF orientation is applied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ingest.augment.graph import Runner, crop_pipeline, reason
from ingest.augment.headers import Header, first_bytes
from ingest.augment.plain import plain
from ingest.errors import SampleError, StageError

# Containers whose rarer variants DALI refuses. A JPEG, PNG or WebP that DALI refuses is damaged, and OpenCV would
# return what there is of it.
_SECOND_TRY = frozenset(["tiff", "bmp", "jpeg2000"])
# (transposed, flipped top to bottom, flipped left to right) from stored to upright, by EXIF orientation
_TURNS = {
    1: (False, False, False),
    2: (False, False, True),
    3: (False, True, True),
    4: (False, True, False),
    5: (True, False, False),
    6: (True, False, True),
    7: (True, True, True),
    8: (True, True, False),
}


def decode_whole(data: NDArray[np.uint8], header: Header) -> NDArray[np.uint8]:
    """The whole image by OpenCV, upright: uint8 (height, width, 3); the first frame of an animation.

    Raises:
        SampleError: OpenCV cannot decode it.
    """
    try:
        pixels = _by_opencv(plain(data, header), header.format)
    except cv2.error as error:
        raise SampleError(f"{header.format} that OpenCV cannot decode ({error.err}); {first_bytes(data)}") from None
    if pixels is None:
        raise SampleError(f"{header.format} that neither DALI nor OpenCV can decode; {first_bytes(data)}")
    if pixels.dtype == np.uint16:
        pixels = ((pixels.astype(np.uint32) + 128) // 257).astype(np.uint8)  # 65535 / 255 = 257, rounded
    if pixels.dtype != np.uint8:
        raise SampleError(
            f"{header.format} with {pixels.dtype} pixels, and images are 8 or 16 bit; {first_bytes(data)}"
        )
    return turn(pixels, header.orientation)


def _by_opencv(data: NDArray[np.uint8], name: str) -> NDArray[Any] | None:
    """RGB as stored, (height, width, 3) of any dtype."""
    if name == "avif":  # scaled to 8 bits by libavif; with alpha it comes as BGR, whatever is asked for
        pixels = cv2.imdecode(data, cv2.IMREAD_COLOR_BGR | cv2.IMREAD_IGNORE_ORIENTATION)
        return None if pixels is None else np.ascontiguousarray(pixels[..., ::-1])
    pixels = cv2.imdecode(data, cv2.IMREAD_COLOR_RGB | cv2.IMREAD_ANYDEPTH | cv2.IMREAD_IGNORE_ORIENTATION)
    if pixels is None and name == "jpeg2000":  # of a bare codestream, OpenCV does not replicate grey
        grey = cv2.imdecode(data, cv2.IMREAD_UNCHANGED)
        return cv2.cvtColor(grey, cv2.COLOR_GRAY2RGB) if grey is not None and grey.ndim == 2 else None
    return pixels


def turn(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """Pixels as stored (h, w, 3) turned upright; contiguous."""
    transposed, vertical, horizontal = _TURNS[orientation]
    if transposed:
        pixels = pixels.transpose(1, 0, 2)
    return np.ascontiguousarray(pixels[:: -1 if vertical else 1, :: -1 if horizontal else 1])


def stored_windows(windows: NDArray[np.int64], headers: Sequence[Header]) -> NDArray[np.int64]:
    """Windows of upright images, int64 (rows, 4) of (y, x, height, width), as windows of the images as stored."""
    stored = windows.copy()
    for row, header in enumerate(headers):
        if header.orientation != 1:
            transposed, vertical, horizontal = _TURNS[header.orientation]
            y, x, height, width = windows[row].tolist()
            full_height, full_width = header.upright
            y = full_height - y - height if vertical else y
            x = full_width - x - width if horizontal else x
            stored[row] = (x, y, width, height) if transposed else (y, x, height, width)
    return stored


class CropDecoder:
    """Decodes only the wanted windows, up to `rows` images at a time. Not for two threads at a time.

    Attributes:
        notes: how many images were decoded in another way than the rest, by which.
    """

    def __init__(self, rows: int) -> None:
        self._run = Runner(lambda: crop_pipeline(rows, 1))
        self.notes: Counter[str] = Counter()

    def __call__(
        self, encoded: Sequence[NDArray[np.uint8]], headers: Sequence[Header], windows: NDArray[np.int64]
    ) -> Iterator[tuple[int, NDArray[np.uint8] | SampleError]]:
        """(index, pixels or what is wrong with the image) for each image.

        Args:
            encoded: for each image uint8 (bytes,).
            headers: their headers.
            windows: int64 (images, 4), upright (y, x, height, width).

        Returns:
            Pixels are uint8 (height, width, 3), to be used up before the next pair is asked for.

        Raises:
            StageError: DALI fails on the images together and on none of them alone.
        """
        places = stored_windows(windows, headers).astype(np.int32)
        encoded = [plain(data, header) for data, header in zip(encoded, headers, strict=True)]
        try:
            crops = self._decode(encoded, places)
        except RuntimeError as error:
            yield from self._one_by_one(encoded, headers, windows, places, error)
            return
        for i in range(len(encoded)):
            pixels = np.asarray(crops[i])
            yield i, pixels if headers[i].orientation == 1 else turn(pixels, headers[i].orientation)

    def warm_up(self) -> None:
        """Builds the pipeline."""
        self._run.build()

    def close(self) -> None:
        self._run.close()

    def _decode(self, encoded: Sequence[NDArray[np.uint8]], places: NDArray[np.int32]) -> Sequence[NDArray[np.uint8]]:
        anchor, shape = np.ascontiguousarray(places[:, :2]), np.ascontiguousarray(places[:, 2:])
        crops: Sequence[NDArray[np.uint8]] = self._run({"encoded": list(encoded), "anchor": anchor, "shape": shape})
        return crops

    def _one_by_one(
        self,
        encoded: Sequence[NDArray[np.uint8]],
        headers: Sequence[Header],
        windows: NDArray[np.int64],
        places: NDArray[np.int32],
        error: RuntimeError,
    ) -> Iterator[tuple[int, NDArray[np.uint8] | SampleError]]:
        """After a failed run: one bad image spoils the run of all, and DALI does not say which it was."""
        failed = 0
        for i, (data, header) in enumerate(zip(encoded, headers, strict=True)):
            try:
                pixels = np.asarray(self._decode([data], places[i : i + 1])[0])
            except RuntimeError as bad:
                failed += 1
                yield i, self._second_try(data, header, windows[i], bad)
            else:
                yield i, turn(pixels, header.orientation)
        if not failed:
            raise StageError(
                "DALI failed on several images together and on none of them alone", stage="augment", cause=reason(error)
            ) from error

    def _second_try(
        self, data: NDArray[np.uint8], header: Header, window: NDArray[np.int64], error: RuntimeError
    ) -> NDArray[np.uint8] | SampleError:
        if header.format not in _SECOND_TRY:
            return SampleError(f"{header.format} that DALI cannot decode ({reason(error)}); {first_bytes(data)}")
        try:
            pixels = decode_whole(data, header)
        except SampleError as bad:
            return bad
        if pixels.shape[:2] != header.upright:
            return SampleError(
                f"{header.format} whose header says {header.upright} and whose pixels are {pixels.shape[:2]}"
            )
        self.notes[f"{header.format} decoded by OpenCV, not by DALI"] += 1
        y, x, height, width = window.tolist()
        return pixels[y : y + height, x : x + width]
