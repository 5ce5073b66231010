"""Makes the report of a job that was compiled for a target."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import prod

from .._base.dist import Placement
from .._targets import timeline as timelines
from .._targets.compiling import TargetProgram
from .._targets.hlo import Instruction, Module
from .._targets.memory import at_peak
from .._targets.meshes import TargetMeshes
from .._targets.roofline import Cost, Estimate, Sent, by_origin, estimate
from .._targets.target import Target
from ..compiler.stages import Call, StagedProgram
from ..graph.graph import OP_INPUT, OP_VARIABLE, Graph
from ..runtime.executable import Executable
from .placement import transfers
from .target_plan import DeviceRow, PartRow, PlannedCollective, TargetPlan, ValueRow
from .trace import UPDATE, Origin
from .trace import Program as Scopes

_VALUES = 40
_DEPTH = 4  # how far the op behind what a collective sends is looked for


@dataclass(slots=True)
class _Function:
    """A compiled function: where its instructions come from, its estimate, how often a call runs it, its stage."""

    name: str
    program: TargetProgram
    scopes: Scopes
    module: Module
    estimate: Estimate
    times: int
    stage: int

    known: dict[str, Origin] = field(default_factory=dict)

    def origin(self, instruction: str) -> Origin:
        """The op behind an instruction; behind a copy that the compiler added, the one that reads it, copies between left out."""
        if instruction not in self.known:
            self.known[instruction] = self._searched(instruction)
        return self.known[instruction]

    def _searched(self, name: str) -> Origin:
        for _ in range(_DEPTH):
            found = self.scopes.origin(name)
            instruction = self.module.find(name)
            users = [] if found.name or instruction is None else self.module.users(instruction)
            if not users:
                return found
            name = users[0].name
        return self.scopes.origin(name)


class _Lines:
    """The op, and the user's line, behind an origin."""

    def __init__(self, graph: Graph):
        self._nodes = {node.name: node for node in graph.nodes}
        self._variables = graph.variables

    def of(self, origin: Origin) -> tuple[str, str]:
        if origin.phase == UPDATE and origin.name in self._variables:
            return "update", str(self._variables[origin.name].source)
        node = self._nodes.get(origin.name)
        return ("", "") if node is None else (node.op.name, str(node.source))


def target_plan(
    executable: Executable, meshes: TargetMeshes, target: Target, from_cache: int, notes: tuple[str, ...] = ()
) -> TargetPlan:
    """The report."""
    plan, graph = executable.plan, executable.plan.graph
    functions = _functions(executable, target)
    lines = _Lines(graph)
    staged = executable.function if isinstance(executable.function, StagedProgram) else None
    if staged is None:
        timeline = timelines.of_single(functions[0].name, functions[0].program, functions[0].estimate)
    else:
        estimates = {f.name: f.estimate for f in functions}
        timeline = timelines.Replay(staged, estimates, meshes, target, executable.arguments()).run()
    by_name = {f.name: f for f in functions}
    peaks = _live(functions)
    fed = [b for b in plan.feeds]
    returned = [*plan.fetches, *(w.blob for w in plan.watches)]
    busiest = _busiest(functions)
    kinds = Counter[str]()
    for f in functions:
        for kind, n in f.estimate.total.products.items():
            kinds[kind] += int(n * f.times * len(f.program.placement.devices))
    flops = sum(f.estimate.total.flops * f.times * len(f.program.placement.devices) for f in functions)
    kind = kinds.most_common(1)[0][0] if kinds else "vector"
    peak = target.accelerator.flops[kind]
    devices = _devices(executable, functions, timeline, peaks, target)
    capacity = timeline.seconds * peak * len(devices)
    own_estimates = [f.estimate.compiler_seconds * f.times for f in functions if f.estimate.compiler_seconds is not None]
    return TargetPlan(
        f"{'train' if graph.train else 'predict'} job {graph.name!r} planned for {target}", target, devices,
        tuple(_values(functions, peaks, timeline, by_name, devices, lines)), tuple(_parts(functions, lines)),
        tuple(_collectives(functions, lines)), tuple(transfers(staged)) if staged is not None else (),
        (sum(_bytes(b) for b in fed), sum(_bytes(b) for b in returned)), flops,
        sum(f.estimate.total.bytes * f.times * len(f.program.placement.devices) for f in functions), _samples(graph),
        timeline.seconds, busiest["exposed"], busiest["compute"], busiest["memory"], busiest["links"],
        max(own_estimates, default=None) if staged is None else (sum(own_estimates) or None),
        timeline.bubble if staged is not None else 0.0, flops / capacity if capacity else 0.0, (kind, peak),
        tuple(sorted({name for f in functions for name in f.estimate.total.unknown})), from_cache, len(functions), timeline,
        (*notes, *plan.notes),
    )  # fmt: skip


def _functions(executable: Executable, target: Target) -> list[_Function]:
    plan = executable.plan
    names = {node.name for node in plan.order if node.op not in (OP_INPUT, OP_VARIABLE)} | {n.name for n in plan.graph.nodes}
    staged = executable.function if isinstance(executable.function, StagedProgram) else None
    called = Counter[int]()
    if staged is not None:
        called.update(id(i.function) for i in staged.instructions if isinstance(i, Call))
    stage_of = staged.segment_of_function if staged is not None else {}
    found = []
    for name, program in executable.compiled:
        module, made = estimate(program.text, target, program.placement)
        scopes = Scopes(program.text, names, plan.graph.variables)
        found.append(_Function(name, program, scopes, module, made, called[id(program)] if staged else 1, stage_of.get(name, 0)))
    return found


def _live(functions: list[_Function]) -> dict[str, list[ValueRow]]:
    """The values at the peak of each function, without their lines."""
    found = {}
    for f in functions:
        rows = []
        for value in at_peak(f.module, lambda name, f=f: f.origin(name).phase):  # type: ignore[misc]
            origin = f.origin(value.instruction.name)
            rows.append(
                ValueRow(origin.name, "", origin.phase, _described(value.instruction), value.bytes, value.kept, "", f.stage)
            )
        found[f.name] = rows
    return found


def _described(instruction: Instruction) -> str:
    return ", ".join(f"{a.dtype}[{', '.join(map(str, a.shape))}]" for a in instruction.arrays[:2])


def _devices(
    executable: Executable,
    functions: list[_Function],
    timeline: timelines.Timeline,
    peaks: dict[str, list[ValueRow]],
    target: Target,
) -> tuple[DeviceRow, ...]:
    variables = executable.plan.graph.variables
    state: dict[tuple[int, int], Counter[str]] = {}
    for name, storage in executable.storages.items():
        variable = variables[name]
        kind = "optimizer" if variable.owner is not None else "parameters" if variable.role == "parameter" else "other"
        for device in storage.layout.placement.devices:
            state.setdefault(device, Counter())[kind] += storage.elements_per_device * variable.dtype.bytes
    by_name = {f.name: f for f in functions}
    single = None if isinstance(executable.function, StagedProgram) else functions[0]
    fed = len(executable.plan.written) + len(executable.plan.read)
    inputs = sum(single.program.inputs[fed:]) if single is not None else 0
    rows = []
    for device in sorted({*state, *timeline.between, *timeline.temporary}):
        counted = state.get(device, Counter())
        temporary, between = timeline.temporary.get(device, 0), timeline.between.get(device, 0)
        name = timeline.at_peak.get(device, "")
        kept = min(sum(row.bytes for row in peaks.get(name, ()) if row.kept), temporary)
        code = by_name[name].program.memory["generated_code"] if name in by_name else 0
        rows.append(
            DeviceRow(
                f"{device[0]}:{device[1]}", counted["parameters"], counted["optimizer"], counted["other"], inputs,
                between + kept, temporary - kept + code, target.accelerator.memory,
            )
        )  # fmt: skip
    return tuple(rows)


def _values(
    functions: list[_Function],
    peaks: dict[str, list[ValueRow]],
    timeline: timelines.Timeline,
    by_name: dict[str, _Function],
    devices: tuple[DeviceRow, ...],
    lines: _Lines,
) -> list[ValueRow]:
    """The largest values of the functions that are running when the devices' memory is at its peak."""
    found = []
    for name in dict.fromkeys(timeline.at_peak.values()):
        for row in peaks.get(name, ()):
            op, source = lines.of(Origin(row.phase, row.name))
            found.append(ValueRow(row.name or "(other)", op, row.phase, row.output, row.bytes, row.kept, source, row.stage))
    return sorted(found, key=lambda row: -row.bytes)[:_VALUES]


def _parts(functions: list[_Function], lines: _Lines) -> list[PartRow]:
    found: dict[tuple[str, str, int], Cost] = {}
    for f in functions:
        for origin, cost in by_origin(f.estimate, f.origin, lambda sent, f=f: _askers(f, sent)).items():  # type: ignore[misc]
            found.setdefault((origin.phase, origin.name, f.stage), Cost()).add(cost, f.times)
    whole = sum(cost.seconds for cost in found.values()) or 1.0
    rows = []
    for (phase, name, stage), cost in found.items():
        op, source = lines.of(Origin(phase, name))
        rows.append(
            PartRow(
                name or "(other)",
                op,
                phase,
                cost.flops,
                cost.bytes,
                cost.seconds,
                cost.seconds / whole,
                cost.bound,
                source,
                stage,
            )
        )
    return sorted(rows, key=lambda row: -row.seconds)


def _collectives(functions: list[_Function], lines: _Lines) -> list[PlannedCollective]:
    found: dict[tuple[str, str, int, int, str, str, int], list[float]] = {}
    for f in functions:
        for sent in f.estimate.collectives:
            for origin, share in _askers(f, sent):
                axis, size = _axis(sent.members, f.program.placement), int(sent.bytes * share)
                key = (sent.kind, axis, len(sent.members), size, origin.phase, origin.name, f.stage)
                row = found.setdefault(key, [0, 0.0, 0.0])
                row[0] += sent.times * f.times
                row[1] = sent.sent * share
                row[2] += sent.seconds * share * sent.times * f.times
    rows = []
    for (kind, axis, devices, size, phase, name, stage), (times, each, seconds) in found.items():
        op, source = lines.of(Origin(phase, name))
        rows.append(PlannedCollective(kind, axis, devices, size, each, int(times), seconds, name, op, phase, source, stage))
    return sorted(rows, key=lambda row: -row.seconds)


def _askers(f: _Function, sent: Sent) -> list[tuple[Origin, float]]:
    """The ops that a collective serves, each with its share: the compiler joins the sums of several gradients in one."""
    found: dict[Origin, float] = {}

    def visit(instruction: Instruction, share: float, depth: int) -> None:
        origin = f.origin(instruction.name)
        operands = [o for o in f.module.operands(instruction) if o.bytes]
        joins = "concatenate" in instruction.name or (not origin.name and depth and len(operands) > 1)
        if depth and operands and (joins or (not origin.name and len(operands) == 1)):
            total = sum(o.bytes for o in operands)
            for operand in operands:
                visit(operand, share * operand.bytes / total, depth - 1)
        else:
            found[origin] = found.get(origin, 0.0) + share

    operands = [o for o in f.module.operands(sent.instruction) if o.bytes]
    total = sum(o.bytes for o in operands) or 1
    own = f.origin(sent.instruction.name)
    if own.name and len(operands) < 2:
        return [(own, 1.0)]
    for operand in operands:
        visit(operand, operand.bytes / total, _DEPTH)
    return sorted(found.items(), key=lambda item: -item[1]) or [(own, 1.0)]


def _axis(members: tuple[int, ...], placement: Placement) -> str:
    """The axes of a placement's arrangement along which the members of a group differ."""
    sizes = placement.hierarchy
    if not members or max(members) >= prod(sizes):
        return ""
    positions = []
    for member in members:
        position = []
        for size in reversed(sizes):
            member, rest = divmod(member, size)
            position.append(rest)
        positions.append(position[::-1])
    differ = [i for i in range(len(sizes)) if len({p[i] for p in positions}) > 1]
    return ",".join(map(str, differ)) if prod(sizes[i] for i in differ) == len(members) else ""


def _busiest(functions: list[_Function]) -> dict[str, float]:
    """The seconds of the device that needs the most, by what bounds them."""
    sums: dict[tuple[int, int], Counter[str]] = {}
    for f in functions:
        total = f.estimate.total
        for device in f.program.placement.devices:
            row = sums.setdefault(device, Counter())
            row["compute"] += total.compute_seconds * f.times  # type: ignore[assignment]
            row["memory"] += total.memory_seconds * f.times  # type: ignore[assignment]
            row["links"] += total.link_seconds * f.times  # type: ignore[assignment]
            row["exposed"] += f.estimate.exposed_seconds * f.times  # type: ignore[assignment]
    return {
        key: max((float(row[key]) for row in sums.values()), default=0.0) for key in ("compute", "memory", "links", "exposed")
    }


def _samples(graph: Graph) -> int:
    """The batch of the first input that has one."""
    for spec in graph.inputs:
        blob = spec.blob
        if blob.batch_axis >= 0 and blob.shape:
            return int(blob.shape[blob.batch_axis]) * (blob.parallel_size if blob.is_mirrored else 1)
    return 0


def _bytes(blob: object) -> int:
    shape = blob.shape  # type: ignore[attr-defined]
    count = blob.parallel_size if blob.is_mirrored else 1  # type: ignore[attr-defined]
    return prod(shape) * blob.dtype.bytes * count  # type: ignore[attr-defined]
