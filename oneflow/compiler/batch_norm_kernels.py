"""Batch normalization of training steps by the native part: one call, and its gradients another.

``batch_norm.py`` finds the ops of a job that it computes. Arrays have channels on their last axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from .._base import native as _native
from .._base.jax import lax
from ..graph.op import BatchNorm

Array = Any


@dataclass(frozen=True)
class Norm:
    """What a call computes: (x - mean) * gamma / sqrt(variance + epsilon) + beta + residual.

    Attributes:
      rows, channels: the size of x as a matrix.
      op: what the op that normalizes says of itself.
      x_dtype: of x and its gradient; y_dtype: of the result, the residual and their gradients. float32 or bfloat16.
      has_residual: whether one is added.
      is_rectified: whether a ReLU follows.
    """

    rows: int
    channels: int
    op: BatchNorm
    x_dtype: str
    y_dtype: str
    has_residual: bool = False
    is_rectified: bool = False

    @property
    def reads_result(self) -> bool:
        """Whether the gradients read where the result is positive; x tells where nothing was added."""
        return self.has_residual and self.is_rectified

    def _head(self) -> list[int]:
        return [
            _native.DTYPES[self.x_dtype], _native.DTYPES[self.y_dtype], self.rows, self.channels, int(self.op.scale),
            int(self.op.center), int(self.is_rectified),
        ]  # fmt: skip

    def spec(self) -> list[int]:
        """The vector that describes the call."""
        numbers = (self.op.epsilon, self.op.momentum, 1 - self.op.momentum)
        return [*self._head(), int(self.has_residual), *map(_native.float_bits, numbers)]

    def grad_spec(self, gradients: int, keeps: bool) -> list[int]:
        """The vector that describes the call for the gradients.

        Args:
          gradients: how many arrays the gradient to the result is the sum of, 1 or 2.
          keeps: whether the gradient to the residual is a result.
        """
        return [*self._head(), int(self.reads_result), int(keeps), gradients]

    def arrays(self, parameters: Sequence[Array]) -> list[Array]:
        """Gamma and beta, where there are such."""
        return list(parameters[: self.op.scale + self.op.center])


@lru_cache(maxsize=1024)
def unsupported_reason(norm: Norm) -> str | None:
    """Why the native part does not compute it; None where it does."""
    for dtype in (norm.x_dtype, norm.y_dtype):
        reason = _native.array_refusal(dtype, (norm.rows, norm.channels))
        if reason is not None:
            return reason
    return _native.kernel_refusal("batch_norm", norm.spec())


def describe(norm: Norm) -> str:
    """The kernel that computes it."""
    return f"batch normalization in one call, {_native.part().library.describe('batch_norm', norm.spec())}"


def forward(norm: Norm, x: Array, vectors: Sequence[Array], residual: Array | None) -> tuple[Array, ...]:
    """The result, both new moving statistics, and what the gradients read: (2, channels) float32.

    ``vectors``: gamma, beta, where there are such, and the moving mean and variance.
    """
    vector = ((norm.channels,), np.float32)
    results = [(x.shape, np.dtype(norm.y_dtype)), vector, vector, ((2, norm.channels), np.float32)]
    added = () if residual is None else (residual,)
    return _native.call_several("batch_norm", norm.spec(), results, x, *vectors, *added)


@dataclass(frozen=True)
class Gradients:
    """The gradients to x, to the residual (None without one), to gamma and to beta."""

    x: Array
    residual: Array | None
    gamma: Array
    beta: Array


def backward(
    norm: Norm, x: Array, vectors: Sequence[Array], statistics: Array, y: Array, cotangents: Sequence[Array]
) -> Gradients:
    """The gradients, where those to the result ``y`` are one or two arrays that are added."""
    keeps = norm.has_residual and (norm.is_rectified or len(cotangents) > 1)
    results = [(x.shape, x.dtype), *([(y.shape, y.dtype)] if keeps else []), ((2, norm.channels), np.float32)]
    seen = (y,) if norm.reads_result else ()
    operands = (x, *norm.arrays(vectors), statistics, *seen, *cotangents)
    dx, *kept, sums = _native.call_several("batch_norm_grad", norm.grad_spec(len(cotangents), keeps), results, *operands)
    residual = kept[0] if kept else cotangents[0] if norm.has_residual else None
    gamma, beta = (lax.reshape(lax.slice_in_dim(sums, i, i + 1), (norm.channels,)) for i in range(2))
    return Gradients(dx, residual, gamma, beta)
