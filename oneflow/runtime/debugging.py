"""The settings under which NaNs and infinities are looked for, which an executable is compiled for."""

from __future__ import annotations

import functools

from .._base import jax_versions
from ..config._settings import nonfinite as find_nonfinite

NAMES = "jax_debug_nans or jax_debug_infs"


@functools.cache
def flags() -> tuple[jax_versions.Flag, jax_versions.Flag]:
    """JAX's two settings."""
    return jax_versions.debug_flags()


def debugging() -> tuple[bool, bool, bool]:
    """Whether JAX looks for NaNs and for infinities in all results, and whether we do. A step may be run again, which needs the
    old state."""
    nans, infs = flags()
    return nans.value, infs.value, find_nonfinite.is_on


def nan_among_causes(error: BaseException | None) -> BaseException | None:
    """JAX's own error of a NaN among the causes of an error."""
    while error is not None and not isinstance(error, FloatingPointError):
        if type(error).__name__ == "InternalFloatingPointError":  # of functions that were compiled ahead; not public
            return error
        error = error.__cause__
    return error
