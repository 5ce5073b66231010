"""Public modules: the names that ``dir`` lists, and an AttributeError that says where a missing name is.

A missing name is searched for under other spellings and in the other public modules, then in a table of the names that
PyTorch, Keras, JAX and later releases of OneFlow have for the same thing.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from functools import partial
from types import ModuleType
from typing import Any, NoReturn

from .elsewhere import ELSEWHERE
from .refuse import closest, plain_spelling


def public_names(module: ModuleType) -> list[str]:
    """The public names of a module: its ``__all__``, or all names without an underscore."""
    listed = getattr(module, "__all__", None)
    names = {n for n in vars(module) if not n.startswith("_") and n != "annotations"} if listed is None else set(listed)
    on_demand = vars(module).get("_on_demand", {})
    return sorted(on_demand.keys() | {n for n in names if not _is_internal(vars(module).get(n))})


def _is_internal(value: Any) -> bool:
    return isinstance(value, ModuleType) and "_public_names" not in vars(value)


def install(modules: Iterable[ModuleType]) -> None:
    """Makes modules public: adds ``__dir__`` and ``__getattr__``.

    A module may list names that are imported when they are first used, as ``_on_demand = {name: "module:name"}``, or ``"module"``
    where the name is that of a module; dots stand for what they do in an import statement there.
    """
    modules = list(modules)
    for module in modules:
        module.__dict__["_public_names"] = partial(public_names, module)
    for module in modules:
        module.__dict__.setdefault("__dir__", partial(_listed, module))
        module.__dict__.setdefault("__getattr__", partial(_found, module))


def _listed(module: ModuleType) -> list[str]:
    dunder = [n for n in ("__all__", "__doc__", "__file__", "__name__", "__path__", "__version__") if n in vars(module)]
    return sorted([*public_names(module), *dunder])


def _found(module: ModuleType, name: str) -> Any:
    path, _, attribute = vars(module).get("_on_demand", {}).get(name, "").partition(":")
    if not path:
        missing(module.__name__, name)
    value = importlib.import_module(path, vars(module)["__package__"])
    vars(module)[name] = value = getattr(value, attribute) if attribute else value
    return value


def missing(module: str, name: str) -> NoReturn:
    """Raises the AttributeError for a name that a public module does not have."""
    if name.startswith("_"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    near = suggestions(module, name)
    why = f"did you mean {', '.join(near)}?" if near else ""
    raise AttributeError(f"module {module!r} has no attribute {name!r}" + (f"; {why}" if why else ""), name=name)


def suggestions(module: str, name: str) -> list[str]:
    """Expressions that begin with ``flow``, which the author of ``module.name`` may have meant."""
    root = module.partition(".")[0]
    prefix = "flow" + module.removeprefix(root) + "."
    everything = [(n, m) for n, m in list(sys.modules.items()) if not n.startswith(f"{root}.compatible.")]
    spaces = [m for n, m in everything if n.partition(".")[0] == root and "_public_names" in vars(m)]
    spaces.sort(
        key=lambda m: (m.__name__ != module, m.__name__.count("."), m.__name__)
    )  # its own module first, then shorter paths
    everywhere: dict[str, list[str]] = {}
    values = {id(m) for m in spaces if m.__name__ == module}  # flow.profiler has no Profile, and is not what is meant either
    for space in dict.fromkeys(spaces):
        for n in public_names(space):
            value = vars(space).get(n, n)  # without the imports of a lazy module
            if id(value) not in values or space.__name__ == module:  # each value under its first name only
                values.add(id(value))
                everywhere.setdefault(plain_spelling(n), []).append("flow" + space.__name__.removeprefix(root) + "." + n)
    plain = plain_spelling(name)
    found = everywhere.get(plain, [])
    if plain in ELSEWHERE and not (found and found[0].startswith(prefix)):
        known = ELSEWHERE[plain]
        if not (name[0].isupper() and known.startswith("flow.math.")):  # everywhere functions: typing.Any is not meant as any()
            found = [known, *found]
    if found:
        return list(dict.fromkeys(found))
    own = [n for space in spaces if space.__name__ == module for n in public_names(space)]
    return [prefix + n for n in closest(name, own)] or [p for n in closest(name, everywhere) for p in everywhere[n]][:5]
