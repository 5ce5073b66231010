"""The facts about ops that int8 inference needs (``graph.op.Int8``): what products and grids are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..graph.op import Int8, IntegerGrid, IntegerProduct
from ._window import sides

Shapes = Sequence[tuple[int, ...]]


def _convolution(attrs: Mapping[str, Any], shapes: Shapes) -> IntegerProduct:
    x_spec, w_spec = attrs["x_spec"], attrs["w_spec"]
    space = [axis for axis in x_spec if axis not in "NC"]
    data_perm = tuple(x_spec.index(axis) for axis in ("N", *space, "C"))
    weight_perm = tuple(w_spec.index(axis) for axis in ("O", *space, "I"))
    sizes, kernel = ([shape[spec.index(a)] for a in space] for shape, spec in zip(shapes, (x_spec, w_spec), strict=True))
    padding = tuple((low, high) for low, high in sides(attrs["padding"], sizes, kernel, attrs["strides"], attrs["dilations"]))
    is_last = data_perm == tuple(range(len(x_spec)))
    return IntegerProduct(
        None if is_last else data_perm, weight_perm, attrs["strides"], attrs["dilations"], padding, attrs["groups"]
    )


def _matrices(attrs: Mapping[str, Any], shapes: Shapes) -> IntegerProduct | str:
    if len(shapes[1]) != 2 or attrs["transpose_a"]:
        return "its data is transposed, or its weights are not a matrix"
    if attrs["alpha"] != 1:
        return "alpha is not 1"
    return IntegerProduct(None, (0, 1) if attrs["transpose_b"] else (1, 0))


def _grid(attrs: Mapping[str, Any], shapes: Shapes) -> IntegerGrid:
    exponent = attrs["formula"] == "cambricon"
    return IntegerGrid(attrs["bits"], attrs["scheme"] == "affine" and not exponent, exponent)


CONVOLUTION = Int8("product", _convolution)
MATRICES = Int8("product", _matrices)
GRID = Int8("grid", _grid)
STATISTICS = Int8("statistics", lambda attrs, shapes: not attrs["training"])
CHANNELWISE = Int8("channelwise")
RECTIFY = Int8("rectify")
GATE = Int8("gate")
BOUND = Int8("bound", lambda attrs, shapes: (attrs["low"], attrs["high"]))
RESIDUAL = Int8("residual")
LARGEST = Int8("largest")
