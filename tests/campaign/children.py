"""Child processes under limits. A server that has imported the library forks them, so that each begins within a second."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.util
import os
import random
import resource
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 600.0  # seconds for a child that should have ended; only one that hangs takes so long, also on a busy machine
MEMORY = 24 << 30  # bytes of address space; XLA reserves much that it does not use
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.campaign.preload"])


def isolate() -> None:
    """Nothing reads or writes the user's own directories and settings. Before the library is imported."""
    multiprocessing.util.get_temp_dir()  # outside of the folder that goes first at the end
    home = tempfile.mkdtemp(prefix="oneflow-campaign-")
    for name in [n for n in os.environ if n.startswith(("JAX_", "ONEFLOW_"))]:
        del os.environ[name]
    os.environ.update(HOME=home, XDG_CACHE_HOME=f"{home}/.cache", XDG_CONFIG_HOME=f"{home}/.config", JAX_PLATFORMS="cpu")
    os.environ.update(OPENCV_LOG_LEVEL="OFF", TMPDIR=home, TF_CPP_MIN_LOG_LEVEL="2")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "ops"), str(ROOT / "tests")])
    tempfile.tempdir = home
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started by nohup or a shell's &
        signal.signal(signal.SIGINT, signal.default_int_handler)


def free_port() -> int:
    """A port below those that the system hands out by itself, so that nobody takes it before a run listens there."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class Child:
    """``function(*args)`` in a process of its own; what it prints is in a file."""

    def __init__(self, function: Callable[..., object], *args: Any, environment: dict[str, str] | None = None):
        self._folder = tempfile.TemporaryDirectory(prefix="child-")
        self._begun = time.monotonic()
        arguments = (function, args, self._folder.name, environment or {})
        self.process = _context.Process(target=_main, args=arguments, daemon=True)
        self.process.start()

    def _read(self, name: str) -> str:
        with contextlib.suppress(FileNotFoundError):
            return (Path(self._folder.name) / name).read_text(errors="backslashreplace")
        return ""

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self._read("out")

    @property
    def errors(self) -> str:
        """The end of what it has written to standard error."""
        return self._read("err")[-4000:]

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def wait(self, timeout: float) -> int | None:
        """Its status, minus a signal's number where one ended it; None where it is still running, and is then killed."""
        self.process.join(timeout)
        status = self.process.exitcode
        self.kill()
        return status

    def wait_for(self, text: str, timeout: float) -> bool:
        """Whether it printed that before it ended."""
        end = time.monotonic() + timeout
        while text not in self.output:
            if not self.process.is_alive() or time.monotonic() > end:
                return text in self.output
            time.sleep(0.005)
        return True

    def kill(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()

    def close(self) -> None:
        self.kill()
        self._folder.cleanup()


@contextlib.contextmanager
def running(function: Callable[..., object], *args: Any, environment: dict[str, str] | None = None) -> Iterator[Child]:
    """A child that is gone afterwards, with its files."""
    child = Child(function, *args, environment=environment)
    try:
        yield child
    finally:
        child.close()


def _main(function: Callable[..., object], args: tuple[Any, ...], folder: str, environment: dict[str, str]) -> None:
    for number, name in ((1, "out"), (2, "err")):
        descriptor = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(environment)
    status = 0
    try:
        function(*args)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
