"""Every public class, function, method and property says in a docstring what it is; an inherited one counts."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import oneflow as flow

LIST = Path(__file__).parent / "reference" / "public.txt"
SECTIONS = dict(re.findall(r"^\[(.*)\]\n([^\[]*)", LIST.read_text(encoding="utf-8"), re.MULTILINE))


def lacking(cls: type) -> Iterator[str]:
    """The public methods and properties of a class that no docstring describes, its own or an inherited one."""
    for name in dir(cls):
        owner = next((k for k in cls.__mro__ if name in vars(k)), None)
        if name.startswith("_") or owner is None or not owner.__module__.startswith("oneflow"):
            continue
        value: Any = vars(owner)[name]
        is_described = not (inspect.isroutine(value) or isinstance(value, (property, classmethod, staticmethod)))
        if not is_described and not inspect.getdoc(getattr(owner, name)):
            yield f"{owner.__qualname__}.{name}"


@pytest.mark.parametrize("module", SECTIONS)
def test_a_public_name_has_a_docstring(module: str) -> None:
    space: Any = eval(module.replace("oneflow", "flow", 1), {"flow": flow})  # noqa: S307 - of our own list
    left = []
    for name in SECTIONS[module].split():
        value = getattr(space, name)
        if inspect.isclass(value) and value.__module__.startswith("oneflow"):
            left += [name] if not value.__doc__ else []
            left += lacking(value)
        elif (inspect.isroutine(value) or inspect.ismodule(value)) and not value.__doc__:
            left.append(name)
    assert not left


def test_a_returned_object_has_docstrings() -> None:
    """Classes whose own names are not public."""
    returned: list[Any] = []

    @flow.global_function()
    def job() -> flow.typing.Numpy:
        w = flow.get_variable("w", (2,), initializer=flow.zeros_initializer())
        returned.extend([w, w.lbi, flow.current_scope()])
        return w

    job()
    returned += [job, flow.get_all_variables()["w"], job.plan(), flow.optimizer.SGD(0.1)]
    assert not [left for value in returned for left in lacking(type(value))]
