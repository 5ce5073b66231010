"""``layers.categorical_ordinal_encoder``: keys numbered in the order in which they first appear, kept from call to call."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oneflow as flow
import oneflow.typing as tp


def encoder(capacity: int, n: int, dtype: flow.dtype = flow.int64, name: str = "job") -> flow.JobFunction:
    def body(keys: tp.Numpy.Placeholder((n,), dtype=dtype)) -> tp.Numpy:
        return flow.layers.categorical_ordinal_encoder(keys, capacity=capacity, name="e")

    body.__name__ = name
    return flow.global_function()(body)


def table() -> np.ndarray:
    found = flow.get_all_variables()
    size = int(found["e-Size"].numpy()[0])
    pairs = found["e-Table"].numpy().reshape(-1, 2)
    assert np.count_nonzero(pairs[:, 0]) == size
    return pairs[np.argsort(pairs[:, 1])][-size:] if size else pairs[:0]


class Reference:
    """The same, by a dictionary."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.numbers = {0: 0}

    def __call__(self, keys: np.ndarray) -> list[int]:
        for key in keys.tolist():
            if len(self.numbers) <= self.capacity:
                self.numbers.setdefault(key, len(self.numbers))
        return [self.numbers.get(key, 0) for key in keys.tolist()]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_a_batch_may_hold_fifty_thousand_new_keys(dtype: type) -> None:
    """A loop that entered keys one by one took seconds per call."""
    limits, rng = np.iinfo(dtype), np.random.default_rng(0)
    keys = rng.integers(limits.min, limits.max, 200_000).astype(dtype)
    job, reference = encoder(200_000, 50_000, flow.int32 if dtype is np.int32 else flow.int64), Reference(200_000)
    for batch in (keys[:50_000], rng.choice(keys[:100_000], 50_000), rng.choice(keys, 50_000), keys[:50_000]):
        assert job(batch).tolist() == reference(batch)
    assert dict(table().tolist()) == {k: v for k, v in reference.numbers.items() if k}


def test_any_sequence_of_batches() -> None:
    capacity, n = 12, 10
    job = encoder(capacity, n)
    key = st.sampled_from([*range(-6, 7), 2**32, 2**32 + 1, 2**63 - 1, -(2**63)])

    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.lists(key, min_size=n, max_size=n), min_size=1, max_size=6))
    def agrees(batches: list[list[int]]) -> None:
        zeros = {name: np.zeros_like(v.numpy()) for name, v in flow.get_all_variables().items()}
        flow.load_variables(zeros)  # the table is replaced while the job goes on
        reference = Reference(capacity)
        for batch in map(np.array, batches):
            assert job(batch).tolist() == reference(batch)

    agrees()


def test_two_jobs_share_a_table() -> None:
    one, two = encoder(100, 4), encoder(100, 6, name="other")
    assert one(np.array([9, 8, 9, 7])).tolist() == [1, 2, 1, 3]
    assert two(np.array([6, 7, 8, 9, 5, 6])).tolist() == [4, 3, 2, 1, 5, 4]
    assert one(np.array([5, 6, 4, 9])).tolist() == [5, 4, 6, 1]
    assert two(np.array([4, 3, 2, 1, 4, 4])).tolist() == [6, 7, 8, 9, 6, 6]
    assert table()[:, 0].tolist() == [9, 8, 7, 6, 5, 4, 3, 2, 1]


def test_a_checkpoint_brings_the_numbers_back(tmp_path: Path) -> None:
    job = encoder(5, 4)
    job(np.array([50, 40, 30, 50]))
    flow.checkpoint.save(str(tmp_path / "three"))
    assert job(np.array([20, 30, 10, 1])).tolist() == [4, 3, 5, 0]
    flow.load_variables(flow.checkpoint.get(str(tmp_path / "three")))
    assert job(np.array([10, 30, 20, 1])).tolist() == [4, 3, 5, 0]
    assert table().tolist() == [[50, 1], [40, 2], [30, 3], [10, 4], [20, 5]]


def test_a_table_of_the_same_size_with_other_keys_is_noticed() -> None:
    job = encoder(3, 3)
    assert job(np.array([1, 2, 3])).tolist() == [1, 2, 3]
    for keys in ([3, 2, 1], [4, 5, 6]):
        pairs = np.stack([keys, [1, 2, 3]], axis=1).reshape(-1)
        flow.load_variables({"e-Table": pairs, "e-Size": np.array([3])})
        assert job(np.array([3, 4, 5])).tolist() == [keys.index(k) + 1 if k in keys else 0 for k in (3, 4, 5)]


def test_a_table_in_the_order_of_hashes_goes_on() -> None:
    """As OneFlow keeps it: each pair at the key modulo the capacity, or behind."""
    job = encoder(8, 4)
    pairs = np.zeros((8, 2), np.int64)
    pairs[[1, 2, 7]] = [[17, 1], [9, 2], [15, 3]]
    job(np.zeros(4, np.int64))
    flow.load_variables({"e-Table": pairs.reshape(-1), "e-Size": np.array([3])})
    assert job(np.array([15, 9, 17, 5])).tolist() == [3, 2, 1, 4]
    assert job(np.array([6, 5, 33, 6])).tolist() == [5, 4, 6, 5]
    assert dict(table().tolist()) == {17: 1, 9: 2, 15: 3, 5: 4, 6: 5, 33: 6}


@pytest.mark.parametrize("view", ["consistent", "mirrored"])
def test_on_two_devices(view: str) -> None:
    flow.config.cpu_device_num(2)
    config = flow.FunctionConfig()
    config.default_logical_view(flow.scope.mirrored_view() if view == "mirrored" else flow.scope.consistent_view())
    config.default_placement_scope(flow.scope.placement("cpu", "0:0-1"))

    if view == "consistent":

        @flow.global_function(function_config=config)
        def job(keys: tp.Numpy.Placeholder((8,), dtype=flow.int64)) -> tp.Numpy:
            return flow.layers.categorical_ordinal_encoder(keys * 2, capacity=6, name="e")

        reference = Reference(6)
        for batch in (np.array([5, 4, 5, 3, 0, 4, 2, 1]), np.array([9, 9, 5, 1, 8, 7, 6, 2])):
            assert job(batch).tolist() == reference(batch)
        return

    @flow.global_function(function_config=config)
    def each(keys: tp.ListNumpy.Placeholder((4,), dtype=flow.int64)) -> tp.ListNumpy:
        return flow.layers.categorical_ordinal_encoder(keys, capacity=6, name="e")

    references = Reference(6), Reference(6)  # each device numbers its own keys
    for batches in ([np.array([5, 4, 5, 3]), np.array([0, 4, 2, 1])], [np.array([9, 9, 5, 1]), np.array([8, 7, 6, 2])]):
        found = each(batches)
        assert [f.tolist() for f in found] == [r(b) for r, b in zip(references, batches, strict=True)]
