"""Tables of results: as text for the terminal, as Markdown for docs/benchmarks.md."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from .stats import Ratio, Spread

BEGIN, END = "<!-- results: begin (python -m benchmarks --write-docs) -->", "<!-- results: end -->"


@dataclass
class Section:
    """One case: a table, the bounds it was held against, raw numbers."""

    title: str
    note: str
    header: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    raw: dict[str, Any] = field(default_factory=dict)
    page: str = "benchmarks"  # of the docs
    quiet: str = ""  # how busy others kept the machine


@dataclass(frozen=True)
class Check:
    """A ratio, and the bound that it should keep (None: for information)."""

    text: str
    ratio: Ratio
    bound: float | None = None
    at_least: bool = True

    @property
    def holds(self) -> bool | None:
        if self.bound is None:
            return None
        return self.ratio.at_least(self.bound) if self.at_least else self.ratio.at_most(self.bound)

    def cells(self) -> list[str]:
        r = self.ratio
        bound = "" if self.bound is None else f"{'≥' if self.at_least else '≤'} {self.bound:g}"
        verdict = {None: "", True: "holds", False: "missed"}[self.holds]
        return [self.text, f"{r.median:.3g}", f"{r.low:.3g} .. {r.high:.3g}", bound, verdict]


CHECK_HEADER = ["ratio, round by round", "median", "95 % interval", "bound", ""]


def milliseconds(spread: Spread) -> list[str]:
    """Median, quartiles and minimum, in cells."""
    s = spread.scaled(1e3)
    digits = 3 if s.median < 10 else 1
    return [f"{s.median:.{digits}f}", f"{s.low:.{digits}f} .. {s.high:.{digits}f}", f"{s.least:.{digits}f}"]


def megabytes(size: float) -> str:
    return f"{size / 1e6:.0f}"


def machine() -> list[str]:
    """The machine and the versions, on which the numbers depend."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    hardware = f"{cores} CPU cores ({platform.machine()}{_vectors()}), {_memory()}{platform.system()}"
    versions = []
    for name in ("jax", "jaxlib", "numpy", "torch"):
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            versions.append(f"no {name}")
    return [hardware, ", ".join([f"Python {platform.python_version()}", *versions])]


def _vectors() -> str:
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    return " with AVX-512" if " avx512f" in flags else " with AVX2" if " avx2" in flags else ""


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB, "
    except (ValueError, OSError):
        return ""


def as_text(section: Section) -> str:
    parts = [f"\n{section.title}\n{'=' * len(section.title)}", _note(section), _columns([section.header, *section.rows])]
    if section.checks:
        parts.append(_columns([CHECK_HEADER, *(c.cells() for c in section.checks)]))
    parts += [f"did not run: {_failure(label, why)}" for label, why in section.failures.items()]
    return "\n\n".join(p for p in parts if p)


def _note(section: Section) -> str:
    return f"{section.note} {section.quiet}".strip()


def _failure(label: str, why: str) -> str:
    """The last line says most; all of it is in the raw numbers (--json)."""
    return f"{label} ({why.splitlines()[-1].strip()})"


def as_markdown(section: Section) -> str:
    parts = [f"### {section.title}", _note(section), _markdown(section.header, section.rows)]
    if section.checks:
        parts.append(_markdown(CHECK_HEADER, [c.cells() for c in section.checks]))
    parts += [f"Did not run: {_failure(label, why)}" for label, why in section.failures.items()]
    return "\n\n".join(p for p in parts if p)


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, ["---"] * len(header), *rows])


def write_docs(path: Path, sections: Sequence[Section], mode: str) -> None:
    """Puts the tables of a run between the two marks of the page."""
    intro = f"From a {mode} run on {'; '.join(machine())}."
    write_between(path, (BEGIN, END), "\n" + "\n\n".join([intro, *map(as_markdown, sections)]) + "\n")


def write_between(path: Path, marks: tuple[str, str], body: str) -> None:
    """Replaces the text between two lines of a page; ends the program where it lacks them."""
    begin, end = marks
    before, found, rest = path.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        sys.exit(f"{path} lacks the lines {begin!r} and {end!r}")
    path.write_text(f"{before}{begin}\n{body}\n{end}{after}", encoding="utf-8")
