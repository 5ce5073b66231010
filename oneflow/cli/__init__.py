"""The command ``oneflow`` (``python -m oneflow``). Each command is imported when it is asked for."""

from .main import main as main
