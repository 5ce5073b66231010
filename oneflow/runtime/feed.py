"""Checks of what a call is given. The good case costs next to nothing; the bad one explains itself."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from .._base.arrays import array_of, fitted, is_tensor
from .._base.refuse import shown
from .._base.source import caller
from ..errors import FeedDtypeError, FeedError, FeedShapeError
from ..graph.graph import Input
from . import processes
from .aligned import aligned_empty
from .transfer import Part

Check = Callable[[Sequence[Any]], tuple[Any, ...]]
Plain = tuple[tuple[tuple[int, ...], np.dtype], ...]

_ALIGN_FROM_BYTES = 1 << 16
_DLPACK_CPU = 1  # kDLCPU of the DLPack standard


def owned(array: Any) -> Any:
    """A copy that the caller cannot change, laid out so that the device can take it over."""
    if isinstance(array, tuple):
        return tuple(owned(a) for a in array)
    if isinstance(array, Part):
        return Part(owned(array.array), array.axis)
    if array.nbytes < _ALIGN_FROM_BYTES:
        return array.copy()
    copy = aligned_empty(array.shape, array.dtype)
    np.copyto(copy, array)
    return copy


def _copies(feeds: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple([owned(feed) for feed in feeds])


def _small_copies(feeds: tuple[Any, ...]) -> tuple[Any, ...]:
    return (feeds[0].copy(),) if len(feeds) == 1 else tuple([feed.copy() for feed in feeds])


def as_array(value: Any) -> np.ndarray | None:
    """An ndarray of what was fed; None for what is not an array and cannot be made one.

    Numbers and nested lists of them, frames and series of pandas, tensors of PyTorch and JAX, and whatever else has
    ``__array__`` or ``__dlpack__``; without a copy where the memory can be shared.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError("a masked array has elements without a value; call its filled()")
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    if isinstance(value, (bool, int, float, np.generic, list, tuple)):
        return np.asarray(value)
    if is_tensor(value):
        return array_of(value)
    if callable(getattr(value, "__dlpack_device__", None)) and value.__dlpack_device__()[0] == _DLPACK_CPU:
        with contextlib.suppress(BufferError, TypeError, RuntimeError):  # bfloat16 for example, which NumPy does not know
            return np.from_dlpack(value)
    return np.asarray(value) if hasattr(value, "__array__") else None


def _counted(arguments: int) -> str:
    return f"{arguments} argument" if arguments == 1 else f"{arguments} arguments"


def _spelled(kind: np.dtype) -> str:
    return f"{'ml_dtypes' if kind.name == 'bfloat16' else 'np'}.{kind.name}"


class Feeds:
    """The inputs of one job, and the checks of what its calls are given for them."""

    def __init__(
        self,
        job_name: str,
        inputs: Sequence[Input],
        structure: Sequence[Any],
        own_part: bool = False,
        look: Callable[[Sequence[Any]], None] | None = None,
    ):
        """
        Args:
          structure: one entry per parameter: an input's number, or nested lists, tuples and dicts of numbers.
          own_part: each process of the run feeds its share of the batches.
          look: called with the arrays of each call that ``checker()`` has checked.
        """
        self._job, self.look = job_name, look
        self._shares = own_part and processes.count() > 1
        self._inputs = [self._share(spec) for spec in inputs] if self._shares else list(inputs)
        self._structure = list(structure)
        self._flat = all(isinstance(s, int) for s in structure)
        static = all(i.kind == "Numpy" for i in inputs)
        self._static = [(i.shape, i.dtype.numpy_dtype) for i in self._inputs] if static else None

        self.largest = max([math.prod(i.shape) * i.dtype.bytes for i in self._inputs], default=0)  # in bytes, at most
        are_small = static and not self._shares and self.largest < _ALIGN_FROM_BYTES
        self._owned: Callable[[tuple[Any, ...]], tuple[Any, ...]] = _small_copies if are_small else _copies

    def plain(self) -> Plain | None:
        """Shape and dtype of each argument where all are arrays of one shape that are fed as they are; None for other inputs.

        What ``look`` does is not among that.
        """
        if self._static is None or not self._flat or self._shares:
            return None
        return tuple(self._static)

    def checker(self) -> Check:
        """``__call__``, without what need not be asked at each call where all inputs are arrays of one shape."""
        check, look = self._bare_checker(), self.look
        if look is None:
            return check

        def looked_at(args: Sequence[Any]) -> tuple[Any, ...]:
            arrays = check(args)
            look(arrays)
            return arrays

        return looked_at

    def taker(self) -> Check:
        """As ``checker()``, and gives copies, which the caller of an asynchronous call cannot change."""
        check, owned = self.checker(), self._owned
        if self._static is None or len(self._static) != 1 or owned is not _small_copies or self.look is not None:
            return lambda args: owned(check(args))
        ((only, only_dtype),), ndarray = self._static, np.ndarray

        def take_one(args: Sequence[Any]) -> tuple[Any, ...]:
            if len(args) == 1:
                x = args[0]
                if type(x) is ndarray and x.shape == only and (x.dtype is only_dtype or x.dtype == only_dtype):
                    return (x.copy(),)
            return owned(check(args))

        return take_one

    def _bare_checker(self) -> Check:
        if self._static is None or not self._flat or self._shares:
            return self
        count, static, explain, ndarray = len(self._static), self._static, self._explain, np.ndarray
        if count == 1:
            (only, only_dtype) = static[0]

            def check_one(args: Sequence[Any]) -> tuple[Any, ...]:
                if len(args) == 1:
                    x = args[0]
                    if type(x) is ndarray and x.shape == only and (x.dtype is only_dtype or x.dtype == only_dtype):
                        return args  # type: ignore[return-value]
                return explain(args)

            return check_one

        def check(args: Sequence[Any]) -> tuple[Any, ...]:
            if len(args) == count:
                for x, (shape, dt) in zip(args, static):  # noqa: B905  their number has been compared
                    if type(x) is not ndarray or x.shape != shape or (x.dtype is not dt and x.dtype != dt):
                        return explain(args)
                return args  # type: ignore[return-value]
            return explain(args)

        return check

    def __call__(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """The arrays of a call, in the order of the inputs. Raises FeedError, and then nothing has happened."""
        if self._static is not None and self._flat and len(args) == len(self._static):
            for x, (shape, dt) in zip(args, self._static, strict=True):
                if type(x) is not np.ndarray or x.shape != shape or x.dtype != dt:
                    break
            else:
                return self._parts(args) if self._shares else tuple(args)
        found = self._explain(args)
        return self._parts(found) if self._shares else found

    def _share(self, spec: Input) -> Input:
        """The input as one process feeds it."""
        axis, count = spec.blob.batch_axis, processes.count()
        if axis < 0:
            return spec
        if spec.kind != "Numpy" or spec.shape[axis] % count:
            rule = (
                f"input {spec.label!r} cannot be fed in parts: {count} processes need a Numpy.Placeholder that they divide evenly"
            )
            self._fail(FeedError, rule, "leave config.feed_own_part out, or make the batch a multiple", spec)
        return replace(spec, shape=(*spec.shape[:axis], spec.shape[axis] // count, *spec.shape[axis + 1 :]))

    def _parts(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        axes = [spec.blob.batch_axis for spec in self._inputs]
        return tuple([array if axis < 0 else Part(array, axis) for array, axis in zip(arrays, axes, strict=True)])

    def _explain(self, args: Sequence[Any]) -> tuple[Any, ...]:
        if len(args) != len(self._structure):
            names = ", ".join(self._describe(s) for s in self._structure)
            self._fail(
                FeedError,
                f"it takes {_counted(len(self._structure))}, {len(args)} {'was' if len(args) == 1 else 'were'} given",
                f"call it as {self._job}({names})",
            )
        found: list[Any] = [None] * len(self._inputs)
        for structure, arg in zip(self._structure, args, strict=True):
            self._collect(structure, arg, found)
        return tuple(found)

    def _collect(self, structure: Any, arg: Any, found: list[Any]) -> None:
        if isinstance(structure, int):
            found[structure] = self._one(self._inputs[structure], arg)
        elif isinstance(structure, dict):
            if not isinstance(arg, dict) or arg.keys() != structure.keys():
                got = sorted(map(str, arg)) if isinstance(arg, dict) else type(arg).__name__
                self._fail(FeedError, f"an argument must be a dict with the keys {sorted(map(str, structure))}, got {got}")
            for key, inner in structure.items():
                self._collect(inner, arg[key], found)
        else:
            if not isinstance(arg, (list, tuple)) or len(arg) != len(structure):
                got = f"{type(arg).__name__} of {len(arg)}" if isinstance(arg, (list, tuple)) else type(arg).__name__
                self._fail(
                    FeedError, f"an argument must be a list or tuple of {len(structure)} ({self._describe(structure)}), got {got}"
                )
            for inner, item in zip(structure, arg, strict=True):
                self._collect(inner, item, found)

    def _describe(self, structure: Any) -> str:
        if isinstance(structure, int):
            return self._inputs[structure].label
        if isinstance(structure, dict):
            return "{" + ", ".join(f"{k!r}: {self._describe(v)}" for k, v in structure.items()) + "}"
        return "(" + ", ".join(self._describe(s) for s in structure) + ")"

    def _one(self, spec: Input, arg: Any) -> Any:
        if spec.kind == "Numpy":
            array = self._array(spec, arg)
            if array.shape != spec.shape:
                hint = f"feed an array of shape {spec.shape}, or declare the placeholder for {array.shape}"
                if not array.ndim:  # no placeholder is
                    hint = "feed a list of one number: [number]" if spec.shape == (1,) else f"feed an array of shape {spec.shape}"
                if self._shares and array.shape == spec.blob.shape:
                    hint = f"feed this process's part, of shape {spec.shape}, or leave config.feed_own_part out"
                elif array.shape[1:] == spec.shape[1:] and array.ndim:
                    hint += "; a short last batch must be dropped or padded"
                self._fail(FeedShapeError, f"input {spec.label!r} must have shape {spec.shape}, got {array.shape}", hint, spec)
            return self._converted(spec, array)
        n = spec.blob.parallel_size
        if not isinstance(arg, (list, tuple)) or len(arg) != n:
            got = f"{type(arg).__name__} of {len(arg)}" if isinstance(arg, (list, tuple)) else type(arg).__name__
            elements = "1 element" if n == 1 else f"{n} elements"
            hint = "put the array into a list: [array]" if n == 1 else f"np.split(array, {n}) cuts a batch into {n} equal pieces"
            if n == 1 and isinstance(arg, (list, tuple)) and len(arg) > 1:
                hint = f"flow.config.gpu_device_num({len(arg)}) before the first job, and a placement with {len(arg)} devices"
            self._fail(FeedError, f"input {spec.label!r} ({spec.kind}) must be a list of {elements}, one per device, got {got}",
                       hint, spec)  # fmt: skip
        if spec.kind == "ListNumpy":
            each = [self._bounded(spec, self._array(spec, a)) for a in arg]
            if n == 1:
                return each[0]
            return np.stack(each) if len({a.shape for a in each}) == 1 else tuple(each)
        lists = tuple(self._list(spec, each) for each in arg)
        return lists[0] if n == 1 else lists

    def _list(self, spec: Input, given: Any) -> tuple[np.ndarray, ...]:
        if not isinstance(given, list) or not given:
            self._fail(
                FeedError,
                f"input {spec.label!r} (ListListNumpy) must be a list with a list of arrays per device, got {shown(given)}",
                "",
                spec,
            )
        arrays = tuple(self._bounded(spec, self._array(spec, a)) for a in given)
        total, capacity = sum(a.size for a in arrays), int(np.prod(spec.shape))
        if total > capacity:
            self._fail(FeedShapeError, f"input {spec.label!r} holds {capacity} elements, {total} were given", "", spec)
        return arrays

    def _bounded(self, spec: Input, array: np.ndarray) -> np.ndarray:
        if array.ndim != len(spec.shape) or array.size > int(np.prod(spec.shape)):
            self._fail(FeedShapeError,
                       f"input {spec.label!r} must have rank {len(spec.shape)} and "
                       f"at most the elements of {spec.shape}, got {array.shape}", "", spec)  # fmt: skip
        return self._converted(spec, array)

    def _array(self, spec: Input, arg: Any) -> np.ndarray:
        """The fed value as an ndarray: arrays of other libraries share their memory where that is possible."""
        try:
            array = as_array(arg)
        except Exception as error:
            array, why = None, f": {str(error).splitlines()[0]}" if str(error) else ""
        else:
            why = " of dtype object" if array is arg else ""
        if array is None or array.dtype == object:
            hint = f"feed np.asarray(value, {_spelled(spec.dtype.numpy_dtype)}) of shape {spec.shape}"
            rule = f"input {spec.label!r} must be an array or something that is made one, got {type(arg).__name__}{why}"
            self._fail(FeedError, rule, hint, spec)
        return array

    def _converted(self, spec: Input, array: np.ndarray) -> np.ndarray:
        target = spec.dtype.numpy_dtype
        if array.dtype == target and array.dtype.isnative:
            return array
        integers = array.dtype.kind in "biu" and target.kind in "iu"  # their values are looked at below
        fits = integers or (array.dtype.kind in "biuf" and np.can_cast(array.dtype, target, "same_kind"))
        fits |= array.dtype.name == "bfloat16" and target.kind == "f"
        if not fits and array.dtype != target:
            self._fail(FeedDtypeError, f"input {spec.label!r} must be {target}, got {array.dtype}",
                       f"convert with array.astype({_spelled(target)})", spec)  # fmt: skip
        converted = fitted(array, target)
        if converted is None:
            self._fail(
                FeedDtypeError,
                f"input {spec.label!r} must be {target}; some of the {array.dtype} values are outside its range",
                "",
                spec,
            )
        return converted

    def _fail(self, error: type[FeedError], rule: str, hint: str = "", spec: Input | None = None) -> NoReturn:
        line = caller()
        rows = [f"job {self._job!r}: {rule}"]
        if spec is not None:
            rows.append(f"  declared   {spec.label}: {spec.blob.describe()} ({spec.kind})   {spec.blob.source}")
        rows.append(f"  your line  {line}   {line.text}")
        if hint:
            rows.append(f"  try        {hint}")
        raise error("\n".join(rows))
