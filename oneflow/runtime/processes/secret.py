"""The secret that the processes of a run share: where it comes from, and where a run may listen without one."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from ..._base.refuse import refuse
from ...config._environment import SECRET_LENGTHS, Environment
from ...errors import ArgumentError
from . import addresses

SECRET = "ONEFLOW_SECRET"
SECRET_FILE = "ONEFLOW_SECRET_FILE"
INSECURE = "ONEFLOW_INSECURE"
_log = logging.getLogger("oneflow")


def make() -> str:
    """A new secret, for one run."""
    return secrets.token_hex(32)


def given(variables: Mapping[str, str] = os.environ) -> str | None:
    """The secret that this process was given: by ``flow.env``, or by its environment.

    Raises:
      ArgumentError: it is too short, or its file cannot be read.
    """
    if Environment.secret is not None:
        return _checked(Environment.secret, "flow.env.secret")
    if Environment.secret_file is not None:
        return _from_file(Environment.secret_file, "flow.env.secret_file")
    if variables.get(SECRET):
        return _checked(variables[SECRET], SECRET)
    if variables.get(SECRET_FILE):
        return _from_file(variables[SECRET_FILE], SECRET_FILE)
    return None


def may_be_insecure(variables: Mapping[str, str] = os.environ) -> bool:
    """Whether the user lets everybody who reaches the port take part."""
    return Environment.insecure or variables.get(INSECURE, "") not in ("", "0")


def of_run(*hosts: str) -> str:
    """The secret of a run whose first process is at ``hosts``. Processes of one machine need none to be given.

    Raises:
      ArgumentError: other machines reach one of them, and there is no secret.
    """
    found = given()
    if found is not None:
        return found
    exposed = next((host for host in hosts if not addresses.is_loopback(host)), None)
    if exposed is None:
        return _of_user()
    if may_be_insecure():
        _log.warning("oneflow: insecure: everybody who reaches %s can take part in this run, and end it", exposed)
        return ""
    refuse(
        ArgumentError,
        f"this run is to listen at {exposed}, which other machines reach, and its processes share no secret",
        hint=f"give all of them the same: {SECRET}=$(openssl rand -hex 32), {SECRET_FILE}=path or flow.env.secret_file(path). "
        f"{INSECURE}=1, or flow.env.insecure(), lets everybody who reaches the port take part",
    )


def _checked(text: str, source: str) -> str:
    text = text.strip()
    if len(text) not in SECRET_LENGTHS:
        refuse(ArgumentError, f"{source} must hold {SECRET_LENGTHS[0]} to {SECRET_LENGTHS[-1]} characters, it has {len(text)}",
               hint="openssl rand -hex 32")  # fmt: skip
    return text


def _from_file(path: str, source: str) -> str:
    try:
        text, status = _read(path)
    except (OSError, ValueError) as error:
        refuse(ArgumentError, f"{source}: {path!r} cannot be read: {getattr(error, 'strerror', None) or error}",
               hint="a file that holds the secret of the run, the same on all machines")  # fmt: skip
    if status.st_mode & (stat.S_IRGRP | stat.S_IROTH):
        _log.warning("oneflow: the secret in %s can be read by other users of this machine: chmod 600 %s", path, path)
    return _checked(text, f"the file of {source}")


def _read(path: str | Path) -> tuple[str, os.stat_result]:
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # of a FIFO, too, opening must not wait
    with open(descriptor, encoding="utf-8") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a regular file")
        return file.read(SECRET_LENGTHS[-1] + 2), status


def _of_user() -> str:
    """A secret of this user on this machine, made at first need: for processes that no launcher of ours has started."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    path = Path(base) / "oneflow-jax" / "secret"
    try:
        if not path.exists():
            _make_file(path)
        text, status = _read(path)
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise PermissionError(0, "it is not this user's alone")
        return _checked(text, str(path))
    except (OSError, ValueError) as error:
        _log.warning(
            "oneflow: no secret for the processes of this run, so that others who use this machine may take part: %s: %s. "
            "%s=text is another way to give one", path, getattr(error, "strerror", None) or error, SECRET,
        )  # fmt: skip
        return ""


def _make_file(path: Path) -> None:
    """Writes it whole or not at all: several processes may do so at once, and the first one's stays."""
    import tempfile  # only a run of several processes needs it

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".secret-")  # only its owner may read it
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(make())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)
