"""``flow.train.CheckPoint``. What reads and writes files is imported when one is: most programs begin with ``init()``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .._base import check
from .._base.frames import shows_user_frames
from .layout import as_path
from .session import own_session

if TYPE_CHECKING:
    from .saving import PendingSave


class CheckPoint:
    """Saves and loads all variables of the session, optimizer state and random state included.

    Example: >>> flow.train.CheckPoint().save("./models")
    """

    def init(self) -> None:
        """Starts the session. Variables that are not loaded begin with what their initializers draw."""
        session = own_session("CheckPoint.init")
        session.start()
        session.warn_of_broken_jobs()

    @shows_user_frames
    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False, asynchronous: bool = False) -> PendingSave | None:
        """As ``flow.checkpoint.save(path, overwrite=..., asynchronous=...)``."""
        check.checked("CheckPoint.save", "overwrite", check.flag(overwrite))
        check.checked("CheckPoint.save", "asynchronous", check.flag(asynchronous))
        from .api import save_with

        return save_with(as_path(path), None, {}, overwrite=overwrite, asynchronous=asynchronous)

    @shows_user_frames
    def load(self, path: str | os.PathLike[str], strict: bool = False) -> None:
        """Sets every variable to its value in the checkpoint: all of them, or, if anything is wrong, none.

        Variables that the checkpoint lacks keep their values, and what it has beyond them is ignored; a CheckpointWarning names
        each of both. Optimizer state and counters that the program does not use are ignored silently.

        Args:
          path: a checkpoint of this library or of OneFlow.
          strict: makes both an error.
        Raises:
          UnknownVariableError: ``strict``, and the checkpoint has a name that is not a variable's.
          CheckpointNotFoundError: there is no checkpoint at that path.
          CheckpointError: a value is damaged, or has another shape or dtype than the program's variable; or the checkpoint has
            none of the program's parameters.
        """
        from .api import load_program

        load_program(path, strict)
