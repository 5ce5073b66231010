"""The documentation as a site: it builds without a warning, and its internal links lead somewhere."""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "build_docs.py"
build_docs = runpy.run_path(str(SCRIPT))


@pytest.mark.thorough  # .ci/run has a stage for it
@pytest.mark.timeout(600)
@pytest.mark.skipif(not all(map(importlib.util.find_spec, ("zensical", "jupytext"))), reason="the extra [docs] is not installed")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0 and "; 0 broken links" in done.stdout, done.stdout + done.stderr
    page = (tmp_path / "site" / "api" / "flow.math.html").read_text(encoding="utf-8")
    assert 'id="oneflow.math.relu"' in page or 'id="oneflow.math.abs"' in page  # made from docstrings


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<a href="b.html#here">b</a> <a href="b.html#gone">b</a> <img src="no.png">')
    (tmp_path / "b.html").write_text('<h1 id="here"></h1> <a href="c.html">c</a> <a href="https://example.com/x">x</a>')
    assert build_docs["broken_links"](tmp_path) == ["a.html: b.html#gone", "a.html: no.png", "b.html: c.html"]


def test_links_to_files_of_the_repository_become_links_to_pages() -> None:
    text = "[a](../examples/train_lenet.py) [b](../CONTRIBUTING.md#rules) [c](guide.md) [d](https://a.b/c) [e](../examples)"
    changed = build_docs["on_the_site"](text, ROOT / "docs" / "index.md")
    assert re.findall(r"\(([^)]*)\)", changed) == [
        "source/examples/train_lenet.md", "contributing.md#rules", "guide.md", "https://a.b/c", "examples.md",
    ]  # fmt: skip


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "zensical.toml").read_text(encoding="utf-8")
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    unlisted = [page for page in sorted(pages) if f'"{page}"' not in navigation]
    assert not unlisted, "list these pages in the navigation of zensical.toml"


def test_versions_stand_side_by_side_and_the_newest_is_found(tmp_path: Path) -> None:
    site, versions = tmp_path / "site", tmp_path / "versions"
    site.mkdir()
    for version, text in (("0.9", "first"), ("0.10", "second"), ("dev", "third"), ("0.9", "mended")):
        (site / "index.html").write_text(text)
        there = build_docs["publish"](site, versions, version)
    assert there == ["0.10", "0.9", "dev"]
    assert [(versions / name / "index.html").read_text() for name in there] == ["second", "mended", "third"]
    listed = json.loads((versions / "versions.json").read_text())
    assert [(entry["version"], entry["aliases"]) for entry in listed] == [("0.10", ["latest"]), ("0.9", []), ("dev", [])]
    assert "url=0.10/index.html" in (versions / "index.html").read_text()


def test_every_page_says_what_the_reader_will_have() -> None:
    for page in sorted((ROOT / "docs").glob("*.md")):
        beginning = " ".join(page.read_text(encoding="utf-8").split("\n\n")[1:3])
        assert "At the end of this page" in beginning, page.name


def test_pages_that_compare_have_columns() -> None:
    for name, pairs in (("from-pytorch.md", 3), ("from-keras.md", 2), ("from-jax.md", 2), ("tutorial-results.md", 2)):
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        changed = build_docs["in_columns"](text)
        assert changed.count('<div class="columns" markdown>') == pairs
        assert changed.count("```python") == text.count("```python")
    assert build_docs["in_columns"]("plain") == "plain"


def test_notebooks_can_be_downloaded_from_their_pages() -> None:
    page = ROOT / "docs" / "notebooks" / "your_data.md"
    changed = build_docs["on_the_site"]("[a](../../notebooks/your_data.py) [b](../guide.md)", page)
    assert changed == "[a](your_data.ipynb) [b](../guide.md)"
