"""``flow.export``: predict jobs as files that run without this library."""

from ._onnx import onnx
from ._stablehlo import ExportedFunction, load, stablehlo

__all__ = ["ExportedFunction", "load", "onnx", "stablehlo"]


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
