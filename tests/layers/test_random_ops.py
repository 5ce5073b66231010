"""Dropout and flow.random: shares, independence of calls, reproducibility."""

from __future__ import annotations

import random as python_random
from typing import Any

import jax
import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.ops.dropout import random_mask

ONES = np.ones((200, 103), np.float32)


def job_of(body: Any, kind: str = "predict") -> Any:
    @flow.global_function(type=kind)
    def job(x: tp.Numpy.Placeholder(ONES.shape)) -> tp.Numpy:
        y = body(x)
        if kind == "train":
            w = flow.get_variable("w", (1,), initializer=flow.ones_initializer())
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.0]), momentum=0).minimize(y * w)
        return y

    return job


@pytest.mark.parametrize("probability", [0.0, 0.25, 0.5, 0.9, 1 / 3, 1.0])
@pytest.mark.parametrize("shape", [(40000,), (300, 133), (2, 5, 1000, 3)])
def test_share_of_the_mask(probability: float, shape: tuple[int, ...]) -> None:
    with jax.enable_x64(True):
        mask = np.asarray(random_mask(jax.random.key(np.uint32(3)), shape, probability))
    assert mask.shape == shape
    deviation = np.sqrt(probability * (1 - probability) / mask.size)
    assert abs(mask.mean() - probability) <= 4.5 * deviation
    if 0 < probability < 1:  # neighbours share a random word, but no bits of it
        flat = mask.reshape(-1).astype(float)
        for distance in (1, 2, 4, 8):
            assert abs(np.corrcoef(flat[:-distance], flat[distance:])[0, 1]) < 0.03


def test_dropout_in_training() -> None:
    job = job_of(lambda x: flow.nn.dropout(x, 0.25, name="d"), "train")
    first, second = job(ONES), job(ONES)
    assert set(np.unique(first)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((first > 0).mean() - 0.75) < 0.02
    assert 0.3 < (first != second).mean() < 0.45, "each call has a mask of its own"


def test_dropout_elsewhere_is_the_blob_itself() -> None:
    seen = []

    def body(x: Any) -> Any:
        seen.append(flow.nn.dropout(x, 0.5) is x)
        return flow.nn.dropout(x, 0.5)

    assert (job_of(body)(ONES) == ONES).all()
    job_of(lambda x: seen.append(flow.nn.dropout(x, 0) is x) or x, "train")(ONES)
    assert seen == [True, True]


def test_gradient_of_dropout_uses_the_mask_of_the_call() -> None:
    found = []

    def body(x: Any) -> Any:
        v = flow.get_variable("v", ONES.shape, initializer=flow.ones_initializer())
        y = flow.nn.dropout(v, 0.5, name="d")
        flow.watch_diff(v, lambda g: found.append(g.numpy()))
        return y

    y = job_of(body, "train")(ONES)
    flow.sync_default_session()
    np.testing.assert_array_equal(found[0], y)


def test_the_same_seed_gives_the_same_calls() -> None:
    def run() -> list[np.ndarray]:
        flow.clear_default_session()
        flow.manual_seed(11)
        job = job_of(lambda x: flow.nn.random_mask_like(x, 0.5, name="m"))
        return [job(ONES) for _ in range(2)]

    first, second = run(), run()
    assert all((a == b).all() for a, b in zip(first, second, strict=True))
    assert (first[0] != first[1]).any() and first[0].dtype == np.int8


def test_other_names_and_seeds_give_other_masks() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(ONES.shape)) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        return (
            flow.nn.random_mask_like(x, 0.5, name="a"),
            flow.nn.random_mask_like(x, 0.5, name="b"),
            flow.nn.random_mask_like(x, 0.5, seed=1, name="c"),
        )

    a, b, c = job(ONES)
    assert (a != b).any() and (b != c).any() and (a != c).any()


def test_shuffle_and_permutation() -> None:
    rows = np.arange(ONES.size, dtype=np.float32).reshape(ONES.shape)

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(ONES.shape)) -> tuple[tp.Numpy, tp.Numpy]:
        return flow.random.shuffle(x), flow.random.generate_random_batch_permutation_indices(x, seed=3, name="p")

    shuffled, order = job(rows)
    assert (shuffled != rows).any() and (shuffled[np.argsort(shuffled[:, 0])] == rows).all()
    assert order.dtype == np.int32 and sorted(order.tolist()) == list(range(200))


def test_bernoulli_and_coins() -> None:
    @flow.global_function()
    def job(p: tp.Numpy.Placeholder(ONES.shape)) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        return flow.random.bernoulli(p), flow.random.bernoulli(p, dtype=flow.int8), flow.random.coin_flip(5000, probability=0.2)

    first, second, coins = job(ONES * 0.3)
    assert abs(first.mean() - 0.3) < 0.02 and second.dtype == np.int8 and (first != second).any()
    assert coins.dtype == np.int8 and abs(coins.mean() - 0.2) < 0.03


def test_gen_seed() -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((1,))) -> tp.Numpy:
        assert flow.random.gen_seed(5) == (5, True)
        python_random.seed(1)
        first = flow.random.gen_seed()
        python_random.seed(1)
        assert flow.random.gen_seed() == first and first[1] is True
        with flow.scope.mirrored_view():
            assert flow.random.gen_seed() == (-1, False)
        return x

    job(np.zeros(1, np.float32))


def drawn(body: Any, shape: tuple[int, ...] = (1, 1), calls: int = 1) -> np.ndarray:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder(shape)) -> tp.Numpy:
        return body(x)

    return np.concatenate([job(np.zeros(shape, np.float32)).reshape(-1) for _ in range(calls)])


def test_uniform_and_normal_numbers() -> None:
    flow.manual_seed(1)
    found = drawn(lambda x: flow.random.uniform((20000,), -1.0, 3.0), calls=2)
    assert -1 <= found.min() < -0.99 and 2.99 < found.max() < 3 and abs(found.mean() - 1) < 0.05
    assert not np.array_equal(found[:20000], found[20000:]), "each call draws new values"
    found = drawn(lambda x: flow.random.normal((20000,), 2.0, 0.5))
    assert abs(found.mean() - 2) < 0.02 and abs(found.std() - 0.5) < 0.02
    assert drawn(lambda x: flow.random.normal((3,), dtype=flow.float64)).dtype == np.float64
    with flow.session():
        one = drawn(lambda x: flow.random.normal((5,), seed=3, name="n"))
    with flow.session(seed=9):
        assert np.array_equal(one, drawn(lambda x: flow.random.normal((5,), seed=3, name="n")))


SHARES = np.array([0.05, 0.4, 0.1, 0.3, 0.15])


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, [0, 1, 2, 3, 4]), ({"top_k": 2}, [1, 3]), ({"top_k": 99}, [0, 1, 2, 3, 4]), ({"top_p": 0.39}, [1]),
        ({"top_p": 0.6}, [1, 3]), ({"top_p": 0.8}, [1, 3, 4]), ({"top_p": 1.0}, [0, 1, 2, 3, 4]),
        ({"top_k": 3, "top_p": 0.75}, [1, 3]), ({"temperature": 0.5}, [0, 1, 2, 3, 4]),
        ({"temperature": 0.5, "top_k": 2}, [1, 3]),
    ],
)  # fmt: skip
def test_classes_are_drawn_with_their_probabilities(options: dict[str, Any], kept: list[int]) -> None:
    flow.manual_seed(2)
    rows = 40000
    logits = flow_logits = np.log(SHARES).astype(np.float32)

    def body(x: Any) -> Any:
        row = flow.stack([flow.constant(float(v), flow.float32, (rows,)) for v in flow_logits], axis=1)
        return flow.random.categorical(row, **options)

    counts = np.bincount(drawn(body), minlength=5) / rows
    wanted = np.exp(logits / options.get("temperature", 1.0))
    wanted[[i for i in range(5) if i not in kept]] = 0
    np.testing.assert_allclose(counts, wanted / wanted.sum(), atol=0.012)
    assert set(np.flatnonzero(counts)) == set(kept)


def test_a_single_row_of_logits() -> None:
    assert drawn(lambda x: flow.random.categorical(x, top_k=1), (4,)).tolist() == [0]
