"""A program in parts computes what the whole program does; XLA keeps the parts as computations of their own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import oneflow as flow
import oneflow.typing as tp
from oneflow._base import jax_versions
from oneflow._reports.trace import OTHER, Origin, Program
from oneflow.compiler import parts, program
from oneflow.compiler.parts import in_parts

WIDTH, LAYERS = 8, 40


KINDS: list[Callable[[Any, Any, int], Any]] = [
    lambda x, y, n: jnp.sin(x) + y,
    lambda x, y, n: jnp.where(x > 0, y, 0.5 * x),
    lambda x, y, n: x + jnp.arange(4.0, dtype=jnp.float32),
    lambda x, y, n: jnp.full(4, n, jnp.float32),
    lambda x, y, n: jax.jit(lambda x: jnp.cos(x) - 1)(y),
    lambda x, y, n: lax.fori_loop(0, 2, lambda _, x: x * 0.5 + y, x),
]


def program_of(draws: list[tuple[int, int, int]]) -> Any:
    """A function of two arrays whose steps read any values before them; results may be arguments, literals, or named twice."""

    def computed(a: Any, b: Any) -> Any:
        values = [a, b]
        for kind, first, second in draws:
            x, y = values[first % len(values)], values[second % len(values)]
            values.append(KINDS[kind](x, y, second % 3))
        return {"last": values[-1], "all": values[::3], "argument": a, "literal": 2.0, "twice": (values[-1], values[-1])}

    return computed


@settings(deadline=None, max_examples=12)
@given(
    draws=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=25),
    part=st.integers(1, 12),
)
def test_random_programs(draws: list[tuple[int, int, int]], part: int) -> None:
    whole = program_of(draws)
    a, b = np.linspace(-1, 1, 4, dtype=np.float32), np.linspace(2, 0, 4, dtype=np.float32)
    expected, found = whole(a, b), jax.jit(in_parts(whole, part))(a, b)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_parts_are_computations_of_their_own() -> None:
    def chain(x: Any) -> Any:
        for _ in range(12):
            x = jax.nn.relu(jnp.sin(x))  # relu is a jitted function of JAX, which is inlined
        return x

    x = np.ones(4, np.float32)
    compiled = jax.jit(in_parts(chain, 8)).lower(x).compile()
    assert calls(compiled.as_text()) == 3
    np.testing.assert_allclose(jax_versions.deserialized(*jax_versions.serialized(compiled))(x), chain(x), rtol=1e-6)
    assert calls(jax.jit(chain).lower(x).compile().as_text()) == 0


def calls(text: str) -> int:
    """How many parts a compiled program calls; XLA has calls of its own, for loops on several threads."""
    return len(calls_of_parts(text))


def calls_of_parts(text: str) -> list[str]:
    """The names of the calls."""
    lines = [line for line in text.splitlines() if " call(" in line and 'inlineable="false"' in line]
    return [line.split(" = ")[0].removeprefix("  ROOT ").strip(" %") for line in lines]


def test_effects_stay_in_one_piece(capsys: pytest.CaptureFixture[str]) -> None:
    def loud(x: Any) -> Any:
        for i in range(4):
            jax.debug.print("turn {}", i, ordered=True)
            x = jnp.sin(x) + 1
        return x

    jax.block_until_ready(jax.jit(in_parts(loud, 2))(np.ones(4, np.float32)))
    jax.effects_barrier()
    assert capsys.readouterr().out.split() == "turn 0 turn 1 turn 2 turn 3".split()


def dense_layers(kind: str) -> Any:
    flow.clear_default_session()
    flow.manual_seed(5)

    @flow.global_function(type=kind)
    def job(x: tp.Numpy.Placeholder((4, WIDTH))) -> tp.Numpy:
        for i in range(LAYERS):
            start = flow.random_normal_initializer(stddev=0.4)
            x = flow.layers.dense(x, WIDTH, activation=flow.nn.relu, kernel_initializer=start, name=f"dense{i}")
        if kind == "train":
            x = flow.nn.dropout(x, 0.2, name="dropped")
            flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.01])).minimize(x)
        return x

    return job


@pytest.mark.cpu("programs for other devices are not split")
@pytest.mark.parametrize("kind", ["train", "predict"])
def test_jobs(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).random((4, WIDTH), np.float32)

    def run() -> tuple[list[Any], str]:
        job = dense_layers(kind)
        results = [job(x) for _ in range(3)]
        return [*results, *(v.numpy() for v in flow.get_all_variables().values())], job.executables[-1][1].hlo()

    whole, text = run()
    assert not calls(text)
    monkeypatch.setattr(parts, "_LONG", 3 * LAYERS)
    monkeypatch.setattr(program, "in_parts", partial(in_parts, part=100))
    found, text = run()
    assert calls(text) >= (4 if kind == "train" else 1)
    assert "dense7-matmul/" in text and (kind == "predict" or "oneflow.backward/dense7-matmul/" in text)
    read = Program(text, {f"dense{i}-matmul" for i in range(LAYERS)}, ())
    assert {read.origin(name) for name in calls_of_parts(text)} == {Origin(OTHER, "")}
    origins = {read.origin(name) for name in read._instructions}
    assert {Origin(phase, "dense7-matmul") for phase in ("forward", "backward")[: 1 + (kind == "train")]} <= origins
    for one, other in zip(whole, found, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-6)


def test_parts_without_compilation() -> None:
    """In JAX's mode for debugging, which calls jitted functions as they are."""
    x = np.linspace(-1, 1, 4, dtype=np.float32)
    with jax.disable_jit():
        found = in_parts(lambda x: jnp.sin(x) + 1, 1)(x)
    np.testing.assert_allclose(found, np.sin(x) + 1, rtol=1e-6)


def test_parts_pass_the_checks_of_jax() -> None:
    whole = program_of([(0, 0, 1), (1, 1, 2), (2, 2, 3), (0, 3, 1)])
    arrays = jnp.linspace(-1.0, 1.0, 4), jnp.ones(4)
    with jax.enable_checks(True):
        found = jax.jit(in_parts(whole, 2))(*arrays)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), found, jax.jit(whole)(*arrays))
