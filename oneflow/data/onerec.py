"""OneRec files: framed, checksummed flatbuffers; and what one holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def decode_onerec(
    payloads: Sequence[np.ndarray], key: str, dtype: np.dtype, shape: Sequence[int], *, is_dynamic: bool = False,
    reshape: Sequence[int] | None = None, batch_padding: Sequence[int] | None = None,
) -> np.ndarray:  # fmt: skip
    """(N,) + shape."""
    raise NotImplementedError
