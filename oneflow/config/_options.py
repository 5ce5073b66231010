"""A setting: its name, the values it takes, and its effect. Shared by FunctionConfig and ``flow.config``."""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from .._base.check import real
from .._base.dtype import dtype
from .._base.process_state import process_state
from .._base.refuse import refuse, shown
from ..errors import ArgumentError, ModeError

logger = logging.getLogger("oneflow")

REQUIRED: Final = inspect.Parameter.empty
_HARMLESS: dict[type, tuple[type, ...]] = {bool: (np.bool_,), int: (np.integer,), float: (int, np.floating, np.integer)}


@dataclass(frozen=True, slots=True)
class Option:
    """A row of a table of settings.

    ``implied`` is the value of a call without an argument. ``effect`` begins with "no effect" where nothing reads the
    value. ``refused`` says whether a value would change results and is not built yet, ``pending`` why not. ``verify`` returns
    the rule that a value breaks, or "".
    """

    name: str
    types: tuple[type, ...]
    default: Any
    effect: str
    implied: Any = REQUIRED
    argument: str = "value"
    choices: tuple[Any, ...] = ()
    minimum: float | None = None
    aliases: tuple[str, ...] = ()
    refused: Callable[[Any], bool] | None = None
    pending: str = ""
    verify: Callable[[Any], str] | None = None

    @property
    def type_names(self) -> str:
        """The types of its value, for messages."""
        return " or ".join("a flow dtype" if t is dtype else t.__name__ for t in self.types)

    @property
    def signature(self) -> inspect.Signature:
        """The signature of the function that sets it."""
        parameter = inspect.Parameter(
            self.argument, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=self.implied,
            annotation=self.types[0] if len(self.types) == 1 else REQUIRED,
        )  # fmt: skip
        return inspect.Signature([parameter], return_annotation=None)

    def argument_of(self, args: tuple[Any, ...], kwargs: dict[str, Any], spelling: str) -> Any:
        """The argument of a call. Raises ArgumentError, which is a TypeError, where the call does not match the signature."""
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            refuse(ArgumentError, f"{spelling}{self.signature}: {error}")
        bound.apply_defaults()
        return bound.arguments[self.argument]

    def check(self, value: Any, spelling: str) -> Any:
        """The value in its normal form. ``spelling`` is the name of the setting in errors."""
        if not any(type(value) is t or (t not in _HARMLESS and isinstance(value, t)) for t in self.types):
            kind = next((t for t in self.types if isinstance(value, _HARMLESS.get(t, ())) and type(value) is not bool), None)
            if kind is None:
                refuse(ArgumentError, f"{spelling} takes {self.type_names}, got {type(value).__name__} {shown(value)}",
                       hint=_example(self, spelling))  # fmt: skip
            value = real(value) if kind is float else kind(value)
        if self.choices and value not in self.choices:
            refuse(ArgumentError, f"{spelling} must be one of {', '.join(map(repr, self.choices))}, got {shown(value)}")
        if self.minimum is not None and not value >= self.minimum:
            refuse(ArgumentError, f"{spelling} must be at least {self.minimum}, got {shown(value)}")
        if self.verify is not None and (broken := self.verify(value)):
            refuse(ArgumentError, f"{spelling}: {broken}, got {shown(value)}")
        if self.refused is not None and self.refused(value):
            refuse(ModeError, f"{spelling}({shown(value)}): not supported yet: {self.pending}", hint="leave this setting out")
        if not self.effect.startswith("no effect"):
            return copy.deepcopy(value) if isinstance(value, dict) else value
        if self.name not in process_state.logged_settings:
            process_state.logged_settings.add(self.name)
            logger.debug("%s(%s) has %s", spelling, shown(value), self.effect)
        return value


def _example(option: Option, spelling: str) -> str:
    samples = {bool: "True", int: "8", float: "0.1", str: '"..."', dict: '{"naive_conf": {}}', dtype: "flow.float32"}
    sample = next((samples[t] for t in option.types if t in samples), "")
    return f"{spelling}({sample})" if sample else ""


class Setter:
    """A setting as an attribute, which is called to set a value; its repr and docstring describe it."""

    def __init__(self, option: Option, spelling: str):
        self.option = option
        self.spelling = spelling
        self.__doc__ = f"{spelling}{option.signature}: {option.effect.rstrip('.')}. Default: {option.default!r}."

    @property
    def __signature__(self) -> inspect.Signature:
        return self.option.signature

    @property
    def __name__(self) -> str:
        return self.option.name.rpartition(".")[2]

    def __repr__(self) -> str:
        return f"<setting {self.spelling}{self.option.signature}, now {self._now()!r}: {self.option.effect}>"

    def _now(self) -> Any:
        raise NotImplementedError

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def table(options: list[Option]) -> str:
    """The options as a Markdown table, for the documentation and ``help``."""
    rows = ["| setting | takes | default | effect |", "|---|---|---|---|"]
    for option in options:
        names = ", ".join(f"`{name}`" for name in (option.name, *option.aliases))
        effect = option.effect + (f" Not built yet: {option.pending}." if option.pending else "")
        rows.append(f"| {names} | {option.type_names} | `{option.default!r}` | {effect} |")
    return "\n".join(rows)
