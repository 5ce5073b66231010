"""Bringing stored values into a session: all of them, or, where anything is wrong, none."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, NoReturn

import numpy as np

from .._base import dtype as dtypes
from .._base.refuse import closest, listed, shown, warn
from .._base.threads import most_threads, on_threads
from ..errors import ArgumentError, CheckpointError, CheckpointWarning, DtypeError, OneFlowError, ShapeError
from ..graph.graph import Variable
from ..runtime import processes
from ..runtime.feed import owned
from ..runtime.pieces import BlockRange, Blocks, Index
from ..runtime.session import Session
from .blocks import runs_of
from .digests import CHUNK
from .format import Checkpoint, FileValue, Share
from .handles import VariableHandle
from .layout import EXTRA, complain, describe
from .safetensors import StoredTensor
from .saving import all_or_none, own_team
from .team import together

_log = logging.getLogger("oneflow")

Given = Callable[[], Any]
Read = Callable[[], "np.ndarray | Blocks"]


class FileBlocks:
    """The blocks of a stored value that the devices of this process need."""

    def __init__(self, value: FileValue, variable: Variable, blocks: Sequence[BlockRange], share: Share | None):
        self.shape, self.dtype = variable.shape, variable.dtype.numpy_dtype
        self._read = partial(value.read_blocks, variable.shape, variable.dtype)
        self._blocks = dict(zip(blocks, self._read(blocks, share), strict=True))

    def block(self, start: Index, extent: Index) -> np.ndarray:
        """The block of shape ``extent`` that begins at index ``start``."""
        found = self._blocks.get((start, extent))
        return found if found is not None else self._read([(start, extent)], Share(0, 1))[0]  # the variable has moved since


class WholeFile:
    """A stored value that is read when it is called."""

    def __init__(self, value: FileValue, variable: Variable):
        self.size = prod(variable.shape) * variable.dtype.bytes
        self._read = partial(value.read_as, variable.shape, variable.dtype)

    def __call__(self) -> np.ndarray:
        return self._read()


_WIDENED = (
    "flow.load_variables of float32 values; older releases kept an optimizer's state of 16-bit variables in 16 bits: "
    "leave it out, or pass value.numpy().astype(np.float32)"
)


class Loader:
    """Reads values for variables of a session, all of which is verified, and hands them over together.

    Of a variable that is split over several processes, each reads what its own devices need. All processes make one, with the
    same values.
    """

    def __init__(self, session: Session):
        self._session = session
        self._team = own_team()
        self._machines: list[Any] = []

    def load(self, values: Mapping[str, Given], variables: Mapping[str, Variable], roots: Iterable[str], random: Any) -> None:
        """Replaces the values of variables, and the random state where one is given.

        Args:
          values: by variable name, functions that return a value or raise what is wrong with it.
          roots: the checkpoints that values are in.
        Raises, in all processes, the error of the first value that is wrong, with the names of the others.
        """
        self._machines = self._team.gather("where checkpoints are", _identities(roots))
        found: dict[str, np.ndarray | Blocks] = {}

        def read() -> None:
            readers = {name: self._fitting(variables[name], get) for name, get in values.items()}
            found.update(all_or_none(_side_by_side(readers)))

        together(self._team, "loading variables", read)
        self._session.exchange(found, random)

    def _fitting(self, variable: Variable, get: Given) -> Read:
        """A function that returns the value for exactly the variable's shape and dtype, or raises what is wrong with it."""
        try:
            return self._checked(variable, get())
        except OneFlowError as error:
            return _raising(error)

    def _checked(self, variable: Variable, value: Any) -> Read:
        if isinstance(value, FileValue):
            return self._from_file(variable, value)
        if not isinstance(value, (np.ndarray, VariableHandle, StoredTensor)):
            rule = f"variable {variable.name!r} cannot be given a {type(value).__name__}"
            expected = "an ndarray, a handle of flow.get_all_variables, or a value of flow.checkpoint.get"
            complain(ArgumentError, rule, expected=expected)
        if value.shape != variable.shape:
            _misfit(ShapeError, "shape", variable, f"shape {tuple(value.shape)}")
        array = value if isinstance(value, np.ndarray) else value.numpy()
        if array.dtype != variable.dtype.numpy_dtype:
            hint = f"convert it with astype(np.{variable.dtype.numpy_dtype.name}); nothing is converted implicitly"
            _misfit(DtypeError, "dtype", variable, f"dtype {array.dtype}", hint)
        mine = owned(np.asarray(array)) if isinstance(value, np.ndarray) else array
        return lambda: mine

    def _from_file(self, variable: Variable, value: FileValue) -> Read:
        hint = "load a checkpoint of this model, or remove this variable from it"
        for what, ours, theirs in (("shape", variable.shape, value.shape), ("dtype", variable.dtype, value.dtype)):
            if value.has_meta_info_ and ours != theirs and value.shape is not None and value.dtype is not None:
                found = f"{describe(value.shape, value.dtype)}, in {value.file_path}"
                was_narrow = what == "dtype" and ours is dtypes.float32 and theirs in (dtypes.float16, dtypes.bfloat16)
                _misfit(CheckpointError, what, variable, found, _WIDENED if was_narrow else hint)
        if not value.may_be(variable.shape, variable.dtype):
            found = f"another one, as its digest shows; its meta is missing in {os.path.dirname(value.file_path)}"
            _misfit(CheckpointError, "shape or dtype", variable, found, hint)
        if self._team.count == 1:
            return WholeFile(value, variable)
        needed = self._session.blocks_by_process(variable.name)
        share = _share(variable, needed, self._machines, self._team.rank)
        return partial(FileBlocks, value, variable, needed.get(self._team.rank, []), share)


def _raising(error: OneFlowError) -> Read:
    def read() -> NoReturn:
        raise error

    return read


def _side_by_side(readers: Mapping[str, Read]) -> dict[str, Read]:
    """The same functions. Those of files that threads share out well have been called; a larger file is read by all threads."""
    sizes = {name: read.size for name, read in readers.items() if isinstance(read, WholeFile)}
    most = max(CHUNK, sum(sizes.values()) // (4 * most_threads()))
    names = sorted((name for name, size in sizes.items() if size <= most), key=lambda name: -sizes[name])
    return {**readers, **dict(zip(names, on_threads(lambda name: _called(readers[name]), names), strict=True))}


def _called(read: Read) -> Read:
    """A function that returns again what ``read`` does now. What fails is read again: on the thread of whom the error tells."""
    try:
        found = read()
    except OneFlowError:
        return read
    return lambda: found


def _identities(roots: Iterable[str]) -> list[Any]:
    """A key that is equal in processes that read the very same files: these share the verification."""
    places = [os.stat(root) for root in sorted(roots) if os.path.isdir(root)]
    return [socket.gethostname(), [[place.st_dev, place.st_ino] for place in places]]


def _share(variable: Variable, needed: Mapping[int, Sequence[BlockRange]], machines: list[Any], rank: int) -> Share | None:
    """The share of a scattered variable that this process verifies; None where each block is one stretch."""
    every = (runs_of(variable.shape, *block, variable.dtype.bytes) for blocks in needed.values() for block in blocks)
    if all(runs.is_contiguous for runs in every):
        return None
    here = [other for other in sorted(needed) if machines[other] == machines[rank] and needed[other]]
    return Share(here.index(rank), len(here)) if rank in here else Share(0, processes.count())


def check_random(session: Session, state: Any, path: str) -> None:
    """Raises CheckpointError for a random state that cannot be loaded."""
    if state is None:
        return
    try:
        session.check_random_state(state)
    except Exception as error:
        rule = f"checkpoint {path!r}: the random state in its {EXTRA} is not understood; nothing was loaded"
        hint = f"remove {EXTRA} to load the variables alone"
        raise CheckpointError(f"{rule}\n  found      {shown(state)}\n  try        {hint}") from error


# --- messages


def log_verification(stored: Checkpoint) -> None:
    """One line for a checkpoint that nobody can verify, one for variables that were removed from it."""
    digests = stored.description.digests
    if digests is None:
        _log.info("oneflow: checkpoint %r has no digests, as OneFlow and earlier versions save it: not verified", stored.path)
        return
    gone = sorted({file.rpartition("/")[0] for file in digests.files} - {*stored})
    if gone:
        _log.warning("oneflow: checkpoint %r was saved with variables whose files are gone: %s", stored.path, listed(gone))


def warn_of_unknown(names: Iterable[Any], variables: Mapping[str, Variable], what: str, session: Session) -> None:
    """Names that no variable of the program has, each with those that look like it; and jobs whose they may be."""
    texts = []
    for name in names:
        near = closest(name, variables, count=2) if isinstance(name, str) else []
        texts.append(shown(name) + (f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""))
    jobs = "".join(f"\n  {label}  {text}" for label, text in not_built(session))
    warn_of(f"{what} was given {len(texts)} name(s) that no variable of the program has: {listed(texts)}{jobs}")


def not_built(session: Session) -> list[tuple[str, str]]:
    """Rows of the jobs that cannot be built, whose variables the program lacks."""
    return [("not built", f"job {name!r}: {why}") for name, why in session.broken_jobs().items()]


def warn_of(text: str) -> None:
    """A CheckpointWarning at the user's line."""
    warn(CheckpointWarning, text)


def lacks(path: str, missing: list[Variable], count: int) -> str:
    """Which variables a checkpoint, or a dictionary, does not have."""
    parameters = [v.name for v in missing if v.role == "parameter"]
    state = [v.name for v in missing if v.role != "parameter"]
    parts = [f"{len(parameters)} parameter(s): {listed(parameters)}"] if parameters else []
    parts += [f"optimizer state and counters, so that training starts again: {listed(state)}"] if state else []
    what = f"checkpoint {path!r}" if path else "the dictionary"
    return f"{what} lacks {len(missing)} of the program's {count} variables: {'; '.join(parts)}"


_SLOTS = ("m", "v", "max_v", "momentum", "mean_square", "mean_gradient", "beta1_t", "beta2_t")  # of all optimizers


def is_state(name: object, *variables: Container[Any]) -> bool:
    """Whether a name is that of a counter or an optimizer's slot of one of the variables: a job that predicts has none."""
    if not isinstance(name, str):
        return False
    base, _, suffix = name.rpartition("-")
    return name.startswith("System-") or (suffix in _SLOTS and any(base in known for known in variables))


def _misfit(kind: type[OneFlowError], what: str, variable: Variable, found: str, hint: str = "") -> NoReturn:
    expected = f"{variable.describe()}, declared at {variable.source}"
    complain(kind, f"variable {variable.name!r} has another {what} than the value for it", hint, expected=expected, found=found)
