"""Updates of variables by the native part: momentum and Adam in one pass over each variable, its slots and its gradient.

XLA's CPU backend makes no loop with several results, and so takes two and three passes. Large variables are updated by one call
each, as soon as their gradient is there; small ones up to 64 at a time, and so are those whose gradients several devices add up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._base import native as _native
from .._base.dist import Placement
from .._base.jax import jax, jnp, lax
from ..graph.graph import OP_VARIABLE, Graph, Variable
from ..graph.node import Node
from ..graph.op import FusedRule
from .analysis import updates
from .autodiff import LARGE, UPDATE_SCOPE
from .joint_gradients import SHARED
from .layout import Layout, Meshes, Storage

_KINDS = {"momentum": 0, "adam": 1, "sgd": 2}
_MOST = 64  # variables that one call updates: XLA's time to compile a call grows with the square of its operands
# Of products that updates compute, where the native part has a faster way for products alone, measured
# (docs/performance-kernels.md): the rows that are added up; for more of them the weights from which on; columns of weights
_FEW_ROWS, _MORE_ROWS, _MANY_WEIGHTS, _LEAST_COLUMNS = 192, 256, 1 << 22, 64
_LEAST_FLOPS = 1 << 20  # XLA computes smaller products
_MOST_PACKED = 1 << 22  # numbers of the second matrix, which a call copies


@dataclass(frozen=True, slots=True)
class Devices:
    """Several devices that update variables, each the pieces that it has.

    Attributes:
      mesh: the devices.
      storages: of variables, by name.
      addends: the variables whose gradients are each device's addend, and are summed as they are updated (``addends.py``).
      program: the name of the step, which tells calls of different programs apart that run at the same time.
    """

    mesh: Any
    storages: Mapping[str, Storage]
    addends: Collection[str] = ()
    program: str = ""

    @staticmethod
    def of(
        meshes: Meshes | None,
        placement: Placement,
        storages: Mapping[str, Storage],
        addends: Collection[str] = (),
        program: str = "",
    ) -> Devices | None:
        """The devices of a placement; None for one device."""
        if meshes is None or placement.parallel_num == 1:
            return None
        return Devices(meshes.sharding(placement, ()).mesh, storages, addends, program)

    def may_update(self, name: str) -> bool:
        """Whether a variable has one value, not one per device."""
        return not self.storages[name].replicas

    def spec(self, name: str) -> Any:
        """The PartitionSpec of a variable."""
        return jax.sharding.PartitionSpec(*(axes or None for axes in self.storages[name].spec))

    def piece(self, name: str, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the piece that each device has of an array of this shape, stored like that variable."""
        layout = self.storages[name].layout
        return tuple(size // layout.pieces(axis) for axis, size in enumerate(shape))


@dataclass(frozen=True, slots=True)
class Gradient:
    """A gradient before what precedes its use: (array * before... + penalty) * after...

    Attributes:
      before, after: float32 scalars.
      penalty: (l1, l2) of l1 * sign(x) + l2 * x, where x is the variable.
      waits: scalars of zero that the update must depend on.
      is_flat: whether the variable is stored as a vector (``layout.is_flat``), which reshaping would have XLA copy otherwise.
    """

    array: Any
    before: tuple[Any, ...] = ()
    penalty: tuple[float, float] = (0.0, 0.0)
    after: tuple[Any, ...] = ()
    waits: tuple[Any, ...] = ()
    is_flat: bool = False

    def stored(self, array: Any) -> Any:
        """An array of the variable's shape in the shape in which it is stored."""
        return lax.reshape(array, (array.size,)) if self.is_flat else array


def is_worthwhile(m: int, n: int, rows: int) -> bool:
    """Whether an update of (m, n) weights computes its gradient, in which the products of so many rows are added up."""
    if m * n < LARGE or 2 * m * n * rows < _LEAST_FLOPS or rows * n > _MOST_PACKED:
        return False
    library = _native.part().library
    if library is not None and library.describe("matmul", [0, 1, m, n, rows, 1, 0]).startswith(_native.PACKED):
        return True  # by the kernel that takes the product alone
    return n >= _LEAST_COLUMNS and (rows <= _FEW_ROWS or (rows <= _MORE_ROWS and m * n >= _MANY_WEIGHTS))


def multiplied_once(nodes: Collection[Node]) -> set[str]:
    """The names of the variables that nothing reads but one product, of which an update can compute the gradient."""
    readers = Counter(blob.node for node in nodes for blob in node.inputs)

    def fits(node: Node) -> bool:
        if node.op.adds_up is None or len(node.inputs) != 2:
            return False
        weights = node.inputs[SHARED]
        m, *others = weights.shape
        if weights.node.op is not OP_VARIABLE or readers[weights.node] != 1 or sum(size > 1 for size in others) > 1:
            return False
        return is_worthwhile(m, math.prod(others), _rows(node))

    return {node.inputs[SHARED].node.attrs["variable"] for node in nodes if fits(node)}


def _rows(node: Node) -> int:
    """In how many rows, or pixels of all images, a dense layer or a convolution multiplies by its weights."""
    weights, y = node.inputs[SHARED].shape, node.outputs[0].shape
    return math.prod(y[:-1]) if len(weights) == 2 else math.prod(y) // weights[0]


def fused_updates(
    graph: Graph, trained: Sequence[Variable], row_sparse: Collection[str], devices: int = 1, multiplied: Collection[str] = ()
) -> dict[str, str]:
    """The kernels of the variables that the native part updates, by the variables' names.

    Args:
      devices: those whose gradients are summed. With one of them, gradient descent without slots is XLA's, one pass as well,
        except for the variables that are ``multiplied`` (see ``multiplied_once``).
    """
    found: dict[str, str] = {}
    for variable in trained:
        mine = [o for o in graph.objective.optimizers if updates(o, variable.name)]
        rule = mine[0].fused() if len(mine) == 1 else None
        if rule is None or variable.name in row_sparse or not _fits(variable, rule, mine[0]):
            continue
        if rule.kind == "sgd" and devices == 1 and variable.name not in multiplied:
            continue
        library, spec = _native.part().library, _spec(rule, [variable.shape], (0.0, 0.0))
        call, given = ("update", spec) if devices == 1 else ("summed_update", [devices, 0, *spec])
        kernel = "!" if library is None else library.describe(call, given)
        if not kernel.startswith("!"):
            found[variable.name] = kernel
    return found


def _fits(variable: Variable, rule: FusedRule, optimizer: Any) -> bool:
    """Whether a variable and the slots of its rule are float32 arrays of one shape, in even pieces on several devices."""
    slots = {slot.suffix: slot for slot in optimizer.slots(variable)}
    same = all(s in slots and slots[s].shape == variable.shape and slots[s].dtype.name == "float32" for s in rule.slots)
    placement = variable.placement
    even = placement is None or Layout.of(placement, variable.distribute).is_even(variable.shape)
    plain = variable.regularizer is None or hasattr(variable.regularizer, "l1")
    return same and even and plain and variable.dtype.name == "float32"


def run(
    optimizer: Any,
    gradients: Mapping[str, Gradient],
    decays: Mapping[str, float],
    state: Mapping[str, Any],
    rates: tuple[Any, Any],
    skip: Any,
    in_place: bool,
    devices: Devices | None = None,
) -> dict[str, Any]:
    """The new values of variables and their slots, by name.

    Args:
      gradients: by the variables' names.
      decays: the rates of decoupled weight decay, by the same names.
      state: the present values.
      rates: the learning rate and the step.
      skip: a scalar of bool, whether everything keeps its value; None where that cannot be.
      in_place: whether the present values may be overwritten.
      devices: those that update them, if several do.
    """
    new: dict[str, Any] = {}
    for names in _calls(gradients, decays, state, devices.addends if devices is not None else ()):
        call = _Call(optimizer.fused(), names, gradients, skip, in_place, devices)
        largest = max(names, key=lambda name: math.prod(state[name].shape))  # for which profiles count a call
        with jax.named_scope(UPDATE_SCOPE), jax.named_scope(largest):
            new.update(call(state, *optimizer.fused_scalars(*rates, decays[names[0]])))
    return new


def _calls(
    gradients: Mapping[str, Gradient], decays: Mapping[str, float], state: Mapping[str, Any], addends: Collection[str]
) -> list[list[str]]:
    """The names of the variables that each call updates. Those of one call share their scalars."""
    alone: list[list[str]] = []
    together: dict[Any, list[str]] = {}
    for name, g in gradients.items():
        if math.prod(state[name].shape) >= LARGE and name not in addends:
            alone.append([name])
        else:
            key = (name in addends, decays[name], g.penalty, len(g.before), len(g.after))
            together.setdefault(key, []).append(name)
    return [*alone, *(names[i : i + _MOST] for names in together.values() for i in range(0, len(names), _MOST))]


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of the native part, which updates some variables."""

    rule: FusedRule
    names: Sequence[str]
    gradients: Mapping[str, Gradient]
    skip: Any
    in_place: bool
    devices: Devices | None = None

    def __call__(self, state: Mapping[str, Any], rate: Any, root: Any, decay: Any) -> dict[str, Any]:
        mine = [self.gradients[name] for name in self.names]
        first = mine[0]
        for g in mine:
            for zero in g.waits:
                rate = rate + zero
        operands = [rate, *([root] if self.rule.kind == "adam" else []), *([] if decay is None else [decay])]
        operands += [jnp.asarray(factor, jnp.float32) for factor in (*first.before, *first.after)]
        operands += [] if self.skip is None else [self.skip]
        aliases: dict[int, int] = {}
        keys: list[str] = []
        owners: list[str] = []  # of the results
        scalars = len(operands)
        for name, g in zip(self.names, mine, strict=True):
            for key in (name, *(f"{name}-{suffix}" for suffix in self.rule.slots)):
                if self.in_place:
                    aliases[len(operands)] = len(keys)
                operands.append(g.stored(state[key]))
                keys.append(key)
                owners.append(name)
            operands.append(g.stored(g.array))
        stored = {name: g.stored(state[name]).shape for name, g in zip(self.names, mine, strict=True)}
        pieces = stored if self.devices is None else {name: self.devices.piece(name, shape) for name, shape in stored.items()}
        spec = _spec(
            self.rule, list(pieces.values()), first.penalty, decay is not None, self.skip is not None, len(first.before),
            len(first.after),
        )  # fmt: skip
        results = [(pieces[name], np.float32) for name in owners]

        def update(*arrays: Any) -> tuple[Any, ...]:
            return _native.call_several("update", spec, results, *arrays, aliases=aliases)

        def summed_update(*arrays: Any) -> tuple[Any, ...]:
            assert self.devices is not None
            number = _native.call_number(self.devices.program, f"update of {self.names[0]}")
            head = [self.devices.mesh.size, number]
            with _native.sharing_cores(1):  # the last device to come computes for all
                return _native.call_several("summed_update", [*head, *spec], results, *arrays, aliases=aliases)

        if self.devices is not None:
            split = {name: self.devices.spec(name) for name in self.names}
            given = [jax.sharding.PartitionSpec()] * scalars
            given += [split[name] for name in self.names for _ in range(len(self.rule.slots) + 2)]
            run = summed_update if self.names[0] in self.devices.addends else update
            update = _native.on_each_device(self.devices.mesh, run, given, tuple(split[name] for name in owners))
        updated = update(*operands)
        return {key: lax.reshape(value, state[key].shape) for key, value in zip(keys, updated, strict=True)}


def _spec(
    rule: FusedRule,
    shapes: Sequence[Sequence[int]],
    penalty: tuple[float, float],
    decays: bool = False,
    skips: bool = False,
    before: int = 0,
    after: int = 0,
) -> list[int]:
    """The vector that describes a call to the native part."""
    bits: Callable[[float], int] = _native.float_bits
    return [
        _KINDS[rule.kind], int(decays), int(skips), before, after, *map(bits, penalty), *map(bits, rule.constants),
        len(shapes), *(math.prod(shape) for shape in shapes),
    ]  # fmt: skip
