"""The native part: the distribution oneflow-jax-native, where it is installed, works here and fits the JAX at hand."""

from __future__ import annotations

import importlib
import logging
import math
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from typing import Any, cast

import numpy as np

from . import cores
from .jax import jax
from .log import notice
from .process_state import process_state
from .rounding import rounded, to_bfloat16

_log = logging.getLogger("oneflow")
PROTOCOL = 50
SGEMM = "gemm"  # the name of oneDNN's sgemm among the kernels of products
# How the names of kernels begin that are not oneDNN's.
FEW_PIXELS, FEW_ROWS, WINOGRAD, PACKED = "few pixels", "few rows", "winograd", "packed:"
OWN_KERNELS = (FEW_PIXELS, FEW_ROWS, WINOGRAD, PACKED, "depthwise", "row by row", "grouped:", "integers:")
FORWARD, BACKWARD_DATA, BACKWARD_WEIGHTS = range(3)  # the kinds of a convolution's call, as numbers of a spec
DTYPES = {"float32": 0, "bfloat16": 1}  # the dtypes that calls take, as numbers of a spec


def target(name: str) -> str:
    """The name of a call in XLA's programs; it changes with what a spec means, so that no cached program meets another one."""
    return f"oneflow_{name}_{PROTOCOL}"


def dtype_code(dtype: Any) -> int:
    """A dtype in a spec."""
    return DTYPES[np.dtype(dtype).name]


def dtypes_code(operands: Sequence[Any]) -> int:
    """The dtypes of two inputs and a result in a spec. Products are computed in bfloat16 unless all three are float32."""
    wide = [dtype_code(d) == DTYPES["float32"] for d in operands]
    return 0 if all(wide) else 1 + sum(1 << i for i, is_wide in enumerate(wide) if is_wide)


def call(name: str, spec: Sequence[int], shape: Sequence[int], *arrays: Any, dtype: Any = None) -> Any:
    """A call of the native part in a traced program.

    Args:
      name: one of ``conv``, ``matmul``, ``transpose``.
      spec: what describes it: integers that ``native/src`` reads.
      shape: the result's.
      arrays: the operands.
      dtype: the result's, that of the first array if None.
    """
    result = jax.ShapeDtypeStruct(tuple(shape), arrays[0].dtype if dtype is None else dtype)
    return jax.ffi.ffi_call(target(name), result)(*arrays, spec=_numbers(spec))


def _numbers(spec: Sequence[int]) -> np.ndarray:
    """The spec of a call; a negative number in front says how many devices share the cores."""
    devices = _devices.get()
    return np.array([-devices, *spec] if devices > 1 else spec, np.int64)


def stored(array: Any) -> Any:
    """The array, made to be stored: the native part copies it, so that XLA cannot compute it again for each of its readers."""
    return call("transpose", [dtype_code(array.dtype), 1, array.size, 1], array.shape, array)


def product(name: str, spec: Callable[..., Sequence[int]], shape: Sequence[int], a: Any, b: Any, dtype: Any) -> Any:
    """A convolution or a matrix product, with sums in float32: of bfloat16 numbers unless a, b and the result are float32.

    On a CPU that does not multiply bfloat16 numbers faster, a and b are rounded and multiplied as float32, which gives the same.

    Args:
      name: ``conv`` or ``matmul``.
      spec: from the dtypes of a, b and the result to what describes the call.
      shape: the result's.
      dtype: the result's.
    """
    dtypes = (a.dtype, b.dtype, np.dtype(dtype))
    if dtypes_code(dtypes) == 0 or multiplies_bfloat16():
        return call(name, spec(*dtypes), shape, a, b, dtype=dtype)
    made = call(name, spec(*(np.dtype(np.float32),) * 3), shape, *map(rounded, (a, b)))
    return to_bfloat16(made) if np.dtype(dtype) != np.float32 else made


def product_dtype(dtype: str) -> str:
    """The dtype that ``product`` multiplies arrays of this dtype in."""
    return dtype if multiplies_bfloat16() else "float32"


def product_kernel(name: str, spec: Callable[[str], Sequence[int]], dtype: str) -> str:
    """The name of the kernel of ``product`` for arrays of this dtype. ``spec``: from a dtype to what describes the call."""
    return str(part().library.describe(name, spec(product_dtype(dtype))))


def kernel_words(kernel: str) -> str:
    """A kernel in a table: of whom it is."""
    return kernel if any(own in kernel for own in OWN_KERNELS) else f"oneDNN {kernel}"


def product_words(kernel: str, dtype: str) -> str:
    """A kernel of ``product`` for arrays of this dtype in a table: of whom it is, and what it multiplies in place of them."""
    words = kernel_words(kernel)
    return words if product_dtype(dtype) == dtype else f"{words} in {product_dtype(dtype)}"


def float_bits(number: float) -> int:
    """The bits of a number as float32, as specs hold it."""
    with np.errstate(over="ignore"):
        return int(np.float32(number).view(np.uint32))


def call_several(
    name: str,
    spec: Sequence[int],
    results: Sequence[tuple[Sequence[int], Any]],
    *arrays: Any,
    aliases: Mapping[int, int] | None = None,
) -> tuple[Any, ...]:
    """A call with several results, of these shapes and dtypes. Vmapped, it is made for one element after the other.

    ``aliases`` maps operands that it overwrites to the results that replace them.
    """
    made = [jax.ShapeDtypeStruct(tuple(shape), dtype) for shape, dtype in results]
    run = jax.ffi.ffi_call(target(name), made, vmap_method="sequential", input_output_aliases=dict(aliases or {}))
    return tuple(run(*arrays, spec=_numbers(spec)))


def call_number(program: str, purpose: str) -> int:
    """The number of a call that devices make together: no other call has it that may run at the same time.

    Args:
      program: its name, which tells it apart from others that run on other devices.
      purpose: what tells the call apart from the others of its program.
    """
    import hashlib

    return int.from_bytes(hashlib.blake2b(f"{program}\n{purpose}".encode(), digest_size=8).digest(), "big") >> 1


def exchange(array: Any, devices: int, number: int, *, add_up: bool = False) -> Any:
    """What each of several devices of this process has, for all of them: (devices, *shape) float32, or the sum.

    For what is traced on each of the devices. ``number``: see ``call_number``.
    """
    shape = array.shape if add_up else (devices, *array.shape)
    with sharing_cores(1):
        spec = [devices, number, int(add_up), array.size]
        return call_several("exchange", spec, [(shape, np.float32)], array)[0]


_devices: ContextVar[int] = ContextVar("oneflow_devices_of_calls", default=1)


def on_devices_of(mesh: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose calls of the native part share the cores with those on the other devices that a mesh has here."""
    devices = len(mesh.local_devices)

    def of_pieces(*arrays: Any) -> Any:
        with sharing_cores(devices):
            return run(*arrays)

    return of_pieces


def on_each_device(mesh: Any, run: Callable[..., Any], given: Sequence[Any], made: Any) -> Callable[..., Any]:
    """A function of sharded arrays that runs on each device of a mesh, on its pieces, and shares the cores with the others.

    ``given`` and ``made`` are the PartitionSpecs of the arguments and of the results.
    """
    return jax.shard_map(on_devices_of(mesh, run), mesh=mesh, in_specs=tuple(given), out_specs=made, check_vma=False)


def split_over_devices(
    compute: Callable[[Mapping[str, int]], Callable[..., Any]],
    sizes: Mapping[str, int],
    given: Sequence[str],
    made: Sequence[str],
    along: str,
    sharded: bool = True,
) -> Callable[..., Any]:
    """A function of arrays that may be sharded: each device computes what its pieces of them yield.

    Where the arguments are split along an axis that a result does not have, the devices' results are added up. Uneven pieces are
    filled up with zeros, which ``compute`` must add nothing for to such a sum.

    Args:
      compute: ``compute(sizes)`` is the function of pieces whose axes have these sizes, several results as a tuple.
      sizes: those of all axes, by name, of the whole arrays.
      given: of each argument the names of its axes: ``"batch channels"``.
      made: the same of each result.
      along: the names of the axes that may be split; arguments that are split along others are gathered first.
      sharded: whether they may be; if not, this is ``compute(sizes)``.
    """
    if not sharded:
        return compute(sizes)
    from jax.experimental.custom_partitioning import custom_partitioning

    def as_made(each: list[Any]) -> Any:
        return tuple(each) if len(made) > 1 else each[0]

    def partition(mesh: Any, arguments: Any, results: Any) -> Any:
        split = _splits(mesh, sizes, along.split(), list(zip(given, (a.sharding for a in arguments), strict=True)))
        counts = {name: math.prod(mesh.shape[axis] for axis in split.get(name, ())) for name in sizes}
        pieces = {name: math.ceil(size / counts[name]) for name, size in sizes.items()}
        dtypes = [result.dtype for result in jax.tree.leaves(results)]

        def sharding(names: str) -> Any:
            spec = jax.sharding.PartitionSpec(*(split.get(name) or None for name in names.split()))
            return jax.sharding.NamedSharding(mesh, spec)

        def filled_up(array: Any, names: str) -> Any:
            """A piece, with zeros where it reaches beyond the whole array: XLA has anything there."""
            for axis, name in enumerate(names.split()):
                if pieces[name] * counts[name] > sizes[name]:
                    index = jax.lax.broadcasted_iota(np.int32, array.shape, axis)
                    rest = sizes[name] - jax.lax.axis_index(split[name]) * pieces[name]
                    array = jax.numpy.where(index < rest, array, jax.numpy.zeros((), array.dtype))
            return array

        def run(*arrays: Any) -> Any:
            arrays = tuple(map(filled_up, arrays, given))
            summed = []
            for names, dtype, array in zip(made, dtypes, jax.tree.leaves(compute(pieces)(*arrays)), strict=True):
                axes = tuple(axis for name, over in split.items() if name not in names.split() for axis in over)
                summed.append(jax.lax.psum(array, axes).astype(dtype) if axes else array)
            return as_made(summed)

        return mesh, on_devices_of(mesh, run), as_made([*map(sharding, made)]), tuple(map(sharding, given))

    partitioned = custom_partitioning(lambda *arrays: compute(sizes)(*arrays))
    rule = f"{', '.join(given)} -> {', '.join(made)}"
    partitioned.def_partition(partition=partition, infer_sharding_from_operands=None, sharding_rule=rule)
    vmappable = jax.custom_batching.custom_vmap(partitioned)

    def vmapped(size: int, batched: Sequence[bool], *arrays: Any) -> tuple[Any, Any]:
        """In the mirrored view: an axis more, of devices, along which the work is split."""
        name = "v" * (1 + max((len(axis) for axis in sizes if not axis.strip("v")), default=0))

        def of_pieces(pieces: Mapping[str, int]) -> Callable[..., Any]:
            run = jax.vmap(compute(pieces), [0 if each else None for each in batched])
            return run if pieces[name] > 1 else _of_one(compute(pieces), batched)

        names = [f"{name} {axes}" if each else axes for axes, each in zip(given, batched, strict=True)]
        made_of = [f"{name} {axes}" for axes in made]
        run = split_over_devices(of_pieces, {**sizes, name: size}, names, made_of, f"{name} {along}")
        return run(*arrays), as_made([True] * len(made))

    vmappable.def_vmap(vmapped)
    return vmappable


def _of_one(compute: Callable[..., Any], batched: Sequence[bool]) -> Callable[..., Any]:
    """A function vmapped over one element: without the loop that JAX would make."""

    def run(*arrays: Any) -> Any:
        found = compute(*(array[0] if each else array for array, each in zip(arrays, batched, strict=True)))
        return jax.tree.map(lambda array: array[None], found)

    return run


def _splits(
    mesh: Any, sizes: Mapping[str, int], along: Sequence[str], arrays: Sequence[tuple[str, Any]]
) -> dict[str, tuple[str, ...]]:
    """For each name in ``along``, the axes of the mesh that split it. ``arrays``: names of their axes, and shardings."""

    def axes(names: str, sharding: Any, name: str) -> tuple[str, ...]:
        entry = dict(zip(names.split(), sharding.spec, strict=False)).get(name)  # a spec may end early
        return () if entry is None else entry if isinstance(entry, tuple) else (entry,)

    used: set[str] = set()
    split: dict[str, tuple[str, ...]] = {}
    for name in along:
        found = next(filter(None, (axes(names, sharding, name) for names, sharding in arrays)), ())
        split[name] = () if used & set(found) else found
        used |= set(split[name])
    return split


def addends(mesh: Any, run: Callable[..., Any], rows: int = 2, whole: int = 0) -> Callable[..., Any]:
    """A function of arrays, with the result that ``run`` makes of each device's rows.

    Those of the first ``rows`` arrays are split over the mesh; each device has the ``whole`` ones that follow.

    The result counts as one array that all devices have, though each has its own addend of the sum that is meant. Nothing may
    read it but what knows that, such as the call ``summed_update``.
    """
    split, same = jax.sharding.PartitionSpec(mesh.axis_names), jax.sharding.PartitionSpec()
    return on_each_device(mesh, run, [split] * rows + [same] * whole, same)


@contextmanager
def sharing_cores(count: int) -> Iterator[None]:
    """Calls that are traced inside share the cores with those of ``count - 1`` other programs that run at the same time."""
    before = _devices.set(count)
    try:
        yield
    finally:
        _devices.reset(before)


def programs_sharing() -> int:
    """The ``count`` of ``sharing_cores`` around the caller; 1 outside."""
    return _devices.get()


class Part:
    """The result of looking for it: ``library`` where it can be used, otherwise the ``reason``."""

    def __init__(self) -> None:
        self.library: Any = None
        self.reason = ""
        try:
            self.library = self._load()
        except ImportError as error:
            if error.name == "oneflow_native":
                self.reason = "oneflow-jax-native is not installed"
            else:
                self.reason = f"oneflow-jax-native cannot be imported: {error}"
        except Exception as error:  # whatever a broken part does, the job runs without it
            self.reason = f"oneflow-jax-native cannot be used: {type(error).__name__}: {error}"

    @staticmethod
    def _load() -> Any:
        module = importlib.import_module("oneflow_native")
        if module.PROTOCOL != PROTOCOL:
            raise RuntimeError(f"it speaks protocol {module.PROTOCOL}, this oneflow-jax {PROTOCOL}: install both from one tree")
        library = module.load(usable_cores())
        (major, minor), (built_major, built_minor) = _ffi_version(), library.ffi_version
        if built_major != major or built_minor > minor:  # known to XLA only when it starts, which then fails
            raise RuntimeError(
                f"it was built for XLA's FFI {built_major}.{built_minor}, this jaxlib has {major}.{minor}: "
                "build it with the headers of this jaxlib or an older one (pip install ./native)"
            )
        for name, handler in library.handlers.items():
            jax.ffi.register_ffi_target(target(name), jax.ffi.pycapsule(handler), platform="cpu")
        return library


def _ffi_version() -> tuple[int, int]:
    """The version of XLA's FFI that jaxlib has; only its headers say it."""
    with open(os.path.join(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h"), encoding="utf-8") as opened:
        header = opened.read()
    found = dict(re.findall(r"^#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header, re.MULTILINE))
    return int(found["MAJOR"]), int(found["MINOR"])


def part() -> Part:
    """The native part, looked for once per process. Logs what would be faster with it, or what is wrong with it."""
    with process_state.native_lock:
        if process_state.native_part is None:
            made = process_state.native_part = Part()
            if made.reason.endswith("not installed"):
                _log.info(
                    "oneflow: convolutions and matrix products run faster on this CPU with the native part: pip install ./native"
                )
            elif made.reason:
                _log.warning("oneflow: %s; convolutions and matrix products are computed by XLA", made.reason)
        return cast(Part, process_state.native_part)


@cache
def fast_path() -> Any:
    """The extension module of the native part that makes calls of jobs; None where there is none."""
    try:
        module = importlib.import_module("oneflow_native")
        return module.fast_path() if module.PROTOCOL == PROTOCOL else None
    except Exception as error:  # there is none, or one that has no such module, or is broken, as ``part`` says then
        _log.debug("oneflow: calls of jobs are made by Python: %s", error)
        return None


def array_refusal(dtype: str, sizes: Iterable[int]) -> str | None:
    """Why no call takes arrays of this dtype and of these sizes along their axes; None where one may."""
    if dtype not in DTYPES:
        return f"oneDNN has no {dtype}"
    return "an empty array" if min(sizes) <= 0 else None


def kernel_refusal(call: str, *specs: Sequence[int]) -> str | None:
    """Why a call cannot be made, or is slow, with one of these specs; None if it is good with all of them."""
    found = part()
    if found.library is None:
        return found.reason
    for spec in specs:
        name = found.library.describe(call, spec)
        if name.startswith("!"):
            return f"the native part has no kernel: {name[2:]}"
        if "ref" in name or (call != "matmul" and name.startswith("gemm:")):  # for matrices gemm is a good one
            return f"its kernel is a slow one ({name})"
        if call == "matmul" and name == SGEMM:
            _generate_sgemm(found.library)
    return None


def _generate_sgemm(library: Any) -> None:
    """Has oneDNN generate the code of its sgemm, once per process, while the program with the calls is compiled.

    It does so in the first product, of whatever size: 30 ms that the first step would wait for.
    """
    with process_state.native_lock:
        if process_state.sgemm_generated or usable_cores() < 2:
            return
        process_state.sgemm_generated = True

    def multiply() -> None:
        a, b, c = (np.zeros((8, 8), np.float32) for _ in range(3))
        try:
            library.execute("matmul", [DTYPES["float32"], 1, 8, 8, 8, 0, 0], a.ctypes.data, b.ctypes.data, c.ctypes.data)
        except RuntimeError as error:  # as the calls themselves will say
            _log.debug("oneflow: %s", error)

    with suppress(RuntimeError):  # too many threads, or the interpreter is about to end
        threading.Thread(target=multiply, name="oneflow-sgemm").start()  # the end of the program waits for it


def multiplies_bfloat16() -> bool:
    """Whether the native part multiplies bfloat16 numbers on this machine, faster than float32."""
    library = part().library
    return library is not None and library.has_bfloat16


def has_bfloat16() -> bool:
    """The same; if not, a message says so, once."""
    if multiplies_bfloat16():
        return True
    with process_state.native_lock:
        said, process_state.said_no_bfloat16 = process_state.said_no_bfloat16, True
    if not said:
        slow = part().library is not None and part().library.has_slow_bfloat16
        without = "no AMX, and its AVX-512 BF16 is slower" if slow else "neither AVX-512 BF16 nor AMX"
        reason = part().reason or f"this CPU has {without}"
        notice(f"oneflow: mixed precision will not be faster than float32 here: {reason}")
    return False


def usable_cores() -> int:
    """The cores that this process may use: the least of its affinity, the control group's quota and OMP_NUM_THREADS."""
    count = cores.allowed()
    quota = _quota()
    if quota is not None:
        count = min(count, max(1, round(quota)))
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if asked.isdigit() and int(asked) > 0:
        count = min(count, int(asked))
    return count


def _quota() -> float | None:
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            limit, period = file.read().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        with open("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", encoding="ascii") as file:
            limit_us = int(file.read())
        with open("/sys/fs/cgroup/cpu/cpu.cfs_period_us", encoding="ascii") as file:
            return limit_us / int(file.read()) if limit_us > 0 else None
    except (OSError, ValueError):
        return None
