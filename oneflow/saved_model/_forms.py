"""Ops of this library as ops of OneFlow's registry: one rule per op, as far as the registry has one that computes the same.

The spelling of type and argument names is that of 0.6. Ops without a rule, and uses that the registry cannot express, keep this
library's name, with ``PREFIX`` in front.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..graph.node import Node
from ..user_op.registry import FIRST, LAST
from ._values import flow_dtype

PREFIX = "oneflow_jax."


@dataclass(frozen=True, slots=True)
class UserOp:
    """An op of the registry: its type, the logical names of the Blobs that each argument is bound to, and its attributes.

    ``suffix`` is added to the node's name, for a node that is written as several ops.
    """

    type_name: str
    inputs: Mapping[str, Sequence[str]]
    outputs: Mapping[str, Sequence[str]]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    suffix: str = ""


Rule = Callable[[Node], Sequence[UserOp] | None]
_RULES: dict[str, Rule] = {}


def forms_of(node: Node) -> Sequence[UserOp] | None:
    """The ops of the registry that compute what a node computes, in order; None where there are none."""
    rule = _RULES.get(node.op.name)
    return None if rule is None else rule(node)


def _names(node: Node) -> tuple[list[str], list[str]]:
    return [b.logical_blob_name for b in node.inputs], [b.logical_blob_name for b in node.outputs]


def _one(node: Node, type_name: str, inputs: str, output: str, **attributes: Any) -> list[UserOp]:
    """One op with the node's inputs under these names, in order; ``in*`` takes all of them."""
    given, made = _names(node)
    if inputs.endswith("*"):
        bound: dict[str, Sequence[str]] = {inputs[:-1]: given}
    else:
        bound = {name: [blob] for name, blob in zip(inputs.split(), given, strict=True)}
    outputs: dict[str, Sequence[str]] = (
        {output[:-1]: made} if output.endswith("*") else {name: [b] for name, b in zip(output.split(), made, strict=True)}
    )
    return [UserOp(type_name, bound, outputs, attributes)]


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        _RULES.update(dict.fromkeys(names, function))
        return function

    return register


def _plain(name: str, type_name: str, inputs: str, output: str, **attributes: str) -> None:
    """A rule that only renames: each attribute of the registry's op is the one of the node that is named for it."""
    _RULES[name] = lambda node: _one(
        node, type_name, inputs, output, **{theirs: node.attrs[ours] for theirs, ours in attributes.items()}
    )


# --- elementwise

for _name in (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor",
    "lgamma", "log", "log1p", "log_sigmoid", "negative", "reciprocal", "reciprocal_no_nan", "relu", "rint", "round", "rsqrt",
    "sigmoid_v2", "sign", "sin", "sinh", "softplus", "sqrt", "square", "tan", "tanh",
):  # fmt: skip
    _plain(_name, _name, "x", "y")
for _name in ("sigmoid", "gelu", "hardsigmoid", "hardswish", "identity", "amp_white_identity", "gather_nd"):
    _plain(_name, _name, "params indices" if _name == "gather_nd" else "in", "out")
for _name, _type in {
    "add": "broadcast_add", "subtract": "broadcast_sub", "multiply": "broadcast_mul", "divide": "broadcast_div",
    "minimum": "broadcast_minimum", "maximum": "broadcast_maximum", "mod": "broadcast_floor_mod", "equal": "broadcast_equal",
    "not_equal": "broadcast_not_equal", "greater": "broadcast_greater", "greater_equal": "broadcast_greater_equal",
    "less": "broadcast_less", "less_equal": "broadcast_less_equal", "logical_and": "broadcast_logical_and", "pow": "pow",
    "atan2": "atan2", "floordiv": "floordiv", "xdivy": "xdivy", "xlogy": "xlogy",
}.items():  # fmt: skip
    _plain(_name, _type, "x y", "z")
_plain("add_n", "add_n", "in*", "out")
_plain("identity_n", "tuple_identity", "in*", "out*")
_plain("where", "where", "condition x y", "out")
_plain("prelu", "tf_prelu", "x alpha", "y")
_plain("square_sum", "square_sum", "x", "y")
_plain("bias_add", "bias_add", "a b", "out", axis="axis")
_plain("in_top_k", "in_top_k", "targets predictions", "out", k="k")


@_rule("elu")
def _elu(node: Node) -> list[UserOp]:
    return _one(node, "elu", "in", "out", alpha=float(node.attrs["alpha"]))


@_rule("leaky_relu")
def _leaky_relu(node: Node) -> list[UserOp]:
    return _one(node, "leaky_relu", "x", "y", alpha=float(node.attrs["alpha"]))


@_rule("hardtanh")
def _hardtanh(node: Node) -> list[UserOp]:
    return _one(node, "hardtanh", "in", "out", min_val=float(node.attrs["low"]), max_val=float(node.attrs["high"]))


def _operand(number: Any) -> dict[str, Any] | None:
    if type(number) is int and -(2**63) < number < 2**63:
        return {"has_int_operand": True, "has_float_operand": False, "int_operand": number}
    return {"has_int_operand": False, "has_float_operand": True, "float_operand": number} if type(number) is float else None


@_rule("scalar_add", "scalar_mul")
def _scalar(node: Node) -> list[UserOp] | None:
    operand = _operand(node.attrs["number"])
    return None if operand is None else _one(node, node.op.name, "in", "out", **operand)


@_rule("scalar_sub")
def _scalar_sub(node: Node) -> list[UserOp] | None:
    """x - n as x + (-n), as OneFlow writes it."""
    operand = None if node.attrs["swapped"] or not node.inputs[0].dtype.is_signed else _operand(node.attrs["number"])
    if operand is None:
        return None
    return _one(node, "scalar_add", "in", "out", **{k: v if k.startswith("has") else -v for k, v in operand.items()})


@_rule("power_of_number")
def _power(node: Node) -> list[UserOp] | None:
    operand = _operand(node.attrs["exponent"])
    return None if operand is None else _one(node, "scalar_pow", "in", "out", **operand)


@_rule("cast")
def _cast(node: Node) -> list[UserOp]:
    return _one(node, "cast", "in", "out", dtype=flow_dtype(node.attrs["to"]))


# --- reductions, sorting


@_rule("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_any", "reduce_all")
def _reduce(node: Node) -> list[UserOp] | None:
    axes = node.attrs["axes"]
    if not axes or node.outputs[0].dtype.name == "bool":  # where 0.6's result differs from the registry's
        return None
    return _one(node, node.op.name, "input_tensor", "output_tensor", axis=axes, keepdims=node.attrs["keepdims"])


def _is_last(node: Node) -> bool:
    return bool(node.attrs["axis"] == node.inputs[0].ndim - 1)


@_rule("argsort", "sort")
def _sort(node: Node) -> list[UserOp] | None:
    direction = "DESCENDING" if node.attrs["descending"] else "ASCENDING"
    return (
        _one(node, {"argsort": "arg_sort"}.get(node.op.name, "sort"), "in", "out", direction=direction)
        if _is_last(node)
        else None
    )


@_rule("argmax", "softmax")
def _of_last(node: Node) -> list[UserOp] | None:
    return _one(node, node.op.name, "in", "out") if _is_last(node) else None


@_rule("top_k")
def _top_k(node: Node) -> list[UserOp] | None:
    return _one(node, "top_k", "in", "out", k=node.attrs["k"], sorted=True) if _is_last(node) else None


# --- shapes


@_rule("concat")
def _concat(node: Node) -> list[UserOp] | None:
    if len(node.inputs) < 2:
        return None
    return _one(node, "concat", "in*", "out", axis=node.attrs["axis"], max_dim_size=node.outputs[0].shape[node.attrs["axis"]])


_plain("reshape", "reshape", "in", "out", shape="shape")
_plain("reshape_like", "reshape_like", "in like", "out")
_plain("flatten", "flatten", "in", "out", start_dim="first", end_dim="last")
_plain("expand_dims", "expand_dims", "in", "out", axis="axis")
_plain("squeeze", "squeeze", "in", "out", axes="axes")
_plain("transpose", "transpose", "input", "output", perm="perm")
_plain("broadcast_like", "broadcast_like", "x like", "y", broadcast_axes="axes")


@_rule("slice")
def _slice(node: Node) -> list[UserOp]:
    region = list(node.attrs["slices"])
    region += [(None, None, None)] * (node.inputs[0].ndim - len(region))
    bounds = []
    for size, (begin, end, step) in zip(node.inputs[0].shape, region, strict=True):
        forward = step is None or step > 0
        # bounds outside of the axis are those that are left out
        begin = None if begin is not None and (begin < -size if forward else begin >= size) else begin
        # the end itself is one, too, for what begins at the beginning: of a batch of another size it is all
        beyond = size if forward and begin in (None, 0) else size + 1
        end = None if end is not None and (end >= beyond if forward else end < -size) else end
        bounds.append((
            (0 if forward else LAST) if begin is None else begin,
            (LAST if forward else FIRST) if end is None else end,
            1 if step is None else step,
        ))  # fmt: skip
    start, stop, step = zip(*bounds, strict=True)
    return _one(node, "slice", "x", "y", start=start, stop=stop, step=step)


@_rule("pad")
def _pad(node: Node) -> list[UserOp]:
    before, after = zip(*node.attrs["paddings"], strict=True)
    value = node.attrs["value"]
    kind = "floating" if node.inputs[0].dtype.is_floating_point else "integral"
    return _one(node, "pad", "x", "y", padding_before=before, padding_after=after,
                **{f"{kind}_constant_value": float(value) if kind == "floating" else int(value)})  # fmt: skip


# --- indices, constants


_plain("gather", "gather", "in indices", "out", axis="axis")
_plain("batch_gather", "batch_gather", "in indices", "out")
_plain("dim_gather", "dim_gather", "input index", "output", dim="dim")
_plain("scatter_nd", "scatter_nd", "indices updates", "out", shape="shape")
_plain("unsorted_segment_sum", "unsorted_segment_sum", "data segment_ids", "out", axis="axis", num_segments="count")


@_rule("one_hot")
def _one_hot(node: Node) -> list[UserOp] | None:
    a = node.attrs
    if a["axis"] != node.inputs[0].ndim:
        return None
    to = flow_dtype(a["to"])
    kind, of = ("floating", float) if to.is_floating_point else ("integer", int)
    values = {f"{kind}_on_value": of(a["on"]), f"{kind}_off_value": of(a["off"])}
    return _one(node, "one_hot", "indices", "out", depth=a["depth"], dtype=to, **values)


@_rule("constant")
def _constant(node: Node) -> list[UserOp] | None:
    a = node.attrs
    if not a["shape"] or not isinstance(a["value"], int | float):
        return None
    floating = isinstance(a["value"], float)
    value = {"floating_value": float(a["value"])} if floating else {"integer_value": int(a["value"])}
    return _one(node, "constant", "", "out", is_floating_value=floating, dtype=flow_dtype(a["to"]), shape=a["shape"], **value)


# --- products


@_rule("matmul")
def _matmul(node: Node) -> list[UserOp] | None:
    a, (left, right) = node.attrs, node.inputs
    transposes = {"transpose_a": a["transpose_a"], "transpose_b": a["transpose_b"]}
    if left.ndim == right.ndim:
        kind = "matmul" if left.ndim == 2 else "batch_matmul"
    elif right.ndim == 2 < left.ndim:
        kind = "broadcast_matmul"
    else:
        return None
    return _one(node, kind, "a b", "out", alpha=float(a["alpha"]), **transposes)


@_rule("tril", "fused_scale_tril")
def _tril(node: Node) -> list[UserOp] | None:
    a, values = node.attrs, {}
    for kind, key in (("fill", "fill_value"), ("scale", "scale")):
        if key in a:
            if type(a[key]) not in (int, float):
                return None
            floating = type(a[key]) is float
            values[f"is_floating_{kind}_value"] = floating
            values[f"{'floating' if floating else 'integer'}_{kind}_value"] = a[key]
    return _one(node, node.op.name, "in", "out", diagonal=a["diagonal"], **values)


# --- normalization


def _optional(node: Node, first: Sequence[str]) -> dict[str, Sequence[str]]:
    """The inputs of a normalization, of which gamma and beta may be missing."""
    a = node.attrs
    given, _ = _names(node)
    order = [*first, *(["gamma"] if a["scale"] else []), *(["beta"] if a["center"] else [])]
    return {name: [blob] for name, blob in zip(order, given, strict=True)}


@_rule("layer_norm")
def _layer_norm(node: Node) -> list[UserOp]:
    a = node.attrs
    params = node.inputs[0].ndim - node.inputs[1].ndim if len(node.inputs) > 1 else a["begin"]
    attributes = {"begin_norm_axis": a["begin"], "begin_params_axis": params, "epsilon": float(a["epsilon"])}
    return [UserOp("layer_norm", _optional(node, ["x"]), {"y": _names(node)[1]},
                   {**attributes, "center": a["center"], "scale": a["scale"]})]  # fmt: skip


@_rule("batch_normalization")
def _batch_normalization(node: Node) -> list[UserOp] | None:
    a = node.attrs
    if not (a["scale"] and a["center"]) or any(b.ndim != 1 for b in node.inputs[1:]):
        return None
    attributes = {"axis": a["axis"], "epsilon": float(a["epsilon"]), "training": False, "momentum": 0.0}
    return [UserOp("normalization", _optional(node, ["x", "moving_mean", "moving_variance"]), {"y": _names(node)[1]},
                   attributes)]  # fmt: skip


# --- windows


@_rule("conv1d", "conv2d", "conv3d")
def _conv(node: Node) -> list[UserOp] | None:
    a, weight = node.attrs, node.inputs[1]
    dims = len(a["strides"])
    first = a["x_spec"][1] == "C"
    data_format = "channels_first" if first else "channels_last"
    expected = "OI" + a["x_spec"][2:] if first else "O" + a["x_spec"][1:-1] + "I"
    if a["w_spec"] != expected:
        return None
    kernel = weight.shape[2:] if first else weight.shape[1:-1]
    (source, bound), (out,) = _names(node)
    before: Sequence[UserOp] = ()
    if isinstance(a["padding"], str):
        pads = (0,) * dims
        if a["padding"] != "VALID":
            padded = f"{node.name}-padding/y_0"
            before = [UserOp("same_padding", {"x": [source]}, {"y": [padded]}, {
                "padding": a["padding"].lower(), "data_format": data_format, "kernel_size": kernel, "strides": a["strides"],
                "dilation_rate": a["dilations"]}, "-padding")]  # fmt: skip
            source = padded
    elif all(low == high for low, high in a["padding"]):
        pads = tuple(low for low, _ in a["padding"])
    else:
        return None
    attributes = {
        "filters": weight.shape[0], "padding_before": pads, "data_format": data_format, "kernel_size": kernel,
        "strides": a["strides"], "dilation_rate": a["dilations"], "groups": a["groups"],
    }  # fmt: skip
    return [*before, UserOp(node.op.name, {"in": [source], "weight": [bound]}, {"out": [out]}, attributes)]


@_rule("avg_pool_1d", "avg_pool_2d", "avg_pool_3d", "max_pool_1d", "max_pool_2d", "max_pool_3d")
def _pool(node: Node) -> list[UserOp]:
    a = node.attrs
    known = isinstance(a["padding"], str)
    pads = ((0, 0),) * len(a["ksize"]) if known else a["padding"]
    before, after = zip(*pads, strict=True)
    return _one(
        node, f"tf_{node.op.name}", "x", "y", padding=a["padding"].lower() if known else "customized", padding_before=before,
        padding_after=after, data_format="channels_first" if a["channels_first"] else "channels_last", pool_size=a["ksize"],
        strides=a["strides"], ceil_mode=a["ceil_mode"],
    )  # fmt: skip


@_rule("upsample")
def _upsample(node: Node) -> list[UserOp] | None:
    a = node.attrs
    if a["align_corners"]:
        return None
    height, width = map(float, a["factors"])
    data_format = "channels_first" if a["channels_first"] else "channels_last"
    return _one(node, "upsample", "x", "y", height_scale=height, width_scale=width, data_format=data_format,
                interpolation=a["interpolation"])  # fmt: skip
