"""Restores Pillow's ``Image.ANTIALIAS``, which programs of 2020 use and Pillow 10 renamed to ``LANCZOS``.

This does not import Pillow: if it is not loaded yet, the name is set when ``PIL.Image`` is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

_MODULE = "PIL.Image"


def restore_antialias() -> None:
    """Defines ``PIL.Image.ANTIALIAS``, now or when Pillow is imported. Repeated calls do nothing."""
    loaded = sys.modules.get(_MODULE)
    if loaded is not None:
        _add_name(loaded)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _add_name(module: Any) -> None:
    if not hasattr(module, "ANTIALIAS") and hasattr(module, "LANCZOS"):
        module.ANTIALIAS = module.LANCZOS


class _Finder:
    """Finds ``PIL.Image`` through the other finders, with a loader that adds the name."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next((found for finder in others if (found := finder.find_spec(fullname, path, target))), None)
        if spec is not None and spec.loader is not None:
            spec.loader = cast(Any, _Loader(spec.loader))
        return spec


class _Loader:
    def __init__(self, original: Any):
        self._original = original

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._original.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._original
        module.__loader__ = self._original
        self._original.exec_module(module)
        _add_name(module)
