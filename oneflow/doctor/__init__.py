"""``python -m oneflow.doctor``: what this installation found on this machine, a short test of its speed, and what to do."""

from .checks import Finding as Finding
from .checks import examine as examine
from .selftest import measure as measure

__all__ = ["Finding", "examine", "measure"]
