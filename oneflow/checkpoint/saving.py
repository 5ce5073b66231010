"""Saving at once or in the background: what is captured of sessions, and how it goes to the disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np

from .._base.refuse import listed
from ..errors import ArgumentError, OneFlowError
from ..graph.graph import Variable
from ..runtime import environment, processes
from ..runtime.pieces import Piece
from ..runtime.process import process
from ..runtime.processes.poll import Poll
from ..runtime.session import Session
from .atomic import Save
from .format import FileValue
from .handles import VariableHandle
from .layout import check_name, complain
from .safetensors import StoredTensor
from .team import Alone, DirectoryTeam, RunTeam, Team, on_leader, together
from .values import Value, Whole, element_of

Extra = Callable[[], Mapping[str, Any]]
Captured = tuple[dict[str, Value], Extra]


class PendingSave(Future[None]):
    """A checkpoint that is being written in the background: a ``concurrent.futures.Future``.

    ``wait(timeout)`` (or ``result(timeout)``) waits until it is in place, and raises the error of a save that failed, which is
    then raised nowhere else. ``done()`` asks. The end of the program waits by itself.

    Attributes:
      path: where it is saved.

    Example:
      >>> pending = flow.checkpoint.save("./model", asynchronous=True)
      >>> pending.wait()
    """

    def __init__(self, path: str):
        super().__init__()
        self.path = path

    def result(self, timeout: float | None = None) -> None:
        """Waits for the save. Raises TimeoutError, or the CheckpointError of a save that failed."""
        error = self.exception(timeout)
        if error is not None:
            raise error

    wait = result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits for the save. Returns its error, which is then raised nowhere else; None where it succeeded."""
        error = super().exception(timeout)
        if error is not None:
            process.delivery.forget(error)
            if process.saves.error is error:
                process.saves.error = None
        return error

    @property
    def failed(self) -> bool:
        """Whether it is over and did not succeed."""
        return self.done() and Future.exception(self) is not None

    def cancel(self) -> bool:
        """A save that has begun goes on."""
        return False

    def __repr__(self) -> str:
        state = "failed" if self.failed else "saved" if self.done() else "being written"
        return f"<save to {self.path!r}: {state}>"


def save(
    path: str,
    capture: Callable[[bool], Captured],
    *,
    overwrite: bool = False,
    asynchronous: bool = False,
    then: Callable[[], None] | None = None,
) -> PendingSave | None:
    """Saves what ``capture`` returns.

    Args:
      capture: called when the target is known to be free, with whether the first process must have all values, because not
        all processes see the directory.
      overwrite: replaces a checkpoint at that path.
      asynchronous: writes it on a thread, and returns at once.
      then: what the first process does when the checkpoint is in place.
    Returns: what can be waited for, where ``asynchronous``.
    """
    team = own_team()
    with process.saves.turn if asynchronous else nullcontext():
        finish_earlier(team)
        saving = Save(path, overwrite=overwrite, team=team)
        try:
            values, extra = capture(not saving.is_shared)
        except BaseException:
            saving.abandon()
            raise
        if not asynchronous:
            saving.write(values, extra)
            if then is not None:
                on_leader(team, "the time after a save", then)
            return None
        return _start(PendingSave(path), saving, team, partial(saving.write, values, extra), then)


def _start(
    pending: PendingSave, saving: Save, team: Team, write: Callable[..., None], then: Callable[[], None] | None
) -> PendingSave:
    meeting: Team = Alone()
    if team.count > 1 and saving.is_shared:
        meeting = DirectoryTeam(saving.directory, team.rank, team.count)

    def work() -> None:
        try:
            if saving.is_shared or team.rank == 0:
                write(team=meeting)
            if then is not None and team.rank == 0:
                then()
        except Exception as error:
            if team.count > 1:
                process.saves.error = error
            else:
                process.delivery.keep(error)
            raise

    process.start()
    try:
        process.saves.start(pending, work, "oneflow-save")
    except Exception:  # no thread could be started
        saving.abandon()
        raise
    if team.count > 1:
        process.delivery.set_settle(partial(_settle, Poll()))
    return pending


def own_team() -> Team:
    """All processes of the run."""
    if processes.count() == 1:
        return Alone()
    environment.start()
    return RunTeam()


def _settle(poll: Poll) -> None:
    """Before a call: when the save in the background has ended in all processes, its error is raised in all, if it has one."""
    ended = poll.ask("whether the save in the background has ended", process.saves.is_idle())
    if ended is not None and all(ended):
        finish_earlier(own_team())


def finish_earlier(team: Team) -> None:
    """Waits for a save in the background. Raises its error; in a run of several processes, in all of them."""
    process.saves.wait()
    if team.count == 1:
        process.delivery.raise_kept()
        return
    process.delivery.set_settle(None)
    error, process.saves.error = process.saves.error, None

    def report() -> None:
        if error is not None:
            raise error

    together(team, "the save before", report)


# --- what is saved


def of_session(session: Session, extra: Mapping[str, Any], *, drain: bool, whole: bool) -> Captured:
    """All variables of a session and its random state, of one moment. ``drain`` waits for what was submitted, first."""
    variables = session.variables()
    if drain:
        process.delivery.drain()
    captured = session.capture(list(variables), whole=whole)
    values = {check_name(name): _value(variables[name], pieces) for name, pieces in captured.pieces.items()}
    return values, lambda: {"random": captured.random_state(), **extra}


def of_dictionary(given: Mapping[str, Any], extra: Mapping[str, Any], *, keeps: bool, whole: bool) -> Captured:
    """Named values; those of all handles of a session are of one moment. ``keeps``: arrays may be changed meanwhile."""
    sessions: dict[Session, list[VariableHandle]] = {}
    for value in given.values():
        if isinstance(value, VariableHandle):
            sessions.setdefault(value.session, []).append(value)
    if sessions and not keeps:
        process.delivery.drain()
    pieces = {
        (session, name): found
        for session, handles in sessions.items()
        for name, found in session.capture([handle.name for handle in handles], whole=whole).pieces.items()
    }

    def value_of(name: str, value: Any) -> Value:
        if isinstance(value, VariableHandle):
            return Value(value.shape, value.dtype, pieces[value.session, value.name])
        if isinstance(value, FileValue):
            return _of_file(value)
        if isinstance(value, StoredTensor):
            value = value.numpy()
        if isinstance(value, np.ndarray):
            element = element_of(name, value)
            return Value(value.shape, element, [Whole(value.copy() if keeps else value)] if processes.is_first() else [])
        expected = "a handle of flow.get_all_variables, a value of flow.checkpoint.get, or an ndarray"
        complain(ArgumentError, f"var_dict[{name!r}] cannot be saved: it is a {type(value).__name__}", expected=expected)

    values = all_or_none({name: partial(value_of, name, value) for name, value in given.items()})
    return {check_name(name): value for name, value in values.items()}, lambda: extra


def _value(variable: Variable, pieces: Sequence[Piece]) -> Value:
    return Value(variable.shape, element_of(variable.name, np.empty(0, variable.dtype.numpy_dtype)), pieces)


def _of_file(value: FileValue) -> Value:
    if value.shape is None or value.dtype is None or processes.is_first():
        array = value.numpy()
        return Value(array.shape, element_of(value.name, array), [Whole(array)])
    return Value(value.shape, value.dtype, [])


def all_or_none(readers: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Calls everything before it raises anything, so that one error names every variable that is wrong."""
    values: dict[str, Any] = {}
    errors: dict[str, OneFlowError] = {}
    for name, read in readers.items():
        try:
            values[name] = read()
        except OneFlowError as error:
            errors[name] = error
            values.clear()
    if len(errors) > 1:
        first, *others = errors
        raise type(errors[first])(f"{errors[first]}\n  also wrong {listed(others)}") from errors[first]
    for only in errors.values():
        raise only
    return values


def check_metadata(value: Any, name: str = "metadata") -> dict[str, Any]:
    """A dict that JSON can hold, as it will be read. Raises ArgumentError."""
    try:
        if not isinstance(value, Mapping):
            raise TypeError(f"it is a {type(value).__name__}, not a dict")
        return json.loads(json.dumps(dict(value), allow_nan=False))
    except Exception as error:  # of the user's objects, too
        complain(ArgumentError, f"{name} cannot be saved: {error}", "use dicts, lists, str, int, finite float, bool and None")
