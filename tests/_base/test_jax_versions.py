"""Versions of JAX: what is supported, what is refused because a version breaks it."""

from __future__ import annotations

import concurrent.futures
import runpy
import sys
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow._base import jax_versions
from oneflow.doctor import examine

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize("version", ["0.10.0", "0.10", "0.11.2", "0.12.0.1", "0.12.0rc1"])
def test_supported_versions(version):
    assert jax_versions.is_supported(version)


@pytest.mark.parametrize("version", ["0.9.2", "0.13.0", "1.0", "0.13.0.dev20260101", "unknown"])
def test_other_versions(version):
    assert not jax_versions.is_supported(version)


def test_the_package_asks_for_the_supported_versions():
    with open(ROOT / "pyproject.toml", "rb") as file:
        assert jax_versions.REQUIREMENT in tomllib.load(file)["project"]["dependencies"]


def test_the_doctor_finds_an_unsupported_version(monkeypatch):
    monkeypatch.setattr("oneflow.doctor.checks._version", lambda name: "0.13.1")
    found = {f.name: f for f in examine()}["version of jax"]
    assert found.state == "trouble" and found.value.startswith("0.13.1") and jax_versions.REQUIREMENT in found.todo


@pytest.mark.parametrize(
    ("version", "cores", "most"), [("0.10.2", 1, None), ("0.11.2", 1, 2**34), ("0.12.0.1", 2, 2**35), ("0.12.0.1", 64, 2**35)]
)
def test_the_compilers_limit(monkeypatch, version, cores, most):
    monkeypatch.setattr(jaxlib, "__version__", version)
    monkeypatch.setenv("NPROC", str(cores))
    assert jax_versions.most_elements_on_cpu() == most


def test_a_job_beyond_the_compilers_limit_is_refused_and_the_session_goes_on(monkeypatch):
    monkeypatch.setattr(jax_versions, "most_elements_on_cpu", lambda: 1000)

    @flow.global_function(type="train")
    def large(x: tp.Numpy.Placeholder((10, 1))) -> tp.Numpy:
        w = flow.get_variable("w", (1, 100), initializer=flow.ones_initializer())
        product = flow.matmul(x, w)
        loss = flow.math.reduce_sum(product)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    @flow.global_function()
    def small(x: tp.Numpy.Placeholder((9, 1))) -> tp.Numpy:
        return flow.matmul(x, flow.get_variable("w", (1, 100), initializer=flow.ones_initializer()))

    with pytest.raises(flow.errors.CompileError, match=r"(?s)matmul.*'large'.*1,000 elements.*product = flow\.matmul\(x"):
        large(np.ones((10, 1), np.float32))
    np.testing.assert_array_equal(small(np.ones((9, 1), np.float32)), np.ones((9, 100)))


# --- private parts, and what is done without them


@pytest.mark.parametrize("private", [True, False])
def test_flags_are_those_of_the_thread(monkeypatch, private):
    with monkeypatch.context() as patch:
        if not private:
            patch.delattr("jax._src.config.debug_nans")
        nans, infs = jax_versions.debug_flags()
    assert (type(nans).__name__ == "_PublicFlag") is not private
    assert (nans.value, infs.value) == (False, False)
    with jax.debug_nans(True):
        assert (nans.value, infs.value) == (True, False)
        with jax.debug_infs(True), concurrent.futures.ThreadPoolExecutor(1) as pool:
            assert (nans.value, infs.value) == (True, True)
            assert pool.submit(lambda: (nans.value, infs.value)).result() == (False, False)
    assert (nans.value, infs.value) == (False, False)


@pytest.mark.parametrize("private", [True, False])
def test_arrays_are_waited_for(monkeypatch, private):
    with monkeypatch.context() as patch:
        if not private:
            patch.delattr("jax._src.lib.xla_client.batched_block_until_ready")
        wait = jax_versions.block_until_ready()
    assert (wait is jax.block_until_ready) is not private
    x = jnp.ones((400, 400))
    made = [x]
    for _ in range(3):
        made.append(made[-1] @ x)
    wait(made)
    assert all(array.is_ready() for array in made)

    def fail(array):
        raise ValueError("wrong")

    failing = jax.jit(lambda a: jax.pure_callback(fail, jax.ShapeDtypeStruct((2,), "float32"), a))
    with pytest.raises(Exception, match="wrong"):
        wait([x, failing(jnp.ones(2))])


# --- scripts/run_tests_on.py


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(ROOT / "scripts" / "run_tests_on.py"))


def test_the_script_finds_interpreters(script):
    this = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert script["interpreter"](sys.executable) == sys.executable
    assert script["interpreter"]("3.99") is None and script["interpreter"]("/nothing/here/python") is None
    found = script["interpreter"](this)  # none, where this one is neither on the path nor pyenv's
    assert found is None or this.split(".")[1] in found
    assert script["requirement"]("jax", "0.12") == "jax==0.12.*" and script["requirement"]("jax", "0.12.0.1") == "jax==0.12.0.1"


def test_the_script_counts_outcomes_and_crashes(script, tmp_path):
    several = tmp_path / "test_several.py"
    several.write_text(
        "import pytest\n\ndef test_a(): pass\n\ndef test_b(): assert 1 == 2, 'unequal'\n\ndef test_c(): pytest.skip('no')\n"
    )
    counts, output = script["run"](sys.executable, [several], tmp_path / "report.xml", [])
    assert (counts["passed"], counts["failed"], counts["skipped"], counts["crashed"]) == (1, 1, 1, 0) and "unequal" in output
    crash = tmp_path / "test_crash.py"
    crash.write_text("import os, signal\n\ndef test_a(): os.kill(os.getpid(), signal.SIGFPE)\n")
    counts, output = script["run"](sys.executable, [crash], tmp_path / "report.xml", [])
    assert (counts["passed"], counts["failed"], counts["crashed"]) == (0, 1, 1) and "Fatal Python error: Floating" in output


def test_the_scripts_files_exist(script):
    assert [file for file in script["SAMPLE"] if not (ROOT / file).is_file()] == []
    found = script["files"](["tests/_base", "tests/_base/test_jax_versions.py"])
    assert found.count(ROOT / "tests" / "_base" / "test_jax_versions.py") == 1
