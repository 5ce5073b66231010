"""What an op is: a function over arrays, and the few things that cannot be derived from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class OpDef:
    """One kind of node.

    Attributes:
      name: the op's type, e.g. ``conv2d``.
      define: ``define(*arrays, **attrs)`` gives the output array, or a tuple of them where ``multiple``. It is the
        lowering; the shape rule is its abstract evaluation, the gradient its vjp.
      grad: ``grad(inputs, outputs, cotangents, **attrs)`` gives one cotangent (or None for zero) an input, where the
        op's gradient is not what calculus says of ``define``. ``inputs``, ``outputs`` and ``cotangents`` are tuples.
      stops: positions of inputs that never receive a gradient (labels, indices, masks); True for all of them.
      multiple: the op has a tuple of outputs.
      samples: positions of the inputs of which sample i (index i on axis 0) alone goes into sample i of the outputs, while
        the other inputs matter as a whole; several where operands broadcast. Empty where samples mix.
      channels_last: ``channels_last(attrs, rank)`` gives the attributes under which the op computes the same on arrays whose
        axis 1 was moved to the end; None where it has none for these attributes. ``as_is`` for elementwise ops.
      heavy: worth running on slices of the batch (see ``compiler/batch_slices.py``).
      random: ``define`` takes a further keyword ``key``, a JAX random key that differs from call to call.
    """

    name: str
    define: Callable[..., Any]
    grad: Callable[..., tuple[Any, ...]] | None = None
    stops: frozenset[int] | bool = frozenset()
    multiple: bool = False
    random: bool = False
    samples: tuple[int, ...] = ()
    channels_last: Callable[[Mapping[str, Any], int], Mapping[str, Any] | None] | None = None
    heavy: bool = False

    def stops_at(self, position: int) -> bool:
        """Whether no gradient flows to the input at ``position``."""
        return self.stops if isinstance(self.stops, bool) else position in self.stops

    def __repr__(self) -> str:
        return f"<op {self.name}>"


def as_is(attrs: Mapping[str, Any], rank: int) -> Mapping[str, Any]:
    """``channels_last`` of ops that look at no axis."""
    return attrs
