"""Segments: groups of nodes that one place computes without waiting for another place."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..._base.dist import Placement
from ...errors import CompileError
from ...graph.graph import OP_VARIABLE
from ...graph.node import Blob, Node
from ..layout import Layout, Meshes, Storage, mesh_axes
from ..plan import Plan
from ..program import feed_layout

Key = tuple[Node, int]  # of a Blob, the same for all its handles
Place = tuple[Any, ...]  # devices in order, and their arrangement


def key_of(blob: Blob) -> Key:
    return blob.node, blob.index


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Nodes that one place computes at once.

    Attributes:
      index: its position in the order of execution.
      level: larger than those of the segments that it reads from; segments of one level do not depend on each other.
      run: index of the run of a repeated part; () outside such parts.
      imports: Blobs that it reads from elsewhere.
      exports: its Blobs that are read elsewhere.
      losses: the losses that it computes.
      diffs: its Blobs whose gradients are watched.
      on_path: whether it has nodes on the gradient path.
      is_fused: whether one function runs both passes, as no other segment sends it cotangents.
      like: index of the first segment with the same functions, often its own.
    """

    index: int
    level: int
    place: Place
    placement: Placement
    run: tuple[int, ...]
    nodes: tuple[Node, ...]
    imports: tuple[Blob, ...]
    exports: tuple[Blob, ...]
    losses: tuple[Blob, ...]
    diffs: tuple[Blob, ...]
    on_path: bool
    is_fused: bool
    like: int

    @property
    def is_random(self) -> bool:
        return any(node.op.random for node in self.nodes)

    def __str__(self) -> str:
        run = f" run {'.'.join(map(str, self.run))}" if self.run else ""
        return f"segment {self.index} on {self.placement}{run}"


class Places:
    """The places of a job's values and variables."""

    def __init__(self, plan: Plan, storages: dict[str, Storage], meshes: Meshes):
        self.plan = plan
        self.storages = storages
        self.meshes = meshes
        self.homes = {name: meshes.place(s.layout.placement) for name, s in storages.items()}

    def is_home(self, blob: Blob, place: Place) -> bool:
        """Whether ``blob`` is a variable that is stored on that place."""
        return blob.node.op is OP_VARIABLE and self.homes[blob.node.attrs["variable"]] == place

    def whole(self, placement: Placement) -> Any:
        """The sharding in which every device of a placement has the whole array."""
        return self.meshes.sharding(placement, ())

    def sharding(self, blob: Blob, placement: Placement) -> Any:
        """The sharding of a value on a placement: split along its batch axis if that yields even pieces."""
        if blob.node in self.plan.vmapped:
            same = placement.parallel_num == blob.parallel_size
            return self.meshes.sharding(placement, (tuple(mesh_axes(placement)),) if same else ())
        is_variable = blob.node.op is OP_VARIABLE
        layout = Layout.of(placement, blob.distribute) if is_variable else feed_layout(blob, placement, False)
        good = all(a is None or 0 <= a < blob.ndim for a in layout.splits) and layout.is_even(blob.shape)
        return self.meshes.sharding(placement, layout.spec(blob.ndim) if good else ())


def segments_of(plan: Plan, places: Places) -> tuple[Segment, ...]:
    """Groups the nodes of a job into segments, in execution order. Each run of a repeated part has its own segments."""
    grouped, levels, home = _grouped(plan, places.meshes)
    for loss in plan.losses:
        if loss.node not in home:
            raise CompileError(f"job {plan.graph.name!r}: its loss {loss.op_name!r} is not a computed value")
    needed: set[Key] = {key_of(b) for b in plan.roots}
    imports: list[dict[Key, Blob]] = [{} for _ in grouped]
    sent_cotangents: set[int] = set()  # segments that receive cotangents from others
    for node in plan.compute:
        at = home[node]
        for blob in node.inputs:
            source = home.get(blob.node)
            if source == at:
                continue
            needed.add(key_of(blob))
            imports[at].setdefault(key_of(blob), blob)
            if source is not None and node in plan.path and blob.node in plan.path:
                sent_cotangents.add(source)
    diffs = [b for w in plan.watches if w.diff for b in plan.on_devices(w.blob)]
    segments: list[Segment] = []
    first: dict[Any, int] = {}
    for i, nodes in enumerate(grouped):
        on_path = any(node in plan.path for node in nodes)
        placement = nodes[0].scope.placement
        segment = Segment(
            index=i,
            level=levels[i],
            place=places.meshes.place(placement),
            placement=placement,
            run=nodes[0].run,
            nodes=tuple(nodes),
            imports=tuple(imports[i].values()),
            exports=tuple(b for node in nodes for b in node.outputs if key_of(b) in needed),
            losses=tuple(b for b in plan.losses if home[b.node] == i),
            diffs=tuple(b for b in diffs if home.get(b.node) == i),
            on_path=on_path,
            is_fused=on_path and i not in sent_cotangents,
            like=i,
        )
        if segment.run:
            segment = replace(segment, like=first.setdefault(_signature(segment, places), i))
        segments.append(segment)
    return tuple(segments)


def homes_of(plan: Plan, meshes: Meshes) -> dict[Node, int]:
    """The index of the segment of each node."""
    return _grouped(plan, meshes)[2]


def _grouped(plan: Plan, meshes: Meshes) -> tuple[list[list[Node]], list[int], dict[Node, int]]:
    """The nodes of each segment, in execution order, their levels, and the segment of each node."""
    level: dict[Node, int] = {}
    place: dict[Node, Place] = {}
    groups: dict[tuple[int, Place, tuple[int, ...]], list[Node]] = {}
    for node in plan.compute:
        place[node] = here = meshes.place(node.scope.placement)
        sources = [b.node for b in node.inputs if b.node in level]
        level[node] = max((level[s] + (place[s] != here or s.run != node.run) for s in sources), default=0)
        groups.setdefault((level[node], here, node.run), []).append(node)
    by_level = sorted(groups.items(), key=lambda item: item[0][0])
    ordered = [nodes for _, nodes in by_level]
    return ordered, [key[0] for key, _ in by_level], {node: i for i, nodes in enumerate(ordered) for node in nodes}


def _signature(segment: Segment, places: Places) -> Any:
    """A key that is equal for segments that compute the same on arrays with the same shardings."""
    inside = set(segment.nodes)

    def describe(blob: Blob) -> tuple[Any, ...]:
        own = places.is_home(blob, segment.place)
        where = None if own else places.sharding(blob, segment.placement)
        name = blob.op_name if own or blob.node in inside else ""
        return name, blob.index, blob.shape, blob.dtype, str(blob.distribute), where

    position = {key_of(b): i for i, b in enumerate(segment.imports)}
    readers = tuple(tuple(position.get(key_of(b)) for b in node.inputs) for node in segment.nodes)
    nodes = tuple((node.name, node.op) for node in segment.nodes)
    blobs = (segment.imports, segment.exports, segment.losses, segment.diffs)
    return segment.place, nodes, readers, tuple(tuple(map(describe, b)) for b in blobs), segment.is_fused
