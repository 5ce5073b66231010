"""Custom ops: a function over JAX arrays, or one over NumPy arrays that runs on the host inside a step."""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from .._base import dtype as dtypes
from .._base.dtype import dtype
from .._base.jax import jax, jnp
from .._base.refuse import refuse, shown
from .._base.source import Source, caller, innermost
from ..errors import ArgumentError, CustomOpError
from ..graph import callback
from ..graph.graph import current
from ..graph.node import Blob
from ..graph.op import OpDef
from ._arrays import label
from ._emit import OPS, emit_many, fail, want
from ._host_call import Spec, call_on_host

ATTRIBUTE_TYPES = (bool, int, float, str, tuple, dtype)
REGISTERED: dict[str, CustomOp] = {}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype of an array that does not exist yet: the arguments of a shape rule, and its results."""

    shape: tuple[int, ...]
    dtype: dtype


@dataclass(frozen=True, slots=True, eq=False)
class CustomOp:
    """A registered op; calling it with Blobs, one for each input, adds it to the job whose body is running.

    Attributes are passed by keyword. ``name`` is the op's name in the job, made unique when omitted.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    function: Callable[..., Any]
    op: OpDef
    has_grad: bool
    source: Source

    def __call__(self, *inputs: Blob, name: str | None = None, **attrs: Any) -> Any:
        made = self.emit(inputs, attrs, name)
        return made[0] if len(self.outputs) == 1 else made

    def emit(self, inputs: Sequence[Blob], attrs: Mapping[str, Any], name: str | None) -> tuple[Blob, ...]:
        """The outputs, always as a tuple."""
        what = label(self.name, name)
        if len(inputs) != len(self.inputs):
            takes = f"takes {len(self.inputs)} Blobs ({', '.join(self.inputs)}), got {len(inputs)}"
            fail(ArgumentError, what, takes, inputs)
        for argument, blob in zip(self.inputs, inputs, strict=True):
            want.blob(what, argument, blob)
        values = self.attributes(what, attrs)
        train = current(what).train
        problem = self._problem(inputs, values, train)
        if problem is not None:
            fail(CustomOpError, what, problem, inputs, f"correct the op, which is registered at {self.source}")
        return emit_many(self.op, *inputs, name=name, prefix=self.name, **values)

    def attributes(self, what: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes that were given and the defaults of the others, checked."""
        unknown = [n for n in given if n not in self.attrs]
        if unknown:
            known = f"it has {', '.join(self.attrs)}" if self.attrs else "it has none"
            fail(ArgumentError, what, f"there is no attribute {shown(unknown[0])}; {known}")
        values = {}
        for attribute, default in self.attrs.items():
            if attribute not in given:
                if isinstance(default, type):
                    fail(ArgumentError, what, f"attribute {shown(attribute)} is missing, {default.__name__} without a default")
                values[attribute] = default
                continue
            value = given[attribute]
            kind = default if isinstance(default, type) else type(default)
            if kind is tuple and isinstance(value, (list, tuple)):
                value = tuple(value)
            if isinstance(value, np.generic):
                value = value.item()
            if kind is float and type(value) is int:
                value = float(value)
            if type(value) is not kind:
                fail(ArgumentError, what, f"attribute {shown(attribute)} must be {kind.__name__}, got {shown(value)}")
            values[attribute] = value
        return values

    def _problem(self, inputs: Sequence[Blob], attrs: dict[str, Any], train: bool) -> str | None:
        """The mistake that the user's functions make on arrays of these shapes and dtypes, if any."""
        arrays = [jax.ShapeDtypeStruct(b.shape, b.dtype.numpy_dtype) for b in inputs]
        try:
            with jax.enable_x64(True):
                outputs = jax.eval_shape(lambda *xs: self.op.define(*xs, **attrs), *arrays)
                if train and self.has_grad and self.op.grad is not None:
                    grad = self.op.grad
                    jax.eval_shape(lambda xs, ys, dys: grad(xs, ys, dys, **attrs), tuple(arrays), outputs, outputs)
        except CustomOpError as error:
            return str(error)
        return None

    def __repr__(self) -> str:
        return f"<custom op {self.name}({', '.join(self.inputs)}) -> ({', '.join(self.outputs)}), registered at {self.source}>"


# --- registering


def register_op(
    name: str,
    *,
    inputs: Sequence[str] = ("x",),
    outputs: Sequence[str] = ("out",),
    attrs: Mapping[str, Any] | None = None,
    grad: Callable[..., Any] | None = None,
    shape: Callable[..., Any] | None = None,
    stops: Sequence[str] = (),
) -> Callable[[Callable[..., Any]], CustomOp]:
    """Makes an op of a function over JAX arrays: ``@flow.experimental.register_op("name", ...)`` above it.

    The function takes one array for each input and the attributes by keyword, and returns one array, or a tuple of one for
    each output. It is traced, so it is written with ``jax.numpy`` and ``jax.lax``. Its gradient is JAX's, unless ``grad``
    is given. Registering a name again replaces the op for jobs that are built afterwards.

    Args:
      name: the op's type, for ``flow.user_op_builder(...).Op(name)`` and for unnamed nodes.
      inputs: names of the inputs.
      outputs: names of the outputs.
      attrs: names of the attributes, each with a default, or with its type (bool, int, float, str, tuple,
        ``flow.dtype``) where it has none.
      grad: ``grad(inputs, outputs, cotangents, **attrs)``, all tuples of arrays, returns a tuple with an array of its shape
        and dtype (or None for zero) for each input.
      shape: ``shape(*specs, **attrs)``, where a spec has ``shape`` and ``dtype``, returns a ``TensorSpec`` or (shape, dtype)
        for each output. The function must obey it; without a rule its own shapes count.
      stops: names of inputs that never receive a gradient.
    Returns: a decorator; what it makes is called with Blobs inside a job.
    Raises:
      ArgumentError: a name is taken by an op of the library, occurs twice, or is not an identifier; an argument of another kind.
      CustomOpError: when a job uses the op: the function raised, or its result has the wrong shape or dtype.
    Example:
      >>> @flow.experimental.register_op("scaled_tanh", attrs={"scale": 1.0})
      ... def scaled_tanh(x, *, scale):
      ...     return jnp.tanh(scale * x)
    """

    declared = _Declaration(name, inputs, outputs, attrs, grad, shape, stops)

    def decorate(function: Callable[..., Any]) -> CustomOp:
        checked = None if grad is None else _Grad(grad, declared.inputs, name)
        return declared.register(_Lowering(function, declared.outputs, shape, name), checked, declared.stops, on_host=False)

    return decorate


# Both functions have the same parameters, which are written out twice for ``help`` and for type checkers.
def register_host_op(
    name: str,
    *,
    inputs: Sequence[str] = ("x",),
    outputs: Sequence[str] = ("out",),
    attrs: Mapping[str, Any] | None = None,
    grad: Callable[..., Any] | None = None,
    shape: Callable[..., Any] | None = None,
    stops: Sequence[str] = (),
) -> Callable[[Callable[..., Any]], CustomOp]:
    """Makes an op of a function over NumPy arrays, which runs on the host in the middle of each step.

    Args: those of ``register_op``, with two differences.
      grad: over NumPy arrays; None: the op stops gradients.
      shape: None: every output has the shape and dtype of the first input. The function is not called to find them.
    Returns: a decorator; what it makes is called with Blobs inside a job.
    Raises:
      ArgumentError: that of ``register_op``.
      CustomOpError: from the call of the job, whose state does not change: the function raised, or its result has another
        shape or dtype than the rule prescribes.
    Example:
      >>> @flow.experimental.register_host_op("ranks")
      ... def ranks(x):
      ...     return scipy.stats.rankdata(x, axis=-1).astype(x.dtype)
    """

    declared = _Declaration(name, inputs, outputs, attrs, grad, shape, stops)

    def decorate(function: Callable[..., Any]) -> CustomOp:
        checked = None if grad is None else _HostGrad(grad, declared.inputs, name)
        stopped = declared.inputs if grad is None else declared.stops
        return declared.register(_HostCall(function, declared.outputs, shape, name), checked, stopped, on_host=True)

    return decorate


class _Declaration:
    """The arguments of a registration, checked."""

    def __init__(self, name: Any, inputs: Any, outputs: Any, attrs: Any, grad: Any, shape: Any, stops: Any):
        if not isinstance(name, str) or not name.isidentifier():
            refuse(ArgumentError, f"a custom op needs an identifier as its name, got {shown(name)}")
        self.name, self._what = name, f"custom op {name!r}"
        if name in OPS:
            refuse(ArgumentError, f"{self._what}: the library has an op of that name", hint="give it another name")
        self.inputs = self._identifiers("inputs", inputs)
        self.outputs = self._identifiers("outputs", outputs)
        self.stops = self._identifiers("stops", stops)
        if attrs is not None and not isinstance(attrs, Mapping):
            refuse(ArgumentError, f"{self._what}: attrs must be a dict of names and defaults, got {shown(attrs)}")
        self.attrs = dict(attrs or {})
        names = (*self.inputs, *self._identifiers("attrs", tuple(self.attrs)), "name")
        if len(set(names)) != len(names) or len(set(self.outputs)) != len(self.outputs) or not self.outputs:
            rule = "names of inputs, of attributes and of outputs must differ, and there must be an output"
            refuse(ArgumentError, f"{self._what}: {rule}")
        if not set(self.stops) <= set(self.inputs):
            refuse(ArgumentError, f"{self._what}: stops names inputs, got {shown(self.stops)}")
        for attribute, default in self.attrs.items():
            if type(default) not in ATTRIBUTE_TYPES and not any(default is t for t in ATTRIBUTE_TYPES):
                kinds = ", ".join(t.__name__ for t in ATTRIBUTE_TYPES)
                rule = f"attribute {attribute!r} needs a default or a type out of {kinds}, got {shown(default)}"
                refuse(ArgumentError, f"{self._what}: {rule}")
        self._must_be_functions(grad=grad, shape=shape)

    def _identifiers(self, argument: str, names: Any) -> tuple[str, ...]:
        if not isinstance(names, (list, tuple)) or not all(isinstance(n, str) and n.isidentifier() for n in names):
            refuse(ArgumentError, f"{self._what}: {argument} must be a list of identifiers, got {shown(names)}")
        return tuple(names)

    def _must_be_functions(self, **given: Any) -> None:
        for argument, function in given.items():
            if function is not None and not callable(function):
                refuse(ArgumentError, f"{self._what}: {argument.replace('_', ' ')} must be callable, got {shown(function)}")

    def register(self, lowering: Any, grad: Any, stops: Sequence[str], *, on_host: bool) -> CustomOp:
        """Makes the op, under its name from now on."""
        self._must_be_functions(the_function=lowering.function)
        stopped = frozenset(i for i, n in enumerate(self.inputs) if n in stops)
        undivided = None if on_host else _undivided
        op = OpDef(
            self.name, lowering, grad, stopped, multiple_results=True, callback=on_host, undivided=undivided,
            seeks_output=True, of_user=True,  # for all that is known
        )  # fmt: skip
        made = CustomOp(self.name, self.inputs, self.outputs, self.attrs, lowering.function, op, grad is not None, caller())
        REGISTERED[self.name] = made
        return made


def _undivided(attrs: Mapping[str, Any], inputs: Sequence[Blob], outputs: Sequence[Blob], devices: int) -> Container[int]:
    """The axes where devices would have pieces of different sizes of an output, or of an input's batch."""
    split = [(b, axis) for b in outputs for axis in range(b.ndim)] + [(b, b.batch_axis) for b in inputs if b.batch_axis >= 0]
    return {axis for b, axis in split if b.shape[axis] > 1 and b.shape[axis] % devices}


# --- running the user's functions, and checking their results


def _raised(error: BaseException) -> str:
    """What a function of the user raised, and where."""
    text, place = str(error).partition("\n")[0], innermost(error.__traceback__)
    where = "" if place is None else f" (at {place}: {place.text})"
    return f"raised {type(error).__name__}{where}: {text}"


def _wrong(name: str, rule: str, error: Exception | None = None) -> NoReturn:
    raise CustomOpError(f"custom op {shown(name)}: {rule}") from error


def _specs(rule: Any, count: int, name: str, arrays: Sequence[Any], attrs: Mapping[str, Any]) -> list[Spec]:
    """The result of the shape rule for each output."""
    given = [TensorSpec(tuple(a.shape), dtypes.from_numpy(a.dtype)) for a in arrays]
    try:
        said = rule(*given, **attrs)
    except Exception as error:
        _wrong(name, f"its shape rule {_raised(error)}", error)
    single = isinstance(said, TensorSpec) or (isinstance(said, tuple) and len(said) == 2 and isinstance(said[1], dtype))
    many = [said] if single else list(said) if isinstance(said, (list, tuple)) else [said]
    specs = []
    for one in many:
        try:
            shape, kind = (one.shape, one.dtype) if isinstance(one, (TensorSpec, Blob)) else one
            specs.append((tuple(operator.index(size) for size in shape), dtypes.as_dtype(kind).numpy_dtype))
        except (TypeError, ValueError, AttributeError):
            _wrong(name, f"its shape rule must return (shape, flow dtype) for each output, got {shown(said)}")
    if any(size < 1 for shape, _ in specs for size in shape):
        _wrong(name, f"its shape rule must return sizes of 1 or more, got {shown(said)}")
    if len(specs) != count:
        _wrong(name, f"its shape rule returned {len(specs)} outputs, but there are {count}")
    return specs


def _described(shape: Sequence[int], kind: Any) -> str:
    return f"{kind}[{', '.join(map(str, shape))}]"


def _checked(name: str, who: str, value: Any, spec: Spec | None, convert: Callable[[Any], Any]) -> Any:
    """One array that the user's function returned, checked against ``spec``."""
    if value is None:
        _wrong(name, f"{who} must be {'an array' if spec is None else _described(*spec)}, but it returned None")
    try:
        array = convert(value)
    except Exception as error:
        _wrong(name, f"{who} must be an array, got {type(value).__name__} {shown(value)}", error)
    if spec is not None and (tuple(array.shape), array.dtype) != spec:
        _wrong(name, f"{who} is {_described(array.shape, array.dtype)}, but it must be {_described(*spec)}")
    if spec is None:
        if not array.shape:
            _wrong(name, f"{who} has rank 0, which no Blob has; give it shape (1,)")
        try:
            dtypes.from_numpy(array.dtype)
        except ArgumentError:
            _wrong(name, f"{who} is {array.dtype}, which no Blob is; convert it, a bool to int8 for example")
    return array


def _tuple(name: str, who: str, value: Any, count: int) -> tuple[Any, ...]:
    made = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if len(made) != count:
        found = "None" if value is None else f"{len(made)} arrays"
        _wrong(name, f"{who} returned {found} instead of {count}{' arrays' if value is None else ''}")
    return made


def _narrow(arrays: Sequence[Any]) -> bool:
    """Whether the function runs with JAX's usual dtypes, which is where none of its arrays has 64 bits."""
    return all(a.dtype.itemsize < 8 for a in arrays if a is not None)


class _Lowering:
    """The definition of an op of ``register_op``."""

    def __init__(self, function: Any, outputs: Sequence[str], shape: Any, name: str):
        self.function, self._outputs, self._shape, self._name = function, tuple(outputs), shape, name

    def __call__(self, *arrays: Any, **attrs: Any) -> tuple[Any, ...]:
        count = len(self._outputs)
        specs = [None] * count if self._shape is None else _specs(self._shape, count, self._name, arrays, attrs)
        wide = not _narrow(arrays) or any(s is not None and s[1].itemsize == 8 for s in specs)
        try:
            with jax.enable_x64(wide):
                made = self.function(*arrays, **attrs)
        except Exception as error:
            _wrong(self._name, f"its function {_raised(error)}", error)
        values = _tuple(self._name, "its function", made, count)
        with jax.enable_x64(True):
            return tuple(
                _checked(self._name, f"output {n!r} of its function", v, s, jnp.asarray)
                for n, v, s in zip(self._outputs, values, specs, strict=True)
            )


class _Grad:
    """The gradient of an op of ``register_op``."""

    def __init__(self, function: Any, inputs: tuple[str, ...], name: str):
        self._function, self._inputs, self._name = function, inputs, name

    def __call__(self, inputs: Any, outputs: Any, cotangents: Any, **attrs: Any) -> tuple[Any, ...]:
        try:
            with jax.enable_x64(not _narrow([*inputs, *outputs])):
                made = self._function(tuple(inputs), tuple(outputs), tuple(cotangents), **attrs)
        except Exception as error:
            _wrong(self._name, f"its gradient {_raised(error)}", error)
        with jax.enable_x64(True):
            return _gradients(self._name, self._inputs, inputs, made, jnp.asarray)


def _gradients(name: str, names: Sequence[str], inputs: Any, made: Any, convert: Any) -> tuple[Any, ...]:
    values = _tuple(name, "its gradient", made, len(names))
    return tuple(
        None if v is None else _checked(name, f"the gradient with respect to input {n!r}", v, (tuple(x.shape), x.dtype), convert)
        for n, v, x in zip(names, values, inputs, strict=True)
    )


class _HostCall:
    """The definition of an op of ``register_host_op``."""

    def __init__(self, function: Any, outputs: Sequence[str], shape: Any, name: str):
        self.function, self._outputs, self._shape, self._name = function, tuple(outputs), shape, name

    def __call__(self, *arrays: Any, **attrs: Any) -> tuple[Any, ...]:
        count, name = len(self._outputs), self._name
        if self._shape is not None:
            specs = _specs(self._shape, count, name, arrays, attrs)
        elif arrays:
            specs = [(tuple(arrays[0].shape), np.dtype(arrays[0].dtype))] * count
        else:
            _wrong(name, "an op without inputs needs a shape rule")

        def run(*values: Any) -> list[Any]:
            given = _tuple(name, "its function", self.function(*map(_read_only, values), **attrs), count)
            return [
                _checked(name, f"output {n!r} of its function", v, s, np.asarray)
                for n, v, s in zip(self._outputs, given, specs, strict=True)
            ]

        return tuple(_call_back(run, self, name, "its function", specs, arrays))


class _HostGrad:
    """The gradient of an op of ``register_host_op``."""

    def __init__(self, function: Any, inputs: Sequence[str], name: str):
        self._function, self._inputs, self._name = function, tuple(inputs), name

    def __call__(self, inputs: Any, outputs: Any, cotangents: Any, **attrs: Any) -> tuple[Any, ...]:
        specs = [(tuple(x.shape), np.dtype(x.dtype)) for x in inputs]
        counts = len(inputs), len(outputs)

        def run(*values: Any) -> list[Any]:
            arrays = tuple(map(_read_only, values))
            split = arrays[: counts[0]], arrays[counts[0] : sum(counts)], arrays[sum(counts) :]
            made = _gradients(self._name, self._inputs, split[0], self._function(*split, **attrs), np.asarray)
            return [np.zeros(*spec) if g is None else g for g, spec in zip(made, specs, strict=True)]

        return tuple(_call_back(run, self, self._name, "its gradient", specs, (*inputs, *outputs, *cotangents)))


def _read_only(value: Any) -> np.ndarray:
    array: np.ndarray = np.asarray(value)
    array.flags.writeable = False
    return array


def _call_back(run: Any, of: Any, name: str, who: str, specs: Sequence[Spec], arrays: Sequence[Any]) -> Any:
    """Calls ``run`` in the middle of the step. ``of``: the op's definition or gradient, whose code it is."""

    def safely(*values: Any) -> list[Any]:
        try:
            return run(*values)
        except CustomOpError as error:
            callback.report(error, of)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit, too: XLA would make an error of its own of it
            wrapped = CustomOpError(f"custom op {shown(name)}: {who} {_raised(error)}")
            wrapped.__cause__ = error
            callback.report(wrapped, of)
        return [np.zeros(*spec) for spec in specs]

    return call_on_host(safely, specs, *arrays)
