"""What ``flow.distribute`` has, under its path of old."""

from __future__ import annotations

from ...distribute import *  # noqa: F403 - by its __all__
