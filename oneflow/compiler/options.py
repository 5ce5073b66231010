"""Options of XLA that the library sets: for accelerators sessions compile with them, and so do plans for a target."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from .._base import jax_versions
from .._base.jax import jax
from ..graph.node import Node
from .plan import Plan

# collectives run beside the arithmetic that does not need them
_OVERLAP: Mapping[str, Mapping[str, Any]] = {
    "gpu": {"xla_gpu_enable_latency_hiding_scheduler": True},
    "tpu": {},  # a small GPT for four v5e compiled to the same program with the flags that people set
}
# no CUDA graphs, of whose kernels CUPTI does not know the instruction
NAMED_KERNELS: Mapping[str, Any] = {"xla_gpu_enable_command_buffer": ""}
_FLAGS_OF_USERS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


def compiler_options(platform: str, device_count: int, *, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The options for a program on some devices; those that the user's environment sets are left to it.

    Args:
      platform: of the devices: "cpu", "gpu" or "tpu".
      device_count: of the program; one device has nothing to overlap.
      environment: its XLA_FLAGS and LIBTPU_INIT_ARGS are the user's.
    """
    if device_count < 2:
        return {}
    own = " ".join(environment.get(name, "") for name in _FLAGS_OF_USERS)
    given = {word.lstrip("-").partition("=")[0] for word in own.split()}
    return {name: value for name, value in _OVERLAP.get(platform, {}).items() if name not in given}


def with_product_precision(step: Callable[..., Any], plan: Plan) -> Callable[..., Any]:
    """A function whose body is traced under ``product_precision``, whatever holds where it is called."""
    if isinstance(product_precision(plan), nullcontext):
        return step

    @functools.wraps(step)
    def precise(*arguments: Any) -> Any:
        with product_precision(plan):
            return step(*arguments)

    return precise


def product_precision(plan: Plan) -> AbstractContextManager[Any]:
    """What is traced inside multiplies float32 numbers with their full precision, where the plan asks for it.

    By default GPUs round the factors to TF32 and TPUs to bfloat16. CPUs never round.
    """
    if plan.tensor_float_32 or plan.platform == "cpu":
        return nullcontext()
    made: AbstractContextManager[Any] = jax.default_matmul_precision("highest")
    return made


_FEW = 32  # products; from here on what each costs when the program is compiled, loaded and first run counts
_SMALL = 1 << 19  # multiplications per product
_LIBRARY = "xla_cpu_experimental_ynn_fusion_type"
_PRODUCTS = "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION"


def cpu_options(plan: Plan, *, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The options for a program on a CPU: where all products are small and there are many, XLA computes them itself.

    Otherwise XLA hands each to a library that builds a pipeline of its own, 0.5 ms per product at the first call, and reads
    through the whole program for each when it is loaded. For products of this size the steps are no faster by it.
    """
    return {_LIBRARY: ""} if _can_choose(environment) and has_small_products(plan) else {}


def own_reductions() -> dict[str, Any]:
    """The options for a program on a CPU whose reductions XLA computes itself: its library keeps the products."""
    return {_LIBRARY: _PRODUCTS} if _can_choose(os.environ) else {}


def _can_choose(environment: Mapping[str, str]) -> bool:
    return _LIBRARY not in environment.get("XLA_FLAGS", "") and jax_versions.can_choose_library()


def has_small_products(plan: Plan) -> bool:
    """Whether a plan has many products of matrices, all of them small."""
    products = [node for node in plan.compute if node.op.heavy or _is_product(node)]
    return len(products) >= _FEW and all(_multiplications(node) <= _SMALL for node in products)


def _is_product(node: Node) -> bool:
    return node.op.int8 is not None and node.op.int8.role == "product"


def _multiplications(node: Node) -> float:
    """Those of a product of matrices, from the sizes of both and of the result; of other ops infinity."""
    if len(node.inputs) < 2 or any(blob.ndim != 2 for blob in (*node.inputs, *node.outputs)):
        return math.inf
    return math.sqrt(math.prod(math.prod(blob.shape) for blob in (*node.inputs[:2], node.outputs[0])))
