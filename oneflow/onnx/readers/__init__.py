"""How ONNX nodes are read: one function per op type, in files that mirror those of ``rules``."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np

from ..._base.registry import enter
from ...graph.node import Blob

Read = Callable[..., Any]
# for training, of the first opsets, for how a result is stored, and what a convolution's weights say, too
_WITHOUT_EFFECT = ("seed", "momentum", "consumed_inputs", "spatial", "stash_type", "kernel_shape")
_READERS: dict[str, Read] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A value that does not depend on the job's inputs. ``weight``: it is an initializer of the file, or made of one."""

    array: np.ndarray
    name: str
    weight: bool = False


class NotRead(Exception):
    """A use of a node that has no counterpart here; the text says why."""


def reads(*kinds: str) -> Callable[[Read], Read]:
    """Registers a function as the reader of op types: from a ``Reader`` and the node's inputs it returns the node's outputs."""

    def register(function: Read) -> Read:
        for kind in kinds:
            enter(_READERS, kind, function, f"a reader for {kind!r}")
        return function

    return register


@lru_cache(maxsize=1)
def readers() -> Mapping[str, Read]:
    """All readers, by op type."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return _READERS


class Reader:
    """The current node, for its reader."""

    def __init__(self, reading: Any, node: Any, opset: int):
        self._reading = reading
        self.node = node
        self.opset = opset
        self._attrs = {a.name: a for a in node.attribute}
        self._asked = set(_WITHOUT_EFFECT)

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute, as Python numbers, lists and text."""
        self._asked.add(name)
        found = self._attrs.get(name)
        return default if found is None else self._plain(found)

    def _plain(self, attribute: Any) -> Any:
        value = self._reading.model._onnx.helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            return value.decode()
        return value if isinstance(value, (int, float)) or hasattr(value, "DESCRIPTOR") else list(value)

    def refuse_others(self) -> None:
        """Raises NotRead for an attribute that nobody asked for, unless it is what ONNX takes without it."""
        left = {name: self._plain(found) for name, found in self._attrs.items() if name not in self._asked}
        if not left:
            return
        onnx = self._reading.model._onnx
        try:
            known = onnx.defs.get_schema(self.node.op_type, self.opset, self.node.domain).attributes
        except onnx.defs.SchemaError:
            known = {}
        for name, value in left.items():
            default = known[name].default_value if name in known else None
            if default is None or not default.type or self._plain(default) != value:
                self.refuse(f"its attribute {name}={value!r} has no counterpart")

    def blob(self, value: Any) -> Blob:
        return self._reading.blob(value)

    def array(self, value: Any) -> np.ndarray | None:
        """The array of a value that does not depend on the job's inputs; None for others."""
        return None if value is None or isinstance(value, Blob) else value.array

    def number(self, value: Any) -> float | int | None:
        """A single number that does not depend on the job's inputs and is not a weight."""
        array = self.array(value)
        return array.item() if array is not None and array.size == 1 and not value.weight else None

    def ints(self, value: Any, what: str) -> Any:
        """Numbers that must be known when the body runs; None where the input is missing."""
        if value is None:
            return None
        array = self.array(value)
        if array is None:
            self.refuse(f"{what} depends on the model's inputs")
        return [int(v) for v in array.reshape(-1)]

    def axes(self, value: Any, default: Sequence[int] | None = None) -> Any:
        """Axes, which older opsets have as an attribute."""
        found = self.attr("axes") if "axes" in self._attrs else self.ints(value, "axes")
        return default if found is None else found

    @staticmethod
    def along(axis: int, start: int | None, stop: int | None, step: int | None = 1) -> Any:
        """A slice of one axis, as ``flow.slice_v2`` takes it."""
        return [(None, None, None)] * axis + [(start, stop, step)]

    def rank(self, i: int, blob: Blob) -> int:
        """The rank that an input has in ONNX."""
        return 0 if self.node.input[i] in self._reading.scalars else blob.ndim

    def known(self, array: np.ndarray) -> Any:
        """A result that does not depend on the model's inputs."""
        return Known(array, self.node.output[0])

    def numbers(self, array: np.ndarray, what: str) -> Blob:
        """Numbers that the node needs besides its inputs, as a Blob."""
        return self.blob(Known(array, f"{self.node.output[0]}_{what}"))

    def refuse(self, why: str) -> NoReturn:
        raise NotRead(why)
