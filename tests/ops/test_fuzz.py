"""Spoilt calls of every public function: each builds a job that runs, or is refused at the user's line."""

from __future__ import annotations

import os
import warnings

import jax
import pytest
from fuzz import DTYPES, OURS, PATHS, PLAIN, READING, SHAPES, SUBJECTS, Case, Fed, examples, outcome, parameters
from fuzz import inputs as fed_to
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

THOROUGH = "ONEFLOW_THOROUGH" in os.environ
EXAMPLES = 400 if THOROUGH else 3
RUN = 40 if THOROUGH else 1  # how many of the jobs are run


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, about numbers that a dtype cannot hold
        yield


def _values() -> st.SearchStrategy:
    blobs = st.builds(Fed, st.sampled_from(SHAPES), st.sampled_from(DTYPES), st.sampled_from((0, 0, 0, 1, 2)))
    return st.one_of(st.sampled_from(PLAIN), st.sampled_from(PLAIN), st.sampled_from(OURS), blobs)


@st.composite
def cases(draw: st.DrawFn, path: str) -> Case:
    """The example's own Blobs and arguments, with one to three things changed."""
    inputs = list(fed_to(path))
    changed = {}
    for _ in range(draw(st.integers(1, 3))):
        if inputs and draw(st.booleans()):
            at = draw(st.integers(0, len(inputs) - 1))
            shape, dtype = inputs[at].shape, inputs[at].dtype
            kind = draw(st.sampled_from(("dtype", "shape", "size")))
            if kind == "dtype":
                dtype = draw(st.sampled_from(DTYPES))
            elif kind == "shape":
                shape = draw(st.sampled_from(SHAPES))
            else:
                axis = draw(st.integers(0, len(shape) - 1))
                shape = (*shape[:axis], draw(st.sampled_from((0, 1, 2, 3, 5))), *shape[axis + 1 :])
            inputs[at] = Fed(shape, dtype)
        elif parameters(path):
            changed[draw(st.sampled_from(parameters(path)))] = draw(_values())
    return Case(path, tuple(inputs), changed)


@pytest.mark.parametrize("path", PATHS)
def test_spoilt_calls(path: str) -> None:
    ran = 0

    @settings(max_examples=EXAMPLES, derandomize=not THOROUGH, deadline=None, database=None, suppress_health_check=[*HealthCheck])
    @given(cases(path))
    def holds(case: Case) -> None:
        nonlocal ran
        run = ran < RUN
        found = outcome(case, run)
        ran += run and found == "built"
        assert found in ("built", "refused"), f"{case}\n{found}"

    holds()


@pytest.mark.thorough
@pytest.mark.parametrize("path", PATHS)
def test_each_argument_alone(path: str) -> None:
    inputs = fed_to(path)
    for parameter in parameters(path):
        for value in PLAIN + OURS:
            found = outcome(Case(path, inputs, {parameter: value}))
            assert found in ("built", "refused"), f"{parameter}={value!r}: {found}"


@pytest.mark.parametrize("path", READING)
def test_readers_and_decoders(path: str) -> None:
    with examples.prepared(SUBJECTS[path]):
        for parameter in parameters(path):
            for value in PLAIN + OURS if THOROUGH else (PLAIN + OURS)[::5]:
                found = outcome(Case(path, fed_to(path), {parameter: value}))
                assert found in ("built", "refused"), f"{parameter}={value!r}: {found}"
