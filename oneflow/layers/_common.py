"""What all layers share: names, defaults, activations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._base.refuse import shown
from ..errors import ArgumentError
from ..graph.graph import current
from ..graph.node import Blob
from ..graph.scopes import namespace
from ..ops._emit import fail
from ..ops._names import given_name

Initializer = Any
Regularizer = Any
Activation = Any
Ints = int | Sequence[int]
Made = tuple[Initializer, Regularizer, str | None]  # how a variable is made, and its name where the user gave one


def layer_name(name: Any, kind: str, op_suffix: str) -> str:
    """The name given, or the next free one of this kind: ``Dense``, ``Dense_1``, ..."""
    graph = current(f"flow.layers, layer {kind}")
    given = given_name(name)
    if given is not None:
        if not isinstance(given, str) or not given:
            fail(ArgumentError, f"layer {kind}", f"name must be a non-empty str, got {shown(given)}")
        return given
    while True:
        fresh = graph.layer_name(kind)
        if graph.node(graph.scope.namespace + fresh + op_suffix) is None:  # nobody has given it by hand
            return fresh


def chosen(initializer: Initializer, default: Initializer) -> Initializer:
    return default if initializer is None else initializer


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
        rule = f"activation is called as f(blob, name=...) and must give a Blob: {shown(made)}"
        fail(ArgumentError, f"layer {name}", rule, (y,), "write activation=lambda x, name=None: ...")
    return made
