"""A first step that fails for want of memory leaves the state as it was; none keeps a second copy of the state for that."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.runtime.aligned import aligned_empty
from oneflow.runtime.session import default_session
from oneflow.runtime.store import Store
from oneflow.runtime.transfer import donatable, view

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and reports memory as Linux does")

PRELUDE = """
import os, resource, sys
import numpy as np
import oneflow as flow
import oneflow.typing as tp

ELEMENTS, ROWS = 1 << 20, 2048  # 4 MB of state, and 8 GB of temporaries

def make(rows):
    def train(x: tp.Numpy.Placeholder((rows, 1))) -> tp.Numpy:
        w = flow.get_variable("w", (1, ELEMENTS), initializer=flow.random_uniform_initializer(-1, 1))
        loss = flow.math.reduce_mean(flow.math.cumsum(flow.math.tanh(x * w), 1)) if rows > 1 else flow.math.reduce_mean(x * w)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.5]), momentum=0.9).minimize(loss)
        return loss

    train.__name__ = f"train{rows}"
    return flow.global_function("train")(train)

def state():
    return {name: handle.numpy() for name, handle in flow.get_all_variables().items()}
"""


def run(program: str) -> str:
    quiet = {**os.environ, "ONEFLOW_LOG": "warning", "ONEFLOW_CACHE_DIR": ""}
    done = subprocess.run([sys.executable, "-c", PRELUDE + program], capture_output=True, text=True, timeout=600, env=quiet)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("given", ["drawn", "arrays", "checkpoint"])
def test_a_first_step_without_memory_enough_loses_nothing(given: str, tmp_path):
    found = run(f"""
small, large = make(1), make(ROWS)
values = state()
if {given!r} != "drawn":
    values = {{name: np.full_like(v, 3) for name, v in values.items()}}
    flow.load_variables(values)
if {given!r} == "checkpoint":
    flow.checkpoint.save({str(tmp_path / "saved")!r})
    flow.load_variables({{name: np.zeros_like(v) for name, v in values.items()}})
    flow.load_variables(flow.checkpoint.get({str(tmp_path / "saved")!r}))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
_, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + (3 << 30), hard))  # enough to compile
try:
    large(np.ones((ROWS, 1), np.float32))
except flow.errors.ExecutionError as error:
    print("told:", error)
resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
after = state()
assert values.keys() == after.keys() and len(values) == 4, after.keys()
assert all(np.array_equal(values[name], after[name]) for name in values)
small(np.ones((1, 1), np.float32))
assert not np.array_equal(state()["w"], values["w"])
""")
    assert found.count("told:") == 1 and "its state  as it was before this call" in found and "memory" in found, found


def _aligned(values: np.ndarray) -> np.ndarray:
    array = aligned_empty(values.shape, values.dtype)
    array[...] = values
    return array


SHARED = "a GPU shares no memory with NumPy"


@pytest.mark.cpu(SHARED)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int8])
def test_an_array_in_memory_of_its_own_is_written_in_place(dtype: type):
    source = _aligned(np.arange(1 << 16).astype(dtype))
    shared = Store.put(source)
    own = donatable(shared, source)
    assert own.dtype == dtype and np.array_equal(own, source)
    with jax.enable_x64(True):
        step = jax.jit(lambda a: a + a.dtype.type(1), donate_argnums=0)
        assert shared.unsafe_buffer_pointer() == source.ctypes.data  # what there is to mend
        assert step(shared).unsafe_buffer_pointer() != source.ctypes.data
        before = own.unsafe_buffer_pointer()
        after = step(own)
    assert after.unsafe_buffer_pointer() == before != source.ctypes.data
    assert np.array_equal(source, np.arange(1 << 16).astype(dtype))
    assert donatable(after, source) is after


@pytest.mark.cpu(SHARED)
def test_a_view_is_no_copy_and_no_step_writes_into_it():
    array = jax.device_put(np.arange(1 << 16, dtype=np.float32)).copy()
    seen = view(array)
    assert seen.ctypes.data == array.unsafe_buffer_pointer() and not seen.flags.writeable
    after = jax.jit(lambda a: a + 1, donate_argnums=0)(array)
    assert np.array_equal(seen, np.arange(1 << 16)) and np.array_equal(after, seen + 1)


def test_the_first_step_of_new_variables_updates_them_in_place():
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((1, 1))) -> tp.Numpy:
        w = flow.get_variable("w", (1, 1 << 18), initializer=flow.ones_initializer())
        loss = flow.math.reduce_mean(x * w)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.5])).minimize(loss)
        return loss

    flow.get_all_variables()["w"].numpy()
    cell = default_session().store.cells["w"]
    before = cell.value.unsafe_buffer_pointer()
    train(np.ones((1, 1), np.float32))
    assert cell.value.unsafe_buffer_pointer() == before


def test_variables_that_start_infinite_where_jax_looks_for_infinities():
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((1, 1))) -> tp.Numpy:
        masks = [flow.get_variable(f"m{i}", (1, 40 + i), initializer=flow.constant_initializer(-np.inf)) for i in range(30)]
        return x + sum(flow.math.reduce_sum(flow.math.exp(mask), keepdims=True) for mask in masks)

    with jax.debug_infs(True):
        assert job(np.ones((1, 1), np.float32)) == 1
