from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import pytest

PRESENT = importlib.util.find_spec("oneflow_native") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "native_part" in getattr(item, "fixturenames", ()) and not PRESENT:
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
