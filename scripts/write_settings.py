"""Writes docs/settings.md from the library's own tables of settings. A test checks that the page is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout, whether or not it is installed
from oneflow.config._function_options import FUNCTION_OPTIONS  # noqa: E402
from oneflow.config._options import table  # noqa: E402
from oneflow.config._settings import Resource  # noqa: E402

PAGE = ROOT / "docs" / "settings.md"


def page() -> str:
    """The page as it should be."""
    return "\n".join([
        "# Settings",
        "",
        "Written by `scripts/write_settings.py` from the tables in `oneflow/config/`.",
        "",
        "## `flow.config`",
        "",
        "For the session to come: set outside jobs and before the first call.",
        "",
        table(Resource.options),
        "",
        "## `flow.FunctionConfig`",
        "",
        "For one job: `flow.global_function(\"train\", function_config)`. The job keeps a copy.",
        "",
        table(FUNCTION_OPTIONS),
        "",
    ])  # fmt: skip


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
