"""Finding NaNs in jobs on several devices."""

from __future__ import annotations

import numpy as np
import pytest
from placed_jobs import begin

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import NonFiniteError


def stages():
    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
        w = flow.get_variable("w", (4, 3), initializer=flow.ones_initializer())
        with flow.scope.placement("gpu", "0:0"):
            h = flow.matmul(x, w)
        with flow.scope.placement("gpu", "0:1"):
            loss = flow.math.reduce_mean(flow.math.log(h, name="logarithm"))
        flow.optimizer.Adam(0.1).minimize(loss)
        return loss

    return train


def mirrored():
    config = flow.FunctionConfig()
    config.default_logical_view(flow.scope.mirrored_view())

    @flow.global_function("train", config)
    def train(x: tp.Numpy.Placeholder((8, 4))) -> tp.Numpy:
        w = flow.get_variable("w", (4, 3), initializer=flow.ones_initializer())
        loss = flow.math.reduce_mean(flow.math.log(flow.matmul(x, w), name="logarithm"))
        flow.optimizer.Adam(0.1).minimize(loss)
        return flow.math.reduce_mean(loss)

    return train


@pytest.mark.parametrize("declare", [stages, mirrored])
def test_the_first_value_that_is_not_finite_is_found(declare):
    begin(2)
    train = declare()
    x = np.ones((8, 4), np.float32)
    bad = x.copy()
    bad[5] = 0
    assert np.isfinite(train(x)).all()
    assert train.find_nonfinite(x) is None
    assert train.find_nonfinite(bad).name == "logarithm"
    before = flow.get_all_variables()["w"].numpy().copy()
    flow.config.find_nonfinite(True)
    with pytest.raises(NonFiniteError, match="logarithm"):
        train(bad)
    np.testing.assert_array_equal(flow.get_all_variables()["w"].numpy(), before)
    assert np.isfinite(train(x)).all()


@pytest.mark.parametrize("declare", [stages, mirrored])
def test_profiles_add_up(declare):
    begin(2)
    train = declare()
    x = np.ones((8, 4), np.float32)
    before = train(x)
    profile = train.profile(x, steps=3)
    parts = sum(row.milliseconds for row in profile.rows) + sum(profile.outside.values())
    assert parts == pytest.approx(profile.step_ms, rel=0.05)
    rows = {row.name: row for row in profile.rows}
    assert rows["logarithm"].forward_ms + rows["logarithm"].backward_ms > 0
    assert rows["Matmul_0"].update_ms > 0
    assert all(row.instructions for row in profile.rows)
    assert np.isfinite(before).all() and np.isfinite(train(x)).all()
