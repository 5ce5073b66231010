"""Writes the list of ops at the end of docs/sizes.md. A test checks that it is up to date."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout, whether or not it is installed
import oneflow.ops  # noqa: E402
from oneflow.ops._dynamic_rules import RULES, takes_dynamic_size  # noqa: E402
from oneflow.ops._emit import OPS  # noqa: E402

PAGE = ROOT / "docs" / "sizes.md"
MARK = "## The ops that take them"
MACHINERY = "oneflow.ops._dynamic_ops"  # ops that rules are made of


def page() -> str:
    """The page as it should be."""
    for module in pkgutil.iter_modules(oneflow.ops.__path__):
        importlib.import_module(f"oneflow.ops.{module.name}")
    taken = [op for op in OPS.values() if takes_dynamic_size(op) and op.define.__module__ != MACHINERY]
    single = [op.name for op in taken if op.name not in RULES and op.elementwise]
    rows = [op.name for op in taken if op.name not in RULES and not op.elementwise]
    prose, mark, rest = PAGE.read_text(encoding="utf-8").partition(MARK)
    intro = "\n\n".join(rest.split("\n\n")[:2]).rstrip()
    parts = [
        ("Element by element, on any axis", single),
        ("Sample by sample, where the size of axis 0 depends on data", rows),
        ("Each in its own way", [op.name for op in taken if op.name in RULES]),
    ]
    lists = "\n\n".join(
        textwrap.fill(f"**{title}.** " + ", ".join(f"`{name}`" for name in sorted(names)) + ".", 125, break_on_hyphens=False)
        for title, names in parts
    )
    return f"{prose}{mark}{intro}\n\n{lists}\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
