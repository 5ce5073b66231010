"""What depends on the version of JAX: the versions that are supported, the private parts in use, and what a version breaks.

No other module of the library imports a private module of JAX, or asks for its version (``tests/test_imports.py``).
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Protocol

OLDEST, NEWEST = (0, 10), (0, 12)  # docs/versions.md
REQUIREMENT = f"jax>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}"  # as in pyproject.toml


def release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: ``(0, 12, 0)`` of ``"0.12.0rc1"``."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found.group().split("."))) if found else ()


def is_supported(version: str) -> bool:
    """Whether the library is tested with this version of JAX."""
    return OLDEST <= release(version)[:2] <= NEWEST


# --- defects of XLA


def most_elements_on_cpu() -> int | None:
    """The number of elements of an array from which XLA's CPU compiler cannot be used; None where there is no such number.

    From jaxlib 0.11 on, the compiler splits an elementwise loop into tiles of 8 elements or more, distributes them over its
    threads, and computes the number per thread in 32 bits. Where that overflows to 0 it divides by it, and the process ends
    with SIGFPE (in ``xla::gpu::experimental::GetSchedule``). In JAX alone::

        jax.jit(lambda a: a * a + a).lower(jax.ShapeDtypeStruct((2**39,), "float32")).compile()

    jaxlib 0.12.0.1 does so for 2**35 elements with one core, and for 2**36 with 2, 4, 8, 16, 64 or 200; half as many are the
    first that overflow. No flag of XLA chooses another code generator for such loops.
    """
    import jaxlib

    if release(jaxlib.__version__) < (0, 11):
        return None
    return 8 * (1 << 31) * min(_compiler_cores(), 2)


def _compiler_cores() -> int:
    """The number of cores that XLA's CPU backend counts on: by its own variables, and the affinity of the calling thread."""
    for name in ("PJRT_NPROC", "NPROC"):
        if (asked := os.environ.get(name, "")).isdigit() and int(asked) > 0:
            return int(asked)
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


# --- options of XLA


def can_choose_library() -> bool:
    """Whether XLA's option ``xla_cpu_experimental_ynn_fusion_type`` is known to work as jaxlib 0.10 has it."""
    import jaxlib

    return release(jaxlib.__version__)[:2] == (0, 10)


def not_inlined(closed: Any) -> Callable[..., list[Any]]:
    """A closed jaxpr without constants as a function of arrays: a computation of its own in the program that calls it.

    An attribute of the call keeps XLA from inlining it; an XLA that does not know that attribute inlines the call. The equations
    are not traced again: the call is an equation like that of a jitted function, which is traced in their place.
    """
    import jax
    from jax.experimental.xla_metadata import set_xla_metadata
    from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

    with set_xla_metadata(inlineable="false"), jax.disable_jit(False):
        (example,) = jax.make_jaxpr(jax.jit(lambda a, b: (a + b, a - b, a * b)))(1.0, 2.0).eqns
    jaxpr = closed.jaxpr
    counts = {2: len(jaxpr.invars), 3: len(jaxpr.outvars)}  # by those of the example: of what there is one for each
    params = {
        name: value[:1] * counts[len(value)] if isinstance(value, tuple) and len(value) in counts else value
        for name, value in example.params.items()
    }
    params.update(jaxpr=closed, name="part")
    call = example.replace(invars=list(jaxpr.invars), outvars=list(jaxpr.outvars), params=params)
    return jaxpr_as_fun(ClosedJaxpr(Jaxpr((), jaxpr.invars, jaxpr.outvars, [call], debug_info=jaxpr.debug_info), ()))


def storing(like: Any) -> Callable[..., list[Any]]:
    """The identity of arrays of this shape and dtype, as a computation of its own: what it gets is in memory."""
    import jax

    return not_inlined(jax.make_jaxpr(lambda array: array)(jax.ShapeDtypeStruct(like.shape, like.dtype)))


def sharding_of_callback(context: Any) -> Any:
    """Which device calls Python in a program for several: the first one, or each one inside of ``shard_map``.

    Args:
      context: that of a lowering rule.
    """
    from jax._src.callback import _callback_op_sharding

    return _callback_op_sharding(context.module_context.axis_context, None, context.avals_out)


# --- warnings


@contextlib.contextmanager
def reading_a_profile() -> Iterator[None]:
    """Inside, ``jax.profiler.ProfileData`` can be read with warnings as errors, too.

    The first look at an event's statistics makes a type of C++ code that has no ``__module__``. Python 3.12 and 3.13 warn of it
    (3.11 does not), and where the warning is an error, the C++ code ends the process.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"builtin type \w+ has no __module__ attribute", DeprecationWarning)
        yield


# --- private parts of JAX, present from 0.10 to 0.12


def objects_with_threads() -> list[Any]:
    """The objects of JAX that have threads, wait for some, or free what a GPU holds. Empty where JAX has not been used yet:
    nothing is started.

    Private: ``jax._src.xla_bridge``, because the public functions would start a backend; and the pool of threads of
    ``jax._src.interpreters.mlir``, which has no public name.
    """
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is None or not bridge.backends_are_initialized():
        return []
    clients = {id(d.client): d.client for backend in bridge.backends().values() for d in backend.devices()}.values()
    tracing_pool = getattr(sys.modules.get("jax._src.interpreters.mlir"), "global_thread_pool", None)
    held = (each for client in clients for each in (*client.live_arrays(), *client.live_executables()))
    return [*clients, *held, tracing_pool]


def bind_gloo(host: str) -> None:
    """Makes Gloo listen at ``host``. By default it takes the address of the machine's name, which may be another interface.

    Private: the functions that make the CPU's client and Gloo's collectives. JAX has a public way to replace the CPU's
    backend, but none to say where Gloo listens. A version without these functions keeps its own choice.
    """
    try:
        from jax._src import distributed, xla_bridge
        from jax._src.lib import _jax
        from jax.extend.backend import register_backend_factory

        make_client, make_collectives = xla_bridge.make_cpu_client, _jax.make_gloo_tcp_collectives
        state = distributed.global_state
    except (ImportError, AttributeError):
        return

    def make_cpu_backend() -> Any:
        return make_client(collectives=make_collectives(distributed_client=state.client, hostname=host))

    register_backend_factory("cpu", make_cpu_backend, priority=0, fail_quietly=False)


_postponed: list[Callable[[], Any]] = []


def postpone_exit_hook() -> None:
    """Has JAX's exit hook, which gives its devices up, run with ``run_exit_hook`` in place of its turn. Does nothing the second
    time, or where JAX is not imported.

    Functions that run at exit may call jobs, also those registered before JAX was imported, which run after its hook.

    Private: ``jax._src.api.clean_up``. A version without it keeps its own order.
    """
    hook = getattr(sys.modules.get("jax._src.api"), "clean_up", None)
    if hook is not None and not _postponed:
        atexit.unregister(hook)
        _postponed.append(hook)


def run_exit_hook() -> None:
    """Runs JAX's exit hook where it was postponed."""
    while _postponed:
        _postponed.pop()()


def collect_uninterrupted() -> None:
    """Replaces the function that JAX has the garbage collector call by one without Python code. Does nothing the second time.

    The first Python code that runs after a signal is where Ctrl-C raises its KeyboardInterrupt. In a loop of calls that is that
    function now and then, which can raise it to nobody: Python prints "Exception ignored", and the loop goes on.

    Private: ``jax._src.lib._xla_gc_callback``. A version without it keeps what it has.
    """
    library = sys.modules.get("jax._src.lib")
    callback = getattr(library, "_xla_gc_callback", None)
    collect = getattr(getattr(library, "_jax", None), "collect_garbage", None)
    if callback in gc.callbacks and collect is not None:
        getter = property(functools.partial(next, iter(collect, object())))
        phases = type("Phases", (), {"start": getter, "stop": getter})()
        gc.callbacks[gc.callbacks.index(callback)] = functools.partial(getattr, phases)  # of a phase, and a dictionary


def leave_distributed_run() -> None:
    """Keeps JAX from waiting, at exit, for processes that will not come, and from aborting this one then.

    Private: ``jax._src.distributed.global_state``. ``jax.distributed.shutdown`` would wait for the others, and so would the
    destructors; there is no public way to leave without.
    """
    from jax._src.distributed import global_state

    for part in (global_state.client, global_state.service):
        if part is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))
    global_state.client = global_state.service = global_state.preemption_sync_manager = None


def block_until_ready() -> Callable[[list[Any]], Any]:
    """A function that waits for a list of arrays. Of 32 tiny ones ``jax.block_until_ready`` takes 0.3 us each, this 0.1.

    Private: ``batched_block_until_ready``, which it calls after it has looked for arrays in nested containers.
    """
    import jax

    try:
        from jax._src.lib import xla_client

        found: Callable[[list[Any]], Any] = xla_client.batched_block_until_ready
    except (ImportError, AttributeError):
        return jax.block_until_ready
    return found


class Flag(Protocol):
    """A setting of JAX that is a flag; ``value`` is that of the current thread."""

    @property
    def value(self) -> bool: ...


def debug_flags() -> tuple[Flag, Flag]:
    """``jax_debug_nans`` and ``jax_debug_infs``, in half the time that ``jax.config`` takes: each call of a job asks for them.

    Private: the objects in ``jax._src.config``. Where a version lacks them, ``jax.config`` is asked.
    """
    try:
        from jax._src import config

        found = config.debug_nans, config.debug_infs
        if all(type(flag.value) is bool for flag in found):
            return found
    except (ImportError, AttributeError):
        pass
    return _PublicFlag("jax_debug_nans"), _PublicFlag("jax_debug_infs")


class _PublicFlag:
    def __init__(self, name: str):
        import jax

        self._name, self._settings = name, jax.config

    @property
    def value(self) -> bool:
        found: bool = getattr(self._settings, self._name)
        return found


def trace_context() -> tuple[str, ...] | None:
    """The settings of this thread that a traced program depends on, with context managers; None where they are unknown.

    Private: ``jax._src.config.trace_context``, part of the key of JAX's own caches. Only the settings of the process are
    public, in ``jax.config.values``.
    """
    try:
        from jax._src.config import trace_context as context
    except ImportError:
        return None
    # the axes that are being mapped over are an object without a repr; a job is not called inside of ``jax.vmap``
    found = tuple(repr(part) for part in context() if type(part).__name__ != "AxisEnv")
    return None if any(" at 0x" in text for text in found) else found


def serialized(compiled: Any) -> tuple[bytes, Any, Any]:
    """A ``jax.stages.Compiled`` that this process has compiled, as bytes, with the trees of its arguments and results."""
    from jax.experimental.serialize_executable import serialize

    made: tuple[bytes, Any, Any] = serialize(compiled)
    return made


def deserialized(content: bytes, arguments: Any, results: Any) -> Any:
    """The ``jax.stages.Compiled`` that ``serialized`` was given, in another process, on the default device."""
    import jax
    from jax.experimental.serialize_executable import deserialize_and_load

    return deserialize_and_load(content, arguments, results, execution_devices=jax.devices()[:1])


def fast_call(compiled: Any) -> Any:
    """The function that a ``jax.stages.Compiled`` calls, without the Python code around it; None where it has none.

    It takes arguments as they are: 64-bit mode changes nothing but what NumPy arrays of 64 bits become.

    Private: ``create_cpp_call``, which makes it at the first call. A version without it calls the object itself.
    """
    try:
        return compiled._executable.create_cpp_call(compiled._params)
    except AttributeError:
        return None
