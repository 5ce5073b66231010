"""The plan of a job: what its step takes, computes and returns, as decided by a list of passes.

Plans are immutable: a pass returns a new plan. Planning a graph twice yields equal plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from .._base.dtype import dtype
from .._base.jax import jax
from ..errors import ModeError
from ..graph.graph import OP_INPUT, OP_TO_MIRRORED, OP_VARIABLE, Graph, Variable, Watch
from ..graph.node import Blob, Node
from . import native, precision
from .analysis import ancestors, gradient_path
from .arrangement import Arrangement, arranged
from .attention import FoundAttention
from .expansion import Expansion, expand
from .fused_update import fused_updates, multiplied_once
from .host_plan import HostPlan, host_plan_of
from .indexed_slices import gathers_of
from .layout import Storage
from .lowering import replicated_variables, vmapped_nodes

if TYPE_CHECKING:
    from .fusion import Fused
    from .int8 import Rewritten
    from .int8_kernels import Grid

RANDOM_STATE = "random state"  # uint32[3]: two words of seed and the number of calls so far
LEARNING_RATES = "learning rates"  # float32, one for each optimizer; those that are not constant are not read
PREPARED = "prepared "  # with a number: a value that depends on variables alone, computed when one has changed


def is_variable(name: str) -> bool:
    """Whether a name in ``Plan.read`` or ``Plan.written`` is that of a variable, not of state of another kind."""
    return name not in (RANDOM_STATE, LEARNING_RATES) and not name.startswith(PREPARED)


class PassRecord(NamedTuple):
    """The name of a pass, and a description of what it changed."""

    name: str
    changed: str


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The inputs, computations and results of a job's program.

    Attributes:
      order: the nodes that the job needs, in topological order.
      fetches: the Blobs that the step returns.
      watches: the watched Blobs, with their handlers.
      losses: the Blobs that are minimised, those of all runs.
      assigns: the Blobs that are stored into variables, by the variables' names.
      trained: the variables that the job updates.
      read_by_rules: the Blobs that update rules read: learning rates, the step, the indices of row-sparse updates.
      gathers: the ops that gather from variables whose updates are row-sparse, by the variables' names.
      platform: of the devices that it is compiled for: "cpu", "gpu" or "tpu".
      tensor_float_32: whether products of float32 may be rounded, as accelerators do by default (``compiler/options.py``).
      cudnn_attention: whether cuDNN is to compute attention on GPUs (``compiler/cudnn_attention.py``).
      attention: what it computes.
      without_native: the reason why no op takes its native lowering; "" if some may.
      grids: of the values that int8 inference rounds, by logical Blob name; None where the job is not one of int8.
      preparation: the nodes that compute ``prepared``, Blobs that depend on variables alone, when a variable has changed.
      int8: what int8 inference changed.
      fused_updates: the native kernels that update variables in one pass, by the variables' names.
      fused_kernels: what computes nodes that are part of a larger call, and products of 8-bit integers.
      host: the part that runs on the host before the step.
      expansion: the copies of nodes in repeated parts.
      precision: the dtypes of nodes that compute in a narrower dtype.
      path: the nodes on the gradient path.
      roots: the Blobs that are read by something other than a node.
      written: names of the state that a call replaces (it is donated); RANDOM_STATE comes last if ``random``.
      read: names of the state that a call reads and does not replace; LEARNING_RATES comes last if a rate is constant.
      random: whether a node draws random numbers.
      feeds: the Blobs that the step takes: inputs of the job, then results of the host.
      x64: whether 64-bit values may occur, so that calls need JAX's 64-bit mode.
      replicated: names of the variables that have a separate value on every device.
      vmapped: the nodes whose values have a leading axis of devices.
      devices: the copies of mirrored nodes, one per device, if the shapes of the devices' tensors differ.
      arrangement: the arrangement of the nodes on the devices of one place; None where there are several places.
      keeps_state: state is not donated, so that it survives a step that turns out to have failed.
      names_kernels: a GPU's trace is to tell of each kernel which instruction it is.
      notes: sentences on what the compiler did with the job, for reports.
      passes: the passes that made this plan.
    """

    graph: Graph
    order: tuple[Node, ...]
    fetches: tuple[Blob, ...]
    watches: tuple[Watch, ...] = ()
    losses: tuple[Blob, ...] = ()
    assigns: Mapping[str, Blob] = field(default_factory=dict)
    trained: tuple[Variable, ...] = ()
    read_by_rules: tuple[Blob, ...] = ()
    gathers: Mapping[str, tuple[Node, ...]] = field(default_factory=dict)
    platform: str = "cpu"
    tensor_float_32: bool = True
    cudnn_attention: bool = False
    attention: FoundAttention = FoundAttention()
    without_native: str = ""
    grids: Mapping[str, Grid] | None = None
    preparation: tuple[Node, ...] = ()
    prepared: tuple[Blob, ...] = ()
    int8: str = ""
    fused_updates: Mapping[str, str] = field(default_factory=dict)
    fused_kernels: Mapping[Node, str] = field(default_factory=dict)
    host: HostPlan = HostPlan()
    expansion: Expansion = Expansion()
    precision: Mapping[Node, dtype] = field(default_factory=dict)
    path: frozenset[Node] = frozenset()
    roots: tuple[Blob, ...] = ()
    written: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    random: bool = False
    feeds: tuple[Blob, ...] = ()
    x64: bool = False
    replicated: frozenset[str] = frozenset()
    vmapped: frozenset[Node] = frozenset()
    devices: Mapping[Node, tuple[Node, ...]] = field(default_factory=dict)
    arrangement: Arrangement | None = None
    keeps_state: bool = False
    names_kernels: bool = False
    notes: tuple[str, ...] = ()
    passes: tuple[PassRecord, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the host computes everything that a call returns, so that there is no step."""
        return bool(self.host) and not (self.fetches or self.watches or self.written)

    @property
    def transactional(self) -> bool:
        """Whether a step can fail half-way, as it runs Python code of the user. Its state is then not donated, and the new state
        is committed only when the step is over."""
        return self.keeps_state or any(node.op.callback for node in self.order)

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the variables that the step, or its preparation, only reads."""
        prepared = (node.attrs["variable"] for node in self.preparation if node.op is OP_VARIABLE)
        return tuple(dict.fromkeys((*filter(is_variable, self.read), *prepared)))

    @property
    def compute(self) -> list[Node]:
        """The nodes of ``order`` other than inputs and variables."""
        return [node for node in self.order if node.op not in (OP_INPUT, OP_VARIABLE)]

    def standing_for(self, node: Node) -> Node:
        """The first copy of a node of the graph, or the node itself."""
        return self.expansion.copies.get(node, (node,))[0]

    def on_devices(self, blob: Blob) -> tuple[Blob, ...]:
        """The copies of a Blob on the devices, or the Blob itself."""
        copies = self.devices.get(blob.node)
        return (blob,) if copies is None else tuple(node.outputs[blob.index] for node in copies)

    @property
    def repeats(self) -> bool:
        """Whether parts of the job run several times per call."""
        return bool(self.expansion.copies)

    @property
    def runs_of_loss(self) -> int:
        """How many times per call each device computes each loss."""
        if self.devices:
            return 1
        return len(self.losses) // max(len(self.graph.objective.losses), 1)

    def load(self, name: str, stored: Any, storages: Mapping[str, Storage]) -> Any:
        """The value of a variable (or of the random state) as nodes read it."""
        return storages[name].load(stored, each=name in self.replicated) if is_variable(name) else stored

    def token_is_needed(self) -> bool:
        """Whether a call must return a token that is ready when it is over.

        State may have been donated to the next call by then, and JAX returns unchanged inputs before the call has run, so that
        neither says so.
        """
        return not any(b.node.op not in (OP_INPUT, OP_VARIABLE) for b in self.fetches)


@dataclass(frozen=True, slots=True)
class Pass:
    """A function from plan to plan. ``changed`` describes its effect on the plan it returned; "" for none."""

    name: str
    run: Callable[[Plan], Plan]
    changed: Callable[[Plan], str]

    def __call__(self, plan: Plan) -> Plan:
        made = self.run(plan)
        return replace(made, passes=(*plan.passes, PassRecord(self.name, self.changed(made))))


def plan(
    graph: Graph,
    fetches: Sequence[Blob],
    *,
    native_ops: bool = True,
    tensor_float_32: bool = True,
    cudnn_attention: bool = False,
    platform: str | None = None,
    grids: Mapping[str, Grid] | None = None,
) -> Plan:
    """Plans a graph without tracing anything.

    Args:
      native_ops: whether ops may take their native lowerings.
      tensor_float_32: whether accelerators may round the factors of float32 products.
      cudnn_attention: whether cuDNN is to compute attention on GPUs.
      platform: of the devices, that of JAX's default backend if None.
      grids: for int8 inference, see ``Plan.grids``.
    """
    platform = platform or jax.default_backend()
    without = "" if native_ops else native.SWITCHED_OFF
    without = without or ("" if platform == "cpu" else native.NO_CPU)
    found = Plan(
        graph,
        order=tuple(graph.nodes),
        fetches=tuple(fetches),
        watches=tuple(w for w in graph.watches if graph.train or not w.diff),
        losses=tuple(graph.objective.losses) if graph.train else (),
        assigns=dict(graph.assigns),
        trained=graph.objective.trained,
        platform=platform,
        tensor_float_32=tensor_float_32,
        cudnn_attention=cudnn_attention,
        without_native=without,
        grids=grids,
    )
    for each in PASSES:
        found = each(found)
    return found


# --- passes


def _rules(plan: Plan) -> Plan:
    gathers = gathers_of(plan.graph, plan.trained)
    indices = (gather.inputs[1] for found in gathers.values() for gather in found)
    optimizers = plan.graph.objective.optimizers if plan.graph.train else ()
    blobs = [b for o in optimizers for b in (o.learning_rate_blob, o.train_step_blob) if b is not None]
    return replace(plan, gathers=gathers, read_by_rules=(*blobs, *indices))


def _used_by_step(plan: Plan) -> list[Blob]:
    """The Blobs that the step reads, other than those that the job returns."""
    return [*(w.blob for w in plan.watches), *plan.assigns.values(), *plan.losses, *plan.read_by_rules]


def _needed(plan: Plan) -> Plan:
    needed = ancestors([*plan.fetches, *_used_by_step(plan)])
    return replace(plan, order=tuple(node for node in plan.order if node in needed))


def _host_stage(plan: Plan) -> Plan:
    host = host_plan_of(plan.graph, plan.order, plan.fetches, _used_by_step(plan))
    on_host = set(host.nodes)
    fetches = (b for b in plan.fetches if b.node not in on_host and not (b.is_tensor_list and b.node.op is OP_INPUT))
    return replace(plan, host=host, order=tuple(n for n in plan.order if n not in on_host), fetches=tuple(fetches))


def _repeated_parts(plan: Plan) -> Plan:
    expansion, fetches = expand(plan.order, plan.assigns, plan.fetches)
    return replace(
        plan,
        order=expansion.order,
        expansion=expansion,
        fetches=tuple(fetches),
        losses=tuple(each for loss in plan.losses for each in expansion.each(loss)),
        watches=tuple(replace(w, blob=each) for w in plan.watches for each in expansion.each(w.blob)),
        assigns={name: expansion.last(blob) for name, blob in plan.assigns.items()},
        read_by_rules=tuple(map(expansion.last, plan.read_by_rules)),
    )


def _int8(plan: Plan) -> Plan:
    if plan.grids is None:
        return plan
    if plan.graph.train or plan.repeats:
        raise ModeError(f"job {plan.graph.name!r} trains, or runs parts of it several times per call: neither is there in int8")
    roots = [*plan.fetches, *_used_by_step(plan)]
    from .int8 import rewritten  # most jobs compute nothing in integers

    found = rewritten(plan.order, roots, set(plan.assigns), plan.grids, plan.without_native, plan.graph.name)
    return replace(_with_prepared(plan, found), int8=found.changed)


def _with_prepared(plan: Plan, found: Rewritten | Fused) -> Plan:
    """The plan with nodes that a pass has rewritten, and those that depend on variables alone prepared."""
    return replace(
        plan,
        order=found.order,
        fetches=tuple(map(found.read, plan.fetches)),
        watches=tuple(replace(w, blob=found.read(w.blob)) for w in plan.watches),
        assigns={name: found.read(blob) for name, blob in plan.assigns.items()},
        preparation=found.preparation,
        prepared=found.prepared,
        fused_kernels=found.kernels,
    )


def _mixed_precision(plan: Plan) -> Plan:
    return replace(plan, precision=precision.assigned(plan.graph, plan.order, plan.platform, plan.without_native))


def _gradient_path(plan: Plan) -> Plan:
    path: set[Node] = set()
    if plan.graph.train:
        sources = {v.blob.node for v in plan.trained if v.blob is not None} | {w.blob.node for w in plan.watches if w.diff}
        path = gradient_path(plan.order, plan.losses, sources)
    watches = tuple(w for w in plan.watches if not w.diff or w.blob.node in path)
    return replace(plan, path=frozenset(path), watches=watches)


def _interface(plan: Plan) -> Plan:
    """Decides what the step takes and returns."""
    graph, on_host = plan.graph, set(plan.host.nodes)
    roots = tuple(b for b in (*plan.fetches, *_used_by_step(plan)) if b.node not in on_host)
    random = any(node.op.random for node in plan.order)
    written = set(plan.assigns) | {v.name for v in plan.trained}
    written |= {v.name for v in graph.variables.values() if v.role == "state"}
    read = {node.attrs["variable"] for node in plan.order if node.op is OP_VARIABLE} - written
    feeds = (*_step_inputs(plan, roots), *plan.host.boundary)
    x64 = graph.train or any(_may_be_wide(b.node, b) for node in plan.order for b in node.outputs)
    return replace(
        plan,
        roots=roots,
        random=random,
        written=tuple(n for n in graph.variables if n in written) + ((RANDOM_STATE,) if random else ()),
        read=(
            *(n for n in graph.variables if n in read),
            *((LEARNING_RATES,) if _has_constant_rate(graph) else ()),
            *_prepared_names(plan.prepared),
        ),
        feeds=feeds,
        x64=x64 or any(b.dtype.is_64_bit for b in feeds),  # also one that nothing reads
    )


def _has_constant_rate(graph: Graph) -> bool:
    return graph.train and any(o.constant_rate is not None for o in graph.objective.optimizers)


def _step_inputs(plan: Plan, roots: Sequence[Blob]) -> list[Blob]:
    """The inputs of the job that the step reads."""
    read = {b.node for node in plan.order for b in node.inputs} | {b.node for b in roots}
    return [spec.blob for i, spec in enumerate(plan.graph.inputs) if i not in plan.host.inputs or spec.blob.node in read]


def _may_be_wide(node: Node, blob: Blob) -> bool:
    """Whether computing ``blob`` may involve 64-bit values; integer ops use them internally, for sums for example."""
    return blob.dtype.is_64_bit or (blob.dtype.is_integer and node.op is not OP_INPUT)


def _mirrored_view(plan: Plan) -> Plan:
    replicated = replicated_variables(plan.graph)
    before = (*(spec.blob.node for spec in plan.graph.inputs), *plan.host.nodes)
    return replace(plan, replicated=replicated, vmapped=vmapped_nodes([*before, *plan.order], replicated))


def _fused_updates(plan: Plan) -> Plan:
    if plan.without_native or not plan.graph.train:
        return plan
    multiplied = multiplied_once(plan.order)
    return replace(plan, fused_updates=fused_updates(plan.graph, plan.trained, plan.gathers, multiplied=multiplied))


def _interface_text(plan: Plan) -> str:
    replaced, read = _count(plan.written, "variable", "replaced"), _count(plan.read, "variable", "only read")
    return ", ".join(filter(None, (replaced, read)))


PASSES = (
    Pass("update rules", _rules, lambda p: _count(p.gathers, "row-sparse update")),
    Pass("needed nodes", _needed, lambda p: _count(set(p.graph.nodes) - set(p.order), "node", "left out")),
    Pass("repeated parts", _repeated_parts, lambda p: _count(p.expansion.copies, "node", "unrolled, one copy per run")),
    Pass("host stage", _host_stage, lambda p: _count(p.host.nodes, "node", "moved to the host")),
    Pass("int8", _int8, lambda p: p.int8),
    Pass("mixed precision", _mixed_precision, lambda p: _count(p.precision, "node", "in 16 bits")),
    Pass("gradient path", _gradient_path, lambda p: _count(p.path, "node", "with gradients")),
    Pass("interface", _interface, _interface_text),
    Pass("mirrored view", _mirrored_view, lambda p: _count(p.vmapped, "node", "vmapped over devices")),
    Pass("fused updates", _fused_updates, lambda p: _count(p.fused_updates, "variable", "updated in one pass")),
)


def _count(found: Any, what: str, how: str = "") -> str:
    n = len(found)
    return f"{n} {what}{'' if n == 1 else 's'} {how}".rstrip() if n else ""


def _loops_text(arrangement: Arrangement) -> str:
    return ", ".join(f"{len(call.copies)} steps of {len(call.copies[0])} nodes as one loop" for call in arrangement.loops)


# --- passes over a finished plan, once its devices are known


def with_own_values(plan: Plan, storages: Mapping[str, Storage]) -> Plan:
    """Lets mirrored parts read each device's own value of variables that other jobs have replicated."""
    readers: dict[str, list[Node]] = {name: [] for name, s in storages.items() if s.replicas and name not in plan.replicated}
    for node in plan.order if readers else ():
        for blob in node.inputs:
            name = blob.node.attrs.get("variable") if blob.node.op is OP_VARIABLE else None
            if name in readers:
                readers[name].append(node)
    own = {name for name, nodes in readers.items() if nodes and all(n.op is OP_TO_MIRRORED for n in nodes)}
    if not own:
        return plan
    replicated = plan.replicated | own
    made = replace(plan, replicated=replicated, vmapped=vmapped_nodes(plan.order, replicated))
    return replace(made, passes=(*plan.passes, PassRecord("own values", f"each device reads its own {', '.join(sorted(own))}")))


def with_fused_products(plan: Plan) -> Plan:
    """Lets the native part compute what follows products of a predict job, whose nodes are all on JAX's default device."""
    skipped = plan.graph.train or plan.prepared or plan.repeats or plan.vmapped or plan.without_native
    if skipped or any(node.is_mirrored for node in plan.compute):
        return plan
    from .fusion import fused  # it fuses nothing in train jobs

    arrangement = Arrangement(tuple(plan.compute), plan.path, plan.precision).with_native_lstms(plan.compute, plan.roots)
    arrangement = arrangement.with_loops(plan.roots, plan.vmapped)
    left = {node for layer in arrangement.layers for node in layer.nodes}
    left.update(node for loop in arrangement.loops for node in loop.nodes)
    found = fused(plan.order, plan.roots, set(plan.written), plan.precision, left)
    if found is None:
        return plan
    variables = {node.attrs["variable"] for node in found.order if node.op is OP_VARIABLE}
    return replace(
        _with_prepared(plan, found),
        read_by_rules=tuple(map(found.read, plan.read_by_rules)),
        roots=tuple(map(found.read, plan.roots)),
        precision=found.precision,
        read=(*(n for n in plan.read if n in variables), *_prepared_names(found.prepared)),
        passes=(*plan.passes, PassRecord("fused products", found.changed)),
    )


def _prepared_names(prepared: Sequence[Blob]) -> tuple[str, ...]:
    return tuple(f"{PREPARED}{i}" for i in range(len(prepared)))


def on_one_place(plan: Plan, devices: int) -> Plan:
    """Arranges the nodes for the devices of one place."""
    watched = {w.blob.node for w in plan.watches if w.diff}
    made = arranged(
        plan.compute, watched, plan.roots, plan.path, plan.precision, plan.without_native, plan.platform, plan.vmapped, devices
    )
    records = [PassRecord("one device" if devices == 1 else "several devices", made.changed)]
    kernels = plan.fused_kernels
    made = made.with_attention(plan.attention)
    if not (plan.without_native or plan.vmapped):
        made = made.with_native_attention(plan.compute, plan.roots)
        records.append(PassRecord("attention", _count(made.attention, "layer", "computed by one call each")))
        if devices == 1:
            made = made.with_native_lstms(plan.compute, plan.roots)
            sequences = _count(made.layers, "sequence", "of steps computed by one call each")
            steps = _count(made.cells, "step", "computed by one call each")
            records.append(PassRecord("LSTM", ", ".join(filter(None, (sequences, steps)))))
        made = made.with_native_norms(plan.roots)
        made = made.with_rounding() if devices == 1 else made
        records.append(PassRecord("batch normalization", _count(made.norms, "layer", "computed by one call each")))
    made = made.with_loops(plan.roots, plan.vmapped)
    records.append(PassRecord("loops", _loops_text(made)))
    by_name = {node.name: text for node, text in made.kernels().items()}  # nodes may be copies of the graph's
    kernels = {**kernels, **{node: by_name[node.name] for node in plan.graph.nodes if node.name in by_name}}
    made = made.with_joint_gradients(plan.vmapped, devices)
    groups = len(set(made.joint.values()))
    changed = f"those of {len(made.joint)} nodes to {groups} shared inputs, each computed once" if groups else ""
    records.append(PassRecord("joint gradients", changed))
    return replace(plan, arrangement=made, fused_kernels=kernels, passes=(*plan.passes, *records))
