"""Every format and its oddities: what comes out is 8-bit RGB, upright, the same as Pillow reads; or a named error."""

from __future__ import annotations

import struct

import cv2
import numpy as np
import pytest
from augment_images import assert_close, augment, augmenter, encoded, oriented, smooth, table, whole
from PIL import Image

from ingest.augment import reference
from ingest.augment.headers import read_header
from ingest.errors import SampleError

pytestmark = pytest.mark.unit

PICTURE = smooth(40, 56)
GREY = PICTURE[..., 0]
ALPHA = np.dstack([PICTURE, (np.arange(40 * 56).reshape(40, 56) % 3 * 127).astype(np.uint8)])
PALETTE = Image.fromarray(PICTURE).quantize(16)


def header(data):
    return read_header(np.frombuffer(data, np.uint8))


EXACT = {
    "png": encoded(PICTURE, "PNG"),
    "png grey": encoded(GREY, "PNG"),
    "png rgba with coloured hidden pixels": encoded(ALPHA, "PNG"),  # I01, I09
    "png grey with alpha": encoded(Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(ALPHA[..., 3])]), "PNG"),
    "png 1 bit": encoded(Image.fromarray(GREY > 128), "PNG"),
    "png 1 bit with a transparent value": encoded(Image.fromarray(GREY > 128), "PNG", transparency=0),
    "png palette": encoded(PALETTE, "PNG"),
    "png palette with a transparent entry": encoded(PALETTE, "PNG", transparency=3),
    "webp lossless": encoded(PICTURE, "WEBP", lossless=True),  # I17
    "webp lossy": encoded(PICTURE, "WEBP", quality=80),
    "webp lossless with alpha": encoded(ALPHA, "WEBP", lossless=True, exact=True),
    "tiff": encoded(PICTURE, "TIFF"),
    "tiff lzw": encoded(PICTURE, "TIFF", compression="tiff_lzw"),
    "tiff rgba": encoded(ALPHA, "TIFF"),
    "tiff grey": encoded(GREY, "TIFF"),
    "tiff grey with alpha": encoded(Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(ALPHA[..., 3])]), "TIFF"),
    "tiff 1 bit": encoded(Image.fromarray(GREY > 128), "TIFF"),
    "bmp": encoded(PICTURE, "BMP"),
    "bmp grey": encoded(GREY, "BMP"),
    "bmp palette": encoded(PALETTE, "BMP"),
    "jpeg 2000": encoded(PICTURE, "JPEG2000", irreversible=False),
    "jpeg 2000 grey": encoded(GREY, "JPEG2000", irreversible=False),
    "jpeg 2000 grey codestream": encoded(GREY, "JPEG2000", irreversible=False, no_jp2=True),
    "gif": encoded(PALETTE, "GIF"),
    "gif with a transparent colour": encoded(PALETTE, "GIF", transparency=3),
}


@pytest.mark.parametrize("name", EXACT)
def test_lossless_formats_are_as_pillow_reads_them(name):
    got = whole(EXACT[name])
    assert got.dtype == np.uint8
    assert np.array_equal(got, reference.decode(EXACT[name]))


def test_a_tiff_palette_has_16_bit_colours_of_which_rounding_may_take_one_step():
    data = encoded(PALETTE, "TIFF")
    assert_close([whole(data)], [reference.decode(data)], mean=1, p999=1, most=1)


def test_a_tiled_tiff_decodes():
    data = encoded(smooth(64, 96), "TIFF", tiffinfo={322: 32, 323: 32}, compression="tiff_adobe_deflate")
    assert np.array_equal(whole(data), reference.decode(data))


@pytest.mark.parametrize(
    "data",
    [
        encoded(PICTURE, quality=90),
        encoded(PICTURE, quality=90, progressive=True),
        encoded(GREY, quality=90),
        encoded(Image.fromarray(PICTURE).convert("CMYK"), quality=95),
    ],
    ids=["baseline", "progressive", "grey", "cmyk"],
)
def test_jpegs_are_close_to_what_pillow_reads(data):
    got = whole(data)
    assert got.shape == (40, 56, 3)
    assert_close([got], [reference.decode(data)], mean=4, p999=20, most=24)  # small blobs, subsampled colours


def test_sixteen_bits_are_scaled_to_eight_not_clipped():  # I07
    ramp = np.linspace(0, 65535, 32 * 64).astype(np.uint16).reshape(32, 64)
    grey = whole(encoded(Image.fromarray(ramp), "PNG"))
    assert np.abs(grey - ramp[..., None] / 257).max() <= 0.5
    colour = np.dstack([ramp, ramp[::-1], ramp[:, ::-1]])
    for suffix in (".png", ".tiff"):
        data = cv2.imencode(suffix, colour[..., ::-1])[1].tobytes()
        assert np.abs(whole(data) - colour / 257).max() <= 0.5


def test_an_animated_gif_gives_its_first_frame():  # I12
    frames = [Image.fromarray(smooth(20, 30, seed=i)).quantize(32) for i in range(3)]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert np.array_equal(whole(data), np.asarray(frames[0].convert("RGB")))


def test_avif_decodes():  # I15
    data = encoded(PICTURE, "AVIF", quality=100, subsampling="4:4:4")
    assert header(data).upright == (40, 56)
    assert_close([whole(data)], [PICTURE], mean=3, p999=16, most=32)


def test_avif_with_alpha_has_its_colours_in_order():
    data = encoded(ALPHA, "AVIF", quality=100, subsampling="4:4:4")
    assert_close([whole(data)], [PICTURE], mean=3, p999=16, most=32)


@pytest.mark.parametrize("profile", [0, 5000], ids=["", "behind a long profile"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_avif_is_turned_and_mirrored_as_its_boxes_say(orientation, profile):
    options = {"quality": 100, "subsampling": "4:4:4", **({"icc_profile": bytes(profile)} if profile else {})}
    data = oriented(smooth(16, 24), orientation, "AVIF", **options)
    expected = reference.decode(data)
    assert expected.shape == ((24, 16, 3) if orientation >= 5 else (16, 24, 3))
    assert header(data).upright == expected.shape[:2]
    assert_close([whole(data)], [expected], mean=3, p999=16, most=32)


TIFFS = {  # by DALI alone, by OpenCV alone, and by DALI's own OpenCV
    "colour": Image.fromarray(smooth(16, 24)),
    "1 bit": Image.fromarray(smooth(16, 24)[..., 0] > 128),
    "cmyk": Image.fromarray(smooth(16, 24)).convert("CMYK"),
}


@pytest.mark.parametrize("name", TIFFS)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_tiff_is_turned_once_whoever_decodes_it(name, orientation):
    data = encoded(TIFFS[name], "TIFF", tiffinfo={0x0112: orientation})
    expected = reference.decode(data)
    assert expected.shape == ((24, 16, 3) if orientation >= 5 else (16, 24, 3))
    assert np.array_equal(whole(data), expected)
    crop = augment([data], ops=[{"center_crop": {"size": (11, 13)}}])[0]
    y, x = [round((have - want) / 2) for have, want in zip(expected.shape, (11, 13), strict=False)]
    assert np.array_equal(crop, expected[y : y + 11, x : x + 13])


def test_a_tiff_of_16_bits_in_planes_is_refused_and_not_misread():
    planes = PICTURE.astype("<u2").transpose(2, 0, 1) * 257
    size, strips = planes[0].nbytes, 8 + 2 + 9 * 12 + 4
    tags = [(256, 3, 1, 56), (257, 3, 1, 40), (258, 3, 3, strips), (259, 3, 1, 1), (262, 3, 1, 2)]
    tags += [(273, 4, 3, strips + 6), (277, 3, 1, 3), (279, 4, 3, strips + 18), (284, 3, 1, 2)]
    pixels = strips + 30
    data = struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + b"".join(struct.pack("<HHII", *tag) for tag in tags)
    data += struct.pack("<I3H6I", 0, 16, 16, 16, *(pixels + i * size for i in range(3)), size, size, size)
    with pytest.raises(SampleError, match="tiff of 16 bits, its channels stored one behind another"):
        whole(data + planes.tobytes())


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(kind, orientation):  # I03
    options = {"quality": 95, "subsampling": 0} if kind == "JPEG" else {"lossless": True} if kind == "WEBP" else {}
    data = oriented(smooth(16, 24), orientation, kind, **options)
    expected = reference.decode(data)
    assert expected.shape == ((24, 16, 3) if orientation >= 5 else (16, 24, 3))
    assert header(data).upright == expected.shape[:2]
    crop = [{"center_crop": {"size": (11, 13)}}]
    y, x = [round((have - want) / 2) for have, want in zip(expected.shape, (11, 13), strict=False)]
    most = 16 if kind == "JPEG" else 0
    assert_close([whole(data)], [expected], mean=most / 4, p999=most, most=most)
    assert_close(augment([data], ops=crop), [expected[y : y + 11, x : x + 13]], mean=most / 4, p999=most, most=most)


def _with_app1(data, body):
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + data[2:]


@pytest.mark.parametrize(
    ("body", "note"),
    [
        (b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta <<< not XML", None),
        (b"Exif\0\0II*\0\xff\xff\xff\x7f", "broken EXIF"),
        (b"Exif\0\0garbage", "broken EXIF"),
        (b"Exif\0\0II*\0" + struct.pack("<IHHHII", 8, 1, 0x0112, 3, 1, 99), "broken EXIF"),
        # a rational x/0, of which orientation is independent
        (b"Exif\0\0II*\0" + struct.pack("<IHHHIIIII", 8, 1, 0x011A, 5, 1, 26, 0, 72, 0), None),
    ],
    ids=["XMP", "offset", "no TIFF header", "orientation 99", "x/0"],
)
def test_broken_metadata_decodes_unrotated(body, note):  # I04
    plain = encoded(smooth(16, 24), quality=95)
    data = _with_app1(plain, body)
    assert header(data).orientation == 1
    worker = augmenter(ops=[{"flip": {"probability": 0}}])
    got = worker([(table([data]), np.arange(1))], np.arange(1), 0)["image"][0]
    worker.close()
    assert np.array_equal(got, whole(plain))
    assert dict(worker.notes) == ({note: 1} if note else {})


@pytest.mark.parametrize("name", EXACT)
def test_headers_say_the_size_without_decoding(name):
    assert header(EXACT[name]).upright == (40, 56)


def test_a_long_header_is_read_to_its_end():
    data = _with_app1(_with_app1(encoded(PICTURE), b"http://ns.adobe.com/xap/1.0/\0" + b" " * 60000), b"x" * 60000)
    assert header(data).upright == (40, 56)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"\n<!DOCTYPE html><html>", "HTML"),
        (b"<?xml version='1.0'?><Error><Code>NoSuchKey", "XML"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS"),
        (bytes(range(7, 250)), "no image of a known format"),
        (encoded(PICTURE)[:40], "damaged or cut short"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "HEIF"),
    ],
)
def test_what_is_no_image_is_named_with_its_first_bytes(data, says):  # I15
    with pytest.raises(SampleError, match=says) as caught:
        header(data)
    assert repr(data[:16]) in str(caught.value)


def test_a_huge_image_is_refused_from_its_header():  # I11
    small = bytearray(encoded(smooth(8, 8), "PNG"))
    small[16:24] = struct.pack(">II", 20_000, 20_000)
    with pytest.raises(SampleError, match=r"20000 x 20000 pixels, over the limit of 178956970"):
        header(bytes(small))
    bitmap = bytearray(encoded(smooth(8, 8), "BMP"))
    bitmap[18:26] = struct.pack("<ii", 30_000, -30_000)
    with pytest.raises(SampleError, match="bmp of 30000 x 30000"):
        header(bytes(bitmap))


@pytest.mark.parametrize("no_jp2", [False, True], ids=["in boxes", "bare"])
@pytest.mark.parametrize("place", [range(18, 22), range(22, 26), range(34, 36)], ids=["width", "height", "channels"])
def test_a_jpeg_2000_with_tiles_or_channels_of_nothing_is_refused_before_dali_divides_by_them(place, no_jp2):
    data = bytearray(encoded(PICTURE, "JPEG2000", no_jp2=no_jp2))
    sizes = data.index(b"\xff\x51") + 4
    for at in place:
        data[sizes + at] = 0
    with pytest.raises(SampleError, match="jpeg2000 whose header is damaged"):
        header(bytes(data))


@pytest.mark.parametrize("name", ["gif", "gif with a transparent colour", "tiff 1 bit"])
def test_an_image_that_ends_in_its_first_bytes_is_an_error(name):
    cut = [EXACT[name][:end] for end in range(80)]
    worker = augmenter(batch_rows=80, ops=[{"flip": {"probability": 0}}])
    _, failures = worker.attempt([(table(cut), np.arange(80))], np.arange(80), 0)
    worker.close()
    assert sorted(failures) == list(range(80))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "BMP", "JPEG2000", "GIF", "AVIF"])
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_half_an_image_is_an_error_whatever_its_format(kind, share):
    picture = smooth(80, 120)
    data = encoded(Image.fromarray(picture).quantize(64) if kind == "GIF" else picture, kind)
    with pytest.raises(SampleError, match=r"cut short|can decode|cannot decode"):
        whole(data[: int(len(data) * share)])
