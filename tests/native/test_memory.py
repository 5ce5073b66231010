"""Working memory of a step is kept for the next one."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from oneflow._base.memory import SWITCH

STEPS = textwrap.dedent("""
    import resource, sys
    import numpy as np
    import oneflow as flow, oneflow.typing as tp
    import jax

    @flow.global_function(type="predict")
    def job(x: tp.Numpy.Placeholder((3000, 3000))) -> tp.Numpy:
        for _ in range(4):
            x = flow.math.sigmoid(flow.math.reduce_sum(x, axis=1, keepdims=True)) * x + flow.transpose(x, (1, 0))
        return flow.math.reduce_sum(x, axis=0)

    x = np.ones((3000, 3000), np.float32)
    for _ in range(3):
        job(x)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        job(x)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 4)
""")


ARENAS = textwrap.dedent("""
    import ctypes, sys, tempfile
    import numpy as np
    import oneflow as flow, oneflow.typing as tp

    def job(rows):
        @flow.global_function(type="train", function_config=flow.FunctionConfig())
        def train(x: tp.Numpy.Placeholder((rows, 64))) -> tp.Numpy:
            loss = flow.math.reduce_mean(flow.layers.dense(x, 16, name="dense", kernel_initializer=flow.ones_initializer()))
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
            return loss
        return train

    jobs = [job(int(rows)) for rows in sys.argv[1:]]  # all are declared before any is called
    jobs[0](np.ones((int(sys.argv[1]), 64), np.float32))
    libc = ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    with tempfile.NamedTemporaryFile() as file:
        stream = ctypes.c_void_p(libc.fopen(file.name.encode(), b"w"))
        libc.malloc_info(0, stream)
        libc.fclose(stream)
        print(file.read().count(b"<heap "))
""")


def unset(*beginnings: str) -> dict[str, str]:
    """The environment without what begins so, and without what sets glibc up."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("GLIBC_TUNABLES", *beginnings))}


def faults_a_step(before: str = "", **environment: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", before + STEPS],
        capture_output=True,
        text=True,
        check=True,
        timeout=150,
        env={**unset("MALLOC_"), **environment},
    )
    return int(done.stdout.split()[-1])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a policy of glibc's allocator")
def test_a_step_finds_the_memory_of_the_one_before() -> None:
    kept, returned = faults_a_step(), faults_a_step(ONEFLOW_KEEP_MEMORY="0")
    assert kept * 3 < returned, (kept, returned)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a policy of glibc's allocator")
@pytest.mark.parametrize(("rows", "is_one"), [([32], False), ([1 << 18], True), ([32, 1 << 18], True)])
def test_threads_share_an_arena_where_a_declared_job_is_large(rows: list[int], is_one: bool) -> None:
    """Large pieces are kept in the first arena alone; in small jobs threads would take turns at it."""
    done = subprocess.run(
        [sys.executable, "-c", ARENAS, *map(str, rows)],
        capture_output=True,
        text=True,
        check=True,
        timeout=150,
        env=unset("MALLOC_", SWITCH),
    )
    assert (int(done.stdout.split()[-1]) == 1) is is_one, done.stdout


@pytest.mark.thorough
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a policy of glibc's allocator")
def test_also_where_somebody_else_starts_jax_after_the_import() -> None:
    started = "import oneflow, jax; jax.devices()\n"
    kept, returned = faults_a_step(started), faults_a_step(started, ONEFLOW_KEEP_MEMORY="0")
    assert kept * 3 < returned, (kept, returned)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a policy of glibc's allocator")
@pytest.mark.parametrize(
    ("environment", "is_set"),
    [({}, False), ({"JAX_PLATFORMS": "cuda,cpu"}, False), ({"JAX_PLATFORMS": "cpu"}, True), ({"ONEFLOW_KEEP_MEMORY": "1"}, True)],
)
def test_glibc_is_left_alone_where_steps_work_on_an_accelerator(tmp_path, environment: dict[str, str], is_set: bool) -> None:
    """The compiler of a GPU tries kernels out on all cores, whose threads would wait for each other's allocations."""
    (tmp_path / "jax_plugins").mkdir()
    (tmp_path / "driver").touch()
    program = f"import oneflow._base.memory as m; m._DRIVERS = ({str(tmp_path / 'driver')!r},); print(m.keep_freed.__wrapped__())"
    kept = unset("MALLOC_", "JAX_")
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, [str(tmp_path), kept.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={**kept, **environment}
    )
    assert done.stdout.split() == [str(is_set)]
