"""Every parameter of the reference is where OneFlow 0.3.4 has it: same name, same position, same default."""

from __future__ import annotations

import inspect
import runpy
from pathlib import Path
from typing import Any

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parent.parent / "scripts" / "coverage.py"))
DELIBERATE = {
    ("flow.data.load_mnist", "url"): "nothing is downloaded unless a program asks for it",
    ("flow.data.load_mnist", "hash_check"): "the packaged digits have another checksum than the file in general use",
    ("flow.unittest.register_test_cases", "base_class"): "the text of the reference names the standard library's class",
    ("flow.unittest.register_test_cases", "test_case_mixin"): "a class of the library's own",
}
CALLABLES = [
    e for e in SCRIPT["entries"]()
    if e.signature and e.section not in SCRIPT["OBJECTS"] and e.section != "FunctionConfig" and "__getattr__" not in e.path
]  # fmt: skip


def same(ours: Any, theirs: Any) -> bool:
    """Whether two defaults mean the same; numbers by value, None and "" as they are, lists as tuples."""
    if isinstance(ours, (list, tuple)) and isinstance(theirs, (list, tuple)):
        return list(ours) == list(theirs)
    if isinstance(ours, bool) or isinstance(theirs, bool):
        return ours is theirs
    return repr(ours) == repr(theirs) or bool(ours == theirs)


@pytest.mark.parametrize("entry", CALLABLES, ids=lambda e: e.path)
def test_signature(entry: Any) -> None:
    found = SCRIPT["found_at"](entry)
    if found is SCRIPT["MISSING"] or not callable(getattr(found, "__func__", found)):
        return  # docs/coverage.md lists what is missing
    theirs = list(SCRIPT["_parsed"](entry.signature))
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in theirs):
        return  # OneFlow's own says nothing
    try:
        ours = list(inspect.signature(getattr(found, "__func__", found)).parameters.values())
    except ValueError:  # built in C
        return
    if entry.owner and ours and ours[0].name == "self":
        ours = ours[1:]
    if entry.section == "0.4.0" and any(p.kind is p.VAR_POSITIONAL for p in ours):
        return
    for place, p in enumerate(theirs):
        if place < len(ours) and ours[place].kind is inspect.Parameter.VAR_POSITIONAL:
            return
        assert place < len(ours), f"{p} is missing: {[str(o) for o in ours]}"
        mine = ours[place]
        assert mine.name == p.name, f"parameter {place} is {mine.name}, not {p.name}"
        assert mine.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        if p.default is not p.empty and (entry.path, p.name) not in DELIBERATE:
            assert mine.default is not mine.empty, f"{p.name} has no default"
            assert same(mine.default, p.default), f"{p.name}={mine.default!r} instead of {p.default!r}"
    for extra in ours[len(theirs) :]:
        assert extra.default is not extra.empty or extra.kind in (extra.VAR_POSITIONAL, extra.VAR_KEYWORD), f"{extra} is required"
