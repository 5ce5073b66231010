"""Blobs and nodes: the symbolic values of a job and the ops that compute them. Plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol

from .._base import check, dist
from .._base.dist import Distribute, Placement
from .._base.dtype import dtype
from .._base.generation import Generation
from .._base.refuse import refuse, shown
from .._base.source import Source, caller
from ..errors import ArgumentError, AxisError, BlobUseError
from .op import OpDef

INVALID_AXIS = -22


Dtype = dtype  # inside Blob the name is that of an attribute


class Owner(Protocol):
    """The graph of a node, as far as its nodes and Blobs look at it."""

    name: str
    generation: Generation
    inputs: list[Any]
    variables: dict[str, Any]
    assigns: dict[str, Any]

    def assign(self, ref: Blob, value: Blob) -> None: ...


@dataclass(frozen=True, slots=True)
class Scope:
    """The settings in force where a node was added: placement, view, namespace, options."""

    placement: Placement
    view: str = "consistent"
    namespace: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def device_parallel_desc_symbol(self) -> Scope:  # OneFlow's spelling of "the placement's facts"
        """This scope, under OneFlow's name for the facts of a placement."""
        return self

    @property
    def device_tag(self) -> str:
        """``"cpu"`` or ``"gpu"``."""
        return self.placement.tag

    @property
    def parallel_num(self) -> int:
        """The number of devices."""
        return self.placement.parallel_num

    @property
    def machine_id2device_id_list(self) -> dict[int, list[int]]:
        """The devices of each machine, by the machine's number."""
        table: dict[int, list[int]] = {}
        for machine, device in self.placement.devices:
            table.setdefault(machine, []).append(device)
        return table

    def replaced(self, **changes: Any) -> Scope:
        """A copy with other values of the named fields."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class ValidLength:
    """The number of valid elements along one axis of a Blob whose size depends on data.

    Elements beyond it are padding: neither their values nor their gradients mean anything.

    Attributes:
      axis: the axis that is padded.
      count: int32 Blob of shape (1,), the number of valid elements along ``axis``.
      others_vary: the sizes of other axes vary with the arrays that a call is fed.
    """

    axis: int
    count: Blob
    others_vary: bool = False


@dataclass(slots=True, eq=False)
class Node:
    """One op of a job, with its inputs, attributes, name, scope and the user's line that added it.

    ``repetition`` holds the counts of the repetitions around it (``repetition.py``); ``run`` is the index of the run that a
    copy stands for.
    """

    graph: Owner
    op: OpDef
    name: str
    inputs: tuple[Blob, ...]
    attrs: Mapping[str, Any]
    scope: Scope
    source: Source
    outputs: tuple[Blob, ...] = ()
    repetition: tuple[int, ...] = ()
    run: tuple[int, ...] = ()

    @property
    def is_mirrored(self) -> bool:
        """Whether it computes once per device."""
        return self.scope.view == "mirrored" and self.scope.placement.parallel_num > 1

    def copy(self, read: Callable[[Blob], Blob] | None = None, *, outputs: Sequence[Blob] | None = None, **changes: Any) -> Node:
        """A copy with outputs of its own that keeps every field but those in ``changes``. The graph does not list it.

        Args:
          read: maps a Blob to its replacement. Applied to the inputs, unless ``changes`` holds new ones, and to the Blobs
            that hold the valid lengths of the outputs.
          outputs: Blobs that the new outputs resemble; by default the outputs of this node.
          changes: new values of fields of Node.
        """
        if read is not None:
            changes.setdefault("inputs", tuple(map(read, self.inputs)))
        twin = replace(self, outputs=(), **changes)
        twin.outputs = tuple(b.copy(node=twin, index=i) for i, b in enumerate(self.outputs if outputs is None else outputs))
        for blob in twin.outputs:
            if blob.valid_length is not None:
                count = blob.valid_length.count
                if count.node is self and outputs is None:
                    count = twin.outputs[count.index]
                elif read is not None:
                    count = read(count)
                blob.valid_length = replace(blob.valid_length, count=count)
        return twin

    def __repr__(self) -> str:
        made = ", ".join(str(b) for b in self.outputs)
        return f"{self.name} = {self.op.name}({', '.join(b.node.name for b in self.inputs)}) -> {made}  # {self.source}"


class Blob:
    """A symbolic value of a job: its shape, its dtype, and the op that will compute it.

    Arithmetic (``+ - * / %``), negation, powers, comparisons and basic slicing of Blobs add ops to the job. Everything
    that would need a number now (``if``, ``float()``, iteration, NumPy functions) raises BlobUseError.
    """

    __slots__ = (
        "node",
        "index",
        "shape",
        "dtype",
        "batch_axis",
        "distribute",
        "is_dynamic",
        "is_tensor_list",
        "valid_length",
        "disable_boxing",
        "_suffix",
    )

    node: Node
    index: int
    shape: tuple[int, ...]
    dtype: Dtype
    batch_axis: int
    distribute: Distribute
    is_dynamic: bool
    is_tensor_list: bool
    valid_length: ValidLength | None
    disable_boxing: bool
    _suffix: str

    # ops/operators.py fills this in, so that the graph needs to know no op
    operator: ClassVar[Callable[[str, Any, Any], Blob]]

    def __init__(self, *args: Any, **kwargs: Any):
        refuse(ArgumentError, "a flow.Blob cannot be made by hand: the ops of a job make them",
               hint="flow.constant(value, dtype, shape), or feed an array as an input of the job")  # fmt: skip

    @classmethod
    def _of(
        cls,
        node: Node,
        index: int,
        shape: tuple[int, ...],
        dtype: Dtype,
        *,
        suffix: str = "out",
        batch_axis: int | None = None,
        is_dynamic: bool = False,
        is_tensor_list: bool = False,
        length: ValidLength | None = None,
    ) -> Blob:
        """The output ``index`` of a node; the graph calls it."""
        self: Blob = object.__new__(cls)
        self.node = node
        self.index = index
        self.shape = shape
        self.dtype = dtype
        self.batch_axis = INVALID_AXIS if batch_axis is None else batch_axis
        self.distribute = dist.auto()
        self.is_dynamic = is_dynamic
        self.is_tensor_list = is_tensor_list
        self.valid_length = length
        self.disable_boxing = False
        self._suffix = suffix
        return self

    def copy(self, **changes: Any) -> Blob:
        """Another handle that keeps every field but those in ``changes``."""
        twin: Blob = object.__new__(Blob)
        for name in Blob.__slots__:
            setattr(twin, name, changes.pop(name) if name in changes else getattr(self, name))
        if changes:
            raise TypeError(f"a Blob has no fields {', '.join(changes)}")
        return twin

    # --- properties

    @property
    def op_name(self) -> str:
        """The full name of the op that computes it."""
        return self.node.name

    @property
    def blob_name(self) -> str:
        """Its name among the outputs of its op."""
        return self._suffix

    @property
    def logical_blob_name(self) -> str:
        """``op_name/blob_name``, unique within the job."""
        return f"{self.op_name}/{self.blob_name}"

    @property
    def unique_name(self) -> str:
        """``logical_blob_name``, followed by ``:S<axis>`` or ``:B`` where a layout was asked for."""
        d = self.distribute
        return self.logical_blob_name + {"split": f":S{d.axis}", "broadcast": ":B"}.get(d.kind, "")

    @property
    def lbi(self) -> LogicalBlobId:
        """The two parts of ``logical_blob_name``, as OneFlow's LogicalBlobId."""
        return LogicalBlobId(self.op_name, self.blob_name)

    @property
    def job_name(self) -> str:
        """The name of the job that it belongs to."""
        return self.node.graph.name

    @property
    def split_axis(self) -> int:
        """The axis that ``distribute`` splits; otherwise the batch axis."""
        return self.batch_axis if self.distribute.axis is None else self.distribute.axis

    @property
    def parallel_conf(self) -> Placement:
        """The devices on which its op runs."""
        return self.node.scope.placement

    @property
    def parallel_size(self) -> int:
        """The number of devices on which its op runs."""
        return self.node.scope.placement.parallel_num

    @property
    def is_mirrored(self) -> bool:
        """Whether it stands for one tensor per device, each of this shape, rather than for one logical tensor."""
        return self.node.is_mirrored

    @property
    def static_shape(self) -> tuple[int, ...]:
        """``shape``, as programs of 2019 spelled it."""
        return self.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def source(self) -> Source:
        """The user's line that added it."""
        return self.node.source

    def with_distribute(self, distribute: Distribute) -> Blob:
        """A handle of the same value; ops that are given this handle read it in another layout."""
        self._check_distribute(distribute)
        return self.copy(distribute=distribute)

    def with_split_distribute(self, axis: int) -> Blob:
        """``with_distribute(flow.distribute.split(axis))``, as programs for 0.1 and 0.2 write it."""
        return self.with_distribute(dist.split(axis))

    def with_broadcast_distribute(self) -> Blob:
        """``with_distribute(flow.distribute.broadcast())``, as programs for 0.1 and 0.2 write it."""
        return self.with_distribute(dist.broadcast())

    def with_boxing_disabled(self, val: bool = True) -> Blob:
        """A handle of the same value. From OneFlow 0.1 and 0.2, where ops then read it in its layout; here XLA chooses."""
        return self.copy(disable_boxing=check.checked("with_boxing_disabled", "val", check.flag(val)))

    def Clone(self) -> Blob:
        """A handle of the same value. From OneFlow 0.1 and 0.2."""
        return self.copy()

    def has_batch_axis(self) -> bool:
        """Whether one axis is the batch axis. From OneFlow 0.1 and 0.2."""
        return self.batch_axis != INVALID_AXIS

    def set_distribute(self, distribute: Distribute) -> None:
        """Sets the layout in which ops read it. From OneFlow 0.1."""
        self._check_distribute(distribute)
        self.distribute = distribute

    def _check_distribute(self, distribute: Distribute) -> None:
        dist.assert_is_valid_distribute(distribute)
        if distribute.axis is not None and distribute.axis >= self.ndim:
            refuse(
                AxisError,
                f"{self.op_name!r} in job {self.node.graph.name!r} cannot be split along axis {shown(distribute.axis)}: "
                f"it has rank {self.ndim}",
                found=[("the Blob", f"{self.describe()}   made at {self.source}")],
            )

    def with_gradient_distribute(self, distribute: Distribute) -> Blob:
        """The same value, whose gradient is brought to another layout."""
        return Blob.operator("with_gradient_distribute", self, distribute)

    def IdenticalTo(self, other: Blob) -> bool:
        """Whether both stand for the same value, in the same layout."""
        if not isinstance(other, Blob):
            refuse(ArgumentError, f"IdenticalTo needs a Blob, got {shown(other)}")
        return self.node is other.node and self.index == other.index and self.distribute == other.distribute

    @property
    def has_dynamic_size(self) -> bool:
        """Whether its size depends on data, so that readers must honour ``valid_length``."""
        return self.is_dynamic and self.valid_length is not None

    def describe(self) -> str:
        """``float32[8, 128]``, as in error messages; ``float32[<=8, 128]`` if the first size depends on data."""
        sizes = [str(size) for size in self.shape]
        if self.is_dynamic and self.valid_length is not None:
            sizes[self.valid_length.axis] = f"<={sizes[self.valid_length.axis]}"
        return f"{self.dtype.name}[{', '.join(sizes)}]"

    def __repr__(self) -> str:
        return f"<Blob {self.op_name!r} {self.describe()} of job {self.job_name!r}, made at {self.source}>"

    __str__ = __repr__

    # --- arithmetic

    def __add__(self, other: Any) -> Blob:
        return Blob.operator("add", self, other)

    def __radd__(self, other: Any) -> Blob:
        return Blob.operator("add", other, self)

    def __sub__(self, other: Any) -> Blob:
        return Blob.operator("subtract", self, other)

    def __rsub__(self, other: Any) -> Blob:
        return Blob.operator("subtract", other, self)

    def __mul__(self, other: Any) -> Blob:
        return Blob.operator("multiply", self, other)

    def __rmul__(self, other: Any) -> Blob:
        return Blob.operator("multiply", other, self)

    def __truediv__(self, other: Any) -> Blob:
        return Blob.operator("divide", self, other)

    __div__ = __truediv__  # Python 2's name, which programs call by hand

    def __rtruediv__(self, other: Any) -> Blob:
        return Blob.operator("divide", other, self)

    def __mod__(self, other: Any) -> Blob:
        return Blob.operator("mod", self, other)

    def __rmod__(self, other: Any) -> Blob:
        return Blob.operator("mod", other, self)

    def __floordiv__(self, other: Any) -> Blob:
        return Blob.operator("floordiv", self, other)

    def __rfloordiv__(self, other: Any) -> Blob:
        return Blob.operator("floordiv", other, self)

    def __rpow__(self, other: Any) -> Blob:
        return Blob.operator("pow", other, self)

    def __rmatmul__(self, other: Any) -> Blob:
        return Blob.operator("matmul", other, self)

    def __pow__(self, other: Any) -> Blob:
        return Blob.operator("pow", self, other)

    def __matmul__(self, other: Any) -> Blob:
        return Blob.operator("matmul", self, other)

    def __neg__(self) -> Blob:
        return Blob.operator("negative", self, None)

    def __abs__(self) -> Blob:
        return Blob.operator("abs", self, None)

    def __eq__(self, other: Any) -> Blob:  # type: ignore[override]
        return Blob.operator("equal", self, other)

    def __ne__(self, other: Any) -> Blob:  # type: ignore[override]
        return Blob.operator("not_equal", self, other)

    def __lt__(self, other: Any) -> Blob:
        return Blob.operator("less", self, other)

    def __le__(self, other: Any) -> Blob:
        return Blob.operator("less_equal", self, other)

    def __gt__(self, other: Any) -> Blob:
        return Blob.operator("greater", self, other)

    def __ge__(self, other: Any) -> Blob:
        return Blob.operator("greater_equal", self, other)

    def __getitem__(self, key: Any) -> Blob:
        return Blob.operator("getitem", self, key)

    # --- operations that would need a value, which a Blob does not have

    def _refuse(self, what: str, instead: str) -> NoReturn:
        line = caller()
        raise BlobUseError(
            f"{what}: Blob {self.op_name!r} in job {self.job_name!r} has no value while the job is being described\n"
            f"  the Blob   {self.describe()}   made at {self.source}\n"
            f"  your line  {line}   {line.text}\n"
            f"  try        {instead}"
        )

    def __bool__(self) -> NoReturn:
        self._refuse(
            "the truth of a Blob is not known yet",
            "choose by value with flow.where(condition, x, y), and leave loops that end by value to the job's caller; "
            "to ask whether a Python variable is set, write `x is None`",
        )

    def __iter__(self) -> NoReturn:
        self._refuse(
            "a Blob cannot be iterated over",
            f"loop over range({self.shape[0] if self.shape else 1}) and take slices with blob[i : i + 1]",
        )

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        self._refuse("a NumPy function was applied to a Blob", "use the op of flow, flow.math or flow.nn of that name")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        name = _UFUNCS.get(ufunc.__name__)
        # np.float64(2) * blob: NumPy asks here before Python asks Blob.__rmul__
        if name is not None and method == "__call__" and not kwargs and len(inputs) == 2:
            if all(isinstance(x, Blob) or getattr(x, "ndim", 0) == 0 for x in inputs):
                left, right = (x if isinstance(x, Blob) or not hasattr(x, "item") else x.item() for x in inputs)
                return Blob.operator(name, left, right)
            self._refuse(
                "a NumPy array cannot be combined with a Blob",
                "feed the array as an input of the job, or store it with flow.get_variable",
            )
        self._refuse(f"NumPy's {ufunc.__name__} was applied to a Blob", f"use flow.math.{ufunc.__name__} where it exists")

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        self._refuse(
            f"NumPy's {function.__name__} was applied to a Blob", "use the op of flow, flow.math or flow.nn of that name"
        )

    if TYPE_CHECKING:
        __hash__: ClassVar[None]  # type: ignore[assignment]
    else:  # type checkers and editors see no methods that only raise

        def __len__(self) -> int:
            self._refuse("len() of a Blob", "use blob.shape[0], which is known")

        def __setitem__(self, key: Any, value: Any) -> None:
            self._refuse(
                "a Blob cannot be changed in place",
                "make a new one with flow.tensor_scatter_nd_update(blob, indices, updates) or flow.where(mask, new, blob)",
            )

        def __delitem__(self, key: Any) -> None:
            self._refuse("a Blob cannot be changed in place", "take what is left with slices, and join them with flow.concat")

        def __contains__(self, item: Any) -> bool:
            self._refuse("`in` on a Blob", "compare with flow.math.equal and reduce with flow.math.reduce_any")

        def __and__(self, other: Any) -> Blob:
            self._refuse("`&` on a Blob", "combine masks with flow.math.logical_and(x, y)")

        def __or__(self, other: Any) -> Blob:
            self._refuse("`|` on a Blob", "combine masks with flow.math.maximum(x, y)")

        def __xor__(self, other: Any) -> Blob:
            self._refuse("`^` on a Blob", "compare masks with flow.math.not_equal(x, y)")

        __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

        def __invert__(self) -> Blob:
            self._refuse("`~` on a Blob", "negate a mask with flow.math.equal(x, 0)")

        def __float__(self) -> float:
            self._refuse("float() of a Blob", "keep it a Blob and return it from the job; the call gives its number")

        def __int__(self) -> int:
            self._refuse("int() of a Blob", "keep it a Blob and return it from the job; the call gives its number")

        def __index__(self) -> int:
            self._refuse("a Blob as an index", "use flow.gather(params, indices)")

        def __hash__(self) -> int:
            self._refuse("a Blob cannot be hashed (its == adds an op)", "use blob.logical_blob_name as the key")

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            hint = {
                "numpy": "return the Blob from the job; the call gives its array",
                "get": "return the Blob from the job; the call gives its array",
                "reshape": "use flow.reshape(blob, shape)",
                "astype": "use flow.cast(blob, dtype)",
                "sum": "use flow.math.reduce_sum(blob)",
                "mean": "use flow.math.reduce_mean(blob)",
                "max": "use flow.math.reduce_max(blob)",
                "T": "use flow.transpose(blob, perm)",
                "item": "return the Blob from the job; the call gives its array",
                "backward": "an optimizer's minimize(loss) stands for it",
                "grad": "flow.watch_diff(blob, handler) shows gradients",
                "detach": "use flow.nn.stop_gradient(blob)",
                "to": "flow.scope.placement says on which device ops run, flow.cast(blob, dtype) converts",
                "cuda": "flow.scope.placement says on which device ops run",
                "cpu": "return the Blob from the job; the call gives its array",
                "view": "use flow.reshape(blob, shape)",
                "add_": "Blobs do not change: x = x + 1 names a new one",
                "zero_": "Blobs do not change: flow.zeros_like(blob) is a new one",
            }.get(name, "see dir(flow.Blob) for what it has")
            raise AttributeError(
                f"a Blob has no attribute {name!r}: {hint} (Blob {object.__getattribute__(self, 'node').name!r})"
            )


_UFUNCS = {
    "add": "add", "subtract": "subtract", "multiply": "multiply", "divide": "divide", "true_divide": "divide",
    "remainder": "mod", "floor_divide": "floordiv", "power": "pow", "matmul": "matmul", "equal": "equal",
    "not_equal": "not_equal", "less": "less", "less_equal": "less_equal", "greater": "greater",
    "greater_equal": "greater_equal",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LogicalBlobId:
    """The two names that OneFlow identifies a Blob by."""

    _op_name: str
    _blob_name: str

    def op_name(self) -> str:
        """The name of the op."""
        return self._op_name

    def blob_name(self) -> str:
        """The name among the op's outputs."""
        return self._blob_name
