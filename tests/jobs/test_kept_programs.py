"""Compiled steps on disk: found again by the same job, by no other one, and of no harm whatever is in their files."""

from __future__ import annotations

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.runtime import compilation_cache, kept_programs
from oneflow.runtime.launching import Launcher

DIRECTORY, ENABLED = kept_programs.directory, compilation_cache.enabled  # as long as ``conftest.py`` has not replaced them
pytestmark = pytest.mark.cpu("programs of other devices are XLA's to keep")
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


@pytest.fixture
def loads(tmp_path, monkeypatch) -> list[bool]:
    """Whether each program that was compiled since was found on disk."""
    found: list[bool] = []
    load = kept_programs.load

    def noted(key):
        program = load(key)
        found.append(program is not None)
        return program

    monkeypatch.setattr(kept_programs, "directory", DIRECTORY)
    monkeypatch.setattr(compilation_cache, "enabled", ENABLED)
    monkeypatch.setattr(kept_programs, "load", noted)
    monkeypatch.setenv("ONEFLOW_CACHE_DIR", str(tmp_path))
    return found


def files(folder: Path) -> list[Path]:
    return sorted((folder / "steps").glob("*"))


def trained(width: int = 5, rate: float = 0.1, activation=flow.nn.relu, momentum: float = 0.0, rows: int = 4) -> list[float]:
    """Three losses of a job in a session of its own."""
    flow.clear_default_session()

    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder((rows, 3))) -> tp.Numpy:
        out = flow.layers.dense(x, width, activation=activation, kernel_initializer=flow.random_normal_initializer(), name="a")
        loss = flow.math.reduce_sum(flow.math.square(out - 1.0), axis=1)
        schedule = flow.optimizer.PiecewiseConstantScheduler([2], [rate, rate / 2])
        flow.optimizer.SGD(schedule, momentum=momentum).minimize(loss)
        return loss

    flow.manual_seed(3)
    return [float(job(X[:rows]).sum()) for _ in range(3)]


def test_a_second_session_finds_the_program_and_computes_the_same(loads, tmp_path):
    first = trained()
    again = trained()
    assert loads == [False, True]
    assert again == first
    assert len(files(tmp_path)) == 1


def test_another_job_never_gets_it(loads, tmp_path):
    def of_the_user(x, name=None):
        return flow.math.tanh(x)

    variants = [
        dict(), dict(width=6), dict(rate=0.2), dict(activation=flow.math.sigmoid), dict(activation=of_the_user),
        dict(momentum=0.9), dict(rows=3),
    ]  # fmt: skip
    fresh = [trained(**variant) for variant in variants]
    assert loads == [False] * len(variants)
    assert [trained(**variant) for variant in variants] == fresh
    assert loads[len(variants) :] == [True] * len(variants)
    assert len(files(tmp_path)) == len(variants)


def scaled(function, constant: float) -> np.ndarray:
    flow.clear_default_session()

    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        return function(x) + flow.constant(constant, flow.float, (1,))

    return job(X)


def test_constants_and_settings_are_in_the_key(loads):
    np.testing.assert_array_equal(scaled(lambda x: x * 2.0, 1.0), X * 2 + 1)
    np.testing.assert_array_equal(scaled(lambda x: x * 2.0, 2.0), X * 2 + 2)
    np.testing.assert_array_equal(scaled(lambda x: x * -2.0, 2.0), X * -2 + 2)
    assert loads == [False] * 3
    os.environ["XLA_ANY_SETTING"] = "1"
    try:
        scaled(lambda x: x * 2.0, 1.0)
    finally:
        del os.environ["XLA_ANY_SETTING"]
    with jax.default_matmul_precision("highest"):
        scaled(lambda x: x * 2.0, 1.0)
    assert loads == [False] * 5
    np.testing.assert_array_equal(scaled(lambda x: x * 2.0, 1.0), X * 2 + 1)
    assert loads[-1]


def test_functions_of_the_user_are_not_kept(loads, tmp_path):
    for factor in (2.0, 3.0):  # the same name, attributes and shapes; only the closure differs

        @flow.experimental.register_op("kept_times")
        def kept_times(x, factor=factor):
            return jnp.asarray(factor, x.dtype) * x

        np.testing.assert_allclose(scaled(kept_times, 0.0), X * factor, rtol=1e-6)
    assert loads == []
    assert files(tmp_path) == []


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign", "renamed", "directory"])
def test_a_damaged_file_costs_a_compilation_only(loads, tmp_path, damage):
    first = trained()
    (file,) = files(tmp_path)
    content = file.read_bytes()
    if damage == "renamed":  # the program of another job, under this one's name
        trained(width=6)
        (other,) = set(files(tmp_path)) - {file}
        other.replace(file)
    elif damage == "directory":
        file.unlink()
        file.mkdir()
    else:
        changed = {"cut": content[:-9], "flipped": content[:-9] + bytes([content[-9] ^ 1]) + content[-8:], "empty": b""}
        file.write_bytes(changed.get(damage, b"no program"))
    loads.clear()
    assert trained() == first
    assert loads == [False]
    if damage != "directory":
        assert trained() == first  # it has been written again
        assert loads == [False, True]


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="POSIX permissions")
def test_a_file_that_others_may_write_is_not_read(loads, tmp_path, caplog):
    first = trained()
    (file,) = files(tmp_path)
    assert file.stat().st_mode & 0o077 == 0
    file.chmod(0o666)
    assert trained() == first
    assert loads == [False, False]
    assert "others may write it" in caplog.text


def test_the_first_step_puts_back_drawn_values_when_it_fails(monkeypatch):
    """New variables are drawn again, loaded ones come from a copy; either way nothing is lost."""

    @flow.global_function("train")
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        loss = flow.layers.dense(x, 2, kernel_initializer=flow.random_normal_initializer(), name="a")
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0.9).minimize(loss)
        return loss

    flow.manual_seed(5)
    drawn = flow.get_all_variables()["a-weight"].numpy()
    flow.load_variables({"a-bias": np.array([7, 8], np.float32)})
    step = Launcher._step

    def failing(self, feeds):
        step(self, feeds)
        raise RuntimeError("the device is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Launcher, "_step", failing)
        with pytest.raises(flow.errors.ExecutionError, match="the device is gone"):
            job(X)
    after = flow.get_all_variables()
    np.testing.assert_array_equal(after["a-weight"].numpy(), drawn)
    np.testing.assert_array_equal(after["a-bias"].numpy(), [7, 8])
    expected = X @ drawn.T + np.array([7, 8], np.float32)
    np.testing.assert_allclose(job(X), expected, rtol=1e-5)


def test_threads_that_compile_at_once_share_jaxs_settings_and_take_them_back(loads):
    before, mine = jax.config.jax_compilation_cache_dir, compilation_cache.directory()
    first, second = compilation_cache.enabled(), compilation_cache.enabled()
    first.__enter__()
    assert compilation_cache.in_use() == mine  # the setting is this library's own, not the user's
    second.__enter__()
    first.__exit__(None, None, None)
    assert jax.config.jax_compilation_cache_dir == str(mine)
    second.__exit__(None, None, None)
    assert jax.config.jax_compilation_cache_dir == before and compilation_cache.in_use() == mine
    with compilation_cache.enabled():
        assert trained() == trained()
    assert loads == [False, True]  # a program that is compiled meanwhile is kept as any
    jax.config.update("jax_compilation_cache_dir", "/a/users/own")
    try:
        assert compilation_cache.in_use() is None
        with compilation_cache.enabled():
            assert jax.config.jax_compilation_cache_dir == "/a/users/own"
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_programs_of_several_devices_are_kept_by_xla_up_to_a_size(loads, tmp_path, monkeypatch):
    def compiled(width: int) -> None:
        flow.clear_default_session()
        flow.config.cpu_device_num(2)

        @flow.global_function()
        def job(x: tp.ListNumpy.Placeholder((64, 9))) -> tp.ListNumpy:
            return x * 2

        assert job([np.ones((4, width), np.float32)] * 2)[0][0, 0] == 2

    def entries() -> list[Path]:
        return [file for file in tmp_path.iterdir() if file.name.endswith("-cache")]

    (tmp_path / "notes").write_bytes(b"x" * 1000)  # no program: left alone
    compiled(1)
    (first,) = entries()
    compiled(1)
    assert entries() == [first], "it is found again"
    monkeypatch.setattr(compilation_cache, "MAX_BYTES", int(2.5 * first.stat().st_size))
    for width in range(2, 19):
        compiled(width)
    assert first not in entries() and 1 <= len(entries()) <= 2 + 16
    assert (tmp_path / "notes").exists() and not loads
