"""What a server and its models are told: limits with their defaults, and each model's ``config.json``."""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .._base import check
from .._base.files import read_regular
from .._base.refuse import closest, refuse, shown
from ..errors import ArgumentError

CONFIG = "config.json"
_MOST_BYTES = 1 << 20  # of a config.json
_MOST_ROWS = 65536
_LONGEST_DELAY_MS = 60_000.0
_USUAL_DELAY = 0.001  # seconds


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How requests of one model are joined. The server's options are the defaults for ``config.json``.

    Attributes:
      max_batch_size: the most rows of a batch, and of a request.
      batch_sizes: the sizes that are compiled; None for powers of two up to ``max_batch_size``.
      max_delay: how long a request waits for others, in seconds; None for a millisecond, and only while others are likely.
      max_queue: the most requests that wait.
      batching: False runs each request by itself, padded to the next of the sizes.
      sizes: the values of open sizes other than the batch.
      versions: "all", how many of the newest, or the chosen ones.
      job: ``script.py:name``, for checkpoints; ``arguments`` are the script's, and ``folder`` is where it runs.
    """

    max_batch_size: int = 32
    batch_sizes: tuple[int, ...] | None = None
    max_delay: float | None = None
    max_queue: int = 1024
    batching: bool = True
    sizes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    versions: str | int | tuple[int, ...] = "all"
    job: str | None = None
    arguments: tuple[str, ...] = ()
    folder: Path | None = None

    @property
    def longest_delay(self) -> float:
        """How long a request waits for others at most, in seconds."""
        return _USUAL_DELAY if self.max_delay is None else self.max_delay

    @property
    def compiled_batches(self) -> tuple[int, ...]:
        """The batch sizes to compile, in order; the last one is ``max_batch_size``."""
        if self.batch_sizes is not None:
            return self.batch_sizes
        powers = [1]
        while powers[-1] * 2 < self.max_batch_size:
            powers.append(powers[-1] * 2)
        return tuple(sorted({*powers, self.max_batch_size}))


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Limits of a server. Sizes are in bytes, times in seconds."""

    host: str = "127.0.0.1"
    port: int = 8000
    max_body: int = 64 << 20
    max_bodies: int = 1 << 30
    max_connections: int = 512
    timeout: float = 30.0
    body_timeout: float = 30.0
    drain: float = 30.0
    drain_delay: float = 0.0
    poll: float = 0.0
    token: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    batches_in_flight: int | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_keyfile_password: str | None = None
    ssl_ca_certs: str | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def read(directory: Path, defaults: ModelSettings) -> ModelSettings:
    """The settings of the model in a directory. Raises ArgumentError for what ``config.json`` must not say."""
    path = directory / CONFIG
    try:
        given = json.loads(read_regular(path, _MOST_BYTES).decode())
    except FileNotFoundError as error:
        if not os.path.islink(path):
            return defaults
        raise ArgumentError(f"{path} cannot be read: {error.strerror}") from error
    except OSError as error:
        raise ArgumentError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{path} cannot be read: {error}") from error
    if not isinstance(given, dict):
        raise ArgumentError(f"{path} must hold a JSON object, got {shown(given)}")
    changes: dict[str, Any] = {}
    for key, value in given.items():
        if key not in _CHECKS:
            near = closest(key, _CHECKS, count=1)
            raise ArgumentError(f"{path} has no setting {key!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        name, found = _CHECKS[key](value)
        if isinstance(found, _Problem):
            raise ArgumentError(f"{path}: {key} {found.text}")
        changes[name] = found
    return consistent(replace(defaults, folder=directory, **changes), str(path), given)


def consistent(settings: ModelSettings, where: str, given: Any) -> ModelSettings:
    """The settings, with ``max_batch_size`` as the largest of ``batch_sizes``."""
    if settings.batch_sizes is None:
        return settings
    largest = settings.batch_sizes[-1]
    if "batch_sizes" in given and "max_batch_size" in given and settings.max_batch_size != largest:
        raise ArgumentError(f"{where}: max_batch_size is {settings.max_batch_size}, and the largest of batch_sizes {largest}")
    if "batch_sizes" not in given and "max_batch_size" in given:
        return replace(settings, batch_sizes=None)
    return replace(settings, max_batch_size=largest)


@dataclass(frozen=True, slots=True)
class _Problem:
    text: str


def _or_problem(found: tuple[Any, str]) -> Any:
    value, problem = found
    return _Problem(problem) if problem else value


def _batch_sizes(value: Any) -> Any:
    if not isinstance(value, (list, tuple)) or not value:
        return _Problem(f"must be a list of batch sizes, got {shown(value)}")
    for size in value:
        _, problem = check.integer(size, low=1, high=_MOST_ROWS)
        if problem:
            return _Problem(f"must be a list of batch sizes, each of which {problem}")
    return tuple(sorted(set(value)))


def _sizes(value: Any) -> Any:
    if not isinstance(value, dict):
        return _Problem(f'must be a JSON object such as {{"length": [64, 128]}}, got {shown(value)}')
    made = []
    for name, sizes in value.items():
        found = _batch_sizes([sizes] if isinstance(sizes, int) else sizes)
        if isinstance(found, _Problem):
            return _Problem(f"must have a list of sizes for {name!r}, got {shown(sizes)}")
        made.append((name, found))
    return tuple(made)


def _versions(value: Any) -> Any:
    if value == "all" or (check.whole(value) or 0) >= 1:
        return value
    found = _batch_sizes(value) if isinstance(value, list) else None
    if found is None or isinstance(found, _Problem):
        return _Problem(f'must be "all", how many of the newest versions, or a list of versions, got {shown(value)}')
    return found


def _arguments(value: Any) -> Any:
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        return _Problem(f"must be a list of strings, got {shown(value)}")
    return tuple(value)


def _seconds(value: Any) -> Any:
    found = _or_problem(check.number(value, low=0, high=_LONGEST_DELAY_MS))
    return found if isinstance(found, _Problem) else found / 1e3


_CHECKS: dict[str, Callable[[Any], tuple[str, Any]]] = {
    "max_batch_size": lambda v: ("max_batch_size", _or_problem(check.integer(v, low=1, high=_MOST_ROWS))),
    "batch_sizes": lambda v: ("batch_sizes", _batch_sizes(v)),
    "max_delay_ms": lambda v: ("max_delay", _seconds(v)),
    "max_queue": lambda v: ("max_queue", _or_problem(check.integer(v, low=1))),
    "batching": lambda v: ("batching", _or_problem(check.flag(v))),
    "sizes": lambda v: ("sizes", _sizes(v)),
    "versions": lambda v: ("versions", _versions(v)),
    "job": lambda v: ("job", _or_problem(check.name(v))),
    "arguments": lambda v: ("arguments", _arguments(v)),
}


def model_settings(what: str, **given: Any) -> ModelSettings:
    """Defaults for all models, out of a program's arguments; those that are None are left out."""
    changes: dict[str, Any] = {}
    for key, value in given.items():
        if value is None:
            continue
        name, found = _CHECKS[key](value)
        if isinstance(found, _Problem):
            refuse(ArgumentError, f"{what}: {key} {found.text}")
        changes[name] = found
    return consistent(ModelSettings(**changes), what, {k for k, v in given.items() if v is not None})


def server_settings(what: str, **given: Any) -> ServerSettings:
    """A server's limits, checked."""
    checks: dict[str, Callable[[Any], tuple[Any, str]]] = {
        "host": check.name,
        "port": lambda v: check.integer(v, low=0, high=65535),
        "max_body": lambda v: check.integer(v, low=1),
        "max_bodies": lambda v: check.integer(v, low=1),
        "max_connections": lambda v: check.integer(v, low=1),
        "timeout": lambda v: check.number(v, above=0, finite=True),
        "body_timeout": lambda v: check.number(v, above=0, finite=True),
        "drain": lambda v: check.number(v, low=0, finite=True),
        "drain_delay": lambda v: check.number(v, low=0, finite=True),
        "poll": lambda v: check.number(v, low=0, finite=True),
        "batches_in_flight": lambda v: check.integer(v, low=1, high=64),
        "token": lambda v: check.name(v, optional=True),
        **{name: lambda v: check.name(v, optional=True)
           for name in ("ssl_certfile", "ssl_keyfile", "ssl_keyfile_password", "ssl_ca_certs")},
        "allowed_hosts": _hosts,
    }  # fmt: skip
    made: dict[str, Any] = {}
    for key, value in given.items():
        if value is None:
            continue
        found, problem = checks[key](value)
        if problem:
            refuse(ArgumentError, f"{what}: {key} {problem}")
        made[key] = found
    if made.get("token") is not None and not (made["token"].isascii() and made["token"].isprintable()):
        refuse(ArgumentError, f"{what}: the token must be printable ASCII, as HTTP headers are")
    if made.get("ssl_keyfile") and not made.get("ssl_certfile"):
        refuse(ArgumentError, f"{what}: ssl_keyfile needs ssl_certfile")
    return ServerSettings(**made)


def _hosts(value: Any) -> tuple[tuple[str, ...], str]:
    if isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value):
        return tuple(v.lower() for v in value), ""
    return (), f"must be a list of host names, got {shown(value)}"
