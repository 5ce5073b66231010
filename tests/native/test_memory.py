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
@pytest.mark.parametrize(
    ("rows", "is_one", "before", "environment"),
    [
        ([32], False, "", {}),
        ([1 << 13], True, "", {}),
        ([32, 1 << 18], True, "", {}),
        ([32], True, "import sys; sys.ps1 = '>>> '", {}),  # at a prompt
        ([32], True, "", {SWITCH: "1"}),
    ],
)
def test_threads_share_an_arena_unless_all_declared_jobs_are_tiny(
    rows: list[int], is_one: bool, before: str, environment: dict[str, str]
) -> None:
    """Large pieces are kept in the first arena alone; in tiny jobs threads would take turns at it."""
    done = subprocess.run(
        [sys.executable, "-c", before + ARENAS, *map(str, rows)],
        capture_output=True,
        text=True,
        check=True,
        timeout=150,
        env={**unset("MALLOC_", SWITCH), **environment},
    )
    assert (int(done.stdout.split()[-1]) == 1) is is_one, done.stdout


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a policy of glibc's allocator")
def test_a_large_job_behind_tiny_ones_tells_that_it_gets_its_memory_anew() -> None:
    first = textwrap.dedent("""
        import numpy as np, oneflow as flow, oneflow.typing as tp
        @flow.global_function(type="predict")
        def tiny(x: tp.Numpy.Placeholder((2,))) -> tp.Numpy: return x + 1.0
        tiny(np.ones(2, np.float32))
    """)
    kept = {"capture_output": True, "text": True, "check": True, "timeout": 150, "env": unset("MALLOC_", SWITCH)}
    told = [subprocess.run([sys.executable, "-c", program], **kept).stderr for program in (first + STEPS, STEPS, first)]
    assert [f"{SWITCH}=1" in text for text in told] == [True, False, False], told


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
    (tmp_path / "jax_plugins" / "gpu").mkdir(parents=True)
    (tmp_path / "jax_plugins" / "gpu" / "__init__.py").touch()
    (tmp_path / "driver").touch()
    program = f"import oneflow._base.memory as m; m._DRIVERS = ({str(tmp_path / 'driver')!r},); print(m.keep_freed.__wrapped__())"
    kept = unset("MALLOC_", "JAX_")
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, [str(tmp_path), kept.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={**kept, **environment}
    )
    assert done.stdout.split() == [str(is_set)]
