"""The gradient of a registered op as another op: the forward op's nodes, run backwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._base import dtype as dtypes
from .._base.source import caller
from ..compiler.analysis import gradient_path
from ..compiler.autodiff import Backward, run_nodes
from ..compiler.lowering import Lowering, Values
from ..graph.graph import OP_INPUT, Graph, current, tracing
from ..graph.node import Blob, Scope
from .registry import Attributes, Build, Inputs, emit_arrays

Forward = Callable[[Mapping[str, Blob]], Any]


def pulled_back(forward: Forward, names: Sequence[str], arrays: Sequence[Any], cotangent: Any, wanted: Sequence[str],
                scope: Scope, output: int = 0) -> tuple[Any, ...]:  # fmt: skip
    """On arrays: the gradients of an op over Blobs with respect to its inputs ``wanted``."""
    graph = Graph("gradient", train=True, scope=scope.replaced(namespace=""))
    with tracing(graph):
        inputs = {
            n: graph.add_input(n, tuple(a.shape), dtypes.from_numpy(a.dtype), "Numpy", 0, caller())
            for n, a in zip(names, arrays, strict=True)
        }
        made = forward(inputs)
    result = made[output] if isinstance(made, (list, tuple)) else made
    path = gradient_path(graph.nodes, [result], {inputs[n].node for n in wanted})
    values = Values(Lowering())
    for n, a in zip(names, arrays, strict=True):
        values[inputs[n].node] = (a,)
    propagates = run_nodes([n for n in graph.nodes if n.op is not OP_INPUT], values, None, path)
    backward = Backward()
    backward.add(result, cotangent)
    backward.run(propagates)
    found = [backward.get(inputs[n]) for n in wanted]
    return tuple(a * 0 if g is None else g for g, a in zip(found, (arrays[list(names).index(n)] for n in wanted), strict=True))


def gradient(build: Build, forward: Mapping[str, str], wanted: Sequence[str], cotangent: str = "dy", output: int = 0) -> Build:
    """The ``build`` of a gradient op's row.

    Args:
      build: that of the forward op.
      forward: the names of the forward op's inputs, each with the gradient op's input that holds its value.
      wanted: the forward op's inputs whose gradients are the outputs.
      cotangent: the gradient op's input that holds the gradient with respect to the forward op's output number ``output``.
    """

    def made(given: Inputs, attributes: Attributes, name: str) -> Any:
        scope, names = current("user op").scope, list(forward)

        def grad(*xs: Any) -> Any:
            run: Forward = lambda inputs: build({**dict.fromkeys(forward), **inputs}, attributes, "forward")  # noqa: E731
            found = pulled_back(run, names, xs[:-1], xs[-1], wanted, scope, output)
            return found if len(wanted) > 1 else found[0]

        blobs = [given[source] for source in forward.values()]
        return emit_arrays(grad, [*blobs, given[cotangent]], {}, name, len(wanted), op_name="gradient")

    return made
