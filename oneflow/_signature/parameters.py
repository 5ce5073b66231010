"""From a function's parameters to the inputs of a job: annotations, or else defaults, are read. Needs no session."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable
from typing import Any

from .._base.process_state import process_state
from .._base.refuse import refuse, shown
from .._base.source import Source, is_library, of_function
from ..errors import AnnotationError
from .inputs import ArrayKind, InputDef, Parameter, PlaceholderBase, TensorDef, map_structure


def require_annotations(required: bool) -> None:
    """Makes it an error, or no longer one, to declare a job without annotations of all parameters and of the result."""
    process_state.annotations_required = required


def annotations_required() -> bool:
    """Whether functions without annotations are refused."""
    return process_state.annotations_required


_ALLOWED_PARAMETER = (
    "tp.Numpy.Placeholder(shape, dtype=...), tp.ListNumpy.Placeholder(...), tp.ListListNumpy.Placeholder(...), "
    "Annotated[tp.Numpy, <one of these>], or typing.Tuple[...] of these"
)
_PLAIN = (bool, int, float, str, type(None))


class _NotAnInput(Exception):
    """Internal: an annotation or a default does not define inputs; the text says which part of it."""


def parse_parameters(function: Callable[..., Any]) -> list[Parameter]:
    """The inputs of a job: each parameter's annotation, or else its default.

    Raises:
      AnnotationError: a parameter defines no input; it names the job, the parameter, and what is allowed.
    """
    job, source = job_name(function), of_function(inspect.unwrap(function))
    parsed: list[Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        where = f"parameter {parameter.name!r} of job {job!r}"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.POSITIONAL_ONLY):
            refuse(AnnotationError, f"{where}: jobs take ordinary positional parameters, not {parameter.kind.description} ones",
                   hint="give each input its own parameter, or use typing.Tuple[...] of placeholders", source=source)  # fmt: skip
        annotated = parameter.annotation is not parameter.empty
        if not annotated and (parameter.default is parameter.empty or annotations_required()):
            rule = "it has no annotation" + ("" if annotations_required() else " and no default that defines its input")
            hint = f"{parameter.name}: {_ALLOWED_PARAMETER}"
            if parameter.name in ("self", "cls") and not parsed:
                hint = f"a method cannot be a job: define the job inside a method, where its body can use {parameter.name}"
            refuse(AnnotationError, f"{where}: {rule}", hint=hint, source=source)
        given = resolve(parameter.annotation, function, where, source) if annotated else parameter.default
        try:
            structure = _from_annotation(given, function, where, source) if annotated else _from_default(given)
        except _NotAnInput as problem:
            structure = _from_default_or_none(parameter.default) if annotated else None
            if structure is None:
                rule = f"{where}: invalid parameter {'annotation' if annotated else 'default'} {spell(given)}{problem}"
                allowed = ("" if annotated else "flow.FixedTensorDef(shape, dtype=...), ") + _ALLOWED_PARAMETER
                refuse(AnnotationError, rule, found=[("allowed", allowed)], hint=_hint(given, parameter.name), source=source)
        parsed.append(Parameter(parameter.name, structure))
    return parsed


def _hint(given: Any, name: str) -> str:
    if isinstance(given, type) and issubclass(given, ArrayKind):
        return f"{name}: tp.{given.__name__}.Placeholder((...), dtype=flow.float)"
    if any(given is kind or type(given) is kind for kind in _PLAIN):
        return f"leave {name!r} out: inputs are arrays, and the body may use any value of the code around it"
    return ""


def _from_annotation(annotation: Any, function: Any, where: str, source: Source) -> Any:
    annotation = resolve(annotation, function, where, source)
    if _is_definition(annotation):
        return annotation.definition
    if typing.get_origin(annotation) is typing.Annotated:
        return _from_metadata(annotation, function, where, source)
    if typing.get_origin(annotation) is tuple:
        items = typing.get_args(annotation)
        if not items or Ellipsis in items:
            raise _NotAnInput(": a Tuple names its elements, typing.Tuple[P1, P2]")
        return tuple(_from_annotation(item, function, where, source) for item in items)
    raise _NotAnInput("")


def _from_metadata(annotation: Any, function: Any, where: str, source: Source) -> Any:
    """``Annotated[tp.Numpy, tp.Numpy.Placeholder(...)]``: the spelling that type checkers understand."""
    inner, *metadata = typing.get_args(annotation)
    found = [item for item in metadata if _is_definition(item)]
    if not found:  # a remark on something else that defines inputs
        return _from_annotation(inner, function, where, source)
    if len(found) > 1:
        raise _NotAnInput(f": it has {len(found)} placeholders")
    definition: InputDef = found[0].definition
    inner = resolve(inner, function, where, source)
    if isinstance(inner, type) and issubclass(inner, ArrayKind) and inner.kind != definition.kind:
        raise _NotAnInput(f": the type is tp.{inner.kind}, and the placeholder is one of tp.{definition.kind}")
    return definition


def _is_definition(value: Any) -> bool:
    return isinstance(value, TensorDef) or (isinstance(value, type) and issubclass(value, PlaceholderBase))


def _from_default(default: Any) -> Any:
    def leaf(label: str, value: Any) -> InputDef:
        if _is_definition(value):
            return value.definition
        raise _NotAnInput(f": {label} is {shown(value)}" if label else "")

    if isinstance(default, (tuple, list, dict)) and not default:
        raise _NotAnInput(": it is empty")
    return map_structure(leaf, default)


def _from_default_or_none(default: Any) -> Any:
    try:
        return _from_default(default)
    except _NotAnInput:
        return None


def job_name(function: Any) -> str:
    """A job's name, that of its function."""
    return getattr(function, "__name__", type(function).__name__)


def resolve(annotation: Any, function: Any, where: str, source: Source) -> Any:
    """An annotation, evaluated where the function was written if it is a string (``from __future__ import annotations``)."""
    text = annotation.__forward_arg__ if isinstance(annotation, typing.ForwardRef) else annotation
    if not isinstance(text, str):
        return annotation
    plain = inspect.unwrap(getattr(function, "__func__", function))
    names: dict[str, Any] = {}
    module_names = getattr(plain, "__globals__", {})
    frame = sys._getframe(1)
    while frame.f_back is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    if frame.f_globals is module_names:  # where the decorator runs: names that annotations alone use are in no closure
        names.update(frame.f_locals)
    code = getattr(plain, "__code__", None)
    for name, cell in zip(code.co_freevars if code else (), getattr(plain, "__closure__", None) or (), strict=True):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    try:
        value = eval(text, module_names, names)  # the user's own annotation, as typing.get_type_hints evaluates it
    except Exception as error:
        rule = f"{where}: the annotation {shown(text)} cannot be evaluated: {type(error).__name__}: {error}"
        hint = "define the names it uses before the job, or remove `from __future__ import annotations`"
        refuse(AnnotationError, rule, hint=hint, source=source)
    return resolve(value, function, where, source) if isinstance(value, (str, typing.ForwardRef)) and value != text else value


def spell(annotation: Any) -> str:
    """An annotation as the user would write it."""
    if isinstance(annotation, type) and not issubclass(annotation, PlaceholderBase) and typing.get_origin(annotation) is None:
        module = "" if annotation.__module__ == "builtins" else f"{annotation.__module__}."
        return module + annotation.__qualname__
    return shown(annotation)
