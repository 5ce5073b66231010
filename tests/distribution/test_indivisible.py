"""Train jobs that XLA's partitioner cannot divide as they are: what several devices compute is what one computes.

Where that fails, XLA ends the process.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from placed_jobs import constant

import oneflow as flow
import oneflow.typing as tp

ROWS = 7


@flow.experimental.register_op("ascending")
def ascending(x: Any) -> Any:
    return jnp.sort(x, axis=-1)


@flow.experimental.register_op("rows_chosen", grad=lambda inputs, outputs, cotangents: (jnp.sort(cotangents[0], axis=-1),))
def rows_chosen(x: Any) -> Any:
    return jnp.take_along_axis(x, jnp.argsort(x, axis=-1), axis=-1)


def table() -> flow.Blob:
    return flow.get_variable("table", (ROWS, 6), initializer=flow.constant_initializer(0.5))


@flow.experimental.register_op("ascending_but_one")
def ascending_but_one(x: Any) -> Any:
    return jnp.sort(x[1:], axis=0)[::-1]


def split_table() -> flow.Blob:
    initializer = flow.random_uniform_initializer(-0.5, 0.5)
    return flow.get_variable("split", (6, 7), initializer=initializer, random_seed=3, distribute=flow.distribute.split(1))


def column(ids: flow.Blob) -> flow.Blob:
    return flow.reshape(ids, (*ids.shape, 1))


# ids: int64 (7,); x: (7, 6), which depends on a variable
JOBS = {
    "gather": lambda ids, x: flow.gather(table(), ids),
    "gather from rows": lambda ids, x: flow.gather(x, ids),
    "gather from columns": lambda ids, x: flow.gather(x, ids % 6, axis=1),
    "gather_nd": lambda ids, x: flow.gather_nd(table(), column(ids)),
    "dim_gather": lambda ids, x: flow.dim_gather(x, 1, column(ids % 6)),
    "batch_gather": lambda ids, x: flow.gather(x, column(ids % 6), axis=1, batch_dims=1),
    "scatter_nd": lambda ids, x: flow.scatter_nd(column(ids), x, (9, 6)),
    "tensor_scatter_nd_add": lambda ids, x: flow.tensor_scatter_nd_add(table(), column(ids), x),
    "unsorted_segment_sum": lambda ids, x: flow.unsorted_segment_sum(x, ids, 9),
    "unsorted_batch_segment_sum": lambda ids, x: flow.unsorted_batch_segment_sum(x, flow.concat([column(ids)] * 6, 1), 9),
    "an op of the user's": lambda ids, x: ascending(x),
    "an op with a gradient": lambda ids, x: rows_chosen(x),
    "an op of rows without a batch": lambda ids, x: ascending(flow.slice(flow.concat([x, x], 0), [1, 0], [13, 6])),
    "an op of a split variable": lambda ids, x: flow.matmul(x, ascending(split_table())),
    "an op with fewer rows": lambda ids, x: ascending_but_one(flow.concat([x, flow.slice(x, [0, 0], [5, 6])], 0)),
    "max pooling": lambda ids, x: flow.nn.max_pool2d(flow.reshape(x, (1, 1, ROWS, 6)), 3, 2, "SAME"),
    "average pooling": lambda ids, x: flow.nn.avg_pool2d(flow.reshape(x, (1, ROWS, 6, 1)), 3, 2, "SAME", data_format="NHWC"),
}


def trained(build: Any, devices: int, hierarchy: tuple[int, int] | None = None) -> list[np.ndarray]:
    flow.clear_default_session()
    flow.config.gpu_device_num(devices)
    config = flow.FunctionConfig()
    config.default_placement_scope(flow.scope.placement("gpu", f"0:0-{devices - 1}", hierarchy))

    @flow.global_function(type="train", function_config=config)
    def job(ids: tp.Numpy.Placeholder((ROWS,), dtype=flow.int64), x: tp.Numpy.Placeholder((ROWS, 6))) -> tp.Numpy:
        y = build(ids, x * flow.get_variable("scale", (1, 6), initializer=flow.constant_initializer(0.7)))
        flow.optimizer.SGD(constant(0.1)).minimize(flow.math.square(y))
        return y

    rng = np.random.default_rng(1)
    y = job(rng.integers(0, ROWS, ROWS), rng.standard_normal((ROWS, 6), np.float32))
    return [y, *(v.numpy() for _, v in sorted(flow.get_all_variables().items()))]


@pytest.mark.parametrize("hierarchy", [None, (2, 2)])
@pytest.mark.parametrize("build", JOBS.values(), ids=JOBS)
def test_several_devices_train_as_one(build: Any, hierarchy: tuple[int, int] | None) -> None:
    for got, expected in zip(trained(build, 4 if hierarchy else 3, hierarchy), trained(build, 1), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_windows_along_the_batch_axis() -> None:
    config = flow.FunctionConfig()

    def pooled(devices: int) -> np.ndarray:
        flow.clear_default_session()
        flow.config.gpu_device_num(devices)
        config.default_placement_scope(flow.scope.placement("gpu", f"0:0-{devices - 1}"))

        @flow.global_function(type="train", function_config=config)
        def job(x: tp.Numpy.Placeholder((2, 3, 8, 8), batch_axis=2)) -> tp.Numpy:
            scale = flow.get_variable("scale", (1, 1, 1, 8), initializer=flow.constant_initializer(0.7))
            y = flow.nn.max_pool2d(x * scale, 3, 2, "SAME")
            flow.optimizer.SGD(constant(0.1)).minimize(y * y)
            return y

        job(np.random.default_rng(2).standard_normal((2, 3, 8, 8), np.float32))
        return flow.get_all_variables()["scale"].numpy()

    np.testing.assert_allclose(pooled(2), pooled(1), rtol=1e-5)
