"""Every op type of OneFlow's registry: the names of its inputs, outputs and attributes, and the function that adds it. One table.

``in`` and other keywords of Python are names of inputs, too: rows take them from mappings. Rows of updates, readers, images
and probes of the builder are in ``table_updates``, ``table_data`` and ``table_probes``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base.jax import jax, jnp
from ..errors import ArgumentError
from ..graph.node import Blob
from ..ops import array, binary, constant, elementwise, indexing, masks, nn, norm, reduce, slicing
from ..ops._emit import emit_many, fail
from ..ops.padding import pad, pad_grad
from ..ops.quantization import observe_moving_average, want_grid
from . import table_data as _data  # noqa: F401 - fills the registry
from . import table_probes as _probes  # noqa: F401 - fills the registry
from . import table_updates as _updates  # noqa: F401 - fills the registry
from . import table_windows as _windows  # noqa: F401 - fills the registry
from .gradient import gradient
from .registry import FIRST, LAST, Attributes, Inputs, arrays, as_array, call, emit_arrays, row

# --- elementwise

_UNARY = """abs acos acosh asin asinh atan atanh ceil cos cosh erf erfc exp expm1 floor lgamma log log1p log_sigmoid negative
reciprocal reciprocal_no_nan rint round rsqrt sigmoid_v2 sign sin sinh softplus sqrt square tan tanh""".split()
for _type in _UNARY:
    _forward = call(f"math.{_type}", "x")
    row(f"{_type} (x) -> (y)", _forward)
    row(f"{_type}_grad (x, dy) -> (dx)", gradient(_forward, {"x": "x"}, ["x"]))

for _type in ("pow", "atan2", "floordiv", "xdivy", "xlogy"):
    _forward = call(f"math.{_type}", "x", "y")
    row(f"{_type} (x, y) -> (z)", _forward)
    for _side in ("x", "y"):
        row(f"{_type}_{_side}_grad (x, y, dz) -> (d{_side})", gradient(_forward, {"x": "x", "y": "y"}, [_side], "dz"))

for _type in ("maximum", "minimum"):
    _forward = call(f"math.{_type}", "x", "y")
    row(f"elementwise_{_type} (x, y) -> (z)", _forward)
    row(f"elementwise_{_type}_backward (dz, x, y) -> (dx?, dy?)", gradient(_forward, {"x": "x", "y": "y"}, ["x", "y"], "dz"))

for _type, _function in {
    "broadcast_add": "add", "broadcast_sub": "subtract", "broadcast_mul": "multiply", "broadcast_div": "divide",
    "broadcast_minimum": "minimum", "broadcast_maximum": "maximum", "broadcast_floor_mod": "mod", "broadcast_equal": "equal",
    "broadcast_not_equal": "not_equal", "broadcast_greater": "greater", "broadcast_greater_equal": "greater_equal",
    "broadcast_less": "less", "broadcast_less_equal": "less_equal", "broadcast_logical_and": "logical_and",
}.items():  # fmt: skip
    row(f"{_type} (x, y) -> (z)", call(f"math.{_function}", "x", "y"))
row("broadcast_div_grad (y, z, dz) -> (dy)", arrays(lambda y, z, dz: _summed_to(-dz * z / y, y.shape), "y", "z", "dz"))
row("multiply (x, y) -> (out)", call("math.multiply", "x", "y"))

for _type, _function in {"add": "add", "sub": "subtract", "mul": "multiply", "div": "divide"}.items():
    row(f"scalar_{_type}_by_tensor (x, scalar) -> (y)", call(f"math.{_function}", "x", "scalar"))


def _operand(a: Attributes) -> int | float:
    return a["int_operand"] if a["has_int_operand"] else a["float_operand"]


_OPERAND = "{has_int_operand: bool; has_float_operand: bool; int_operand: int64 = 0; float_operand: double = 0.0}"
row(f"scalar_add (in) -> (out) {_OPERAND}", lambda i, a, n: binary.add(i["in"], _operand(a), name=n))
row(f"scalar_mul (in) -> (out) {_OPERAND}", lambda i, a, n: binary.multiply(i["in"], _operand(a), name=n))
row("scalar_pow (in) -> (out) {exponent: double}", call("math.pow", "in", "exponent"))
row("scalar_pow_grad (x, dy) -> (dx) {exponent: double}",
    gradient(lambda i, a, n: binary.pow(i["x"], a["exponent"]), {"x": "x"}, ["x"]))  # fmt: skip

for _type, _path, _in, _out, _attributes, _names in [
    ("relu", "nn.relu", "in", "out", "", ""), ("ccrelu", "nn.relu", "in", "out", "", ""),
    ("sigmoid", "math.sigmoid", "in", "out", "", ""), ("gelu", "math.gelu", "in", "out", "", ""),
    ("hardsigmoid", "nn.hardsigmoid", "in", "out", "", ""), ("hardswish", "nn.hardswish", "in", "out", "", ""),
    ("elu", "nn.elu", "in", "out", "alpha: double", "alpha"), ("leaky_relu", "nn.leaky_relu", "x", "y", "alpha: float", "alpha"),
    ("hardtanh", "nn.hardtanh", "in", "out", "min_val: double; max_val: double", "min_val max_val"),
]:  # fmt: skip
    _forward = call(_path, _in, *_names.split())
    _braces = f" {{{_attributes}}}" if _attributes else ""
    row(f"{_type} ({_in}) -> ({_out}){_braces}", _forward)
    if _type in ("relu", "ccrelu", "hardtanh"):  # the output stands for the input: inside the bounds they are equal
        row(f"{_type}_grad (y, dy) -> (dx){_braces}", gradient(_forward, {_in: "y"}, [_in]))
    elif _type == "sigmoid":
        row("sigmoid_grad (y, dy) -> (dx)", call("math.sigmoid_grad", "y", "dy"))
    else:
        row(f"{_type}_grad (x, dy) -> (dx){_braces}", gradient(_forward, {_in: "x"}, [_in]))
row("cpu_only_relu_test (in) -> (out)", call("nn.relu", "in"))
_prelu = lambda i, a, n: nn.parametric_relu(i["x"], i["alpha"], n)  # noqa: E731
row("prelu (x, alpha) -> (y)", _prelu)
row("prelu_grad (dy, x, alpha) -> (dx, alpha_diff)", gradient(_prelu, {"x": "x", "alpha": "alpha"}, ["x", "alpha"]))


def _bounds(x: Blob, a: Attributes) -> tuple[Any, Any]:
    kind = "floating" if x.dtype.is_floating_point else "integral"
    return a.get(f"{kind}_min"), a.get(f"{kind}_max")


_LOW, _HIGH = "floating_min: double = 0.0; integral_min: int64 = 0", "floating_max: double = 0.0; integral_max: int64 = 0"
_clip = lambda i, a, n: elementwise.clip_by_value(i["x"], *_bounds(i["x"], a), name=n)  # noqa: E731
for _type, _attributes in {"": f"{_LOW}; {_HIGH}", "_min": _LOW, "_max": _HIGH}.items():
    row(f"clip_by_scalar{_type} (x) -> (y) {{{_attributes}}}", _clip)
    row(f"clip_by_scalar{_type}_grad (dy, x) -> (dx) {{{_attributes}}}", gradient(_clip, {"x": "x"}, ["x"]))

row("add_n (in(>=2)) -> (out)", call("math.add_n", "in"))
row("cast (in) -> (out) {dtype: dtype}", call("cast", "in", "dtype"))
row("cast_like (in, dtype_like) -> (out)", lambda i, a, n: elementwise.cast(i["in"], i["dtype_like"].dtype, name=n))
row("fused_cast_scale (x, scalar) -> (y)",
    arrays(lambda x, scalar: x.astype(scalar.dtype) * scalar.reshape(()), "x", "scalar", differentiable=True))  # fmt: skip
row("identity (in) -> (out)", call("identity", "in"))
row("amp_white_identity (in) -> (out)", call("amp_white_identity", "in"))
row("tuple_identity (in(>=1)) -> (out(>=1))", call("identity_n", "in"))
row("where (condition, x, y) -> (out)", call("where", "condition", "x", "y"))

# --- reductions and sorting

for _type in ("sum", "max", "min", "prod", "any", "all"):
    row(f"reduce_{_type} (input_tensor) -> (output_tensor) {{axis: list[int32]; keepdims: bool}}",
        call(f"math.reduce_{_type}", "input_tensor", "axis", "keepdims"))  # fmt: skip


def _summed_to(x: Any, shape: tuple[int, ...]) -> Any:
    extra = x.ndim - len(shape)
    axes = [i for i in range(x.ndim) if i < extra or (shape[i - extra] == 1 and x.shape[i] != 1)]
    return jnp.sum(x, tuple(axes), dtype=x.dtype).reshape(shape)


row("reduce_sum_like (x, like) -> (y) {axis: list[int32]}",
    arrays(lambda x, like, axis: jnp.sum(x, axis, dtype=x.dtype).reshape(like.shape) if axis else x, "x", "like"))  # fmt: skip
row("square_sum (x) -> (y)", call("experimental.square_sum", "x"))


def _multi_square_sum(*xs: Any) -> Any:
    return jnp.stack([jnp.sum(jnp.square(x), dtype=x.dtype) for x in xs]).sum(dtype=xs[0].dtype).reshape(1)


row("multi_square_sum (x(>=1)) -> (y)", lambda i, a, n: emit_arrays(_multi_square_sum, i["x"], {}, n))
row("count_not_finite (x) -> (y)", call("count_not_finite", "x"))
row("multi_count_not_finite (x(>=1)) -> (y)", call("multi_count_not_finite", "x"))


def _stage(highest: bool) -> None:
    kind = "max" if highest else "min"

    def best(x: Any, axis: tuple[int, ...]) -> Any:
        return (jnp.max if highest else jnp.min)(x, axis, keepdims=True)

    def device(x: Any, *, axis: tuple[int, ...]) -> Any:
        out = best(x, axis)
        mask = (x == out).astype(jnp.int8)
        return out, mask, jnp.sum(mask, axis, keepdims=True, dtype=jnp.int32)

    def overall(x: Any, count: Any, *, axis: tuple[int, ...], keepdims: bool) -> Any:
        out = best(x, axis)
        mask = (x == out).astype(jnp.int8)
        return (out if keepdims else jnp.squeeze(out, axis).reshape(jnp.squeeze(out, axis).shape or (1,))), mask

    def overall_grad(dy: Any, mask: Any, count: Any, *, axis: tuple[int, ...], keepdims: bool) -> Any:
        share = (mask * count).astype(dy.dtype)
        spread = dy.reshape([1 if i in {k % mask.ndim for k in axis} else s for i, s in enumerate(mask.shape)])
        return spread * share / jnp.sum(share, axis, keepdims=True)

    one, both = "{axis: list[int32]}", "{axis: list[int32]; keepdims: bool}"
    name = f"reduce_{kind}"
    row(f"{name}_device_stage (in) -> (out, mask, count) {one}", arrays(device, "in", outputs=3))
    row(
        f"{name}_device_stage_grad (out_diff, mask, count) -> (in_diff) {one}",
        arrays(lambda dy, mask, count, axis: dy * mask.astype(dy.dtype) / count.astype(dy.dtype), "out_diff", "mask", "count"),
    )
    row(f"{name}_global_stage (in, device_count) -> (out, mask) {both}", arrays(overall, "in", "device_count", outputs=2))
    row(f"{name}_global_stage_grad (out_diff, mask, device_count) -> (in_diff) {both}",
        arrays(overall_grad, "out_diff", "mask", "device_count"))  # fmt: skip


_stage(True)
_stage(False)

row("arg_sort (in) -> (out) {direction: str}", call("argsort", "in", direction="direction"))
row("sort (in) -> (out) {direction: str}", call("sort", "in", direction="direction"))
row("argmax (in) -> (out)", call("math.argmax", "in"))
row("top_k (in) -> (out) {k: int32; sorted: bool}", call("math.top_k", "in", k="k", sorted="sorted"))
row("in_top_k (targets, predictions) -> (out) {k: int32}", call("math.in_top_k", "targets", "predictions", "k"))

# --- shapes

row("reshape (in) -> (out) {shape: Shape}", call("reshape", "in", "shape"))
row("reshape_like (in, like) -> (out)", call("reshape_like", "in", "like"))
row("flatten (in) -> (out) {start_dim: int32 = 0; end_dim: int32 = -1}", call("flatten", "in", "start_dim", "end_dim"))
row("expand_dims (in) -> (out) {axis: int32}", call("expand_dims", "in", "axis"))
row("squeeze (in) -> (out) {axes: list[int32]}", call("squeeze", "in", "axes"))
row("transpose (input) -> (output) {perm: list[int32]; batch_axis_non_change: bool = False}",
    call("transpose", "input", "perm", batch_axis_non_change="batch_axis_non_change"))  # fmt: skip
row("concat (in(>=2)) -> (out) {axis: int64; max_dim_size: int64 = 0}",
    lambda i, a, n: array.concat(i["in"], a["axis"], max_dim_size=a["max_dim_size"] or None, name=n))  # fmt: skip
row("broadcast_like (x, like) -> (y) {broadcast_axes: list[int32]}", call("broadcast_like", "x", "like", "broadcast_axes"))
row("cast_to_static_shape (input) -> (output)", call("cast_to_static_shape", "input"))
row("TestReshape (in) -> (out) {shape: Shape}", call("reshape", "in", "shape"))
row("TestReshape4KeepHeaderOnly (in) -> (out) {shape: Shape}", call("reshape", "in", "shape"))
row("TestReshapeLike4KeepHeaderOnly (in, like) -> (out)", call("reshape_like", "in", "like"))


def _triples(a: Attributes) -> list[Any]:
    bounds = [[None if b in (FIRST, LAST) else b for b in a[k]] for k in ("start", "stop")]
    return list(zip(*bounds, a["step"], strict=True))


_REGION = "{start: list[int64]; stop: list[int64]; step: list[int64]}"
_slice = lambda i, a, n: slicing.slice_v2(i["x"], _triples(a), name=n)  # noqa: E731
row(f"slice (x) -> (y) {_REGION}", _slice)
row(f"slice_grad (dy, like) -> (dx) {_REGION}", gradient(_slice, {"x": "like"}, ["x"]))
row(f"slice_update (x, update) -> (y) {_REGION}", lambda i, a, n: slicing.slice_update(i["x"], i["update"], _triples(a), name=n))
row(f"logical_slice (x) -> (y) {_REGION}", lambda i, a, n: slicing.logical_slice(i["x"], _triples(a), name=n))
row(f"logical_slice_assign (ref, value) -> () {_REGION}",
    lambda i, a, n: slicing.logical_slice_assign(i["ref"], i["value"], _triples(a), name=n))  # fmt: skip


def _split_like(i: Inputs, a: Attributes, n: str) -> Any:
    x, likes, axis = i["in"], i["like"], a["axis"]
    if not 0 <= axis < min(like.ndim for like in likes) or sum(like.shape[axis] for like in likes) != x.shape[axis]:
        fail(ArgumentError, f"split_like {n!r}", f"sizes of like along axis {axis} must add up to in's", (x, *likes))
    edges = [0, *np.cumsum([like.shape[axis] for like in likes]).tolist()]
    triples: list[Any] = [[(None, None, None)] * axis + [(low, high, 1)] for low, high in zip(edges, edges[1:], strict=False)]
    return [slicing.slice_v2(x, triple) for triple in triples]


row("split_like (in, like(>=2)) -> (out(>=2)) {axis: int64}", _split_like)
_PAD = "{padding_before: list[int64]; padding_after: list[int64]; floating_constant_value: double = 0.0; "
_PAD += "integral_constant_value: int64 = 0}"


def _pad(i: Inputs, a: Attributes, n: str) -> Any:
    pairs = list(zip(a["padding_before"], a["padding_after"], strict=True))
    kind = "floating" if i["x"].dtype.is_floating_point else "integral"
    return pad(i["x"], pairs, a[f"{kind}_constant_value"], name=n)


def _cropped(i: Inputs, a: Attributes, n: str) -> Any:
    return pad_grad(i["dy"], list(zip(a["padding_before"], a["padding_after"], strict=True)), name=n)


row(f"pad (x) -> (y) {_PAD}", _pad)
row(f"pad_grad (dy) -> (dx) {_PAD}", _cropped)

# --- indices

row("gather (in, indices) -> (out) {axis: int64}", call("gather", "in", "indices", axis="axis"))


def _batch_gather(i: Inputs, a: Attributes, n: str) -> Any:
    batch = i["indices"].ndim - 1
    return indexing.gather(i["in"], i["indices"], axis=batch, batch_dims=batch, name=n)


row("batch_gather (in, indices) -> (out)", _batch_gather)
row("gather_nd (params, indices) -> (out)", call("gather_nd", "params", "indices"))
row("scatter_nd (indices, updates) -> (out) {shape: Shape}", call("scatter_nd", "indices", "updates", "shape"))
row("scatter_nd_like (like, indices, updates) -> (out)",
    lambda i, a, n: call("scatter_nd", "indices", "updates", "shape")({**i}, {"shape": i["like"].shape}, n))  # fmt: skip
for _type in ("add", "update"):
    row(f"tensor_scatter_nd_{_type} (params, updates, indices) -> (out)",
        call(f"tensor_scatter_nd_{_type}", "params", "indices", "updates"))  # fmt: skip
row("dim_gather (input, index) -> (output) {dim: int32}", call("dim_gather", "input", "dim", "index"))


def _dim_scatter_add_like(like: Any, x: Any, index: Any, *, dim: int) -> Any:
    places = list(jnp.indices(index.shape, jnp.int32))
    places[dim] = index
    return jnp.zeros_like(like).at[tuple(places)].add(x)


row("dim_scatter_add_like (like, input, index) -> (output) {dim: int32}",
    arrays(_dim_scatter_add_like, "like", "input", "index"))  # fmt: skip
row("unsorted_segment_sum (data, segment_ids) -> (out) {axis: int64; num_segments: int64}",
    call("math.unsorted_segment_sum", "data", "segment_ids", "num_segments", axis="axis"))  # fmt: skip
row("unsorted_segment_sum_like (data, segment_ids, like) -> (out) {axis: int64}",
    call("math.unsorted_segment_sum_like", "data", "segment_ids", "like", axis="axis"))  # fmt: skip
row("unsorted_batch_segment_sum (data, segment_ids) -> (out) {num_segments: int64}",
    call("math.unsorted_batch_segment_sum", "data", "segment_ids", "num_segments"))  # fmt: skip


def _argwhere(i: Inputs, a: Attributes, n: str) -> Any:
    output, size = masks.argwhere_and_count(i["input"], a["dtype"], n)  # flow.sync_dynamic_resize(output, size) cuts it
    return {"output": output, "output_size": size}


row("argwhere (input) -> (output, output_size) {dtype: dtype = None}", _argwhere)


def _one_hot(i: Inputs, a: Attributes, n: str) -> Any:
    kind = "floating" if a["dtype"].is_floating_point else "integer"
    return indexing.one_hot(i["indices"], a["depth"], a[f"{kind}_on_value"], a[f"{kind}_off_value"], dtype=a["dtype"], name=n)


row("""one_hot (indices) -> (out) {depth: int64; floating_on_value: double = 1.0; integer_on_value: int64 = 1;
    floating_off_value: double = 0.0; integer_off_value: int64 = 0; dtype: dtype}""", _one_hot)  # fmt: skip

# --- constants and random numbers


def _constant(i: Inputs, a: Attributes, n: str) -> Any:
    value = a["floating_value"] if a["is_floating_value"] else a["integer_value"]
    return constant.constant(value, a["dtype"], a["shape"] or None, name=n)


row("""constant () -> (out) {floating_value: double = 0.0; integer_value: int64 = 0; is_floating_value: bool; dtype: dtype;
    shape: Shape}""", _constant)  # fmt: skip
row("range () -> (out) {start: int64; delta: int64; limit: int64; dtype: dtype}",
    call("range", "start", "limit", "delta", "dtype"))  # fmt: skip
row("zero_like (like) -> (out)", call("zeros_like", "like"))


def _seed(a: Attributes) -> Any:
    return a["seed"] if a.get("has_seed", a["seed"] >= 0) else None


row("bernoulli (in) -> (out) {seed: int64 = -1; has_seed: bool = False; dtype: dtype}",
    lambda i, a, n: call("random.bernoulli", "in", seed="seed", dtype="dtype")(i, {**a, "seed": _seed(a)}, n))  # fmt: skip
row("coin_flip () -> (out) {probability: float = 0.5; batch_size: int64; seed: int64 = -1; has_seed: bool = False}",
    lambda i, a, n: call("random.coin_flip", "batch_size", "seed", "probability")(i, {**a, "seed": _seed(a)}, n))  # fmt: skip
row("generate_random_batch_permutation_indices (x) -> (y) {seed: int64}",
    call("random.generate_random_batch_permutation_indices", "x", "seed"))  # fmt: skip
row("random_mask_like (like) -> (out) {rate: float; seed: int64}", call("nn.random_mask_like", "like", "rate", "seed"))
_scaled = lambda x, mask, scale: x * mask.astype(x.dtype) * as_array(scale, x)  # noqa: E731
row("dropout (in, mask, _add_to_output?) -> (out) {scale: float}",
    lambda i, a, n: _added(emit_arrays(_scaled, [i["in"], i["mask"]], a, n, differentiable=True)[0], i, n))  # fmt: skip
row("dropout_grad (dy, mask) -> (dx) {scale: float}", arrays(_scaled, "dy", "mask"))


def _added(y: Blob, i: Inputs, n: str) -> Blob:
    """y, plus the optional input that OneFlow adds to an op's output."""
    extra = i.get("_add_to_output")
    return y if extra is None else binary.add(y, extra, name=f"{n}-add_to_output")


# --- products

for _type in ("matmul", "batch_matmul"):
    row(f"{_type} (a, b, _add_to_output?) -> (out) {{transpose_a: bool = False; transpose_b: bool = False}}",
        lambda i, a, n: _added(call("matmul", "a", "b", "transpose_a", "transpose_b")(i, a, n), i, n))  # fmt: skip


def _bias_add(i: Inputs, a: Attributes, n: str) -> Any:
    x, bias, axis = i["a"], i["b"], a["axis"]
    spread = array.reshape(bias, [s if k == axis % x.ndim else 1 for k, s in enumerate((bias.shape[0],) * x.ndim)])
    return binary.add(x, spread, name=n)


row("bias_add (a, b) -> (out) {axis: int32}", _bias_add)
_TRIL = "{diagonal: int64; floating_fill_value: double = 0.0; integer_fill_value: int64 = 0; is_floating_fill_value: bool = False"
_SCALE = "; floating_scale_value: double = 1.0; integer_scale_value: int64 = 1; is_floating_scale_value: bool = False"


def _chosen(a: Attributes, kind: str) -> int | float:
    return a[f"floating_{kind}_value"] if a[f"is_floating_{kind}_value"] else a[f"integer_{kind}_value"]


row(f"tril (in) -> (out) {_TRIL}}}",
    lambda i, a, n: call("math.tril", "in", "diagonal", "fill")(i, {**a, "fill": _chosen(a, "fill")}, n))  # fmt: skip
row(f"fused_scale_tril (in) -> (out) {_TRIL}{_SCALE}}}",
    lambda i, a, n: call("math.fused_scale_tril", "in", "diagonal", "fill", "scale")(
        i, {**a, "fill": _chosen(a, "fill"), "scale": _chosen(a, "scale")}, n))  # fmt: skip

# --- softmax and losses

row("softmax (in) -> (out)", call("nn.softmax", "in"))
row("softmax_grad (y, dy) -> (dx)", call("nn.softmax_grad", "y", "dy"))


def _with_prob(path: str) -> Any:
    def build(i: Inputs, a: Attributes, n: str) -> Any:
        return nn.softmax(i["prediction"], name=f"{n}-prob"), call(path, "label", "prediction")(i, a, n)

    return build


row("softmax_cross_entropy (prediction, label) -> (prob, out)", _with_prob("nn.softmax_cross_entropy_with_logits"))
row("softmax_cross_entropy_grad (dy, label, prob) -> (prediction_diff)",
    arrays(lambda dy, label, prob: dy[..., None] * (prob - label), "dy", "label", "prob"))  # fmt: skip


def _labelled(label: Any, like: Any) -> Any:
    return jax.nn.one_hot(label.reshape(like.shape[:-1]), like.shape[-1], dtype=like.dtype)


for _ms in ("", "_ms"):
    row(f"sparse_cross_entropy{_ms} (prediction, label) -> (out) {{depth: int64}}",
        call("nn.sparse_cross_entropy", "label", "prediction"))  # fmt: skip
    row(f"sparse_cross_entropy{_ms}_grad (prediction, label, dy) -> (prediction_diff) {{depth: int64}}",
        gradient(call("nn.sparse_cross_entropy", "label", "prediction"), {"prediction": "prediction", "label": "label"},
                 ["prediction"]))  # fmt: skip
    row(f"sparse_softmax_cross_entropy{_ms} (prediction, label) -> (prob, out) {{depth: int64}}",
        _with_prob("nn.sparse_softmax_cross_entropy_with_logits"))  # fmt: skip
    row(f"sparse_softmax_cross_entropy{_ms}_grad (label, dy, prob) -> (prediction_diff) {{depth: int64}}",
        arrays(lambda label, dy, prob, depth: dy.reshape(prob.shape[:-1])[..., None] * (prob - _labelled(label, prob)),
               "label", "dy", "prob"))  # fmt: skip
_smooth = lambda i, a, n: call("smooth_l1_loss", "prediction", "label", "beta")(i, a, n)  # noqa: E731
row("smooth_l1_loss (prediction, label) -> (loss) {beta: float}", _smooth)
row("smooth_l1_loss_grad (loss_grad, prediction, label) -> (prediction_grad) {beta: float}",
    gradient(_smooth, {"prediction": "prediction", "label": "label"}, ["prediction"], "loss_grad"))  # fmt: skip
_MARGIN = "{m1: float; m2: float; m3: float; depth: int64}"


def _angles(x: Any, label: Any) -> Any:
    return jnp.arccos(jnp.take_along_axis(x, label[:, None].astype(jnp.int32), axis=1)[:, 0])


def _margin(i: Inputs, a: Attributes, n: str) -> Any:
    y = call("combined_margin_loss", "x", "label", "m1", "m2", "m3")(i, a, n)
    return y, emit_arrays(_angles, [i["x"], i["label"]], {}, f"{n}-theta")[0]


def _margin_grad(dy: Any, label: Any, theta: Any, *, m1: float, m2: float, m3: float, depth: int) -> Any:
    slope = as_array(m1, dy) * jnp.sin(as_array(m1, dy) * theta + as_array(m2, dy)) / jnp.sin(theta)
    return jnp.where(_labelled(label, dy) == 1, dy * slope[:, None], dy)


row(f"combined_margin_loss (x, label) -> (y, theta) {_MARGIN}", _margin)
row(f"combined_margin_loss_grad (dy, label, theta) -> (dx) {_MARGIN}", arrays(_margin_grad, "dy", "label", "theta"))

# --- normalization


def _l2_normalize(i: Inputs, a: Attributes, n: str) -> Any:
    total = reduce.reduce_sum(elementwise.square(i["x"]), a["axis"], keepdims=True)
    return reduce.l2_normalize(i["x"], a["axis"], a["epsilon"], name=n), total


def _l2_normalize_grad(dy: Any, y: Any, total: Any, *, axis: int, epsilon: float) -> Any:
    inverse = 1 / jnp.sqrt(jnp.maximum(total, as_array(epsilon, total)))
    through = dy - y * jnp.sum(dy * y, axis, keepdims=True, dtype=y.dtype)
    return jnp.where(total >= as_array(epsilon, total), through, dy) * inverse


row("l2_normalize (x) -> (y, square_x_sum) {axis: int32; epsilon: float}", _l2_normalize)
row("l2_normalize_grad (dy, y, square_x_sum) -> (dx) {axis: int32; epsilon: float}",
    arrays(_l2_normalize_grad, "dy", "y", "square_x_sum"))  # fmt: skip


def _statistics(x: Any, *, begin: int, epsilon: float) -> Any:
    axes = tuple(range(begin, x.ndim))
    wide = x.astype(jnp.float32) if x.dtype.itemsize == 2 else x
    inverse = 1 / jnp.sqrt(jnp.var(wide, axes) + as_array(epsilon, wide))
    shape = x.shape[:begin] or (1,)
    return jnp.mean(wide, axes).reshape(shape), inverse.reshape(shape)


def _layer_norm(i: Inputs, a: Attributes, n: str) -> Any:
    x, begin, params = i["x"], a["begin_norm_axis"], a["begin_params_axis"]
    gamma, beta = (i[k] if a[flag] else None for k, flag in (("gamma", "scale"), ("beta", "center")))
    y = norm.layer_norm(x, gamma, beta, begin, params, a["epsilon"], name=n)
    mean, inverse = emit_arrays(_statistics, [x], {"begin": begin % x.ndim, "epsilon": a["epsilon"]}, f"{n}-statistics", 2)
    normalized = norm.layer_norm(x, None, None, begin, params, a["epsilon"], name=f"{n}-normalized")
    return {"y": y, "mean": mean, "inv_variance": inverse, "normalized": normalized}


row("""layer_norm (x, beta?, gamma?) -> (y, mean, inv_variance, normalized?) {center: bool; scale: bool; begin_norm_axis: int64;
    begin_params_axis: int64; epsilon: double}""", _layer_norm)  # fmt: skip
row(
    "layer_norm_grad (dy, x, mean, inv_variance, _add_to_output?) -> (dx) {begin_norm_axis: int64; epsilon: double}",
    lambda i, a, n: _added(call("layers.layer_norm_grad", "dy", "x", "mean", "inv_variance", "begin_norm_axis")(i, a, n), i, n),
)


def _layer_norm_param_grad(i: Inputs, a: Attributes, n: str) -> Any:
    dy, begin = i["dy"], a["begin_params_axis"] % i["dy"].ndim
    lead = tuple(range(begin))

    def run(*xs: Any) -> Any:
        given = dict(zip(bound, xs, strict=True))
        normalized_diff = given["dy"] * given["gamma"] if "gamma" in given else given["dy"]
        gamma_diff = jnp.sum(given["dy"] * given["normalized"], lead) if "normalized" in given else jnp.zeros(dy.shape[begin:])
        return normalized_diff, jnp.sum(given["dy"], lead), gamma_diff.astype(given["dy"].dtype)

    bound = [k for k in ("dy", "normalized", "gamma") if i[k] is not None]
    made = emit_arrays(run, [i[k] for k in bound], {}, n, 3, op_name="layer_norm_param_grad")
    return dict(zip(("normalized_diff", "beta_diff", "gamma_diff", "reduce_buf"), (*made, dy), strict=True))


row("""layer_norm_param_grad (dy, normalized?, gamma?) -> (normalized_diff?, beta_diff?, gamma_diff?, reduce_buf?)
    {begin_params_axis: int64}""", _layer_norm_param_grad)  # fmt: skip


def _normalization(i: Inputs, a: Attributes, n: str, *, training: bool, relu: bool = False) -> Any:
    x, gamma, beta, mean, variance = (i[k] for k in ("x", "gamma", "beta", "moving_mean", "moving_variance"))
    made: dict[str, Any] = {}
    if training:
        y, new_mean, new_variance, made["mean"], made["inv_variance"] = emit_many(
            norm._batch_normalization_training, x, gamma, beta, mean, variance, name=n, axis=a["axis"] % x.ndim,
            epsilon=a["epsilon"], momentum=a["momentum"], scale=True, center=True,
        )  # fmt: skip
        y.node.graph.assign(mean, new_mean)
        y.node.graph.assign(variance, new_variance)
    else:
        y = norm.batch_normalization(x, mean, variance, beta, gamma, a["epsilon"], a["axis"], name=n)
        made["mean"], made["inv_variance"] = mean, elementwise.rsqrt(binary.add(variance, a["epsilon"]))
    extra = i.get("addend")
    y = _added(y, i, n) if extra is None else binary.add(y, extra, name=f"{n}-addend")
    made["y"] = elementwise.relu(y, name=f"{n}-relu") if relu else y
    if relu:
        made["reserve_space"] = binary.greater(made["y"], elementwise.identity(constant.zeros_like(y)))
    return made


row("""normalization (x, moving_mean, moving_variance, gamma, beta, _add_to_output?) -> (y, mean?, inv_variance?)
    {axis: int32; epsilon: float; training: bool; momentum: float}""",
    lambda i, a, n: _normalization(i, a, n, training=a["training"]))  # fmt: skip


def _normalization_grad(x: Any, dy: Any, mean: Any, inverse: Any, gamma: Any, *, axis: int, epsilon: float) -> Any:
    wide = x.astype(mean.dtype)
    g = dy.astype(mean.dtype)
    axes = tuple(k for k in range(x.ndim) if k != axis % x.ndim)
    column = lambda v: v.reshape([-1 if k == axis % x.ndim else 1 for k in range(x.ndim)])  # noqa: E731
    normal = (wide - column(mean)) * column(inverse)
    d_beta, d_gamma = jnp.sum(g, axes), jnp.sum(g * normal, axes)
    count = as_array(x.size // x.shape[axis], g)
    dx = column(gamma * inverse) * (g - column(d_beta) / count - normal * column(d_gamma) / count)
    return d_gamma, d_beta, dx.astype(x.dtype)


row("normalization_grad (x, dy, mean, inv_variance, gamma) -> (gamma_diff, beta_diff, dx) {axis: int32; epsilon: float}",
    arrays(_normalization_grad, "x", "dy", "mean", "inv_variance", "gamma", outputs=3))  # fmt: skip


def _add_relu_grad(x: Any, dy: Any, mean: Any, inverse: Any, gamma: Any, y: Any, **attrs: Any) -> Any:
    masked = jnp.where(y > 0, dy, jnp.zeros_like(dy))
    return (*_normalization_grad(x, masked, mean, inverse, gamma, **attrs), masked)


for _type in ("normalization_add_relu", "cudnn_fused_normalization_add_relu"):
    row(f"""{_type} (x, addend?, moving_mean, moving_variance, gamma, beta) -> (y, reserve_space, mean?, inv_variance?)
        {{axis: int32; epsilon: float; momentum: float}}""",
        lambda i, a, n: _normalization(i, a, n, training=True, relu=True))  # fmt: skip
    row(f"""{_type}_grad (x, dy, mean, inv_variance, gamma, beta, reserve_space, y) -> (gamma_diff, beta_diff, dx, addend_diff?)
        {{axis: int32; epsilon: float}}""",
        arrays(_add_relu_grad, "x", "dy", "mean", "inv_variance", "gamma", "y", outputs=4))  # fmt: skip

# --- devices, time, and the rest

row("acc (in) -> (out) {max_acc_num: int32}", call("acc", "in", "max_acc_num"))
row("pack (in) -> (out) {pack_num: int32}", call("pack", "in", "pack_num"))
row("unpack (in) -> (out) {unpack_num: int32}", call("unpack", "in", "unpack_num"))
row("repeat (in) -> (out) {repeat_num: int32}", call("repeat", "in", "repeat_num"))
row("eager_nccl_all_reduce (in) -> (out) {parallel_conf: str}", call("eager_nccl_all_reduce", "in", "parallel_conf"))
row("ssp_variable_proxy (var) -> (ref, value) {buffer_size: int64 = 1}",
    call("experimental.ssp_variable_proxy", "var", "buffer_size"))  # fmt: skip
row("distributed_partial_fc_sample (weight, label) -> (mapped_label, sampled_label, sampled_weight) {num_sample: int64; "
    "seed: int64 = -1}",
    call("distributed_partial_fc_sample", "weight", "label", "num_sample"))  # fmt: skip
row("distributed_partial_fc_sample_disable_boxing (sampled_weight_diff, sampled_label) -> "
    "(boxing_disabled_sampled_weight_diff, boxing_disabled_sampled_label)",
    lambda i, a, n: elementwise.identity_n([i["sampled_weight_diff"], i["sampled_label"]], name=n))  # fmt: skip
row("CategoricalOrdinalEncode (table, size, in) -> (out) {hash_precomputed: bool}",
    call("categorical_ordinal_encode", "table", "size", "in", "hash_precomputed"))  # fmt: skip
_QUANT = "quantization_bit: int32 = 8; quantization_scheme: str = 'symmetric'"
row(f"min_max_observer (in) -> (scale, zero_point) {{{_QUANT}; per_layer_quantization: bool = True}}",
    call("quantization.min_max_observer", "in", "quantization_bit", "quantization_scheme", "per_layer_quantization"))  # fmt: skip
row(f"fake_quantization (in, scale, zero_point) -> (out) {{{_QUANT}}}",
    call("quantization.fake_quantization", "in", "scale", "zero_point", "quantization_bit", "quantization_scheme"))  # fmt: skip


def _moving_average(i: Inputs, a: Attributes, n: str) -> Any:
    what = f"moving_average_min_max_observer {n!r}"
    grid = want_grid(what, i["in"], a["quantization_bit"], a["quantization_scheme"], "google")
    scale, zero_point, high, low = observe_moving_average(
        what, i["in"], i["current_train_step"], i["moving_max"], i["moving_min"], grid=grid, momentum=a["momentum"],
        training=a["training"], stop=a["stop_update_after_iters"], name=n,
    )  # fmt: skip
    if a["training"]:
        array.assign(i["moving_max"], high)
        array.assign(i["moving_min"], low)
    return scale, zero_point


row(f"""moving_average_min_max_observer (in, current_train_step, moving_max, moving_min) -> (scale, zero_point)
    {{training: bool; stop_update_after_iters: int64; {_QUANT}; momentum: float = 0.95}}""", _moving_average)  # fmt: skip
