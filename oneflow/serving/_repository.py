"""The models of a directory: which there are, which are loaded, and replacing them while they serve.

The layout: ``DIR/NAME.stablehlo``, or ``DIR/NAME/`` with ``config.json`` (optional) and a directory per version, ``DIR/NAME/1/``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import OneFlowError
from ._batcher import Batcher
from ._metrics import Metrics
from ._model import read_model
from ._protocol import RequestError
from ._settings import CONFIG, ModelSettings, read

logger = logging.getLogger("oneflow.serving")
NAME = re.compile(r"(?!stats\Z)[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")  # /v2/models/stats is a page of its own
_SUFFIX = ".stablehlo"
_UNLOADED = "unloaded"  # by request
_GONE = "its files are gone"
_LONGEST_VERSION = 18  # digits

Fingerprint = tuple[tuple[str, int, int, int], ...]


@dataclass(slots=True)
class _Version:
    """A version on the disk or in memory, and why it is not served if it is not."""

    batcher: Batcher | None = None
    fingerprint: Fingerprint = ()
    loading: bool = False
    reason: str = ""

    @property
    def state(self) -> str:
        return "READY" if self.batcher is not None else "LOADING" if self.loading else "UNAVAILABLE"


@dataclass(slots=True)
class _Entry:
    """A model with its versions by number."""

    versions: dict[int, _Version] = field(default_factory=dict)
    reason: str = ""
    seen: tuple[Fingerprint, ...] = ()  # what the last attempt to load it saw
    waiting: bool = True  # to be loaded for the first time


class Repository:
    """The models of a server. Its methods belong to the event loop's thread."""

    def __init__(self, root: Path, defaults: ModelSettings, metrics: Metrics, in_flight: int):
        self.root = root.absolute()  # models are converted in processes that run elsewhere
        self._defaults = defaults
        self._metrics = metrics
        self._in_flight = in_flight
        self._entries: dict[str, _Entry] = {}
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="oneflow-serving-loader")
        self._lock = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()
        self._ignored: set[str] = set()  # names that have been told

    # --- what there is

    def find(self, name: str, version: str | None) -> Batcher:
        """A loaded version; None is the newest one. Raises RequestError with status 404, or 503 while it is loaded."""
        entry = self._entries.get(name)
        if entry is None:
            raise RequestError(404, f"there is no model {name[:128]!r}")
        if version is None:
            ready = [v.batcher for _, v in sorted(entry.versions.items()) if v.batcher is not None]
            if ready:
                return ready[-1]
            raise _not_loaded(name, entry, entry.versions.values())
        found = entry.versions.get(int(version)) if _is_version(version) else None
        if found is None and not entry.waiting:
            raise RequestError(404, f"model {name!r} has no version {version[:32]!r}")
        if found is None or found.batcher is None:
            raise _not_loaded(name, entry, [] if found is None else [found])
        return found.batcher

    def versions(self, name: str) -> list[str]:
        """The versions of a model that are served, the oldest first."""
        entry = self._entries.get(name, _Entry())
        return [str(n) for n, v in sorted(entry.versions.items()) if v.batcher is not None]

    def names(self) -> list[str]:
        """The models that have a version that is served."""
        return [name for name in sorted(self._entries) if self.versions(name)]

    def index(self) -> list[dict[str, str]]:
        """The repository index of the protocol: every version, with its state and the reason."""
        made = []
        for name in sorted({*self._entries, *self._on_disk()}):
            entry = self._entries.get(name, _Entry(waiting=False))
            if not entry.versions and entry.waiting:
                made.append({"name": name, "version": "", "state": "LOADING", "reason": ""})
            elif not entry.versions:
                made.append({"name": name, "version": "", "state": "UNAVAILABLE", "reason": entry.reason or "not loaded"})
            made += [{"name": name, "version": str(n), "state": v.state, "reason": v.reason or entry.reason}
                     for n, v in sorted(entry.versions.items())]  # fmt: skip
        return made

    def queues(self) -> Iterator[tuple[str, int, int]]:
        """Of each model the name, how many requests wait, and how many versions are served."""
        for name, entry in self._entries.items():
            batchers = [v.batcher for v in entry.versions.values() if v.batcher is not None]
            yield name, sum(b.queued for b in batchers), len(batchers)

    def _on_disk(self) -> dict[str, Path]:
        """The models of the directory, loaded or not, by name."""
        try:
            entries = sorted(self.root.iterdir())
        except OSError as error:
            logger.error("%s cannot be read: %s", self.root, error.strerror)
            return {}
        made: dict[str, Path] = {}
        for path in entries:
            if path.is_dir() and NAME.fullmatch(path.name):
                made[path.name] = path
            elif path.suffix == _SUFFIX and NAME.fullmatch(path.stem) and path.is_file():
                made.setdefault(path.stem, path)
            elif (path.is_dir() or path.suffix == _SUFFIX) and not path.name.startswith(".") and path.name not in self._ignored:
                self._ignored.add(path.name)
                rule = "names of models have up to 128 of A-Z, a-z, 0-9, '_', '.' and '-', and are not 'stats'"
                logger.warning("%s is ignored: %s", path, rule)
        return made

    # --- changes

    async def load_all(self) -> dict[str, str]:
        """Loads every model of the directory. Returns the reasons of those that could not be loaded, by name."""
        failures = {}
        names = self._on_disk()
        if not names:
            kinds = f"NAME{_SUFFIX}, or NAME/1/ with a checkpoint or a StableHLO export"
            logger.warning("%s has no models yet: it takes %s", self.root, kinds)
        for name in names:
            self._entries.setdefault(name, _Entry())
        for name in names:
            reason = await self._load(name, waiting=True)
            if reason:
                failures[name] = reason
        return failures

    async def load(self, name: str) -> None:
        """Loads a model, or its versions that have changed. What serves goes on serving until its successor is ready.

        Raises: RequestError: there is no such model (404), or a version cannot be loaded (400).
        """
        if name not in self._on_disk() and not self.versions(name):
            raise RequestError(404, f"there is no model {name[:128]!r} in the repository")
        reason = await self._load(name)
        if reason:
            serving = self.versions(name)
            several = len(serving) > 1
            which = f"version{'s' * several} {', '.join(serving)} continue{'s' * (not several)} to serve"
            goes_on = f" ({which})" if serving else ""
            raise RequestError(400, f"failed to load {name!r}{goes_on}: {reason}")

    async def unload(self, name: str) -> None:
        """Takes a model out of service, until it is loaded by request. Requests that it has accepted are answered."""
        await self._take_out(name, _UNLOADED)

    async def _take_out(self, name: str, reason: str) -> None:
        async with self._lock:
            entry = self._entries.get(name)
            if entry is None:
                raise RequestError(404, f"there is no model {name[:128]!r}")
            for number in list(entry.versions):
                self._retire(entry, number)
            entry.reason, entry.seen, entry.waiting = reason, (), False

    async def refresh(self) -> None:
        """Loads what is new or has changed on the disk since the last attempt, and retires what is gone."""
        found = self._on_disk()
        for name in [n for n in self._entries if n not in found and self._entries[n].versions]:
            await self._take_out(name, _GONE)
        for name, path in found.items():
            entry = self._entries.get(name)
            if entry is not None and entry.reason == _UNLOADED:
                continue
            seen = await self._in_loader(_seen, path)
            if entry is None or entry.seen != seen:
                reason = await self._load(name)
                if reason:
                    logger.error("model %r: %s", name, reason)

    def hurry(self) -> None:
        """From now on no request waits for others: the server is to end soon."""
        for entry in self._entries.values():
            for version in entry.versions.values():
                if version.batcher is not None:
                    version.batcher.hurry()

    async def close(self) -> None:
        """Ends all threads, when the requests that were accepted are answered."""
        for entry in self._entries.values():
            for number in list(entry.versions):
                self._retire(entry, number)
        if self._retiring:
            await asyncio.wait(self._retiring, timeout=5.0)
        self._loader.shutdown(wait=False, cancel_futures=True)

    async def _load(self, name: str, *, waiting: bool = False) -> str:
        """Returns the reason why not all versions are served, or "". One model is loaded at a time.

        ``waiting``: only if it still waits, and was not loaded or unloaded by request.
        """
        async with self._lock:
            entry = self._entries.setdefault(name, _Entry())
            if waiting and not entry.waiting:
                return ""
            path = self._on_disk().get(name)
            if path is None:
                entry.waiting, entry.reason, entry.seen = False, _GONE, ()  # looked at again where it comes back
                return entry.reason
            entry.reason = ""
            try:
                return await self._load_versions(name, entry, path)
            finally:
                entry.waiting = False

    async def _load_versions(self, name: str, entry: _Entry, path: Path) -> str:
        try:
            entry.seen = await self._in_loader(_seen, path)
            settings, found = await self._in_loader(_versions_of, path, self._defaults)
        except (OneFlowError, OSError) as error:
            entry.reason = str(error)
            return entry.reason
        reasons = []
        for number, (place, fingerprint) in sorted(found.items()):
            reason = await self._load_version(name, entry, number, place, fingerprint, settings)
            if reason:
                reasons.append(f"version {number}: {reason}")
        others = [n for n in entry.versions if n not in found]
        if len(reasons) < len(found) or not any(entry.versions[n].batcher for n in others):
            for number in others:
                self._retire(entry, number)
        elif [place for place, _ in found.values()] == [path] and entry.versions[1].batcher is None:
            # no version is there any more, nor a model without versions
            entry.reason = entry.versions.pop(1).reason
            return entry.reason
        return "; ".join(reasons)

    async def _load_version(
        self, name: str, entry: _Entry, number: int, path: Path, fingerprint: Fingerprint, settings: ModelSettings
    ) -> str:
        version = entry.versions.setdefault(number, _Version())
        if version.batcher is not None and version.fingerprint == fingerprint and version.batcher.model.settings == settings:
            return ""
        version.loading, version.reason = True, ""
        try:
            model = await self._in_loader(read_model, name, str(number), path, settings, self._in_flight)
            made = Batcher(model, self._metrics, self._in_flight)
        except Exception as error:
            if not isinstance(error, (OneFlowError, OSError)):
                logger.exception("model %r, version %d", name, number)
            version.reason = str(error) or type(error).__name__
            self._metrics.loads.labels(name, "failed").inc()
            return version.reason
        finally:
            version.loading = False
        old, version.batcher, version.fingerprint = version.batcher, made, fingerprint
        if old is not None:
            self._end(old)
        self._metrics.loads.labels(name, "loaded").inc()
        kernels = f"{model.threads} native threads" if model.threads else "XLA"
        logger.info("model %r, version %d: %d programs, %s", name, number, model.programs, kernels)
        return ""

    def _retire(self, entry: _Entry, number: int) -> None:
        batcher = entry.versions.pop(number).batcher
        if batcher is not None:
            self._end(batcher)

    def _end(self, batcher: Batcher) -> None:
        task = asyncio.get_running_loop().create_task(batcher.close())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _in_loader(self, function: Any, *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._loader, function, *args)


def _not_loaded(name: str, entry: _Entry, versions: Iterable[_Version]) -> RequestError:
    if entry.waiting or any(v.loading for v in versions):
        return RequestError(503, f"model {name!r} is being loaded", {"retry-after": "1"})
    return RequestError(404, f"model {name!r} is not loaded")


# --- the disk


def _versions_of(path: Path, defaults: ModelSettings) -> tuple[ModelSettings, dict[int, tuple[Path, Fingerprint]]]:
    """The settings of a model, and the versions to serve, by number."""
    if path.is_file():
        return defaults, {1: (path, _fingerprint(path))}
    settings = read(path, defaults)
    found = {int(p.name): p for p in path.iterdir() if p.is_dir() and _is_version(p.name)}
    if not found:
        found = {1: path}
    chosen = settings.versions
    if isinstance(chosen, int):
        found = {n: found[n] for n in sorted(found)[-chosen:]}
    elif isinstance(chosen, tuple):
        missing = [n for n in chosen if n not in found]
        if missing:
            raise OneFlowError(f"{path / CONFIG} lists version {missing[0]}, which is not there")
        found = {n: found[n] for n in chosen}
    beside: Fingerprint = ()
    if settings.job is not None:  # what its script is made of
        beside = tuple(sorted(status for p in path.iterdir() if p.is_file() for status in _fingerprint(p)))
    return settings, {n: (p, _fingerprint(p) + beside) for n, p in found.items()}


def _is_version(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) <= _LONGEST_VERSION and not name.startswith("0")


def _seen(path: Path) -> tuple[Fingerprint, ...]:
    return (_fingerprint(path),)


def _fingerprint(path: Path) -> Fingerprint:
    """Names, sizes, times and inodes of the files of a version: what tells that it was replaced."""
    files = [path, path.with_suffix(".safetensors")] if path.is_file() else _files(path)
    made = []
    for file in files:
        try:
            status = os.stat(file)
        except OSError:
            continue
        made.append((str(file), status.st_size, status.st_mtime_ns, status.st_ino))
    return tuple(sorted(made))


def _files(path: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(path):
        yield from (Path(folder) / name for name in names)
