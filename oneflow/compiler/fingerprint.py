"""A digest of everything in a plan that its program depends on: the key of a program that is kept on disk.

Two plans with the same digest, made by the same source files on the same machine, compile to the same program. What cannot be
described completely (functions and objects of the user's, arrays on devices, unknown types) raises NotDescribedError, so that the
program of such a job is not kept. First values of variables are no part of a program, and neither are the user's lines.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from .._base.dist import Distribute
from .._base.dtype import dtype
from .._base.source import Source
from ..graph.graph import Graph, Variable
from ..graph.node import Blob, Node
from .layout import Storage
from .plan import Plan

_ROOT = __name__.partition(".")[0]
_PLAIN = (int, float, complex, bool, str, bytes, type(None), type(Ellipsis), type(NotImplemented))


class NotDescribedError(Exception):
    """Part of a plan cannot be described completely; the message says which."""


def fingerprint(plan: Plan, storages: Mapping[str, Storage], environment: Any) -> str:
    """The digest of a plan before its devices are known.

    Args:
      plan: of the job, as ``compiler.plan.plan`` made it.
      storages: how its variables are stored, by name.
      environment: plain values that the program depends on as well: versions, settings, shapes of feeds.
    Raises:
      NotDescribedError: the plan holds something that cannot be described.
    """
    digest = hashlib.sha256()
    for part in _Description().of_plan(
        plan, storages
    ):  # one after the other: a million small tuples at once keep the collector busy
        digest.update(repr(part).encode("utf-8", "surrogatepass"))
    digest.update(repr(environment).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


class _Description:
    """Objects as nested tuples of plain values, which ``repr`` tells apart. An object that occurs again is a number."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # so that an address stands for one object

    def of_plan(self, plan: Plan, storages: Mapping[str, Storage]) -> Iterator[Any]:
        """The parts of a plan, in an order that says which is which."""
        graph, objective = plan.graph, plan.graph.objective
        yield graph.name, graph.train, graph.accumulation_steps, self.of((graph.generation, graph.scope, graph.config))
        yield len(graph.nodes), len(graph.variables), len(plan.order)
        yield from map(self._node, graph.nodes)
        yield from map(self._variable, graph.variables.values())
        yield from map(self._node_reference, plan.order)
        yield [(spec.label, spec.kind, self._blob(spec.blob)) for spec in graph.inputs]
        yield self.of((graph.assigns, objective.losses, objective.optimizers))
        yield self.of((plan.fetches, plan.losses, plan.feeds, plan.read_by_rules, plan.roots))
        yield [(self._blob(watch.blob), watch.diff) for watch in plan.watches]
        yield self.of((plan.assigns, plan.written, plan.read, [v.name for v in plan.trained]))
        yield self.of((plan.platform, plan.tensor_float_32, plan.without_native, plan.grids))
        yield plan.keeps_state, plan.x64, plan.random
        yield self.of(dict(storages))

    def _node(self, node: Node) -> Any:
        outputs = [
            (b.shape, b.dtype.name, b.blob_name, b.batch_axis, b.is_dynamic, b.is_tensor_list, self.of(b.valid_length))
            for b in node.outputs
        ]
        attrs = [(key, self.of(value)) for key, value in node.attrs.items()]
        inputs = list(map(self._blob, node.inputs))
        return node.name, node.run, self.of(node.op), inputs, attrs, self.of(node.scope), outputs, node.repetition

    @staticmethod
    def _node_reference(node: Node) -> Any:
        return f"node of {node.op.name}", node.name, node.run

    @staticmethod
    def _blob(blob: Blob) -> Any:
        d = blob.distribute
        return blob.node.name, blob.node.run, blob.index, d.kind, d.axis

    def _variable(self, v: Variable) -> Any:
        facts = v.name, v.shape, v.dtype.name, v.trainable, v.model_name, v.role, v.owner, v.blob is None
        return facts, self.of(v.regularizer), self.of(v.distribute), self.of(v.placement)

    def of(self, value: Any) -> Any:
        """A value as nested tuples."""
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind is tuple or kind is list:
            return kind.__name__, [self.of(each) for each in value]
        if kind is Blob:
            return self._blob(value)
        if kind is Distribute:
            return value.kind, value.axis
        if kind is Node:
            return self._node_reference(value)
        number = self._numbers.get(id(value))
        if number is not None:
            return "again", number
        self._numbers[id(value)] = len(self._kept)
        self._kept.append(value)
        return self._new(value)

    def _new(self, value: Any) -> Any:
        if isinstance(value, dtype):
            return "dtype", value.name
        if isinstance(value, Source):
            return "a line"
        if isinstance(value, Enum):
            return self._type(type(value)), value.name
        if isinstance(value, np.ndarray | np.generic):
            return self._array(np.asarray(value))
        if isinstance(value, np.dtype):
            return "NumPy", value.str, value.name
        if isinstance(value, Mapping):
            return type(value).__name__, [(self.of(k), self.of(v)) for k, v in value.items()]
        if isinstance(value, frozenset | set):
            return "set", sorted(repr(self.of(each)) for each in value)
        if isinstance(value, type):
            return "type", self._type(value)
        if isinstance(value, FunctionType | MethodType | BuiltinFunctionType | functools.partial | ModuleType | CodeType):
            return self._callable(value)
        return self._object(value)

    def _object(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(wrapped := getattr(value, "__wrapped__", None), FunctionType) and _belongs(
            kind.__module__, "jax", "jaxlib"
        ):
            return self._type(kind), self.of(wrapped), self.of(getattr(value, "__dict__", None) and _rules(value))
        if not _belongs(kind.__module__, _ROOT) or isinstance(value, Graph):
            raise NotDescribedError(f"a {kind.__module__}.{kind.__qualname__}")
        if is_dataclass(value):
            found = {field.name: getattr(value, field.name) for field in fields(value) if hasattr(value, field.name)}
        else:
            slots = [name for base in kind.__mro__ for name in base.__dict__.get("__slots__", ())]
            found = {name: getattr(value, name) for name in slots if hasattr(value, name) and name != "__weakref__"}
        found.update(getattr(value, "__dict__", {}))
        return self._type(kind), [(name, self.of(each)) for name, each in sorted(found.items())]

    def _type(self, kind: type) -> str:
        if not _belongs(kind.__module__, _ROOT, "jax", "jaxlib", "numpy", "builtins", "ml_dtypes", "math", "functools"):
            raise NotDescribedError(f"the class {kind.__module__}.{kind.__qualname__}")
        return f"{kind.__module__}.{kind.__qualname__}"

    @staticmethod
    def _array(array: np.ndarray) -> Any:
        if array.dtype.hasobject:
            raise NotDescribedError("an array of objects")
        digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
        return "array", array.dtype.str, array.dtype.name, array.shape, digest

    def _callable(self, value: Any) -> Any:
        if isinstance(value, functools.partial):
            return "partial", self.of(value.func), self.of(value.args), self.of(value.keywords)
        if isinstance(value, MethodType):
            return "method", self.of(value.__self__), self.of(value.__func__)
        if isinstance(value, ModuleType):
            if not _belongs(value.__name__, _ROOT, "jax", "numpy", "math"):
                raise NotDescribedError(f"the module {value.__name__}")
            return "module", value.__name__
        if isinstance(value, CodeType):
            return self._code(value)
        name = f"{value.__module__}.{value.__qualname__}"
        if isinstance(value, BuiltinFunctionType):
            if not isinstance(value.__self__, ModuleType | None):
                raise NotDescribedError(f"the method {name} of an object")
            return "built in", name
        if _belongs(str(value.__module__), "jax", "numpy") and value.__closure__ is None:
            return "function", name
        if not _belongs(str(value.__module__), _ROOT) or not self._is_of_module(value):
            raise NotDescribedError(f"the function {name}")
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        rest = self.of((value.__defaults__, value.__kwdefaults__, cells, getattr(value, "__wrapped__", None)))
        return "function", name, self._code(value.__code__), rest

    @staticmethod
    def _is_of_module(function: FunctionType) -> bool:
        """Whether its code was written in the library; a function of the user's may be named like one of ours."""
        return _belongs(str(function.__globals__.get("__name__")), _ROOT)

    def _code(self, code: CodeType) -> Any:
        """Which of a module's functions it is: the text of the module is digested with all source files."""
        constants = [self._code(each) if isinstance(each, CodeType) else self._constant(each) for each in code.co_consts]
        return code.co_name, code.co_firstlineno, code.co_code, code.co_names, constants

    @staticmethod
    def _constant(value: Any) -> str:
        return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _belongs(module: str, *roots: str) -> bool:
    return module.partition(".")[0] in roots


def _rules(value: Any) -> list[Callable[..., Any]]:
    """The functions that a ``jax.custom_vjp`` or ``jax.custom_jvp`` was given beside the one it wraps."""
    return [rule for name, rule in sorted(vars(value).items()) if name != "__wrapped__" and isinstance(rule, FunctionType)]
