"""Ops that draw, count or remember: the same under one seed, another value at each step, the same sync and async."""

from __future__ import annotations

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp

X = np.random.default_rng(2).standard_normal((4, 6)).astype(np.float32)


def counter():
    count = flow.get_variable("count", (1,), initializer=flow.zeros_initializer(), trainable=False)
    flow.assign(count, count + 1)
    return count


BODIES = {
    "dropout": lambda x: flow.nn.dropout(x, 0.5),
    "dropout with a seed": lambda x: flow.nn.dropout(x, 0.5, seed=7, name="d"),
    "random_mask_like": lambda x: flow.cast(flow.nn.random_mask_like(x, 0.4), flow.float32),
    "bernoulli": lambda x: flow.random.bernoulli(flow.math.sigmoid(x)),
    "coin_flip": lambda x: flow.cast(flow.random.coin_flip(16), flow.float32),
    "shuffle": lambda x: flow.random.shuffle(flow.reshape(x, (24, 1))),
    "permutation": lambda x: flow.cast(
        flow.random.generate_random_batch_permutation_indices(flow.reshape(x, (24,))), flow.float32
    ),
    "batch_normalization": lambda x: flow.layers.batch_normalization(flow.nn.dropout(x, 0.3), axis=1),
    "assign": lambda x: x + counter(),
    "observer": lambda x: flow.quantization.moving_average_min_max_observer(x * counter())[0],
    "fused": lambda x: flow.nn.fused_bias_add_dropout(x, flow.constant(0.5, flow.float32, (6,)), rate=0.5),
}
KEPT = {
    "batch_normalization": ["BatchNorm-moving_mean", "BatchNorm-moving_variance"], "assign": ["count"],
    "observer": ["MovingAverageMinMaxObserver_0-moving_max"],
}  # fmt: skip


def train(body, kind):
    def job(x: tp.Numpy.Placeholder(X.shape)) -> kind:
        y = body(x)
        w = flow.get_variable("w", (1,), initializer=flow.random_normal_initializer())
        loss = flow.math.reduce_mean(y * w)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1]), momentum=0).minimize(loss)
        return y

    return flow.global_function("train")(job)


def run(name, asynchronous=False, steps=4, seed=11):
    flow.clear_default_session()
    flow.manual_seed(seed)
    seen = []
    job = train(BODIES[name], tp.Callback[tp.Numpy] if asynchronous else tp.Numpy)
    for _ in range(steps):
        result = job(X)
        if asynchronous:
            result(lambda value: seen.append(value.copy()))
        else:
            seen.append(result)
    flow.sync_default_session()
    kept = flow.get_all_variables()
    return seen, [kept[n].numpy() for n in [*KEPT.get(name, []), "w"]]


@pytest.mark.parametrize("name", BODIES)
def test_reproducible_and_the_same_asynchronously(name):
    values, kept = run(name)
    again, kept_again = run(name, asynchronous=True)
    for ours, theirs in zip([*values, *kept], [*again, *kept_again], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert any(not np.array_equal(values[0], later) for later in values[1:]), "it is the same at every step"


@pytest.mark.parametrize("name", ["dropout", "bernoulli"])
def test_another_seed_another_sequence(name):
    assert not np.array_equal(run(name, seed=11)[0], run(name, seed=12)[0])


def test_a_seed_of_the_users_own_is_not_the_sessions():
    first, other = (run("dropout with a seed", seed=seed)[0] for seed in (11, 12))
    np.testing.assert_array_equal(first, other)


def test_predict_jobs_leave_state_alone():
    train_job = train(BODIES["batch_normalization"], tp.Numpy)

    @flow.global_function("predict")
    def predict(x: tp.Numpy.Placeholder(X.shape)) -> tp.Numpy:
        return flow.layers.batch_normalization(flow.nn.dropout(x, 0.3), axis=1)

    train_job(X)
    before = flow.get_all_variables()["BatchNorm-moving_mean"].numpy()
    first = predict(X)
    np.testing.assert_array_equal(first, predict(X))
    np.testing.assert_array_equal(flow.get_all_variables()["BatchNorm-moving_mean"].numpy(), before)
    variance, gamma, beta = (flow.get_all_variables()[f"BatchNorm-{n}"].numpy() for n in ("moving_variance", "gamma", "beta"))
    np.testing.assert_allclose(first, gamma * (X - before) / np.sqrt(variance + 1e-3) + beta, rtol=1e-4, atol=1e-5)


def test_saving_and_loading_goes_on_where_it_stopped(tmp_path):
    straight, _ = run("dropout", steps=4)
    run("dropout", steps=2)
    flow.checkpoint.save(str(tmp_path / "halfway"))
    flow.clear_default_session()
    job = train(BODIES["dropout"], tp.Numpy)
    flow.train.CheckPoint().load(str(tmp_path / "halfway"))
    for expected in straight[2:]:
        np.testing.assert_array_equal(job(X), expected)
