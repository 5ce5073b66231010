"""The session whose variables are saved and loaded."""

from __future__ import annotations

from ..errors import ModeError
from ..graph.graph import current_or_none
from ..runtime.session import Session, default_session
from .layout import complain


def own_session(what: str) -> Session:
    """The session whose variables are meant; ``what`` is called. Raises ModeError inside a job function."""
    if current_or_none() is not None:
        complain(ModeError, f"{what} cannot be called inside a job function: nothing has a value there yet", "call it outside")
    return default_session()
