"""What the library asks of XLA on accelerators: collectives that overlap, and the precision of products as a setting."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow._base import jax_versions
from oneflow._base.dist import parse_placement
from oneflow.compiler import program
from oneflow.compiler.options import compiler_options, cpu_options, product_precision
from oneflow.compiler.plan import plan
from oneflow.compiler.storing import storages
from oneflow.job.building import trace

SCHEDULER = "xla_gpu_enable_latency_hiding_scheduler"


def test_options_are_those_of_several_accelerators():
    assert compiler_options("gpu", 2, environment={}) == {SCHEDULER: True}
    assert compiler_options("gpu", 1, environment={}) == {} == compiler_options("cpu", 8, environment={})


@pytest.mark.parametrize("flags", [f"--{SCHEDULER}=false --xla_dump_to=x", f"--xla_dump_to=x --{SCHEDULER}"])
def test_what_the_user_has_set_stays(flags):
    assert compiler_options("gpu", 2, environment={"XLA_FLAGS": flags}) == {}
    assert compiler_options("gpu", 2, environment={"XLA_FLAGS": "--xla_dump_to=x"}) == {SCHEDULER: True}


@pytest.mark.skipif(not jax_versions.can_choose_library(), reason="the option is only known to work in jaxlib 0.10")
def test_many_small_products_are_left_to_xla_on_a_cpu():
    def options(layers, width, environment=None):
        flow.clear_default_session()

        @flow.global_function("predict")
        def job(x: tp.Numpy.Placeholder((4, width))) -> tp.Numpy:
            for i in range(layers):
                x = flow.layers.dense(x, width, kernel_initializer=flow.random_normal_initializer(stddev=0.3), name=f"d{i}")
            return x

        graph, fetches = trace(job.declaration, parse_placement("cpu", "0:0"))
        return job, cpu_options(plan(graph, fetches, platform="cpu"), environment=environment or {})

    job, many = options(40, 8)
    assert many == {"xla_cpu_experimental_ynn_fusion_type": ""}
    out = expected = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
    out = job(out)
    for i in range(40):
        variables = flow.get_all_variables()
        expected = expected @ variables[f"d{i}-weight"].numpy().T + variables[f"d{i}-bias"].numpy()
    np.testing.assert_allclose(out, expected, rtol=1e-3, atol=1e-6)
    assert options(3, 8)[1] == {} == options(40, 512)[1]
    assert options(40, 8, {"XLA_FLAGS": "--xla_cpu_experimental_ynn_fusion_type="})[1] == {}


@pytest.fixture(autouse=True)
def _no_precision_from_outside():
    """On a GPU the other tests set one."""
    with jax.default_matmul_precision(None):
        yield


def planned(platform, tensor_float_32):
    @flow.global_function(type="train")
    def job(x: tp.Numpy.Placeholder((4, 3, 8, 8))) -> tp.Numpy:
        h = flow.layers.conv2d(x, 4, 3, name="conv")
        loss = flow.math.reduce_mean(flow.layers.dense(flow.reshape(h, (4, -1)), 5, name="dense"))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    graph, fetches = trace(job._declaration, parse_placement("cpu", "0:0"))
    return plan(graph, fetches, native_ops=False, tensor_float_32=tensor_float_32, platform=platform)


@pytest.mark.parametrize("platform", ["gpu", "tpu", "cpu"])
@pytest.mark.parametrize("tensor_float_32", [True, False])
def test_products_and_convolutions_of_both_passes_have_full_precision_where_asked(platform, tensor_float_32):
    made = planned(platform, tensor_float_32)
    stored = storages(made.graph, made.replicated)
    written = tuple(jax.ShapeDtypeStruct(stored[n].stored_shape, made.graph.variables[n].dtype.numpy_dtype) for n in made.written)
    read = tuple(jax.ShapeDtypeStruct((1,), "float32") for _ in made.read)
    with jax.enable_x64(True):
        step = program.single(made, stored, None)
        text = str(step.trace(written, read, (jax.ShapeDtypeStruct((4, 3, 8, 8), "float32"),)).jaxpr)
    products = len(re.findall(r"dot_general|conv_general_dilated", text))
    assert products >= 5
    precise = len(re.findall(r"precision=\S*HIGHEST", text))
    assert precise == (0 if tensor_float_32 or platform == "cpu" else products)


def test_precision_holds_inside_only():
    made = planned("gpu", False)
    with product_precision(made):
        assert jax.config.jax_default_matmul_precision == "highest"
    assert jax.config.jax_default_matmul_precision is None


def test_the_setting_changes_nothing_on_a_cpu():
    def run(on):
        flow.clear_default_session()
        flow.config.enable_tensor_float_32_compute(on)

        @flow.global_function()
        def job(x: tp.Numpy.Placeholder((8, 8))) -> tp.Numpy:
            return flow.matmul(x, x)

        return job(np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32))

    np.testing.assert_array_equal(run(True), run(False))
