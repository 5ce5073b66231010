"""Packages that only some features need: imported when first used, and named with their extra where they are missing."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..errors import MissingExtraError

_EXTRAS = {
    "cv2": ("OpenCV", "data"),
    "google.protobuf": ("protobuf", "data"),
    "tensorboardX": ("tensorboardX", "tensorboard"),
    "onnx": ("onnx", "onnx"),
    "flatbuffers": ("flatbuffers", "export"),
    "safetensors": ("safetensors", "export"),
    "uvicorn": ("uvicorn", "serve"),
    "httptools": ("httptools", "serve"),
    "prometheus_client": ("prometheus-client", "serve"),
    "argcomplete": ("argcomplete", "completion"),
}
# packages that no extra brings: who uses such a service has it installed
_PACKAGES = ("wandb", "mlflow", "trackio", "pandas", "matplotlib", "torch")


def need(module: str, what: str) -> ModuleType:
    """Imports a module. Raises MissingExtraError where its package is not installed; ``what`` is what needs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        root = next(name for name in (*_EXTRAS, *_PACKAGES) if module == name or module.startswith(f"{name}."))
        package, extra = _EXTRAS.get(root, (root, ""))
        command = f"pip install 'oneflow-jax[{extra}]'" if extra else f"pip install {package}"
        raise MissingExtraError(
            f"{what} needs {package}, which cannot be imported ({error})\n  try        {command}", name=root
        ) from error


class _Lazy:
    """A module that is imported at its first use."""

    def __init__(self, name: str, what: str):
        self.__dict__.update(_name=name, _what=what)

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(need(self._name, self._what), attribute)
        self.__dict__[attribute] = value
        return value


if TYPE_CHECKING:
    cv2: Any
else:
    cv2 = _Lazy("cv2", "reading and changing images")
