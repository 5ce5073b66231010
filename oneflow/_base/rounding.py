"""float32 to bfloat16 in traced programs."""

from __future__ import annotations

from typing import Any

import numpy as np

from .jax import jnp, lax


def to_bfloat16(x: Any) -> Any:
    """float32 rounded to the nearest bfloat16, halves to even, by integer arithmetic.

    XLA's own conversion takes up to twice as long on CPUs.
    """
    bits = lax.bitcast_convert_type(x, np.uint32)
    high = lax.shift_right_logical(bits, np.uint32(16))
    nearest = lax.shift_right_logical(bits + (np.uint32(0x7FFF) + (high & np.uint32(1))), np.uint32(16))
    kept = jnp.where(x != x, high | np.uint32(0x40), nearest)  # a NaN, whose bits might overflow
    return lax.bitcast_convert_type(kept.astype(np.uint16), jnp.bfloat16)


def rounded(x: Any) -> Any:
    """float32 with the values that bfloat16 has, of either."""
    return (to_bfloat16(x) if x.dtype == np.float32 else x).astype(np.float32)
