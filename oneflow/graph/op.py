"""What an op is: a function over arrays, and the few things that cannot be derived from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Native:
    """Another lowering of an op, by the native part, for CPUs.

    Attributes:
      lower: ``lower(*arrays, **attrs)``, in place of the op's ``define`` where ``unsupported_reason`` is None. The gradient
        is its vjp.
      unsupported_reason: ``unsupported_reason(arrays, attrs)`` says why it cannot compute a call; None where it can.
        ``arrays`` have shape and dtype.
      describe: ``describe(arrays, attrs)`` names the kernel that computes a call.
      sharded: it takes arrays that are sharded over several devices; ``lower`` is then given ``sharded=True``.
    """

    lower: Callable[..., Any]
    unsupported_reason: Callable[[Sequence[Any], Mapping[str, Any]], str | None]
    describe: Callable[[Sequence[Any], Mapping[str, Any]], str]
    sharded: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class HostRule:
    """How an op runs on the host, over NumPy values, before the step.

    A Blob's value there is an ndarray; of a Blob of tensor buffers or records a list with one element for each, in row-major
    order; of a tensor list a tuple of ndarrays.

    Attributes:
      run: ``run(*values, **attrs)`` gives the output, or a tuple of them where the op is ``multiple``. Of a reader:
        ``run(seed, **attrs)`` gives an object with ``next()`` (a tuple: the outputs of the next batch), ``mark()`` (cheap: a
        function that tells where it stood, JSON-able), ``restore(state)`` and ``close()``. ``next`` that raises may leave the
        reader anywhere: it is made anew, and restored.
      reader: ``run`` makes a reader, which is asked for one batch a call, in order.
      samples: sample i of the inputs alone goes into sample i of the outputs, so that parts of a batch may run side by side.
      random: ``random(seed, call, count, **attrs)`` gives an array with a row of random numbers for each sample of a call, of
        which ``run`` gets its own as a further keyword ``draws``. ``seed`` is the op's attribute of that name, or one of the
        session's and the node's name; neither of the functions gets the attribute.
      only: the op runs nowhere else. Others run on the host where a host op needs their output.
    """

    run: Callable[..., Any]
    reader: bool = False
    samples: bool = False
    random: Callable[..., Any] | None = None
    only: bool = True


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
      native: its lowering by the native part, where it has one.
      random: ``define`` takes a further keyword ``key``, a JAX random key that differs from call to call.
      callback: it runs Python code of the user's in the middle of a step (see ``graph/callback.py``).
      host: how it runs on the host, for readers, decoders, image ops and their like (see ``compiler/hosting.py``).
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
    native: Native | None = None
    host: HostRule | None = None
    callback: bool = False

    @property
    def on_host(self) -> bool:
        """Whether it can run on the host alone."""
        return self.host is not None and self.host.only

    def stops_at(self, position: int) -> bool:
        """Whether no gradient flows to the input at ``position``."""
        return self.stops if isinstance(self.stops, bool) else position in self.stops

    def __repr__(self) -> str:
        return f"<op {self.name}>"


def as_is(attrs: Mapping[str, Any], rank: int) -> Mapping[str, Any]:
    """``channels_last`` of ops that look at no axis."""
    return attrs
