"""The result of an asynchronous call: a future."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures._base import FINISHED, RUNNING
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import prod
from types import CoroutineType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, TypeVar

import numpy as np

from .._base import check, jax_versions, native
from .._base.frames import show_users_frames
from .._base.refuse import refuse, shown
from .._base.source import of_function
from ..errors import ArgumentError, ResultError
from ..graph.graph import Watch
from .waiting import INTERRUPTIBLE_FROM_SECONDS, flat, wait_interruptibly

_UNSET: Any = object()
T = TypeVar("T")


class Deliverer(Protocol):
    """The interface of the delivery thread for results."""

    def enter_user_code(self) -> bool: ...

    def leave_user_code(self) -> None: ...

    is_dozing: bool

    def late(self, result: Result[Any]) -> None: ...

    def wake(self) -> None: ...

    def moved_on(self, thread: int) -> None: ...

    def wait_for(self, result: Result[Any]) -> None: ...

    def report(self, error: BaseException, job_name: str, what: str) -> None: ...

    def raise_as_callback_error(self, error: BaseException, job_name: str) -> NoReturn: ...


class NotAnArrayError(ResultError, AttributeError, TypeError):
    """A result was asked for a property of arrays, and is not one array of a known shape."""


class ArraySpec(NamedTuple):
    """Shape and dtype of the array that each call of a job returns."""

    shape: tuple[int, ...]
    dtype: np.dtype


@dataclass(slots=True, eq=False)
class Delivery:
    """The settings that all results of one job share.

    Attributes:
      convert: makes the value of a call from its fetched device arrays.
      finished: ``finished(*results)`` is called when the device has finished calls, with the results of each. Of those that the
        extension module has made it may not be called: nobody counts those.
      gives_handles: callers get the results, and may register callbacks.
      scope: what handlers and callbacks run in; None for nothing.
      seconds: what the last call took that was waited for; infinite before the first.
      array: what is known of the value before a call; None unless it is one array of a fixed shape.
      copies_first: the value is a copy of the first array that is fetched, and nothing else.
      look: what ``convert`` calls with that copy; None for nothing, and where it makes something else.
    """

    job_name: str
    deliverer: Deliverer
    convert: Callable[[Any], Any]
    watches: tuple[Watch, ...]
    finished: Callable[..., None]
    gives_handles: bool
    scope: Callable[[], AbstractContextManager[None]] | None = None
    seconds: float = float("inf")
    array: ArraySpec | None = None
    copies_first: bool = False
    look: Callable[[Any], None] | None = None


class _Waiters:
    """The attributes of a future that ``concurrent.futures.wait`` and ``as_completed`` need."""

    __slots__ = ("condition", "told", "waiters")

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.waiters: list[Any] = []
        self.told: list[Any] | None = []  # those of them who know that it has passed; None when all do


class Record:
    """What delivery reads and writes of a call. Where the native part has its extension module, its type of this name.

    Attributes:
      thread: the caller's, where it may register a callback or a watch handler is to run, else 0.
      sequence: the call's number.
      passed: its turn is over.
      is_touched: anything was done with it: one look instead of one at each of the attributes of a Result.
      has_callbacks: a callback or a listener has been registered.
    """

    thread: int
    delivery: Delivery
    _results: Any
    sequence: int
    passed = False
    is_touched = False
    has_callbacks = False


_extension = native.fast_path()
if not TYPE_CHECKING and _extension is not None:
    Record = _extension.Record


class Result(Record, concurrent.futures.Future[T]):
    """One asynchronous call of a job: a ``concurrent.futures.Future``.

    ``result(timeout)`` (``get()``) waits and returns the value; ``async_get(cb)`` (for ``-> Callback[T]`` jobs: calling the
    result) has ``cb(value)`` run once on the delivery thread, in the order of calls. ``done()``, ``add_done_callback``,
    ``concurrent.futures.wait``, ``as_completed``, ``asyncio.wrap_future`` and ``await`` work as with any other future, and
    ``np.asarray(result)`` waits for the value.
    """

    # on the class as long as nothing else is known of a call: a small call is made of such nanoseconds. Future.__init__ would
    # make a lock and a condition, which takes longer than the rest of a small call: see ``_waiters_of``
    _value: Any = _UNSET
    _error: BaseException | None = None
    _has_value: bool = False  # the error is that of a watch handler
    _callback: Callable[[T], object] | None = None
    _listeners: list[Callable[[Result[T]], object]] | None = None
    _registered = False
    _shared: _Waiters | None = None

    @property
    def job_name(self) -> str:
        """The job that was called."""
        return self.delivery.job_name

    # --- the caller's side

    def result(self, timeout: float | None = None) -> T:
        """Waits for the call and returns its value.

        Args:
          timeout: seconds; None waits as long as it takes.
        Raises:
          TimeoutError: the value is not there after ``timeout`` seconds; the call goes on.
          CallbackError: a ``watch`` handler of this call failed.
        """
        try:
            return self._value_in(timeout)
        except BaseException as error:
            show_users_frames(error)
            raise

    get = result

    def _value_in(self, timeout: float | None) -> T:
        delivery = self.delivery
        self.is_touched = True  # before the look at ``passed``: who passes it sets that before it looks
        delivery.deliverer.moved_on(self.thread)
        if timeout is not None:
            seconds, problem = check.number(timeout)
            if problem:
                refuse(ArgumentError, f"the timeout of a call of job {self.job_name!r} {problem}")
            self._wait(seconds)
        if delivery.watches and not self.passed:
            delivery.deliverer.wait_for(self)
        if self._error is not None:
            delivery.deliverer.raise_as_callback_error(self._error, self.job_name)
        results = self._results  # before the look at _value: another thread may be setting both
        if self._value is _UNSET:
            start = time.perf_counter()
            if delivery.seconds > INTERRUPTIBLE_FROM_SECONDS and not self.passed:
                wait_interruptibly(flat(_awaited(results)))
            self._value = delivery.convert(results[0])
            delivery.seconds = time.perf_counter() - start
            self._forget()
        return self._value

    def _forget(self) -> None:
        """Releases the device's arrays behind the value. Those that show that the call is over stay."""
        if self.passed:
            self._results = ((), (), ())

    def _wait(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        pause = 0.0001
        while not self.done():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"the call of job {self.job_name!r} has not finished after {timeout} s")
            time.sleep(min(pause, left))
            pause = min(pause * 2, 0.01)

    def done(self) -> bool:
        """Whether ``result()`` would return the value at once."""
        if self._value is not _UNSET or self._error is not None or self.passed:
            return True
        return not self.delivery.watches and all(a.is_ready() for a in flat(_awaited(self._results)))

    def async_get(self, callback: Callable[[T], object]) -> None:
        """Registers ``callback(value)``, to run once on the delivery thread, after the callbacks of earlier calls.

        Raises:
          ResultError: this result has a callback already.
        """
        if not callable(callback):
            refuse(ResultError, f"the callback of job {self.job_name!r} must be callable, got {shown(callback)}")
        if self._registered:
            refuse(ResultError, f"this call of job {self.job_name!r} has a callback already; each result takes one")
        self._registered = True
        self._callback = callback
        self.is_touched = self.has_callbacks = True
        self._registered_now()

    def __call__(self, callback: Callable[[T], object] | None = None) -> None:
        """Registers ``callback(value)``, as ``async_get`` does."""
        if callback is None:
            hint = "job(...)(f) has f(value) called with the value; for the value itself annotate the job with -> T"
            refuse(ResultError, f"a call of job {self.job_name!r} was given no callback", hint=hint)
        self.async_get(callback)

    def add_done_callback(self, fn: Callable[[Any], Any]) -> None:
        """Registers ``fn(result)``, to run on the delivery thread when the call has finished."""
        if not callable(fn):
            refuse(ArgumentError, f"a listener to a call of job {self.job_name!r} must be callable, got {shown(fn)}")
        if self._listeners is None:
            self._listeners = []
        self._listeners.append(fn)
        self.is_touched = self.has_callbacks = True
        self._registered_now()

    def _registered_now(self) -> None:
        deliverer = self.delivery.deliverer
        if self.passed:  # too late for its turn
            deliverer.late(self)
        elif deliverer.is_dozing:
            deliverer.wake()

    def running(self) -> bool:
        """Whether the call is still under way."""
        return not self.done()

    def cancel(self) -> bool:
        """False: a submitted call is a step that happens."""
        return False

    def cancelled(self) -> bool:
        """False, always."""
        return False

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error of this call, None where it succeeded. Raises TimeoutError, and what interrupts the wait."""
        try:
            self.result(timeout)
        except (TimeoutError, ArgumentError):  # of the wait: those of the call itself are CallbackErrors
            raise
        except Exception as error:
            return error
        return None

    def __await__(self) -> Generator[Any, None, T]:
        import asyncio  # takes a tenth of `import oneflow`, and has been imported by whoever awaits

        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        def passed(_: Result[Any]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(wake)

        self.add_done_callback(passed)
        yield from future.__await__()
        return self.result()

    def set_result(self, result: Any) -> NoReturn:
        """Raises ResultError: the call itself provides its outcome."""
        self._refuse_outcome("set_result")

    def set_exception(self, exception: BaseException | None) -> NoReturn:
        """Raises ResultError: the call itself provides its outcome."""
        self._refuse_outcome("set_exception")

    def set_running_or_notify_cancel(self) -> NoReturn:
        """Raises ResultError: the call is running already."""
        self._refuse_outcome("set_running_or_notify_cancel")

    def _refuse_outcome(self, method: str) -> NoReturn:
        rule = f"{method} cannot be used on a call of job {self.job_name!r}: the call itself provides its outcome"
        refuse(ResultError, rule, hint="make a concurrent.futures.Future() for an outcome of your own")

    # --- as an array

    def __copy__(self) -> Result[T]:
        return self  # of one call, whose value nobody would give a copy

    def __deepcopy__(self, memo: Any) -> Result[T]:
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.result(), dtype, copy=copy)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value, known before it is there. Raises NotAnArrayError unless it is one array of a fixed shape."""
        return self._array("shape").shape

    @property
    def dtype(self) -> np.dtype:
        """The NumPy dtype of the value, as for ``shape``."""
        return self._array("dtype").dtype

    @property
    def ndim(self) -> int:
        """The number of axes of the value, as for ``shape``."""
        return len(self._array("ndim").shape)

    @property
    def size(self) -> int:
        """The number of elements of the value, as for ``shape``."""
        return prod(self._array("size").shape)

    def __len__(self) -> int:
        shape = self._array("len()").shape
        if not shape:
            refuse(NotAnArrayError, f"len() of a call of job {self.job_name!r}: what it returns has no axis")
        return shape[0]

    def __bool__(self) -> bool:
        return True  # a future, whatever its length

    if not TYPE_CHECKING:  # for type checkers there are none

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):  # probes of the interpreter and of other libraries
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            own = getattr(type(self), name, None)
            if isinstance(own, property):  # which has raised an AttributeError of its own
                own.fget(self)
            self._refuse_use(f"attribute {name!r}")

        def __getitem__(self, index: Any) -> NoReturn:
            self._refuse_use("elements")

    def _refuse_use(self, what: str) -> NoReturn:
        rule = f"the Result of a call of job {self.job_name!r} has no {what}: it is a future, which stands for the value"
        refuse(NotAnArrayError, rule, hint="its get() waits for the value; a job annotated with -> tp.Numpy returns it")

    def _array(self, what: str) -> ArraySpec:
        if self.delivery.array is None:
            rule = f"{what} of a call of job {self.job_name!r}: it does not return one array of a fixed shape"
            refuse(NotAnArrayError, rule, hint="result() waits for the value")
        return self.delivery.array

    def __repr__(self) -> str:
        return f"<Result of job {self.job_name!r}, {'done' if self.done() else 'running'}>"

    # --- what concurrent.futures reads of its futures, made when it does

    def _waiters_of(self) -> _Waiters:
        if self._shared is None:
            with _MAKING:
                if self._shared is None:
                    self.is_touched = True
                    self._shared = _Waiters()
                    if self.delivery.deliverer.is_dozing:
                        self.delivery.deliverer.wake()
        return self._shared

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        shared = self._waiters_of()
        if self.passed and shared.told is not None:  # maybe it passed unseen, before there was anything to tell
            self._wake()
        return shared.condition

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        return self._waiters_of().waiters

    @property
    def _state(self) -> str:  # type: ignore[override]
        # for whoever holds the condition it must not change: ``wait`` looks twice, and counts what it is to be told of
        shared = self._shared
        is_over = self.passed if shared is None else shared.told is None
        return FINISHED if is_over else RUNNING

    # --- the delivery thread's side

    @property
    def is_waited_for(self) -> bool:
        """Whether anything is to be run when it passes, or somebody waits for that."""
        return self.has_callbacks or bool(self.delivery.watches) or self._shared is not None

    def wait(self, is_ready: bool) -> None:
        """Waits for the device, unless the arrays are known to be ready. Never raises; keeps the error."""
        if self.passed:  # a caller has delivered it, all but a callback that was registered meanwhile
            return
        results = self._results
        try:
            for array in () if is_ready else _awaited(results):
                if type(array) is tuple:  # a tensor list
                    for inner in flat(array):
                        inner.block_until_ready()
                else:
                    array.block_until_ready()
        except BaseException as error:
            self._error = error
            self._report(error, "a call")
        self.delivery.finished(results)

    def finish(self) -> None:
        """Runs the watch handlers, once, waiting for their values. Never raises; keeps the error."""
        if self.passed:
            if self._shared is not None:
                self._wake()  # an interrupt may have come in between
            return
        if self.delivery.watches and self._error is None:
            with nullcontext() if self.delivery.scope is None else self.delivery.scope():
                for watch, array in zip(self.delivery.watches, self._results[1], strict=True):
                    self._hand_over(watch, array)
        self.passed = True
        if self.is_touched:
            self.tell()

    def tell(self) -> None:
        """Tells those who wait for it that it has passed, after it was set so: earlier waiters are woken, later ones see it."""
        if self._value is not _UNSET:
            self._forget()
        if self._shared is not None:
            self._wake()

    def _wake(self) -> None:
        """Wakes what waits by ``concurrent.futures``."""
        shared = self._waiters_of()
        with shared.condition:
            if shared.told is None:
                return
            for waiter in shared.waiters:
                if waiter not in shared.told:
                    (waiter.add_result if self._error is None else waiter.add_exception)(self)
                    shared.told.append(waiter)
            shared.condition.notify_all()
            shared.told = None

    def _hand_over(self, watch: Watch, array: Any) -> None:
        deliverer = self.delivery.deliverer
        if deliverer.enter_user_code():
            try:
                watch.deliver(array)
            except BaseException as error:
                self._has_value = True
                self._error = self._error or error
                self._report(error)
            finally:
                deliverer.leave_user_code()

    def run_callbacks(self) -> None:
        """Runs what was registered, each once."""
        scope = self.delivery.scope
        if scope is None:
            self._run_callbacks()
            return
        with scope():
            self._run_callbacks()

    def _run_callbacks(self) -> None:
        callback = self._callback
        if callback is not None:
            self._callback = None
            if self._error is None or self._has_value:  # else there is no value to deliver, and it was reported
                try:
                    results = self._results
                    if self._value is _UNSET:
                        self._value = self.delivery.convert(results[0])
                        self._forget()
                except BaseException as error:
                    self._report(error)
                else:
                    self._run(callback, self._value)
        while self._listeners:
            self._run(self._listeners.pop(0), self)

    def _run(self, callback: Callable[[Any], Any], value: Any) -> None:
        deliverer = self.delivery.deliverer
        if deliverer.enter_user_code():
            try:
                made = callback(value)
                if type(made) is CoroutineType:
                    made.close()
                    raise ResultError(
                        f"the callback of job {self.job_name!r} is an async function, which nothing awaits\n"
                        "  try        a plain function; or write `await job.submit(...)` where the job is called"
                    )
            except BaseException as error:
                self._report(self._miscalled(callback, error) or error)
            finally:
                deliverer.leave_user_code()

    def _miscalled(self, callback: Callable[[Any], Any], error: BaseException) -> ResultError | None:
        """The error of a callback that cannot be called with one argument, which has no line of its own; None for others."""
        has_begun = error.__traceback__ is None or error.__traceback__.tb_next is not None
        if has_begun or type(error) is not TypeError or not hasattr(callback, "__code__"):
            return None
        source = of_function(callback)
        made = ResultError(
            f"the callback of job {self.job_name!r} must take one argument: {error}\n  defined    {source}   {source.text}"
        )
        made.__cause__ = error
        return made

    def _report(self, error: BaseException, what: str = "a callback") -> None:
        self.delivery.deliverer.report(error, self.job_name, what)


_MAKING = threading.Lock()
_new = object.__new__


def _refused(what: str) -> Callable[..., NoReturn]:
    def refused(self: Result[Any], *_: Any) -> NoReturn:
        self._refuse_use(what)

    return refused


_OPERATORS = {
    "__add__": "+", "__sub__": "-", "__mul__": "*", "__truediv__": "/", "__floordiv__": "//", "__mod__": "%", "__pow__": "**",
    "__matmul__": "@",
}  # fmt: skip
for _name, _sign in _OPERATORS.items():
    for _method in (_name, f"__r{_name[2:]}"):
        setattr(Result, _method, _refused(f"operator {_sign}"))
for _name, _sign in {"__neg__": "-", "__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}.items():
    setattr(Result, _name, _refused(f"operator {_sign}"))
for _name, _sign in {"__abs__": "abs()", "__float__": "float()", "__int__": "int()", "__round__": "round()"}.items():
    setattr(Result, _name, _refused(_sign))


def queued(delivery: Delivery, results: Any, sequence: int, thread: int) -> Result[Any]:
    """The Result of a call that was dispatched; ``thread`` as in ``Record``.

    Setting the attributes here takes half as long as ``__init__``.
    """
    made: Result[Any] = _new(Result)
    made.thread = thread
    made.delivery = delivery
    made._results = results
    made.sequence = sequence
    return made


@functools.cache
def block_until_ready() -> Callable[[list[Any]], Any]:
    """A function that waits for a list of arrays."""
    return jax_versions.block_until_ready()


def have_ended(calls: list[Result[Any]]) -> bool:
    """Whether all are calls of one job, and have ended well. Looks at none of them before the last has ended.

    Each wait lets go of Python's lock, which the caller of tiny calls then takes: this is one for all, not one per call.
    """
    last = calls[-1]
    if not last.done():
        return False  # to wait for a long call here would delay those before it, and Ctrl-C
    delivery = last.delivery
    awaited: list[Any] = []  # flat: JAX takes longer over nested tuples
    for call in calls:
        if call.delivery is not delivery:
            return False
        found = _awaited(call._results)
        awaited += flat(found) if any(type(a) is tuple for a in found) else found
    try:
        block_until_ready()(awaited)
    except Exception:  # each is waited for by itself then, and keeps its own error
        return False
    return True


def _awaited(results: Any) -> Any:
    """The arrays that are ready when a call is over: its fetched values, or else its token."""
    return results[0] or results[2]
