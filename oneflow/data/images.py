"""Pictures, one at a time: arrays HWC (uint8 or float32, 1 or 3 channels) in, arrays out. Pixels are OpenCV's.

The functions hold no state and may run in any number of threads; OpenCV lets other threads run while it works.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._base.extras import cv2
from .._base.refuse import refuse
from ..errors import ArgumentError, ImageError, ShapeError
from .crops import Window

COLOR_SPACES = ("BGR", "RGB", "GRAY")
INTERPOLATIONS = ("auto", "bilinear", "nearest_neighbor", "nn", "bicubic", "area")
HORIZONTAL, VERTICAL, BOTH = 1, 16, 17
_LARGEST = 1 << 30  # pixels; OpenCV's own bound
_ALWAYS_ALLOWED = 1 << 20  # pixels, however few bytes a picture has
_PIXELS_A_BYTE = {"PNG": 8300, "JPEG": 600}  # what a white page reaches: PNG with one bit a pixel, JPEG with coarse colours
_MOST_PIXELS_A_BYTE = 8300


def check_color_space(color_space: str) -> str:
    """Raises ArgumentError for anything but "BGR", "RGB" and "GRAY"."""
    if color_space not in COLOR_SPACES:
        refuse(ArgumentError, f"color_space must be one of {', '.join(map(repr, COLOR_SPACES))}, got {color_space!r}")
    return color_space


def decode(data: bytes | np.ndarray, color_space: str = "BGR", dtype: Any = np.uint8, *, any_depth: bool = False) -> np.ndarray:
    """An encoded picture (JPEG, PNG, ..., told by its content) as pixels.

    Args:
      data: the file's bytes.
      color_space: "BGR", "RGB" or "GRAY".
      dtype: uint8 or float32, of values 0 to 255.
      any_depth: read 16-bit pictures as they are (then saturated where ``dtype`` is uint8), not scaled to 8 bits.
    Returns: (H, W, 3), or (H, W, 1) for "GRAY".
    Raises: ImageError where OpenCV cannot decode it.
    Example: >>> flow.data.images.decode(open("cat.jpg", "rb").read(), "RGB")
    """
    mode = cv2.IMREAD_GRAYSCALE if color_space == "GRAY" else cv2.IMREAD_COLOR
    image = read(data, mode | cv2.IMREAD_ANYDEPTH if any_depth else mode)
    if color_space == "RGB":
        image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB, dst=image)
    return to_dtype(image[..., None] if image.ndim == 2 else image, np.dtype(dtype))


def read(data: bytes | np.ndarray, mode: int) -> np.ndarray:
    """OpenCV's ``imdecode``. Raises ImageError, also for files that end too early, of which OpenCV decodes a part."""
    encoded = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.ascontiguousarray(data).view(np.uint8).reshape(-1)
    if not encoded.size:
        raise ImageError("a picture has no bytes, so it cannot be decoded")
    if suspicion := _suspicion(encoded):
        raise ImageError(f"a picture of {encoded.size} bytes cannot be decoded: {suspicion}")
    try:
        image = cv2.imdecode(encoded, mode)
    except cv2.error as error:
        raise ImageError(f"a picture of {encoded.size} bytes cannot be decoded: {_first_line(error)}") from error
    if image is None or not image.size:
        kind = kind_of(encoded)
        why = f"it is damaged {kind}, or {kind} of a kind that OpenCV does not read" if kind else _unknown(encoded)
        raise ImageError(f"a picture of {encoded.size} bytes cannot be decoded: {why}")
    return image


_MAGIC = ((b"\xff\xd8", "JPEG"), (b"\x89PNG", "PNG"), (b"GIF8", "GIF"), (b"RIFF", "WebP"), (b"BM", "BMP"))


def kind_of(encoded: np.ndarray) -> str:
    """The format of an encoded picture by its first bytes: "JPEG", "PNG", ..., or "" for none that is known."""
    head = encoded[:8].tobytes()
    return next((name for magic, name in _MAGIC if head.startswith(magic)), "")


def _unknown(encoded: np.ndarray) -> str:
    return f"it has no format that OpenCV knows; it begins with {encoded[:8].tobytes()!r}"


def _suspicion(encoded: np.ndarray) -> str:
    """Why a picture is not worth a decoder's time: it ends early, or claims far more pixels than its bytes can hold."""
    data, kind = encoded.data, kind_of(encoded)
    whole, size = True, (0, 0)
    if kind == "PNG":
        whole, size = _walk_png(data)
    elif kind == "JPEG":
        whole, size = _walk_jpeg(data)
    elif kind == "GIF" and len(data) >= 10:
        size = (int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little"))
    elif kind == "BMP" and len(data) >= 26:
        size = tuple(abs(int.from_bytes(data[i : i + 4], "little", signed=True)) for i in (18, 22))  # type: ignore[assignment]
    elif kind == "WebP" and len(data) >= 30 and data[12:16].tobytes() == b"VP8X":
        size = (1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little"))
    if not whole:
        return f"the {kind} ends too early"
    if size[0] * size[1] > max(_ALWAYS_ALLOWED, _PIXELS_A_BYTE.get(kind, _MOST_PIXELS_A_BYTE) * len(data)):
        return f"it claims {size[0]} x {size[1]} pixels"
    return ""


def _walk_png(data: memoryview) -> tuple[bool, tuple[int, int]]:
    """Whether all chunks are there (decoders ask for a chunk's memory before they read it); and the picture's size."""
    at, size = 8, (int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big"))
    while at + 12 <= len(data):
        at += 12 + int.from_bytes(data[at : at + 4], "big")
        if at <= len(data) and data[at - 8 : at - 4].tobytes() == b"IEND":
            return True, size
    return False, size


def _walk_jpeg(data: memoryview) -> tuple[bool, tuple[int, int]]:
    """Whether there is an end mark behind the segments (a thumbnail in one of them has its own); and the picture's size."""
    at, size = 2, (0, 0)
    while at + 9 <= len(data) and data[at] == 0xFF and data[at + 1] != 0xDA:
        if 0xC0 <= data[at + 1] <= 0xCF and data[at + 1] not in (0xC4, 0xC8, 0xCC):
            size = (int.from_bytes(data[at + 7 : at + 9], "big"), int.from_bytes(data[at + 5 : at + 7], "big"))
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return data[-2:].tobytes() == b"\xff\xd9" or data.tobytes().rfind(b"\xff\xd9", min(at, len(data))) >= 0, size


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def encode(image: np.ndarray, extension: str = ".jpg", quality: int | None = None) -> bytes:
    """Pixels (BGR or gray) as the bytes of a file.

    Args:
      image: uint8 (H, W), (H, W, 1) or (H, W, 3).
      extension: ".jpg", ".png" or another that OpenCV writes.
      quality: of JPEG, 1 to 100; None for OpenCV's default.
    """
    options = [cv2.IMWRITE_JPEG_QUALITY, quality] if quality is not None else []
    done, data = cv2.imencode(extension, image, options)
    if not done:
        raise ImageError(f"OpenCV cannot write a picture {image.shape} of {image.dtype} as {extension!r}")
    return data.tobytes()


def check(image: np.ndarray, what: str = "a picture", dtypes: Sequence[type] = (np.uint8, np.float32)) -> np.ndarray:
    """Raises ImageError unless it is HWC, with 1 or 3 channels, at least one pixel, and of one of the dtypes."""
    if image.ndim != 3 or image.shape[2] not in (1, 3) or not image.size or image.dtype not in dtypes:
        kinds = " or ".join(np.dtype(d).name for d in dtypes)
        raise ImageError(
            f"{what} must be HWC with 1 or 3 channels and at least one pixel, of {kinds}; got {image.dtype} {image.shape}"
        )  # fmt: skip
    return image


def from_bgr(image: np.ndarray, color_space: str) -> np.ndarray:
    """A BGR picture in another color space; (H, W, 1) for "GRAY"."""
    if color_space == "GRAY":
        return cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)[..., None]
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB) if color_space == "RGB" else image


def to_dtype(image: np.ndarray, dtype: Any) -> np.ndarray:
    """Values as uint8 (rounded half to even, saturated) or another dtype."""
    wanted = np.dtype(dtype)
    if image.dtype == wanted:
        return image
    if wanted == np.uint8:
        return np.clip(np.rint(image) if image.dtype.kind == "f" else image, 0, 255).astype(np.uint8)
    return image.astype(wanted)


def crop(image: np.ndarray, window: Window) -> np.ndarray:
    """That part of it, as a view."""
    return image[window.y : window.y + window.height, window.x : window.x + window.width]


def resize(image: np.ndarray, width: int, height: int, interpolation: str = "auto") -> np.ndarray:
    """OpenCV's ``resize``.

    Args:
      image: HWC.
      width: of the result, > 0.
      height: of the result, > 0.
      interpolation: "bilinear", "nearest_neighbor" ("nn"), "bicubic", "area", or "auto": bilinear where the result has at least
        as many pixels as the image, else area.
    Returns: (height, width, C), dtype of the input.
    """
    flag = _flag(interpolation, image.shape[0] * image.shape[1], width * height)
    made = cv2.resize(image, (width, height), interpolation=flag)
    return made[..., None] if made.ndim == 2 else made


def _flag(interpolation: str, before: int, after: int) -> int:
    if interpolation == "auto":
        return cv2.INTER_LINEAR if after >= before else cv2.INTER_AREA
    flags = {"bilinear": "LINEAR", "nearest_neighbor": "NEAREST", "nn": "NEAREST", "bicubic": "CUBIC", "area": "AREA"}
    if interpolation not in flags:
        refuse(ArgumentError, f"interpolation_type must be one of {', '.join(map(repr, INTERPOLATIONS))}, got {interpolation!r}")
    return getattr(cv2, f"INTER_{flags[interpolation]}")


def kept_aspect_size(
    width: int, height: int, target: int, min_size: int | None = None, max_size: int | None = None, side: str = "shorter"
) -> tuple[int, int]:
    """The size of a picture whose shorter (or longer) side becomes ``target``, with its proportions.

    Args:
      width, height: of the picture.
      target: > 0.
      min_size: with side "longer": the shorter side becomes at least this. None or 0: no bound.
      max_size: with side "shorter": the longer side becomes at most this. None or 0: no bound.
      side: "shorter" or "longer": which of them ``target`` is.
    Returns: (width, height).
    """
    if side not in ("shorter", "longer"):
        refuse(ArgumentError, f'resize_side must be "shorter" or "longer", got {side!r}')
    low, high = (width, height) if width <= height else (height, width)
    if side == "shorter":
        new_low, new_high = target, _proportion(target, high, low)
        if max_size and new_high > max_size:
            new_low, new_high = _proportion(max_size, low, high), max_size
    else:
        new_low, new_high = _proportion(target, low, high), target
        if min_size and new_low < min_size:
            new_low, new_high = min_size, _proportion(min_size, high, low)
    return (new_low, new_high) if width <= height else (new_high, new_low)


def _proportion(size: int, above: int, below: int) -> int:
    return max(1, round(size * above / below))


def resize_keeping_aspect(
    image: np.ndarray, target: int, min_size: int | None = None, max_size: int | None = None, side: str = "shorter",
    interpolation: str = "auto",
) -> np.ndarray:  # fmt: skip
    """``resize`` to ``kept_aspect_size``."""
    width, height = kept_aspect_size(image.shape[1], image.shape[0], target, min_size, max_size, side)
    if width * height > _LARGEST:
        raise ImageError(f"a picture {image.shape} would become {width} x {height} pixels, which is more than 2**30")
    return resize(image, width, height, interpolation)


def scale_of(before: tuple[int, int], after: tuple[int, int]) -> np.ndarray:
    """How much wider and higher a picture became, float32 (2,); sizes are (width, height)."""
    return np.array([after[0] / before[0], after[1] / before[1]], np.float32)


def flip(image: np.ndarray, flip_code: int) -> np.ndarray:
    """Mirrored: 0 not at all, 1 left and right, 16 top and bottom, 17 both."""
    horizontal, vertical = flip_of(flip_code)
    if not (horizontal or vertical):
        return image
    return np.ascontiguousarray(image[:: -1 if vertical else 1, :: -1 if horizontal else 1])


def flip_of(flip_code: int) -> tuple[bool, bool]:
    """(horizontal, vertical). Raises ArgumentError for a code that is none."""
    if flip_code not in (0, HORIZONTAL, VERTICAL, BOTH):
        refuse(ArgumentError, f"flip_code must be 0 (none), 1 (horizontal), 16 (vertical) or 17 (both), got {flip_code}")
    return bool(flip_code & HORIZONTAL), bool(flip_code & VERTICAL)


def normalize(image: np.ndarray, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
    """(v - mean) / std, a mean and a std for each channel; dtype of the input, which is floating."""
    channels = image.shape[-1]
    if len(mean) != channels or len(std) != channels:
        refuse(ShapeError, f"{channels} channels need as many means and stds, got {len(mean)} and {len(std)}")
    return (image - np.asarray(mean, image.dtype)) / np.asarray(std, image.dtype)


class Normalizer:
    """``crop_mirror_normalize`` for many pictures: (v - mean) * (1 / std) for each of the 256 values, computed once.

    Args:
      channels: 1 or 3.
      mean: 1 number, or one a channel.
      std: likewise.
      layout: "NCHW" or "NHWC", of what is written.
    """

    def __init__(self, channels: int, mean: Sequence[float], std: Sequence[float], layout: str = "NCHW"):
        if layout not in ("NCHW", "NHWC"):
            refuse(ArgumentError, f'output_layout must be "NCHW" or "NHWC", got {layout!r}')
        for name, values in (("mean", mean), ("std", std)):
            if len(values) not in (1, channels):
                refuse(ShapeError, f"{name} must have 1 or {channels} numbers, got {len(values)}")
        means, inverse = np.asarray(mean, np.float32), np.float32(1) / np.asarray(std, np.float32)
        table = (np.arange(256, dtype=np.float32)[:, None] - means) * inverse
        self.table = np.ascontiguousarray(np.broadcast_to(table, (256, channels)))
        self.planes = [np.ascontiguousarray(self.table[:, c]).reshape(1, 256) for c in range(channels)]
        self.channels, self.layout = channels, layout

    def shape(self, height: int, width: int) -> tuple[int, int, int]:
        """Of one sample."""
        return (self.channels, height, width) if self.layout == "NCHW" else (height, width, self.channels)

    def __call__(
        self, image: np.ndarray, out: np.ndarray, *, mirror: bool = False, crop_pos_y: float = 0.5, crop_pos_x: float = 0.5
    ) -> None:
        """Cuts a window of ``out``'s size from uint8 HWC, mirrors it, and writes it normalized, float32.

        The window lies at int((H - h) * crop_pos_y) and int((W - w) * crop_pos_x). Raises ImageError where it does not fit.
        """
        height, width = out.shape[1:] if self.layout == "NCHW" else out.shape[:2]
        if image.ndim != 3 or image.shape[2] != self.channels or image.dtype != np.uint8:
            raise ImageError(
                f"crop_mirror_normalize wants uint8 HWC with {self.channels} channels, got {image.dtype} {image.shape}"
            )
        if image.shape[0] < height or image.shape[1] < width:
            raise ImageError(f"a picture of {image.shape[1]} x {image.shape[0]} is smaller than the crop of {width} x {height}")
        y, x = int((image.shape[0] - height) * crop_pos_y), int((image.shape[1] - width) * crop_pos_x)
        part = image[y : y + height, x : x + width]
        part = cv2.flip(part, 1) if mirror else part
        if self.layout == "NHWC":
            out[:] = cv2.LUT(part, self.table.reshape(1, 256, self.channels)).reshape(out.shape)
            return
        for c, plane in enumerate(cv2.split(part)):
            cv2.LUT(plane, self.planes[c], dst=out[c])


def batch_align(images: Sequence[np.ndarray], shape: Sequence[int], dtype: Any, alignment: int) -> np.ndarray:
    """Pictures of any size in one array: each at the top left, zeros around it.

    Args:
      images: HWC, all with shape[2] channels.
      shape: (H, W, C), the bound: the result's H * W does not exceed that of the bound.
      dtype: uint8 or float32.
      alignment: the result's H and W are multiples of it; 0, or a power of two.
    Returns: (N, H, W, C), H and W the largest of the batch, rounded up.
    Raises: ImageError.
    """
    if alignment < 0 or alignment & (alignment - 1):
        refuse(ArgumentError, f"alignment must be 0 or a power of two, got {alignment}")
    height, width = (_aligned(max(image.shape[axis] for image in images), alignment) for axis in (0, 1))
    if height * width > shape[0] * shape[1]:
        raise ImageError(f"a batch of pictures needs {height} x {width} pixels, more than its bound {shape[0]} x {shape[1]}")
    batch = np.zeros((len(images), height, width, shape[2]), dtype)
    for place, image in zip(batch, images, strict=True):
        if image.ndim != 3 or image.shape[2] != shape[2]:
            raise ImageError(f"a picture {image.shape} does not have the {shape[2]} channels that the batch has")
        place[: image.shape[0], : image.shape[1]] = to_dtype(image, np.dtype(dtype))
    return batch


def _aligned(size: int, alignment: int) -> int:
    return math.ceil(size / alignment) * alignment if alignment else size
