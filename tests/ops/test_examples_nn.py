"""The examples in the docstrings of flow.nn, flow.layers, flow.random, the losses and the initializers are run."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from typing import Any

import numpy as np
import pytest
from table import trace

import oneflow as flow
from oneflow.graph.node import Blob

MODULES = (flow.nn, flow.layers, flow.random, flow.regularizers, flow.initializers)
TOP_LEVEL = (flow.smooth_l1_loss, flow.combined_margin_loss, flow.ctc_loss, flow.categorical_ordinal_encode)
FUNCTIONS = {
    f"{function.__module__}.{function.__name__}": function
    for function in [*(f for module in MODULES for f in vars(module).values()), *TOP_LEVEL]
    if inspect.isfunction(function) and ">>>" in (function.__doc__ or "") and "elementwise" not in function.__module__
}
INTEGERS = {"labels", "targets", "input_lengths", "target_lengths", "keys"}
IMAGE, FILTERS = (8, 3, 28, 28), (16, 3, 5, 5)
# where the comment does not say it
SHAPES = {
    "compat_conv2d": {"x": IMAGE, "w": FILTERS},
    "conv2d_transpose": {"x": (8, 16, 14, 14), "w": (16, 3, 5, 5)},
    "torch_conv2d_transpose": {"x": (8, 16, 14, 14), "w": (16, 3, 3, 3)},
    "batch_normalization": {"x": IMAGE},
    "batch_normalization_relu": {"x": IMAGE},
    "batch_normalization_add_relu": {"x": IMAGE, "shortcut": IMAGE},
    "InstanceNorm2d": {"x": IMAGE},
    "GroupNorm": {"x": (4, 16, 5)},
    "layer_norm_grad": {"dy": (8, 4), "x": (8, 4), "mean": (8,), "inv_variance": (8,)},
    "layer_norm_param_grad": {"dy": (8, 4), "norm": (8, 4), "gamma": (4,)},
    "fused_bias_add_dropout": {"x": IMAGE, "b": (3,)},
    "fused_scale_tril_softmax_dropout": {"scores": (2, 8, 8)},
    "fused_self_attention_query_mul_key_and_value": {"x": (7, 2, 3 * 64 * 2)},
    "distributed_sparse_softmax_cross_entropy_with_logits": {"labels": (8,), "logits": (8, 10)},
    "sparse_cross_entropy": {"labels": (8,), "logits": (8, 10)},
    "softmax_cross_entropy_with_logits": {"labels": (8,), "logits": (8, 10)},
    "combined_margin_loss": {"cosines": (8, 10), "labels": (8,)},
    "ctc_loss": {"x": (20, 4, 6), "targets": (4, 5), "input_lengths": (4,), "target_lengths": (4,)},
    "swish": {"x": (8, 10)},
}  # fmt: skip


def _parts(function: Any) -> tuple[str, list[tuple[int, ...]], tuple[int, ...] | None]:
    """The code, the shapes of what it takes, and the shape of what it gives."""
    (line,) = re.findall(r">>> (.*)", function.__doc__)
    code, _, comment = line.partition("   # ")
    before, _, after = comment.partition("->")
    shapes = [tuple(ast.literal_eval(s)) for s in re.findall(r"\(\d+,[\d, ]*\)", before)]
    result = re.match(r"\s*(\(\d+,[\d, ]*\))", after)
    return code, shapes, ast.literal_eval(result[1]) if result else None


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_example(function: Any) -> None:
    code, shapes, expected = _parts(function)
    tree = ast.parse(code)
    loaded = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    names = dict.fromkeys(
        n.id for n in sorted(loaded, key=lambda n: n.col_offset) if n.id != "flow" and not hasattr(builtins, n.id)
    )
    given = {**dict.fromkeys(names, (8, 4)), **dict(zip(names, shapes, strict=False)), **SHAPES.get(function.__name__, {})}
    kinds = [np.int32 if name in INTEGERS and not function.__name__.endswith("Loss") else np.float32 for name in names]
    kinds = [np.float32 if function.__name__.startswith("sigmoid_cross") else kind for kind in kinds]

    def body(*blobs: Blob) -> Any:
        scope = {"flow": flow, **dict(zip(names, blobs, strict=True))}
        exec(code, scope)  # noqa: S102 - our own docstring
        made = [
            scope[t.id] for n in tree.body if isinstance(n, ast.Assign) for t in ast.walk(n.targets[0]) if isinstance(t, ast.Name)
        ]
        return [m for m in made if isinstance(m, Blob)]

    _, made = trace(body, [(given[name], kind) for name, kind in zip(names, kinds, strict=True)])
    if expected is not None:
        assert made[0].shape == expected


@pytest.mark.parametrize("module", [flow.nn, flow.layers, flow.random])
def test_everything_is_documented(module: Any) -> None:
    for name, function in vars(module).items():
        if inspect.isfunction(function):
            assert function.__doc__, f"{name} has no docstring"
