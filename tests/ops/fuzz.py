"""Calls of public functions that begin as the example in the docstring and are then spoilt: what may come of them.

Either the job builds and runs, or an error of the library says, at the user's line, what is wrong.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from table import forward, trace

import oneflow as flow
from oneflow.errors import OneFlowError
from oneflow.graph.node import Blob
from oneflow.ops import _emit

_spec = importlib.util.spec_from_file_location("examples", Path(__file__).parents[2] / "scripts" / "examples.py")
assert _spec is not None and _spec.loader is not None
examples = importlib.util.module_from_spec(_spec)
import sys  # noqa: E402

sys.modules["examples"] = examples
_spec.loader.exec_module(examples)


PACKAGE = str(Path(flow.__file__).parent)


@dataclass(frozen=True)
class Fed:
    """An argument that is a Blob (or a list of them) of this kind."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    many: int = 0


DTYPES = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "int64", "char")
SHAPES = (
    (1,), (3,), (0,), (2, 3), (4, 0), (1, 1), (8, 4), (2, 3, 4), (0, 3, 2), (2, 3, 4, 5), (1, 0, 4, 4), (2, 1, 3, 4, 5), (1,) * 6,
)  # fmt: skip
# Everything that somebody may pass by mistake.
PLAIN: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 3, 5, -3, 7, 100, -(2**31), 2**31, 2**63, 10**25, 1j, np.float32(1.5), np.int64(2),
    0.0, 0.5, 1.0, -1.5, 2.5, 1e-30, 1e30, 1e39, float("nan"), float("inf"), float("-inf"),
    "", "SAME", "same", "VALID", "SAME_UPPER", "NCHW", "NHWC", "NWC", "NC", "bogus", "mean", "none", "ASCENDING", "bilinear",
    (), (0,), (1,), (-1,), (2,), (1, 1), (2, 2), (0, 0), (-1, 2), (3, 2), (1, 2, 3), (0, 1, 0), (1, 1, 1, 1), (2, 2, 2, 2, 2),
    (1.5,), (1.5, 2.0), ("a",), ("SAME", "VALID"), (None,), (None, None), ((0, 0), (1, 1)), ((0, 0), (0, 0), (1, 1), (1, 1)),
    ((1, 2),), ((-1, 0), (0, 0)), ((0, 0, 0),), ((None, None, None), (0, 2, 1)), ((0, 1), 2), (10**12,), (2**40, 2**40),
    [1, 2], [0, 1], [2], [], [[1]], [-1], {}, {"a": 1}, frozenset([1]), range(2), object(), len, b"x", b"", slice(0, 1), ...,
    np.array(3), np.zeros((2, 3), np.float32), np.zeros(0), np.array(["a"]), np.float32, float,
)  # fmt: skip
OURS = (
    "flow.float32", "flow.int32", "flow.int8", "flow.float16", "flow.record", "flow.tensor_buffer", "flow.distribute.split(0)",
    "flow.distribute.broadcast()", "flow.distribute.split(9)", "flow.ones_initializer()", "flow.regularizers.l2(0.1)", "flow",
)  # fmt: skip


@dataclass
class Case:
    """A function, the kinds of Blobs that its example takes, and the arguments that replace some of the example's."""

    path: str
    inputs: tuple[Fed, ...]
    changed: dict[str, Any]

    def __repr__(self) -> str:
        return f"{self.path} on {[(f.shape, f.dtype) for f in self.inputs]} with {self.changed}"


def _call(example: Any) -> ast.Call | None:
    """The call of the function itself in its example."""
    calls = [n for n in ast.walk(ast.parse(example.code)) if isinstance(n, ast.Call)]
    for call in calls:
        try:
            target = eval(ast.unparse(call.func), {"flow": flow})  # noqa: S307 - our own docstring
        except Exception:
            continue
        if target is example.target:
            return call
    return None


def _subjects() -> dict[str, Any]:
    found = {}
    for path, example in examples.examples().items():
        if (
            example is not None
            and (inspect.isfunction(example.target))
            and _call(example) is not None
            and len(example.lines) == 1
        ):
            found[path] = example
    return found


SUBJECTS = _subjects()
SKIPPED = ("flow.checkpoint.", "flow.load", "flow.save", "flow.find_or_create", "flow.unittest.", "flow.data.", "flow.InitEager")
PATHS = [p for p in SUBJECTS if not p.startswith(SKIPPED) and p not in examples.SETUP]

READING = [p for p, e in SUBJECTS.items() if p.startswith("flow.data.") and examples.in_a_job(e)]  # need files


def inputs(path: str) -> tuple[Fed, ...]:
    """The inputs of the example."""
    return tuple(Fed(given.shape, given.dtype) for given in examples.body_of(SUBJECTS[path])[0])


def parameters(path: str) -> list[str]:
    """The parts that can be replaced."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [p.name for p in inspect.signature(SUBJECTS[path].target).parameters.values() if p.kind in kinds]


def build(case: Case) -> tuple[Any, tuple[Any, ...]]:
    """The graph of a job with this call."""
    example = SUBJECTS[case.path]
    call = _call(example)
    assert call is not None
    _, statements = examples.body_of(example)
    before = compile("\n".join(statements[: -len(example.lines)]), __file__, "exec")
    feds = list(case.inputs)
    places: dict[str, list[int]] = {}
    for name, value in case.changed.items():
        if isinstance(value, Fed):
            places[name] = list(range(len(feds), len(feds) + max(1, value.many)))
            feds += [value] * max(1, value.many)
    signature = inspect.signature(example.target)

    def body(*blobs: Blob) -> Any:
        scope: dict[str, Any] = {"flow": flow, "np": np}
        scope.update(zip((fed.name for fed in examples.body_of(example)[0]), blobs, strict=False))
        exec(before, scope)  # noqa: S102 - our own docstring
        args = []
        for a in call.args:
            if isinstance(a, ast.Starred):
                args += list(_value(a.value, scope))
            else:
                args.append(_value(a, scope))
        kwargs = {k.arg: _value(k.value, scope) for k in call.keywords if k.arg}  # noqa: S307
        bound = signature.bind(*args, **kwargs)
        for name, value in case.changed.items():
            if isinstance(value, Fed):
                made = [blobs[i] for i in places[name]]
                bound.arguments[name] = made if value.many else made[0]
            elif isinstance(value, str) and value in OURS:
                bound.arguments[name] = eval(value, {"flow": flow})
            else:
                bound.arguments[name] = value
        made = example.target(*bound.args, **bound.kwargs)
        found = [b for b in _leaves(made) if isinstance(b, Blob)]
        return found or list(blobs[:1]) or [flow.ones([1])]

    return trace(body, [(f.shape, getattr(flow, f.dtype).numpy_dtype) for f in feds])


def _value(node: ast.expr, scope: dict[str, Any]) -> Any:
    return eval(compile(ast.unparse(node), __file__, "eval"), scope)  # noqa: S307 - our own docstring


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for v in value for leaf in _leaves(v)] if isinstance(value, (list, tuple)) else [value]


def _ours(error: Exception) -> bool:
    """Raised by an op's own definition in words of its own, which ``emit`` then passes on."""
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    return type(error) in (ValueError, TypeError) and where is not None and PACKAGE in where.tb_frame.f_code.co_filename


def outcome(case: Case, run: bool = False) -> str:
    """ "built", "refused", or what is wrong with the way in which it was refused."""
    raw: list[Exception] = []

    def infer(*args: Any) -> Any:
        try:
            return original(*args)
        except OneFlowError:
            raise
        except Exception as error:
            if not _ours(error):
                raw.append(error)
            raise

    original: Callable[..., Any] = _emit.infer
    _emit.infer = infer
    try:
        graph, _ = build(case)
    except OneFlowError as error:
        text = str(error)
        if "your line" not in text or Path(__file__).name not in text:
            return f"no line of the user: {text[:300]}"
        if raw:
            return f"internals: {text.splitlines()[0][:300]}"
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    finally:
        _emit.infer = original
    # The tables' little interpreter has no host, and takes every shape for the true one.
    special = any(getattr(n.op, "host", None) or any(b.is_dynamic for b in n.outputs) for n in graph.nodes)
    if run and not special and sum(int(np.prod(b.shape)) for n in graph.nodes for b in n.outputs) < 200_000:
        rng = np.random.default_rng(0)
        arrays = [np.asarray(rng.integers(0, 3, n.outputs[0].shape)).astype(n.outputs[0].dtype.numpy_dtype)
                  for n in graph.nodes if n.op.name == "input"]  # fmt: skip
        try:
            forward(graph, arrays)
        except Exception as error:
            return f"does not run: {type(error).__name__}: {str(error)[:300]}"
    return "built"
