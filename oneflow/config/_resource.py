"""What ``flow.config.*`` settings come to: one object that the session reads, freezes when it starts and resets when it ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .._refuse import refuse
from ..errors import ModeError
from ..graph.graph import current_or_none
from ._options import REQUIRED, Option, Setter, logger


class SessionResource:
    """The settings of the session to come. Settings are attributes: ``Resource.gpu_device_num`` (None where unset)."""

    def __init__(self) -> None:
        self._options: dict[str, Option] = {}
        self._values: dict[str, Any] = {}
        self._frozen = False

    @property
    def values(self) -> dict[str, Any]:
        """What was set, by name."""
        return dict(self._values)

    @property
    def frozen(self) -> bool:
        return self._frozen

    def freeze(self) -> None:
        """Called when the session starts: later settings do nothing and say so."""
        self._frozen = True

    def reset(self) -> None:
        """Called when a new session begins: everything is at its default."""
        self._frozen = False
        self._values.clear()

    def __getattr__(self, name: str) -> Any:
        option = self.__dict__.get("_options", {}).get(name)
        if option is None:
            raise AttributeError(f"no such setting: {name!r}")
        return self._values.get(name, option.default)

    def __dir__(self) -> Iterable[str]:
        return [*self._options, "freeze", "frozen", "reset", "values"]

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in ("gpu_device_num", "cpu_device_num", "machine_num")} | self._values
        return f"<session settings{' (running)' if self._frozen else ''}: {', '.join(f'{k}={v!r}' for k, v in shown.items())}>"


Resource = SessionResource()


class ResourceSetter(Setter):
    """A function of ``flow.config``: records its value for the session, only outside jobs and before the session starts."""

    def _now(self) -> Any:
        return getattr(Resource, self.option.name)

    def __call__(self, *args: Any, **kwargs: Any) -> bool | None:
        value = self.option.argument_of(args, kwargs, self.spelling)
        if current_or_none() is not None:
            refuse(ModeError, f"{self.spelling} can only be called outside job functions",
                   hint="set it before the first call of a job")  # fmt: skip
        if Resource.frozen:
            logger.warning("Nothing happened because the session is running: %s(%r)", self.spelling, value)
            return False
        Resource._values[self.option.name] = self.option.check(value, self.spelling)
        return None


def setting(
    name: str, kind: type, default: Any, effect: str, *, implied: Any = REQUIRED, group: str = "", **more: Any
) -> ResourceSetter:
    """Defines ``flow.config.<name>``."""
    option = Option(group + name, (kind,), default, effect, implied=implied, argument="val", **more)
    Resource._options[option.name] = option
    return ResourceSetter(option, f"flow.config.{option.name}")
