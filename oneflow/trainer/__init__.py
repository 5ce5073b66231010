"""``flow.trainer``: training over plain jobs."""

from .history import History as History
from .trainer import Trainer as Trainer

__all__ = ["History", "Trainer"]


def __dir__() -> list[str]:
    return sorted(["__doc__", "__file__", "__name__", "__path__", *__all__])
