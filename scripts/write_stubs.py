"""Writes the stubs of ``oneflow.compatible.single_client``, whose shared names type checkers cannot follow.

A test checks that they are up to date.
"""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout, whether or not it is installed
from oneflow.compatible import single_client  # noqa: E402

ALIAS = single_client.__name__
FOLDER = ROOT.joinpath(*ALIAS.split("."))
WHOLE = ("compatible", "core")  # oneflow's own, with all that is below them
HEAD = """# Written by scripts/write_stubs.py: the names of {real}, some of them as 0.6 has them.
# ruff: noqa
# fmt: off
"""


def stubs() -> dict[Path, str]:
    """The stubs as they should be: of the alias, and of each room in it that has no file to read."""
    made = {FOLDER / "__init__.pyi": _stub(single_client, "oneflow", FOLDER / "__init__.py")}
    for room in _rooms():
        package, file = FOLDER / room, FOLDER / f"{room}.py"
        source = package / "__init__.py" if package.is_dir() else file
        if not source.exists() or "__all__" not in source.read_text(encoding="utf-8"):  # else checkers read all of it there
            made[source.with_suffix(".pyi")] = _stub(getattr(single_client, room), f"oneflow.{room}", source)
    return made


def _rooms() -> list[str]:
    names = [name for name in single_client._public_names() if name not in WHOLE]
    return [name for name in names if isinstance(getattr(single_client, name), ModuleType)]


def _stub(module: Any, real: str, source: Path) -> str:
    twin = importlib.import_module(real)
    own = _own(source) if source.exists() else {}
    lines = [HEAD.format(real=real)]
    for name in module._public_names():
        value = getattr(module, name)
        if real == "oneflow" and isinstance(value, ModuleType) and name not in WHOLE:
            lines.append(f"from . import {name} as {name}")
        elif name in own:
            lines.append(own[name])
        else:
            assert getattr(twin, name) is value, f"{real}.{name}"
            lines.append(f"from {real} import {name} as {name}")
    return "\n".join(lines) + "\n"


def _own(source: Path) -> dict[str, str]:
    """The statements that define the names of a file of the alias."""
    parts = source.relative_to(ROOT).with_suffix("").parts
    package = parts[:-1]
    found: dict[str, str] = {}
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            above = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            path = f"{above}.{node.module or ''}".strip(".")
            for name in node.names:
                shown = name.asname or name.name
                hidden = f"from {path} import {name.name} as _{name.name}\n{shown} = _{name.name}"  # another name is not shown
                found[shown] = f"from {path} import {name.name} as {shown}" if shown == name.name else hidden
        elif isinstance(node, ast.FunctionDef):
            found[node.name] = f"{ast.unparse(ast.Module([_without_body(node)], []))}"
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = ast.unparse(node)
    return found


def _without_body(node: ast.FunctionDef) -> ast.FunctionDef:
    node.body = [ast.Expr(ast.Constant(...))]
    return node


if __name__ == "__main__":
    for path, text in stubs().items():
        path.write_text(text, encoding="utf-8")
