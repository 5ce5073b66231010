"""``flow.unittest.env``: the environment variables ONEFLOW_TEST_*, which configure a test run."""

from __future__ import annotations

import os as _os

from .._base.refuse import refuse as _refuse
from ..errors import ArgumentError as _ArgumentError


def _number(variable: str, default: int) -> int:
    text = _os.environ.get(variable, "")
    if text and not text.isdigit():
        _refuse(_ArgumentError, f"the environment variable {variable} must be a number, got {text!r}")
    return int(text) if text else default


def device_num() -> int:
    """ONEFLOW_TEST_DEVICE_NUM, or 1."""
    return _number("ONEFLOW_TEST_DEVICE_NUM", 1)


def has_node_list() -> bool:
    """Whether ONEFLOW_TEST_NODE_LIST names machines."""
    return bool(_os.environ.get("ONEFLOW_TEST_NODE_LIST"))


def node_list() -> list[str]:
    """The addresses of ONEFLOW_TEST_NODE_LIST, separated by commas. Raises ArgumentError where there are none."""
    if not has_node_list():
        _refuse(_ArgumentError, "the environment variable ONEFLOW_TEST_NODE_LIST is not set")
    return _os.environ["ONEFLOW_TEST_NODE_LIST"].split(",")


def node_size() -> int:
    """The number of machines: 1 without a list."""
    return len(node_list()) if has_node_list() else 1


def has_world_size() -> bool:
    """Whether ONEFLOW_TEST_WORLD_SIZE is set."""
    return bool(_os.environ.get("ONEFLOW_TEST_WORLD_SIZE"))


def world_size() -> int:
    """ONEFLOW_TEST_WORLD_SIZE, the number of processes, or 1."""
    return _number("ONEFLOW_TEST_WORLD_SIZE", 1)


def eager_execution_enabled() -> bool:
    """Whether ONEFLOW_TEST_ENABLE_EAGER is "1"."""
    return _os.environ.get("ONEFLOW_TEST_ENABLE_EAGER") == "1"


def typing_check_enabled() -> bool:
    """Whether ONEFLOW_TEST_ENABLE_TYPING_CHECK is "1"."""
    return _os.environ.get("ONEFLOW_TEST_ENABLE_TYPING_CHECK") == "1"
