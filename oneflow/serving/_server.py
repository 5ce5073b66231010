"""The server: a directory's models behind HTTP, from loading to draining."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from .._base import check
from .._base.extras import need
from .._base.jax import jax
from .._base.refuse import refuse
from ..errors import ArgumentError, ServingError
from ._app import App
from ._connection import bounded_protocol
from ._metrics import Metrics
from ._repository import Repository
from ._settings import model_settings, server_settings

logger = logging.getLogger("oneflow.serving")
_KEEP_ALIVE_SECONDS = 75
_BACKLOG = 2048


class Server:
    """Serves the models of a directory by KServe's v2 protocol over HTTP, on a thread of its own.

    ``python -m oneflow.serving`` does the same as a program; docs/serving.md describes the directory and the protocol.

    Args:
      directory: has ``NAME.stablehlo``, or ``NAME/VERSION/`` with a StableHLO export or a checkpoint.
      host: the address to listen at; by default only this machine reaches the server.
      port: the port; 0 for a free one.
      token: the bearer token that requests must have; None for none.
      max_batch_size: the most rows that are joined, and that a request may have (32).
      batch_sizes: the sizes that batches are padded to; by default powers of two up to ``max_batch_size``.
      max_delay_ms: how long a request waits for others, in milliseconds; by default 1, and only while there are several clients.
      max_queue: the most requests of a version that wait (1024).
      batching: False runs each request by itself.
      batches_in_flight: how many batches of a version run at the same time (2; 1 on CPUs, whose cores a batch uses itself).
      max_body: the largest body of a request, in bytes (64 MiB); ``max_bodies`` of all requests at one time (1 GiB).
      max_connections: the most that are open (512; more than the open files that a process may have do not help); a further
        client gets 503.
      timeout: how long a request may take, in seconds (30); ``body_timeout`` how long its body may take to arrive (30).
      drain: how long requests may go on when the server stops, in seconds (30); ``drain_delay`` how long new requests are taken
        after readiness is withdrawn (0).
      poll: how often the directory is looked at for changes, in seconds; 0 for never (0).
      allowed_hosts: further values of the header Host, for a server without a token behind a proxy on the same machine.
      ssl_certfile, ssl_keyfile, ssl_keyfile_password, ssl_ca_certs: files for TLS, as uvicorn takes them.
    Raises: ArgumentError, MissingExtraError. ``start`` raises ServingError where a model cannot be loaded.
    Example:
      >>> with flow.serving.Server("models", port=0) as server: print(server.url)
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        token: str | None = None,
        max_batch_size: int | None = None,
        batch_sizes: Sequence[int] | None = None,
        max_delay_ms: float | None = None,
        max_queue: int | None = None,
        batching: bool | None = None,
        batches_in_flight: int | None = None,
        max_body: int | None = None,
        max_bodies: int | None = None,
        max_connections: int | None = None,
        timeout: float | None = None,
        body_timeout: float | None = None,
        drain: float | None = None,
        drain_delay: float | None = None,
        poll: float | None = None,
        allowed_hosts: Sequence[str] | None = None,
        ssl_certfile: str | None = None,
        ssl_keyfile: str | None = None,
        ssl_keyfile_password: str | None = None,
        ssl_ca_certs: str | None = None,
    ):
        what = "flow.serving.Server"
        text, problem = check.path(directory)
        if problem:
            refuse(ArgumentError, f"{what}: directory {problem}")
        if not os.path.isdir(text):
            refuse(ArgumentError, f"{what}: there is no directory {text!r}")
        self._root = Path(text)
        self._settings = server_settings(
            what, host=host, port=port, token=token, batches_in_flight=batches_in_flight, max_body=max_body,
            max_bodies=max_bodies, max_connections=max_connections, timeout=timeout, body_timeout=body_timeout, drain=drain,
            drain_delay=drain_delay, poll=poll, allowed_hosts=allowed_hosts, ssl_certfile=ssl_certfile, ssl_keyfile=ssl_keyfile,
            ssl_keyfile_password=ssl_keyfile_password, ssl_ca_certs=ssl_ca_certs,
        )  # fmt: skip
        self._defaults = model_settings(
            what, max_batch_size=max_batch_size, batch_sizes=batch_sizes, max_delay_ms=max_delay_ms, max_queue=max_queue,
            batching=batching,
        )  # fmt: skip
        for module in ("uvicorn", "httptools", "prometheus_client", "flatbuffers"):
            need(module, what)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._refresh: asyncio.Event | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._port = 0

    def __repr__(self) -> str:
        if self._loop is None:
            state = "not started" if self._thread is None else "starting"
        elif not self._loop.is_running():
            state = "stopped"
        else:
            state = f"at {self.url}" if self._port else "starting"
        return f"<Server of {str(self._root)!r}: {state}>"

    @property
    def url(self) -> str:
        """Where the running server is, such as ``http://127.0.0.1:8000``."""
        host = self._settings.host
        scheme = "https" if self._settings.ssl_certfile else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self._port}"

    def start(self) -> Server:
        """Starts the server on a thread, and returns when all models are compiled.

        Raises: ServingError: a model cannot be loaded, or the port is taken.
        """
        if self._thread is not None:
            refuse(ServingError, "this server was started before", hint="another Server for the same directory")
        self._thread = threading.Thread(target=self._run_on_thread, name="oneflow-serving", daemon=True)
        self._thread.start()
        self._ready.wait()
        failure = self._failure
        if failure is None:
            return self
        self._thread.join()
        if isinstance(failure, ServingError):
            refuse(ServingError, str(failure))  # with the caller's line, which the thread does not know
        raise failure

    def stop(self) -> None:
        """Stops the server when the requests that it has accepted are answered."""
        self._call(lambda: self._stopping)
        if self._thread is not None:
            self._thread.join()

    def refresh(self) -> None:
        """Looks at the directory for changed, new and removed models, without waiting for them."""
        self._call(lambda: self._refresh)

    def __enter__(self) -> Server:
        return self.start() if self._thread is None else self  # with Server(...).start() as server

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def run(self, started: Callable[[Server], None] | None = None) -> None:
        """Serves on the calling thread, the main one, until SIGTERM or SIGINT. SIGHUP is ``refresh``.

        Args:
          started: is called when all models are compiled.
        Raises: as ``start``.
        """
        _run(self._serve(started, signals=True))

    # --- the event loop's thread

    def _call(self, event: Callable[[], asyncio.Event | None]) -> None:
        loop, found = self._loop, event()
        if loop is not None and found is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(found.set)

    def _run_on_thread(self) -> None:
        try:
            _run(self._serve(None, signals=False))
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self, started: Callable[[Server], None] | None, *, signals: bool) -> None:
        settings = self._settings
        self._loop = asyncio.get_running_loop()
        self._stopping, self._refresh = asyncio.Event(), asyncio.Event()
        if signals:
            _on_signals(self._loop, self._stopping, self._refresh)
        metrics = Metrics()
        in_flight = settings.batches_in_flight or (1 if jax.default_backend() == "cpu" else 2)
        repository = Repository(self._root, self._defaults, metrics, in_flight)
        app = App(repository, settings, metrics, importlib.import_module("oneflow").__version__)
        listener = _listening(settings.host, settings.port)
        self._port = listener.getsockname()[1]
        try:
            server = _uvicorn(app, settings)
        except BaseException:
            listener.close()
            raise
        serving = asyncio.create_task(server.serve([listener]))
        try:
            failures = await _unless_stopped(repository.load_all(), self._stopping)
            if failures:
                rows = [f"  {name}: {reason}" for name, reason in failures.items()]
                raise ServingError("\n".join([f"{len(failures)} of the models in {str(self._root)!r} cannot be served:", *rows]))
            if not self._stopping.is_set():
                app.ready = True
                self._ready.set()
                if started is not None:
                    started(self)
                await self._until_stopped(repository, serving)
        finally:
            app.draining = True
            repository.hurry()
            if app.ready:
                await asyncio.sleep(settings.drain_delay)
            server.should_exit = True
            await serving
            await repository.close()

    async def _until_stopped(self, repository: Repository, serving: asyncio.Task[None]) -> None:
        """Waits for the end, and looks at the directory when it is told to or its time has come."""
        assert self._stopping is not None and self._refresh is not None
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            while not (stopping.done() or serving.done()):
                refresh = asyncio.create_task(self._refresh.wait())
                await asyncio.wait({stopping, serving, refresh}, timeout=self._settings.poll or None,
                                   return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
                refresh.cancel()
                if not (stopping.done() or serving.done()):
                    self._refresh.clear()
                    await _unless_stopped(repository.refresh(), self._stopping)
        finally:
            stopping.cancel()


async def _unless_stopped(work: Any, stopping: asyncio.Event) -> Any:
    """The result of a coroutine; None where the server is stopped before."""
    task, stop = asyncio.create_task(work), asyncio.create_task(stopping.wait())
    await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if task.done():
        return task.result()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return None


def _run(main: Any) -> None:
    try:
        factory = importlib.import_module("uvloop").new_event_loop
    except ImportError:  # there is none for Windows
        factory = asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)


def _on_signals(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event, refresh: asyncio.Event) -> None:
    for name, event in (("SIGTERM", stopping), ("SIGINT", stopping), ("SIGHUP", refresh)):
        number = getattr(signal, name, None)
        if number is not None:
            with contextlib.suppress(NotImplementedError):  # Windows
                loop.add_signal_handler(number, event.set)


def _listening(host: str, port: int) -> socket.socket:
    """A bound socket, so that a port that is taken is found before models are loaded."""
    problem = ""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
        try:
            if os.name == "posix":
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            return listener
        except OSError:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:
        problem = getattr(error, "strerror", None) or str(error)
    raise ServingError(f"the server cannot listen at {host}:{port}: {problem}\n  try        another port")


def _uvicorn(app: App, settings: Any) -> Any:
    uvicorn = need("uvicorn", "oneflow.serving")

    class QuietServer(uvicorn.Server):  # type: ignore[name-defined]
        """Leaves signals to whom they belong."""

        @contextlib.contextmanager
        def capture_signals(self) -> Any:
            yield

    config = uvicorn.Config(
        app, http=bounded_protocol(settings.max_connections), ws="none", lifespan="off", log_config=None, access_log=False,
        server_header=False, proxy_headers=False,
        backlog=_BACKLOG, timeout_keep_alive=_KEEP_ALIVE_SECONDS, timeout_graceful_shutdown=max(1, round(settings.drain)),
        ssl_certfile=settings.ssl_certfile, ssl_keyfile=settings.ssl_keyfile,
        ssl_keyfile_password=settings.ssl_keyfile_password, ssl_ca_certs=settings.ssl_ca_certs,
    )  # fmt: skip
    asked = []

    def password() -> str:  # OpenSSL would ask for one at the terminal
        asked.append(True)
        return settings.ssl_keyfile_password or ""

    try:
        if settings.ssl_certfile is not None:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, password)
        config.load()
    except Exception as error:  # of files for TLS
        files = [f for f in (settings.ssl_certfile, settings.ssl_keyfile, settings.ssl_ca_certs) if f is not None]
        hint = ""
        if asked and getattr(error, "reason", None) != "KEY_VALUES_MISMATCH":
            hint = "\n  try        the password of the key: ssl_keyfile_password, or --ssl-keyfile-password"
        elif isinstance(error, ssl.SSLError):
            hint = "\n  try        files in PEM format: a certificate, and the key that belongs to it (--ssl-keyfile)"
        raise ServingError(f"TLS cannot be set up with {', '.join(map(str, files))}: {error}{hint}") from error
    return QuietServer(config)
