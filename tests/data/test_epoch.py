"""Arrays whose end waits for what was submitted."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from oneflow.data import EpochArray, epoch


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The waits so far."""
    seen: list[str] = []
    monkeypatch.setattr(epoch, "on_epoch_end", lambda: seen.append("end"))
    return seen


@pytest.fixture
def images() -> EpochArray:
    return EpochArray(np.arange(24, dtype=np.float32).reshape(4, 3, 2))


def test_the_end_of_a_loop_waits_once(images: EpochArray, ends: list[str]) -> None:
    for i, batch in enumerate(images):
        assert type(batch) is np.ndarray and batch.base is not None and ends == []
        np.testing.assert_array_equal(batch, np.asarray(images)[i])
    assert i == 3 and ends == ["end"]


def test_zip_and_enumerate_as_the_tutorials_write_it(images: EpochArray, ends: list[str]) -> None:
    labels = EpochArray(np.arange(12).reshape(4, 3))
    for _ in range(2):
        for step, (batch, label) in enumerate(zip(images, labels)):  # noqa: B905
            assert step < 4 and batch.shape == (3, 2) and label.shape == (3,) and type(label) is np.ndarray
    assert ends == ["end", "end"]


def test_a_loop_that_is_left_does_not_wait(images: EpochArray, ends: list[str]) -> None:
    for _ in images:
        break
    next(iter(images))
    assert ends == []


def test_an_error_at_the_end_reaches_the_loop(images: EpochArray, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("a callback failed")

    monkeypatch.setattr(epoch, "on_epoch_end", fail)
    count = 0
    with pytest.raises(RuntimeError, match="a callback failed"):
        for _ in zip(images, images):  # noqa: B905
            count += 1
    assert count == 4


@pytest.mark.parametrize(
    "cut",
    [
        lambda x: x[:2],
        lambda x: x[::2],
        lambda x: x[..., 0],
        lambda x: x[:2, 1],
        lambda x: x[[3, 1]],
        lambda x: x[np.array([True, False, True, False])],
        lambda x: x.copy(),
        lambda x: copy.copy(x),
        lambda x: copy.deepcopy(x),
        lambda x: pickle.loads(pickle.dumps(x)),
        lambda x: x.astype(np.float64),
        lambda x: x.reshape(2, -1),
        lambda x: x[np.random.default_rng(0).permutation(len(x))],
    ],
)
def test_what_is_cut_from_it_waits_likewise(images: EpochArray, ends: list[str], cut) -> None:
    piece = cut(images)
    np.testing.assert_array_equal(np.asarray(piece), cut(np.asarray(images)))
    assert type(piece) is EpochArray and ends == []
    assert all(type(batch) is np.ndarray for batch in piece) and ends == ["end"]


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x + 1,
        lambda x: 1 - x,
        lambda x: x * x,
        lambda x: -x,
        lambda x: x == 3,
        lambda x: np.exp(x),
        lambda x: x[0],
        lambda x: x[np.int64(1), :2],
        lambda x: x.mean(0),
        lambda x: np.sum(x, axis=(1, 2)),
        lambda x: np.stack([x, x]),
        lambda x: np.concatenate([x, x]),
        lambda x: np.clip(x, 1, 2),
        lambda x: np.where(x > 3, x, 0),
        lambda x: np.einsum("ijk->ik", x),
        lambda x: np.add.accumulate(x),
        lambda x: np.array(x),
        lambda x: np.asarray(x),
    ],
)
def test_what_is_computed_from_it_is_plain(images: EpochArray, ends: list[str], compute) -> None:
    result = compute(images)
    assert type(result) is np.ndarray and ends == []
    np.testing.assert_array_equal(result, compute(np.asarray(images)))


def test_numbers(images: EpochArray) -> None:
    assert images.sum() == 276 and images.max() == 23 and images.argmax() == 23 and float(images.mean()) == 11.5
    assert type(images.sum()) is np.float32 and type(images[0, 0, 0]) is np.float32
    labels = EpochArray(np.arange(3))
    assert [type(x) for x in labels] == [np.int64] * 3 and labels[1] == 1 and images.tolist()[0][0] == [0, 1]


def test_in_place(images: EpochArray) -> None:
    same = images
    images -= 1
    np.divide(images, 2, out=images)
    np.add.at(images, (0, 0, 0), 5)
    assert images is same and type(images) is EpochArray and images[0, 0, 0] == 4.5 and images[0, 0, 1] == 0
    images[0] = 7
    assert (images[0] == 7).all()


def test_own_arrays_without_a_copy() -> None:
    mine = np.zeros((2, 3))
    theirs = EpochArray(mine)
    theirs[0, 0] = 1
    assert mine[0, 0] == 1 and type(mine) is np.ndarray and EpochArray([[1, 2]]).shape == (1, 2)


def test_without_a_session_nothing_is_waited_for() -> None:
    assert len(list(EpochArray([1, 2, 3]))) == 3
