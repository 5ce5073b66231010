"""Imports below ``oneflow.compatible.single_client``, and of modules that this release does not have."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from .._base.elsewhere import NOT_BUILT

_ROOT = __name__.partition(".")[0]
_ALIAS = f"{__package__}.single_client"
_MOVED = {"ops.transpose_util": "python.ops.transpose_util"}  # oneflow.ops is this library's own
_MOVED_PACKAGES = {"framework": "python.framework"}


class _Finder(MetaPathFinder):
    """Finds the modules below the alias by importing those below ``oneflow``; says why those of ``NOT_BUILT`` are not there."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        if package == _ROOT and name in NOT_BUILT:
            # not a ModuleNotFoundError, whose text ``from oneflow import onnx`` would drop
            raise ImportError(f"there is no module {fullname}: {NOT_BUILT[name]}", name=fullname)
        if not fullname.startswith(f"{_ALIAS}."):
            return None
        below = fullname.removeprefix(f"{_ALIAS}.")
        package, _, rest = below.partition(".")
        moved = _MOVED_PACKAGES.get(package, package) + (f".{rest}" if rest else "")
        real = f"{_ROOT}.{_MOVED.get(below, moved)}"
        if real not in sys.modules and importlib.util.find_spec(real) is None:
            # Not None: the next finder would load a second copy of a file from the parent's directory.
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return ModuleSpec(fullname, _Loader(real))


class _Loader(Loader):
    def __init__(self, real: str):
        self._real = real
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._real)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has put the alias's there


def install() -> None:
    """Puts the package under its other name, and the finder where imports ask it first."""
    sys.modules[_ALIAS] = sys.modules[_ROOT]
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
