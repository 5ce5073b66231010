"""Op types that 0.4 to 0.6 renamed or changed: further forms of a type, beside that of ``table.py``.

A builder tries its own release's forms first, and takes another one where the bound names fit that alone.
"""

from __future__ import annotations

from typing import Any

from ..graph.node import Blob
from ..ops import array, binary, constant, dropout, nn
from .gradient import gradient
from .registry import NEWER, REGISTRY, Attributes, Inputs, arrays, as_array, call, newer

_OPERAND = "{has_int_operand: bool; has_float_operand: bool; int_operand: int64 = 0; float_operand: double = 0.0}"


def _operand(a: Attributes) -> int | float:
    return a["int_operand"] if a["has_int_operand"] else a["float_operand"]


newer("relu (x) -> (y)", call("nn.relu", "x"))
newer("relu_grad (dy, y) -> (dx)", gradient(call("nn.relu", "x"), {"x": "y"}, ["x"]))
newer(f"scalar_pow (in) -> (out) {_OPERAND}", lambda i, a, n: binary.pow(i["in"], _operand(a), name=n))
newer(f"scalar_pow_grad (x, dy) -> (dx) {_OPERAND}", gradient(lambda i, a, n: binary.pow(i["x"], _operand(a)), {"x": "x"}, ["x"]))
newer("smooth_l1_loss (input, target) -> (out) {beta: float}", call("smooth_l1_loss", "input", "target", "beta"))
newer("broadcast_matmul (a, b) -> (out) {transpose_a: bool = False; transpose_b: bool = False; alpha: double = 1.0}",
      call("matmul", "a", "b", "transpose_a", "transpose_b", alpha="alpha"))  # fmt: skip
for _product in ("matmul", "batch_matmul"):  # the older form takes an input to add, and no factor
    newer(f"{_product} (a, b) -> (out) {{transpose_a: bool = False; transpose_b: bool = False; alpha: double = 1.0}}",
          call("matmul", "a", "b", "transpose_a", "transpose_b", alpha="alpha"))  # fmt: skip
for _tensor in ("scale_by_tensor", "scalar"):
    newer(f"fused_cast_scale (x, {_tensor}) -> (y) {{scale: double = 1.0}}",
          arrays(lambda x, s, scale: x.astype(s.dtype) * s.reshape(()) * as_array(scale, s), "x", _tensor,
                 differentiable=True))  # fmt: skip


def _dropout(i: Inputs, a: Attributes, n: str) -> Any:
    mask = dropout.random_mask_like(i["in"], a["rate"], name=f"{n}-mask")
    kept = {"in": i["in"], "mask": mask, "_add_to_output": i.get("_add_to_output")}
    build = REGISTRY["dropout"].build
    assert build is not None
    return {"out": build(kept, {"scale": 1.0 / (1.0 - a["rate"])}, n), "mask": mask}


newer("dropout (in, _add_to_output?) -> (out, mask) {rate: float}", _dropout)


def _per_channel(i: Inputs, a: Attributes, n: str) -> Blob:
    """``prelu`` since 0.5: alpha is (1,), or (C,) along axis 1."""
    x, alpha = i["x"], i["alpha"]
    shape = [1 if k or alpha.shape[0] == 1 else alpha.shape[0] for k in range(x.ndim - 1)]
    return nn.parametric_relu(x, array.reshape(alpha, shape or [1]), n)


newer("prelu (x, alpha) -> (y)", _per_channel)


def _arange(i: Inputs, a: Attributes, n: str) -> Blob:
    kind = "float" if a["dtype"].is_floating_point else "integer"
    start, delta, limit = (a[f"{kind}_{part}"] for part in ("start", "delta", "limit"))
    return constant.arange(start, limit, delta, a["dtype"], n)


_PARTS = [f"integer_{p}: int64 = {v}" for p, v in (("start", 0), ("delta", 1), ("limit", 0))]
_PARTS += [f"float_{p}: double = {v}" for p, v in (("start", 0.0), ("delta", 1.0), ("limit", 0.0))]
newer(f"arange () -> (out) {{{'; '.join(_PARTS)}; dtype: dtype}}", _arange)

_RENAMED = {"tf_prelu": "prelu", "tf_prelu_grad": "prelu_grad"}
_RENAMED |= {f"tf_{k}_pool_{d}d{g}": f"{k}_pool_{d}d{g}" for k in ("avg", "max") for d in (1, 2, 3) for g in ("", "_grad")}
for _name, _older in _RENAMED.items():
    NEWER[_name] = (REGISTRY[_older],)
