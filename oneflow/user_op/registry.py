"""A row of the table of registered ops: names of inputs, outputs and attributes, and a function that adds the op to a job."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .._base.dtype import dtype
from .._base.jax import jax
from .._base.refuse import shown
from ..errors import ArgumentError
from ..graph.node import Blob
from ..graph.op import OpDef
from ..ops._emit import emit_many, fail

Inputs = Mapping[str, Any]  # a Blob, a list of them where an input is repeated, None where it is not bound
Attributes = Mapping[str, Any]
Build = Callable[[Inputs, Attributes, str], Any]
FIRST, LAST = -(2**63), 2**63 - 1  # bounds of a slice that leaves them out
REGISTRY: dict[str, Registered] = {}
NEWER: dict[str, tuple[Registered, ...]] = {}  # forms of 0.4 to 0.6, of these types and of further ones

_ROW = re.compile(r"(\w+) \((.*?)\) -> \((.*?)\)(?: \{(.*)\})?$", re.DOTALL)
_NAME = re.compile(r"(\w+)(\?|\(>=(\d)\))?")
_LIST_OF = {"int32": int, "int64": int, "float": float, "str": str, "Shape": (list, tuple), "dtype": dtype}
_ONE = {"int32": int, "int64": int, "float": float, "double": float, "bool": bool, "str": str, "dtype": dtype}


@dataclass(frozen=True, slots=True)
class Argument:
    """An input or output: one Blob, or none where it is ``optional``, or ``least`` or more of them where that is not None."""

    name: str
    optional: bool
    least: int | None


@dataclass(frozen=True, slots=True)
class Attribute:
    """An attribute: its type, in the registry's spelling, and its default where ``has_default``."""

    name: str
    type_name: str
    has_default: bool
    default: Any

    def check(self, what: str, value: Any) -> Any:
        """The value, of exactly the attribute's type; lists and shapes as tuples."""
        kind = self.type_name
        if kind == "Shape" or kind.startswith("list["):
            of = int if kind == "Shape" else _LIST_OF[kind[5:-1]]
            if not isinstance(value, (list, tuple)) or not all(_is(v, of) for v in value):
                fail(ArgumentError, what, f"attribute {self.name!r} takes a list or tuple of {kind}, got {shown(value)}")
            return tuple(tuple(v) if isinstance(v, list) else v for v in value)
        if not _is(value, _ONE[kind]):
            hint = f"write {float(value)}" if _ONE[kind] is float and type(value) is int else ""
            named = "a flow dtype" if kind == "dtype" else f"{_ONE[kind].__name__} ({kind})"
            fail(ArgumentError, what, f"attribute {self.name!r} takes {named}, got {shown(value)}", (), hint)
        return value


def _is(value: Any, kind: Any) -> bool:
    return type(value) is kind if isinstance(kind, type) else isinstance(value, kind)


class Registered:
    """One op type; its row is parsed when it is used.

    ``build(inputs, attributes, name)`` returns the outputs: a Blob, a sequence in the order of ``outputs``, or a dict by name;
    None for ops that only have an effect. ``why_not`` is the reason why a type is refused.
    """

    def __init__(self, type_name: str, text: str, build: Build | None, why_not: str = ""):
        self.type_name = type_name
        self.build = build
        self.why_not = why_not
        self._text = text

    @cached_property
    def _parts(self) -> tuple[Any, ...]:
        match = _ROW.match(" ".join(self._text.split()))
        assert match is not None, self._text
        return match.groups()

    @cached_property
    def inputs(self) -> tuple[Argument, ...]:
        """The inputs, in order."""
        return _arguments(self._parts[1])

    @cached_property
    def outputs(self) -> tuple[Argument, ...]:
        """The outputs, in order."""
        return _arguments(self._parts[2])

    @cached_property
    def attributes(self) -> Mapping[str, Attribute]:
        """The attributes, by name."""
        return _attributes(self._parts[3])


def _arguments(text: str) -> tuple[Argument, ...]:
    found = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        match = _NAME.fullmatch(part)
        assert match is not None, part
        found.append(Argument(match[1], match[2] == "?", None if match[3] is None else int(match[3])))
    return tuple(found)


def _attributes(text: str | None) -> dict[str, Attribute]:
    found = {}
    for part in filter(None, (p.strip() for p in (text or "").split(";"))):
        head, equals, default = part.partition("=")
        name, _, kind = head.partition(":")
        value = eval(default, {"__builtins__": {}}, {}) if equals else None  # noqa: S307 - literals of our own table
        found[name.strip()] = Attribute(name.strip(), kind.strip(), bool(equals), value)
    return found


def row(text: str, build: Build | None, why_not: str = "") -> None:
    """Adds ``type (input, optional?, repeated(>=2)) -> (output) {attribute: type = default; ...}`` to the table."""
    made = Registered(text.partition(" ")[0], text, build, why_not)
    if REGISTRY.setdefault(made.type_name, made) is not made:
        raise ValueError(f"{made.type_name} is in the table twice")


def newer(text: str, build: Build) -> None:
    """Adds a form of 0.4 to 0.6, of a type in the table or of another one."""
    made = Registered(text.partition(" ")[0], text, build)
    NEWER[made.type_name] = (*NEWER.get(made.type_name, ()), made)


# --- the functions of rows


def call(path: str, *arguments: str, **keywords: str) -> Build:
    """Calls a function of ``flow``, given by its path, with inputs and attributes by their names, and with the op's name."""

    def build(inputs: Inputs, attributes: Attributes, name: str) -> Any:
        known = {**inputs, **attributes}
        function: Any = importlib.import_module(__package__.partition(".")[0])
        for part in path.split("."):
            function = getattr(function, part, None)
            if function is None:
                fail(ArgumentError, f"user op {name!r}", f"it needs flow.{path}, which this release does not have")
        given = {k: known[v] for k, v in keywords.items() if known[v] is not None}
        return function(*(known[a] for a in arguments), name=name, **given)

    return build


def arrays(function: Callable[..., Any], *inputs: str, outputs: int = 1, differentiable: bool = False) -> Build:
    """Calls a function over JAX arrays: the named inputs, and the attributes by keyword."""

    def build(given: Inputs, attributes: Attributes, name: str) -> Any:
        return emit_arrays(function, [given[n] for n in inputs], attributes, name, outputs, differentiable)

    return build


def emit_arrays(
    function: Callable[..., Any], blobs: Sequence[Blob], attributes: Attributes, name: str, outputs: int = 1,
    differentiable: bool = False, op_name: str | None = None,
) -> tuple[Blob, ...]:  # fmt: skip
    """Adds an op over arrays that exists for one row alone."""

    def define(*xs: Any, **attrs: Any) -> tuple[Any, ...]:
        made = function(*xs, **attrs)
        return made if outputs > 1 else (made,)

    title = op_name or getattr(function, "__name__", "user_op").strip("_<>") or "user_op"
    op = OpDef(title, define, nondifferentiable=not differentiable, multiple_results=True)
    return emit_many(op, *blobs, name=name, **attributes)


def as_array(number: Any, like: Any) -> Any:
    """A number in an array's dtype."""
    return jax.numpy.asarray(number, like.dtype)


def whole(value: Any) -> int:
    """A number of elements as a Python int."""
    return int(np.prod(value))
