"""``flow.typing`` as type checkers and editors see it; at run time ``typing.py`` is imported.

A parameter of a job is a Blob in the body and an array in a call. Python's types have no word for that, so the three array
kinds are classes that inherit Blob, and protocols beside: an argument needs the protocol's methods only (``__array__``), and
the body finds a Blob. The rule that a protocol inherits protocols alone is broken for that, hence the ignores.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Dict, Generic, List, Protocol, Tuple, TypeVar, Union  # noqa: UP035 - programs take them from here

import numpy as np

from ._base.dtype import dtype as _Dtype
from ._signature.inputs import FixedTensorDef as FixedTensorDef
from ._signature.inputs import MirroredTensorDef as MirroredTensorDef
from ._signature.inputs import MirroredTensorListDef as MirroredTensorListDef
from .graph.node import Blob

__all__ = [
    "Bundle", "Callback", "Dict", "FixedTensorDef", "List", "ListListNumpy", "ListNumpy", "MirroredTensorDef",
    "MirroredTensorListDef", "Numpy", "Tuple",
]  # fmt: skip

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)
_Array = np.ndarray[Any, np.dtype[Any]]

class _ArrayLike(Protocol):
    def __array__(self) -> Any: ...

class _Gives(Generic[_T_co]):
    """The base of annotations of results: a call gives the type parameter."""

class _NumpyBlob(Blob, _Gives[_Array]):
    @staticmethod
    def Placeholder(shape: Sequence[int], dtype: _Dtype = ..., batch_axis: int | None = 0, name: str | None = None) -> Any:
        """An annotation for a parameter that is fed with one ndarray of exactly this shape.

        For type checkers it goes into ``Annotated``.

        Args:
          shape: sizes, all > 0.
          dtype: element type, float32 by default.
          batch_axis: the axis that is split over the job's devices; None: every device has the whole array.
          name: ignored.
        Raises:
          ArgumentError: naming the argument.
        Example:
          >>> def job(images: Annotated[tp.Numpy, tp.Numpy.Placeholder((100, 1, 28, 28))]) -> tp.Numpy: ...
        """

class Numpy(_NumpyBlob, Protocol):  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    """One array: the whole logical tensor.

    A parameter is a Blob in the body, and a call takes anything with ``__array__``. As a return annotation: the body
    returns a Blob, and a call gives an ndarray.
    """

    def __array__(self) -> Any: ...

class _ListNumpyBlob(Blob, _Gives[list[_Array]]):
    @staticmethod
    def Placeholder(shape: Sequence[int], dtype: _Dtype = ..., batch_axis: int = 0, name: str | None = None) -> Any:
        """An annotation for a parameter that is fed with one ndarray per device, of this rank and at most this many elements.

        Arguments and errors are those of ``Numpy.Placeholder``; ``batch_axis`` is an int. The job runs in the mirrored view.
        """

class ListNumpy(_ListNumpyBlob, Protocol):  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    """A list of arrays, one per device, in a call; a Blob in the body. Their shapes may vary from call to call."""

    def __iter__(self) -> Iterator[_ArrayLike]: ...  # type: ignore[override]

class _ListListNumpyBlob(Blob, _Gives[list[list[_Array]]]):
    @staticmethod
    def Placeholder(shape: Sequence[int], dtype: _Dtype = ..., batch_axis: int = 0, name: str | None = None) -> Any:
        """An annotation for a parameter that is fed with lists of ndarrays, one list per device, together at most this large.

        Arguments and errors are those of ``ListNumpy.Placeholder``.
        """

class ListListNumpy(_ListListNumpyBlob, Protocol):  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
    """A list of lists of arrays in a call, one tensor list per device; a Blob in the body."""

    def __iter__(self) -> Iterator[Iterable[_ArrayLike]]: ...  # type: ignore[override]

class _Asynchronous(Generic[_T_co]):
    """Marks the result of a job whose calls return at once."""

# the body returns what T says; a call returns a Result of it
Callback = Union[_T, _Asynchronous[_T]]  # noqa: UP007 - subscripted
# any nesting of Blobs; a call gives the same nesting of arrays
Bundle = Union[_T, list[Any], tuple[Any, ...], dict[Any, Any]]  # noqa: UP007 - subscripted
