"""flow.data.ArrayLoader: batches, their order, workers, positions, shards."""

from __future__ import annotations

import itertools
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oneflow as flow
from oneflow.errors import ArgumentError, DataError, ShapeError

N = 23
X = np.arange(N * 2, dtype=np.float32).reshape(N, 2)
Y = np.arange(N, dtype=np.int32)


def noisy(batch, rng):
    x, y = batch
    x += rng.standard_normal(x.shape, np.float32)
    return x, y


def failing(batch, rng):
    raise RuntimeError("no such image")


def rows_of(loader):
    return [y.tolist() for _, y in loader]


def equal(one, other):
    return len(one) == len(other) and all(
        len(a) == len(b) and all(np.array_equal(p, q) for p, q in zip(a, b, strict=True)) for a, b in zip(one, other, strict=True)
    )


def test_in_order_and_without_copies():
    loader = flow.data.ArrayLoader((X, Y), 10)
    batches = list(loader)
    assert len(loader) == 3 and [len(y) for _, y in batches] == [10, 10, 3]
    assert all(np.shares_memory(x, X) and np.array_equal(x, X[y]) for x, y in batches)


@pytest.mark.parametrize("options", [{}, {"shard": (1, 2), "last": "drop"}, {"num_workers": 1}])
def test_changing_a_batch_in_place_does_not_reach_the_data(options):
    x = np.arange(8.0)
    for batch in flow.data.ArrayLoader({"x": x}, 4, **options):
        with pytest.raises(ValueError, match="read-only"):
            batch["x"] -= batch["x"].mean()
    assert x.tolist() == list(range(8)) and x.flags.writeable
    for changed in ({"shuffle": True}, {"last": "pad"}, {"transform": lambda batch, rng: batch}):
        for batch in flow.data.ArrayLoader({"x": x}, 4, **{**options, **changed}):
            batch["x"][:] = 0
    assert x.tolist() == list(range(8))


def test_each_pass_has_an_order_of_its_own_and_every_row_once():
    loader = flow.data.ArrayLoader((X, Y), 5, shuffle=True, seed=3)
    passes = [list(itertools.chain.from_iterable(rows_of(loader))) for _ in range(3)]
    assert all(sorted(p) == list(range(N)) for p in passes)
    assert passes[0] != passes[1] != passes[2]
    again = flow.data.ArrayLoader((X, Y), 5, shuffle=True, seed=3)
    assert [list(itertools.chain.from_iterable(rows_of(again))) for _ in range(3)] == passes
    other = flow.data.ArrayLoader((X, Y), 5, shuffle=True, seed=4)
    assert list(itertools.chain.from_iterable(rows_of(other))) != passes[0]
    assert all(np.array_equal(x, X[y]) for x, y in again)


@pytest.mark.parametrize(
    ("given_arrays", "taken"),
    [
        (X, lambda b: b), ([X], lambda b: b[0]), ({"x": X, "y": Y}, lambda b: b["x"]), ((X, Y, X), lambda b: b[2]),
    ],
    ids=["one array", "a list", "a dictionary", "a tuple"],
)  # fmt: skip
def test_structures(given_arrays, taken):
    batches = list(flow.data.ArrayLoader(given_arrays, 10))
    np.testing.assert_array_equal(np.concatenate([taken(b) for b in batches]), X)
    assert isinstance(batches[0], {np.ndarray: np.ndarray, list: tuple, dict: dict, tuple: tuple}[type(given_arrays)])


def test_other_kinds_of_arrays():
    torch = pytest.importorskip("torch")
    import jax.numpy as jnp

    tensor = torch.arange(12).reshape(6, 2)
    (x, z, b, whole), *_ = flow.data.ArrayLoader((tensor, jnp.ones((6, 1)), torch.ones(6, dtype=torch.bfloat16), [1] * 6), 6)
    assert np.shares_memory(x, tensor.numpy())
    assert z.shape == (6, 1) and b.dtype.name == "bfloat16" and whole.tolist() == [1] * 6


def test_frames():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"age": [30, 40, 50], "income": [1.0, 2.0, 3.0]})
    first, second = flow.data.ArrayLoader(frame, 2)
    assert first["age"].tolist() == [30, 40] and second["income"].tolist() == [3.0]
    matrix, column = next(iter(flow.data.ArrayLoader((frame, frame["age"]), 2)))
    assert matrix.tolist() == [[30, 1], [40, 2]] and column.tolist() == [30, 40]


def test_drop_and_pad():
    assert [len(y) for _, y in flow.data.ArrayLoader((X, Y), 10, last="drop")] == [10, 10]
    *_, (x, y, weights) = flow.data.ArrayLoader((X, Y), 10, last="pad")
    assert y.tolist() == [20, 21, 22] + [22] * 7 and np.array_equal(x, X[y])
    assert weights.tolist() == [1] * 3 + [0] * 7 and weights.dtype == np.float32
    weights = np.arange(len(Y)) + 0.5
    *_, last = flow.data.ArrayLoader({"y": Y, "sample_weight": weights}, 10, last="pad")
    rows = len(Y) % 10
    np.testing.assert_array_equal(last["sample_weight"], [*weights[-rows:], *[0] * (10 - rows)])
    *_, last = flow.data.ArrayLoader({"y": Y}, 10, last="pad", shuffle=True)
    assert last["sample_weight"].sum() == 3 and len(last["y"]) == 10
    total = sum(w.sum() for _, _, w in flow.data.ArrayLoader((X, Y), 10, last="pad"))
    assert total == N


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_workers_change_nothing(workers):
    def passes(count):
        loader = flow.data.ArrayLoader((X, Y), 4, shuffle=True, seed=1, transform=noisy, num_workers=count)
        return list(loader) + list(loader)

    assert equal(passes(workers), passes(0))
    assert X[0, 0] == 0  # a transform in place does not reach the arrays
    in_order = flow.data.ArrayLoader((X, Y), 4, transform=noisy)
    assert not np.array_equal(next(iter(in_order))[0], X[:4]) and X[0, 1] == 1


def test_processes_change_nothing():
    # the function must be importable in the worker: this module is not, under importlib mode
    def passes(**options):
        loader = flow.data.ArrayLoader((X, Y), 4, shuffle=True, transform=_importable(), **options)
        return list(loader) + list(loader)

    assert equal(passes(num_workers=2, worker_type="process"), passes())


def test_a_worker_process_that_ends_is_told_and_replaced(tmp_path):
    from oneflow_test_transforms import ending

    loader = flow.data.ArrayLoader((X, Y), 12, transform=ending, num_workers=1, worker_type="process")
    (tmp_path / "raise").touch()
    with pytest.raises(RuntimeError, match=r"(?s)Odd: cannot come back.*batch 0 of pass 0"):  # it cannot be unpickled
        list(loader)
    (tmp_path / "raise").rename(tmp_path / "exit")
    with pytest.raises(DataError, match="a worker process of an ArrayLoader ended before it returned its batch"):
        list(loader)
    (tmp_path / "exit").unlink()
    assert rows_of(loader) == [Y[:12].tolist(), Y[12:].tolist()]


def _importable():
    from oneflow_test_transforms import shifted

    return shifted


_TRANSFORMS = """
import os

def shifted(batch, rng):
    x, y = batch
    return x + rng.random(), y

class Odd(Exception):
    def __init__(self, one, other):
        super().__init__(one)

def ending(batch, rng):
    folder = os.path.dirname(__file__)
    if os.path.exists(os.path.join(folder, "raise")):
        raise Odd("cannot come back", 2)
    if os.path.exists(os.path.join(folder, "exit")):
        os._exit(1)
    return batch
"""


@pytest.fixture(autouse=True)
def _module_of_transforms(tmp_path, monkeypatch):
    (tmp_path / "oneflow_test_transforms.py").write_text(_TRANSFORMS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("oneflow_test_transforms", None)


def test_threads_work_ahead_and_end_with_the_loop():
    made = []

    def note(batch, rng):
        made.append(threading.current_thread().name)
        return batch

    iterator = iter(flow.data.ArrayLoader((X, Y), 2, transform=note, num_workers=2, prefetch_factor=2))
    next(iterator)
    assert all(name.startswith("oneflow-load") for name in made)
    iterator.close()
    assert len(made) <= 1 + 2 * 2 + 1
    assert not [t for t in threading.enumerate() if t.name.startswith("oneflow-load")]


@given(
    stop=st.integers(0, 12), passes=st.integers(0, 2), workers=st.sampled_from([0, 2]),
    last=st.sampled_from(["keep", "drop", "pad"]), shuffle=st.booleans(),
)  # fmt: skip
@settings(max_examples=30, deadline=None)
def test_a_position_goes_on_with_the_same_batches(stop, passes, workers, last, shuffle):
    def make():
        def transform(batch, rng):
            return (batch[0] + rng.random(), *batch[1:])

        return flow.data.ArrayLoader((X, Y), 2, shuffle=shuffle, seed=5, last=last, transform=transform, num_workers=workers)

    loader = make()
    for _ in range(passes):
        list(loader)
    iterator = iter(loader)
    for _ in range(min(stop, len(loader))):
        next(iterator)
    state = loader.state_dict()
    expected = [*iterator, *loader]
    resumed = make()
    resumed.load_state_dict(state)
    found = [*resumed, *resumed]
    assert equal(found, expected)


def test_a_loop_that_was_left_is_followed_by_the_next_pass():
    loader = flow.data.ArrayLoader((X, Y), 5, shuffle=True)
    passes = [rows_of(loader) for _ in range(2)]
    loader.set_epoch(0)
    for _ in loader:
        break
    assert rows_of(loader) == passes[1]


def test_two_passes_beside_each_other():
    loader = flow.data.ArrayLoader(np.arange(10), 2)
    pairs = list(zip(loader, loader, strict=True))
    assert [[first.tolist(), second.tolist()] for first, second in pairs] == [[[i, i + 1]] * 2 for i in range(0, 10, 2)]


def test_positions_of_other_loaders_are_refused():
    state = flow.data.ArrayLoader((X, Y), 5, shuffle=True).state_dict()
    for other in (flow.data.ArrayLoader((X, Y), 4, shuffle=True), flow.data.ArrayLoader((X, Y), 5, shuffle=True, seed=1)):
        with pytest.raises(ArgumentError, match="another ArrayLoader.*here"):
            other.load_state_dict(state)


def test_shards_are_pieces_of_the_batches_of_one_process():
    whole = list(flow.data.ArrayLoader((X, Y), 6, shuffle=True, last="pad"))
    parts = [list(flow.data.ArrayLoader((X, Y), 6, shuffle=True, last="pad", shard=(i, 3))) for i in range(3)]
    joined = [tuple(map(np.concatenate, zip(*pieces, strict=True))) for pieces in zip(*parts, strict=True)]
    assert equal(joined, whole)


def test_errors_of_a_transform_say_where():
    for workers in (0, 2):
        with pytest.raises(RuntimeError, match="no such image") as caught:
            list(flow.data.ArrayLoader((X, Y), 5, transform=failing, num_workers=workers))
        assert "batch 0 of pass 0" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (((X, Y[:3]), 5), ShapeError, "equally many rows"),
        (((X[:0],), 5), ShapeError, "no rows"),
        (((), 5), ArgumentError, "at least one array"),
        ((np.float32(3), 5), ArgumentError, "axis of rows"),
        (((X, ["a", {}]), 5), ArgumentError, "not an array"),
        (((X,), 0), ArgumentError, "batch_size must be an int > 0"),
        (((X,), True), ArgumentError, "batch_size"),
    ],
)
def test_mistakes(arguments, error, text):
    with pytest.raises(error, match=text):
        flow.data.ArrayLoader(*arguments)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"last": "cut"}, 'last must be "keep", "drop"'), ({"seed": -1}, "seed must be"),
        ({"num_workers": 1.5}, "num_workers must be"),
        ({"worker_type": "fork"}, 'worker_type must be "thread"'), ({"transform": 3}, "transform must be a function"),
        ({"shard": (2, 2)}, "shard must be"), ({"shard": (0, 3), "last": "drop"}, "cannot be cut into 3"),
        ({"shard": (0, 2)}, "short last batch"), ({"prefetch_factor": 0}, "prefetch_factor"),
    ],
)  # fmt: skip
def test_options(options, text):
    with pytest.raises(ArgumentError, match=text):
        flow.data.ArrayLoader((X, Y), 4, **options)


@pytest.mark.parametrize("state", [None, [], {"epoch": -1}, {"epoch": "a"}, {"epoch": 5, "batch": 99}, {"batch": None}])
def test_a_position_that_cannot_be_is_refused(state):
    loader = flow.data.ArrayLoader(X, 5)
    whole = loader.state_dict()
    with pytest.raises(ArgumentError, match="load_state_dict|state"):
        loader.load_state_dict({**whole, **state} if isinstance(state, dict) else state)
    assert loader.state_dict() == whole and len(list(loader)) == 5


def test_a_transform_for_processes_is_pickled_when_the_loader_is_made():
    with pytest.raises(ArgumentError, match="must be picklable"):
        flow.data.ArrayLoader(X, 5, transform=lambda batch, rng: batch, num_workers=1, worker_type="process")
