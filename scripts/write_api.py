"""Writes docs/api/ from the docstrings: a page a namespace, with examples that run. A test checks that it is current."""

from __future__ import annotations

import enum
import inspect
import re
import sys
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parent
sys.path[:0] = [str(SCRIPTS), str(SCRIPTS.parent)]  # this checkout, whether or not it is installed
from docstring_sections import entries, sections  # noqa: E402

import examples  # noqa: E402
import oneflow as flow  # noqa: E402

PAGES = Path(__file__).resolve().parent.parent / "docs" / "api"


def signature(path: str, value: Any) -> str:
    """The call, with defaults and without annotations."""
    if isinstance(value, enum.EnumMeta):  # Python's versions tell different ones
        return "\n".join(f"{path}.{name}" for name in value.__members__)
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return path
    plain = [p.replace(annotation=p.empty) for p in parameters]
    text = str(inspect.Signature(plain))
    text = re.sub(r"\boneflow\.(?=\w)", "flow.", text)
    text = re.sub(r"=(broadcast|auto|split)\(", r"=flow.distribute.\1(", text)
    return path + re.sub(r"<[^<>]*>", "...", text)


def entry(path: str, value: Any, also: list[str]) -> list[str]:
    """The text about one function or class."""
    rows = [f"## `{path.rpartition('.')[2]}`", "", "```python", signature(path, value), "```", ""]
    if also:
        rows += [f"Also `{'`, `'.join(also)}`.", ""]
    for title, lines in sections(inspect.getdoc(value) or ""):
        if title == "Example":
            continue
        if title in ("Args", "Attributes", "Raises", "Returns") and any(re.match(r"^  [\w*, `]+: ", line) for line in lines):
            rows += [f"**{title}**", "", *entries(lines), ""]
        elif title:
            rows += [f"**{title}** " + " ".join(line.strip() for line in lines).strip(), ""]
        else:
            rows += ["\n".join(lines).strip(), ""]
    if inspect.isclass(value):
        methods = [
            (n, m) for n, m in vars(value).items() if not n.startswith("_") and inspect.isfunction(m) and inspect.getdoc(m)
        ]
        if methods:
            lines = [f"- `{signature(n, m).replace('(self, ', '(').replace('(self)', '()')}`: {_first(m)}" for n, m in methods]
            rows += ["**Methods**", "", *lines, ""]
    shown = examples.example(path, value)
    if shown is not None:
        try:
            with examples.prepared(shown):
                code = examples.program(shown)
                results = examples.traced(shown).results if examples.in_a_job(shown) else []
            if results:
                notes = [
                    f"{name}: {dtype} {shape}" if len(results) > 1 else f"{dtype} {shape}" for name, shape, dtype, _, _ in results
                ]
                code += f"\n# gives {', '.join(notes)}"
        except flow.errors.OneFlowError:  # tests/ops/test_examples.py says which and why
            code = shown.code
        rows += ["```python", code, "```", ""]
    return rows


def _first(value: Any) -> str:
    return " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())


def aliases() -> dict[int, list[str]]:
    """Every name of each object."""
    found: dict[int, list[str]] = {}
    for namespace in examples.NAMESPACES:
        module = examples._reach(namespace)
        for name in dir(module) if module is not None else ():
            found.setdefault(id(getattr(module, name)), []).append(f"{namespace}.{name}")
    return found


def pages() -> dict[str, str]:
    """File name -> text."""
    spaces: dict[str, list[str]] = {}
    names, everything = aliases(), examples.public()
    for path, value in everything.items():
        space = path.rpartition(".")[0]
        also = [n for n in names.get(id(value), []) if n != path and not n.startswith("flow.typing.")]
        spaces.setdefault(space, []).extend(entry(path, value, also))
    made = {}
    for space, rows in spaces.items():
        first = (
            _first(examples._reach(space))
            if space != "flow"
            else "The top level; the same names may be in other namespaces, too."
        )
        made[f"{space}.md"] = "\n".join([f"# {space}", "", first, "", *rows]).rstrip() + "\n"
    count = {space: sum(row.startswith("## ") for row in rows) for space, rows in spaces.items()}
    made["index.md"] = "\n".join([
        "# The API, name by name",
        "",
        "Written by `python scripts/write_api.py` from the docstrings. The examples run: `import oneflow as flow`,",
        "`import oneflow.typing as tp` and `import numpy as np` are understood, and what a comment says is what comes out.",
        "",
        *(f"- [{space}]({space}.md): {n} names" for space, n in sorted(count.items())),
    ]) + "\n"  # fmt: skip
    return made


def write() -> None:
    """Writes the pages, and removes those that nothing is on any more."""
    made = pages()
    PAGES.mkdir(parents=True, exist_ok=True)
    for old in PAGES.glob("*.md"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (PAGES / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
