"""Tables in which modules enter what they define while they are imported."""

from __future__ import annotations

from typing import Any


def enter(registry: dict[str, Any], name: str, entry: Any, what: str) -> None:
    """Enters a function, or what was made of one (its ``define``).

    A module that is imported again, because Ctrl-C came during its first import, replaces what it entered then.

    Args:
      what: the kind of entry with its name, for the error.

    Raises:
      ValueError: another function has the name.
    """
    known = registry.get(name, entry)
    if known is not entry and _place(known) != _place(entry):
        raise ValueError(f"there is {what} already")
    registry[name] = entry


def _place(entry: Any) -> tuple[str, str] | Any:
    function = getattr(entry, "define", entry)
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    return (module, qualname) if module and qualname else function
