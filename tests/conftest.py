"""The environment of every test: a directory of its own for caches, no network, and an empty session."""

from __future__ import annotations

import atexit
import gc
import os
import re
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path

import pytest

# What jobs of the tests run on: "cuda,cpu" on a machine with a GPU (scripts/on_gpu).
PLATFORMS = os.environ.setdefault("ONEFLOW_TEST_PLATFORMS", "cpu")

# Before oneflow or jax are imported: nothing may read or write the real user's directories. The worker processes of a
# parallel run inherit the directory of the process that started them.
if "ONEFLOW_TEST_HOME" not in os.environ:
    _home = tempfile.mkdtemp(prefix="oneflow-tests-")
    atexit.register(shutil.rmtree, _home, ignore_errors=True)
    os.environ["ONEFLOW_TEST_HOME"] = _home
    os.environ["HOME"] = os.environ["USERPROFILE"] = _home
    os.environ["XDG_CACHE_HOME"] = os.path.join(_home, ".cache")
    os.environ["XDG_CONFIG_HOME"] = os.path.join(_home, ".config")
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = os.path.join(_home, ".hypothesis")
    # Programs that tests start must not inherit what a user has set for their own.
    _own = ("ONEFLOW_TEST_HOME", "ONEFLOW_TEST_PLATFORMS")
    for _name in [n for n in os.environ if n.startswith(("JAX_", "ONEFLOW_")) and n not in _own]:
        del os.environ[_name]
    if PLATFORMS != "cpu":
        os.environ["JAX_DEFAULT_MATMUL_PRECISION"] = "highest"  # references are of float32, not of TF32
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # several processes share the GPU's memory
os.environ.setdefault("JAX_PLATFORMS", PLATFORMS)

# Compiling is most of what tests do. Here, and in the programs that they start, XLA leaves out LLVM's costly passes, and makes
# loops in its older and shorter way, where it still can: that takes a third of the time. What XLA and this library do to a
# program before that is as ever. Rounding differs, so that a unit at relu's corner may fall on its other side. Not with
# --thorough, nor in programs of users (tutorials, the main example), which are started without XLA_FLAGS.
QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_parallel_codegen_split_count=1"
if tuple(map(int, metadata.version("jaxlib").split(".")[:2])) < (0, 11):
    QUICK += " --xla_cpu_use_fusion_emitters=false"
if PLATFORMS == "cpu":
    os.environ.setdefault("XLA_FLAGS", QUICK)

# Started by ``nohup``, a shell's ``&`` or some CI systems, a process ignores SIGINT, and every program that it starts inherits
# that. Tests of Ctrl-C need the handler that a program started from a terminal has.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import oneflow as flow  # noqa: E402

PACKAGE = Path(flow.__file__).resolve().parent
ROOT = Path(__file__).resolve().parent.parent
if PACKAGE.parent == ROOT:
    # The working tree is being tested without having been installed; programs that tests start must find it, too.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


# Each file is one worker's, and workers take files in order: these would otherwise be among the last, when others have none.
LONGEST = [
    "tests/ops/test_table.py", "tests/distribution/test_processes.py", "tests/test_docs.py", "tests/jobs/test_reliability.py",
    "tests/distribution/test_parts.py", "tests/ops/test_fuzz.py", "tests/tutorials/test_tutorials.py",
    "tests/checkpoint/test_preemption.py", "tests/onnx/test_ops.py", "tests/models/test_gallery.py",
    "tests/trainer/test_resume.py", "tests/typed/test_types.py",
]  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="the long tier: more examples, more shapes, tests marked thorough")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "thorough: runs with --thorough only")
    config.addinivalue_line("markers", "cpu(why): about what only CPUs do; skipped where jobs run on a GPU")
    if config.getoption("--thorough"):
        os.environ["ONEFLOW_THOROUGH"] = "1"  # the tables read it where they are imported
        if os.environ.get("XLA_FLAGS") == QUICK:
            del os.environ["XLA_FLAGS"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--thorough"):
        left_out = [item for item in items if item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]
    if PLATFORMS != "cpu":
        for item in items:
            if marker := item.get_closest_marker("cpu"):
                item.add_marker(pytest.mark.skip(reason=f"CPUs only: {marker.args[0]}"))
    place = {file: i for i, file in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.nodeid.split("::")[0], len(LONGEST)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays to the end: the garbage collector need not look through it, neither meanwhile nor afterwards."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


class NetworkUseError(RuntimeError):
    """A test wanted to reach another machine."""


def _guarded(connect):
    def checked(self: socket.socket, address):
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_loopback(address[0]):
            raise NetworkUseError(f"tests must not use the network, but this one connects to {address!r}")
        return connect(self, address)

    return checked


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1", "") or host.startswith("127.")


@pytest.fixture(autouse=True, scope="session")
def _no_network() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", _guarded(socket.socket.connect))
        patch.setattr(socket.socket, "connect_ex", _guarded(socket.socket.connect_ex))
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_expectation_is_quoted() -> Iterator[None]:
    """Errors quote the user's line. In a table of mistakes that line holds the expected text, too, and would always match."""
    read = flow._base.source.Source.text.fget
    assert read is not None
    with pytest.MonkeyPatch.context() as patch:
        text = property(lambda source: re.sub(r"""(["'])(?:(?!\1).){12,}\1""", "'...'", read(source)))
        patch.setattr(flow._base.source.Source, "text", text)
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_kept_programs() -> Iterator[None]:
    """Tests replace parts of the library, which the key of a kept step does not see; programs that tests start keep theirs.

    Nor are there hits enough in XLA's cache to be worth its files.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("oneflow.runtime.kept_programs.directory", lambda: None)
        patch.setattr("oneflow.runtime.compilation_cache.enabled", nullcontext)
        yield


@pytest.fixture(autouse=True)
def _empty_session() -> Iterator[None]:
    """Jobs, variables and settings of one test are not seen by the next one."""
    flow.clear_default_session()
    yield
    flow.clear_default_session()
