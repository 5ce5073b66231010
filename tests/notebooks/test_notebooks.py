"""The notebooks: short runs as plain scripts, whole ones by a kernel, and pages that show today's code."""

from __future__ import annotations

import importlib.util
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
write_notebooks = SimpleNamespace(**runpy.run_path(str(ROOT / "scripts" / "write_notebooks.py")))
SCRIPTS = write_notebooks.scripts()
SHORT = {
    "asynchronous_results": {"STEPS": 5, "WIDTH": 16},
    "export_and_serve": {"STEPS": 20, "REQUESTS": 20},
    "gpt_with_generation": {"STEPS": 5, "WIDTH": 16, "LAYERS": 1, "CHARACTERS": 5},
    "many_devices_and_plans": {"WIDTH": 16, "STEPS": 3},
    "mnist_in_five_minutes": {"STEPS": 8},
    "your_data": {"COUNT": 200, "EPOCHS": 1},
}
HAS_EXTRA = all(importlib.util.find_spec(name) for name in ("jupytext", "nbclient", "ipykernel", "matplotlib"))
needs_extra = pytest.mark.skipif(not HAS_EXTRA, reason="the extra [notebooks] is not installed")


def test_each_notebook_has_a_short_run_and_a_page() -> None:
    names = [script.stem for script in SCRIPTS]
    assert names == sorted(SHORT) and names == sorted(page.stem for page in write_notebooks.PAGES.glob("*.md"))


ALL = """
import runpy, sys
import oneflow as flow

for path in sys.argv[1:]:
    print("running", path, file=sys.stderr)
    flow.clear_default_session()
    runpy.run_path(path, run_name="__main__")
"""


@needs_extra
@pytest.mark.timeout(900)
def test_short_runs_as_scripts(tmp_path: Path) -> None:
    """All in one process, which saves five imports."""
    programs = []
    for script in SCRIPTS:
        programs.append(tmp_path / script.name)
        text = write_notebooks.with_parameters(script.read_text(encoding="utf-8"), SHORT[script.stem])
        programs[-1].write_text(text, encoding="utf-8")
    command = [sys.executable, "-W", "ignore:FigureCanvasAgg is non-interactive:UserWarning", "-c", ALL, *map(str, programs)]
    settings = {**os.environ, "MPLBACKEND": "Agg", "MPLCONFIGDIR": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=settings, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


@needs_extra
@pytest.mark.thorough
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_whole_runs_by_a_kernel(script: Path, tmp_path: Path) -> None:
    code = "import runpy, sys\nfrom pathlib import Path\n"
    code += f"made = runpy.run_path({str(ROOT / 'scripts' / 'write_notebooks.py')!r})\nscript = Path({str(script)!r})\n"
    code += "text, plots = made['page'](script, made['executed'](made['read'](script), Path.cwd()))\n"
    code += "assert text.count('```python') >= 5\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr[-4000:]


@needs_extra
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_pages_show_todays_notebooks(script: Path) -> None:
    page = (write_notebooks.PAGES / f"{script.stem}.md").read_text(encoding="utf-8")
    for cell in write_notebooks.read(script).cells:
        shown = cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```"
        assert shown in page, f"run: python scripts/write_notebooks.py {script.stem}"


def test_pages_hold_what_a_terminal_would_show() -> None:
    assert write_notebooks.terminal("a\n 10%\r 50%\r100%\nb\r\n\x1b[31mred\x1b[0m\n") == "a\n100%\nb\nred"
    assert write_notebooks.with_parameters("A = 1\nSTEPS = 600  # all\n", {"STEPS": 5}) == "A = 1\nSTEPS = 5  # all\n"
    with pytest.raises(ValueError, match="no parameter WIDTH"):
        write_notebooks.with_parameters("A = 1\n", {"WIDTH": 5})
