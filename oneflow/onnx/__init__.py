"""``flow.onnx``: jobs to ONNX models, and ONNX models into jobs."""

from ._api import export
from ._load import OnnxModel, load

__all__ = ["OnnxModel", "export", "load"]


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
