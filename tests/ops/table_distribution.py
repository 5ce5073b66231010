"""Distribution on one device, where it changes no value; tests/distribution/ has the others."""

from __future__ import annotations

import numpy as np
from table import Refusal, Row, floats

import oneflow as flow
from oneflow.errors import ArgumentError, AxisError
from oneflow.ops import distribution as advanced

X = floats(2, 3)

ROWS = [
    Row("distribute_split", lambda x: advanced.distribute_split(x, axis=1)[0], lambda x: x, [X]),
    Row("distribute_clone", lambda x: advanced.distribute_clone(x)[0], lambda x: x, [X]),
    Row("distribute_concat", lambda x: advanced.distribute_concat([x], axis=1), lambda x: x, [X]),
    Row("distribute_add", lambda x: advanced.distribute_add([x]), lambda x: x, [X]),
    Row("distribute_map", lambda x: advanced.distribute_map(x, flow.math.square)[0], np.square, [X]),
    Row("hierarchical_parallel_cast", lambda x: flow.hierarchical_parallel_cast(x, ["B"]), lambda x: x, [X]),
]

REFUSALS = [
    Refusal("distribute_split", lambda x: advanced.distribute_split(x, axis=2), [X], AxisError, "axis=2"),
    Refusal("hierarchical_parallel_cast", lambda x: flow.hierarchical_parallel_cast(x, ["T"]), [X], ArgumentError, "'T'"),
]
