"""Modules that are imported again after Ctrl-C, and names that are taken."""

import importlib
import sys
from typing import Any

import pytest

from oneflow._base.registry import enter


@pytest.mark.parametrize("name", ["oneflow.onnx.rules.array", "oneflow.onnx.rules.binary", "oneflow.onnx.readers.array"])
def test_an_import_that_was_interrupted_is_repeated(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    importlib.import_module(name)
    monkeypatch.delitem(sys.modules, name)  # as Python does with a module whose import has failed
    assert importlib.import_module(name) is sys.modules[name]


def test_a_name_is_taken_once() -> None:
    registry: dict[str, Any] = {}

    def first() -> None: ...

    def second() -> None: ...

    enter(registry, "name", first, "a rule for 'name'")
    enter(registry, "name", first, "a rule for 'name'")
    with pytest.raises(ValueError, match="there is a rule for 'name' already"):
        enter(registry, "name", second, "a rule for 'name'")
    assert registry == {"name": first}
