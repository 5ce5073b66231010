"""Scopes: the placement, view, namespace and options that are current while a job's body is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from .._base.dist import Placement, parse_placement
from .._base.refuse import refuse, shown, warn
from ..errors import ArgumentError, JobWarning
from .graph import Graph, current, current_or_none
from .node import Scope


class _ScopeContext:
    """A context manager that changes the current scope; it can be entered again, and nested."""

    def __init__(self, what: str, change: Callable[[Scope], Scope]):
        self._what = what
        self._change = change
        self._outer: list[tuple[Graph, Scope]] = []

    def __enter__(self) -> Scope:
        graph = current(self._what)
        self._outer.append((graph, graph.scope))
        graph.scope = self._change(graph.scope)
        return graph.scope

    def __exit__(self, *exc: object) -> None:
        graph, outer = self._outer.pop()
        graph.scope = outer

    def __repr__(self) -> str:
        return f"<{self._what}>"


class PlacementScope(_ScopeContext):
    """Made by ``placement(...)``; also a value for ``FunctionConfig.default_placement_scope``."""

    def __init__(self, placement: Placement):
        if not isinstance(placement, Placement):
            refuse(ArgumentError, f"a PlacementScope needs a placement, got {shown(placement)}",
                   hint='flow.scope.placement("gpu", "0:0-3") makes one')  # fmt: skip
        super().__init__(f"flow.scope.placement({placement})", lambda scope: scope.replaced(placement=placement))
        self.placement = placement

    def __enter__(self) -> Scope:
        if current_or_none() is not None:
            return super().__enter__()
        # as in OneFlow, where programs declare jobs inside one
        warn(JobWarning, f"{self._what} has no effect outside of a job; enter it in the job's body, or give it to "
             "func_config.default_placement_scope")  # fmt: skip
        return Scope(self.placement)

    def __exit__(self, *exc: object) -> None:
        if current_or_none() is not None:
            super().__exit__(*exc)


class View(_ScopeContext):
    """Made by ``consistent_view()`` and ``mirrored_view()``; also a value for ``default_logical_view``."""

    def __init__(self, name: str):
        if not isinstance(name, str) or name not in ("consistent", "mirrored"):
            refuse(ArgumentError, f'a View is "consistent" or "mirrored", got {shown(name)}',
                   hint="flow.scope.consistent_view() or flow.scope.mirrored_view()")  # fmt: skip
        super().__init__(f"flow.scope.{name}_view()", lambda scope: scope.replaced(view=name))
        self.name = name


def placement(device_tag: str, machine_device_ids: str | Iterable[str], hierarchy: Iterable[int] | None = None) -> PlacementScope:
    """Ops made inside run on these devices, and the variables declared inside live there.

    Args:
      device_tag: "gpu" or "cpu".
      machine_device_ids: "machine:device", "machine:first-last" (inclusive), or a list of such strings.
      hierarchy: sizes of an arrangement in rows and columns, such as (2, 4), for layouts with one entry per axis of it
        (``flow.hierarchical_parallel_cast``); None: all devices in one row.
    Raises:
      ArgumentError: the tag or a string is not one of these; the hierarchy has another number of devices.
    Example:
      >>> with flow.scope.placement("gpu", "0:0-3"):
      ...     y = flow.layers.dense(x, 10)
    """
    return PlacementScope(parse_placement(device_tag, machine_device_ids, hierarchy))


def device(device_tag_and_id: str) -> PlacementScope:
    """``flow.device("gpu:0")``: the placement of one device of this machine, in the spelling of v0.1.

    Args:
      device_tag_and_id: "gpu:0", "cpu:1", ...
    Raises:
      ArgumentError: another form.
    """
    tag, colon, number = device_tag_and_id.partition(":") if isinstance(device_tag_and_id, str) else ("", "", "")
    if not colon or not number.isdecimal():
        refuse(ArgumentError, f'flow.device needs a string such as "gpu:0", got {shown(device_tag_and_id)}')
    return placement(tag, f"0:{number}")


def namespace(name: str) -> _ScopeContext:
    """Puts ``name-`` in front of the names of the ops and variables made inside; nested namespaces join: ``a-b-weight``.

    Example: >>> with flow.scope.namespace("block"): y = flow.layers.dense(x, 4, name="dense")   # block-dense-weight, ...
    """
    if not isinstance(name, str):
        refuse(ArgumentError, f"flow.scope.namespace needs a str, got {shown(name)}")
    return _ScopeContext(
        f"flow.scope.namespace({shown(name)})", lambda scope: scope.replaced(namespace=f"{scope.namespace}{name}-")
    )


class consistent_view(View):
    """``with flow.scope.consistent_view():`` one logical tensor, whatever the number of devices."""

    def __init__(self) -> None:
        super().__init__("consistent")


class mirrored_view(View):
    """``with flow.scope.mirrored_view():`` one tensor per device."""

    def __init__(self) -> None:
        super().__init__("mirrored")


DistributeConsistentStrategy = consistent_view
DistributeMirroredStrategy = mirrored_view


def consistent_view_enabled() -> bool:
    """Whether the consistent view is current; False outside jobs.

    Example:
      >>> with flow.scope.consistent_view():
      ...     flow.scope.consistent_view_enabled()   # True
    """
    graph = current_or_none()
    return graph is not None and graph.scope.view == "consistent"


def mirrored_view_enabled() -> bool:
    """Whether the mirrored view is current; False outside jobs.

    Example:
      >>> with flow.scope.mirrored_view():
      ...     flow.scope.mirrored_view_enabled()   # True
    """
    graph = current_or_none()
    return graph is not None and graph.scope.view == "mirrored"


_OPTIONS = {
    "checkpointing": bool, "ssp_num_stages": int, "ssp_stage_id": int, "pipeline_stage_id_hint": int,
    "quantization_aware_training": bool,
}  # fmt: skip


def config(**options: Any) -> _ScopeContext:
    """Options for the ops made inside: ``checkpointing``, ``ssp_num_stages``, ``ssp_stage_id``, ...

    Raises:
      ArgumentError: an unknown option, or a value of another type.
    Example: >>> with flow.experimental.scope.config(checkpointing=True): y = flow.math.relu(x)
    """
    for name, value in options.items():
        if name not in _OPTIONS or type(value) is not _OPTIONS[name]:
            known = ", ".join(f"{n}: {t.__name__}" for n, t in _OPTIONS.items())
            refuse(ArgumentError, f"scope option {name}={shown(value)}: known options are {known}")
    return _ScopeContext("flow.experimental.scope.config", lambda scope: scope.replaced(options={**scope.options, **options}))


def current_scope() -> Scope:
    """The scope that is current in the job being described."""
    return current("flow.current_scope()").scope


@contextmanager
def graph_scope(scope: Scope) -> Iterator[None]:
    """Makes exactly this scope current; for code of the library that adds nodes later."""
    graph = current()
    outer, graph.scope = graph.scope, scope
    try:
        yield
    finally:
        graph.scope = outer
