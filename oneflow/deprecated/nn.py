"""``flow.deprecated.nn``: where v0.4 keeps the base class of modules that are called in jobs."""

from __future__ import annotations

from ..ops.module import Module as Module
