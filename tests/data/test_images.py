"""Images: pixels are those of OpenCV's own functions, and crops those of the description."""

from __future__ import annotations

import io
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import oneflow as flow
from oneflow.core.record import record_pb2 as pb
from oneflow.data import images
from oneflow.data._image_headers import read_header
from oneflow.data.crops import RandomWindows, Window, coin_flips, uniform_words
from oneflow.data.decoders import decode_image, decode_image_random_crop, image_decoder_random_crop_resize
from oneflow.data.records import Records
from oneflow.errors import ArgumentError, FeatureError, ImageError, ShapeError

RNG = np.random.default_rng(7)


def photograph(height: int = 60, width: int = 90, channels: int = 3) -> np.ndarray:
    small = RNG.integers(0, 256, (8, 8, channels), dtype=np.uint8)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)


def jpeg(image: np.ndarray) -> bytes:
    return cv2.imencode(".jpg", image)[1].tobytes()


def png(image: np.ndarray) -> bytes:
    return cv2.imencode(".png", image)[1].tobytes()


def batch_of(photos: list[bytes]) -> Records:
    return Records.of([pb.OFRecord(feature={"image": pb.Feature(bytes_list=pb.BytesList(value=[p]))}) for p in photos])


@pytest.mark.parametrize("encode", [jpeg, png])
def test_decoding(encode) -> None:
    data = encode(photograph())
    array = np.frombuffer(data, np.uint8)
    color, gray = cv2.imdecode(array, cv2.IMREAD_COLOR), cv2.imdecode(array, cv2.IMREAD_GRAYSCALE)
    assert (images.decode(data) == color).all()
    assert (images.decode(data, "RGB") == color[..., ::-1]).all()
    assert (images.decode(data, "GRAY") == gray[..., None]).all()
    assert images.decode(array.view(np.int8), "BGR", np.float32).dtype == np.float32  # as buffers of char hold it
    assert images.decode(encode(photograph(channels=1)), "RGB").shape == (60, 90, 3)


def test_sixteen_bits() -> None:
    deep = RNG.integers(0, 65536, (5, 6), dtype=np.uint16)
    data = png(deep)
    assert (images.decode(data, "GRAY", np.float32, any_depth=True)[..., 0] == deep).all()
    assert (images.decode(data, "GRAY", any_depth=True)[..., 0] == np.minimum(deep, 255)).all()
    assert (images.decode(data, "GRAY")[..., 0] == cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_GRAYSCALE)).all()


@pytest.mark.parametrize("encode", [jpeg, png])
def test_truncated_images(encode) -> None:
    data = encode(photograph(20, 20))
    for length in range(0, len(data) - 1, 7):
        with pytest.raises(ImageError, match="cannot be decoded"):
            images.decode(data[:length])
    with pytest.raises(ImageError, match="no format that OpenCV knows"):
        images.decode(b"not an image at all")


@settings(max_examples=50, deadline=None)
@given(st.sampled_from([jpeg, png]), st.integers(0, 10**6), st.binary(min_size=1, max_size=8))
def test_mutated_images(encode, at: int, new: bytes) -> None:
    data = encode(np.full((16, 16, 3), 77, np.uint8))
    at %= len(data)
    try:
        image = images.decode(data[:at] + new + data[at + len(new) :])
    except ImageError:
        return
    assert image.dtype == np.uint8 and image.ndim == 3


def test_a_corrupt_image_is_named_or_skipped() -> None:
    batch = batch_of([jpeg(photograph()), b"broken", jpeg(photograph())])
    with pytest.raises(ImageError, match=r"(?s)cannot be decoded.*record     1, at byte.*feature    'image'") as caught:
        decode_image(batch, "image")
    assert (caught.value.record, caught.value.feature) == (1, "image")
    with ThreadPoolExecutor(2) as pool:
        made = decode_image(batch, "image", pool=pool, corrupt="skip")
    assert [m is None for m in made] == [False, True, False]
    with pytest.raises(FeatureError, match="Field photo not found"):
        decode_image(batch, "photo")
    with pytest.raises(ArgumentError, match="color_space"):
        decode_image(batch, "image", "CMYK")


FORMATS = {
    ".jpg": "JPEG", ".png": "PNG", ".webp": "WebP", ".bmp": "BMP", ".tiff": "TIFF", ".jp2": "JPEG 2000", ".pgm": "Netpbm",
    ".ppm": "Netpbm", ".pam": "Netpbm", ".hdr": "Radiance HDR", ".ras": "Sun raster",
}  # fmt: skip


@pytest.mark.parametrize("extension", FORMATS)
def test_headers_tell_format_and_size(extension: str) -> None:
    for channels in {".ppm": [3], ".pgm": [1]}.get(extension, [1, 3]):
        image = photograph(48, 72, channels).reshape(48, 72, channels)
        data = cv2.imencode(extension, image.astype(np.float32) if extension == ".hdr" else image)[1].tobytes()
        header = read_header(data)
        assert (header.format, header.width, header.height) == (FORMATS[extension], 72, 48) and header.is_whole
        assert images.decode(data).shape == (48, 72, 3)


def test_headers_of_files_by_pillow() -> None:
    image = Image.fromarray(photograph(48, 72))
    for kind, options in (("GIF", {}), ("TIFF", {"big_tiff": True}), ("TIFF", {"compression": "tiff_deflate"}), ("BMP", {})):
        file = io.BytesIO()
        image.save(file, kind, **options)
        assert read_header(file.getvalue())[:3] == (kind, 72, 48)
    for mode, options in (("RGB", {}), ("RGBA", {}), ("RGB", {"lossless": True}), ("RGB", {"exif": b"Exif"})):
        file = io.BytesIO()
        image.convert(mode).save(file, "WebP", **options)
        assert read_header(file.getvalue())[:3] == ("WebP", 72, 48)


@pytest.mark.parametrize(
    "option, value, most",
    [(cv2.IMWRITE_JPEG_PROGRESSIVE, 1, 200), (cv2.IMWRITE_JPEG_RST_INTERVAL, 1, 1), (cv2.IMWRITE_JPEG_OPTIMIZE, 1, 1)],
)
def test_headers_of_jpegs(option: int, value: int, most: int) -> None:
    data = cv2.imencode(".jpg", photograph(), [option, value])[1].tobytes()
    at = data.index(b"\xff\xdb")  # a table; bytes between segments and before a marker's code are legal
    for padded in (data, data[:at] + b"\xff\xff\xff" + data[at:], data[:at] + b"\x07" + data[at:]):
        header = read_header(padded)
        assert (header.width, header.height) == (90, 60) and 1 <= header.scans <= most
        assert images.decode(padded).shape == (60, 90, 3)
    decoy = b"\xff\xe1\x00\x0d\xff\xc0\x00\x0b\x08\x00\x01\x00\x01\x01\x01"  # the size of a thumbnail
    assert read_header(data[:2] + decoy + data[2:])[1:3] == (90, 60)


def bomb(width: int, height: int) -> bytes:
    """A white PNG of one bit for a pixel."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    row = b"\0" + b"\xff" * (width // 8)
    packer = zlib.compressobj(9)
    pixels = b"".join(packer.compress(row * 1000) for _ in range(height // 1000)) + packer.flush()
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def test_decompression_bombs_are_refused_before_they_are_decoded() -> None:
    data = bomb(32000, 32000)
    assert len(data) < 200_000
    with pytest.raises(ImageError, match="32000 x 32000 pixels, more than the limit of 178956970(.|\n)*max_image_pixels"):
        images.decode(data)
    small = bomb(1000, 1000)
    assert images.decode(small, max_pixels=10**6).shape == (1000, 1000, 3)
    with pytest.raises(ImageError, match="more than the limit of 999999"):
        images.decode(small, max_pixels=10**6 - 1)
    with pytest.raises(ImageError, match="would take about 15000000 bytes, more than the limit of 6000000"):
        images.decode(small, "BGR", np.float32, max_pixels=10**6)
    deep = png(np.zeros((100, 100), np.uint16))
    assert images.decode(deep, max_pixels=10**4).shape == (100, 100, 3)
    with pytest.raises(ImageError, match="more than the limit"):
        images.decode(deep, any_depth=True, max_pixels=10**4)
    scans = cv2.imencode(".jpg", photograph(100, 100), [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1].tobytes()
    end = scans.rindex(b"\xff\xda")
    many = scans[:end] + scans[end:-2] * 1000 + b"\xff\xd9"
    with pytest.raises(ImageError, match=r"encoded in 10\d\d scans"):
        images.decode(many, max_pixels=10**5)


@given(st.lists(st.sampled_from([b"\xff\xda", b"\xff", b"\xda", b"\0"]), max_size=40))
def test_all_scans_of_a_jpeg_are_counted(tail: list[bytes]) -> None:
    sequential, progressive = (
        cv2.imencode(".jpg", photograph(16, 16), [cv2.IMWRITE_JPEG_PROGRESSIVE, p])[1].tobytes() + b"".join(tail) for p in (0, 1)
    )
    assert read_header(progressive).scans == progressive.count(b"\xff\xda")
    assert read_header(sequential).scans == 1  # libjpeg reads no further one
    components = sequential.index(b"\xff\xda") + 4
    separate = sequential[:components] + b"\1" + sequential[components + 1 :]  # as if the scan had one of three components
    assert read_header(separate).scans == separate.count(b"\xff\xda")


def test_formats_whose_headers_bound_nothing_are_not_read() -> None:
    with pytest.raises(ImageError, match="AVIF is not read; convert it"):
        images.decode(b"\0\0\0\x20ftypavif" + bytes(100))
    with pytest.raises(ImageError, match="no format that OpenCV knows"):
        images.decode(b"\x76\x2f\x31\x01" + bytes(100))  # OpenEXR


def test_the_limit_of_pixels_is_the_setting() -> None:
    assert flow.config.Resource.max_image_pixels == images.MAX_PIXELS


def test_images_that_claim_to_be_huge() -> None:
    """A few bytes must not make a decoder ask for gigabytes."""
    for data, at in ((png(photograph(16, 16)), 16), (jpeg(photograph(16, 16)), None)):
        size = (30000).to_bytes(4, "big") * 2 if at else (30000).to_bytes(2, "big") * 2
        at = at or data.index(b"\xff\xc0") + 5
        with pytest.raises(ImageError, match="claims 30000 x 30000 pixels"):
            images.decode(data[:at] + size + data[at + len(size) :])


@pytest.mark.parametrize("extension", [".webp", ".jp2", ".tiff", ".png", ".jpg"])
def test_a_large_white_page(extension: str) -> None:
    page = np.full((3000, 2500, 3), 255, np.uint8)
    assert (images.decode(images.encode(page, extension)) == page).all()


# --- resizing


@pytest.mark.parametrize(
    "interpolation, flag",
    [("bilinear", cv2.INTER_LINEAR), ("nearest_neighbor", cv2.INTER_NEAREST), ("nn", cv2.INTER_NEAREST),
     ("bicubic", cv2.INTER_CUBIC), ("area", cv2.INTER_AREA)],
)  # fmt: skip
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_resize(interpolation, flag, channels, dtype) -> None:
    image = photograph(channels=channels).reshape(60, 90, channels).astype(dtype)
    for width, height in ((30, 20), (100, 91), (90, 60)):
        made = images.resize(image, width, height, interpolation)
        assert made.shape == (height, width, channels) and made.dtype == dtype
        assert (made == cv2.resize(image, (width, height), interpolation=flag).reshape(made.shape)).all()
    with pytest.raises(ArgumentError, match="interpolation_type"):
        images.resize(image, 3, 3, "cubic")


def test_auto_interpolation() -> None:
    image = photograph()
    assert (images.resize(image, 60, 90) == cv2.resize(image, (60, 90), interpolation=cv2.INTER_LINEAR)).all()  # as many pixels
    assert (images.resize(image, 60, 89) == cv2.resize(image, (60, 89), interpolation=cv2.INTER_AREA)).all()


@pytest.mark.parametrize(
    "size, arguments, expected",
    [
        ((400, 300), (600, 0, 0, "shorter"), (800, 600)),
        ((300, 400), (600, None, None, "shorter"), (600, 800)),
        ((400, 300), (600, 0, 700, "shorter"), (700, 525)),
        ((333, 100), (50, 0, 0, "shorter"), (166, 50)),  # 166.5 goes to the even number
        ((400, 300), (600, 0, 0, "longer"), (600, 450)),
        ((400, 100), (200, 80, 0, "longer"), (320, 80)),
        ((100, 400), (200, 80, 0, "longer"), (80, 320)),
        ((5000, 1), (10, 0, 0, "longer"), (10, 1)),
    ],
)
def test_sizes_that_keep_proportions(size, arguments, expected) -> None:
    assert images.kept_aspect_size(*size, *arguments) == expected


def test_resize_keeping_aspect() -> None:
    image = photograph()
    assert images.resize_keeping_aspect(image, 30).shape == (30, 45, 3)
    assert images.scale_of((90, 60), (45, 30)).tolist() == [0.5, 0.5]
    with pytest.raises(ArgumentError, match="resize_side"):
        images.resize_keeping_aspect(image, 30, side="both")
    with pytest.raises(ImageError, match="more than the limit"):
        images.resize_keeping_aspect(image, 10**6)


# --- other operations


def test_flip() -> None:
    image = photograph()
    for code, cv_code in ((1, 1), (16, 0), (17, -1)):
        assert (images.flip(image, code) == cv2.flip(image, cv_code)).all()
    assert images.flip(image, 0) is image
    with pytest.raises(ArgumentError, match="flip_code"):
        images.flip(image, 2)


def test_normalize() -> None:
    image = photograph().astype(np.float32)
    mean, std = [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]
    assert (images.normalize(image, mean, std) == (image - np.float32(mean)) / np.float32(std)).all()
    with pytest.raises(ShapeError, match="3 channels"):
        images.normalize(image, [1], [2])


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("mirror", [False, True])
def test_crop_mirror_normalize(layout, channels, mirror) -> None:
    image = photograph(61, 92, channels).reshape(61, 92, channels)
    mean, std = ([120.5, 110.25, 100.0], [58.5, 57.0, 57.5]) if channels == 3 else ([100.0], [50.0])
    h, w, y, x = 40, 50, int(21 * 0.3), int(42 * 0.7)
    expected = np.empty((h, w, channels), np.float32)
    for i in range(h):
        for j in range(w):
            source = image[y + i, x + (w - 1 - j if mirror else j)]
            expected[i, j] = (source.astype(np.float32) - np.float32(mean)) * (np.float32(1) / np.float32(std))
    step = images.Normalizer(channels, mean, std, layout)
    out = np.empty(step.shape(h, w), np.float32)
    step(image, out, mirror=mirror, crop_pos_y=0.3, crop_pos_x=0.7)
    assert (out == (expected.transpose(2, 0, 1) if layout == "NCHW" else expected)).all()
    with pytest.raises(ImageError, match="smaller than the crop"):
        step(image[:39], out)
    with pytest.raises(ImageError, match="uint8 HWC"):
        step(image.astype(np.float32), out)


def test_normalizer_broadcasts() -> None:
    image, out = photograph(4, 4), np.empty((3, 4, 4), np.float32)
    images.Normalizer(3, [5.0], [2.0])(image, out)
    assert (out == (image.astype(np.float32) - 5).transpose(2, 0, 1) * np.float32(0.5)).all()
    with pytest.raises(ShapeError, match="mean must have 1 or 3"):
        images.Normalizer(3, [5.0, 1.0], [2.0])


def test_batch_align() -> None:
    photos = [photograph(5, 9), photograph(8, 3)]
    batch = images.batch_align(photos, (16, 16, 3), np.float32, 4)
    assert batch.shape == (2, 8, 12, 3) and batch.dtype == np.float32
    assert (batch[0, :5, :9] == photos[0]).all() and not batch[0, 5:].any() and not batch[0, :, 9:].any()
    assert images.batch_align(photos, (16, 16, 3), np.uint8, 0).shape == (2, 8, 9, 3)
    floats = [np.full((1, 1, 1), v, np.float32) for v in (-3, 0.5, 1.5, 300)]
    assert images.batch_align(floats, (1, 1, 1), np.uint8, 1).reshape(-1).tolist() == [0, 0, 2, 255]
    with pytest.raises(ImageError, match="more than its bound"):
        images.batch_align(photos, (8, 8, 3), np.uint8, 1)
    with pytest.raises(ArgumentError, match="power of two"):
        images.batch_align(photos, (16, 16, 3), np.uint8, 3)


# --- random crops


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 500), st.integers(1, 500), st.integers(0, 2**64 - 1), st.floats(0.01, 1), st.floats(0.01, 1),
    st.floats(0.1, 10), st.floats(0.1, 10), st.integers(1, 12),
)  # fmt: skip
def test_windows_lie_inside(height, width, seed, a, b, r, s, attempts) -> None:
    windows = RandomWindows(
        seed, num_attempts=attempts, random_area=sorted((a, b)), random_aspect_ratio=tuple(sorted((r, s)))
    )  # fmt: skip
    for row in windows.draw(3, 5):
        y, x, h, w = windows.window(height, width, row)
        assert h >= 1 and w >= 1 and 0 <= y <= height - h and 0 <= x <= width - w


def test_windows_have_the_area_and_ratio_that_were_asked_for() -> None:
    windows = RandomWindows(5)
    made = np.array([windows.window(400, 500, row) for row in windows.draw(0, 4000)], float)
    area, ratio = made[:, 2] * made[:, 3] / 200000, made[:, 3] / made[:, 2]
    assert area.min() >= 0.079 and area.max() <= 1 and 0.75 <= ratio.min() and ratio.max() <= 1.333333
    assert abs(np.log(ratio).mean()) < 0.03 and 0.4 < area.mean() < 0.54  # large windows are rejected more often
    assert area.min() < 0.09 and area.max() > 0.9
    small = made[(made[:, 2] < 200) & (made[:, 3] < 200)]
    assert small[:, 0].max() > 220 and small[:, 0].min() < 20 and small[:, 1].max() > 300


def test_windows_of_extreme_images() -> None:
    windows = RandomWindows(5, random_area=(0.5, 1.0), random_aspect_ratio=(0.75, 1.25))
    row = windows.draw(0, 1)[0]
    assert windows.window(10, 1000, row)[2:] == (10, 12)  # full height, int(10 * 1.25) wide
    assert windows.window(1000, 10, row)[2:] == (13, 10)
    never = RandomWindows(5, num_attempts=1, random_area=(0.99, 1.0), random_aspect_ratio=(1.0, 1.0))
    sizes = {tuple(never.window(100, 100, r)[2:]) for r in never.draw(0, 50)}
    assert sizes <= {(100, 100), (99, 99)}
    narrow = RandomWindows(5, num_attempts=1, random_area=(0.001, 0.04), random_aspect_ratio=(0.9999, 0.99991))
    # no attempt fits, and 100 / 100 is above the ratios: (100, 99), scaled to the largest area
    assert narrow.window(100, 100, np.full(4, 0.5))[2:] == (20, 19)


def test_windows_are_functions_of_their_place() -> None:
    one, two = RandomWindows(1), RandomWindows(2)
    assert (one.draw(7, 4) == one.draw(7, 9)[:4]).all()
    assert not (one.draw(7, 4) == one.draw(8, 4)).any() and not (one.draw(7, 4) == two.draw(7, 4)).any()
    assert not (one.draw(7, 4) == RandomWindows(1, stream=1).draw(7, 4)).any()
    for wrong in ({"num_attempts": 0}, {"random_area": (0.5,)}, {"random_area": (0, 1)}, {"random_aspect_ratio": (2, 1)}):
        with pytest.raises(ArgumentError):
            RandomWindows(1, **wrong)


def test_uniform_words_do_not_depend_on_how_they_are_asked_for() -> None:
    whole = uniform_words(3, 1, 0, 100)
    assert (np.concatenate([uniform_words(3, 1, i, n) for i, n in ((0, 3), (3, 10), (13, 50), (63, 37))]) == whole).all()


def test_coin_flips() -> None:
    flips = np.concatenate([coin_flips(3, call, 100) for call in range(100)])
    assert flips.dtype == np.int8 and set(flips) == {0, 1} and abs(flips.mean() - 0.5) < 0.02
    assert coin_flips(3, 0, 1000, 0.0).sum() == 0 and coin_flips(3, 0, 1000, 1.0).sum() == 1000
    assert abs(coin_flips(3, 0, 10000, 0.2).mean() - 0.2) < 0.02


def test_random_crop_decoder() -> None:
    photos = [photograph(40 + i, 70) for i in range(6)]
    batch, windows = batch_of([png(p) for p in photos]), RandomWindows(11)
    plain = decode_image_random_crop(batch, "image", windows, 4, "RGB")
    with ThreadPoolExecutor(3) as pool:
        threaded = decode_image_random_crop(batch, "image", windows, 4, "RGB", pool=pool)
    for i, row in enumerate(windows.draw(4, 6)):
        y, x, h, w = windows.window(*photos[i].shape[:2], row)
        assert (plain[i] == photos[i][y : y + h, x : x + w, ::-1]).all() and (threaded[i] == plain[i]).all()
        resized = image_decoder_random_crop_resize(np.frombuffer(png(photos[i]), np.uint8), windows, row, 32, 24)
        expected = cv2.resize(photos[i][y : y + h, x : x + w], (32, 24), interpolation=cv2.INTER_LINEAR)
        assert (resized == expected[..., ::-1]).all()
    gray = decode_image_random_crop(batch, "image", windows, 4, "GRAY")
    assert gray[0].shape == (*plain[0].shape[:2], 1)
    with pytest.raises(ImageError, match="max_num_pixels"):
        image_decoder_random_crop_resize(np.frombuffer(png(photos[0]), np.uint8), windows, windows.draw(4, 1)[0], 3, 3, 10)


def smooth_jpeg(height: int, width: int, orientation: int = 1) -> np.ndarray:
    """A JPEG of waves longer than the pixels of a reduced image, with an EXIF orientation."""
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(y / 97 + c) + np.cos(x / 131 - c) for c in range(3)]
    encoded = images.encode((60 * np.stack(waves, -1) + 128).clip(0, 255).astype(np.uint8), ".jpg", 95)
    tiff = b"II*\0\x08\0\0\0\x01\0" + struct.pack("<HHIHHI", 0x112, 3, 1, orientation, 0, 0)
    exif = b"Exif\0\0" + tiff
    return np.frombuffer(encoded[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + encoded[2:], np.uint8)


@pytest.mark.parametrize("size", [(40, 56), (301, 403), (640, 480), (999, 1201)])
@pytest.mark.parametrize("orientation", [1, 6])
def test_scaled_decoding_is_close_to_decoding_the_whole_image(size: tuple[int, int], orientation: int) -> None:
    encoded, windows = smooth_jpeg(*size, orientation), RandomWindows(5, random_area=(0.3, 1.0))
    for row in windows.draw(0, 8):
        whole = image_decoder_random_crop_resize(encoded, windows, row, 48, 32)
        scaled = image_decoder_random_crop_resize(encoded, windows, row, 48, 32, scaled=True)
        assert whole.shape == scaled.shape == (32, 48, 3)
        assert np.abs(whole.astype(int) - scaled).mean() < 4
        if min(size) < 64:
            assert (whole == scaled).all()  # no window is twice as large as the result


@given(st.integers(0, 63), st.integers(0, 63), st.integers(1, 64), st.integers(1, 64), st.integers(1, 32), st.integers(1, 32))
def test_scaled_windows_are_not_smaller_than_asked_for(y: int, x: int, h: int, w: int, height: int, width: int) -> None:
    window = Window(y, x, min(h, 64 - y), min(w, 64 - x))
    part, _ = images.decode_window(smooth_jpeg(64, 64), lambda *_: window, least=(height, width))
    for made, whole, least in zip(part.shape, window[2:], (height, width), strict=False):
        assert min(whole, least) <= made <= whole


@pytest.mark.parametrize("side", ["height", "width"])
def test_a_jpeg_without_pixels_is_refused(side: str) -> None:
    encoded = smooth_jpeg(64, 64).copy()
    at = encoded.tobytes().index(b"\xff\xc0") + (5 if side == "height" else 7)
    encoded[at : at + 2] = 0
    for least in (None, (8, 8)):
        with pytest.raises(ImageError):
            images.decode_window(encoded, lambda rows, columns: Window(0, 0, rows // rows, columns // columns), least=least)


def test_scaled_decoding_reads_no_more_than_it_needs() -> None:
    window = Window(8, 16, 400, 480)
    part, whole = images.decode_window(smooth_jpeg(640, 800), lambda *_: window, least=(90, 100))
    assert whole == window and part.shape == (100, 120, 3)  # a quarter: an eighth would be smaller than the result
    part, _ = images.decode_window(np.frombuffer(png(photograph(400, 400)), np.uint8), lambda *_: window, least=(10, 10))
    assert part.shape == (392, 384, 3)  # a PNG is not scaled
    with pytest.raises(ImageError):
        images.decode_window(smooth_jpeg(640, 800)[:200], lambda *_: window, least=(90, 100))
    with pytest.raises(ImageError, match="begins with"):
        images.decode_window(np.zeros(64, np.uint8), lambda *_: window, least=(90, 100))


def test_crop_is_a_view() -> None:
    image = photograph()
    assert np.shares_memory(images.crop(image, Window(1, 2, 3, 4)), image)
