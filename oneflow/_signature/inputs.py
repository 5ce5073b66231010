"""The inputs of a job: placeholders, tensor definitions, and nestings of them. Needs no session."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn, Self

import numpy as np

from .._base import dtype as dtypes
from .._base.dist import Distribute, assert_is_valid_distribute, auto
from .._base.dtype import dtype as Dtype
from .._base.frames import shows_user_frames
from .._base.refuse import refuse, shown
from .._base.source import Source, caller
from ..errors import ArgumentError, ModeError
from ..graph.node import LogicalBlobId

NUMPY, LIST_NUMPY, LIST_LIST_NUMPY = "Numpy", "ListNumpy", "ListListNumpy"


@dataclass(frozen=True, slots=True)
class InputDef:
    """One array that each call of a job is fed with.

    ``kind`` is "Numpy" (one array of exactly this shape), "ListNumpy" (one array per device, at most this large) or
    "ListListNumpy" (a list of arrays per device). ``batch_axis`` is non-negative, or None.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: Dtype
    batch_axis: int | None
    source: Source = field(compare=False)

    def __str__(self) -> str:
        axis = "" if self.batch_axis == 0 else f", batch_axis={self.batch_axis}"
        return f"{self.kind}.Placeholder({self.shape}, {self.dtype.name}{axis})"


def define_input(kind: str, what: str, shape: Any, dtype: Any, batch_axis: Any) -> InputDef:
    """An input from the arguments that placeholders and tensor definitions share, checked."""
    if not isinstance(shape, (tuple, list)):
        given = [shape, *([dtype] if isinstance(dtype, (int, np.integer)) else [])]  # Placeholder(2, 3)
        is_size = isinstance(shape, (int, np.integer))
        hint = f"{what}({shown(tuple(given))})" if is_size else f"{what}((100, 1, 28, 28))"
        refuse(ArgumentError, f"{what}: shape should be a tuple of ints, got {shown(shape)}", hint=hint)
    if not shape:
        refuse(ArgumentError, f"{what}: shape needs at least one axis", hint=f"{what}((1,)) for a single number")
    for i, size in enumerate(shape):
        is_size = isinstance(size, (int, np.integer)) and not isinstance(size, (bool, np.bool_))
        if not is_size or size <= 0:
            is_open = size is None or (is_size and size == -1)  # as other libraries write it
            hint = "sizes are fixed when the job is declared; ListNumpy takes arrays up to a size" if is_open else ""
            refuse(ArgumentError, f"{what}: shape[{i}] must be an int > 0, got {shown(size)} in {shown(tuple(shape))}", hint=hint)
    sizes = tuple(int(size) for size in shape)
    if not isinstance(dtype, Dtype):
        hint = f"dtype=flow.{dtypes.meant_by(dtype) or 'float32'}"
        refuse(ArgumentError, f"{what}: dtype must be a dtype of oneflow, got {shown(dtype)}", hint=hint)
    if dtype in dtypes.HOST_ONLY:
        refuse(ArgumentError, f"{what}: values of {dtype} cannot be fed as arrays", hint="use flow.data.ofrecord_reader")
    if batch_axis is None:
        if kind != NUMPY:
            refuse(ArgumentError, f"{what}: batch_axis must be an int for inputs of a List kind, got None")
        return InputDef(kind, sizes, dtype, None, caller())
    if isinstance(batch_axis, bool) or not isinstance(batch_axis, (int, np.integer)):
        refuse(ArgumentError, f"{what}: batch_axis must be an int or None, got {shown(batch_axis)}")
    if not -len(sizes) <= batch_axis < len(sizes):
        refuse(
            ArgumentError, f"{what}: batch_axis={shown(batch_axis)} is outside [{-len(sizes)}, {len(sizes)}) for shape {sizes}"
        )
    return InputDef(kind, sizes, dtype, int(batch_axis) % len(sizes), caller())


# --- annotations


class _PlaceholderType(type):
    """Placeholders are classes, because they are annotations."""

    definition: InputDef

    def __repr__(cls) -> str:
        return f"oneflow.typing.{cls.definition}" if "definition" in cls.__dict__ else super().__repr__()

    @property
    def shape(cls) -> tuple[int, ...]:
        return cls.definition.shape

    @property
    def dtype(cls) -> Dtype:
        return cls.definition.dtype

    @property
    def batch_axis(cls) -> int | None:
        return cls.definition.batch_axis


class PlaceholderBase(metaclass=_PlaceholderType):
    """Base of what ``Numpy.Placeholder(...)`` and its like return."""


def _placeholder(kind: str, shape: Any, dtype: Any, batch_axis: Any) -> Any:
    definition = define_input(kind, f"{kind}.Placeholder", shape, dtype, batch_axis)
    return _PlaceholderType(f"{kind}.Placeholder", (PlaceholderBase,), {"definition": definition, "__module__": "oneflow.typing"})


class ArrayKind:
    """Base of the three annotations of arrays: ``Numpy``, ``ListNumpy`` and ``ListListNumpy``."""

    kind: ClassVar[str]


class Numpy(ArrayKind):
    """One array: the whole logical tensor. As a return annotation: a call returns an ndarray."""

    kind = NUMPY
    __module__ = "oneflow.typing"

    @staticmethod
    @shows_user_frames
    def Placeholder(
        shape: Sequence[int], dtype: Dtype = dtypes.float32, batch_axis: int | None = 0, name: str | None = None
    ) -> Any:
        """An annotation for a parameter that is fed with one ndarray of exactly this shape.

        Args:
          shape: sizes, all > 0.
          dtype: element type.
          batch_axis: the axis that is split over the job's devices; None: every device has the whole array.
          name: ignored.
        Raises:
          ArgumentError: naming the argument.
        Example:
          >>> def job(images: tp.Numpy.Placeholder((100, 1, 28, 28), dtype=flow.float)) -> tp.Numpy: ...
        """
        return _placeholder(NUMPY, shape, dtype, batch_axis)


class ListNumpy(ArrayKind):
    """A list of arrays, one per device. Their shapes may vary from call to call."""

    kind = LIST_NUMPY
    __module__ = "oneflow.typing"

    @staticmethod
    @shows_user_frames
    def Placeholder(shape: Sequence[int], dtype: Dtype = dtypes.float32, batch_axis: int = 0, name: str | None = None) -> Any:
        """An annotation for a parameter that is fed with one ndarray per device, of this rank and at most this many elements.

        Arguments and errors are those of ``Numpy.Placeholder``; ``batch_axis`` is an int. The job runs in the mirrored view.
        """
        return _placeholder(LIST_NUMPY, shape, dtype, batch_axis)


class ListListNumpy(ArrayKind):
    """A list of lists of arrays: one tensor list per device."""

    kind = LIST_LIST_NUMPY
    __module__ = "oneflow.typing"

    @staticmethod
    @shows_user_frames
    def Placeholder(shape: Sequence[int], dtype: Dtype = dtypes.float32, batch_axis: int = 0, name: str | None = None) -> Any:
        """An annotation for a parameter that is fed with lists of ndarrays, one list per device, together at most this large.

        Arguments and errors are those of ``ListNumpy.Placeholder``.
        """
        return _placeholder(LIST_LIST_NUMPY, shape, dtype, batch_axis)


# --- default arguments, the older way


class TensorDef:
    """An input defined by a parameter's default: ``def job(images=flow.FixedTensorDef((100, 1, 28, 28)))``.

    Args:
      shape: sizes, all > 0.
      dtype: element type.
      batch_axis: the axis that is split over the job's devices; None (FixedTensorDef alone): not split.
      name: read by ``op_name`` alone.
      split_axis: ignored; the oldest programs pass it.
    Raises:
      ArgumentError: naming the argument.
    """

    kind: ClassVar[str]
    __slots__ = ("definition", "name", "distribute")

    def __init__(
        self,
        shape: Sequence[int],
        dtype: Dtype = dtypes.float32,
        batch_axis: int | str | None = 0,
        name: str | None = None,
        split_axis: Any = None,
    ):
        if isinstance(batch_axis, str):  # from v0.4 on, the third argument is the name
            name, batch_axis = batch_axis, 0
        self.definition = define_input(self.kind, f"flow.{type(self).__name__}", shape, dtype, batch_axis)
        self.name = name
        self.distribute = auto()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, or the largest shape, of what is fed."""
        return self.definition.shape

    @property
    def dtype(self) -> Dtype:
        """The dtype of what is fed."""
        return self.definition.dtype

    @property
    def batch_axis(self) -> int | None:
        """The axis along which samples are stacked, or None."""
        return self.definition.batch_axis

    @property
    def split_axis(self) -> int | None:
        """The batch axis: inputs are split along it."""
        return self.definition.batch_axis

    @property
    def is_dynamic(self) -> bool:
        """Whether what is fed may be smaller than ``shape``."""
        return self.kind != NUMPY

    @property
    def is_tensor_list(self) -> bool:
        """Whether each device is fed a list of arrays."""
        return self.kind == LIST_LIST_NUMPY

    @property
    def op_name(self) -> str:
        """The given name, or ``Input``."""
        return self.name if isinstance(self.name, str) else "Input"

    @property
    def blob_name(self) -> str:
        """Always ``out``."""
        return "out"

    @property
    def logical_blob_name(self) -> str:
        """``op_name/blob_name``."""
        return f"{self.op_name}/{self.blob_name}"

    @property
    def unique_name(self) -> str:
        """``logical_blob_name``, followed by ``:S<axis>`` or ``:B`` where a layout was asked for."""
        return self.logical_blob_name + {"split": f":S{self.distribute.axis}", "broadcast": ":B"}.get(self.distribute.kind, "")

    @property
    def lbi(self) -> LogicalBlobId:
        """The two parts of ``logical_blob_name``, as OneFlow's LogicalBlobId."""
        return LogicalBlobId(self.op_name, self.blob_name)

    def with_distribute(self, distribute: Distribute) -> Self:
        """The same definition with another layout on the devices."""
        assert_is_valid_distribute(distribute)
        twin = copy.copy(self)
        twin.distribute = distribute
        return twin

    def Clone(self, op_name: str | None = None) -> Self:
        """The same definition under another name."""
        twin = copy.copy(self)
        twin.name = op_name
        return twin

    def _of_the_native_runtime(self, method: str) -> NoReturn:
        refuse(ModeError, f"{type(self).__name__}.{method} drives OneFlow's native graph builder, which does not exist here",
               hint="make it a parameter's default; the job feeds it")  # fmt: skip

    def AddAndInferOp(self, op_conf: Any) -> NoReturn:
        """Raises ModeError: OneFlow's own graph builder calls it."""
        self._of_the_native_runtime("AddAndInferOp")

    def EagerAddAndInferOp(self, op_conf: Any) -> NoReturn:
        """Raises ModeError: OneFlow's own graph builder calls it."""
        self._of_the_native_runtime("EagerAddAndInferOp")

    def SetBatchAxisAndSplitAxis(self, interface_blob_conf: Any) -> NoReturn:
        """Raises ModeError: OneFlow's own graph builder calls it."""
        self._of_the_native_runtime("SetBatchAxisAndSplitAxis")

    def CheckAndAsyncPush(self, session: Any, arg_ndarray: Any) -> NoReturn:
        """Raises ModeError: OneFlow's own session calls it."""
        self._of_the_native_runtime("CheckAndAsyncPush")

    def ToInterfaceBlobConf(self) -> NoReturn:
        """Raises ModeError: OneFlow's own graph builder calls it."""
        self._of_the_native_runtime("ToInterfaceBlobConf")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.shape}, dtype={self.dtype}, batch_axis={self.batch_axis})"


_DEFINED_BY_DEFAULT = inspect.cleandoc(TensorDef.__doc__ or "")


class FixedTensorDef(TensorDef):
    __doc__ = f"One ndarray of exactly this shape.\n\n{_DEFINED_BY_DEFAULT}"
    kind = NUMPY
    __slots__ = ()


class MirroredTensorDef(TensorDef):
    __doc__ = f"One ndarray per device, at most this large.\n\n{_DEFINED_BY_DEFAULT}"
    kind = LIST_NUMPY
    __slots__ = ()


class MirroredTensorListDef(TensorDef):
    __doc__ = f"A list of ndarrays per device, together at most this large.\n\n{_DEFINED_BY_DEFAULT}"
    kind = LIST_LIST_NUMPY
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a job. ``structure`` is an InputDef, or a nesting of tuples, lists and dicts of them."""

    name: str
    structure: Any

    def leaves(self) -> list[tuple[str, InputDef]]:
        """Every InputDef with its path: ``("images", ...)``, ``("pair[0]", ...)``."""
        found: list[tuple[str, InputDef]] = []
        map_structure(lambda label, leaf: found.append((label, leaf)), self.structure, self.name)
        return found


DEEPEST = 100  # containers in containers; more is a list that holds itself


def is_named_tuple(value: Any) -> bool:
    """Whether the value is of a ``typing.NamedTuple`` or ``collections.namedtuple`` class."""
    return isinstance(value, tuple) and hasattr(type(value), "_fields")


def map_structure(function: Callable[[str, Any], Any], structure: Any, label: str = "") -> Any:
    """The same nesting of tuples, lists and dicts, each leaf replaced by ``function(label, leaf)``."""
    if label.count("[") > DEEPEST:
        return function(label, structure)  # a container is not a leaf that any caller takes: the function refuses it
    if isinstance(structure, dict):
        return {key: map_structure(function, value, f"{label}[{shown(key)}]") for key, value in structure.items()}
    if isinstance(structure, (tuple, list)):
        items = [map_structure(function, value, f"{label}[{i}]") for i, value in enumerate(structure)]
        return type(structure)(*items) if is_named_tuple(structure) else tuple(items) if isinstance(structure, tuple) else items
    return function(label, structure)
