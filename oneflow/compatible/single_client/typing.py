"""``typing`` of 0.6: ``oneflow.typing``. The file is there for type checkers, which look for the source of a stub."""

from __future__ import annotations

from .._imports import sharing as _sharing

__getattr__, __dir__, _public_names = _sharing(__name__)
