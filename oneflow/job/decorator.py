"""``flow.global_function``: from a function to a job, and from the function's annotations to the job's type."""

# mypy: disable-error-code="overload-overlap"
# An overload takes what no earlier one takes; those of callbacks overlap with those of values, which come first.

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeVar, overload

from .._base.frames import shows_user_frames
from .._base.generation import V0_3, Generation
from .._base.refuse import refuse, shown
from .._base.source import caller, of_function
from ..config import FunctionConfig
from ..errors import ArgumentError, ModeError
from ..graph.graph import current_or_none
from .function import JobFunction

if TYPE_CHECKING:  # typing.pyi has what type checkers see of annotations
    from ..runtime.result import Result
    from ..typing import ListNumpy, Numpy
    from ..typing import _Array as Array
    from ..typing import _Asynchronous as Asynchronous
    from ..typing import _Gives as Gives

P = ParamSpec("P")
K = TypeVar("K")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")


class JobDecorator(Protocol):
    """The decorator that ``global_function`` returns: the job takes the function's arguments, as arrays.

    A call gives what the return annotation says, for type checkers as far as it is one of these; else Any.
    """

    @overload
    def __call__(self, function: Callable[P, None], /) -> JobFunction[P, None]: ...
    @overload
    def __call__(self, function: Callable[P, Gives[A]], /) -> JobFunction[P, A]: ...
    @overload
    def __call__(self, function: Callable[P, tuple[Gives[A]]], /) -> JobFunction[P, tuple[A]]: ...
    @overload
    def __call__(self, function: Callable[P, tuple[Gives[A], Gives[B]]], /) -> JobFunction[P, tuple[A, B]]: ...
    @overload
    def __call__(self, function: Callable[P, tuple[Gives[A], Gives[B], Gives[C]]], /) -> JobFunction[P, tuple[A, B, C]]: ...
    @overload
    def __call__(
        self, function: Callable[P, tuple[Gives[A], Gives[B], Gives[C], Gives[D]]], /
    ) -> JobFunction[P, tuple[A, B, C, D]]: ...
    @overload
    def __call__(
        self, function: Callable[P, tuple[Gives[A], Gives[B], Gives[C], Gives[D], Gives[E]]], /
    ) -> JobFunction[P, tuple[A, B, C, D, E]]: ...
    @overload
    def __call__(
        self, function: Callable[P, tuple[Gives[A], Gives[B], Gives[C], Gives[D], Gives[E], Gives[F]]], /
    ) -> JobFunction[P, tuple[A, B, C, D, E, F]]: ...
    @overload
    def __call__(self, function: Callable[P, list[Numpy]], /) -> JobFunction[P, list[Array]]: ...
    @overload
    def __call__(self, function: Callable[P, list[ListNumpy]], /) -> JobFunction[P, list[list[Array]]]: ...
    @overload
    def __call__(self, function: Callable[P, Mapping[K, Gives[A]]], /) -> JobFunction[P, dict[K, A]]: ...
    @overload
    def __call__(self, function: Callable[P, None | Asynchronous[None]], /) -> JobFunction[P, Result[None]]: ...
    @overload
    def __call__(self, function: Callable[P, Gives[A] | Asynchronous[Gives[A]]], /) -> JobFunction[P, Result[A]]: ...
    @overload
    def __call__(
        self, function: Callable[P, tuple[Gives[A], Gives[B]] | Asynchronous[tuple[Gives[A], Gives[B]]]], /
    ) -> JobFunction[P, Result[tuple[A, B]]]: ...
    @overload
    def __call__(
        self, function: Callable[P, tuple[Gives[A], Gives[B], Gives[C]] | Asynchronous[tuple[Gives[A], Gives[B], Gives[C]]]], /
    ) -> JobFunction[P, Result[tuple[A, B, C]]]: ...
    @overload
    def __call__(
        self,
        function: Callable[
            P, tuple[Gives[A], Gives[B], Gives[C], Gives[D]] | Asynchronous[tuple[Gives[A], Gives[B], Gives[C], Gives[D]]]
        ],
        /,
    ) -> JobFunction[P, Result[tuple[A, B, C, D]]]: ...
    @overload
    def __call__(
        self, function: Callable[P, Mapping[K, Gives[A]] | Asynchronous[Mapping[K, Gives[A]]]], /
    ) -> JobFunction[P, Result[dict[K, A]]]: ...
    @overload
    def __call__(self, function: Callable[P, Any], /) -> JobFunction[P, Any]: ...


def global_function(
    type: Literal["train", "predict"] | FunctionConfig = "predict", function_config: FunctionConfig | None = None
) -> JobDecorator:
    """Declares a job: ``@flow.global_function(type="train")`` above a function that describes a network.

    Args:
      type: "train" or "predict". The older form ``global_function(config)`` takes a FunctionConfig here, and is a train
        job if and only if ``config.train.*`` was set.
      function_config: settings of the job; copied, so that one object may serve several jobs.
    Returns: a decorator; what it makes is called with NumPy arrays.
    Raises:
      ArgumentError: another type, or no parentheses after the decorator.
      ModeError: inside a job function.
      AnnotationError: a parameter or the result is annotated with something else than ``oneflow.typing`` offers.

    Example:
      >>> @flow.global_function(type="predict")
      ... def twice(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
      ...     return x + x
    """
    return declare(type, function_config, V0_3)


def declare(type: Any, function_config: Any, generation: Generation) -> JobDecorator:
    """``global_function`` for a job of a generation."""
    declared = caller()
    if isinstance(type, FunctionConfig):
        if function_config is not None:
            rule = (
                f"flow.global_function was given a FunctionConfig in the place of the type, and {shown(function_config)} besides"
            )
            refuse(ArgumentError, rule, hint='flow.global_function("train", config), or flow.global_function(config)')
        config, train = type.copy(), type.is_train_configured()
    elif isinstance(type, str) and type in ("train", "predict"):
        if function_config is not None and not isinstance(function_config, FunctionConfig):
            refuse(ArgumentError, f"function_config must be a flow.FunctionConfig, got {shown(function_config)}")
        train = type == "train"
        config = (function_config or FunctionConfig()).copy()
        if function_config is not None and not train:
            function_config.job_type = "predict"  # as in OneFlow: a job without a type that it serves next predicts, too
            config.discard_train()
    elif callable(type):
        refuse(ArgumentError, "flow.global_function needs parentheses", hint='write @flow.global_function(type="predict")')
    else:
        refuse(ArgumentError, f'the type of a job must be "train" or "predict", got {shown(type)}')
    if current_or_none() is not None:
        refuse(ModeError, "a job cannot be declared inside the body of another job")

    def decorate(function: Callable[..., Any]) -> Any:
        _want_function(function)
        return JobFunction(function, train=train, config=config, declared=declared, generation=generation)

    return shows_user_frames(decorate)


def _want_function(function: Any) -> None:
    if isinstance(function, JobFunction):
        refuse(ArgumentError, f"{function.name!r} is a job already",
               hint="declare two jobs, each with a function of its own; both may call a third one")  # fmt: skip
    if inspect.isfunction(function):  # Python 3.14 evaluates its annotations now, and what is wrong with them is the user's
        _ = inspect.unwrap(function).__annotations__
    try:
        inspect.signature(function)
        named = isinstance(function.__name__, str) and not inspect.isclass(function)
    except Exception:  # a builtin without a signature, an object that is not a function
        named = False
    if not named:
        refuse(ArgumentError, f"flow.global_function decorates a function, got {shown(function)}",
               hint="define the job with def, and put the decorator above it")  # fmt: skip
    for is_one, kind, hint in _NOT_ORDINARY:
        if is_one(function):
            refuse(ArgumentError, f"the body of job {function.__name__!r} is {kind}, and must be an ordinary function",
                   hint=hint, source=of_function(function))  # fmt: skip


_NOT_ORDINARY = (
    (inspect.iscoroutinefunction, "an async function", "leave `async` out, and write `await job.submit(...)` where it is called"),
    (inspect.isasyncgenfunction, "an async generator function", "leave `async` out, and return the Blobs"),
    (inspect.isgeneratorfunction, "a generator function", "return the Blobs, several as a tuple, in the place of `yield`"),
)


def function(function_config: FunctionConfig | None = None) -> JobDecorator:
    """The oldest spelling: ``@flow.function(config)``; a train job if and only if ``config.train.*`` was set."""
    if callable(function_config):
        refuse(ArgumentError, "flow.function needs parentheses", hint="write @flow.function() or @flow.function(config)")
    return global_function(function_config if function_config is not None else FunctionConfig())
