"""An extension of Griffe, which mkdocstrings reads the code with: docstrings become the Markdown of docstring_sections.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).resolve().parent))
from docstring_sections import markdown  # noqa: E402


class Sections(griffe.Extension):
    """Rewrites each docstring once it is read."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
