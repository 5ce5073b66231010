"""The classes and decorators of ``flow.unittest``."""

from __future__ import annotations

import functools
import importlib.util
import os
import unittest
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from .. import env as _flow_env
from .._base import check
from .._base.refuse import refuse, shown
from .._signature import require_annotations
from ..config import enable_eager_execution
from ..config._environment import Environment
from ..errors import ArgumentError
from ..runtime.session import clear_default_session
from . import env

Decorator = Callable[[Any], Any]


class TestCase(unittest.TestCase):
    """A test that finds no jobs, variables or settings of other tests. Overriding ``setUp`` must call this one."""

    def setUp(self) -> None:
        if not Environment.frozen:
            _start_environment()
        clear_default_session()
        enable_eager_execution(env.eager_execution_enabled())
        require_annotations(env.typing_check_enabled())


def _start_environment() -> None:
    if env.has_node_list():
        _flow_env.machine(env.node_list())
        for setting, variable in ((_flow_env.ctrl_port, "CTRL_PORT"), (_flow_env.data_port, "DATA_PORT")):
            port = os.environ.get(f"ONEFLOW_TEST_{variable}", "")
            if port.isdigit():
                setting(int(port))
    if os.environ.get("ONEFLOW_TEST_LOG_DIR"):
        _flow_env.log_dir(os.environ["ONEFLOW_TEST_LOG_DIR"])
    _flow_env.init()


def _skip_unless(nodes: int, devices: int) -> Decorator:
    found = (env.node_size(), env.device_num())
    why = f"needs {nodes} machine(s) with {devices} device(s) each; this run has {found[0]} with {found[1]}"
    return unittest.skipUnless(found == (nodes, devices), why)


def skip_unless_1n1d() -> Decorator:
    """A decorator: the test runs on exactly one machine with one device."""
    return _skip_unless(1, 1)


def skip_unless_1n2d() -> Decorator:
    """A decorator: the test runs on exactly one machine with two devices."""
    return _skip_unless(1, 2)


def skip_unless_1n4d() -> Decorator:
    """A decorator: the test runs on exactly one machine with four devices."""
    return _skip_unless(1, 4)


def skip_unless_2n1d() -> Decorator:
    """A decorator: the test runs on exactly two machines with one device each."""
    return _skip_unless(2, 1)


def skip_unless_2n2d() -> Decorator:
    """A decorator: the test runs on exactly two machines with two devices each."""
    return _skip_unless(2, 2)


def skip_unless_2n4d() -> Decorator:
    """A decorator: the test runs on exactly two machines with four devices each."""
    return _skip_unless(2, 4)


# --- tests from the functions of files, the older way


class _ClearDefaultSession:
    def setUp(self) -> None:
        clear_default_session()
        require_annotations(False)


def num_nodes_required(num_nodes: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Marks a test function, for ``register_test_cases``, as one that needs this many machines."""
    found, problem = check.integer(num_nodes, low=1)
    if problem:
        refuse(ArgumentError, f"num_nodes_required: the number {problem}")

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        if not isinstance(function, FunctionType):
            refuse(ArgumentError, f"num_nodes_required marks a function, got {shown(function)}")
        function.__dict__["_num_nodes_required"] = found
        return function

    return mark


def register_test_cases(
    scope: dict[str, Any],
    directory: str,
    filter_by_num_nodes: Callable[[int], bool],
    base_class: type[unittest.TestCase] = unittest.TestCase,
    test_case_mixin: type = _ClearDefaultSession,
) -> None:
    """Makes a test class of every ``test*.py`` of a directory: its functions ``test_*(test_case)`` become the methods.

    Args:
      scope: the dict that gets the classes, usually ``globals()``; each has the name of its file.
      directory: that of the files.
      filter_by_num_nodes: whether to take a test that needs this many machines (``num_nodes_required``; 1 without it).
      base_class: the class from which the classes derive.
      test_case_mixin: a class that comes before it; the default starts a new session for each test.
    """
    if not isinstance(scope, dict) or check.path(directory)[1] or not callable(filter_by_num_nodes):
        found = f"{shown(scope)}, {shown(directory)} and {shown(filter_by_num_nodes)}"
        refuse(ArgumentError, f"register_test_cases takes a dict, a directory and a function of a number, got {found}")
    try:
        files = sorted(Path(directory).glob("test*.py"))
    except OSError as error:
        refuse(ArgumentError, f"register_test_cases cannot read {shown(directory)}: {error.strerror}")
    for path in files:
        module = _load(path)
        methods = {
            name: functools.partialmethod(_call, function)
            for name, function in vars(module).items()
            if name.startswith("test_")
            and callable(function)
            and filter_by_num_nodes(getattr(function, "_num_nodes_required", 1))
        }
        if methods:
            scope[path.stem] = type(path.stem, (test_case_mixin, base_class), {"__module__": scope.get("__name__"), **methods})


def _call(test_case: unittest.TestCase, function: Callable[[unittest.TestCase], None]) -> None:
    function(test_case)


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None  # a .py file has both
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
