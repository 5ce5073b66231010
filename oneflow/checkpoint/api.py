"""Saving, loading and looking at the variables of the default session."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Container, Mapping
from functools import partial
from typing import Any, Literal, overload

import numpy as np

from .._base import check
from .._base.frames import shows_user_frames
from .._base.refuse import closest, listed, refuse, shown
from ..compiler.analysis import STEP_PREFIX
from ..errors import ArgumentError, CheckpointError, CheckpointNotFoundError
from ..graph.graph import Variable
from ..runtime import processes
from ..runtime.process import process
from ..runtime.session import Session
from . import safetensors, saving
from .format import Checkpoint, FileValue
from .handles import VariableHandle
from .layout import as_path, complain
from .loading import (
    Loader,
    check_random,
    is_state,
    lacks,
    log_verification,
    not_built,
    warn_of,
    warn_of_unknown,
)
from .safetensors import Rename
from .saving import PendingSave, all_or_none, check_metadata, finish_earlier, own_team
from .session import own_session


class UnknownVariableError(CheckpointError, RuntimeError):
    """A name that no variable of the program has."""


class Values(dict[str, Any]):
    """The result of ``flow.checkpoint.get``: values by name, and the checkpoint's random state, None where it has none.

    ``jobs`` are those that a safetensors file belongs to: the names of their variables by the job's name.
    """

    def __init__(self, values: Mapping[str, Any], random_state: Any, path: str, jobs: Mapping[str, list[str]] | None = None):
        super().__init__(values)
        self.random_state = random_state
        self.path = path
        self.jobs = dict(jobs or {})


# --- the session's variables


@shows_user_frames
def get_all_variables() -> dict[str, VariableHandle]:
    """Every variable of the declared jobs, optimizer state and step counters included, by name.

    Starts the session and waits for what was submitted. ``handle.numpy()`` gives the current value, also later.

    Example: >>> flow.get_all_variables()["w"].numpy()   # its present value
    """
    session = own_session("flow.get_all_variables()")
    variables = session.variables()
    session.sync()
    return {name: VariableHandle(session, variable) for name, variable in variables.items()}


def steps_of(job_name: str) -> int:
    """The number of steps that a train job has made; 0 where it was never called."""
    counter = get_all_variables().get(STEP_PREFIX + job_name)
    return 0 if counter is None else int(counter.numpy().reshape(-1)[0])


@shows_user_frames
def load_variables(
    value_dict: Mapping[str, Any] | str | os.PathLike[str],
    ignore_mismatch: bool = True,
    *,
    strict: bool = False,
    rename: Rename | None = None,
) -> None:
    """Sets variables to new values: all of them, or, if anything is wrong, none.

    Args:
      value_dict: variable name -> ndarray, handle of ``flow.get_all_variables``, or value of ``flow.checkpoint.get``; of
        exactly the variable's shape and dtype. Variables that are not named keep their values. A whole checkpoint, as
        ``flow.checkpoint.get`` returns it, restores the random state too, so that training goes on as if never interrupted;
        a CheckpointWarning names the variables that it lacks. The path of a checkpoint or of a safetensors file stands for
        what ``flow.checkpoint.get`` returns for it.
      ignore_mismatch: skips names that no variable has, with a CheckpointWarning; False makes them an error. Optimizer state
        and counters beside other variables are skipped silently where the program has no use for them.
      strict: makes both an error, names that no variable has and variables that are not named.
      rename: variable names by the names in ``value_dict``: a dict, or a function that may return None for a value to leave
        out. Names that a dict lacks stay.
    Raises:
      UnknownVariableError: a name is not a variable's, and ``ignore_mismatch`` is False or ``strict`` True.
      ShapeError, DtypeError: an array does not fit its variable.
      CheckpointError: a value on disk is damaged or does not fit its variable; or a path's checkpoint has none of the program's
        parameters.
    Example: >>> flow.load_variables({"dense1-bias": np.zeros(10, np.float32)})
    """
    what = "flow.load_variables"
    check.checked(what, "ignore_mismatch", check.flag(ignore_mismatch))
    check.checked(what, "strict", check.flag(strict))
    session = own_session(what)
    if isinstance(value_dict, (str, os.PathLike)):
        value_dict = _all_of(value_dict)
    if rename is not None and isinstance(value_dict, Mapping):
        new = safetensors.renamed(value_dict, rename)
        value_dict = Values(new, value_dict.random_state, value_dict.path) if isinstance(value_dict, Values) else new
    if not isinstance(value_dict, Mapping):
        complain(ArgumentError, f"flow.load_variables needs a dict of variable name -> value, got {type(value_dict).__name__}")
    variables = session.variables()
    whole = value_dict.path if isinstance(value_dict, Values) else ""
    unknown = _unknown(value_dict, variables) if whole else _unknown_in_dict(value_dict, variables)
    if unknown and (strict or not ignore_mismatch):
        _known(unknown[0], variables, session)
    missing = [variable for name, variable in variables.items() if name not in value_dict]
    if missing and strict:
        hint = "leave strict=True out to keep their present values"
        complain(CheckpointError, lacks(whole, missing, len(variables)), hint)
    if whole:
        _want_any(whole, value_dict, variables, unknown)
    random = value_dict.random_state if isinstance(value_dict, Values) else None
    check_random(session, random, whole)
    finish_earlier(own_team())
    given = {name: partial(value_dict.__getitem__, name) for name in value_dict if name in variables}
    roots = {value.root for value in value_dict.values() if isinstance(value, FileValue)}
    Loader(session).load(given, variables, roots, random)
    if whole and missing:
        warn_of(f"{lacks(whole, missing, len(variables))}; they keep the values they have")
    if unknown:
        warn_of_unknown(unknown, variables, "flow.load_variables", session)


@shows_user_frames
def get_interface_blob_value(op_name: str) -> np.ndarray:
    """The current value of the variable of that name."""
    session = own_session("flow.experimental.get_interface_blob_value")
    _known(op_name, session.variables(), session)
    return session.read([op_name])[op_name]


@shows_user_frames
def set_interface_blob_value(op_name: str, ndarray: np.ndarray) -> None:
    """Sets the variable of that name to a value of exactly its shape and dtype."""
    load_variables({op_name: ndarray}, ignore_mismatch=False)


# --- checkpoints


@overload
def save(
    path: str | os.PathLike[str], var_dict: Mapping[str, Any] | None = None, *,
    format: str = "oneflow", overwrite: bool = False, metadata: Mapping[str, Any] | None = None,
    asynchronous: Literal[False] = False,
) -> None: ...  # fmt: skip
@overload
def save(
    path: str | os.PathLike[str], var_dict: Mapping[str, Any] | None = None, *,
    format: str = "oneflow", overwrite: bool = False, metadata: Mapping[str, Any] | None = None,
    asynchronous: Literal[True],
) -> PendingSave: ...  # fmt: skip
@shows_user_frames
def save(
    path: str | os.PathLike[str],
    var_dict: Mapping[str, Any] | None = None,
    *,
    format: str = "oneflow",
    overwrite: bool = False,
    metadata: Mapping[str, Any] | None = None,
    asynchronous: bool = False,
) -> PendingSave | None:
    """Saves variables, after everything submitted. Killed half-way, it leaves the path as it was.

    Args:
      path: does not exist (parents are made), or is an empty directory.
      var_dict: name -> handle, value of ``flow.checkpoint.get``, or ndarray; None saves every variable of the session,
        and the state of its random ops beside them.
      format: "oneflow", a directory in OneFlow's layout; or "safetensors", one file, whose header also says which jobs the
        variables belong to. It needs the extra [export], and knows ``overwrite``, but neither of the others.
      overwrite: replaces a checkpoint that is there, in one step; anything else that is there is never touched.
      metadata: a dict of the user's that JSON can hold, saved with the variables.
      asynchronous: copies the values, returns, and writes them on a thread while training goes on. It saves the state
        after all calls submitted so far, whose callbacks are not waited for. A further save waits for this one. An error is
        raised by the next call of any job, the next save or load, or ``flow.sync_default_session()``.
    Returns: None; where ``asynchronous``, a future whose ``wait()`` waits until the checkpoint is in place.
    Raises:
      CheckpointExistsError: the path is a file or a directory that is not empty, and not a checkpoint to overwrite.
      CheckpointError: a value or name that the layout has no place for, or the disk refused.
    Example: >>> flow.checkpoint.save("./lenet_models")
    """
    what = "flow.checkpoint.save"
    check.checked(what, "overwrite", check.flag(overwrite))
    check.checked(what, "asynchronous", check.flag(asynchronous))
    if isinstance(format, str) and format == "safetensors":
        if metadata is not None or asynchronous is not False:
            rule = 'format="safetensors" has no place for metadata, and is not saved in the background'
            complain(ArgumentError, rule, 'leave both out, or save with format="oneflow"')
        _save_safetensors(path, var_dict, overwrite=overwrite)
        return None
    if not isinstance(format, str) or format != "oneflow":
        complain(ArgumentError, f'format must be "oneflow" or "safetensors", got {shown(format)}')
    target = as_path(path)
    extra = {} if metadata is None else {"metadata": check_metadata(metadata)}
    if var_dict is not None and not isinstance(var_dict, Mapping):
        complain(ArgumentError, f"var_dict must be a dict of variable name -> value, got {type(var_dict).__name__}")
    return save_with(target, var_dict, extra, overwrite=overwrite, asynchronous=asynchronous)


@shows_user_frames
def save_with(
    path: str,
    var_dict: Mapping[str, Any] | None,
    extra: Mapping[str, Any],
    *,
    overwrite: bool,
    asynchronous: bool,
    then: Callable[[], None] | None = None,
) -> PendingSave | None:
    """``save``, with what else goes into the JSON file, and what the first process does afterwards."""
    session = own_session("flow.checkpoint.save") if var_dict is None else None

    def capture(whole: bool) -> saving.Captured:
        if session is not None:
            return saving.of_session(session, extra, drain=not asynchronous, whole=whole)
        assert var_dict is not None
        return saving.of_dictionary(var_dict, extra, keeps=asynchronous, whole=whole)

    pending = saving.save(path, capture, overwrite=overwrite, asynchronous=asynchronous, then=then)
    if session is not None:
        session.warn_of_broken_jobs()
    return pending


@shows_user_frames
def get(path: str | os.PathLike[str]) -> Values | Any:
    """The values that a checkpoint holds, without a session; or the one value of a single variable's directory.

    Args:
      path: a checkpoint, of this library or of OneFlow, or a variable's directory in one; or a safetensors file.
    Returns: a dict of name -> value with ``.shape``, ``.dtype`` and ``.numpy()``, which reads and verifies the elements.
    Raises:
      CheckpointNotFoundError: there is no checkpoint at that path.
      CheckpointError: the checkpoint is not finished, sizes disagree, ``meta`` is damaged, or a link leads outside.
    Example: >>> flow.load_variables(flow.checkpoint.get("./lenet_models"))
    """
    process.saves.wait()
    if safetensors.is_one(path):
        file = safetensors.File(path)
        return Values(file, file.random_state, file.path, file.jobs)
    found = Checkpoint(path)
    if found.is_single:
        return FileValue(found.path)
    log_verification(found)
    values = all_or_none({name: partial(found.__getitem__, name) for name in _names_in(found)})
    return Values(values, found.extra().get("random"), found.path)


def _save_safetensors(path: str | os.PathLike[str], var_dict: Mapping[str, Any] | None, *, overwrite: bool) -> None:
    processes.on_rank_zero("the beginning of a save", lambda: safetensors.refuse_occupied(path, replace=overwrite))
    session = own_session("flow.checkpoint.save") if var_dict is None else None
    if session is not None:
        session.start()
        jobs = {name: sorted(job.variable_names) for name, job in session.jobs.items()}
        values, header = saving.of_session(session, {"jobs": jobs}, drain=True, whole=True)
    elif isinstance(var_dict, Mapping):
        values, header = saving.of_dictionary(var_dict, {}, keeps=False, whole=True)
    else:
        complain(ArgumentError, f"var_dict must be a dict of variable name -> value, got {type(var_dict).__name__}")

    def write() -> None:
        safetensors.write(path, {name: value.numpy() for name, value in values.items()}, header(), replace=overwrite)

    processes.on_rank_zero("a save", write)
    if session is not None:
        session.warn_of_broken_jobs()


def _all_of(path: str | os.PathLike[str]) -> Values:
    found = get(path)
    if isinstance(found, FileValue):
        rule = f"{as_path(path)!r} is the directory of one variable, not a checkpoint"
        complain(CheckpointNotFoundError, rule, f"load {os.path.dirname(os.path.abspath(as_path(path)))!r}")
    return found


@shows_user_frames
def save_dict(obj: Mapping[str, Any], save_dir: str | os.PathLike[str]) -> None:
    """``flow.save(obj_dict, dir)``: saves named values, as ``flow.checkpoint.save(dir, obj_dict)`` does.

    Example: >>> flow.save({"w": np.ones((8, 4), np.float32)}, "./two")
    """
    save(save_dir, obj)


@shows_user_frames
def load_program(path: str | os.PathLike[str], strict: bool) -> None:
    """What ``CheckPoint.load`` does."""
    check.checked("CheckPoint.load", "strict", check.flag(strict))
    finish_earlier(own_team())
    stored = Checkpoint(path)
    if stored.is_single:
        rule = f"{stored.path!r} is the directory of one variable, not a checkpoint"
        complain(CheckpointNotFoundError, rule, f"load {os.path.dirname(os.path.abspath(stored.path))!r}")
    session = own_session("CheckPoint.load")
    variables = session.variables()
    unknown = _unknown(_names_in(stored), variables)
    if unknown and strict:
        _known(unknown[0], variables, session)
    missing = [v for name, v in variables.items() if name not in stored]
    random = stored.extra().get("random")
    check_random(session, random, stored.path)
    if missing and strict:
        hint, place = "load without strict=True to keep their present values", os.path.abspath(stored.path)
        complain(CheckpointError, lacks(stored.path, missing, len(variables)), hint, full_path=place)
    _want_any(stored.path, stored, variables, unknown)
    log_verification(stored)
    given = {name: partial(stored.__getitem__, name) for name in variables if name in stored}
    Loader(session).load(given, variables, [stored.path], random)
    if not variables and not (random or {}).get("readers"):
        warn_of(f"nothing was loaded from {stored.path!r}: the program has no variables yet; declare its jobs before loading")
    elif missing:
        warn_of(f"{lacks(stored.path, missing, len(variables))}; they keep the values they have")
    if variables and unknown:
        warn_of_unknown(unknown, variables, "CheckPoint.load", session)
    session.warn_of_broken_jobs()


def _want_any(path: str, stored: Container[str], variables: Mapping[str, Variable], unknown: list[str]) -> None:
    """Refuses a checkpoint of another network: it has no parameter of the program, and some that the program has not."""
    parameters = [name for name, v in variables.items() if v.role == "parameter"]
    if not parameters or not unknown or any(name in stored for name in parameters):
        return
    rule = f"checkpoint {path!r} has none of the program's {len(parameters)} parameters"
    hint = "load one of this network; for other names flow.load_variables(path, rename={...})"
    complain(CheckpointError, rule, hint, it_has=listed(unknown), it_needs=listed(parameters))


def _names_in(stored: Checkpoint) -> list[str]:
    """The variables of a checkpoint, without other directories that somebody has put there."""
    return [name for name in stored if stored.has_out(name) or stored.was_saved_with(name)]


def _unknown(names: Collection[Any], variables: Mapping[str, Variable]) -> list[Any]:
    """The names of a checkpoint that no variable has; without optimizer state and counters, which jobs that predict lack."""
    known = {*variables, *names}
    return [name for name in names if name not in variables and not is_state(name, known)]


def _unknown_in_dict(values: Mapping[Any, Any], variables: Mapping[str, Variable]) -> list[Any]:
    """The same for a dict, whose names of that kind count where no variable has any of its names: the user means them then."""
    unknown = [name for name in values if name not in variables]
    return unknown if len(unknown) == len(values) else [n for n in unknown if not is_state(n, variables, values)]


def _known(name: object, variables: Mapping[str, Variable], session: Session) -> None:
    if isinstance(name, str) and name in variables:
        return
    near = closest(name, variables, count=3) if isinstance(name, str) else []
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "flow.get_all_variables() lists them"
    refuse(UnknownVariableError, f"{shown(name)} is not a variable name", found=not_built(session), hint=hint)
