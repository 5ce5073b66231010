"""The difference between a default name and the same name given by the user."""

from __future__ import annotations


class DefaultName(str):
    """The default of a ``name``: it shows as OneFlow's text, but differs from the same text given by the user."""


def given_name(name: str | None) -> str | None:
    """The user's name, or None where it is the default."""
    return None if isinstance(name, DefaultName) else name
