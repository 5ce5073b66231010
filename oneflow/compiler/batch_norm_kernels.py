"""Batch normalization of training steps by the native part: one call, and its gradients another.

``batch_norm.py`` finds the ops of a job that it computes. Arrays have channels on their last axis. Where several devices have the
rows, each of the two passes of both is a call, and what the first one finds on each device is sent to all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from .._base import native as _native
from .._base.jax import jax, lax
from ..graph.op import BatchNorm

Array = Any
_BOTH, _FIRST, _SECOND = range(3)  # the passes of a call


@dataclass(frozen=True, slots=True)
class Pieces:
    """Devices of a mesh, each of which has a piece of x, as long as all others along axis 0.

    Attributes:
      mesh: the devices.
      axes: those of the mesh that split x.
      program, name: of the step, and of the op that normalizes.
    """

    mesh: Any
    axes: tuple[str, ...]
    program: str
    name: str

    def gathered(self, mine: Array) -> Array:
        """What each device found, for all of them."""
        if self._is_one_process():
            return _native.exchange(mine, self.mesh.size, _native.call_number(self.program, f"statistics of {self.name}"))
        return lax.all_gather(mine, self.axes)

    def summed(self, mine: Array) -> Array:
        """The sum of what each device found, for all of them."""
        if self._is_one_process():
            number = _native.call_number(self.program, f"gradients of {self.name}")
            return _native.exchange(mine, self.mesh.size, number, add_up=True)
        return lax.psum(mine, self.axes)

    def _is_one_process(self) -> bool:
        """Whether all devices of the mesh have a piece, and are in this process."""
        return len(self.mesh.local_devices) == self.mesh.size == math.prod(self.mesh.shape[axis] for axis in self.axes)

    def run(self, compute: Callable[..., Any], arrays: Sequence[Array], split: Sequence[bool], made: Sequence[bool]) -> Any:
        """Computes on each device.

        Args:
          compute: the function from its pieces.
          arrays: the arguments.
          split: which of them are split as x is; the others are whole on each device.
          made: the same of the results.
        """
        specs = [[jax.sharding.PartitionSpec(self.axes if each else None) for each in found] for found in (split, made)]
        return _native.on_each_device(self.mesh, compute, specs[0], tuple(specs[1]))(*arrays)


@dataclass(frozen=True)
class Norm:
    """What a call computes: (x - mean) * gamma / sqrt(variance + epsilon) + beta + residual.

    Attributes:
      rows, channels: the size of x as a matrix, or of the piece of it that each of several devices has.
      op: what the op that normalizes says of itself.
      x_dtype: of x and its gradient; y_dtype: of the result, the residual and their gradients. float32 or bfloat16.
      has_residual: whether one is added.
      is_rectified: whether a ReLU follows.
      devices: how many have a piece of x.
    """

    rows: int
    channels: int
    op: BatchNorm
    x_dtype: str
    y_dtype: str
    has_residual: bool = False
    is_rectified: bool = False
    devices: int = 1

    @property
    def reads_result(self) -> bool:
        """Whether the gradients read where the result is positive; x tells where nothing was added."""
        return self.has_residual and self.is_rectified

    def _head(self, passes: int) -> list[int]:
        return [
            _native.DTYPES[self.x_dtype], _native.DTYPES[self.y_dtype], self.rows, self.channels, int(self.op.scale),
            int(self.op.center), int(self.is_rectified), passes, 1 if passes == _BOTH else self.devices,
        ]  # fmt: skip

    def spec(self, passes: int = _BOTH) -> list[int]:
        """The vector that describes the call, or that for one of its passes."""
        numbers = (self.op.epsilon, self.op.momentum, 1 - self.op.momentum)
        return [*self._head(passes), int(self.has_residual), *map(_native.float_bits, numbers)]

    def grad_spec(self, gradients: int, keeps: bool, passes: int = _BOTH) -> list[int]:
        """The vector that describes the call for the gradients.

        Args:
          gradients: how many arrays the gradient to the result is the sum of, 1 or 2.
          keeps: whether the gradient to the residual is a result.
          passes: one of them or both.
        """
        return [*self._head(passes), int(self.reads_result), int(keeps), gradients]

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
    how = " in one call" if norm.devices == 1 else ", each device its rows"
    return f"batch normalization{how}, {_native.part().library.describe('batch_norm', norm.spec())}"


def forward(
    norm: Norm, x: Array, vectors: Sequence[Array], residual: Array | None, pieces: Pieces | None = None
) -> tuple[Array, ...]:
    """The result, both new moving statistics, and what the gradients read: (2, channels) float32.

    Args:
      vectors: gamma, beta, where there are such, and the moving mean and variance.
      pieces: the devices that have pieces of x and of the residual; None for one.
    """
    added = () if residual is None else (residual,)
    vector, two = ((norm.channels,), np.float32), ((2, norm.channels), np.float32)

    def compute(x: Array, *others: Array) -> tuple[Array, ...]:
        results, passes = [(x.shape, np.dtype(norm.y_dtype)), vector, vector, two], _BOTH
        if pieces is not None:
            (mine,) = _native.call_several("batch_norm", norm.spec(_FIRST), [two], x)
            others, passes = (pieces.gathered(mine), *others), _SECOND
        return _native.call_several("batch_norm", norm.spec(passes), results, x, *others)

    arrays = (x, *vectors, *added)
    if pieces is None:
        return compute(*arrays)
    split = [True, *(False for _ in vectors), *(True for _ in added)]
    made: tuple[Array, ...] = pieces.run(compute, arrays, split, [True, False, False, False])
    return made


@dataclass(frozen=True)
class Gradients:
    """The gradients to x, to the residual (None without one), to gamma and to beta."""

    x: Array
    residual: Array | None
    gamma: Array
    beta: Array


def backward(
    norm: Norm,
    x: Array,
    vectors: Sequence[Array],
    statistics: Array,
    y: Array,
    cotangents: Sequence[Array],
    pieces: Pieces | None = None,
) -> Gradients:
    """The gradients, where those to the result ``y`` are one or two arrays that are added. ``pieces``: see ``forward``."""
    keeps = norm.has_residual and (norm.is_rectified or len(cotangents) > 1)
    parameters = norm.arrays(vectors)
    seen = [y] if norm.reads_result else []

    def compute(x: Array, *others: Array) -> tuple[Array, ...]:
        whole, rest = list(others[: len(parameters) + 1]), list(others[len(parameters) + 1 :])
        kept = [(rest[0].shape, rest[0].dtype)] if keeps else []
        made, two = (x.shape, x.dtype), ((2, norm.channels), np.float32)
        if pieces is None:
            spec = norm.grad_spec(len(cotangents), keeps)
            return _native.call_several("batch_norm_grad", spec, [made, *kept, two], x, *whole, *rest)
        spec = norm.grad_spec(len(cotangents), keeps, _FIRST)
        *found, sums = _native.call_several("batch_norm_grad", spec, [*kept, two], x, *whole, *rest)
        # what was kept is the gradient behind the ReLU already
        of, rest = (replace(norm, is_rectified=False), found) if keeps else (norm, rest)
        spec = of.grad_spec(len(rest), False, _SECOND)
        sums = pieces.summed(sums)
        dx, sums = _native.call_several("batch_norm_grad", spec, [made, two], x, *whole, sums, *rest)
        return dx, *found, sums

    arrays = (x, *parameters, statistics, *seen, *cotangents)
    if pieces is None:
        dx, *found, sums = compute(*arrays)
    else:
        split = [True, *(False for _ in parameters), False, *(True for _ in (*seen, *cotangents))]
        dx, *found, sums = pieces.run(compute, arrays, split, [True, *([True] if keeps else []), False])
    residual = found[0] if found else cotangents[0] if norm.has_residual else None
    gamma, beta = (lax.reshape(lax.slice_in_dim(sums, i, i + 1), (norm.channels,)) for i in range(2))
    return Gradients(dx, residual, gamma, beta)
