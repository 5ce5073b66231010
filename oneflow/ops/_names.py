"""Telling "no name given" from the same text given."""

from __future__ import annotations


class DefaultName(str):
    """The default of a ``name``: reads as OneFlow's text, but is told apart from the same text given by the user."""


def given_name(name: str | None) -> str | None:
    """The name that the user gave, if any."""
    return None if isinstance(name, DefaultName) else name
