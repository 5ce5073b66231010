"""What a release consists of fits together: versions, the changelog, and what reports of problems ask for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import oneflow as flow

ROOT = Path(__file__).resolve().parent.parent


def project(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_one_version_everywhere() -> None:
    ours, native = project(ROOT), project(ROOT / "native")
    citation = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert citation is not None
    assert {ours["version"], native["version"], citation[1]} == {flow.__version__}
    assert ours["optional-dependencies"]["native"][0].startswith(f"oneflow-jax-native=={native['version']};")


def test_the_changelog_has_this_version() -> None:
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    released = [heading.split(" ")[0] for heading in headings if heading != "Unreleased"]
    assert released[0] == flow.__version__ and len(set(headings)) == len(headings)


def test_reports_of_problems_come_with_what_the_doctor_finds() -> None:
    templates = list((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.md"))
    assert templates and all("oneflow doctor" in template.read_text(encoding="utf-8") for template in templates)
