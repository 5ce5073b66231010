"""The kinds of data that a trainer takes: each yields the same batches as NumPy arrays."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import trainer_jobs as jobs
from trainer_jobs import quiet

import oneflow as flow
import oneflow.typing as tp
from oneflow.data.arrays import as_array
from oneflow.errors import ArgumentError, FeedError, FeedShapeError

X, Y = jobs.data(40)
SLICES = [slice(i, i + 10) for i in range(0, 40, 10)]


def needs(module):
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"{module} is not installed")


def seen_by(data, **options):
    """The feeds of an epoch's steps: the job returns them."""

    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((10, 4)), labels: tp.Numpy.Placeholder((10,), dtype=flow.int32)):
        w = flow.get_variable("w", (1,), initializer=flow.zeros_initializer())
        jobs.sgd().minimize(w)
        return {"loss": w, "x": flow.identity(x), "labels": flow.identity(labels)}

    fed = []
    told = flow.callbacks.LambdaCallback(
        on_train_batch_outputs=lambda step, outputs: fed.append((np.array(outputs["x"]), np.array(outputs["labels"])))
    )
    quiet(max_epochs=1, callbacks=told, **options).fit(train, data)
    return fed


def torch_batches(kind):
    import torch

    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y.astype(np.int64))), batch_size=10
    )
    return loader if kind == "loader" else [{"x": x, "labels": y.numpy()} for x, y in loader]


def grain_batches(kind):
    import grain

    class Rows:
        def __len__(self):
            return 40

        def __getitem__(self, i):
            return X[i], Y[i]

    made = grain.MapDataset.source(Rows()).batch(10)
    return made if kind == "map" else made.to_iter_dataset()


def hugging_face(kind):
    import datasets

    made = datasets.Dataset.from_dict({"labels": Y, "x": X, "name": ["a"] * 40}, features=None)
    if kind == "batched":
        return made.batch(10)
    if kind == "batched stream":
        return made.to_iterable_dataset().batch(10)
    return made if kind == "map" else made.to_iterable_dataset()


DATA = {
    "tuples": lambda: [(X[s], Y[s]) for s in SLICES],
    "lists": lambda: ([X[s], Y[s]] for s in SLICES),
    "dictionaries": lambda: [{"labels": Y[s], "x": X[s], "unused": 1} for s in SLICES],
    "lists of numbers": lambda: [(X[s].tolist(), Y[s].tolist()) for s in SLICES],
    "a function": lambda: lambda: ((X[s], Y[s]) for s in SLICES),
    "wider types": lambda: [(X[s].astype(np.float64), Y[s].astype(np.int64)) for s in SLICES],
    "arrays of batches": lambda: (X.reshape(4, 10, 4), Y.reshape(4, 10)),
    "epoch arrays": lambda: (flow.data.EpochArray(X.reshape(4, 10, 4)), flow.data.EpochArray(Y.reshape(4, 10))),
    "zipped epoch arrays": lambda: zip(
        flow.data.EpochArray(X.reshape(4, 10, 4)), flow.data.EpochArray(Y.reshape(4, 10)), strict=True
    ),
    "a dictionary of arrays of batches": lambda: {"labels": Y.reshape(4, 10), "x": X.reshape(4, 10, 4)},
    "an array loader": lambda: flow.data.ArrayLoader((X, Y), 10),
    "an array loader of a dictionary": lambda: flow.data.ArrayLoader({"labels": Y, "x": X}, 10, num_workers=2),
    "JAX": lambda: [tuple(map(__import__("jax").numpy.asarray, (X[s], Y[s]))) for s in SLICES],
    "DLPack": lambda: [(OnlyDLPack(X[s]), Y[s]) for s in SLICES],
}
OTHERS = {
    "torch.DataLoader": ("torch", lambda: torch_batches("loader")),
    "torch dictionaries": ("torch", lambda: torch_batches("dicts")),
    "a Grain map data set": ("grain", lambda: grain_batches("map")),
    "a Grain iterable": ("grain", lambda: grain_batches("iter")),
    "an iterable of datasets": ("datasets", lambda: hugging_face("iter")),
    "batches of datasets": ("datasets", lambda: hugging_face("batched")),
    "an iterable of batches of datasets": ("datasets", lambda: hugging_face("batched stream")),
}


class OnlyDLPack:
    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


@pytest.mark.parametrize(
    "make",
    [pytest.param(make, id=name) for name, make in DATA.items()]
    + [pytest.param(make, id=name, marks=needs(module)) for name, (module, make) in OTHERS.items()],
)
def test_batches(make):
    fed = seen_by(make())
    assert len(fed) == 4
    for (x, y), s in zip(fed, SLICES, strict=True):
        np.testing.assert_array_equal(x, X[s])
        np.testing.assert_array_equal(y, Y[s])


def frame():
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"x": list(range(40)), "labels": Y})


WHOLE = {
    "a tuple": lambda: (X, Y),
    "a list": lambda: [X, Y],
    "a dictionary": lambda: {"labels": Y, "x": X, "other": X},
    "torch": lambda: tuple(map(pytest.importorskip("torch").from_numpy, (X, Y))),
    "pandas": lambda: (pytest.importorskip("pandas").DataFrame(X), pytest.importorskip("pandas").Series(Y)),
    "datasets": lambda: pytest.importorskip("datasets") and hugging_face("map"),
}


@pytest.mark.parametrize("make", WHOLE.values(), ids=WHOLE)
def test_whole_arrays_are_cut_and_shuffled(make):
    fed = seen_by(make(), seed=5)
    x, y = (np.concatenate(parts) for parts in zip(*fed, strict=True))
    assert sorted(map(tuple, x)) == sorted(map(tuple, X)) and not np.array_equal(x, X)
    order = [int(np.flatnonzero((X == row).all(1))[0]) for row in x]
    np.testing.assert_array_equal(y, Y[order])
    again = seen_by((X, Y), seed=5)
    np.testing.assert_array_equal(np.concatenate([a for a, _ in again]), x)
    assert not np.array_equal(np.concatenate([a for a, _ in seen_by((X, Y), seed=6)]), x)


def test_tables_by_the_names_of_columns_and_as_matrices():
    pandas = pytest.importorskip("pandas")

    @flow.global_function()
    def total(age: tp.Numpy.Placeholder((2,)), income: tp.Numpy.Placeholder((2,))) -> tp.Numpy:
        return age + income

    @flow.global_function()
    def matrix(features: tp.Numpy.Placeholder((2, 2))) -> tp.Numpy:
        return flow.math.reduce_sum(features, axis=[1])

    table = pandas.DataFrame({"income": [1.0, 2.0, 3.0], "age": [10, 20, 30]})
    assert quiet().predict(total, table).tolist() == [11, 22, 33]
    assert quiet().predict(matrix, table).tolist() == [11, 22, 33]
    assert quiet().predict(total, [table[:2], table[2:]]).tolist() == [11, 22, 33]


def test_tensors_are_not_copied():
    torch = pytest.importorskip("torch")
    tensor = torch.arange(6.0, requires_grad=True)
    assert np.shares_memory(as_array(tensor), tensor.detach().numpy())
    assert np.shares_memory(as_array(OnlyDLPack(X)), X)


def test_batches_may_be_changed_when_the_next_one_is_asked_for():
    def batches():
        x, y = np.empty((10, 4), np.float32), np.empty(10, np.int32)
        for s in SLICES:
            x[:], y[:] = X[s], Y[s]
            yield x, y

    assert all(np.array_equal(x, X[s]) for (x, _), s in zip(seen_by(batches), SLICES, strict=True))


def test_metrics_copy_what_they_keep_of_a_batch():
    def batches():
        x, y = np.empty((10, 4), np.float32), np.empty(10, np.int32)
        for s in SLICES:
            x[:], y[:] = X[s], Y[s]
            yield x, y

    evaluate, metric = jobs.eval_job(), flow.metrics.Accuracy()
    trainer = quiet(metrics=metric)
    assert trainer.test(evaluate, batches) == trainer.test(evaluate, (X, Y))


def test_mnist():
    _, test = flow.data.load_mnist(100, 1000)

    @flow.global_function()
    def brightness(images: tp.Numpy.Placeholder((1000, 1, 28, 28))) -> tp.Numpy:
        return flow.math.reduce_mean(images, axis=[1, 2, 3])

    found = quiet().predict(brightness, test)
    np.testing.assert_allclose(found, np.asarray(test[0]).reshape(10000, -1).mean(1), rtol=1e-4)


def test_epoch_arrays_that_were_reshaped_are_rows():
    x, y = flow.data.EpochArray(X.reshape(4, 10, 4)), flow.data.EpochArray(Y.reshape(4, 10))
    fed = seen_by((x.reshape(-1, 4), y.reshape(-1)), seed=5)
    np.testing.assert_array_equal(np.sort(np.concatenate([a for a, _ in fed]), 0), np.sort(X, 0))
    assert len(seen_by((x[0], y[0]))) == 1


def test_structures_of_parameters():
    @flow.global_function()
    def job(pair: tuple[tp.Numpy.Placeholder((2, 1)), tp.Numpy.Placeholder((2, 1))]) -> tp.Numpy:
        return pair[0] - pair[1]

    a, b = np.ones((2, 1), np.float32), np.zeros((2, 1), np.float32)
    for batch in ((a, b), ((a, b),), [a, b]):
        assert quiet().predict(job, [batch]).tolist() == [[1], [1]]
    with pytest.raises(FeedError, match="takes a tuple of 2"):
        quiet().predict(job, [(a, b, a)])


def test_inputs_of_varying_size():
    @flow.global_function()
    def job(x: tp.ListNumpy.Placeholder((4, 3))) -> tp.ListNumpy:
        return flow.math.reduce_sum(x, axis=[1])

    batches = [np.full((n, 3), n, np.float32) for n in (4, 1, 3)]
    assert quiet().predict(job, batches).tolist() == [12] * 4 + [3] + [9] * 3
    assert quiet().predict(job, [[b] for b in batches]).tolist() == [12] * 4 + [3] + [9] * 3


def varying_jobs():
    """A train job and a predict job, on all devices that there are."""

    @flow.global_function("train")
    def train(x: tp.ListNumpy.Placeholder((8,)), labels: tp.ListNumpy.Placeholder((8,), flow.int32)) -> tp.ListNumpy:
        w = flow.get_variable("w", (1,), initializer=flow.ones_initializer())
        loss = x * w
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.0]), momentum=0).minimize(loss)
        return loss

    @flow.global_function()
    def evaluate(
        x: tp.ListNumpy.Placeholder((8,)), labels: tp.ListNumpy.Placeholder((8,), flow.int32)
    ) -> dict[str, tp.ListNumpy]:
        return {"loss": x * 1.0, "predictions": flow.one_hot(flow.cast(x > 4.0, flow.int32), 2, dtype=flow.float32)}

    return train, evaluate


def varying_with_a_factor():
    @flow.global_function()
    def scaled(x: tp.ListNumpy.Placeholder((8,)), scale: tp.Numpy.Placeholder((1,))) -> dict[str, tp.ListNumpy]:
        return {"loss": x * 1.0}

    return scaled


@pytest.mark.parametrize("devices", [1, 2])
def test_means_and_metrics_over_inputs_of_varying_size_count_each_row_once(devices: int):
    flow.config.gpu_device_num(devices)
    train, evaluate = varying_jobs()
    x, labels = np.float32([0] * 8 + [10]), np.int32([0] * 5 + [1] * 4)
    batches = [(x[:8], labels[:8]), (x[8:], labels[8:])]
    metrics = {"acc": flow.metrics.Accuracy("predictions"), "mean": flow.metrics.Mean("x")}
    found = quiet(metrics=metrics).validate(evaluate, batches)
    assert found == pytest.approx({"val_loss": 10 / 9, "val_acc": 6 / 9, "val_mean": 10 / 9})
    with_numpy = varying_with_a_factor()
    assert quiet().validate(with_numpy, [(a, np.ones(1, np.float32)) for a, _ in batches])["val_loss"] == pytest.approx(10 / 9)
    if devices == 1:  # on two the losses of a step are of equal size
        history = quiet(max_epochs=1).fit(train, batches, evaluate, [*batches, (x[:0], labels[:0])])
        assert history["loss"] == pytest.approx([10 / 9]) and history["val_loss"] == pytest.approx([10 / 9])


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        ([(X[:10],)], FeedError, "takes 2 argument.s., and a batch holds 1"),
        ([X[:10]], FeedError, "holds 1"),
        ([{"x": X[:10]}], FeedError, "a batch lacks 'labels'"),
        ([(X[:10], Y[:9])], FeedShapeError, "10 and 9 rows"),
        (
            flow.data.ArrayLoader((X, Y), batch_size=10, last="pad"),
            FeedError,
            "(?s)a batch holds 3.*try .*a loader that pads.*sample_weight: ",
        ),
        ([(X[:10], Y[:10], Y[:10])], FeedError, "(?s)a batch holds 3.*try .*an entry for each parameter"),
        ([(X[0], Y[0])], FeedShapeError, "give single samples"),
        ([(X[:10], "abc")], ArgumentError, "input 'labels'.*not an array"),
        ([(X[:10], [[1], [1, 2]])], ArgumentError, "no array"),
        (3, ArgumentError, "cannot be iterated"),
        (type("Rows", (), {"__getitem__": lambda self, i: X[i]})(), ArgumentError, "gives samples"),
    ],
)
def test_data_that_do_not_fit(data, error, text):
    with pytest.raises(error, match=text):
        quiet(max_epochs=1).fit(jobs.train_job(), data)


def test_an_iterator_serves_one_epoch():
    quiet(max_epochs=1).fit(jobs.train_job(), iter([(X[:10], Y[:10])]))
    text = "(?s)can be read once, and epoch 1 was to begin.*try .*a function that returns a new iterator"
    with pytest.raises(ArgumentError, match=text):
        quiet(max_epochs=2).fit(jobs.train_job(), iter([(X[:10], Y[:10])]))
    left = iter([(X[:10], Y[:10])])
    with pytest.raises(ArgumentError, match="(?s)gave no batch in epoch 1 that job 'train' could take.*try +give a function"):
        quiet(max_epochs=2).fit(jobs.train_job(), lambda: left)


@pytest.mark.parametrize("batches", ["tuples", "dictionaries"])
def test_a_batch_without_rows_is_skipped(batches, caplog):
    parts = [slice(0, 10), slice(10, 10), slice(10, 20), slice(20, 20)]
    data = [(X[part], Y[part]) if batches == "tuples" else {"x": X[part], "labels": Y[part]} for part in parts]
    whole = seen_by((X[:20], Y[:20]), seed=0)
    fed = seen_by(data)
    assert len(fed) == len(whole) == 2 and np.array_equal(np.concatenate([x for x, _ in fed]), X[:20])
    assert "short batch" not in caplog.text

    evaluate, trainer = jobs.eval_job(), flow.Trainer(metrics=flow.metrics.ConfusionMatrix(3))
    expected = trainer.validate(evaluate, (X[:20], Y[:20]))
    np.testing.assert_equal(trainer.validate(evaluate, data), expected)
    assert np.array_equal(trainer.predict(evaluate, data)["logits"], trainer.predict(evaluate, (X[:20], Y[:20]))["logits"])
    with pytest.raises(ArgumentError, match="the data to predict gave no batch with rows"):
        trainer.predict(evaluate, data[1:2])


def test_a_batch_without_rows_for_jobs_that_take_turns_or_weights():
    def step(weighted):
        def train(x: tp.Numpy.Placeholder((10, 4)), sample_weight: tp.Numpy.Placeholder((10,))) -> tp.Numpy:
            loss = flow.math.reduce_sum(jobs.network(x), axis=1)
            jobs.sgd().minimize(loss * sample_weight)
            return loss

        def plain(x: tp.Numpy.Placeholder((10, 4))) -> tp.Numpy:
            loss = flow.math.reduce_sum(jobs.network(x), axis=1)
            jobs.sgd().minimize(loss)
            return loss

        return flow.global_function(type="train")(train if weighted else plain)

    data = [{"x": X[:10]}, {"x": X[:0]}, {"x": X[10:20]}]
    first, second = step(True), step(False)
    for wanted in (first, [first, second]):
        trainer = quiet(max_epochs=2)
        trainer.fit(wanted, data)
        assert trainer.global_step == 4

    @flow.global_function(type="train")
    def varying(x: tp.ListNumpy.Placeholder((10, 4))) -> tp.ListNumpy:
        loss = flow.math.reduce_sum(jobs.network(x), axis=1)
        jobs.sgd().minimize(loss)
        return loss

    trainer = quiet(max_epochs=2)
    trainer.fit(varying, data)
    assert trainer.global_step == 4
    with pytest.raises(FeedShapeError, match=r"arrays of a batch have 0 and 10 rows"):
        quiet(max_epochs=1).fit(jobs.train_job(), [(X[:0], Y[:10])])
