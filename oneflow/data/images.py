"""Functions over single images: arrays HWC, uint8 or float32, with 1 or 3 channels. Pixels are those of OpenCV.

They hold no state and may run in any number of threads; OpenCV releases the GIL.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._base.extras import cv2
from .._base.refuse import refuse, shown
from ..errors import ArgumentError, ImageError, ShapeError
from . import _jpeg_windows
from ._image_headers import PLAIN_COST, Header, read_header
from .crops import Window

COLOR_SPACES = ("BGR", "RGB", "GRAY")
INTERPOLATIONS = ("auto", "bilinear", "nearest_neighbor", "nn", "bicubic", "area")
HORIZONTAL, VERTICAL, BOTH = 1, 16, 17
MAX_PIXELS = 178_956_970  # where Pillow refuses an image as a decompression bomb
_ALWAYS_ALLOWED = 1 << 20  # pixels, whatever the number of encoded bytes
# Of a white page: a PNG of one bit per pixel, a JPEG with subsampled colours; the other two write any size in a few bytes.
_PIXELS_PER_BYTE = {"PNG": 8300, "JPEG": 600, "WebP": math.inf, "JPEG 2000": math.inf}
_MOST_PIXELS_PER_BYTE = 8300
_MOST_SCANS = 12  # of the largest image; smaller ones may have more


def check_color_space(color_space: str) -> str:
    """Raises ArgumentError for anything but "BGR", "RGB" and "GRAY"."""
    if color_space not in COLOR_SPACES:
        refuse(ArgumentError, f"color_space must be one of {', '.join(map(repr, COLOR_SPACES))}, got {shown(color_space)}")
    return color_space


def decode(
    data: bytes | np.ndarray,
    color_space: str = "BGR",
    dtype: Any = np.uint8,
    *,
    any_depth: bool = False,
    max_pixels: int = MAX_PIXELS,
) -> np.ndarray:
    """Decodes an image. Its format (JPEG, PNG, ...) is recognised by its content.

    Args:
      data: the file's bytes.
      color_space: "BGR", "RGB" or "GRAY".
      dtype: uint8 or float32, of values 0 to 255.
      any_depth: read 16-bit images with their own values (then saturated where ``dtype`` is uint8), not scaled to 8 bits.
      max_pixels: of the largest image that is decoded; six bytes for each of them bound the memory that decoding takes.
    Returns: (H, W, 3), or (H, W, 1) for "GRAY".
    Raises: ImageError where OpenCV cannot decode it, or where it is larger than the limit.
    Example: >>> flow.data.images.decode(open("cat.jpg", "rb").read(), "RGB")
    """
    channels, wanted = (1 if color_space == "GRAY" else 3), np.dtype(dtype)
    mode = cv2.IMREAD_GRAYSCALE if color_space == "GRAY" else cv2.IMREAD_COLOR
    result = 0 if wanted == np.uint8 else channels * (1 + wanted.itemsize)
    image = read(data, mode | cv2.IMREAD_ANYDEPTH if any_depth else mode, max_pixels=max_pixels, result=result)
    if color_space == "RGB":
        image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB, dst=image)
    return to_dtype(image[..., None] if image.ndim == 2 else image, wanted)


def read(data: bytes | np.ndarray, mode: int, *, max_pixels: int = MAX_PIXELS, result: int = 0) -> np.ndarray:
    """OpenCV's ``imdecode``, for images that are complete and not too large, by their header.

    Args:
      data: the file's bytes.
      mode: OpenCV's IMREAD flags.
      max_pixels: as for ``decode``.
      result: bytes per pixel of the caller's result, if that is larger.
    Raises: ImageError, also for truncated files, of which OpenCV would decode a part.
    """
    encoded = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else _flat(data)
    if not encoded.size:
        raise ImageError("an image has no bytes, so it cannot be decoded")
    kind = _check_header(encoded, max_pixels, any_depth=bool(mode & cv2.IMREAD_ANYDEPTH), result=result).format
    try:
        image = cv2.imdecode(encoded, mode)
    except cv2.error as error:
        raise _undecodable(encoded, _first_line(error)) from error
    if image is None or not image.size:
        raise _undecodable(encoded, f"it is a damaged {kind}, or a {kind} of a kind that OpenCV does not read")
    return image


def decode_window(
    data: np.ndarray,
    window_of: Callable[[int, int], Window],
    *,
    least: tuple[int, int] | None = None,
    max_pixels: int = MAX_PIXELS,
) -> tuple[np.ndarray, Window]:
    """A window of an image, uint8 (h, w, 3), BGR, and where it is.

    Of most JPEGs the native part decodes no more than the window needs; damage below it is not noticed then.

    Args:
      data: the file's bytes.
      window_of: the window in an image of a height and a width.
      least: None for the pixels of ``decode`` and ``crop``, or the height and width of the image that the window is resized to: a
        JPEG is decoded at 1/2, 1/4 or 1/8 of its size where the window is not smaller than that then. Its place and its size are
        rounded to pixels of the reduced image.
      max_pixels: as for ``decode``.
    Raises: ImageError.
    """
    data = _flat(data)
    header = _check_header(data, max_pixels, any_depth=False, result=0) if data.size else None
    if header is not None and header.format == "JPEG" and header.height and header.width:
        # the size in the header, or turned by an EXIF orientation, as OpenCV turns images
        for rows, columns in ((header.height, header.width), (header.width, header.height)):
            window = window_of(rows, columns)
            factor = _factor(window, least)
            part = _jpeg_part(data, rows, columns, window, factor, max_pixels)
            if part is not None:
                return part, window
            if factor == 1:
                break
    image = decode(data, "BGR", max_pixels=max_pixels)
    window = window_of(image.shape[0], image.shape[1])
    return crop(image, window), window


_REDUCED = {2: "IMREAD_REDUCED_COLOR_2", 4: "IMREAD_REDUCED_COLOR_4", 8: "IMREAD_REDUCED_COLOR_8"}


def _factor(window: Window, least: tuple[int, int] | None) -> int:
    """By how much the sides of an image may be shorter while the window stays as large as ``least``."""
    fitting = (f for f in (8, 4, 2) if least is not None and window.height >= f * least[0] and window.width >= f * least[1])
    return next(fitting, 1)


def _jpeg_part(data: np.ndarray, rows: int, columns: int, window: Window, factor: int, max_pixels: int) -> np.ndarray | None:
    """A window of a JPEG whose sides are ``factor`` times shorter; None where it does not have this size, or is decoded whole."""
    whole_height, whole_width = -(-rows // factor), -(-columns // factor)
    height, width = round(window.height / factor), round(window.width / factor)
    reduced = Window(
        min(round(window.y / factor), whole_height - height), min(round(window.x / factor), whole_width - width), height, width
    )
    if _jpeg_windows.decoder() is not None:
        part = _jpeg_windows.decoded(data, rows, columns, reduced, factor)
        if part is not None:
            return part
    if factor == 1:
        return None
    image = read(data, getattr(cv2, _REDUCED[factor]), max_pixels=max_pixels)
    return crop(image, reduced) if image.shape[:2] == (whole_height, whole_width) else None


def _flat(data: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(data).view(np.uint8).reshape(-1)


def kind_of(encoded: np.ndarray) -> str:
    """The format of an encoded image: "JPEG", "PNG", ..., or "" for a damaged image or other bytes."""
    try:
        return read_header(encoded.data).format
    except ValueError:
        return ""


def _check_header(encoded: np.ndarray, max_pixels: int, *, any_depth: bool, result: int) -> Header:
    """The header of an encoded image. Raises ImageError for an image that is truncated or too large to be decoded.

    Args:
      result: as for ``read``.
    """
    why, hint = "", "flow.config.max_image_pixels(n) raises the limit"
    try:
        header = read_header(encoded.data, any_depth)
    except ValueError as error:
        raise _undecodable(encoded, str(error)) from error
    size, pixels = f"{header.width} x {header.height} pixels", header.width * header.height
    cost = max(header.cost, result)
    if not header.is_whole:
        why, hint = f"the {header.format} ends too early", ""
    elif pixels > max(_ALWAYS_ALLOWED, _PIXELS_PER_BYTE.get(header.format, _MOST_PIXELS_PER_BYTE) * encoded.size):
        why, hint = f"it claims {size}", ""
    elif pixels > max_pixels:
        why = f"it has {size}, more than the limit of {max_pixels}"
    elif pixels * cost > max_pixels * PLAIN_COST:
        why = f"decoding its {size} would take about {pixels * cost} bytes, more than the limit of {max_pixels * PLAIN_COST}"
    elif pixels * header.scans > max_pixels * _MOST_SCANS:
        why = f"its {size} are encoded in {header.scans} scans"
    if why:
        raise _undecodable(encoded, why, hint)
    return header


def _undecodable(encoded: np.ndarray, why: str, hint: str = "") -> ImageError:
    rule = f"an image of {encoded.size} bytes cannot be decoded: {why}"
    return ImageError(f"{rule}\n  try        {hint}" if hint else rule)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def encode(image: np.ndarray, extension: str = ".jpg", quality: int | None = None) -> bytes:
    """Encodes pixels (BGR or gray) as the bytes of a file.

    Args:
      image: uint8 (H, W), (H, W, 1) or (H, W, 3).
      extension: ".jpg", ".png", or of another format that OpenCV writes.
      quality: of JPEG, 1 to 100; None for OpenCV's default.
    """
    options = [cv2.IMWRITE_JPEG_QUALITY, quality] if quality is not None else []
    rule = f"OpenCV cannot write an image {image.shape} of {image.dtype} as {extension!r}"
    try:
        done, data = cv2.imencode(extension, image, options)
    except cv2.error as error:
        raise ImageError(f"{rule}: {_first_line(error)}") from error
    if not done:
        raise ImageError(rule)
    return data.tobytes()


def check(image: np.ndarray, what: str = "an image", dtypes: Sequence[type] = (np.uint8, np.float32)) -> np.ndarray:
    """Raises ImageError unless it is HWC, with 1 or 3 channels, at least one pixel, and of one of the dtypes."""
    if image.ndim != 3 or image.shape[2] not in (1, 3) or not image.size or image.dtype not in dtypes:
        kinds = " or ".join(np.dtype(d).name for d in dtypes)
        raise ImageError(
            f"{what} must be HWC with 1 or 3 channels and at least one pixel, of {kinds}; got {image.dtype} {image.shape}"
        )  # fmt: skip
    return image


def from_bgr(image: np.ndarray, color_space: str) -> np.ndarray:
    """A BGR image in another color space; (H, W, 1) for "GRAY"."""
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
    """A view of that part of an image."""
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
        refuse(
            ArgumentError, f"interpolation_type must be one of {', '.join(map(repr, INTERPOLATIONS))}, got {shown(interpolation)}"
        )
    return getattr(cv2, f"INTER_{flags[interpolation]}")


def kept_aspect_size(
    width: int, height: int, target: int, min_size: int | None = None, max_size: int | None = None, side: str = "shorter"
) -> tuple[int, int]:
    """The size of an image whose shorter (or longer) side becomes ``target``, with its proportions.

    Args:
      width, height: of the image.
      target: > 0.
      min_size: with side "longer": the shorter side becomes at least this. None or 0: no bound.
      max_size: with side "shorter": the longer side becomes at most this. None or 0: no bound.
      side: "shorter" or "longer", the side that becomes ``target``.
    Returns: (width, height).
    """
    if side not in ("shorter", "longer"):
        refuse(ArgumentError, f'resize_side must be "shorter" or "longer", got {shown(side)}')
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
    interpolation: str = "auto", *, max_pixels: int = MAX_PIXELS,
) -> np.ndarray:  # fmt: skip
    """``resize`` to ``kept_aspect_size``. Raises ImageError where that has more than ``max_pixels``."""
    width, height = kept_aspect_size(image.shape[1], image.shape[0], target, min_size, max_size, side)
    if width * height > max_pixels:
        raise ImageError(
            f"an image {image.shape} would become {width} x {height} pixels, more than the limit of {max_pixels}\n"
            f"  try        flow.config.max_image_pixels(n) raises the limit, max_size bounds the longer side"
        )
    return resize(image, width, height, interpolation)


def scale_of(before: tuple[int, int], after: tuple[int, int]) -> np.ndarray:
    """The factors by which an image became wider and higher, float32 (2,). Sizes are (width, height)."""
    return np.array([after[0] / before[0], after[1] / before[1]], np.float32)


def flip(image: np.ndarray, flip_code: int) -> np.ndarray:
    """Mirrors an image: 0 not at all, 1 left and right, 16 top and bottom, 17 both."""
    horizontal, vertical = flip_of(flip_code)
    if not (horizontal or vertical):
        return image
    return np.ascontiguousarray(image[:: -1 if vertical else 1, :: -1 if horizontal else 1])


def flip_of(flip_code: int) -> tuple[bool, bool]:
    """(horizontal, vertical) of a flip code. Raises ArgumentError for other numbers."""
    if flip_code not in (0, HORIZONTAL, VERTICAL, BOTH):
        refuse(ArgumentError, f"flip_code must be 0 (none), 1 (horizontal), 16 (vertical) or 17 (both), got {flip_code}")
    return bool(flip_code & HORIZONTAL), bool(flip_code & VERTICAL)


def normalize(image: np.ndarray, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
    """(v - mean) / std with one mean and std per channel, in the input's floating dtype."""
    channels = image.shape[-1]
    if len(mean) != channels or len(std) != channels:
        refuse(ShapeError, f"{channels} channels need as many means and stds, got {len(mean)} and {len(std)}")
    return (image - np.asarray(mean, image.dtype)) / np.asarray(std, image.dtype)


class Normalizer:
    """``crop_mirror_normalize`` for many images: (v - mean) * (1 / std) for each of the 256 values, computed once.

    Args:
      channels: 1 or 3.
      mean: 1 number, or one per channel.
      std: 1 number, or one per channel.
      layout: "NCHW" or "NHWC", of the results.
    """

    def __init__(self, channels: int, mean: Sequence[float], std: Sequence[float], layout: str = "NCHW"):
        if layout not in ("NCHW", "NHWC"):
            refuse(ArgumentError, f'output_layout must be "NCHW" or "NHWC", got {shown(layout)}')
        for name, values in (("mean", mean), ("std", std)):
            if len(values) not in (1, channels):
                refuse(ShapeError, f"{name} must have 1 or {channels} numbers, got {len(values)}")
        means, inverse = np.asarray(mean, np.float32), np.float32(1) / np.asarray(std, np.float32)
        table = (np.arange(256, dtype=np.float32)[:, None] - means) * inverse
        self.table = np.ascontiguousarray(np.broadcast_to(table, (256, channels)))
        self.planes = [np.ascontiguousarray(self.table[:, c]).reshape(1, 256) for c in range(channels)]
        self.channels, self.layout = channels, layout

    def shape(self, height: int, width: int) -> tuple[int, int, int]:
        """The shape of one result."""
        return (self.channels, height, width) if self.layout == "NCHW" else (height, width, self.channels)

    def __call__(
        self, image: np.ndarray, out: np.ndarray, *, mirror: bool = False, crop_pos_y: float = 0.5, crop_pos_x: float = 0.5
    ) -> None:
        """Cuts a window of ``out``'s size from uint8 HWC, mirrors it, and writes it normalized, float32.

        The window begins at int((H - h) * crop_pos_y) and int((W - w) * crop_pos_x). Raises ImageError where it does not fit.
        """
        height, width = out.shape[1:] if self.layout == "NCHW" else out.shape[:2]
        if image.ndim != 3 or image.shape[2] != self.channels or image.dtype != np.uint8:
            raise ImageError(
                f"crop_mirror_normalize wants uint8 HWC with {self.channels} channels, got {image.dtype} {image.shape}"
            )
        if image.shape[0] < height or image.shape[1] < width:
            raise ImageError(f"an image of {image.shape[1]} x {image.shape[0]} is smaller than the crop of {width} x {height}")
        y, x = int((image.shape[0] - height) * crop_pos_y), int((image.shape[1] - width) * crop_pos_x)
        part = image[y : y + height, x : x + width]
        part = cv2.flip(part, 1) if mirror else part
        if self.layout == "NHWC":
            out[:] = cv2.LUT(part, self.table.reshape(1, 256, self.channels)).reshape(out.shape)
            return
        for c, plane in enumerate(cv2.split(part)):
            cv2.LUT(plane, self.planes[c], dst=out[c])


def batch_align(
    images: Sequence[np.ndarray], shape: Sequence[int], dtype: Any, alignment: int, *, fixed: bool = False
) -> np.ndarray:
    """Puts images of any sizes into one array: each at the top left, zeros around it.

    Args:
      images: HWC, all with shape[2] channels.
      shape: (H, W, C), a bound: H * W of the result does not exceed H * W of it.
      dtype: uint8 or float32.
      alignment: H and W of the result are multiples of it; 0, or a power of two.
      fixed: the result has ``shape``, whatever the images' sizes are.
    Returns: (N, H, W, C), H and W the largest of the batch, rounded up.
    Raises: ImageError.
    """
    if alignment < 0 or alignment & (alignment - 1):
        refuse(ArgumentError, f"alignment must be 0 or a power of two, got {alignment}")
    height, width = (_aligned(max(image.shape[axis] for image in images), alignment) for axis in (0, 1))
    if height * width > shape[0] * shape[1]:
        raise ImageError(f"a batch of images needs {height} x {width} pixels, more than its bound {shape[0]} x {shape[1]}")
    if fixed:
        if height > shape[0] or width > shape[1]:
            raise ImageError(f"a batch of images needs {height} x {width} pixels, which do not fit into {shape[0]} x {shape[1]}")
        height, width = shape[:2]
    batch = np.zeros((len(images), height, width, shape[2]), dtype)
    for place, image in zip(batch, images, strict=True):
        if image.ndim != 3 or image.shape[2] != shape[2]:
            raise ImageError(f"an image {image.shape} does not have the {shape[2]} channels that the batch has")
        place[: image.shape[0], : image.shape[1]] = to_dtype(image, np.dtype(dtype))
    return batch


def _aligned(size: int, alignment: int) -> int:
    return math.ceil(size / alignment) * alignment if alignment else size
