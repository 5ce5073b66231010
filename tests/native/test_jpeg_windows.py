"""Windows of JPEG images by the native part: pixels are those of the whole image by OpenCV, which reads what it cannot."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from oneflow.data import _jpeg_windows, images, samples
from oneflow.data.crops import RandomWindows, Window
from oneflow.data.decoders import image_decoder_random_crop_resize
from oneflow.errors import ImageError

pytestmark = pytest.mark.usefixtures("native_part", "_finds_a_library")
SUBSAMPLED = {"4:4:4": 0, "4:2:2": 1, "4:2:0": 2}
MODES = {
    1: cv2.IMREAD_COLOR, 2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4, 8: cv2.IMREAD_REDUCED_COLOR_8
}  # fmt: skip


@pytest.fixture
def _finds_a_library() -> None:
    if _jpeg_windows.decoder() is None:
        pytest.skip("Pillow has no libjpeg-turbo of its own here")


def jpeg(height: int, width: int, colours: str = "4:2:0", seed: int = 0, **options: Any) -> np.ndarray:
    image = samples.photograph(seed, max(width, 16), max(height, 16))[:height, :width]
    image[::7, ::5] = 255 - image[::7, ::5]  # sharp edges, also of colours
    made, file = Image.fromarray(image), io.BytesIO()
    if colours == "gray":
        made.convert("L").save(file, "JPEG", **options)
    else:
        made.save(file, "JPEG", subsampling=SUBSAMPLED[colours], **options)
    return np.frombuffer(file.getvalue(), np.uint8)


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 90), st.integers(1, 140), st.sampled_from([*SUBSAMPLED, "gray"]), st.integers(20, 100), st.integers(0, 9),
    st.booleans(), st.sampled_from([*MODES]), st.data(),
)  # fmt: skip
def test_pixels_are_those_of_the_whole_image(
    height: int, width: int, colours: str, quality: int, restart: int, optimized: bool, factor: int, data: st.DataObject
) -> None:
    encoded = jpeg(height, width, colours, quality=quality, restart_marker_blocks=restart, optimize=optimized)
    whole = cv2.imdecode(encoded, MODES[factor])
    rows, columns = whole.shape[:2]
    for _ in range(4):
        h, w = data.draw(st.integers(1, rows)), data.draw(st.integers(1, columns))
        window = Window(data.draw(st.integers(0, rows - h)), data.draw(st.integers(0, columns - w)), h, w)
        part = _jpeg_windows.decoded(encoded, height, width, window, factor)
        assert part is not None
        assert (part == images.crop(whole, window)).all(), window


@pytest.mark.parametrize("factor", MODES)
@pytest.mark.parametrize("colours", [*SUBSAMPLED, "gray"])
def test_large_images(colours: str, factor: int) -> None:
    encoded, windows = jpeg(375, 500, colours, quality=90), RandomWindows(3)
    whole = cv2.imdecode(encoded, MODES[factor])
    draws = windows.draw(0, 40)

    def one(row: np.ndarray) -> bool:
        window = windows.window(*whole.shape[:2], row)
        part = _jpeg_windows.decoded(encoded, 375, 500, window, factor)
        return part is not None and bool((part == images.crop(whole, window)).all())

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(one, draws))


@pytest.mark.parametrize("kind", ["progressive", "cmyk", "exif", "cut short", "garbage", "no JPEG", "other size"])
def test_other_images_are_left_to_opencv(kind: str) -> None:
    encoded, size = jpeg(60, 80), (60, 80)
    if kind == "progressive":
        encoded = jpeg(60, 80, progressive=True)
    elif kind == "cmyk":
        file = io.BytesIO()
        Image.fromarray(samples.photograph(0, 80, 60)).convert("CMYK").save(file, "JPEG")
        encoded = np.frombuffer(file.getvalue(), np.uint8)
    elif kind == "exif":
        turned = Image.Exif()
        turned[0x112] = 6
        encoded = jpeg(60, 80, exif=turned)
    elif kind == "cut short":
        encoded = encoded[: len(encoded) // 2]
    elif kind == "garbage":
        encoded = np.concatenate([encoded[:30], np.random.default_rng(0).integers(0, 256, 500).astype(np.uint8)])
    elif kind == "no JPEG":
        encoded = np.arange(99, dtype=np.uint8)
    else:
        size = (61, 80)
    assert _jpeg_windows.decoded(encoded, *size, Window(5, 6, 50, 70)) is None
    if kind in ("progressive", "cmyk", "exif"):  # a turned image is 80 x 60
        window = Window(1, 2, 50, 50)
        part, _ = images.decode_window(encoded, lambda *_: window)
        assert (part == images.crop(cv2.imdecode(encoded, cv2.IMREAD_COLOR), window)).all()
    elif kind != "other size":
        with pytest.raises(ImageError):
            images.decode_window(encoded, lambda *_: Window(5, 6, 50, 70))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damaged_images_do_no_harm(data: st.DataObject) -> None:
    encoded = jpeg(40, 60).copy()
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(2, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    part = _jpeg_windows.decoded(encoded, 40, 60, Window(3, 4, 30, 40))
    assert part is None or part.shape == (30, 40, 3)


def test_the_decoder_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded, windows = jpeg(375, 500), RandomWindows(1)
    rows = windows.draw(0, 12)
    fast = [image_decoder_random_crop_resize(encoded, windows, row, 64, 48) for row in rows]
    monkeypatch.setattr(_jpeg_windows, "decoder", lambda: None)
    assert all(
        (image_decoder_random_crop_resize(encoded, windows, row, 64, 48) == f).all() for row, f in zip(rows, fast, strict=True)
    )


def test_samplings_that_are_left_to_opencv() -> None:
    image = samples.photograph(0, 64, 48)
    for factor in (cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411):
        encoded = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factor])[1].reshape(-1)
        assert _jpeg_windows.decoded(encoded, 48, 64, Window(3, 5, 20, 30)) is None


def test_bytes_of_any_shape_and_dtype() -> None:
    encoded = jpeg(48, 64)
    expected = images.crop(cv2.imdecode(encoded, cv2.IMREAD_COLOR), Window(3, 5, 20, 30))
    for data in (encoded[None], encoded.view(np.int8), np.repeat(encoded, 2)[::2]):
        part, _ = images.decode_window(data, lambda height, width: Window(3, 5, 20, 30))
        assert (part == expected).all()
