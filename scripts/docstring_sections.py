"""The sections of a docstring, for the pages of docs/api and for those of the site."""

from __future__ import annotations

import re

_SECTION = re.compile(
    r"^(Args(?:, Returns, Raises| and errors)?|Attributes|Returns|Raises|Distribution|Variables|Source|Note|Example):(?: |$)"
)


def sections(doc: str) -> list[tuple[str, list[str]]]:
    """The docstring in parts: ("", the description), ("Args", its lines), ...; text behind an empty line ends a section."""
    parts: list[tuple[str, list[str]]] = [("", [])]
    before = ""
    for line in doc.splitlines():
        found = _SECTION.match(line)
        if found:
            parts.append((found[1], [line[found.end() :]] if line[found.end() :].strip() else []))
        elif parts[-1][0] and not before and line and not line[0].isspace():
            parts.append(("", [line]))
        else:
            parts[-1][1].append(line)
        before = line.strip()
    return parts


def entries(lines: list[str]) -> list[str]:
    """``name: text`` with its continuation lines, as a list; other text stays a paragraph."""
    made: list[str] = []
    for line in lines:
        found = re.match(r"^  ([\w*, `]+): (.*)", line)
        if found:
            made.append(f"- `{found[1].strip('`')}`: {found[2].strip()}")
        elif made and line.startswith("    "):
            made[-1] += " " + line.strip()
        elif line.strip():
            made.append(line.strip())
    return made


def markdown(doc: str) -> str:
    """The docstring as Markdown: titles in bold, lists of arguments, examples as code."""
    rows: list[str] = []
    for title, lines in sections(doc):
        if title == "Example":
            rows += ["**Example**", "", "```python", *map(_code, lines), "```", ""]
        elif title and any(re.match(r"^  [\w*, `]+: ", line) for line in lines):
            rows += [f"**{title}**", "", *map(_text, entries(lines)), ""]
        elif title:
            rows += [_text(f"**{title}** " + " ".join(line.strip() for line in lines).strip()), ""]
        else:
            rows += [_text("\n".join(lines).strip()), ""]
    return "\n".join(rows).strip()


def _text(text: str) -> str:
    """``index[i][j]`` outside of code is not a link."""
    return "``".join(part if i % 2 else part.replace("][", "]\\[") for i, part in enumerate(text.split("``")))


def _code(line: str) -> str:
    return re.sub(r"^\s*(>>>|\.\.\.) ?", "", line)
