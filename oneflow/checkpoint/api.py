"""Saving, loading and looking at the variables of the default session."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, NoReturn

import numpy as np

from .._base import dist
from .._base.dtype import dtype as Dtype
from .._base.refuse import closest, warn
from ..compiler.layout import Storage
from ..errors import (
    ArgumentError,
    CheckpointError,
    CheckpointNotFoundError,
    CheckpointWarning,
    DtypeError,
    ModeError,
    OneFlowError,
    ShapeError,
)
from ..graph.graph import Variable, current_or_none
from ..graph.node import INVALID_AXIS
from ..runtime import processes
from ..runtime.session import Session, default_session
from . import atomic
from .format import Checkpoint, FileValue
from .layout import DONE, EXTRA, as_path, complain, describe


class UnknownVariableError(CheckpointError, RuntimeError):
    """A name that no variable of the program has."""


class Values(dict[str, FileValue]):
    """What ``flow.checkpoint.get`` gives: values by name, and the checkpoint's random state, None where it has none."""

    def __init__(self, values: Mapping[str, FileValue], random_state: Any, path: str):
        super().__init__(values)
        self.random_state = random_state
        self.path = path


class VariableHandle:
    """A variable of the session: what is known about it, and its current value."""

    __slots__ = ("_session", "_variable")

    def __init__(self, session: Session, variable: Variable):
        self._session = session
        self._variable = variable

    @property
    def name(self) -> str:
        return self._variable.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self._variable.shape

    @property
    def dtype(self) -> Dtype:
        return self._variable.dtype

    @property
    def batch_axis(self) -> int:
        blob = self._variable.blob
        return INVALID_AXIS if blob is None else blob.batch_axis

    @property
    def split_axis(self) -> int:
        axis = self._storage.layout.splits[0]
        return INVALID_AXIS if axis is None else axis

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def is_dynamic(self) -> bool:
        return False

    @property
    def is_tensor_list(self) -> bool:
        return False

    @property
    def parallel_conf(self) -> dist.Placement:
        """Where it lives."""
        return self._storage.layout.placement

    @property
    def devices(self) -> list[str]:
        """The devices that have it or a piece of it, as "machine:device"."""
        return [f"{machine}:{device}" for machine, device in self.parallel_conf.devices]

    @property
    def bytes_per_device(self) -> int:
        """What it costs each of them."""
        return self._storage.elements_a_device * self.dtype.bytes

    @property
    def _storage(self) -> Storage:
        return self._session.storage_of(self.name)

    def numpy(self, rank: int | None = None) -> np.ndarray:
        """The current value, after everything submitted, as a fresh array.

        Args:
          rank: None for the whole variable, else the part of that device, in [0, number of devices).
        Raises:
          ArgumentError: there is no device of that rank.
        """
        value = self._session.read([self.name])[self.name]
        count = self.parallel_conf.parallel_num
        if rank is None:
            return value
        if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)) or not 0 <= rank < count:
            rule = f"variable {self.name!r} has no part of rank {rank!r}: it is on {count} device(s), counted from 0"
            complain(ArgumentError, rule)
        return value if self.split_axis < 0 else np.array_split(value, count, self.split_axis)[int(rank)].copy()

    def numpy_size(self) -> int:
        return self.parallel_conf.parallel_num

    def numpy_list(self, rank: int | None = None) -> list[np.ndarray]:
        """The parts of all devices, or the one of device ``rank``, in a list."""
        return [self.numpy(r) for r in (range(self.numpy_size()) if rank is None else [rank])]

    def numpy_list_size(self) -> int:
        return self.numpy_size()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"the value of variable {self.name!r} is on its devices: an array of it is always a copy")
        return np.asarray(self.numpy(), dtype)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"len() of variable {self.name!r}, which has no axis")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<variable {self.name!r} {self._variable.describe()}, declared at {self._variable.source}>"


# --- the session's variables


def get_all_variables() -> dict[str, VariableHandle]:
    """Every variable of the declared jobs, optimizer state and step counters included, by name.

    Starts the session and waits for what was submitted. ``handle.numpy()`` gives the current value, also later.

    Example: >>> flow.get_all_variables()["w"].numpy()   # its present value
    """
    session = _session("flow.get_all_variables()")
    variables = session.variables()
    session.sync()
    return {name: VariableHandle(session, variable) for name, variable in variables.items()}


def load_variables(value_dict: Mapping[str, Any], ignore_mismatch: bool = True, *, strict: bool = False) -> None:
    """Gives variables new values; all of them, or, where anything is wrong, none.

    Args:
      value_dict: variable name -> ndarray, handle of ``flow.get_all_variables``, or value of ``flow.checkpoint.get``; of
        exactly the variable's shape and dtype. Variables that are not named keep their values. A whole checkpoint, as
        ``flow.checkpoint.get`` returns it, restores the random state too, so that training goes on as if never interrupted;
        a CheckpointWarning names the variables that it lacks.
      ignore_mismatch: skips names that no variable has, with a CheckpointWarning; False makes them an error.
      strict: makes both an error, names that no variable has and variables that are not named.
    Raises:
      UnknownVariableError: a name is not a variable's, and ``ignore_mismatch`` is False or ``strict`` True.
      ShapeError, DtypeError: an array does not fit its variable.
      CheckpointError: a value on disk is damaged or does not fit its variable.
    Example: >>> flow.load_variables({"dense1-bias": np.zeros(10, np.float32)})
    """
    session = _session("flow.load_variables")
    if not isinstance(value_dict, Mapping):
        complain(ArgumentError, f"flow.load_variables needs a dict of variable name -> value, got {type(value_dict).__name__}")
    variables = session.variables()
    if strict or not ignore_mismatch:
        for name in value_dict:
            _known(name, variables)
    whole = value_dict.path if isinstance(value_dict, Values) else ""
    unknown = [n for n in value_dict if n not in variables and not (whole and _is_state(n, [*variables, *value_dict]))]
    missing = [variable for name, variable in variables.items() if name not in value_dict]
    if missing and strict:
        hint = "leave strict=True out to keep their present values"
        complain(CheckpointError, _lacks(whole, missing, len(variables)), hint)
    given = {name: value for name, value in value_dict.items() if name in variables}
    values = _all_or_none((name, partial(_fitting, variables[name], value)) for name, value in given.items())
    random = value_dict.random_state if isinstance(value_dict, Values) else None
    if isinstance(value_dict, Values):
        _check_random(session, random, value_dict.path)
    session.exchange(values, random)
    if isinstance(value_dict, Values) and missing:
        _warn(f"{_lacks(value_dict.path, missing, len(variables))}; they keep the values they have")
    if unknown:
        _warn_of_unknown(unknown, variables)


def get_interface_blob_value(op_name: str) -> np.ndarray:
    """The current value of the variable of that name."""
    session = _session("flow.experimental.get_interface_blob_value")
    _known(op_name, session.variables())
    return session.read([op_name])[op_name]


def set_interface_blob_value(op_name: str, ndarray: np.ndarray) -> None:
    """Gives the variable of that name a value of exactly its shape and dtype."""
    load_variables({op_name: ndarray}, ignore_mismatch=False)


# --- checkpoints


def save(path: str | os.PathLike[str], var_dict: Mapping[str, Any] | None = None) -> None:
    """Saves variables in OneFlow's layout, after everything submitted. Killed half-way, it leaves the path as it was.

    Args:
      path: does not exist (parents are made), or is an empty directory.
      var_dict: name -> handle, value of ``flow.checkpoint.get``, or ndarray; None saves every variable of the session,
        and the state of its random ops beside them.
    Raises:
      CheckpointExistsError: the path is a file or a directory that is not empty.
      CheckpointError: a value or name that the layout has no place for, or the disk refused.
    Example: >>> flow.checkpoint.save("./lenet_models")
    """
    if var_dict is None:
        processes.by_first("the beginning of a save", lambda: atomic.Save(path).abandon())
        session = _session("flow.checkpoint.save")
        session.build_all()
        names = list(session.variables())
        values, random_state = session.snapshot(names)
        processes.by_first("a save", lambda: atomic.write(path, values, {"random": random_state}))
        return
    if not isinstance(var_dict, Mapping):
        complain(ArgumentError, f"var_dict must be a dict of variable name -> value, got {type(var_dict).__name__}")
    values = _values(var_dict)
    processes.by_first("a save", lambda: atomic.write(path, values, {}))


def get(path: str | os.PathLike[str]) -> Values | FileValue:
    """The values that a checkpoint holds, without a session; or the one value of a single variable's directory.

    Args:
      path: a checkpoint, of this library or of OneFlow, or a variable's directory in one.
    Returns: a dict of name -> value with ``.shape``, ``.dtype`` and ``.numpy()``, which reads the elements.
    Raises:
      CheckpointNotFoundError: there is no checkpoint at that path.
      CheckpointError: sizes disagree, ``meta`` is not understood, or a link leads outside.
    Example: >>> flow.load_variables(flow.checkpoint.get("./lenet_models"))
    """
    found = Checkpoint(path)
    if found.is_single:
        return FileValue(found.path)
    return Values({name: found[name] for name in found if found.has_out(name)}, found.extra().get("random"), found.path)


def save_dict(obj: Mapping[str, Any], save_dir: str | os.PathLike[str]) -> None:
    """``flow.save(obj_dict, dir)``: saves named values, as ``flow.checkpoint.save(dir, obj_dict)`` does.

    Example: >>> flow.save({"w": np.ones((8, 4), np.float32)}, "./two")
    """
    save(save_dir, obj)


class CheckPoint:
    """Saves and loads all variables of the session, optimizer state and random state included.

    Example: >>> flow.train.CheckPoint().save("./models")
    """

    def init(self) -> None:
        """Starts the session. Variables that are not loaded begin with what their initializers draw."""
        _session("CheckPoint.init").build_all()

    def save(self, path: str | os.PathLike[str]) -> None:
        """As ``flow.checkpoint.save(path)``."""
        save(path)

    def load(self, path: str | os.PathLike[str], strict: bool = False) -> None:
        """Gives every variable the value that the checkpoint holds for it; all of them, or, where anything is wrong, none.

        What the checkpoint has beyond that is ignored. Variables that it lacks keep their values, with one
        CheckpointWarning that names them.

        Args:
          path: a checkpoint of this library or of OneFlow.
          strict: makes variables that the checkpoint lacks an error.
        Raises:
          CheckpointNotFoundError: there is no checkpoint at that path.
          CheckpointError: a value is damaged, or has another shape or dtype than the program's variable.
        """
        stored = Checkpoint(path)
        if stored.is_single:
            rule = f"{stored.path!r} is the directory of one variable, not a checkpoint"
            complain(CheckpointNotFoundError, rule, f"load {os.path.dirname(os.path.abspath(stored.path))!r}")
        session = _session("CheckPoint.load")
        session.build_all()
        variables = session.variables()
        missing = [v for name, v in variables.items() if name not in stored]
        random = stored.extra().get("random")
        values = _all_or_none((name, partial(_from_checkpoint, variables[name], stored)) for name in variables if name in stored)
        if missing and strict:
            _refuse_missing(stored, missing, len(variables))
        _check_random(session, random, stored.path)
        session.exchange(values, random)
        if not variables and not (random or {}).get("readers"):
            _warn(f"nothing was loaded from {stored.path!r}: the program has no variables yet; declare its jobs before loading")
        elif missing:
            _warn(f"{_lacks(stored.path, missing, len(variables))}; they keep the values they have")


class SimpleCheckPointManager:
    """Checkpoints below one directory, named by the time they were saved.

    Args:
      root_path: made, with its parents, where it does not exist.
      prefix: what their names begin with.
    Raises:
      CheckpointExistsError: ``root_path`` is a file.
    Example:
      >>> manager = flow.train.SimpleCheckPointManager("./snapshots")
      >>> manager.initialize_or_restore()
      >>> manager.save()
    """

    def __init__(self, root_path: str | os.PathLike[str], prefix: str = "snapshot_"):
        self._root = as_path(root_path)
        if not isinstance(prefix, str) or os.path.basename(prefix) != prefix:
            complain(ArgumentError, f'prefix must be a str without "/", got {prefix!r}')
        self._prefix = prefix
        processes.by_first("making a directory for checkpoints", lambda: atomic.make_root(self._root))

    def list_checkpoints(self) -> list[str]:
        """Names, not paths, of the finished checkpoints, the oldest first."""
        names = (n for n in os.listdir(self._root) if n.startswith(self._prefix) and not atomic.is_staging(n))
        return sorted(n for n in names if os.path.isfile(os.path.join(self._root, n, DONE)))

    def latest_checkpoint(self) -> str | None:
        """The name of the newest one; None where there is none."""
        return max(self.list_checkpoints(), default=None)

    def save(self) -> None:
        """Saves all variables under a name that tells the time."""
        now = processes.of_first("the time of a save", f"{datetime.now():%Y%m%d_%H%M%S_%f}")
        save(os.path.join(self._root, f"{self._prefix}{now}"))

    def initialize_or_restore(self) -> None:
        """Loads the newest checkpoint; where there is none, saves the first."""
        latest = processes.of_first("the latest checkpoint", self.latest_checkpoint())
        if latest is None:
            self.save()
        else:
            CheckPoint().load(os.path.join(self._root, latest))


# --- what they share


def _session(what: str) -> Session:
    if current_or_none() is not None:
        complain(ModeError, f"{what} cannot be called inside a job function: nothing has a value there yet", "call it outside")
    return default_session()


def _known(name: object, variables: Mapping[str, Variable]) -> None:
    if isinstance(name, str) and name in variables:
        return
    near = closest(name, variables, count=3) if isinstance(name, str) else []
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "flow.get_all_variables() lists them"
    complain(UnknownVariableError, f"{name!r} is not a variable name", hint)


def _all_or_none(readers: Iterable[tuple[str, Callable[[], np.ndarray]]]) -> dict[str, np.ndarray]:
    """Reads everything before it raises anything, so that one error names every variable that is wrong."""
    values: dict[str, np.ndarray] = {}
    errors: dict[str, OneFlowError] = {}
    for name, read in readers:
        try:
            values[name] = read()
        except OneFlowError as error:
            errors[name] = error
            values.clear()
    if len(errors) > 1:
        first, *others = errors
        raise type(errors[first])(f"{errors[first]}\n  also wrong {_listed(others)}") from errors[first]
    for only in errors.values():
        raise only
    return values


def _fitting(variable: Variable, value: Any) -> np.ndarray:
    """The value as an array of exactly the variable's shape and dtype, or an error."""
    if isinstance(value, FileValue):
        return _from_file(variable, value)
    if not isinstance(value, (np.ndarray, VariableHandle)):
        rule = f"variable {variable.name!r} cannot be given a {type(value).__name__}"
        complain(
            ArgumentError, rule, expected="an ndarray, a handle of flow.get_all_variables, or a value of flow.checkpoint.get"
        )
    if value.shape != variable.shape:
        _misfit(ShapeError, "shape", variable, f"shape {tuple(value.shape)}")
    array = value if isinstance(value, np.ndarray) else value.numpy()
    if array.dtype != variable.dtype.numpy_dtype:
        hint = f"convert it with astype(np.{variable.dtype.numpy_dtype.name}); nothing is converted implicitly"
        _misfit(DtypeError, "dtype", variable, f"dtype {array.dtype}", hint)
    return array


def _from_file(variable: Variable, value: FileValue) -> np.ndarray:
    hint = "load a checkpoint of this model, or remove this variable from it"
    for what, ours, theirs in (("shape", variable.shape, value.shape), ("dtype", variable.dtype, value.dtype)):
        if value.has_meta_info_ and ours != theirs and value.shape is not None and value.dtype is not None:
            found = f"{describe(value.shape, value.dtype)}, in {value.file_path}"
            _misfit(CheckpointError, what, variable, found, hint)
    if not value.may_be(variable.shape, variable.dtype):
        found = f"another one, as its digest tells; its meta is missing in {os.path.dirname(value.file_path)}"
        _misfit(CheckpointError, "shape or dtype", variable, found, hint)
    return value.read_as(variable.shape, variable.dtype)


def _from_checkpoint(variable: Variable, stored: Checkpoint) -> np.ndarray:
    return _from_file(variable, stored[variable.name])


def _misfit(kind: type[OneFlowError], what: str, variable: Variable, found: str, hint: str = "") -> NoReturn:
    expected = f"{variable.describe()}, declared at {variable.source}"
    complain(kind, f"variable {variable.name!r} has another {what} than the value for it", hint, expected=expected, found=found)


def _values(var_dict: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Arrays for a save; the values of all handles of a session are of one moment."""
    sessions: dict[int, tuple[Session, list[str]]] = {}
    for value in var_dict.values():
        if isinstance(value, VariableHandle):
            sessions.setdefault(id(value._session), (value._session, []))[1].append(value.name)
    read = {key: session.read(names) for key, (session, names) in sessions.items()}

    def array(name: str, value: Any) -> np.ndarray:
        if isinstance(value, VariableHandle):
            return read[id(value._session)][value.name]
        if isinstance(value, FileValue):
            return value.numpy()
        if isinstance(value, np.ndarray):
            return value
        expected = "a handle of flow.get_all_variables, a value of flow.checkpoint.get, or an ndarray"
        complain(ArgumentError, f"var_dict[{name!r}] cannot be saved: it is a {type(value).__name__}", expected=expected)

    return _all_or_none((name, partial(array, name, value)) for name, value in var_dict.items())


def _check_random(session: Session, state: Any, path: str) -> None:
    if state is None:
        return
    try:
        session.check_random_state(state)
    except Exception as error:
        rule = f"checkpoint {path!r}: the random state in its {EXTRA} is not understood; nothing was loaded"
        raise CheckpointError(
            f"{rule}\n  found      {state!r}\n  try        remove {EXTRA} to load the variables alone"
        ) from error


def _refuse_missing(stored: Checkpoint, missing: list[Variable], count: int) -> NoReturn:
    hint = "load without strict=True to keep their present values"
    complain(CheckpointError, _lacks(stored.path, missing, count), hint, full_path=os.path.abspath(stored.path))


def _is_state(name: str, variables: Iterable[str]) -> bool:
    """Whether a checkpoint's entry is a counter or an optimizer's slot of a variable: a job that predicts has none."""
    return name.startswith("System-") or any(name.startswith(f"{known}-") for known in variables)


def _warn_of_unknown(names: Iterable[Any], variables: Mapping[str, Variable]) -> None:
    listed = []
    for name in names:
        near = closest(name, variables, count=2) if isinstance(name, str) else []
        listed.append(f"{name!r}" + (f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""))
    _warn(f"flow.load_variables was given {len(listed)} name(s) that no variable of the program has: {_listed(listed)}")


def _lacks(path: str, missing: list[Variable], count: int) -> str:
    parameters = [v.name for v in missing if v.role == "parameter"]
    state = [v.name for v in missing if v.role != "parameter"]
    parts = [f"{len(parameters)} parameter(s): {_listed(parameters)}"] if parameters else []
    parts += [f"optimizer state and counters, so that training begins anew: {_listed(state)}"] if state else []
    what = f"checkpoint {path!r}" if path else "the dictionary"
    return f"{what} lacks {len(missing)} of the program's {count} variables: {'; '.join(parts)}"


def _listed(names: list[str], most: int = 20) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _warn(text: str) -> None:
    warn(CheckpointWarning, text)
