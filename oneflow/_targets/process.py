"""The process in which a target's compiler runs: it may fail, or get in the way of JAX here, without harm to this one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

from .._base.extras import missing, need
from ..errors import CompileError
from .target import Target
from .worker import read, write

WORKER = Path(__file__).with_name("worker.py")
_NVCC = "\n  try        pip install nvidia-cuda-nvcc-cu12, which newer releases of JAX read this file from"
_MODULES = {"gpu": "jax_plugins.xla_cuda12", "tpu": "libtpu"}
# what the hosts of a real slice of TPUs are told
_ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost",
                "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}  # fmt: skip
_NOT_INHERITED = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "PYTHONSTARTUP")  # they are not part of what is cached
_SHOWN = 2000  # characters of a compiler's last words


class WorkerProcess:
    """Starts when it is first asked, and ends with the ``with`` statement."""

    def __init__(self, target: Target):
        self._target = target
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()

    def ask(self, request: Any, program: bytes, job: str) -> Any:
        """What the compiler says about a program of a job.

        Raises: CompileError: it cannot compile it, or its process ended. MissingExtraError: it is not installed.
        """
        process = self._started()
        try:
            write(cast(Any, process.stdin), request, program)
            reply = read(cast(Any, process.stdout))
        except BrokenPipeError:
            reply = None
        except BaseException:  # Ctrl-C: the answer would come next time
            self._stop()
            raise
        if reply is None:
            words = self._last_words()
            self._stop()
            raise CompileError(f"the compiler for {self._target} ended while it compiled job {job!r}:\n{words}")
        if "error" in reply[0]:
            said = reply[0]["error"][:_SHOWN]
            hint = _NVCC if "libdevice" in said else ""
            raise CompileError(f"job {job!r} cannot be compiled for {self._target}: {said}{hint}")
        return reply[0]

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            check_installed(self._target.platform)
            environment = {k: v for k, v in os.environ.items() if k not in _NOT_INHERITED} | _ENVIRONMENT
            environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)  # where this process finds JAX
            self._errors = tempfile.TemporaryFile()
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(WORKER)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, env=environment,
            )  # fmt: skip
        return self._process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    try:
                        stream.close()
                    except BrokenPipeError:  # a request that it never read
                        pass
            process.wait()
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _last_words(self) -> str:
        assert self._process is not None and self._errors is not None
        self._process.wait()
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-_SHOWN:]


def check_installed(platform: str) -> None:
    """Raises MissingExtraError where the compiler's packages are not there."""
    module = _MODULES[platform]
    need("flatbuffers", f"planning for a {platform.upper()}")  # jax.export serializes the program by it
    try:
        there = importlib.util.find_spec(module) is not None
    except ImportError:
        there = False
    if not there:
        missing(module, f"planning for a {platform.upper()}")
