"""Names in the reference / implemented / tested. ``--write`` puts the output into docs/coverage.md; a test checks that page.

tests/reference/names.txt holds the public names and signatures of OneFlow 0.3.4 and what came and went around it:
``[section]``, then one name per line with its parameters, and below a class, indented, its members.
tests/reference/exceptions.txt says of which names nothing can be expected here, and why.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout, whether or not it is installed
PAGE = ROOT / "docs" / "coverage.md"
NAMES = ROOT / "tests" / "reference" / "names.txt"
EXCEPTIONS = ROOT / "tests" / "reference" / "exceptions.txt"
MISSING = object()
PROGRAM = """\
From a program: the ops of OneFlow's registry that `flow.user_op_builder` builds, and a name that is not there.

```python
import oneflow as flow

print("conv2d" in flow.user_op_names(), "no_such_op" in flow.user_op_names())
try:
    flow.nn.conv2D
except AttributeError as error:
    print(error)
```

```output
True False
module 'oneflow.nn' has no attribute 'conv2D'; did you mean flow.nn.conv2d...?
```
"""
ROOTS = {"flow": "oneflow", "sc": "oneflow.compatible.single_client"}
OBJECTS = {  # what the sections are about that list members of objects
    "Blob": "oneflow.graph.node:Blob",
    "variable": "oneflow.checkpoint.api:VariableHandle",
    "checkpoint variable": "oneflow.checkpoint.format:FileValue",
    "future": "oneflow.runtime.result:Result",
    "local blob": "oneflow._signature.local:LocalTensor",
    "local blob list": "oneflow._signature.local:LocalTensorList",
}


@dataclass
class Entry:
    """A line of the reference: ``path`` is the name in full, ``owner`` the class a member belongs to."""

    section: str
    path: str
    signature: str
    owner: str = ""


def entries() -> list[Entry]:
    """The reference, line by line."""
    found, section, owner = [], "", ""
    for line in NAMES.read_text(encoding="utf-8").splitlines():
        text = line.partition("  # ")[0].rstrip()
        if text.startswith("["):
            section, owner = text[1:-1], OBJECTS.get(text[1:-1], "")
        elif text:
            name, bracket, rest = text.strip().partition("(")
            inner = line.startswith("  ") or section in OBJECTS
            if not inner:
                owner = name if "# class" in line else ""
            path = f"{section} .{name}" if section in OBJECTS else f"{owner}.{name}" if inner else name
            found.append(Entry(section, path, bracket + rest, owner if inner else ""))
    return found


def exceptions() -> dict[str, str]:
    """Name -> why it cannot exist here."""
    lines = EXCEPTIONS.read_text(encoding="utf-8").splitlines()
    return dict(tuple(line.split(": ", 1)) for line in lines if line and not line.startswith("#"))  # type: ignore[misc]


def resolve(path: str) -> Any:
    """The object at a dotted path below ``flow``, or MISSING."""
    root, *parts = path.split(".")
    found: Any = importlib.import_module(ROOTS.get(root, "oneflow"))
    for part in parts:
        try:
            found = inspect.getattr_static(found, part) if inspect.isclass(found) else getattr(found, part)
        except AttributeError:
            return MISSING
    return found


def found_at(entry: Entry) -> Any:
    """The library's counterpart of a line of the reference, or MISSING."""
    name = entry.path.rpartition(".")[2]
    if entry.section in OBJECTS:
        module, _, attribute = entry.owner.partition(":")
        owner = getattr(importlib.import_module(module), attribute, None)
        known = {*dir(owner), *getattr(owner, "__slots__", ()), *getattr(owner, "__annotations__", ())}
        return inspect.getattr_static(owner, name, entry) if name in known else MISSING
    if entry.section == "modules":
        try:
            return importlib.import_module(entry.path)
        except ImportError:
            return MISSING
    if entry.section == "FunctionConfig":
        config = importlib.import_module("oneflow").FunctionConfig()
        try:
            for part in entry.path.split(".")[1:]:
                config = getattr(config, part)
        except AttributeError:
            return MISSING
        return config
    if entry.section == "user ops":
        registered = getattr(importlib.import_module("oneflow"), "user_op_names", None)
        return entry if registered is not None and entry.path in registered() else MISSING
    if entry.owner and inspect.isclass(owner := resolve(entry.owner)):
        fields = {n for base in owner.__mro__ for n in getattr(base, "__annotations__", ())}
        return inspect.getattr_static(owner, name, entry if name in fields else MISSING)
    return resolve(entry.path)


def differing(entry: Entry, found: Any) -> str:
    """How the signature differs from the reference, or nothing. Parameters that we add behind or by keyword do not count."""
    if not entry.signature or entry.section in OBJECTS or not callable(found) or "__getattr__" in entry.path:
        return ""
    try:
        ours = list(inspect.signature(getattr(found, "__func__", found)).parameters.values())
        theirs = list(_parsed(entry.signature))
    except (TypeError, ValueError):
        return ""
    if ours and entry.owner and ours[0].name == "self":
        ours = ours[1:]
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = {p.name: p for p in ours if p.kind not in kinds}
    wanted = [p for p in theirs if p.kind not in kinds]
    order = [n for n in named if n in {p.name for p in wanted}]
    if missing := [p.name for p in wanted if p.name not in named]:
        return f"has no {', '.join(missing)}"
    if order != [p.name for p in wanted] or list(named)[: min(1, len(order))] != order[:1]:
        return f"takes ({', '.join(named)})"
    for p in wanted:
        mine = named[p.name].default
        mine = list(mine) if isinstance(mine, tuple) and isinstance(p.default, list) else mine
        if p.default is p.empty:
            continue  # it may be left out here: another name of the same argument replaces it
        if repr(p.default) != repr(mine) and p.default != mine and not (p.default == 0 and not mine and mine is not None):
            return f"has {p.name}={mine!r} instead of {p.default!r}"
    return ""


def _parsed(signature: str) -> Iterator[inspect.Parameter]:
    flow = importlib.import_module("oneflow")
    names = {"flow": flow, "ModelVersionPolicy": flow.serving.ModelVersionPolicy}
    signature = signature.replace("GetVariablesForCurrentJob", "None")
    function: Any = eval(f"lambda {signature[1:-1]}: None", names)  # noqa: S307 - our own file
    yield from inspect.signature(function).parameters.values()


def has_no_effect(found: Any) -> bool:
    """Whether the library says so itself: in the table of settings, or in the first sentence of a docstring."""
    option = getattr(found, "option", None)
    if option is not None:
        return str(option.effect).startswith("no effect")
    first = (inspect.getdoc(found) or "").partition("\n")[0] if callable(found) else ""
    return "no effect" in first.lower()


# --- what the tests use


def used() -> tuple[set[int], set[str]]:
    """The objects that the tests name, by id, and the names of attributes in them."""
    objects: set[int] = set()
    attributes: set[str] = set()
    for file in sorted([*(ROOT / "tests").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        known: dict[str, Any] = {}
        for node in ast.walk(tree):
            _import(node, known)
        for node in ast.walk(tree):  # m = flow.math
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                value = _value(node.value, known)
                if inspect.ismodule(value) or inspect.isclass(value):
                    known[node.targets[0].id] = value
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                attributes.add(node.attr)
                objects.add(id(_value(node, known)))
            elif isinstance(node, ast.alias) or isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                objects.add(id(known.get(node.asname or node.name if isinstance(node, ast.alias) else node.id, MISSING)))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
                owner = _value(node.args[0], known)
                if inspect.ismodule(owner):
                    objects |= {id(v) for n, v in vars(owner).items() if _mentioned(tree, n)}
    return objects - {id(MISSING), id(None), id(True), id(False)}, attributes


def _import(node: ast.AST, known: dict[str, Any]) -> None:
    if isinstance(node, ast.Import):
        for name in node.names:
            if name.name.split(".")[0] == "oneflow":
                known[name.asname or "oneflow"] = _module(name.name if name.asname else "oneflow")
    elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "oneflow":
        module = _module(node.module or "")
        for name in node.names:
            known[name.asname or name.name] = getattr(module, name.name, None) or _module(f"{node.module}.{name.name}")


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return MISSING


def _value(node: ast.AST, known: dict[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return known.get(node.id, MISSING)
    if isinstance(node, ast.Attribute):
        return getattr(_value(node.value, known), node.attr, MISSING)
    return MISSING


def _mentioned(tree: ast.AST, name: str) -> bool:
    """Whether a string of the file is the name, holds it as a word, or is a pattern of it (f"conv{n}d")."""
    if tree not in _WORDS:
        strings = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        patterns = [
            "".join(re.escape(v.value) if isinstance(v, ast.Constant) else r"\w+" for v in n.values)
            for n in ast.walk(tree)
            if isinstance(n, ast.JoinedStr)
        ]
        _WORDS[tree] = (
            {w for s in strings for w in re.findall(r"\w+", s)},
            [p for p in patterns if re.fullmatch(r"[\w+\\]+", p)],
        )
    words, patterns = _WORDS[tree]
    return name in words or any(re.fullmatch(p, name) for p in patterns)


_WORDS: dict[ast.AST, tuple[set[str], list[str]]] = {}


# --- the output


@dataclass
class Line:
    """One entry, judged."""

    entry: Entry
    state: str  # implemented, no effect, exception, missing
    tested: bool
    differs: str


def judged() -> list[Line]:
    """Every entry of the reference."""
    objects, attributes = used()
    excused = exceptions()
    lines = []
    for entry in entries():
        found = found_at(entry)
        name = entry.path.rpartition(".")[2]
        if entry.path in excused:
            state = "exception"
        elif found is MISSING:
            state = "missing"
        else:
            state = "no effect" if has_no_effect(found) else "implemented"
        if entry.owner and name == "__init__":
            tested = id(resolve(entry.owner)) in objects or name in attributes
        elif hasattr(found, "option"):
            tested = True  # tests/config/ runs every row of the tables of settings
        elif entry.owner or entry.section in OBJECTS or entry.section == "FunctionConfig":
            tested = name in attributes or name.startswith("__")
        elif entry.section in ("modules", "user ops"):
            tested = state in (
                "implemented",
                "no effect",
            )  # tests/test_coverage.py imports every module; the registry has a table of its own
        else:
            tested = id(found) in objects or (not callable(found) and name in attributes)
        lines.append(Line(entry, state, tested and state not in ("missing", "exception"), differing(entry, found)))
    return lines


def page() -> str:
    """The output, as Markdown."""
    lines = judged()
    rows: list[tuple[str, list[Line]]] = []
    for section in dict.fromkeys(line.entry.section for line in lines):
        here = [line for line in lines if line.entry.section == section]
        rows.append((section, [line for line in here if not line.entry.owner or section in OBJECTS]))
    members = [line for line in lines if line.entry.owner and line.entry.section not in OBJECTS]
    rows.append(("members of classes", members))
    names = [line for _, some in rows[:-1] for line in some]
    exported = [line for line in names if line.entry.section.startswith("flow")]

    def counts(some: list[Line]) -> str:
        by: Callable[[str], int] = lambda state: sum(line.state == state for line in some)  # noqa: E731
        done = by("implemented") + by("no effect")
        cells = (len(some), done, sum(line.tested for line in some), by("no effect"), by("exception"), by("missing"))
        return " | ".join(str(n) for n in cells)

    def listed(title: str, items: list[str]) -> list[str]:
        return ["", f"## {title} ({len(items)})", "", *(items or ["None."])]

    head = [
        "# Coverage",
        "",
        "At the end of this page you know how many of OneFlow's public names are here, and which are missing.",
        "",
        "Written by `python scripts/coverage.py --write`. The reference is `tests/reference/names.txt`: every public name of",
        "OneFlow 0.3.4, what 0.4.0 added to the lazy API, older names, settings, ops of the registry, and members of the objects",
        "that a program meets. *Implemented*: the name is there, those without effect by nature included. *Tested*: a test or an",
        "example uses it.",
        "",
        PROGRAM,
        "| | in the reference | implemented | tested | of these without effect | exceptions | missing |",
        "|---|---|---|---|---|---|---|",
    ]
    table = [f"| {section} | {counts(some)} |" for section, some in rows]
    beside = [line for line in exported if resolve("sc" + line.entry.path.removeprefix("flow")) is not MISSING]
    shared = [e for e in beside if resolve("sc" + e.entry.path.removeprefix("flow")) is resolve(e.entry.path)]
    head += [*table, f"| **exported by 0.3.4** | {counts(exported)} |", f"| **everything** | {counts(lines)} |"]
    head += [
        "",
        "The section *single_client of 0.6* has the names whose signature or meaning `oneflow.compatible.single_client` has for",
        "itself.",
        f"Of the {len(exported)} names of 0.3.4, {len(beside)} are there, too; {len(shared)} of them are the same objects.",
    ]
    excused = exceptions()
    missing = [f"- `{line.entry.path}`" for line in lines if line.state == "missing"]
    untested = [f"- `{line.entry.path}`" for line in lines if line.state in ("implemented", "no effect") and not line.tested]
    silent = [f"- `{line.entry.path}`" for line in lines if line.state == "no effect"]
    differs = [f"- `{line.entry.path}` {line.differs}" for line in lines if line.differs and line.state != "exception"]
    head += listed("Missing", missing)
    head += listed("Not tested", untested)
    head += listed("Other signature than in 0.3.4", differs)
    head += listed("Exceptions", [f"- `{name}`: {why}" for name, why in excused.items()])
    head += listed("Without effect by nature", silent)
    return "\n".join(head) + "\n"


if __name__ == "__main__":
    text = page()
    if "--write" in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    print(text, end="")
