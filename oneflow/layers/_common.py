"""Code that all layers share: names, variables, activations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._base import dist
from .._base.dist import Distribute
from .._base.dtype import dtype as Dtype
from .._base.refuse import shown
from ..errors import ArgumentError
from ..graph.graph import current
from ..graph.node import Blob
from ..graph.scopes import namespace
from ..ops._emit import fail, want
from ..ops._names import given_name
from ..ops.variable import get_variable, want_new

Initializer = Any
Regularizer = Any
Activation = Any
Ints = int | Sequence[int]
Made = tuple[Initializer, Regularizer, str | None]  # a variable's initializer and regularizer, and its name where that was given


def layer_name(name: Any, kind: str, op_suffix: str) -> str:
    """The name that was given, or the next free one of this kind: ``Dense``, ``Dense_1``, ..."""
    graph = current(f"flow.layers, layer {kind}")
    given = given_name(name)
    if given is not None:
        if not isinstance(given, str) or not given:
            fail(ArgumentError, f"layer {kind}", f"name must be a non-empty str, got {shown(given)}")
        return given
    while True:
        fresh = graph.layer_name(kind)
        if graph.node(graph.scope.namespace + fresh + op_suffix) is None:  # no op was given this name by hand
            return fresh


def layer_variable(
    what: str,
    layer: str,
    kind: str,
    shape: tuple[int, ...],
    dtype: Dtype,
    default: Initializer,
    made: Made = (None, None, None),
    *,
    trainable: bool | None = None,
    distribute: Distribute = dist.broadcast(),  # noqa: B008 - an immutable singleton
) -> Blob:
    """A variable of a layer, ``<layer>-<kind>`` unless the user gave it a name. Two layers never share one."""
    initializer, regularizer, given = made
    name = want.label(what, f"{kind}_name", given) or f"{layer}-{kind}"
    graph = current(what)
    hint = "give this layer another name=; layers do not share variables, ops on a flow.get_variable can"
    want_new(f"get_variable {name!r}", graph, graph.scope.namespace + name, hint)
    return get_variable(
        name, shape, dtype, default if initializer is None else initializer, regularizer, trainable, kind, distribute=distribute
    )


def want_activation(what: str, activation: Activation) -> None:
    """A function; programs of 2019 pass numbers here, which mean none."""
    if not (activation is None or callable(activation) or isinstance(activation, int)):
        fail(ArgumentError, what, f"activation must be a function of (blob, name=...), got {shown(activation)}", (),
             "write activation=flow.nn.relu, without brackets")  # fmt: skip


def activated(y: Blob, activation: Activation, name: str) -> Blob:
    """``activation(y)`` in the layer's namespace; programs of 2019 pass numbers here, which mean none."""
    if not callable(activation):
        return y
    with namespace(name):
        try:
            made = activation(y, name="activation")
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                raise  # from inside the user's function
            made = error
    if not isinstance(made, Blob):
        rule = f"activation is called as f(blob, name=...) and must return a Blob: {shown(made)}"
        fail(ArgumentError, f"layer {name}", rule, (y,), "write activation=lambda x, name=None: ...")
    return made
