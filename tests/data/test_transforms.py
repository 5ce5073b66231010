"""Random changes of the images of a batch."""

import numpy as np
import pytest

import oneflow as flow
from oneflow.errors import ArgumentError, ShapeError

FORMATS = {"NCHW": (6, 2, 5, 7), "NHWC": (6, 5, 7, 2), "gray": (6, 5, 7)}


def images(kind, dtype=np.float32):
    return np.arange(np.prod(FORMATS[kind])).reshape(FORMATS[kind]).astype(dtype)


def options(kind):
    return {} if kind == "gray" else {"data_format": kind}


def axes(kind):
    return (2, 3) if kind == "NCHW" else (1, 2)


@pytest.mark.parametrize("kind", FORMATS)
def test_flips(kind):
    x, labels = images(kind), np.arange(6)
    flip = flow.data.RandomHorizontalFlip(0.5, **options(kind))
    seen = set()
    for seed in range(20):
        made, same = flip((x, labels), np.random.default_rng(seed))
        assert same is labels
        for i in range(6):
            mirrored = np.flip(x[i], axes(kind)[1] - 1)
            seen.add((i, bool((made[i] == mirrored).all())))
            assert (made[i] == mirrored).all() or (made[i] == x[i]).all()
    assert len(seen) == 12 and (x == images(kind)).all()
    assert (flow.data.RandomHorizontalFlip(0, **options(kind))(x, np.random.default_rng(0)) == x).all()
    assert (flow.data.RandomHorizontalFlip(1, **options(kind))(x, np.random.default_rng(0)) == np.flip(x, axes(kind)[1])).all()


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(("size", "padding"), [((5, 7), 2), ((3, 4), 0), (2, 1)])
def test_crops_are_pieces_of_the_padded_images_and_all_of_them_come(kind, size, padding, dtype):
    x = images(kind, dtype)
    crop = flow.data.RandomCrop(size, padding, fill=7, **options(kind))
    height, width = size if isinstance(size, tuple) else (size, size)
    around = [(padding, padding) if axis in axes(kind) else (0, 0) for axis in range(x.ndim)]
    padded = np.pad(x, around, constant_values=7)
    rows, columns = padded.shape[axes(kind)[0]] - height + 1, padded.shape[axes(kind)[1]] - width + 1
    seen = set()
    for seed in range(60):
        made = crop(x, np.random.default_rng(seed))
        assert made.dtype == dtype and made.flags.writeable
        for i in range(len(x)):
            windows = np.lib.stride_tricks.sliding_window_view(padded[i], (height, width), tuple(a - 1 for a in axes(kind)))
            windows = windows if kind != "NHWC" else windows.transpose(2, 0, 1, 3, 4)  # channels, if any, then the places
            mine = made[i] if kind != "NHWC" else made[i].transpose(2, 0, 1)
            places = [(r, c) for r in range(rows) for c in range(columns) if np.array_equal(mine, windows[..., r, c, :, :])]
            assert places
            seen.update(places)
    assert len(seen) == rows * columns


def test_normalize_against_torchvision_s_definition():
    torch = pytest.importorskip("torch")
    x = images("NCHW", np.uint8)
    made = flow.data.Normalize([1.0, 2.0], [3.0, 4.0])(x, np.random.default_rng(0))
    mean, std = (torch.tensor(v).reshape(1, 2, 1, 1) for v in ([1.0, 2.0], [3.0, 4.0]))
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, ((torch.from_numpy(x).float() - mean) / std).numpy(), rtol=1e-6)
    last = flow.data.Normalize([1.0, 2.0], [3.0, 4.0], data_format="NHWC")(x.transpose(0, 2, 3, 1), np.random.default_rng(0))
    np.testing.assert_array_equal(last.transpose(0, 3, 1, 2), made)
    gray = flow.data.Normalize(2, 4)(images("gray"), np.random.default_rng(0))
    np.testing.assert_array_equal(gray, (images("gray") - 2) / 4)


@pytest.mark.parametrize("workers", [0, 2])
def test_in_a_loader_several_of_them_give_the_same_batches_again(workers):
    x, labels = images("NCHW"), np.arange(6, dtype=np.int32)
    augment = [flow.data.RandomCrop((5, 7), 2), flow.data.RandomHorizontalFlip(), flow.data.Normalize(0, 255)]

    def made():
        loader = flow.data.ArrayLoader({"image": x, "label": labels}, 2, shuffle=True, transform=augment, num_workers=workers)
        return [batch for _ in range(2) for batch in loader]

    first, again = made(), made()
    assert [b["label"].tolist() for b in first] == [b["label"].tolist() for b in again]
    assert all(np.array_equal(a["image"], b["image"]) for a, b in zip(first, again, strict=True))
    assert all(b["image"].shape == (2, 2, 5, 7) and b["image"].dtype == np.float32 for b in first)
    one = flow.data.ArrayLoader((labels, x), 6, transform=[flow.data.Normalize(1, 2)])
    with pytest.raises(ShapeError, match="images of 3 or 4 axes"):
        next(iter(one))


def test_batches_of_load_mnist_are_rows_for_a_loader():
    batches = flow.data.EpochArray(images("NCHW").reshape(3, 2, 2, 5, 7)), flow.data.EpochArray(np.arange(6).reshape(3, 2))
    loader = flow.data.ArrayLoader(batches, 3)
    (x, y), _ = loader
    assert loader.rows == 6 and np.array_equal(x, images("NCHW")[:3]) and y.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: flow.data.RandomHorizontalFlip(1.5), "p must be"),
        (lambda: flow.data.RandomHorizontalFlip(data_format="HWC"), "data_format must be"),
        (lambda: flow.data.RandomCrop(0), "size must be"),
        (lambda: flow.data.RandomCrop((1, 2, 3)), "size must be an int or"),
        (lambda: flow.data.RandomCrop(3, padding=-1), "padding must be"),
        (lambda: flow.data.RandomCrop(9)(images("NCHW"), np.random.default_rng(0)), "images of 5 x 7 hold no piece of 9 x 9"),
        (
            lambda: flow.data.RandomCrop(3, padding=1, fill=300)(np.zeros((2, 3, 3), np.uint8), np.random.default_rng(0)),
            "300 is not a value of uint8",
        ),
        (lambda: flow.data.Normalize(0, 0), "std must be numbers > 0"),
        (lambda: flow.data.Normalize([0, [1, 2]], 1), "mean must be a number, got list"),
        (lambda: flow.data.Normalize([0, 1], [1, 2, 3]), "std must be numbers > 0, as many as mean"),
        (lambda: flow.data.Normalize([0, 1, 2], 1)(images("NCHW"), np.random.default_rng(0)), "given 3 channels"),
        (lambda: flow.data.RandomCrop(3, key="x")({"y": images("NCHW")}, np.random.default_rng(0)), "no entry 'x'"),
        (lambda: flow.data.ArrayLoader(np.zeros(3), 1, transform=[1]), "or several"),
    ],
)
def test_mistakes(make, text):
    with pytest.raises((ArgumentError, ShapeError), match=text):
        make()


@pytest.mark.parametrize("fill", [0.5, -1, 256, 1e30])
def test_a_fill_that_images_cannot_hold(fill):
    crop = flow.data.RandomCrop(3, padding=1, fill=fill)
    with pytest.raises(ArgumentError, match="is not a value of uint8 images"):
        crop(np.zeros((2, 1, 4, 4), np.uint8), np.random.default_rng(0))
    assert crop(np.zeros((2, 1, 4, 4), np.float32), np.random.default_rng(0)).shape == (2, 1, 3, 3)
