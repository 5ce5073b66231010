"""The names of ``flow.distribute`` under their old path."""

from __future__ import annotations

from ...distribute import *  # noqa: F403 - by its __all__
