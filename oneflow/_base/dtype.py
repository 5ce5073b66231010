"""OneFlow's dtypes and their NumPy twins."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from ..errors import ArgumentError, ModeError
from .refuse import refuse, shown


class dtype:
    """An element type, such as ``flow.float32``. Compare with ``==`` or ``is``.

    It equals its NumPy dtype, and NumPy takes it where a dtype is expected: ``np.zeros(3, flow.float32)``.
    """

    __slots__ = ("name", "oneflow_proto_dtype", "_numpy")

    def __init__(self, name: str, enum: int, numpy_type: Any):
        self.name = name
        self.oneflow_proto_dtype = enum
        self._numpy = numpy_type

    @property
    def numpy_dtype(self) -> np.dtype:
        """The NumPy dtype. Raises ArgumentError for ``record`` and ``tensor_buffer``."""
        if isinstance(self._numpy, str):  # bfloat16: ml_dtypes is imported only by those who use it
            import ml_dtypes

            self._numpy = np.dtype(getattr(ml_dtypes, self._numpy))
        if self._numpy is None:
            raise ArgumentError(f"{self} has no NumPy equivalent: its values never leave a job as arrays")
        return self._numpy

    @property
    def is_floating_point(self) -> builtins.bool:
        """Whether it is a floating-point type."""
        return self.name in ("float16", "bfloat16", "float32", "float64")

    @property
    def is_integer(self) -> builtins.bool:
        """Whether it is an integer type; ``char`` is one, ``bool`` is not."""
        return self.name == "char" or self.name.startswith(("int", "uint"))

    @property
    def is_complex(self) -> builtins.bool:
        """Whether it is a complex type."""
        return self.name.startswith("complex")

    @property
    def is_signed(self) -> builtins.bool:
        """Whether it has negative numbers."""
        return self.is_floating_point or self.is_complex or self.name in ("char", "int8", "int16", "int32", "int64", "int128")

    @property
    def is_64_bit(self) -> builtins.bool:
        """Whether arrays have it only in JAX's 64-bit mode."""
        return self.name in ("int64", "uint64", "float64", "complex128")

    @property
    def bytes(self) -> builtins.int:
        """The size of one element in bytes."""
        return self.numpy_dtype.itemsize

    @property
    def dtype(self) -> np.dtype:
        """What NumPy looks for in an object that is given as a dtype."""
        if self._numpy is None:
            raise AttributeError(f"{self} has no NumPy equivalent")  # np.dtype() reports it
        return self.numpy_dtype

    def __eq__(self, other: object) -> builtins.bool:
        if isinstance(other, dtype):
            return self is other or (self._numpy is not None and self._numpy == other._numpy)
        if isinstance(other, np.dtype) or (isinstance(other, type) and issubclass(other, np.generic)):
            return self._numpy is not None and self.numpy_dtype == other
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.name) if self._numpy is None else hash(self.numpy_dtype)  # equal objects have equal hashes

    def __repr__(self) -> str:
        return f"oneflow.{self.name}"

    def __reduce__(self) -> str | tuple[Any, ...]:
        return (_by_name, (self.name,))


def _by_name(name: str) -> dtype:
    return _BY_NAME[name]


float32 = dtype("float32", 2, np.dtype(np.float32))
float64 = dtype("float64", 3, np.dtype(np.float64))
float16 = dtype("float16", 9, np.dtype(np.float16))
bfloat16 = dtype("bfloat16", 11, "bfloat16")
int8 = dtype("int8", 4, np.dtype(np.int8))
int32 = dtype("int32", 5, np.dtype(np.int32))
int64 = dtype("int64", 6, np.dtype(np.int64))
uint8 = dtype("uint8", 7, np.dtype(np.uint8))
char = dtype("char", 1, np.dtype(np.int8))
record = dtype("record", 8, None)
tensor_buffer = dtype("tensor_buffer", 10, None)
HOST_ONLY = (record, tensor_buffer)  # no array has them
float = float32
double = float64

_ALL = [char, float16, float32, float64, int8, int32, int64, uint8, record, tensor_buffer, bfloat16]
# of 0.6: names of oneflow.compatible.single_client, not of oneflow
bool = dtype("bool", 12, np.dtype(np.bool_))
uint16 = dtype("uint16", 13, np.dtype(np.uint16))
uint32 = dtype("uint32", 14, np.dtype(np.uint32))
uint64 = dtype("uint64", 15, np.dtype(np.uint64))
uint128 = dtype("uint128", 16, None)
int16 = dtype("int16", 17, np.dtype(np.int16))
int128 = dtype("int128", 18, None)
complex32 = dtype("complex32", 19, None)
complex64 = dtype("complex64", 20, np.dtype(np.complex64))
complex128 = dtype("complex128", 21, np.dtype(np.complex128))
NEWER = (bool, uint16, uint32, uint64, uint128, int16, int128, complex32, complex64, complex128)

_BY_NAME = {d.name: d for d in (*_ALL, *NEWER)}
_NEWER_BY_NUMPY = {d.numpy_dtype: d for d in NEWER if d._numpy is not None}
_BY_NUMPY = {d.numpy_dtype: d for d in (float16, float32, float64, int8, int32, int64, uint8)}

PROTO_NAMES = {
    "char": "kChar", "float32": "kFloat", "float64": "kDouble", "int8": "kInt8", "int32": "kInt32", "int64": "kInt64",
    "uint8": "kUInt8", "record": "kOFRecord", "float16": "kFloat16", "tensor_buffer": "kTensorBuffer", "bfloat16": "kBFloat16",
    "bool": "kBool", "uint16": "kUInt16", "uint32": "kUInt32", "uint64": "kUInt64", "uint128": "kUInt128", "int16": "kInt16",
    "int128": "kInt128", "complex32": "kComplex32", "complex64": "kComplex64", "complex128": "kComplex128",
}  # fmt: skip


def dtypes() -> list[dtype]:
    """Every dtype, the aliases ``float`` and ``double`` included.

    Example: >>> flow.float32 in flow.dtypes()   # True
    """
    return [*_ALL, float, double]


def from_numpy(numpy_dtype: Any) -> dtype:
    """The dtype of a NumPy (or JAX) array's elements."""
    try:
        key = np.dtype(numpy_dtype)
    except Exception:  # TypeError, ValueError, or whatever an object of the user's raises
        raise ArgumentError(f"{shown(numpy_dtype)} is not a dtype of NumPy's") from None
    found = _BY_NUMPY.get(key)
    if found is None:
        if key == bfloat16.numpy_dtype:
            return bfloat16
        raise ArgumentError(f"no OneFlow dtype for NumPy's {key}; known are {', '.join(map(str, _BY_NUMPY))}")
    return found


def of_values(numpy_dtype: np.dtype) -> dtype:
    """The dtype of the values of an op, which may be one of 0.6's."""
    return _NEWER_BY_NUMPY.get(numpy_dtype) or from_numpy(numpy_dtype)


def meant_by(value: Any) -> str:
    """The name of the flow dtype that stands for something else, such as a NumPy type; "" where there is none."""
    if isinstance(value, str) and value in ("float", "double"):  # NumPy has other names for these
        return value
    try:
        return from_numpy(value).name
    except (ArgumentError, TypeError, DeprecationWarning):
        return ""


def as_dtype(value: Any, argument: str = "dtype") -> dtype:
    """Accepts a flow dtype only, and says what is meant when it is given something else."""
    if isinstance(value, dtype):
        return value
    name = meant_by(value) if isinstance(value, (str, type, np.dtype)) else ""
    hint = f"; write flow.{name}" if name else ""
    raise ArgumentError(f"{argument} must be a dtype of oneflow such as flow.float32, got {shown(value)}{hint}")


def convert_oneflow_dtype_to_numpy_dtype(oneflow_dtype: dtype) -> np.dtype:
    """The NumPy type of a flow dtype. Raises NotImplementedError for record and tensor_buffer.

    Example: >>> flow.convert_oneflow_dtype_to_numpy_dtype(flow.float32)   # numpy.float32
    """
    try:
        as_dtype(oneflow_dtype, "oneflow_dtype")
    except ArgumentError as error:
        refuse(ArgumentError, str(error))
    if oneflow_dtype._numpy is None:
        refuse(ModeError, f"{oneflow_dtype} has no NumPy equivalent")
    return oneflow_dtype.numpy_dtype
