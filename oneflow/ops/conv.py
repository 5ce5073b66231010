"""Convolution and its transpose, and bias_add."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._base.jax import lax
from .._base.refuse import shown, warn
from ..errors import ArgumentError, JobWarning, ShapeError
from ..graph.node import Blob
from . import slicing
from ._arrays import Array, label, widen
from ._emit import emit, fail, op, want, with_moved_axis
from ._int8 import CHANNELWISE, CONVOLUTION
from ._native_conv import NATIVE, NATIVE_TRANSPOSED
from ._window import FORMATS, Padding, convolved, must_fit, sides, spatial, spec, want_format, want_padding, want_positive
from .array import concat

Ints = int | Sequence[int]


# The only lowering; compiler/batch_slices.py chooses the layout and the slices of the batch for CPUs.
def _conv(
    x: Array,
    w: Array,
    *,
    strides: tuple[int, ...],
    padding: Padding,
    dilations: tuple[int, ...],
    groups: int,
    x_spec: str,
    w_spec: str,
) -> Array:
    space = [w_spec.index(axis) for axis in x_spec if axis not in "NC"]
    kernel = [w.shape[i] for i in space]
    pads = sides(padding, [x.shape[x_spec.index(axis)] for axis in x_spec if axis not in "NC"], kernel, strides, dilations)
    given: Any = pads
    if not all(isinstance(number, int) for pair in pads for number in pair):  # open sizes, of which JAX takes the name alone
        given = "SAME" if padding == "SAME_UPPER" else padding
    return convolved(x, w, strides, given, dilations, (x_spec, w_spec, x_spec), groups)


def _channels_last(attrs: Mapping[str, Any], rank: int) -> Mapping[str, Any] | None:
    x_spec = attrs["x_spec"]
    return {**attrs, "x_spec": x_spec[0] + x_spec[2:] + "C"} if x_spec[1] == "C" else None


_FACTS: dict[str, Any] = {"batch_inputs": (0,), "channels_last": _channels_last, "heavy": True, "native": NATIVE,
                          "zeros": "any", "int8": CONVOLUTION, "adds_up": lambda attrs, shapes: True}  # fmt: skip
_CONV = {n: op(f"conv{n}d", autocast="always", **_FACTS)(_conv) for n in FORMATS}


def convolve(
    what: str,
    x: Blob,
    w: Blob,
    n: int,
    strides: Ints,
    padding: Any,
    data_format: str,
    dilations: Ints | None,
    groups: int,
    name: str | None,
    *,
    weight_first: bool | None = None,
) -> Blob:
    """Checks the arguments that all convolutions share, and adds the op. ``weight_first``: the weight's layout, if not x's."""
    channels_first = want_format(what, data_format, n)
    weight_first = channels_first if weight_first is None else weight_first
    want.floating(what, want.blob(what, "input", x))
    want.same_dtype(what, (x, want.blob(what, "filters", w)))
    for blob, argument in ((x, "input"), (w, "filters")):
        if blob.ndim != n + 2:
            fail(ShapeError, what, f"{argument} must have rank {n + 2}, got rank {blob.ndim}", (x, w))
    stride = want_positive(what, "strides", strides, n)
    dilation = want_positive(what, "dilations", 1 if dilations is None else dilations, n)
    pads = want_padding(what, padding, n, channels_first)
    channels, fan = x.shape[1 if channels_first else -1], w.shape[1 if weight_first else -1]
    groups = want_groups(what, groups, channels, w.shape[0])
    if fan * groups != channels:
        rule = f"filters.shape[{1 if weight_first else n + 1}] must be input channels / groups = {channels} / {groups}, got {fan}"
        hint = f"filters are laid out as {spec(n, 'O', 'I', weight_first)} when data_format is {shown(data_format)}"
        fail(ShapeError, what, rule, (x, w), hint)
    if channels_first and n == 2 and x.shape[1] == x.shape[2] >= 16 and x.shape[3] in (1, 3):
        rule = f"{what}: input {x.shape} is (N, C, H, W) here, and looks like images whose channels come last, (N, H, W, C)"
        warn(JobWarning, f'{rule}\n  try        data_format="NHWC", or flow.transpose(images, [0, 3, 1, 2]) first')
    must_fit(what, x, channels_first, pads, spatial(w.shape, weight_first), stride, dilation)
    return emit(
        _CONV[n], x, w, name=name, strides=stride, padding=pads, dilations=dilation, groups=groups,
        x_spec=spec(n, "N", "C", channels_first), w_spec=spec(n, "O", "I", weight_first),
    )  # fmt: skip


def want_groups(what: str, groups: Any, channels: int, filters: int) -> int:
    """The number of groups, which must divide both."""
    groups = want.integer(what, "groups", groups, 1)
    if channels % groups or filters % groups:
        fail(ArgumentError, what, f"groups={groups} must divide the input's channels ({channels}) and the filters ({filters})")
    return groups


def conv1d(
    input: Blob,
    filters: Blob,
    strides: Ints,
    padding: Any,
    data_format: str = "NCW",
    dilations: Ints | None = None,
    groups: int = 1,
    name: str | None = None,
) -> Blob:
    """Cross-correlation over one spatial axis, without bias.

    Args: those of ``conv2d``, with filters of shape (O, C / groups, k), or (O, k, C / groups) for "NWC".
    Returns: Blob (N, O, out) or (N, out, O).
    Raises: ArgumentError, ShapeError, DtypeError.
    Example: >>> y = flow.nn.conv1d(x, w, strides=1, padding="SAME")   # (8, 4, 100), (16, 4, 3) -> (8, 16, 100)
    """
    return convolve(label("conv1d", name), input, filters, 1, strides, padding, data_format, dilations, groups, name)


def conv2d(
    input: Blob,
    filters: Blob,
    strides: Ints,
    padding: Any,
    data_format: str = "NCHW",
    dilations: Ints | None = None,
    groups: int = 1,
    name: str | None = None,
) -> Blob:
    """Cross-correlation over two spatial axes, without bias.

    Args:
      input: (N, C, H, W), or (N, H, W, C) for "NHWC"; floating.
      filters: (O, C / groups, kh, kw), or (O, kh, kw, C / groups) for "NHWC"; input's dtype.
      strides: an int or a pair, > 0.
      padding: "VALID": none. "SAME" = "SAME_LOWER": the output has ceil(size / stride) elements, an odd total pads
        more before; "SAME_UPPER" more after. Or an entry for each axis of the input, an int or (before, after).
      data_format: "NCHW" or "NHWC".
      dilations: distance between the kernel's elements: an int or a pair > 0; None means 1.
      groups: the channels are split into this many groups, each with its share of the filters.
      name: name of the op.
    Returns: Blob (N, O, out_h, out_w) or (N, out_h, out_w, O); an unpadded axis has
      floor((size - (k - 1) * dilation - 1) / stride) + 1 elements.
    Raises: ArgumentError (padding, data_format, strides, groups), ShapeError (ranks, channels, a window that does not
      fit), DtypeError.
    Example: >>> y = flow.nn.conv2d(x, w, strides=1, padding="SAME")   # (8, 3, 32, 32), (16, 3, 5, 5) -> (8, 16, 32, 32)
    """
    return convolve(label("conv2d", name), input, filters, 2, strides, padding, data_format, dilations, groups, name)


def conv3d(
    input: Blob,
    filters: Blob,
    strides: Ints,
    padding: Any,
    data_format: str = "NCDHW",
    dilations: Ints | None = None,
    groups: int = 1,
    name: str | None = None,
) -> Blob:
    """Cross-correlation over three spatial axes, without bias.

    Args: those of ``conv2d``, with filters (O, C / groups, kd, kh, kw), or (O, kd, kh, kw, C / groups) for "NDHWC".
    Returns: Blob (N, O, d, h, w) or (N, d, h, w, O).
    Raises: ArgumentError, ShapeError, DtypeError.
    Example: >>> y = flow.nn.conv3d(x, w, strides=2, padding="VALID")   # (2, 1, 9, 9, 9), (4, 1, 3, 3, 3) -> (2, 4, 4, 4, 4)
    """
    return convolve(label("conv3d", name), input, filters, 3, strides, padding, data_format, dilations, groups, name)


def compat_conv2d(
    input: Blob,
    filters: Blob,
    strides: Ints,
    padding: str,
    data_format: str = "NCHW",
    dilations: Ints | None = None,
    groups: int = 1,
    name: str | None = None,
) -> Blob:
    """``conv2d`` whose "SAME" is "SAME_UPPER": an odd total of padding adds more after, as in TensorFlow.

    Args, Returns, Raises: those of ``conv2d``.
    Example: >>> y = flow.nn.compat_conv2d(x, w, strides=2, padding="SAME")
    """
    if isinstance(padding, str) and padding.upper() == "SAME":
        padding = "SAME_UPPER"
    return convolve(label("compat_conv2d", name), input, filters, 2, strides, padding, data_format, dilations, groups, name)


# --- transposed


def _conv_transpose(
    x: Array,
    w: Array,
    *,
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    pad_low: tuple[int, ...],
    pad_high: tuple[int, ...],
    x_spec: str,
    w_spec: str,
) -> Array:
    """The gradient of a convolution with that padding, whose result has x's sizes: x dilated by the strides, kernel turned.

    A negative ``pad_high`` is what the convolution has no window for, at the end.
    """
    space = [axis for axis in x_spec if axis not in "NC"]
    turned = lax.rev(w, [w_spec.index(axis) for axis in space])
    pads = []
    for i, axis in enumerate(space):
        extent = (w.shape[w_spec.index(axis)] - 1) * dilations[i] + 1
        pads.append((extent - 1 - pad_low[i], extent - 1 - pad_high[i]))
    return lax.conv_general_dilated(
        x,
        turned,
        (1,) * len(space),
        pads,
        lhs_dilation=strides,
        rhs_dilation=dilations,
        dimension_numbers=(x_spec, w_spec, x_spec),
    )


_TRANSPOSED_FACTS: dict[str, Any] = {"batch_inputs": (0,), "channels_last": _channels_last, "heavy": True,
                                     "autocast": "always", "native": NATIVE_TRANSPOSED}  # fmt: skip
_CONV_TRANSPOSE = {n: op(f"conv{n}d_transpose", **_TRANSPOSED_FACTS)(_conv_transpose) for n in FORMATS}


def _want_transpose(
    what: str, value: Any, filter: Any, input: Any, filters: Any, strides: Any, dilations: Any, data_format: Any
) -> tuple[Blob, Blob, tuple[int, ...], tuple[int, ...], bool]:
    for old, new, names in ((value, input, ("value", "input")), (filter, filters, ("filter", "filters"))):
        if (old is None) == (new is None):
            fail(ArgumentError, what, f"exactly one of {names[0]} and {names[1]} must be given (they are the same argument)")
    x = want.blob(what, "value", input if value is None else value)
    w = want.blob(what, "filter", filters if filter is None else filter)
    channels_first = want_format(what, data_format, 2)
    want.floating(what, x)
    want.same_dtype(what, (x, w))
    if x.ndim != 4 or w.ndim != 4:
        fail(ShapeError, what, f"value and filter must have rank 4, got {x.ndim} and {w.ndim}", (x, w))
    if strides is None:
        fail(ArgumentError, what, "strides is required", (x, w), "pass strides=2, or a pair")
    channels = x.shape[1 if channels_first else -1]
    if w.shape[0] != channels:
        hint = f"filters are laid out as {'(in, out, kh, kw)' if channels_first else '(in, kh, kw, out)'}"
        fail(ShapeError, what, f"filter.shape[0] must be the input's channels, {channels}, got {w.shape[0]}", (x, w), hint)
    stride = want_positive(what, "strides", strides, 2)
    return x, w, stride, want_positive(what, "dilations", 1 if dilations is None else dilations, 2), channels_first


def conv2d_transpose(
    value: Blob | None = None,
    filter: Blob | None = None,
    output_shape: Sequence[int] | None = None,
    strides: Ints | None = None,
    padding: str = "VALID",
    data_format: str = "NCHW",
    name: str | None = None,
    input: Blob | None = None,
    filters: Blob | None = None,
    dilations: Ints | None = None,
) -> Blob:
    """The gradient of conv2d with respect to its input, as an op: sizes grow by the strides.

    Args:
      value or input: (N, C, H, W), or (N, H, W, C) for "NHWC"; floating. Exactly one of the two.
      filter or filters: (C, O, kh, kw), or (C, kh, kw, O) for "NHWC". Exactly one of the two.
      output_shape: the result's four sizes in the order of data_format; the spatial ones count, the channel entry is
        ignored (the filter defines O).
      strides: an int or a pair > 0; required.
      padding: "VALID", or "SAME", which crops an odd total more at the end.
      data_format: "NCHW" or "NHWC".
      dilations: an int or a pair > 0; None means 1.
    Returns: Blob (N, O, *sizes) or (N, *sizes, O); positions that no window covers are 0. Where a call feeds another size than
      the declared one, the result's differs by as many strides.
    Raises: ArgumentError, ShapeError (a convolution of output_shape has other sizes than value), DtypeError.
    Example: >>> y = flow.nn.conv2d_transpose(x, w, (8, 3, 28, 28), strides=2, padding="SAME")   # x: (8, 16, 14, 14)
    """
    what = label("conv2d_transpose", name)
    x, w, stride, dilation, first = _want_transpose(what, value, filter, input, filters, strides, dilations, data_format)
    if output_shape is None:
        fail(ArgumentError, what, "output_shape is required", (x, w), f"pass the four sizes in the order of {data_format}")
    shape = want.ints(what, "output_shape", output_shape)
    if len(shape) != 4 or shape[0] != x.shape[0]:
        fail(
            ShapeError,
            what,
            f"output_shape must be four sizes, the first one the batch size {x.shape[0]}, got {shown(output_shape)}",
            (x, w),
        )
    name_of_padding = str(padding).upper()
    if name_of_padding not in ("VALID", "SAME"):
        fail(ArgumentError, what, f'padding must be "VALID" or "SAME", got {shown(padding)}')
    sizes, old, kernel = spatial(shape, first), spatial(x.shape, first), spatial(w.shape, first)
    pad_low = []
    for size, o, k, s, d in zip(sizes, old, kernel, stride, dilation, strict=True):
        extent = (k - 1) * d + 1
        same = name_of_padding == "SAME"
        if (size + s - (1 if same else extent)) // s != o:
            made = (
                f"a {name_of_padding} convolution of {sizes} with strides {stride} and window {kernel} does not result in {old}"
            )
            fail(ShapeError, what, f"output_shape {tuple(shape)} does not fit: {made}", (x, w))
        pad_low.append(max(0, (o - 1) * s + extent - size) // 2 if same else 0)
    return transposed(x, w, stride, dilation, pad_low, sizes, first, name)


def torch_conv2d_transpose(
    value: Blob | None = None,
    filter: Blob | None = None,
    output_padding: Sequence[int] | None = None,
    strides: Ints | None = None,
    padding_needed: Sequence[int] | None = None,
    data_format: str = "NCHW",
    name: str | None = None,
    input: Blob | None = None,
    filters: Blob | None = None,
    dilations: Ints | None = None,
) -> Blob:
    """conv2d_transpose with PyTorch's parameters for the size.

    Args: those of ``conv2d_transpose``, except
      padding_needed: the total cropped from each spatial axis, even: twice PyTorch's ``padding``; required.
      output_padding: the number of elements added at the end of each spatial axis; None means (0, 0).
    Returns: Blob whose sizes are (size - 1) * stride - padding_needed + (k - 1) * dilation + 1 + output_padding.
    Raises: ArgumentError, ShapeError, DtypeError.
    Example: >>> y = flow.nn.torch_conv2d_transpose(x, w, strides=2, padding_needed=(2, 2), output_padding=(1, 1))
    """
    what = label("torch_conv2d_transpose", name)
    x, w, stride, dilation, first = _want_transpose(what, value, filter, input, filters, strides, dilations, data_format)
    if padding_needed is None:
        fail(ArgumentError, what, "padding_needed is required", (x, w), "pass padding_needed=(0, 0), or twice PyTorch's padding")
    crop = want.ints(what, "padding_needed", padding_needed, 2)
    extra = want.ints(what, "output_padding", 0 if output_padding is None else output_padding, 2)
    if any(c < 0 or c % 2 for c in crop) or any(e < 0 for e in extra):
        fail(
            ArgumentError,
            what,
            f"padding_needed must be even and output_padding >= 0, got {shown(padding_needed)} and {shown(output_padding)}",
        )
    sizes = tuple(
        (o - 1) * s - c + (k - 1) * d + 1 + e
        for o, s, c, k, d, e in zip(spatial(x.shape, first), stride, crop, spatial(w.shape, first), dilation, extra, strict=True)
    )
    if min(sizes) <= 0:
        fail(ShapeError, what, f"the result would have sizes {sizes}", (x, w), "crop less with padding_needed")
    return transposed(x, w, stride, dilation, [c // 2 for c in crop], sizes, first, name)


def _pieces(x: Blob, axis: int, count: int) -> list[Blob]:
    """Equal parts along an axis."""
    each = x.shape[axis] // count
    begins = ([0] * axis + [i * each] + [0] * (x.ndim - axis - 1) for i in range(count))
    return [slicing.slice(x, begin, [each if a == axis else -1 for a in range(x.ndim)]) for begin in begins]


def transposed(
    x: Blob,
    w: Blob,
    strides: Sequence[int],
    dilations: Sequence[int],
    pad_low: Sequence[int],
    sizes: Sequence[int],
    first: bool,
    name: Any,
    groups: int = 1,
) -> Blob:
    """A transposed convolution of x, whose result has the spatial ``sizes``. ``first``: channels come before space.

    Where a call feeds another size than the declared one, the result's differs by as many strides.
    """
    n = len(strides)
    if groups > 1:
        channels = 1 if first else x.ndim - 1
        parts = zip(_pieces(x, channels, groups), _pieces(w, 0, groups), strict=True)
        made = [transposed(own, weight, strides, dilations, pad_low, sizes, first, None) for own, weight in parts]
        return concat(made, channels, name=name)
    axes = zip(spatial(x.shape, first), spatial(w.shape, first), strides, dilations, pad_low, sizes, strict=True)
    pad_high = tuple((o - 1) * s + (k - 1) * d + 1 - low - size for o, k, s, d, low, size in axes)
    return emit(
        _CONV_TRANSPOSE[n], x, w, name=name, strides=tuple(strides), dilations=tuple(dilations), pad_low=tuple(pad_low),
        pad_high=pad_high, x_spec=spec(n, "N", "C", first), w_spec=spec(n, "I", "O", first),
    )  # fmt: skip


# --- bias


def _bias_add_grad(inputs: Any, outputs: Any, cotangents: Any, *, axis: int) -> tuple[Array, Array]:
    """16-bit gradients are summed in float32."""
    (dy,) = cotangents
    wide = widen(dy)
    total = lax.reduce_sum(wide, [a for a in range(dy.ndim) if a != axis])
    return dy, lax.convert_element_type(total, inputs[1].dtype)


@op(
    "bias_add", grad=_bias_add_grad, batch_inputs=(0,), autocast="between", zeros="all", int8=CHANNELWISE,
    adds_up=lambda attrs, shapes: attrs["axis"] != 0,
    channels_last=with_moved_axis, lstm="sum",
)  # fmt: skip
def _bias_add(x: Array, bias: Array, *, axis: int) -> Array:
    return lax.add(x, lax.broadcast_in_dim(bias, x.shape, (axis,)))


def want_bias(what: str, value: Blob, bias: Blob, data_format: str | None) -> int:
    """The axis along which a bias is added."""
    want.rank(what, want.blob(what, "value", value), 2)
    want.same_dtype(what, (value, want.blob(what, "bias", bias)))
    channels_first = data_format is None or (isinstance(data_format, str) and data_format.startswith("NC"))
    channels_last = isinstance(data_format, str) and data_format.startswith("N") and data_format.endswith("C")
    if not channels_first and not channels_last:
        hint = f'data_format must be None, "NC..." or "N...C", got {shown(data_format)}'
        fail(ArgumentError, what, hint, (value, bias), '"NCHW" for axis 1, "NHWC" or "NHC" for the last axis')
    axis = 1 if channels_first else value.ndim - 1
    if bias.shape != (value.shape[axis],):
        fail(
            ShapeError,
            what,
            f"bias must have shape ({value.shape[axis]},), the size of value's axis {axis}, got {bias.shape}",
            (value, bias),
        )
    return axis


def bias_add(value: Blob, bias: Blob, data_format: str | None = None, name: str | None = None) -> Blob:
    """Adds a vector along the channel axis.

    Args:
      value: rank >= 2.
      bias: (C,), value's dtype.
      data_format: None or "NC..." means axis 1; "N...C" the last axis.
      name: name of the op.
    Returns: Blob of value's shape and dtype.
    Raises: ArgumentError (data_format), ShapeError, DtypeError.
    Example: >>> y = flow.nn.bias_add(x, b)   # (8, 16, 14, 14), (16,) -> (8, 16, 14, 14)
    """
    axis = want_bias(label("bias_add", name), value, bias, data_format)
    return emit(_bias_add, value, bias, name=name, axis=axis)
