"""``flow.deprecated.nn``: the path of v0.4 for the base class of modules that are called in jobs."""

from __future__ import annotations

from ..ops.module import Module as Module
