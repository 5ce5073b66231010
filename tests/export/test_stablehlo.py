"""StableHLO: the models of examples/models with an open batch, in a program without this library, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from cases import BATCH, PARAMS, answers, scramble
from running import close

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ArgumentError, ExportError, FeedDtypeError, FeedError, FeedShapeError, ModeError

pytest.importorskip("flatbuffers", reason="needs the extra [export]")
pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("case", PARAMS)
def test_a_model_gives_what_its_job_gives(case: Any, tmp_path: Path) -> None:
    job = case.make()
    scramble()
    path = tmp_path / "model.stablehlo"
    flow.export.stablehlo(job, path)
    model = flow.export.load(path)
    assert model.platforms == ("cpu", "cuda", "tpu") and all(spec.shape[0] == "batch" for spec in model.inputs)
    for count in (BATCH, 2 * BATCH):
        inputs = case.inputs(count)
        for made, expected in zip(jax.tree.leaves(model(*inputs)), answers(job, inputs, jax.tree.leaves), strict=True):
            close(made, expected, 1e-4, f"{count} samples")


def small() -> Any:
    @flow.global_function()
    def small(
        x: tp.Numpy.Placeholder((2, 3)), y: tp.Numpy.Placeholder((2, 4), dtype=flow.int64)
    ) -> tp.Dict[str, tp.Tuple[tp.Numpy, tp.Numpy]]:
        dense = flow.layers.dense(x, 4, name="dense")
        return {"both": (dense, y + 1)}

    return small


X, Y = np.arange(12, dtype=np.float32).reshape(4, 3), np.full((4, 4), 2**40)


@pytest.mark.parametrize("external_data", [False, True])
def test_a_model_compiled_ahead_of_time_never_compiles(tmp_path: Path, external_data: bool) -> None:
    job = small()
    flow.export.stablehlo(job, tmp_path / "m.stablehlo", "cpu", external_data=external_data)
    model = flow.export.load(tmp_path / "m.stablehlo")
    run = model.compile({"batch": 4})
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(lambda event, seconds, **_: compiled.append(event))
    dense, y = map(np.asarray, run(X, Y))
    assert not [event for event in compiled if "backend_compile" in event]
    close(dense, model(X, Y)["both"][0], 1e-6)
    np.testing.assert_array_equal(y, Y + 1)
    for sizes, reason in (({}, "a value for each of"), ({"batch": 0}, "must be an int > 0"), ({"batch": 1, "n": 2}, "batch"),
                          ("batch", "must be a dict")):  # fmt: skip
        with pytest.raises(ArgumentError, match=reason):
            model.compile(sizes)
    for arrays, kind, reason in (
        ((X,), FeedError, "takes 2 inputs, and was given 1"),
        ((X[:3], Y), FeedShapeError, r"of shape \(4, 3\), and was given \(3, 3\)"),
        ((X.tolist(), Y), FeedShapeError, "given list"),
        ((X.astype(np.float64), Y), FeedDtypeError, "is float32, and was given float64"),
    ):  # fmt: skip
        with pytest.raises(kind, match=reason):
            run(*arrays)


def test_results_have_the_nesting_of_the_job_and_64_bits(tmp_path: Path) -> None:
    job = small()
    flow.export.stablehlo(job, tmp_path / "m", "cpu")
    model = flow.export.load(tmp_path / "m")
    made = model(X, y=Y)
    expected = job(X[:2], Y[:2])
    assert made.keys() == {"both"} and isinstance(made["both"], tuple)
    close(made["both"][0][:2], expected["both"][0], 1e-6)
    np.testing.assert_array_equal(made["both"][1], Y + 1)
    assert model.name == "small" and [(s.name, s.shape) for s in model.inputs] == [("x", ("batch", 3)), ("y", ("batch", 4))]
    assert repr(model) == "<exported small(x: float32[batch, 3], y: int64[batch, 4]) for cpu>"


WITHOUT_ONEFLOW = """
import sys
import numpy as np, jax
from jax import export
class Banned:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "oneflow":
            raise ImportError("this program has no oneflow")
sys.meta_path.insert(0, Banned())
exported = export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
x = np.load(sys.argv[2])
arguments = [x]
if len(sys.argv) > 4:
    from safetensors.numpy import load_file
    arguments.insert(0, load_file(sys.argv[4]))
np.save(sys.argv[3], np.asarray(exported.call(*arguments)))
"""


@pytest.mark.parametrize("external", [False, True])
def test_a_file_runs_without_this_library(external: bool, tmp_path: Path) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3, 12, 12))) -> tp.Numpy:
        y = flow.layers.conv2d(x, 4, 3, padding="SAME", activation=flow.nn.relu, name="conv")
        y = flow.nn.max_pool2d(y, 2, 2, "VALID", "NCHW")
        return flow.layers.dense(flow.reshape(y, (y.shape[0], -1)), 5, name="dense")

    x = np.random.default_rng(0).standard_normal((6, 3, 12, 12), np.float32)
    flow.export.stablehlo(job, tmp_path / "m.stablehlo", external_data=external)
    assert (tmp_path / "m.safetensors").exists() is external
    np.save(tmp_path / "x.npy", x)
    files = [tmp_path / name for name in ("m.stablehlo", "x.npy", "y.npy", *(["m.safetensors"] if external else []))]
    done = subprocess.run([sys.executable, "-c", WITHOUT_ONEFLOW, *files], capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr[-3000:]
    close(np.load(tmp_path / "y.npy"), answers(job, [x])[0], 1e-5)
    close(flow.export.load(tmp_path / "m.stablehlo")(x), answers(job, [x])[0], 1e-5)


def test_open_axes_have_names(tmp_path: Path) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 1, 8, 8))) -> tp.Numpy:
        y = flow.layers.conv2d(x, 3, 3, padding="SAME", name="conv")
        return flow.math.reduce_mean(flow.nn.avg_pool2d(y, 2, 2, "VALID", "NCHW"), axis=[2, 3])

    flow.export.stablehlo(job, tmp_path / "m", "cpu", dynamic_axes={"x": {0: "n", 2: "height", 3: "width"}})
    model = flow.export.load(tmp_path / "m")
    assert model.inputs[0].shape == ("n", 1, "height", "width")
    assert model(np.ones((3, 1, 10, 6), np.float32)).shape == (3, 3)
    with pytest.raises(FeedShapeError, match="the model 'job' does not work for x of shape"):
        model(np.ones((3, 1, 1, 6), np.float32))  # no window fits


@pytest.mark.parametrize("batch", [1, 2])
def test_constants_of_the_size_of_the_batch(batch: int, tmp_path: Path) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((batch, 3))) -> tp.Tuple[tp.Numpy, tp.Numpy]:
        state = flow.constant(2.0, flow.float, (batch, 1))
        return flow.concat([x, state], axis=1), x + flow.constant(1.0, flow.float, (1, 3))

    flow.export.stablehlo(job, tmp_path / "m", "cpu")
    joined, added = flow.export.load(tmp_path / "m")(X)
    np.testing.assert_array_equal(joined, np.concatenate([X, np.full((4, 1), 2, np.float32)], 1))
    np.testing.assert_array_equal(added, X + 1)


@pytest.mark.parametrize("batch", [1, 2])
def test_a_variable_expanded_to_the_batch(batch: int, tmp_path: Path) -> None:
    """Such as the class token of a vision transformer."""

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((batch, 2, 3))) -> tp.Tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        token = flow.get_variable("token", (1, 1, 3), initializer=flow.constant_initializer(2.0))
        row = flow.get_variable("row", (3,), initializer=flow.constant_initializer(3.0))
        ahead = flow.concat([flow.expand(token, [batch, -1, -1]), flow.expand(row, [batch, 1, 3]), x], axis=1)
        return ahead, x + flow.expand(token, [1, 2, 3]), x * flow.expand(row, [2, 3])

    flow.export.stablehlo(job, tmp_path / "m", "cpu")
    x = np.arange(30, dtype=np.float32).reshape(5, 2, 3)
    ahead, added, scaled = flow.export.load(tmp_path / "m")(x)
    np.testing.assert_array_equal(ahead, np.concatenate([np.full((5, 1, 3), 2.0), np.full((5, 1, 3), 3.0), x], 1))
    np.testing.assert_array_equal(added, x + 2)
    np.testing.assert_array_equal(scaled, x * 3)


def test_repeated_parts(tmp_path: Path) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        parts = flow.unpack(x, 2)
        return flow.pack(flow.math.square(parts) * 2.0, 2)

    flow.export.stablehlo(job, tmp_path / "m", "cpu", dynamic_axes={})
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    close(flow.export.load(tmp_path / "m")(x), 2 * x * x, 1e-6)


def test_mixed_precision_is_that_of_the_job(tmp_path: Path) -> None:
    config = flow.function_config()
    config.enable_auto_mixed_precision(True)

    @flow.global_function(function_config=config)
    def job(x: tp.Numpy.Placeholder((2, 64))) -> tp.Numpy:
        return flow.layers.dense(x, 8, kernel_initializer=flow.random_normal_initializer(), name="dense")

    x = np.random.default_rng(0).standard_normal((2, 64), np.float32)
    flow.export.stablehlo(job, tmp_path / "m", "cpu")
    exact = x @ flow.get_all_variables()["dense-weight"].numpy().T
    found = flow.export.load(tmp_path / "m")(x)
    close(found, job(x), 1e-6)
    assert np.abs(found - exact).max() > 1e-4  # 16 bits, as in the job


def test_weights_of_a_checkpoint(tmp_path: Path) -> None:
    job = small()
    values = {"dense-weight": np.ones((4, 3), np.float32), "dense-bias": np.zeros(4, np.float32)}
    flow.checkpoint.save(tmp_path / "saved", values)
    for weights in (values, tmp_path / "saved"):
        flow.export.stablehlo(job, tmp_path / "m", "cpu", weights=weights)
        made = flow.export.load(tmp_path / "m")(X, Y)["both"][0]
        close(made, np.repeat(X.sum(1, keepdims=True), 4, 1), 1e-6)


# --- refused


def test_a_train_job_is_refused(tmp_path: Path) -> None:
    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        loss = flow.layers.dense(x, 1, name="dense")
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    for write, format in ((flow.export.stablehlo, "StableHLO"), (flow.export.onnx, "ONNX")):
        with pytest.raises(
            ExportError, match=f"job 'train' is a train job, and {format} describes what a model computes"
        ) as error:
            write(train, tmp_path / "m")
        assert "def train" in str(error.value) or "flow.global_function" in str(error.value)
    assert not (tmp_path / "m").exists()


def test_all_that_is_in_the_way_is_listed_with_its_lines(tmp_path: Path) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3)), many: tp.ListNumpy.Placeholder((2, 3))) -> tp.Tuple[tp.Numpy, tp.ListNumpy]:
        noise = flow.random.bernoulli(x, name="noise")
        counter = flow.get_variable("counter", (1,), initializer=flow.zeros_initializer())
        flow.assign(counter, counter + 1.0)
        return noise, many

    with pytest.raises(ExportError) as error:
        flow.export.stablehlo(job, tmp_path / "m")
    text = str(error.value)
    assert text.startswith("job 'job' cannot be exported as StableHLO:")
    assert all(part in text for part in ("input 'many'", "bernoulli 'noise'", "variable 'counter'", "random.bernoulli(x, name="))
    assert len(text.splitlines()) == 4 and text.count("test_stablehlo.py:") == 3


def test_results_whose_size_depends_on_data(tmp_path: Path) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.ListNumpy:
        return flow.argwhere(x, name="found")

    with pytest.raises(ExportError, match=r"result 'found' +its size depends on data .*test_stablehlo.py:"):
        flow.export.stablehlo(job, tmp_path / "m")


def test_a_size_that_is_tied_to_a_number(tmp_path: Path) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        return flow.reshape(x, (2, 6), name="halves")

    with pytest.raises(ExportError, match=r"(?s)'halves' does not work for every batch \(declared 4\).*dynamic_axes"):
        flow.export.stablehlo(job, tmp_path / "m")
    flow.export.stablehlo(job, tmp_path / "m", "cpu", dynamic_axes={})
    assert flow.export.load(tmp_path / "m")(X).shape == (2, 6)


def test_wrong_arguments(tmp_path: Path) -> None:
    job = small()
    for arguments, error, text in (
        ({"platforms": "fpga"}, ArgumentError, "platforms must be out of"),
        ({"platforms": 3}, ArgumentError, "platforms must be out of"),
        ({"platforms": ["cpu", X]}, ArgumentError, "platforms must be out of"),
        ({"dynamic_axes": {"z": {0: "n"}}}, ArgumentError, "names 'z', which is not an input"),
        ({"dynamic_axes": {"x": {5: "n"}}}, ArgumentError, "names axis 5"),
        ({"dynamic_axes": {"x": {0: "n m"}}}, ArgumentError, "needs an identifier"),
        ({"dynamic_axes": {"x": {0: "n", 1: "n"}}}, ArgumentError, "calls two sizes 'n'"),
        ({"dynamic_axes": {"x": 0}}, ArgumentError, "must have a dict or a list of axes for 'x', got 0"),
        ({"dynamic_axes": 3}, ArgumentError, "dynamic_axes must be a dict"),
        ({"weights": 3}, ArgumentError, "weights must be"),
        ({"weights": {"dense-weight": 1.0, "dense-bias": X}}, flow.errors.CheckpointError, "not an array but a float"),
        ({"weights": {}}, flow.errors.CheckpointError, "2 of the 2 variables"),
        ({"weights": {"dense-weight": X, "dense-bias": X}}, flow.errors.CheckpointError, "not float32"),
    ):
        with pytest.raises(error, match=text):
            flow.export.stablehlo(job, tmp_path / "m", **arguments)
    with pytest.raises(ArgumentError, match="needs a job function"):
        flow.export.stablehlo(lambda x: x, tmp_path / "m")
    with pytest.raises(ExportError, match="cannot be written"):
        flow.export.stablehlo(job, tmp_path, "cpu")
    assert not (tmp_path / "m").exists()

    @flow.global_function()
    def inside(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        flow.export.stablehlo(job, tmp_path / "m")
        return x

    with pytest.raises(ModeError, match="cannot be called inside a job function"):
        inside(X[:2])


def test_wrong_feeds(tmp_path: Path) -> None:
    flow.export.stablehlo(small(), tmp_path / "m", "cpu")
    model = flow.export.load(tmp_path / "m")
    with pytest.raises(FeedError, match="takes x, y"):
        model(X)
    with pytest.raises(FeedError, match="takes x, y"):
        model(X, Y, Y)
    with pytest.raises(FeedShapeError, match=r"x has shape \[batch, 3\], and was given \(4, 4\)"):
        model(Y, Y)
    with pytest.raises(FeedShapeError, match="y has 3 for 'batch', another input 4"):
        model(X, Y[:3])
    with pytest.raises(FeedDtypeError, match="y is int64, and was given float32"):
        model(X, Y.astype(np.float32))
    with pytest.raises(FeedDtypeError, match="x is float32, and some of the float64 values .* are outside its range"):
        model(np.full(X.shape, 1e300), Y)


def test_wrong_files(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="cannot be read"):
        flow.export.load(tmp_path / "missing")
    (tmp_path / "text").write_text("hello" * 100)
    with pytest.raises(ExportError, match="is not a file that flow.export.stablehlo wrote"):
        flow.export.load(tmp_path / "text")
    flow.export.stablehlo(small(), tmp_path / "m.stablehlo", "cpu", external_data=True)
    (tmp_path / "m.safetensors").unlink()
    with pytest.raises(ExportError, match="the weights of .* are missing"):
        flow.export.load(tmp_path / "m.stablehlo")


TIED = {
    "divided by a size": (lambda a: flow.math.reduce_sum(a, 0, keepdims=True) / a.shape[0], {0: "batch"}, "its number stays 4"),
    "times a fraction": (lambda a: a * (1.0 / a.shape[0]), {0: "batch"}, "is 0.125 as the job is described"),
    "pixels": (lambda a: flow.math.reduce_sum(a, [1, 2]) / (a.shape[1] * a.shape[2]), {1: "h", 2: "w"}, "scalar_div"),
    "cropped": (lambda a: a[:, a.shape[1] // 2 - 1 : a.shape[1] // 2 + 1], {1: "h"}, "its index stays"),
    "half": (lambda a: a[:, : a.shape[1] // 2], {1: "h"}, "its result has shape|its index stays"),
    "the largest half": (lambda a: flow.math.top_k(a, k=a.shape[2] // 2), {2: "w"}, "top_k"),
    "step by step": (lambda a: sum((a[:, t] for t in range(1, a.shape[1])), a[:, 0]), {1: "t"}, "job 'tied'"),
}  # fmt: skip


@pytest.mark.parametrize("case", TIED)
@pytest.mark.parametrize("export", [flow.export.stablehlo, flow.export.onnx])
def test_numbers_that_follow_from_a_size_are_refused_where_it_is_open(case: str, export: Any, tmp_path: Path) -> None:
    body, axes, says = TIED[case]

    @flow.global_function("predict")
    def tied(a: tp.Numpy.Placeholder((4, 6, 8))) -> tp.Numpy:
        return body(a)

    with pytest.raises(ExportError, match=f"(?s)does not work for every.*{says}.*your line.*dynamic_axes={{}}|{says}"):
        export(tied, tmp_path / "model", dynamic_axes={"a": axes})
    export(tied, tmp_path / "model", dynamic_axes={})


def test_a_constant_that_does_not_follow_the_batch_keeps_its_size(tmp_path: Path) -> None:
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((4, 5))) -> tp.Numpy:
        table = flow.get_variable("table", (7, 5), initializer=flow.ones_initializer())
        return x + flow.math.reduce_sum(flow.gather(table, flow.constant(3, flow.int32, (4,))), 0)

    flow.export.stablehlo(job, tmp_path / "m")
    model = flow.export.load(tmp_path / "m")
    for batch in (1, 4, 8):
        np.testing.assert_array_equal(model(np.zeros((batch, 5), np.float32)), np.full((batch, 5), 4, np.float32))


def test_a_body_that_is_written_for_its_sizes_is_exported_as_before(tmp_path: Path) -> None:
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((4, 5))) -> tp.Numpy:
        assert x.shape == (4, 5)
        return x + flow.constant(1.0, flow.float32, (4, 1))

    flow.export.stablehlo(job, tmp_path / "m")
    np.testing.assert_array_equal(flow.export.load(tmp_path / "m")(np.zeros((8, 5), np.float32)), np.ones((8, 5), np.float32))


@pytest.mark.parametrize("body", [
    lambda x: flow.reshape(flow.reshape(x, (4, -1)) + flow.constant(1.0, flow.float32, (4, 1)), (4, 10)),
    lambda x: flow.reshape(flow.reshape(x, (1, 4, -1)) + 1.0, (4, 10)),
    lambda x: flow.transpose(flow.reshape(flow.transpose(x, [1, 0]), (10, 4)) + 1.0, [1, 0]),
    lambda x: flow.slice(x, [0, 0], [4, 10]) + 1.0,
    lambda x: x[0:4] + 1.0,
])  # fmt: skip
def test_a_number_that_names_the_batch_is_taken_for_it(body: Any, tmp_path: Path) -> None:
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((4, 10))) -> tp.Numpy:
        return body(x)

    flow.export.stablehlo(job, tmp_path / "m")
    np.testing.assert_array_equal(flow.export.load(tmp_path / "m")(np.zeros((8, 10), np.float32)), np.ones((8, 10), np.float32))
