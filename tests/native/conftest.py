from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from oneflow.compiler import packed_products as packed
from oneflow.compiler.packed_products import Epilogue
from oneflow.graph.op import IntegerProduct

sys.path.insert(0, str(Path(__file__).parent))  # programs.py is found by its name

PRESENT = importlib.util.find_spec("oneflow_native") is not None
NEEDS = {"native_part", "kernels", "bfloat16_kernels"}  # fixtures


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not PRESENT and NEEDS.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.skip(reason="oneflow-jax-native is not installed (pip install ./native)"))


@pytest.fixture
def native_part() -> Any:
    """The native part, where it is installed; it must work then."""
    from oneflow._base import native as _native

    found = _native.part()
    assert found.library is not None, found.reason
    return found.library


@pytest.fixture(scope="module")
def parallel() -> Callable[[int], contextlib.AbstractContextManager[None]]:
    """``with parallel(n):`` every call runs on n threads, however small it is."""
    from oneflow._base import native as _native

    library = _native.part().library

    @contextlib.contextmanager
    def within(threads: int) -> Iterator[None]:
        before = library.threads, library.min_parallel_work
        library.threads, library.min_parallel_work = threads, 0
        try:
            yield
        finally:
            library.threads, library.min_parallel_work = before

    return within


class Products:
    """Single calls of products with packed weights, and what they should compute."""

    @staticmethod
    def reference(x: Any, w: Any, offset: Any, residual: Any, product: IntegerProduct, epilogue: Epilogue) -> np.ndarray:
        """The same by PyTorch, in float64."""
        data, weights, bias = (torch.from_numpy(np.asarray(v, np.float64)) for v in (x, w, offset))
        if not product.strides:
            y = data @ weights.T + bias
        else:
            sides = [side for pair in reversed(product.padding) for side in pair]
            convolve = (torch.conv1d, torch.conv2d, torch.conv3d)[len(product.strides) - 1]
            padded = torch.nn.functional.pad(data.movedim(-1, 1), sides)
            y = convolve(padded, weights.movedim(-1, 1), bias, product.strides, 0, product.dilations, product.groups).movedim(
                1, -1
            )
        if residual is not None:
            y = y + torch.from_numpy(np.asarray(residual, np.float64))
        if epilogue.activation == "rectify":
            y = torch.relu(y)
        elif epilogue.activation == "gate":
            y = torch.nn.functional.gelu(y)
        elif epilogue.activation == "bound":
            y = torch.clamp(y, epilogue.low, epilogue.high)
        return (y * epilogue.factor + epilogue.shift).numpy()

    @staticmethod
    def computed(problem: tuple[Any, ...], dtype: Any) -> np.ndarray:
        x, w, offset, residual, product, epilogue = problem
        numbers = x.shape, product, epilogue, w.shape, np.dtype(dtype).name
        assert packed.unsupported_reason(*numbers) == ""
        pack = {"spec": tuple(packed.spec(*numbers)), "size": packed.packed_size(*numbers)}
        more = [] if residual is None else [jnp.asarray(residual, dtype)]

        def run(x: Any, w: Any, *vectors: Any) -> Any:
            return packed.call(x, packed.PACK.define(w, **pack), vectors, product, epilogue, w.shape)

        return np.asarray(jax.jit(run)(jnp.asarray(x, dtype), w, offset, *more))


@pytest.fixture(scope="session")
def products() -> Products:
    return Products()


def kernel(call: str, spec: list[int]) -> str:
    from oneflow._base import native as _native

    name = str(_native.part().library.describe(call, spec))
    if name.startswith("!"):
        pytest.skip(f"there are no such kernels: {name[2:]}")
    return name


@pytest.fixture(scope="session")
def kernels() -> str:
    """The instruction set that the native part's own kernels are in: "avx512_core" or "avx2"."""
    return kernel("lstm_cell", [1, 1, 0, 1, 2, 3, 0]).partition(":")[2]


@pytest.fixture(scope="session")
def bfloat16_kernels() -> str:
    """The same of those that read and write bfloat16."""
    return kernel("cross_entropy", [1, 1, 16, 0]).partition(":")[2]
