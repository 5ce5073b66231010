from __future__ import annotations

import importlib.util

import pytest

PRESENT = importlib.util.find_spec("oneflow_native") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "native_part" in getattr(item, "fixturenames", ()) and not PRESENT:
            item.add_marker(pytest.mark.skip(reason="oneflow-jax-native is not installed (pip install ./native)"))


@pytest.fixture
def native_part() -> object:
    """The native part, where it is installed; it must work then."""
    from oneflow._base import native as _native

    found = _native.part()
    assert found.library is not None, found.reason
    return found.library
