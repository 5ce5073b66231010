"""The list of public names: docs/coverage.md is current, and what it calls implemented can be reached."""

from __future__ import annotations

import inspect
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import oneflow as flow

SCRIPT = runpy.run_path(str(Path(__file__).parent.parent / "scripts" / "coverage.py"))
ENTRIES = SCRIPT["entries"]()


def test_the_page_is_up_to_date() -> None:
    assert SCRIPT["PAGE"].read_text(encoding="utf-8") == SCRIPT["page"](), "run: python scripts/coverage.py --write"


def test_the_api_pages_are_up_to_date() -> None:
    script = runpy.run_path(str(Path(__file__).parent.parent / "scripts" / "write_api.py"))
    written = {page.name: page.read_text(encoding="utf-8") for page in script["PAGES"].glob("*.md")}
    made = script["pages"]()
    assert written.keys() == made.keys(), "run: python scripts/write_api.py"
    different = [name for name in made if made[name] != written[name]]
    assert not different, f"run: python scripts/write_api.py; {different} differ"


@pytest.mark.parametrize("script", ["coverage", "write_api", "write_settings", "write_sizes"])
def test_scripts_look_at_their_own_checkout(script: str, tmp_path: Path) -> None:
    """Also where nothing, or another version, is installed."""
    path = Path(__file__).parent.parent / "scripts" / f"{script}.py"
    code = f"import runpy; runpy.run_path({str(path)!r}); import oneflow; print(oneflow.__file__)"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.stdout.strip() == str(path.parent.parent / "oneflow" / "__init__.py"), run.stderr


def test_the_reference_is_whole() -> None:
    exported = [e for e in ENTRIES if e.section.startswith("flow") and not e.owner]
    assert len(exported) == 503  # what OneFlow 0.3.4 exports
    assert len({(e.section, e.path) for e in ENTRIES}) == len(ENTRIES)


def test_exceptions_are_names_of_the_reference() -> None:
    assert set(SCRIPT["exceptions"]()) <= {e.path for e in ENTRIES}


def test_signatures_that_differ_are_noticed() -> None:
    entry, differing = SCRIPT["Entry"], SCRIPT["differing"]
    matmul = entry("flow", "flow.matmul", "(a, b, transpose_a=False, transpose_b=False, name=None)")
    assert differing(matmul, flow.matmul) == ""
    assert differing(matmul, lambda a, transpose_a=False, transpose_b=False, name=None: 0) == "has no b"
    assert differing(matmul, lambda b, a, transpose_a=False, transpose_b=False, name=None: 0).startswith("takes (b, a")
    assert "transpose_a" in differing(matmul, lambda a, b, transpose_a=True, transpose_b=False, name=None: 0)


def test_modules_can_be_imported() -> None:
    found = {e.path: SCRIPT["found_at"](e) for e in ENTRIES if e.section == "modules"}
    assert all(inspect.ismodule(m) for m in found.values() if m is not SCRIPT["MISSING"])
    assert found["oneflow.typing"] is flow.typing


@pytest.mark.parametrize("module", [flow, flow.nn, flow.math, flow.layers, flow.optimizer, flow.random], ids=lambda m: m.__name__)
def test_modules_list_public_names_only(module: Any) -> None:
    listed = dir(module)
    assert {"annotations", "TYPE_CHECKING", "Any", "Callable", "np", "jax"}.isdisjoint(listed)
    assert all(not n.startswith("_") or n.startswith("__") for n in listed)
