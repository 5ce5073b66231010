"""Windows of JPEG images, decoded by the native part without what is beside and below them.

It uses the libjpeg-turbo that comes with Pillow's wheels. OpenCV, whose pixels it gives, has another copy of it inside, but no
call for a part of an image.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import threading
from functools import cache
from typing import Any

import numpy as np

from .._base import native
from .crops import Window

_log = logging.getLogger("oneflow")
_LOADING = threading.Lock()


def decoder() -> Any:
    """The native part's decoder; None where it, or Pillow's libjpeg-turbo, is missing."""
    with _LOADING:  # several threads may decode their first images
        return _loaded()


@cache
def _loaded() -> Any:
    try:
        module = importlib.import_module("oneflow_native")
        if module.PROTOCOL != native.PROTOCOL:
            raise ImportError("the native part is of another version")
        return module.JpegWindows(_library())
    except Exception as error:  # whatever a broken part does, images are decoded without it
        _log.debug("oneflow: JPEG images are decoded as a whole before they are cropped: %s", error)
        return None


def _library() -> str:
    from pathlib import Path  # it takes time to import

    found = importlib.util.find_spec("PIL")
    for place in (found.submodule_search_locations or []) if found is not None else []:
        for path in sorted((Path(place).parent / "pillow.libs").glob("libjpeg-*.so.62*")):
            return str(path)
    raise OSError("Pillow has no libjpeg-turbo of its own here")


def decoded(data: np.ndarray, height: int, width: int, window: Window, factor: int = 1) -> np.ndarray | None:
    """A window of a JPEG, uint8 (h, w, 3), BGR; None where OpenCV has to decode the whole image.

    Args:
      data: the file's bytes, uint8 and contiguous.
      height, width: as its header says.
      window: within them; where the image is decoded at a fraction of its size, within the sides of that.
      factor: 1, or 2, 4 or 8: the sides are that many times shorter, rounded up.
    """
    found = decoder()
    out = np.empty((window.height, window.width + found.MARGIN, 3), np.uint8)
    at = found.decode(data.ctypes.data, data.size, (height, width), factor, tuple(window), out.ctypes.data)
    return out[:, at : at + window.width] if at >= 0 else None
