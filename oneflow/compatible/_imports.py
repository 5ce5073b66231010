"""Imports below ``oneflow.compatible.single_client``.

A path below the alias is, in this order: a file of ``single_client/``; a package that differs from ``oneflow``'s by paths below
it alone (``_PACKAGES``); a module of the eager package, which says so of each of its names (``_EAGER``); or the module that
``oneflow`` has under that path, or under another one (``_MOVED``).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, cast

from .._base.elsewhere import EAGER
from .._base.public_names import missing, public_names

_ROOT = __name__.partition(".")[0]
_ALIAS = f"{__package__}.single_client"
_FILES = os.path.join(os.path.dirname(os.path.realpath(__file__)), "single_client")
_PACKAGES = (
    "advanced",
    "contrib",
    "contrib.tensorrt",
    "deprecated",
    "env",
    "experimental",
    "ops",
    "serving",
    "summary",
    "support",
)
_EAGER = (
    "autograd", "autograd.autograd", "autograd.autograd_mode", "eager", "experimental.optim", "nn.init", "nn.module",
    "nn.optimizer", "nn.parameter", "vm",
)  # fmt: skip
_WITHOUT_TWIN = (*_EAGER, "contrib", "contrib.tensorrt", "ops", "support")  # oneflow.ops is this library's own
_UNREAD = ("typing",)  # their files are for type checkers, which look for the source of a stub
_MOVED = {  # path below the alias -> path below ``oneflow``
    "advanced.distribute_ops": "advanced",
    "contrib.tensorrt.tensorrt_api": "tensorrt",
    "deprecated.init_cluster_env": "runtime.environment",
    "deprecated.initializer_util": "_variables.initializers",
    "experimental.indexed_slices_ops": "ops.scatter",
    "experimental.interface_op_read_and_write": "experimental._interface_values",
    "experimental.load_mnist": "data.mnist",
    "experimental.square_sum_op": "ops.reduce",
    "experimental.ssp_variable_proxy_op": "ops.ssp",
    "experimental.typing_check": "experimental._typing_check",
    "experimental.unique_op": "ops.scatter",
    "framework": "python.framework",
    "serving.inference_session": "serving",
    "serving.saved_model_builder": "saved_model",
    "ops.transpose_util": "python.ops.transpose_util",
    "summary.summary_graph": "summary",
    "summary.summary_hparams": "summary",
    "summary.summary_projector": "summary",
}


class _Finder:
    """Finds the modules below the alias."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not fullname.startswith(f"{_ALIAS}."):
            return None
        below = fullname.removeprefix(f"{_ALIAS}.")
        if path is not None and any(entry.startswith(_FILES) for entry in path) and below not in _UNREAD:
            own = PathFinder.find_spec(fullname, path)
            if own is not None:
                return own
        if below in _EAGER or below in _PACKAGES:
            return ModuleSpec(fullname, cast(Any, _Empty()), is_package=True)
        real = _real(below)
        if real not in sys.modules and not _exists(real):
            # Not None: the next finder would load a second copy of a file from the parent's directory.
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return ModuleSpec(fullname, cast(Any, _Shared(real)))


def _real(below: str) -> str:
    """The name of ``oneflow``'s module for a path below the alias."""
    known = next((p for p in (below, *_parents(below)) if p in _MOVED), None)
    return f"{_ROOT}.{below if known is None else _MOVED[known] + below.removeprefix(known)}"


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a package above it
        return False


def _parents(path: str) -> Iterator[str]:
    while "." in path:
        path = path.rpartition(".")[0]
        yield path


class _Shared:
    """The module that ``oneflow`` has: never a second copy."""

    def __init__(self, real: str):
        self._real = real
        self._spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._real)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has put the alias's there


class _Empty:
    """A package without names of its own: they are those of ``oneflow``'s module, if it has one."""

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        below = module.__name__.removeprefix(f"{_ALIAS}.")
        module.__doc__ = f"``{below}``, as 0.6 divides it."
        vars(module).update(zip(("__getattr__", "__dir__", "_public_names"), sharing(module.__name__), strict=True))


def sharing(alias: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], Callable[[], list[str]]]:
    """What a module of the alias has beside its own names: all those that ``oneflow`` has at that path.

    Args:
      alias: the module's name, below ``oneflow.compatible.single_client``.
    Returns: its ``__getattr__``, ``__dir__`` and ``_public_names``.
    """
    below = alias.removeprefix(_ALIAS).removeprefix(".")
    real = f"{_ROOT}.{below}" if below else _ROOT

    def twin() -> ModuleType | None:
        return None if below in _WITHOUT_TWIN else importlib.import_module(real)

    def found(name: str) -> Any:
        path = f"{below}.{name}".removeprefix(".")
        if path in EAGER:
            raise AttributeError(f"module {alias!r} has no attribute {name!r}: {EAGER[path]}", name=name)
        module = twin()
        if module is not None and (name != "__all__" or name in vars(module)):  # a list that is written down holds here, too
            try:
                return getattr(module, name)
            except AttributeError as error:
                text = str(error).replace(f"module {real!r}", f"module {alias!r}", 1)
                raise AttributeError(text, name=name) from None
        if below in _EAGER and not name.startswith("_"):
            raise AttributeError(f"module {alias!r} has no attribute {name!r}: {EAGER['*']}", name=name)
        missing(alias, name)

    def names() -> list[str]:
        module = twin()
        there = vars(sys.modules[alias])
        own = {n for n in there if not n.startswith("_") and n != "annotations" and f"{alias}.{n}" not in sys.modules}
        shared = set(public_names(module)) if module is not None else set()
        return sorted(own | shared)

    def listed() -> list[str]:
        there = vars(sys.modules[alias])
        return sorted([*names(), *(n for n in ("__doc__", "__file__", "__name__", "__path__") if n in there)])

    return found, listed, names


def install_packages() -> None:
    """Makes the packages that have no file attributes of the alias."""
    for below in (*_PACKAGES, *_EAGER, "framework", "ops.transpose_util"):
        if "." not in below or below in _MOVED:
            importlib.import_module(f"{_ALIAS}.{below}")


def install() -> None:
    """Puts the finder where imports ask it first."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
