"""Public modules: ``dir`` lists their public names, missing names are suggested, constructors' errors show the user's frames."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterable
from functools import partial
from types import ModuleType
from typing import Any

from .frames import constructor_shows_user_frames, show_users_frames
from .public_names import missing, place, public_names


def install(modules: Iterable[ModuleType]) -> None:
    """Makes modules public: adds ``__dir__`` and ``__getattr__``, and lets errors of constructors show the user's frames alone.

    A module may list names that are imported when they are first used, as ``_on_demand = {name: "module:name"}``, or ``"module"``
    where the name is that of a module; dots stand for what they do in an import statement there. ``from module import *`` brings
    them as well, except those in ``_apart``.
    """
    modules = list(modules)
    for module in modules:
        module.__dict__["_public_names"] = partial(public_names, module)
    for module in modules:
        module.__dict__.setdefault("__dir__", partial(_listed, module))
        module.__dict__.setdefault("__getattr__", partial(_found, module))
        for value in vars(module).values():
            _tidied(value)


def _tidied(value: Any) -> None:
    if isinstance(value, type):
        constructor_shows_user_frames(value)


def _listed(module: ModuleType) -> list[str]:
    dunder = [n for n in ("__all__", "__doc__", "__file__", "__name__", "__path__", "__version__") if n in vars(module)]
    return sorted([*public_names(module), *dunder])


def _found(module: ModuleType, name: str) -> Any:
    own = vars(module)
    if name == "__all__" and "_on_demand" in own:  # "from module import *" asks for it, and takes what vars(module) has otherwise
        return [n for n in {**own, **own["_on_demand"]} if not n.startswith("_") and n not in own.get("_apart", {})]
    path, attribute = place(module, name)
    if not path:
        if "." in module.__name__ and "__path__" in own and not name.startswith("_"):  # one of a package's modules
            with contextlib.suppress(ModuleNotFoundError):
                return importlib.import_module(f".{name}", module.__name__)
        try:
            missing(module.__name__, name)
        except AttributeError as error:
            show_users_frames(error)
            raise
    value = importlib.import_module(path, own["__package__"])
    own[name] = value = getattr(value, attribute) if attribute else value
    _tidied(value)
    return value
