"""The ONNX graph while it is written: names, constants, layouts, and what rules are given to emit nodes with."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .._base import dtype as dtypes
from .._base.dtype import dtype as Dtype
from .._base.jax import jax, jnp
from ..export._axes import Shape, Size, is_open, parsed
from ..export._job import ExportedJob
from ..graph.graph import OP_VARIABLE
from ..graph.node import Blob, Node

Perm = tuple[int, ...]
Key = tuple[Node, int]
TYPES: Mapping[str, int] = {  # onnx.TensorProto's numbers
    "float32": 1, "uint8": 2, "int8": 3, "char": 3, "int32": 6, "int64": 7, "float16": 10, "float64": 11, "bfloat16": 16,
}  # fmt: skip
BOOL = 9


@dataclass(slots=True)
class Op:
    """A node that is being written."""

    kind: str
    name: str
    inputs: list[str]
    outputs: list[str]
    attrs: dict[str, Any]
    doc: str
    domain: str = ""


@dataclass(frozen=True, slots=True)
class Moved:
    """A result that is stored with its axes in another order: its axis i is the Blob's axis ``perm[i]``."""

    name: str
    perm: Perm


@dataclass(frozen=True, slots=True)
class Truth:
    """A result of truth values, which Blobs hold as int8."""

    name: str
    perm: Perm | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Static:
    """A result that is known when the model is written."""

    array: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class InLayout:
    """A result that can be made with its axes in any order: ``make(perm)`` emits it and returns its name."""

    make: Callable[[Perm], str]


Result = str | Moved | Truth | Static | InLayout


@dataclass(slots=True)
class _Stored:
    """Where a Blob's value is: by the order of its axes, the names of tensors that hold it. The first is the original."""

    forms: dict[Perm, str] = field(default_factory=dict)
    truth: dict[Perm, str] = field(default_factory=dict)
    read: Callable[[], np.ndarray] | None = None  # of values that are known when the model is written
    make: Callable[[Perm], str] | None = None


def identity(rank: int) -> Perm:
    return tuple(range(rank))


class Emitter:
    """Writes the nodes of a job, one by one; the attributes ``node`` and ``attrs`` are those of the current one."""

    node: Node
    attrs: Mapping[str, Any]

    def __init__(self, job: ExportedJob, opset: int):
        self.job = job
        self.opset = opset
        self.ops: list[Op] = []
        self.initializers: dict[str, np.ndarray] = {}
        self.domains: dict[str, int] = {}
        self._stored: dict[Key, _Stored] = {}
        self._tensors: set[str] = set()  # names that are taken
        self._names: set[str] = set()
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._dims: dict[str, str] = {}
        self._first = 0  # of the ops of the current node
        self._readers: dict[Key, int] = {}
        for n in job.order:
            for b in n.inputs:
                self._readers[b.node, b.index] = self._readers.get((b.node, b.index), 0) + 1
        for _, blob in job.results:
            self._readers[blob.node, blob.index] = self._readers.get((blob.node, blob.index), 0) + 2
        for spec in job.inputs:
            self._tensors.add(spec.label)
            self._stored[spec.blob.node, 0] = _Stored({identity(len(spec.shape)): spec.label})

    # --- one node

    def begin(self, node: Node) -> None:
        self.node = node
        self.attrs = self.job.sizes.attrs_of(node)
        self._first = len(self.ops)

    def finish(self, results: Result | Sequence[Result]) -> None:
        """Names what the rule made of the current node."""
        many = results if isinstance(results, (list, tuple)) else [results]
        for blob, result in zip(self.node.outputs, many, strict=True):
            stored = self._stored[blob.node, blob.index] = _Stored()
            match result:
                case Static(array):
                    stored.read = lambda array=array: array
                case InLayout(make):
                    stored.make = make
                case Truth(name, perm):
                    perm = identity(blob.ndim) if perm is None else perm
                    stored.truth[perm] = name
                    as_int8 = self.emit("Cast", name, to=TYPES["int8"])
                    stored.forms[perm] = self._named(as_int8, blob)
                case Moved(name, perm):
                    stored.forms[perm] = self._named(name, blob, "" if perm == identity(blob.ndim) else "_moved")
                case str():
                    stored.forms[identity(blob.ndim)] = self._named(result, blob)
        made = self.ops[self._first :]
        if made and self.node.name not in self._names:
            last = made[-1] if len(made) == 1 or made[-1].kind != "Cast" else made[-2]
            last.name = _fresh(self.node.name, self._names)

    def alias(self, index: int, source: Blob) -> None:
        """The node's output is another Blob's value."""
        self._stored[self.node, index] = self._find(source)

    def _named(self, name: str, blob: Blob, suffix: str = "") -> str:
        """Renames a tensor that the current node made after its Blob."""
        made = self.ops[self._first :]
        if not any(name in op.outputs for op in made):
            return name
        wanted = _fresh(blob.logical_blob_name + suffix, self._tensors)
        for op in made:
            op.outputs = [wanted if n == name else n for n in op.outputs]
            op.inputs = [wanted if n == name else n for n in op.inputs]
        return wanted

    # --- emitting

    def emit(self, kind: str, *inputs: str, outputs: int = 1, domain: str = "", **attrs: Any) -> Any:
        """Adds a node; returns the name of its output, or the names of several. "" stands for a missing input."""
        name = _fresh(f"{self.node.name}/{kind}", self._names)
        names = [_fresh(f"{name}:{i}", self._tensors) for i in range(outputs)]
        given = list(inputs)
        while given and not given[-1]:
            given.pop()
        self.ops.append(Op(kind, name, given, names, {k: v for k, v in attrs.items() if v is not None}, self._doc, domain))
        return names[0] if outputs == 1 else tuple(names)

    @property
    def _doc(self) -> str:
        return str(self.node.source)

    def producer(self, name: str) -> Op | None:
        """The node that makes a tensor."""
        return next((op for op in reversed(self.ops) if name in op.outputs), None)

    def is_read_once(self, blob: Blob) -> bool:
        """Whether the current node is the only one that looks at a Blob."""
        return self._readers.get((blob.node, blob.index), 0) == 1

    # --- inputs of the current node

    def _find(self, blob: Blob) -> _Stored:
        key = (blob.node, blob.index)
        if key not in self._stored and blob.node.op is OP_VARIABLE:
            name = blob.node.attrs["variable"]
            self._stored[key] = _Stored(read=lambda: self.job.weights[name])
        return self._stored[key]

    def blob(self, i: int) -> Blob:
        return self.node.inputs[i]

    def shape(self, i: int) -> Shape:
        return self.job.sizes.of(self.node.inputs[i])

    def out_shape(self, i: int = 0) -> Shape:
        return self.job.sizes.shapes[self.node, i]

    def dtype(self, i: int = 0) -> Dtype:
        return self.node.inputs[i].dtype

    def layout(self, i: int) -> Perm | None:
        """In which order a value's axes are stored, where that is another one than the Blob's."""
        blob = self.node.inputs[i]
        forms = self._find(blob).forms
        return None if not forms or identity(blob.ndim) in forms else next(iter(forms))

    def static(self, i: int) -> np.ndarray | None:
        """The value of an input, where it is known when the model is written."""
        read = self._find(self.node.inputs[i]).read
        return None if read is None else read()

    def folded(self, i: int) -> np.ndarray | None:
        """The value of an input that is known when the model is written, or that ops compute of such ones."""
        with jax.enable_x64(True):
            return self._folded(self.node.inputs[i])

    def _folded(self, blob: Blob) -> np.ndarray | None:
        read, node = self._find(blob).read, blob.node
        if read is not None:
            return read()
        if not node.inputs or node.op.draws or node.op.on_host or node.op.callback:
            return None
        arrays = [self._folded(b) for b in node.inputs]
        if any(array is None for array in arrays):
            return None
        found = node.op.define(*map(jnp.asarray, arrays), **node.attrs)
        return np.asarray(found[blob.index] if node.op.multiple_results else found)

    def input(self, i: int, perm: Perm | None = None) -> str:
        """The tensor that holds an input, with its axes in the given order."""
        return self.tensor(self.node.inputs[i], perm)

    def inputs(self) -> list[str]:
        return [self.input(i) for i in range(len(self.node.inputs))]

    def tensor(self, blob: Blob, perm: Perm | None = None) -> str:
        stored = self._find(blob)
        wanted = identity(blob.ndim) if perm is None else perm
        if wanted in stored.forms:
            return stored.forms[wanted]
        if stored.read is not None:
            moved = np.transpose(stored.read(), wanted)
            name = blob.node.attrs["variable"] if blob.node.op is OP_VARIABLE else blob.logical_blob_name
            # a name of its own: read back in a session that has the variable, it would be taken for that
            suffix = "" if wanted == identity(blob.ndim) else "_transposed"
            stored.forms[wanted] = self.initializer(name + suffix, moved)
        elif stored.make is not None:
            stored.forms[wanted] = stored.make(wanted)
        else:
            stored.forms[wanted] = self._turned(*next(iter(stored.forms.items()))[::-1], wanted)
        return stored.forms[wanted]

    def _turned(self, name: str, present: Perm, wanted: Perm) -> str:
        return self.emit("Transpose", name, perm=[present.index(axis) for axis in wanted])

    def truth(self, i: int, perm: Perm | None = None) -> str:
        """An input as truth values: where it is not 0."""
        blob = self.node.inputs[i]
        stored = self._find(blob)
        wanted = identity(blob.ndim) if perm is None else perm
        if wanted not in stored.truth:
            stored.truth[wanted] = self.emit("Cast", self.tensor(blob, wanted), to=BOOL)
        return stored.truth[wanted]

    # --- several inputs in one layout

    def aligned(self, *indices: int, truths: Sequence[int] = ()) -> tuple[list[str], Perm]:
        """Inputs that broadcast to the node's output, in one order of axes: their names, and that order."""
        rank = self.node.outputs[0].ndim
        perm = identity(rank)
        for i in indices:
            layout = self.layout(i)
            if self.blob(i).ndim == rank and layout is not None:
                perm = layout
                break
        return [self._in_rank(i, rank, perm, i in truths) for i in indices], perm

    def _in_rank(self, i: int, rank: int, perm: Perm, as_truth: bool) -> str:
        blob = self.node.inputs[i]
        get = self.truth if as_truth else self.input
        if blob.ndim == rank:
            return get(i, perm)
        if perm == identity(rank):
            return get(i)  # ONNX broadcasts as NumPy does
        missing = rank - blob.ndim
        own = tuple(axis - missing for axis in perm if axis >= missing)
        name = get(i, own)
        added = [place for place, axis in enumerate(perm) if axis < missing]
        array = self.initializers.get(name)
        if array is not None and not as_truth:
            return self.constant(np.expand_dims(array, tuple(added)), name)
        return self.emit("Unsqueeze", name, self.ints(added))

    def moved(self, name: str, perm: Perm) -> Result:
        return name if perm == identity(len(perm)) else Moved(name, perm)

    def perm_of(self, i: int) -> Perm:
        return self.layout(i) or identity(self.blob(i).ndim)

    # --- constants

    def initializer(self, name: str, array: np.ndarray) -> str:
        unique = _fresh(name, self._tensors)
        self.initializers[unique] = np.ascontiguousarray(array).reshape(array.shape)
        return unique

    def constant(self, array: np.ndarray, name: str = "constant") -> str:
        """A constant; equal ones are kept once."""
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.initializer(name, array)
        return self._constants[key]

    def ints(self, values: Sequence[int]) -> str:
        return self.constant(np.asarray(values, np.int64))

    def number(self, value: float | int, element: Dtype, rank: int = 0) -> str:
        """A single number of a dtype."""
        with np.errstate(over="ignore"):
            return self.constant(np.asarray(value).astype(element.numpy_dtype).reshape((1,) * rank))

    def like(self, value: float | int, i: int = 0) -> str:
        """A single number of an input's dtype."""
        return self.number(value, self.dtype(i))

    # --- sizes

    def sizes(self, shape: Shape) -> str:
        """A shape as an int64 tensor."""
        if not any(is_open(size) for size in shape):
            return self.ints([int(size) for size in shape])
        parts: list[str] = []
        fixed: list[int] = []
        for size in shape:
            if is_open(size):
                if fixed:
                    parts.append(self.ints(fixed))
                    fixed = []
                parts.append(self.size(size))
            else:
                fixed.append(size)
        if fixed:
            parts.append(self.ints(fixed))
        return parts[0] if len(parts) == 1 else self.emit("Concat", *parts, axis=0)

    def size(self, size: Size) -> str:
        """A size as an int64 tensor of shape (1,)."""
        return self._size(parsed(str(size)))

    def _size(self, e: ast.expr) -> str:
        key = ast.unparse(e)
        if key not in self._dims:
            self._dims[key] = self._computed(e)
        return self._dims[key]

    def _computed(self, e: ast.expr) -> str:
        match e:
            case ast.Constant(value=int(number)):
                return self.ints([number])
            case ast.Name(id=name):
                label, axis = next((s, a) for s, axes in self.job.open_axes.items() for a, n in axes.items() if n == name)
                return self.emit("Gather", self.emit("Shape", label), self.ints([axis]), axis=0)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self.emit("Neg", self._size(operand))
            case ast.Call(func=ast.Name(id=name), args=args):
                return self._called(name, [self._size(a) for a in args])
            case ast.BinOp(left=left, op=ast.Pow(), right=right):
                return self.emit("Pow", self._size(left), self._size(right))
            case ast.BinOp(left=left, op=op, right=right):
                kind = {ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul"}[type(op)]
                return self.emit(kind, self._size(left), self._size(right))
        raise ValueError(f"not a size: {ast.unparse(e)}")

    def _called(self, name: str, values: list[str]) -> str:
        a, b = values
        if name == "floordiv":  # ONNX divides integers towards 0
            return self.emit("Div", self.emit("Sub", a, self.emit("Mod", a, b)), b)
        return self.emit({"mod": "Mod", "max": "Max", "min": "Min"}[name], a, b)

    # --- nodes that opsets write differently, or that take a few steps

    def reshape(self, name: str, shape: Shape, old: Shape | None = None) -> str:
        """A tensor in another shape; ``old`` is the shape that it has."""
        if not shape:
            return self.emit("Reshape", name, self.ints([]))
        opened = [i for i, size in enumerate(shape) if is_open(size)]
        copied = [i for i in opened if old is not None and i < len(old) and str(old[i]) == str(shape[i])]
        inferred = [i for i in opened if i not in copied]
        if len(inferred) > 1:
            return self.emit("Reshape", name, self.sizes(shape))
        target = [0 if i in copied else -1 if i in inferred else size for i, size in enumerate(shape)]
        return self.emit("Reshape", name, self.ints(target))

    def reduce(self, kind: str, name: str, axes: Sequence[int], keepdims: bool) -> str:
        """A reduction. From opset 18 on the axes are an input of all of them."""
        if kind == "ReduceSum" or self.opset >= 18:
            return self.emit(kind, name, self.ints(axes), keepdims=int(keepdims))
        return self.emit(kind, name, axes=list(axes), keepdims=int(keepdims))

    def squeeze(self, name: str, axes: Sequence[int]) -> str:
        return self.emit("Squeeze", name, self.ints(axes)) if axes else name

    def unsqueeze(self, name: str, axes: Sequence[int]) -> str:
        return self.emit("Unsqueeze", name, self.ints(axes)) if axes else name

    def cast(self, name: str, element: Dtype) -> str:
        return self.emit("Cast", name, to=TYPES[element.name])

    def slice(self, name: str, axes: Sequence[int], starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]) -> str:
        given = [self.ints(values) for values in (starts, stops, axes)]
        return self.emit("Slice", name, *given, *([self.ints(steps)] if any(s != 1 for s in steps) else []))

    def wide(self, i: int = 0, perm: Perm | None = None) -> str:
        """An input, 8-bit integers as int32: runtimes compute with few dtypes."""
        return self.widened(self.input(i, perm), self.dtype(i))

    def widened(self, name: str, element: Dtype, *, halves: bool = False) -> str:
        """A tensor of 8-bit integers as int32; where ``halves``, one of 16-bit floats as float32."""
        if halves and is_half(element):
            return self.cast(name, dtypes.float32)
        return self.cast(name, dtypes.int32) if is_narrow(element) else name

    def narrowed(self, name: str, element: Dtype, *, halves: bool = False) -> str:
        """A result of computing with ``widened`` values in its own dtype again."""
        return self.cast(name, element) if is_narrow(element) or (halves and is_half(element)) else name

    # --- the end

    def results(self) -> list[str]:
        """The names of the results, each made by a node of its own name."""
        names: list[str] = []
        for name, blob in self.job.results:
            self.node = blob.node
            present = self.tensor(blob)
            if present in names or self.producer(present) is None:
                present = self.emit("Identity", present)
            wanted = _fresh(name, self._tensors)
            self._rename(present, wanted)
            names.append(wanted)
        return names

    def _rename(self, name: str, wanted: str) -> None:
        for op in self.ops:
            op.outputs = [wanted if n == name else n for n in op.outputs]
            op.inputs = [wanted if n == name else n for n in op.inputs]
        for stored in self._stored.values():
            for forms in (stored.forms, stored.truth):
                for perm, present in forms.items():
                    if present == name:
                        forms[perm] = wanted

    def copy(self, op: Op, arrays: Sequence[np.ndarray]) -> Op:
        """A node like one that was emitted, of other constants; whoever asks for it puts it into ``ops``."""
        inputs = [self.initializer(name, array) for name, array in zip(op.inputs, arrays, strict=True)]
        outputs = [_fresh(name, self._tensors) for name in op.outputs]
        return replace(op, name=_fresh(op.name, self._names), inputs=inputs, outputs=outputs)

    def prune(self, results: Sequence[str]) -> None:
        """Removes nodes and constants that no result needs."""
        needed = set(results)
        kept = []
        for op in reversed(self.ops):
            if any(name in needed for name in op.outputs):
                needed.update(op.inputs)
                kept.append(op)
        self.ops = kept[::-1]
        self.initializers = {name: array for name, array in self.initializers.items() if name in needed}

    def values(self) -> dict[str, tuple[Shape, Dtype]]:
        """Shapes and dtypes of tensors that hold Blobs."""
        made = {}
        for (node, index), stored in self._stored.items():
            shape = self.job.sizes.shapes.get((node, index))
            if shape is not None:
                for perm, name in stored.forms.items():
                    made[name] = (tuple(shape[axis] for axis in perm), node.outputs[index].dtype)
        return made


def _fresh(name: str, taken: set[str]) -> str:
    """The name, or one like it that is not taken; it is taken from now on."""
    unique, number = name, 0
    while unique in taken:
        number += 1
        unique = f"{name}_{number}"
    taken.add(unique)
    return unique


def is_narrow(element: Dtype) -> bool:
    """Whether a dtype is one of integers of 8 bits."""
    return element.name in ("int8", "uint8", "char")


def is_half(element: Dtype) -> bool:
    """Whether a dtype is one of floats of 16 bits."""
    return element.name in ("float16", "bfloat16")
