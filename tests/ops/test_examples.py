"""The example in every docstring is run, on the shapes that its comment tells."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import re
from typing import Any

import numpy as np
import pytest
from table import trace

import oneflow as flow
from oneflow import _dtype as dtypes
from oneflow.graph.node import Blob

MODULES = "array binary constant elementwise indexing matrix padding reduce scatter slicing sorting"
FUNCTIONS = [
    pytest.param(function, id=f"{module}.{name}")
    for module in MODULES.split()
    for name, function in vars(importlib.import_module(f"oneflow.ops.{module}")).items()
    if callable(function) and not name.startswith("_") and not inspect.isclass(function)
    and getattr(function, "__module__", "") == f"oneflow.ops.{module}" and ">>>" in (function.__doc__ or "")
]  # fmt: skip
INTEGERS = {"labels", "predictions_of", "ids", "indices", "places", "padding", "best", "targets"}
SHAPES = {
    "a": (2, 3), "b": (2, 3), "labels": (2,), "predictions": (2,), "logits": (2, 10), "row": (1, 3), "rows": (4,
        3), "ids": (4,), "table": (4, 3),
    "like": (2, 3), "other": (2, 1), "places": (3, 1), "best": (2, 5), "counter": (2, 3), "scores": (2, 4, 4), "padding": (2, 4,
        4),
    "params": (4, 3),
}  # fmt: skip
VARIABLES = {"counter", "table"}


def _example(function: Any) -> tuple[str, list[tuple[int, ...]], tuple[int, ...] | None]:
    (line,) = re.findall(r">>> (.*)", function.__doc__)
    code, _, comment = line.partition("   # ")
    before, arrow, after = comment.partition("->")
    shapes = [tuple(ast.literal_eval(s)) for s in re.findall(r"\(\d[\d, ]*\)", before)]
    result = re.fullmatch(r"\s*(\(\d[\d, ]*\))", after)
    return code, shapes if arrow else [], ast.literal_eval(result[1]) if result else None


@pytest.mark.parametrize("function", FUNCTIONS)
def test_example(function: Any) -> None:
    code, shapes, result = _example(function)
    tree = ast.parse(code)
    loaded = sorted(
        (n for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)), key=lambda n: n.col_offset
    )
    names = [n for n in dict.fromkeys(node.id for node in loaded) if n != "flow" and not hasattr(builtins, n)]
    given = dict(zip(names, shapes, strict=False))
    if function.__name__ in ("equal", "not_equal"):
        integers = {"labels", "predictions"}
    else:
        integers = INTEGERS
    sizes = [given.get(n, SHAPES.get(n, (2, 3))) for n in names]
    kinds = [np.int32 if n in integers else np.float32 for n in names]

    def body(*blobs: Blob) -> Blob:
        scope = {"flow": flow, **dict(zip(names, blobs, strict=True))}
        for name, shape in zip(names, sizes, strict=True):
            if name in VARIABLES:
                scope[name] = flow.get_variable(name, shape, initializer=flow.zeros_initializer())
        if "flow.experimental" in code or "flow.system" in code:  # names that the modules only pass on
            scope[function.__name__] = function
            exec(re.sub(r"flow\.\w+\.\w+\(", f"{function.__name__}(", code, count=1), scope)  # noqa: S102
        else:
            exec(code, scope)  # noqa: S102 - our own docstring
        made = next(
            (scope[t.id] for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)), blobs[:1]
        )
        return made

    if function.__name__ in ("argwhere", "nonzero"):
        with pytest.raises(NotImplementedError):
            trace(body, list(zip(sizes, kinds, strict=True)))
        return
    _, made = trace(body, list(zip(sizes, kinds, strict=True)))
    if result is not None:
        assert made[0].shape == result
    assert all(isinstance(b.dtype, dtypes.dtype) for b in made)
