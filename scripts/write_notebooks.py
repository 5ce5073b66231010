"""Executes the notebooks and writes their pages: python scripts/write_notebooks.py [NAME ...]. Needs the extra [notebooks].

A notebook is a script in jupytext's percent format in notebooks/. It is executed by a real kernel, and what its cells printed,
returned and drew goes to docs/notebooks with its text and code. A test compares the code on the pages with the scripts.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
PAGES = ROOT / "docs" / "notebooks"
# Pages cannot hold widgets: progress bars are text, plots are SVG whose letters are letters.
SETUP = """
import sys, warnings, matplotlib
sys.modules["ipywidgets"] = None
warnings.filterwarnings("ignore", message="IProgress not found")
from matplotlib_inline.backend_inline import set_matplotlib_formats
set_matplotlib_formats("svg")
matplotlib.rcParams.update({"svg.fonttype": "none", "font.family": "sans-serif", "svg.hashsalt": "oneflow"})
import numpy, oneflow
"""


def scripts() -> list[Path]:
    return sorted(NOTEBOOKS.glob("*.py"))


def read(script: Path) -> Any:
    """The notebook of a script."""
    import jupytext

    return jupytext.read(script)


def with_parameters(text: str, values: dict[str, int]) -> str:
    """A script with other values in its cell of parameters."""
    for name, value in values.items():
        text, count = re.subn(rf"^{name} = \d+", f"{name} = {value}", text, flags=re.MULTILINE)
        if count != 1:
            raise ValueError(f"the notebook has no parameter {name}")
    return text


def executed(notebook: Any, directory: Path, setup: str = "") -> Any:
    """The notebook with its outputs; an error in a cell is an error. ``setup`` runs first, and is not part of the result."""
    import nbformat
    from nbclient import NotebookClient

    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    notebook = nbformat.from_dict(notebook)
    if setup:
        notebook.cells.insert(0, nbformat.v4.new_code_cell(setup))
    NotebookClient(
        notebook, timeout=1800, kernel_name="python3", coalesce_streams=True, resources={"metadata": {"path": str(directory)}}
    ).execute()
    if setup:
        del notebook.cells[0]
    return notebook


def page(script: Path, notebook: Any) -> tuple[str, dict[str, str]]:
    """The Markdown of an executed notebook, and its plots by file name."""
    source = f"[{script.relative_to(ROOT)}](../../{script.relative_to(ROOT).as_posix()})"
    parts, plots = [], {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            if len(parts) == 1:
                parts.append(f"The notebook is {source}; this page is what it showed on two cores of a busy server.")
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            data = output.get("data", {})
            if "image/svg+xml" in data:
                name = f"{script.stem}-{len(plots) + 1}.svg"
                plots[name] = plain_svg(data["image/svg+xml"])
                parts.append(f"![A plot: {alternative(cell.source)}]({name})")
            elif "text/html" in data:
                parts.append(f'<div class="output" markdown="0">{neutral(data["text/html"].strip())}</div>')
            elif text := terminal(output.get("text") or data.get("text/plain", "")):
                parts.append(f"```text\n{text}\n```")
    return "\n\n".join(parts) + "\n", plots


def alternative(source: str) -> str:
    """What a plot shows, for those who do not see it: the titles and labels that its cell sets."""
    words = re.findall(r'(?:label=|title\(|label\()"([^"]+)"', source)
    return ", ".join(words) or "images with their labels"


def terminal(text: str) -> str:
    """Text as a terminal would leave it: a carriage return goes back to the beginning of the line.

    Notices of slow compilations and the path of the data are left out: they speak of the machine.
    """
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text).split("\n")]
    kept = [line for line in lines if not line.startswith(("oneflow: ", "File mnist.npz already exist"))]
    bar = re.compile(r"(\w[\w /]*): +(\d+)%\|")  # of each bar, its end
    ends = {found[1]: i for i, line in enumerate(kept) if (found := bar.match(line))}
    kept = [line for i, line in enumerate(kept) if not (found := bar.match(line)) or (ends[found[1]] == i and found[2] == "100")]
    return neutral("\n".join(kept).strip("\n"))


def neutral(text: str) -> str:
    """Text without paths of this machine; files of cells are called "cell"."""
    text = re.sub(rf"{re.escape(tempfile.gettempdir())}/ipykernel_\d+/\d+\.py", "cell", text)
    return text.replace(f"{ROOT}/", "").replace(tempfile.gettempdir(), "/tmp")


def plain_svg(text: str) -> str:
    """An SVG on a white ground, without the time and the versions."""
    return re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="names of notebooks; all by default")
    options = parser.parse_args()
    PAGES.mkdir(parents=True, exist_ok=True)
    for script in scripts():
        if options.names and script.stem not in options.names:
            continue
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as directory:
            text, plots = page(script, executed(read(script), Path(directory), SETUP))
        for old in PAGES.glob(f"{script.stem}-*.svg"):
            old.unlink()
        for name, plot in plots.items():
            (PAGES / name).write_text(plot, encoding="utf-8")
        (PAGES / f"{script.stem}.md").write_text(text, encoding="utf-8")
        print(f"{script.stem}: {time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
