"""What an encoded image says of itself, read before anything is decoded: format by content, size, EXIF orientation."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ingest.augment.avif import measures
from ingest.errors import SampleError

MAX_PIXELS = 178_956_970  # 512 MiB of RGB, the size at which Pillow too refuses
_HEAD_BYTES = 4096  # most headers end in here; a longer one is read from the whole image
_NO_SIZE_MARKERS = frozenset([0x01, *range(0xD0, 0xD9)])  # JPEG markers without a length
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0 to SOF15

Bytes = bytes | memoryview


class Header(NamedTuple):
    """What the header of one image says.

    Attributes:
        format: `jpeg`, `png`, `webp`, `bmp`, `tiff`, `jpeg2000`, `gif` or `avif`.
        height: pixels, as stored (before orientation).
        width: pixels, as stored.
        orientation: EXIF orientation, 1 to 8; 1 where there is none.
        dali: whether DALI decodes it; otherwise OpenCV does.
        note: what was wrong and could be passed over (`broken EXIF`), if anything.
    """

    format: str
    height: int
    width: int
    orientation: int = 1
    dali: bool = True
    note: str | None = None

    @property
    def upright(self) -> tuple[int, int]:
        """(height, width) once the orientation is applied."""
        return (self.width, self.height) if self.orientation >= 5 else (self.height, self.width)


def read_header(data: NDArray[np.uint8], max_pixels: int = MAX_PIXELS) -> Header:
    """The header of an encoded image.

    Args:
        data: uint8 (bytes,).
        max_pixels: an image with more pixels is refused.

    Raises:
        SampleError: not an image, an image of unknown format, a damaged header, too many pixels, or a JPEG without
            an end.
    """
    head = data[:_HEAD_BYTES].tobytes()
    name, parse = _sniff(head)
    if parse is None:
        raise SampleError(f"{name}; {first_bytes(data)}")
    try:
        header = parse(head)
    except (struct.error, IndexError):  # the header is longer than the head, or cut short
        header = _whole(name, parse, data)
    if header.height < 1 or header.width < 1:
        raise SampleError(f"{name} of {header.width} x {header.height} pixels; {first_bytes(data)}")
    if header.height * header.width > max_pixels:
        raise SampleError(
            f"{name} of {header.width} x {header.height} pixels, over the limit of {max_pixels} pixels",
            hint="Make the image smaller, or leave the row out",
        )
    if name == "jpeg" and _is_cut(data):
        raise SampleError(f"jpeg that DALI cannot decode (cut short: it has no end marker); {first_bytes(data)}")
    return header


def _is_cut(data: NDArray[np.uint8]) -> bool:
    """Whether a JPEG has no end marker.

    The decoder would not miss it where the window ends above the cut: whether an image is good must not depend on the
    window.
    """
    if data[-2] == 0xFF and data[-1] == 0xD9:
        return False
    whole = data.tobytes()  # few images get here: those with something behind the end, or without one
    at = 2  # behind the leading segments, in which a thumbnail has an end marker of its own
    while at + 4 <= len(whole) and whole[at] == 0xFF and whole[at + 1] not in (0xDA, 0xFF):
        at += 2 + int.from_bytes(whole[at + 2 : at + 4], "big")
    return whole.rfind(b"\xff\xd9") < at


def first_bytes(data: NDArray[np.uint8]) -> str:
    """The first bytes of an image, for an error message."""
    return f"{len(data)} bytes, the first {data[:16].tobytes()!r}"


def _whole(name: str, parse: Callable[[Bytes], Header], data: NDArray[np.uint8]) -> Header:
    try:
        return parse(memoryview(np.ascontiguousarray(data).data))
    except (struct.error, IndexError):
        raise SampleError(f"{name} whose header is damaged or cut short; {first_bytes(data)}") from None


def _sniff(head: bytes) -> tuple[str, Callable[[Bytes], Header] | None]:
    """The format's name and parser, or what the bytes are instead of an image and None."""
    for start, name, parse in _FORMATS:
        if head.startswith(start):
            return name, parse
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp", _webp
    if head[4:8] != b"ftyp":
        return _not_an_image(head), None
    if b"avif" in head[8:64] or b"avis" in head[8:64]:
        return "avif", _avif
    return "HEIF or another ISO media file, which nothing here decodes", None


def _not_an_image(head: bytes) -> str:
    if not head:
        return "empty, no image"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:64].lower()
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return "an HTML page, no image"
    if text.startswith((b"<?xml", b"<svg", b"<error")):
        return "XML or SVG text, no image that can be decoded"
    if text.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer, no image"
    return "no image of a known format"


def _jpeg(data: Bytes) -> Header:
    """Walks the markers up to the frame header (ITU T.81, annex B)."""
    at, orientation, note = 2, 1, None
    while True:
        if data[at] != 0xFF:
            raise IndexError
        marker = data[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
            continue
        if marker in _NO_SIZE_MARKERS:
            at += 2
            continue
        length = (data[at + 2] << 8) | data[at + 3]
        if marker in _FRAME_MARKERS:
            height = (data[at + 5] << 8) | data[at + 6]
            width = (data[at + 7] << 8) | data[at + 8]
            return Header("jpeg", height, width, orientation, True, note)
        if length < 2 or marker in (0xD9, 0xDA):  # end, or pixels, and no frame header before
            raise IndexError
        if marker == 0xE1 and bytes(data[at + 4 : at + 10]) == b"Exif\0\0":
            data[at + 1 + length]  # raises when the segment is longer than what we hold
            orientation, note = _exif(data[at + 10 : at + 2 + length])
        at += 2 + length


def _png(data: Bytes) -> Header:
    width, height = struct.unpack_from(">II", data, 16)
    orientation, note, at = 1, None, 8
    while at + 8 <= len(
        data
    ):  # eXIf, where there is one, mostly stands before the pixels; later ones are not looked for
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind in (b"IDAT", b"IEND"):
            break
        if kind == b"eXIf":
            data[at + 7 + length]
            orientation, note = _exif(data[at + 8 : at + 8 + length])
        at += 12 + length
    else:
        raise IndexError
    return Header("png", height, width, orientation, True, note)


def _webp(data: Bytes) -> Header:
    kind = bytes(data[12:16])
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", data, 26)
        return Header("webp", height & 0x3FFF, width & 0x3FFF)
    if kind == b"VP8L":
        (packed,) = struct.unpack_from("<I", data, 21)
        return Header("webp", (packed >> 14 & 0x3FFF) + 1, (packed & 0x3FFF) + 1)
    if kind != b"VP8X":
        raise IndexError
    flags = data[20]
    width = int.from_bytes(data[24:27], "little") + 1
    height = int.from_bytes(data[27:30], "little") + 1
    data[29]
    animated, has_exif = flags & 0x02, flags & 0x08
    if not has_exif:
        return Header("webp", height, width, dali=not animated)
    at, total = 12, struct.unpack_from("<I", data, 4)[0] + 8
    while at + 8 <= total:
        fourcc, length = struct.unpack_from("<4sI", data, at)
        if fourcc == b"EXIF":
            data[at + 7 + length]
            orientation, note = _exif(data[at + 8 : at + 8 + length])
            return Header("webp", height, width, orientation, False, note)
        at += 8 + length + (length & 1)
    return Header("webp", height, width, dali=False)  # DALI's parser refuses WebP with EXIF chunks


def _tiff(data: Bytes) -> Header:
    tags = _tiff_tags(data)
    height, width = tags.get(257, 0), tags.get(256, 0)
    orientation = tags.get(274, 1)
    bits, channels = tags.get(258, 1), tags.get(277, 1)  # left out means 1
    if bits > 8 and channels > 1 and tags.get(284) == 2:
        raise SampleError(f"tiff of {bits} bits, its channels stored one behind another, which nothing here decodes")
    # DALI reads no TIFF of fewer than 8 bits a channel, and beside grey with alpha what happens to lie in memory.
    dali = bits >= 8 and channels != 2
    return Header("tiff", height, width, orientation if 1 <= orientation <= 8 else 1, dali)


def _tiff_tags(data: Bytes) -> dict[int, int]:
    """The first value of the SHORT and LONG tags in the first directory of a TIFF or EXIF block."""
    order = "<" if bytes(data[:2]) == b"II" else ">"
    (start,) = struct.unpack_from(order + "I", data, 4)
    (count,) = struct.unpack_from(order + "H", data, start)
    tags: dict[int, int] = {}
    for at in range(start + 2, start + 2 + 12 * count, 12):
        tag, kind, values = struct.unpack_from(order + "HHI", data, at)
        size, code = {3: (2, "H"), 4: (4, "I")}.get(kind, (0, ""))
        if code:
            place = at + 8 if size * values <= 4 else struct.unpack_from(order + "I", data, at + 8)[0]
            tags[tag] = struct.unpack_from(order + code, data, place)[0]
    return tags


def _exif(block: Bytes) -> tuple[int, str | None]:
    """(orientation, note) of an EXIF block; a broken one counts as upright."""
    if bytes(block[:6]) == b"Exif\0\0":
        block = block[6:]
    if bytes(block[:4]) not in (b"II*\0", b"MM\0*"):
        return 1, "broken EXIF"
    try:
        orientation = _orientation(block)
    except struct.error:
        return 1, "broken EXIF"
    return (orientation, None) if 1 <= orientation <= 8 else (1, "broken EXIF")


def _orientation(block: Bytes) -> int:
    """Tag 274 of an EXIF block; the walk ends there, so that broken tags behind it do no harm."""
    order = "<" if bytes(block[:2]) == b"II" else ">"
    (start,) = struct.unpack_from(order + "I", block, 4)
    (count,) = struct.unpack_from(order + "H", block, start)
    for at in range(start + 2, start + 2 + 12 * count, 12):
        tag, kind, _ = struct.unpack_from(order + "HHI", block, at)
        if tag == 274:
            return int(struct.unpack_from(order + ("I" if kind == 4 else "H"), block, at + 8)[0])
    return 1


def _bmp(data: Bytes) -> Header:
    (size,) = struct.unpack_from("<I", data, 14)
    width, height = struct.unpack_from("<HH" if size == 12 else "<ii", data, 18)
    return Header("bmp", abs(height), abs(width))


def _jpeg2000(data: Bytes) -> Header:
    at = 0 if bytes(data[:2]) == b"\xff\x4f" else bytes(data).find(b"\xff\x4f\xff\x51")  # the codestream in its boxes
    if at < 0:
        raise IndexError
    x1, y1, x0, y0, tile_width, tile_height, _, _, channels = struct.unpack_from(">8IH", data, at + 8)
    if not (tile_width and tile_height and channels):  # DALI divides by them, which would end the process
        raise IndexError
    return Header("jpeg2000", y1 - y0, x1 - x0)


def _gif(data: Bytes) -> Header:
    width, height = struct.unpack_from("<HH", data, 6)
    return Header("gif", height, width, dali=False)


def _avif(data: Bytes) -> Header:
    height, width, orientation = measures(data)
    return Header("avif", height, width, orientation, dali=False)


_FORMATS: tuple[tuple[bytes, str, Callable[[Bytes], Header]], ...] = (
    (b"\xff\xd8\xff", "jpeg", _jpeg),
    (b"\x89PNG\r\n\x1a\n", "png", _png),
    (b"II*\0", "tiff", _tiff),
    (b"MM\0*", "tiff", _tiff),
    (b"\0\0\0\x0cjP  \r\n\x87\n", "jpeg2000", _jpeg2000),
    (b"\xff\x4f\xff\x51", "jpeg2000", _jpeg2000),
    (b"GIF87a", "gif", _gif),
    (b"GIF89a", "gif", _gif),
    (b"BM", "bmp", _bmp),
)
