"""Observers with moving averages, and quantization-aware training: fake quantization before the ops that will run on integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._base import dtype as dtypes
from .._variables import initializers
from ..graph.graph import OP_VARIABLE, current
from ..graph.node import Blob
from ..graph.op import OpDef
from ..graph.scopes import graph_scope
from ..ops._arrays import label
from ..ops.array import assign
from ..ops.binary import add
from ..ops.quantization import fake_quantization, min_max_observer, observe_moving_average, want_grid
from ._common import layer_variable

_NEVER = int(np.iinfo(np.int64).max)
_OPS = ("conv1d", "conv2d", "conv3d", "matmul")  # those that will run on integers


def _observe(what: str, x: Blob, name: str, grid: dict[str, Any], momentum: float, stop: int) -> tuple[Blob, Blob]:
    """Scale and zero point from the extremes' moving averages, which are variables ``<name>-...``."""
    zeros = initializers.zeros_initializer()

    def kept(suffix: str, dtype: dtypes.dtype) -> Blob:
        return layer_variable(what, name, suffix, (1,), dtype, zeros, trainable=False)

    moving_max, moving_min = kept("moving_max", x.dtype), kept("moving_min", x.dtype)
    step = kept("current_train_step", dtypes.int64)
    training = current(what).train
    scale, zero_point, new_max, new_min = observe_moving_average(
        what, x, step, moving_max, moving_min, grid=grid, momentum=momentum, training=training, stop=stop, name=name
    )
    if training:
        assign(moving_max, new_max)
        assign(moving_min, new_min)
        if stop != _NEVER:
            assign(step, add(step, 1))
    return scale, zero_point


def moving_average_min_max_observer(
    input: Blob,
    quantization_bit: int = 8,
    quantization_scheme: str = "symmetric",
    quantization_formula: str = "google",
    momentum: float = 0.95,
    name: str | None = None,
) -> tuple[Blob, Blob]:
    """``min_max_observer`` over moving averages of the extremes: v <- momentum * v + (1 - momentum) * batch's.

    An average that is still 0 becomes the batch's value. Predict jobs only read.

    Variables, none of them trained: ``<name>-moving_max``, ``<name>-moving_min`` (1,) of input's dtype (both the
    largest magnitude, where the scheme is symmetric), and ``<name>-current_train_step`` (1,) int64, which stays 0: the averages
    never stop moving.

    Args:
      input: floating.
      quantization_bit: 2 to 8.
      quantization_scheme: "symmetric" or "affine".
      quantization_formula: "google" or "cambricon", see ``min_max_observer``.
      momentum: in [0, 1], the weight of the old average.
      name: the observer's; unnamed ones are numbered: ``MovingAverageMinMaxObserver_0``.
    Returns: (scale, zero_point), each (1,), of input's dtype.
    Raises: ArgumentError, DtypeError, DuplicateNameError (the name is taken).
    Example: >>> scale, zero_point = flow.quantization.moving_average_min_max_observer(x, momentum=0.9)
    """
    what = label("moving_average_min_max_observer", name)
    grid = want_grid(what, input, quantization_bit, quantization_scheme, quantization_formula)
    graph = current(what)
    if name is None:
        name = graph.fresh_name("MovingAverageMinMaxObserver").removeprefix(graph.scope.namespace)
    return _observe(what, input, name, grid, momentum, _NEVER)


def moving_average_min_maxObserver(
    input: Blob,
    quantization_bit: int = 8,
    quantization_scheme: str = "symmetric",
    momentum: float = 0.95,
    name: str | None = None,
) -> tuple[Blob, Blob]:
    """``moving_average_min_max_observer`` under the name of v0.3.

    Args, Returns, Raises: as there.
    Example: >>> scale, zero_point = flow.quantization.moving_average_min_maxObserver(x, momentum=0.9)
    """
    return moving_average_min_max_observer(input, quantization_bit, quantization_scheme, "google", momentum, name)


class AwareTraining:
    """``FunctionConfig.enable_qat``: the inputs of convolutions and matrix products are quantized, each Blob once.

    A variable's grid is measured at each call; that of any other Blob is a moving average, in variables that are named after it.
    """

    def __init__(self, config: Any):
        formula = "cambricon" if config.get("qat.target_backend") == "cambricon" else "google"
        self._grid: dict[str, Any] = {
            "bits": 8,
            "scheme": "symmetric" if config.get("qat.symmetric") else "affine",
            "formula": formula,
        }
        self._per_channel = config.get("qat.per_channel_weight_quantization") and formula == "google"
        self._momentum = config.get("qat.moving_min_max_momentum")
        stop = config.get("qat.moving_min_max_stop_update_after_iters")
        self._stop = _NEVER if stop is None else int(stop)
        self._made: dict[str, Blob] = {}

    def __call__(self, op: OpDef, inputs: tuple[Blob, ...]) -> tuple[Blob, ...]:
        """The inputs that an op gets instead, when it is added."""
        if op.name not in _OPS:
            return inputs
        scope = current().scope
        if not scope.options.get("quantization_aware_training", True):
            return inputs
        with graph_scope(scope.replaced(namespace="")):
            return tuple(self._quantized(x) if x.dtype is dtypes.float32 else x for x in inputs)

    def _quantized(self, x: Blob) -> Blob:
        key = x.logical_blob_name
        if key not in self._made:
            name = f"{x.op_name}-fake-quant" + (f"_{x.index}" if x.index else "")
            observer = f"{name}-observer"
            bits, scheme, formula = self._grid["bits"], self._grid["scheme"], self._grid["formula"]
            if x.node.op is OP_VARIABLE:
                grid = min_max_observer(x, bits, scheme, not self._per_channel, observer, formula)
            else:
                grid = _observe(f"quantization of {x.op_name!r}", x, observer, self._grid, self._momentum, self._stop)
            self._made[key] = fake_quantization(x, *grid, bits, scheme, name, formula)
        return self._made[key]
