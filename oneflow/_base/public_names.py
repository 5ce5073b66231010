"""The names of public modules, and an AttributeError that says where a missing name is.

A missing name is searched for under other spellings and in the other public modules, then in a table of the names that
PyTorch, Keras, JAX and later releases of OneFlow have for the same thing.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType
from typing import Any, NoReturn

from .elsewhere import ELSEWHERE, WITHOUT_EQUIVALENT
from .refuse import closest, plain_spelling


def public_names(module: ModuleType) -> list[str]:
    """The public names of a module: its ``__all__``, or all names without an underscore."""
    listed = vars(module).get("__all__")
    names = {n for n in vars(module) if not n.startswith("_") and n != "annotations"} if listed is None else set(listed)
    on_demand = vars(module).get("_on_demand", {})
    return sorted(on_demand.keys() | {n for n in names if not _is_internal(vars(module).get(n))})


def _is_internal(value: Any) -> bool:
    return isinstance(value, ModuleType) and "_public_names" not in vars(value)


def public_modules(root: str) -> list[ModuleType]:
    """The public modules of the package ``root`` that have been imported, but for those of ``compatible``, which repeat names."""
    everything = [(n, m) for n, m in list(sys.modules.items()) if not n.startswith(f"{root}.compatible.")]
    return [m for n, m in everything if n.partition(".")[0] == root and "_public_names" in vars(m)]


def place(module: ModuleType, name: str) -> tuple[str, str]:
    """The module that a name is imported from at its first use, and its name there. "" for none, and for the module itself."""
    path, _, attribute = vars(module).get("_on_demand", {}).get(name, "").partition(":")
    return path, attribute


def _identity(module: ModuleType, name: str) -> int | str:
    """The same for every name of one value. A name that was not used yet is not imported: its place stands for the value."""
    path, attribute = place(module, name)
    if name in vars(module) or not path:
        return id(vars(module).get(name, name))
    source = importlib.util.resolve_name(path, vars(module)["__package__"])
    if source not in sys.modules:
        return f"{source}:{attribute}"
    return id(getattr(sys.modules[source], attribute, None) if attribute else sys.modules[source])


def missing(module: str, name: str) -> NoReturn:
    """Raises the AttributeError for a name that a public module does not have."""
    if name.startswith("_"):
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    why = WITHOUT_EQUIVALENT.get(plain_spelling(name), "")
    if not why and (near := suggestions(module, name)):
        why = f"did you mean {', '.join(near)}?"
    raise AttributeError(f"module {module!r} has no attribute {name!r}" + (f"; {why}" if why else ""), name=name)


def suggestions(module: str, name: str) -> list[str]:
    """Expressions that begin with ``flow``, which the author of ``module.name`` may have meant."""
    root = module.partition(".")[0]
    prefix = "flow" + module.removeprefix(root) + "."
    spaces = public_modules(root)
    # its own module first, then shorter paths
    spaces.sort(key=lambda m: (m.__name__ != module, m.__name__.count("."), m.__name__))
    everywhere: dict[str, list[str]] = {}
    # flow.profiler has no Profile, and is not what is meant either
    values: set[int | str] = {id(m) for m in spaces if m.__name__ == module}
    for space in dict.fromkeys(spaces):
        for n in public_names(space):
            value = _identity(space, n)
            if value not in values or space.__name__ == module:  # each value under its first name only
                values.add(value)
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
    if name[0].isupper():  # optimizer.Adagrad is not pad_grad
        everywhere = {n: paths for n, paths in everywhere.items() if paths[0].rpartition(".")[2][0].isupper()}
    return [prefix + n for n in closest(name, own)] or [p for n in closest(name, everywhere) for p in everywhere[n]][:5]
