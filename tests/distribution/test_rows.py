"""Rows of the op table on several devices: values and gradients are those of one device, also of batches that are not multiples.

Where XLA's partitioner fails a check it ends the process, and with it the tests that follow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from placed_jobs import begin, constant
from running import ROWS, arrays_of, dtypes_of

import oneflow as flow
import oneflow.typing as tp
from oneflow._base import dtype as dtypes

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]
OTHERWISE = {
    "distribute_split": "it gives the pieces of the devices that there are",
    "distribute_concat": "it takes the pieces of the devices that there are",
    "distribute_add": "it takes the pieces of the devices that there are",
    "distribute_map": "it takes the pieces of the devices that there are",
    "distributed_partial_fc_sample": "its numbers are multiples of the devices",
    "dynamic_binary_split": "its results have sizes that depend on data",
    "dynamic_binary_concat": "its results have sizes that depend on data",
}
KEPT = [(family, row) for family, row in ROWS if row.ref is not None and row.inputs and row.name not in OTHERWISE]


def computed(row: Any, arrays: list[np.ndarray], devices: int) -> list[np.ndarray]:
    """The row's results, and what a step of training makes of numbers that its floating inputs are multiplied by."""
    begin(devices)
    config = flow.FunctionConfig()
    config.default_placement_scope(flow.scope.placement("gpu", f"0:0-{devices - 1}"))
    placeholders = [tp.Numpy.Placeholder(a.shape, dtypes.from_numpy(a.dtype)) for a in arrays]
    trains = row.train and row.grad and any(a.dtype == np.float32 for a in arrays)

    def scaled(i: int, x: flow.Blob) -> flow.Blob:
        if x.dtype is not flow.float32:
            return x
        return x * flow.get_variable(f"v{i}", (1,) * x.ndim, initializer=flow.ones_initializer())

    def body(*xs: Any) -> Any:
        made = row.build(*(scaled(i, x) for i, x in enumerate(xs))) if trains else row.build(*xs)
        made = list(made) if isinstance(made, (list, tuple)) else [made]
        if trains:
            sums = [flow.math.reduce_sum(flow.math.square(y) + y) for y in made if y.dtype is flow.float32]
            flow.optimizer.SGD(constant(0.01), momentum=0).minimize(flow.math.add_n(sums))
        return made

    names = [f"x_{i}" for i in range(len(arrays))]
    scope: dict[str, Any] = {"p": placeholders, "body": body, "tp": tp}
    parameters = ", ".join(f"{name}: p[{i}]" for i, name in enumerate(names))
    exec(f"def job({parameters}) -> tp.Bundle[tp.Numpy]: return body({', '.join(names)})", scope)  # noqa: S102 - written above
    job = flow.global_function(type="train" if trains else "predict", function_config=config)(scope["job"])
    made = job(*arrays)
    made = list(made) if isinstance(made, (list, tuple)) else [made]
    return [*made, *(v.numpy() for name, v in sorted(flow.get_all_variables().items()) if name.startswith("v"))]


@pytest.mark.parametrize("wide", [False, True], ids=["as in the table", "int64"])
@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.parametrize("row", [pytest.param(row, id=f"{family}-{row.name}") for family, row in KEPT])
def test_several_devices_compute_what_one_does(row: Any, devices: int, wide: bool) -> None:
    arrays = arrays_of(row, dtypes_of(row)[0])
    if wide:
        if not any(a.dtype == np.int32 for a in arrays):
            pytest.skip("it has no input of int32")
        arrays = [a.astype(np.int64) if a.dtype == np.int32 else a for a in arrays]
    for got, expected in zip(computed(row, arrays, devices), computed(row, arrays, 1), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
