"""Image ops, over tensor buffers of images: HWC, uint8 or float32. They run on the host; pixels are those of OpenCV."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from .._base import dtype as dtypes
from .._base.dtype import dtype
from .._base.refuse import shown
from ..config import Resource
from ..data import images
from ..data.images import COLOR_SPACES, INTERPOLATIONS, Normalizer
from ..errors import ArgumentError, DtypeError, ImageError, ShapeError
from ..graph.node import Blob
from ._arrays import label
from ._emit import fail, want
from ._host import (
    each,
    emit_host,
    here,
    host_op,
    want_bool,
    want_buffer,
    want_dense,
    want_dtype,
    want_floats,
    want_int,
    want_one_axis,
    want_sizes,
)
from ._names import DefaultName, given_name
from .decoding import Drawn, Windows, draw_windows, want_windows
from .dropout import want_seed

Array = Any
PIXELS = (dtypes.uint8, dtypes.float32)


def want_images(what: str, argument: str, value: Any) -> Blob:
    """Images: tensor buffers (N,)."""
    return want_one_axis(what, argument, want_buffer(what, argument, value, "a decoder, or flow.tensor_list_to_tensor_buffer"))


def _buffers(blob: Blob) -> list[tuple[tuple[int, ...], dtype]]:
    return [(blob.shape, dtypes.tensor_buffer)]


# --- decoding


@host_op("image_decode", per_sample=True)
def _decode(encoded: Sequence[Array], *, color_space: str, dtype: np.dtype) -> list[Array]:
    most = Resource.max_image_pixels
    return each(lambda data: images.decode(data, color_space, dtype, any_depth=True, max_pixels=most), encoded)


def decode(images_bytes_buffer: Blob, dtype: dtype = dtypes.uint8, color_space: str = "BGR", name: str | None = None) -> Blob:
    """Encoded images (JPEG, PNG, ...) as pixels, decoded by OpenCV.

    Args:
      images_bytes_buffer: tensor buffers (N,) of bytes.
      dtype: uint8 or float32.
      color_space: "BGR", "RGB" or "GRAY".
      name: name of the op; made unique when omitted.
    Returns: tensor buffers (N,), each (H, W, 3), or (H, W, 1) for "GRAY".
    Raises: DtypeError, ArgumentError; ImageError at the call that meets it.
    Example: >>> images = flow.image.decode(encoded, dtype=flow.float)
    """
    what = label("image_decode", name)
    blob = want_images(what, "images_bytes_buffer", images_bytes_buffer)
    return emit_host(
        _decode, blob, outputs=_buffers(blob), name=name, prefix="ImageDecode",
        color_space=want.choice(what, "color_space", color_space, COLOR_SPACES),
        dtype=want_dtype(what, "dtype", dtype, PIXELS).numpy_dtype,
    )[0]  # fmt: skip


# --- sizes


@host_op("image_resize_to_fixed", per_sample=True, multiple_results=True)
def _resize(
    batch: Sequence[Array], *, width: int, height: int, channels: int, dtype: np.dtype, interpolation: str
) -> tuple[Array, Array]:  # fmt: skip
    made = np.empty((len(batch), height, width, channels), dtype)
    scale = np.empty((len(batch), 2), np.float32)

    def one(image: Array, out: Array, factor: Array) -> None:
        if images.check(image).shape[2] != channels:
            raise ImageError(f"is an image {image.shape}; it must have {channels} channels")
        out[:] = images.to_dtype(images.resize(image, width, height, interpolation), dtype)
        factor[:] = images.scale_of((image.shape[1], image.shape[0]), (width, height))

    each(one, batch, made, scale)
    return made, scale


@host_op("image_resize_keep_aspect_ratio", per_sample=True, multiple_results=True)
def _keep_aspect(
    batch: Sequence[Array], *, target: int, min_size: int, max_size: int, side: str, interpolation: str
) -> tuple[list[Array], Array, Array]:  # fmt: skip
    most = Resource.max_image_pixels

    def one(image: Array) -> Array:
        image = images.check(image)
        return images.resize_keeping_aspect(image, target, min_size, max_size, side, interpolation, max_pixels=most)

    made = each(one, batch)
    sizes = np.array([(image.shape[1], image.shape[0]) for image in made], np.int32).reshape(-1, 2)
    scale = [images.scale_of((a.shape[1], a.shape[0]), (b.shape[1], b.shape[0])) for a, b in zip(batch, made, strict=True)]
    return made, sizes, np.array(scale, np.float32).reshape(-1, 2)


def _keep(
    what: str, blob: Blob, target: Any, min_size: Any, max_size: Any, side: Any, interpolation: Any, name: str | None, prefix: str
) -> tuple[Blob, Blob, Blob]:
    """(image, new size, scale)."""
    if isinstance(target, bool) or not isinstance(target, (int, np.integer)):
        fail(ArgumentError, what, f"target_size must be an int where the proportions are kept, got {shown(target)}")
    size = want_int(what, "target_size", target)
    want.choice(what, "resize_side", side, ("shorter", "longer"))
    least = want_int(what, "min_size", 0 if min_size is None else min_size, least=0)
    most = want_int(what, "max_size", 0 if max_size is None else max_size, least=0)
    if side == "shorter" and most and most < size:
        fail(ArgumentError, what, f"max_size must be 0 or at least target_size {size}, got {most}")
    if side == "longer" and least > size:
        fail(ArgumentError, what, f"min_size must be at most target_size {size}, got {least}")
    n = blob.shape[0]
    made, sizes, scale = emit_host(
        _keep_aspect, blob, outputs=[(blob.shape, dtypes.tensor_buffer), ((n, 2), dtypes.int32), ((n, 2), dtypes.float32)],
        name=name, prefix=prefix, target=size, min_size=least, max_size=most, side=side,
        interpolation=want.choice(what, "interpolation_type", interpolation, INTERPOLATIONS),
    )  # fmt: skip
    return made, sizes, scale


def Resize(
    image: Blob,
    target_size: int | Sequence[int] | None = None,
    min_size: int | None = None,
    max_size: int | None = None,
    keep_aspect_ratio: bool = False,
    resize_side: str = "shorter",
    channels: int = 3,
    dtype: dtype | None = None,
    interpolation_type: str = "auto",
    name: str | None = None,
    color_space: str | None = None,
    interp_type: str | None = None,
    resize_shorter: int = 0,
    resize_x: int = 0,
    resize_y: int = 0,
) -> Any:
    """Resizes images to one size, or to one length of their shorter or longer side, by OpenCV's ``resize``.

    Args:
      image: images, tensor buffers (N,).
      target_size: (WIDTH, HEIGHT); where the proportions are kept an int, the length of the side.
      min_size, max_size: bounds of the other side, where the proportions are kept; None or 0 for none.
      keep_aspect_ratio: whether the proportions are kept.
      resize_side: "shorter" or "longer", the side that ``target_size`` is the length of.
      channels: of the images, 1 or 3. Ignored where the proportions are kept, like ``dtype``.
      dtype: uint8 (None) or float32, of the result.
      interpolation_type: "bilinear", "nearest_neighbor" ("nn"), "bicubic", "area", or "auto": bilinear where the result has at
        least as many pixels, else area.
      name: name of the op; made unique when omitted.
      color_space, interp_type, resize_shorter, resize_x, resize_y: older spellings ("RGB", "BGR" or "GRAY"; "Linear", "NN" or
        "Cubic"; a shorter side; width and height). With one of them the result is the image alone.
    Returns: (images, scale, None): Blob (N, height, width, channels), and float32 (N, 2), how much wider and higher. Where the
      proportions are kept: (tensor buffers (N,), scale, new size int32 (N, 2): width, height).
    Raises: ArgumentError, DtypeError; ImageError at the call that meets it.
    Example: >>> images, scale, _ = flow.image.Resize(images, target_size=(224, 224))
    """
    what = label("image_resize", name)
    blob = want_images(what, "image", image)
    older = _older_resize(what, color_space, interp_type, resize_shorter, resize_x, resize_y)
    channels, interpolation_type = older.get("channels", channels), older.get("interpolation", interpolation_type)
    target_size, resize_side = older.get("target", target_size), older.get("side", resize_side)
    if want_bool(what, "keep_aspect_ratio", older.get("keep", keep_aspect_ratio)):
        made, sizes, scale = _keep(
            what, blob, target_size, min_size, max_size, resize_side, interpolation_type, name, "ImageResizeKeepAspectRatio"
        )  # fmt: skip
        return made if older else (made, scale, sizes)
    if not isinstance(target_size, (list, tuple)):
        fail(ArgumentError, what, f"target_size must be (width, height), got {shown(target_size)}", (),
             "target_size=(224, 224), or keep_aspect_ratio=True with the length of one side")  # fmt: skip
    width, height = want_sizes(what, "target_size", target_size, 2)
    if not isinstance(channels, (int, np.integer)) or channels not in (1, 3):
        fail(ArgumentError, what, f"channels must be 1 or 3, got {shown(channels)}")
    kind = want_dtype(what, "dtype", dtypes.uint8 if dtype is None else dtype, PIXELS)
    fixed, scale = emit_host(
        _resize, blob, outputs=[((*blob.shape, height, width, channels), kind), ((*blob.shape, 2), dtypes.float32)], name=name,
        prefix="ImageResizeToFixed", width=width, height=height, channels=channels, dtype=kind.numpy_dtype,
        interpolation=want.choice(what, "interpolation_type", interpolation_type, INTERPOLATIONS),
    )  # fmt: skip
    return fixed if older else (fixed, scale, None)


_INTERPOLATIONS = {"Linear": "bilinear", "NN": "nearest_neighbor", "Cubic": "bicubic"}


def _older_resize(
    what: str, color_space: Any, interp_type: Any, resize_shorter: Any, resize_x: Any, resize_y: Any
) -> dict[str, Any]:
    """The meaning of the older spellings of Resize's arguments; empty where none of them is used."""
    for argument, size in (("resize_shorter", resize_shorter), ("resize_x", resize_x), ("resize_y", resize_y)):
        want.integer(what, argument, size, 0)
    meant: dict[str, Any] = {}
    if color_space is not None:
        meant["channels"] = 1 if want.choice(what, "color_space", color_space, COLOR_SPACES) == "GRAY" else 3
    if interp_type is not None:
        meant["interpolation"] = _INTERPOLATIONS[want.choice(what, "interp_type", interp_type, tuple(_INTERPOLATIONS))]
    if resize_shorter:
        meant |= {"target": resize_shorter, "keep": True, "side": "shorter"}
    elif resize_x and resize_y:
        meant |= {"target": (resize_x, resize_y), "keep": False}
    elif resize_x or resize_y:
        meant["is_older"] = True  # one of them alone resizes nothing, but the result is the image alone
    return meant


def target_resize(
    images: Blob,
    target_size: int,
    min_size: int | None = None,
    max_size: int | None = None,
    resize_side: str = "shorter",
    interpolation_type: str = "auto",
    name: str | None = None,
) -> tuple[Blob, Blob, Blob]:
    """``flow.image.Resize`` with the proportions kept; its results come in another order.

    Args: as there.
    Returns: tensor buffers (N,); new size int32 (N, 2): width, height; scale float32 (N, 2).
    Raises: as there.
    Example: >>> images, new_size, scale = flow.image.target_resize(images, target_size=800, max_size=1333)
    """
    what = label("image_target_resize", name)
    blob = want_images(what, "images", images)
    return _keep(what, blob, target_size, min_size, max_size, resize_side, interpolation_type, name, "ImageTargetResize")


@host_op("image_random_crop", per_sample=True, random=draw_windows)
def _random_crop(batch: Sequence[Array], *, windows: Windows, draws: Array) -> list[Array]:
    window = Drawn(dict(windows), draws).window

    def one(image: Array, row: Array) -> Array:
        part = images.crop(images.check(image), window(image.shape[0], image.shape[1], row))
        return np.ascontiguousarray(part)

    return each(one, batch, draws)


def random_crop(
    input_blob: Blob,
    num_attempts: int = 10,
    seed: int | None = None,
    random_area: Sequence[float] | None = None,
    random_aspect_ratio: Sequence[float] | None = None,
    name: str | None = DefaultName("ImageRandomCrop"),
) -> Blob:
    """A random window of each image.

    Args:
      input_blob: images, tensor buffers (N,).
      num_attempts: how many windows are drawn before one of full width or height is taken.
      seed: makes the windows reproducible whatever the session's seed.
      random_area: smallest and largest share of the image's area; None for [0.08, 1.0].
      random_aspect_ratio: smallest and largest width / height; None for [0.75, 1.333333].
      name: name of the op; made unique when omitted.
    Returns: tensor buffers (N,) of the images' dtypes.
    Raises: ArgumentError, DtypeError.
    Example: >>> crops = flow.image.random_crop(images, random_area=(0.5, 1.0))
    """
    name = given_name(name)
    what = label("image_random_crop", name)
    blob = want_images(what, "input_blob", input_blob)
    return emit_host(
        _random_crop, blob, outputs=_buffers(blob), name=name, prefix="ImageRandomCrop",
        seed=want_seed(what, seed, name, needs_name=False),
        windows=want_windows(what, num_attempts, random_area, random_aspect_ratio),
    )[0]  # fmt: skip


# --- pixels


_SMALL = 64 * 64  # pixels of images for each of which a call of OpenCV would take longer than the work itself


@lru_cache(maxsize=64)
def _normalizer(channels: int, mean: tuple[float, ...], std: tuple[float, ...], layout: str) -> Normalizer:
    return Normalizer(channels, mean, std, layout)


@host_op("crop_mirror_normalize", per_sample=True)
def _crop_mirror_normalize(
    batch: Any,
    mirrors: Array | None = None,
    *,
    height: int,
    width: int,
    pos_y: float,
    pos_x: float,
    channels: int,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    layout: str,
) -> Array:
    normalize = _normalizer(channels, mean, std, layout)
    made = np.empty((len(batch), *normalize.shape(height, width)), np.float32)
    mirrors = np.zeros(len(batch), np.int8) if mirrors is None else mirrors
    if isinstance(batch, np.ndarray) and batch.shape[1] * batch.shape[2] <= _SMALL:
        y, x = int((batch.shape[1] - height) * pos_y), int((batch.shape[2] - width) * pos_x)
        part = batch[:, y : y + height, x : x + width]
        if mirrors.any():
            part = np.where(mirrors[:, None, None, None] != 0, part[:, :, ::-1], part)
        for c in range(channels):
            target = made[:, c] if layout == "NCHW" else made[..., c]
            target[:] = normalize.table[:, c][part[..., c]]
        return made

    def one(image: Array, out: Array, mirror: Any) -> None:
        normalize(image, out, mirror=bool(mirror), crop_pos_y=pos_y, crop_pos_x=pos_x)

    each(one, batch, made, mirrors)
    return made


def CropMirrorNormalize(
    input_blob: Blob,
    mirror_blob: Blob | None = None,
    color_space: str = "BGR",
    output_layout: str = "NCHW",
    crop_h: int = 0,
    crop_w: int = 0,
    crop_pos_y: float = 0.5,
    crop_pos_x: float = 0.5,
    mean: Sequence[float] = (0.0,),
    std: Sequence[float] = (1.0,),
    output_dtype: dtype = dtypes.float32,
    name: str | None = None,
) -> Blob:
    """Cuts a window from each image, mirrors it where asked to, and normalizes it: (v - mean) / std.

    Args:
      input_blob: uint8 images: tensor buffers (N,), or an array (N, H, W, C).
      mirror_blob: int8 (N,), non-zero for images that are mirrored; made by ``flow.random.CoinFlip`` for example.
      color_space: "BGR" or "RGB" for three channels, "GRAY" for one; nothing is converted.
      output_layout: "NCHW" or "NHWC".
      crop_h, crop_w: size of the window; 0 for the full size, of arrays only.
      crop_pos_y, crop_pos_x: its place: 0 at the top and left, 1 at the bottom and right.
      mean, std: one number, or one per channel.
      output_dtype: float32.
      name: name of the op; made unique when omitted.
    Returns: Blob (N, C, crop_h, crop_w) or (N, crop_h, crop_w, C), float32.
    Raises: DtypeError (a NotImplementedError for arrays of other dtypes), ArgumentError, ShapeError; ImageError at the call whose
      images are smaller than the window.
    Example: >>> x = flow.image.CropMirrorNormalize(images, flow.random.CoinFlip(32), crop_h=224, crop_w=224, mean=[104.0])
    """
    what = label("crop_mirror_normalize", name)
    blob = here(what, want.blob(what, "input_blob", input_blob))
    channels = 1 if want.choice(what, "color_space", color_space, COLOR_SPACES) == "GRAY" else 3
    layout = want.choice(what, "output_layout", output_layout, ("NCHW", "NHWC"))
    height, width = want_int(what, "crop_h", crop_h, least=0), want_int(what, "crop_w", crop_w, least=0)
    for argument, value in (("crop_pos_y", crop_pos_y), ("crop_pos_x", crop_pos_x)):
        want.number(what, argument, value, low=0, high=1)
    means, stds = want_floats(what, "mean", mean, (1, channels)), want_floats(what, "std", std, (1, channels))
    if any(s == 0 for s in stds):
        fail(ArgumentError, what, f"std must not be 0, got {shown(std)}")
    want_dtype(what, "output_dtype", output_dtype, (dtypes.float32,))
    height, width = _window_size(what, blob, channels, color_space, height, width)
    inputs = [blob]
    if mirror_blob is not None:
        inputs.append(_want_a_number_each(what, "mirror_blob", mirror_blob, blob))
    n = blob.shape[0]
    shape = (n, channels, height, width) if layout == "NCHW" else (n, height, width, channels)
    return emit_host(
        _crop_mirror_normalize, *inputs, outputs=[(shape, dtypes.float32)], name=name, prefix="CropMirrorNormalize",
        height=height, width=width, pos_y=float(crop_pos_y), pos_x=float(crop_pos_x), channels=channels, mean=means, std=stds,
        layout=layout,
    )[0]  # fmt: skip


def _window_size(what: str, blob: Blob, channels: int, color_space: str, height: int, width: int) -> tuple[int, int]:
    """Size of the windows cut from a batch; 0 means the full size of dense images."""
    if blob.dtype == dtypes.tensor_buffer:
        want_one_axis(what, "input_blob", blob)
        if not (height and width):
            rule = f"crop_h and crop_w must be > 0 for images of any size, got {height} and {width}"
            fail(ArgumentError, what, rule, (blob,), "bring images to one size before, as in flow.image.Resize(images, ...)[0]")
        return height, width
    want_dense(what, "input_blob", blob)
    if blob.dtype != dtypes.uint8:
        fail(PixelDtypeError, what, f"input_blob must be uint8 or of tensor buffers, got {blob.describe()}", (blob,))
    if blob.ndim != 4 or blob.shape[3] != channels:
        fail(ShapeError, what, f"input_blob must be (N, H, W, {channels}) for color_space={color_space!r}", (blob,))
    return min(height or blob.shape[1], blob.shape[1]), min(width or blob.shape[2], blob.shape[2])


class PixelDtypeError(DtypeError, NotImplementedError):
    """Images of a dtype that the op does not take."""


def _want_a_number_each(what: str, argument: str, value: Any, batch: Blob) -> Blob:
    blob = want_dense(what, argument, value)
    if blob.dtype != dtypes.int8 or blob.shape != batch.shape[:1]:
        error = ShapeError if blob.dtype == dtypes.int8 else DtypeError
        rule = f"{argument} must be int8 [{batch.shape[0]}], one number per image, got {blob.describe()}"
        fail(error, what, rule, (batch, blob))
    return blob


@host_op("image_batch_align")
def _batch_align(batch: Sequence[Array], *, shape: tuple[int, ...], dtype: np.dtype, alignment: int, fixed: bool) -> Array:
    return images.batch_align([images.check(image) for image in batch], shape, dtype, alignment, fixed=fixed)


def batch_align(images: Blob, shape: Sequence[int], dtype: dtype, alignment: int, name: str | None = None) -> Blob:
    """Puts images of any sizes into one array: each at the top left, zeros around it. The array's size varies from call to call.

    Args:
      images: images, tensor buffers (N,).
      shape: (H, W, C), a bound: H * W of the result does not exceed H * W of it.
      dtype: uint8 or float32.
      alignment: height and width are multiples of it; 0, or a power of two.
      name: name of the op; made unique when omitted.
    Returns: Blob of declared shape (N, H, W, C), whose true height and width are the largest of the batch, rounded up.
    Raises: ArgumentError, DtypeError; ImageError at the call whose images exceed the bound.
    Example: >>> x = flow.image.batch_align(images, shape=(800, 1344, 3), dtype=flow.float, alignment=32)
    """
    return aligned(images, shape, dtype, alignment, name, dynamic=True)


def aligned(images: Blob, shape: Sequence[int], dtype: dtype, alignment: int, name: str | None, *, dynamic: bool) -> Blob:
    """``batch_align``, of the images' size or, where not ``dynamic``, of the full shape."""
    what = label("image_batch_align", name)
    blob = want_images(what, "images", images)
    sizes, kind = want_sizes(what, "shape", shape, 3), want_dtype(what, "dtype", dtype, PIXELS)
    multiple = want_int(what, "alignment", alignment, least=0)
    if multiple & (multiple - 1):
        fail(ArgumentError, what, f"alignment must be 0 or a power of two, got {alignment}")
    return emit_host(
        _batch_align, blob, outputs=[((*blob.shape, *sizes), kind)], name=name, prefix="ImageBatchAlign", is_dynamic=dynamic,
        shape=sizes, dtype=kind.numpy_dtype, alignment=multiple, fixed=not dynamic,
    )[0]  # fmt: skip


@host_op("image_normalize", per_sample=True)
def _normalize(batch: Sequence[Array], *, mean: tuple[float, ...], std: tuple[float, ...]) -> list[Array]:
    def one(image: Array) -> Array:
        if images.check(image, dtypes=(np.float32, np.float64)).shape[2] != len(mean):
            raise ImageError(f"is an image {image.shape}; mean and std have {len(mean)} entries, one per channel")
        return images.normalize(image, mean, std)

    return each(one, batch)


def normalize(image: Blob, std: Sequence[float], mean: Sequence[float], name: str | None = None) -> Blob:
    """(v - mean) / std of each pixel; ``std`` comes first.

    Args:
      image: images of a floating dtype, tensor buffers (N,).
      std, mean: one number per channel.
      name: name of the op; made unique when omitted.
    Returns: tensor buffers (N,).
    Raises: ArgumentError, DtypeError; ImageError at the call whose images have other channels, or are integers.
    Example: >>> x = flow.image.normalize(images, std=(57.4, 57.1, 58.4), mean=(102.9, 115.9, 122.7))
    """
    what = label("image_normalize", name)
    blob = want_images(what, "image", image)
    stds = want_floats(what, "std", std, (1, 3))
    means = want_floats(what, "mean", mean, (len(stds),))
    if any(s == 0 for s in stds):
        fail(ArgumentError, what, f"std must not be 0, got {shown(std)}")
    return emit_host(_normalize, blob, outputs=_buffers(blob), name=name, prefix="ImageNormalize", mean=means, std=stds)[0]


# --- mirrored

FLIP_CODES = (0, 1, 16, 17)


def with_flip_code(what: str, flip_code: Any, batch: Blob) -> tuple[list[Blob], dict[str, Any]]:
    """The flip code as a further input, or as an attribute."""
    if isinstance(flip_code, Blob):
        return [_want_a_number_each(what, "flip_code", flip_code, batch)], {"code": None}
    if isinstance(flip_code, bool) or not isinstance(flip_code, (int, np.integer)) or flip_code not in FLIP_CODES:
        fail(
            ArgumentError, what, f"flip_code must be 0 (none), 1 (horizontal), 16 (vertical) or 17 (both), got {shown(flip_code)}"
        )
    return [], {"code": int(flip_code)}


def codes(count: int, given: Sequence[Array], code: int | None) -> list[int]:
    """The flip code of every sample."""
    return [int(c) for c in given[0]] if code is None else [code] * count


@host_op("image_flip", per_sample=True)
def _flip(batch: Sequence[Array], *given: Array, code: int | None) -> list[Array]:
    return each(lambda image, c: images.flip(images.check(image), c), batch, codes(len(batch), given, code))


def flip(image: Blob, flip_code: int | Blob, name: str | None = None) -> Blob:
    """Mirrors images.

    Args:
      image: images, tensor buffers (N,).
      flip_code: 0 not at all, 1 left and right, 16 top and bottom, 17 both; one int for all images, or an int8 Blob (N,).
      name: name of the op; made unique when omitted.
    Returns: tensor buffers (N,).
    Raises: ArgumentError, DtypeError.
    Example: >>> mirrored = flow.image.flip(images, flow.random.CoinFlip(8))
    """
    what = label("image_flip", name)
    blob = want_images(what, "image", image)
    more, attrs = with_flip_code(what, flip_code, blob)
    return emit_host(_flip, blob, *more, outputs=_buffers(blob), name=name, prefix="ImageFlip", **attrs)[0]


crop_mirror_normalize = CropMirrorNormalize
resize = Resize
image_batch_align = batch_align
image_decode = decode
image_flip = flip
image_normalize = normalize
image_random_crop = random_crop
image_resize = Resize
image_target_resize = target_resize
