"""Settings that hold for a session or for the process: made before it starts, read when it does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .._base.frames import shows_user_frames
from .._base.refuse import refuse
from ..errors import ModeError
from ..graph.graph import current_or_none
from ._options import REQUIRED, Option, Setter, logger

T = TypeVar("T")


class Settings:
    """A namespace of settings. Values are attributes, those not set at their default: ``Resource.gpu_device_num``.

    ``too_late`` is what a setting answers once frozen.
    """

    def __init__(self, namespace: str, too_late: str):
        self._namespace = namespace
        self._too_late = too_late
        self._options: dict[str, Option] = {}
        self._values: dict[str, Any] = {}
        self._frozen = False

    def define(
        self, name: str, kind: type[T] | tuple[type[T], ...], default: Any, effect: str, *, implied: Any = REQUIRED, **more: Any
    ) -> SettingsSetter[T]:
        """Adds a row to the table; returns the function that sets it."""
        option = Option(
            name, kind if isinstance(kind, tuple) else (kind,), default, effect, implied=implied, argument="val", **more
        )
        self._options[name] = option
        return SettingsSetter(self, option)

    @property
    def values(self) -> dict[str, Any]:
        """The values that were set, by name."""
        return dict(self._values)

    @property
    def options(self) -> list[Option]:
        """All options, in the order of their declaration."""
        return list(self._options.values())

    @property
    def frozen(self) -> bool:
        """Whether the settings can no longer be changed."""
        return self._frozen

    def put(self, name: str, value: Any) -> None:
        """Sets a value that its own function has checked."""
        self._values[self._options[name].name] = value

    def freeze(self) -> None:
        """Called at the start: later settings do nothing and say so."""
        self._frozen = True

    def reset(self) -> None:
        """Called when a new session begins: everything is at its default."""
        self._frozen = False
        self._values.clear()

    def accepts(self, spelling: str, value: Any) -> bool:
        """Whether a setting may be made now. Raises ModeError inside a job's body."""
        if current_or_none() is not None:
            refuse(ModeError, f"{spelling} can only be called outside job functions", hint="set it before the first call")
        if self._frozen:
            logger.warning("Nothing happened because %s: %s(%s)", self._too_late, spelling, value)
        return not self._frozen

    def __getattr__(self, name: str) -> Any:
        option = self.__dict__.get("_options", {}).get(name)
        if option is None:
            raise AttributeError(f"{self.__dict__.get('_namespace')} has no setting {name!r}")
        return self._values.get(name, option.default)

    def __dir__(self) -> Iterable[str]:
        return [*self._options, "freeze", "frozen", "options", "reset", "values"]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self._values.items())
        return f"<{self._namespace}{' (in use)' if self._frozen else ''}: {shown or 'all defaults'}>"


class SettingsSetter(Setter, Generic[T]):
    """A function of ``flow.config`` or ``flow.env``."""

    def __init__(self, settings: Settings, option: Option):
        super().__init__(option, f"{settings._namespace}.{option.name}")
        self._settings = settings

    def _now(self) -> Any:
        return getattr(self._settings, self.option.name)

    if TYPE_CHECKING:

        def __call__(self, val: T = ...) -> bool | None: ...

    else:

        @shows_user_frames
        def __call__(self, *args: Any, **kwargs: Any) -> bool | None:
            return self._set(self.option.argument_of(args, kwargs, self.spelling))

    def _set(self, value: Any) -> bool | None:
        if not self._settings.accepts(self.spelling, value):
            return False
        self._settings._values[self.option.name] = self.option.check(value, self.spelling)
        return None


class Switch:
    """A setting that holds at once. ``listeners`` are called when it changes."""

    def __init__(self) -> None:
        self.is_on = False
        self.listeners: list[Callable[[], None]] = []

    def set(self, value: bool) -> None:
        """Sets it."""
        if value != self.is_on:
            self.is_on = value
            for listener in self.listeners:
                listener()


nonfinite = Switch()
Resource = Settings("flow.config", "the session is running")
setting = Resource.define
