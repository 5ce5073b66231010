"""The parts of an ONNX model besides its ops: names, metadata, open axes, weights; and refused exports."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import close, run, session

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ArgumentError, CheckpointError, ExportError, JobWarning

onnx = pytest.importorskip("onnx", reason="needs the extra [onnx]")
pytest.importorskip("flatbuffers", reason="needs the extra [export]")
X = np.random.default_rng(0).standard_normal((4, 3), np.float32)


def dense() -> Any:
    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((2, 3))) -> tp.Dict[str, tp.Numpy]:
        y = flow.layers.dense(x, 40, flow.nn.relu, kernel_initializer=flow.random_normal_initializer(), name="hidden")
        return {"logits": flow.math.square(y, name="squared")}

    return predict


def expected() -> np.ndarray:
    return np.maximum(X @ flow.get_all_variables()["hidden-weight"].numpy().T, 0) ** 2


def test_names_and_metadata(tmp_path: Path) -> None:
    flow.export.onnx(dense(), tmp_path / "m.onnx")
    model = onnx.load(tmp_path / "m.onnx")
    graph = model.graph
    assert graph.name == "predict" and model.producer_name == "oneflow-jax" and model.producer_version == flow.__version__
    assert [i.name for i in graph.input] == ["x"] and [o.name for o in graph.output] == ["logits"]
    assert {"hidden-weight", "hidden-bias"} <= {t.name for t in graph.initializer}
    assert "squared" in {n.name for n in graph.node}
    assert all("test_export.py:" in n.doc_string for n in graph.node)
    properties = {p.key: p.value for p in model.metadata_props}
    assert properties["job"] == "predict" and "test_export.py:" in properties["source"]
    dim = graph.input[0].type.tensor_type.shape.dim
    assert (dim[0].dim_param, dim[1].dim_value) == ("batch", 3)
    close(run(session(tmp_path / "m.onnx"), [X])[0], expected(), 1e-5)


def test_weights_beside_the_model(tmp_path: Path) -> None:
    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return flow.layers.dense(x, 400, kernel_initializer=flow.random_normal_initializer(), name="dense")

    path = tmp_path / "m.onnx"
    for _ in range(2):  # the second time over the first
        flow.export.onnx(predict, path, external_data=True)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
        assert (tmp_path / "m.onnx.data").stat().st_size < 3 * 400 * 4 + 400 * 4 + 2 * 4096
    weight = flow.get_all_variables()["dense-weight"].numpy()
    close(run(session(path), [X])[0], X @ weight.T, 1e-5)
    flow.clear_default_session()
    assert set(flow.onnx.load(path).variables) >= {"dense-weight"}


def test_weights_of_a_checkpoint(tmp_path: Path) -> None:
    job = dense()
    values = {"hidden-weight": np.ones((40, 3), np.float32), "hidden-bias": np.zeros(40, np.float32)}
    flow.checkpoint.save(tmp_path / "saved", values)
    flow.onnx.export(job, str(tmp_path / "saved"), str(tmp_path / "m.onnx"), False, 18)
    model = onnx.load(tmp_path / "m.onnx")
    assert model.opset_import[0].version == 18
    close(run(session(tmp_path / "m.onnx"), [X])[0], np.repeat(np.maximum(X.sum(1, keepdims=True), 0) ** 2, 40, 1), 1e-5)
    with pytest.raises(CheckpointError, match="1 of the 2 variables of job 'predict' are missing"):
        flow.export.onnx(job, tmp_path / "n.onnx", weights={"hidden-weight": values["hidden-weight"]})
    assert not (tmp_path / "n.onnx").exists()


@pytest.mark.parametrize("opset", [17, 18, 20, 21, 23])
def test_opsets(opset: int, tmp_path: Path) -> None:
    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((2, 3))) -> tp.Bundle[tp.Numpy]:
        return [flow.math.reduce_mean(x, axis=[1]), flow.nn.softmax(x), flow.math.gelu(x), flow.math.reduce_std(x, axis=[1])]

    flow.export.onnx(predict, tmp_path / "m.onnx", opset=opset)
    assert onnx.load(tmp_path / "m.onnx").opset_import[0].version == opset
    found = run(session(tmp_path / "m.onnx"), [X])
    for made, wanted in zip(found, zip(*(predict(X[i : i + 2]) for i in (0, 2)), strict=True), strict=True):
        close(made, np.concatenate(wanted), 1e-5)


def test_open_axes_have_names(tmp_path: Path) -> None:
    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((2, 3, 8, 8))) -> tp.Numpy:
        y = flow.layers.conv2d(x, 4, 3, padding="SAME", kernel_initializer=flow.random_normal_initializer(), name="conv")
        return flow.nn.max_pool2d(y, 2, 2, "SAME", "NCHW")

    for axes, shape in (
        ({"x": {0: "n", 2: "height", 3: "width"}}, ["n", 3, "height", "width"]),
        ({"x": [0, 3]}, ["batch", 3, 8, "x_axis_3"]),
        ({}, [2, 3, 8, 8]),
    ):
        flow.export.onnx(predict, tmp_path / "m.onnx", dynamic_axes=axes)
        found = session(tmp_path / "m.onnx")
        assert found.get_inputs()[0].shape == shape
    flow.onnx.export(predict, None, tmp_path / "m.onnx", shape_override={"x": (-1, 3, 8, -1)})
    found = session(tmp_path / "m.onnx")
    assert found.get_inputs()[0].shape == ["batch", 3, 8, "x_axis_3"]
    assert run(found, [np.ones((5, 3, 8, 11), np.float32)])[0].shape == (5, 4, 4, 6)


@pytest.mark.parametrize("padding", ["SAME", "SAME_LOWER", "SAME_UPPER", "VALID"])
@pytest.mark.parametrize("pool", ["max_pool2d", "avg_pool2d"])
def test_pooling_keeps_its_padding_for_every_batch_and_size(padding: str, pool: str, tmp_path: Path) -> None:
    def declare(size: int) -> Any:
        @flow.global_function()
        def predict(x: tp.Numpy.Placeholder((2, 3, size, size + 1))) -> tp.Numpy:
            return getattr(flow.nn, pool)(x, 3, 2, padding, "NCHW")

        return predict

    flow.export.onnx(declare(8), tmp_path / "m.onnx", dynamic_axes={"x": {0: "n", 2: "height", 3: "width"}})
    found = session(tmp_path / "m.onnx")
    for size in (7, 8):
        x = np.random.default_rng(0).standard_normal((2, 3, size, size + 1), np.float32)
        flow.clear_default_session()
        close(run(found, [x])[0], declare(size)(x), 1e-5)


def test_repeated_parts(tmp_path: Path) -> None:
    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((4, 3))) -> tp.Tuple[tp.Numpy, tp.Numpy]:
        parts = flow.unpack(x, 2)
        y = flow.math.square(parts) + flow.repeat(flow.constant(1.0, flow.float, (1,)), 2)
        return flow.pack(y, 2), flow.acc(flow.math.reduce_sum(y), 2)

    flow.export.onnx(predict, tmp_path / "m.onnx", dynamic_axes={})
    for made, wanted in zip(run(session(tmp_path / "m.onnx"), [X]), predict(X), strict=True):
        close(made, wanted, 1e-5)


# --- refused


def test_every_op_without_a_form_is_listed_with_its_line(tmp_path: Path) -> None:
    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((2, 3))) -> tp.Bundle[tp.Numpy]:
        first = flow.math.lgamma(x, name="first")
        second = flow.random.bernoulli(flow.math.sigmoid(x), name="second")
        third = flow.math.lgamma(first + second, name="third")
        return [third]

    with pytest.raises(ExportError) as error:
        flow.export.onnx(predict, tmp_path / "m.onnx")
    head, *rows = str(error.value).splitlines()
    assert head == "job 'predict' cannot be exported as ONNX:" and len(rows) == 3
    for name, text in (("first", "lgamma(x, name="), ("second", "bernoulli(flow"), ("third", "lgamma(first + second")):
        assert any(f"'{name}'" in row and "test_export.py:" in row and text in row for row in rows)
    assert not list(tmp_path.iterdir())


def test_ops_without_a_form_may_be_written_as_our_own(tmp_path: Path) -> None:
    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return flow.math.lgamma(x, name="log_gamma") + 1.0

    with pytest.warns(JobWarning, match="lgamma 'log_gamma' cannot be expressed in ONNX and was written as oneflow.lgamma"):
        flow.onnx.export(predict, None, tmp_path / "m.onnx", continue_on_error=True, extra_opset=3)
    model = onnx.load(tmp_path / "m.onnx")
    assert {o.domain: o.version for o in model.opset_import}["oneflow"] == 3
    assert [(n.domain, n.op_type) for n in model.graph.node][0] == ("oneflow", "lgamma")


@pytest.mark.parametrize("opset", [7, 11, 16])
def test_an_older_opset_is_taken_as_the_oldest_that_is_written(opset: int, tmp_path: Path) -> None:
    with pytest.warns(JobWarning, match=f"opset {opset} is not written; the model has opset 17"):
        flow.onnx.export(dense(), None, tmp_path / "m.onnx", opset=opset)
    model = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(model)
    assert model.opset_import[0].version == 17


def test_wrong_arguments(tmp_path: Path) -> None:
    job, path = dense(), tmp_path / "m.onnx"
    for arguments, text in (
        ({"opset": 9}, "opset must be in 17 to 23, got 9"),
        ({"opset": "17"}, "opset must be in 17 to 23, got '17'"),
        ({"dynamic_axes": {"y": [0]}}, "names 'y', which is not an input"),
    ):
        with pytest.raises(ArgumentError, match=text):
            flow.export.onnx(job, path, **arguments)
    for arguments, text in (
        ({"shape_override": {"x": (3, 3)}}, r"gives 'x' the shape \(3, 3\), and it was declared as \(2, 3\)"),
        ({"shape_override": {"y": (-1, 3)}}, "names 'y'"),
        ({"shape_override": 3}, "must be a dict of input -> shape"),
        ({"shape_override": {"x": 3}}, "gives 'x' the shape 3, which is not a list or tuple"),
        ({"shape_override": {}, "dynamic_axes": {}}, "say the same in two ways"),
        ({"extra_opset": -1}, "extra_opset must be an int >= 0"),
        ({"opset": -1}, "opset must be in 17 to 23, got -1"),
        ({"opset": "11"}, "opset must be in 17 to 23, got '11'"),
    ):
        with pytest.raises(ArgumentError, match=text):
            flow.onnx.export(job, None, path, **arguments)
    with pytest.raises(ArgumentError, match="the file's path"):
        flow.export.onnx(job, 3)
    with pytest.raises(ArgumentError, match="needs a job function"):
        flow.export.onnx(3, path)
    with pytest.raises(ExportError, match=r"(?s)cannot be written.*try +create the directory .*missing. first"):
        flow.export.onnx(job, tmp_path / "missing" / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_a_path_that_is_not_that_of_a_file_stays_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return x + 1

    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("m.onnx")
    with pytest.raises(ExportError, match="cannot be written: it is a FIFO, not a regular file"):
        flow.export.onnx(job, tmp_path / "fifo")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ExportError, match="cannot be written: it is a directory"):
        flow.export.onnx(job, ".")
    for _ in range(2):
        flow.export.onnx(job, tmp_path / "link")
    assert (tmp_path / "fifo").is_fifo() and (tmp_path / "link").is_symlink() and (tmp_path / "m.onnx").stat().st_size > 0


def test_results_that_no_op_makes(tmp_path: Path) -> None:
    @flow.global_function()
    def predict(
        x: tp.Numpy.Placeholder((2, 3)), unused: tp.Numpy.Placeholder((2,))
    ) -> tp.Tuple[tp.Numpy, tp.Numpy, tp.Numpy, tp.Numpy, tp.Numpy]:
        y = flow.math.relu(x)
        w = flow.get_variable("w", (3,), initializer=flow.ones_initializer())
        return x, y, y, w, flow.constant(2.0, flow.float, (2,))

    flow.export.onnx(predict, tmp_path / "m.onnx", dynamic_axes={})
    flow.export.stablehlo(predict, tmp_path / "m.stablehlo", "cpu", dynamic_axes={})
    given = [X[:2], np.ones(2, np.float32)]
    found = run(session(tmp_path / "m.onnx"), given)
    for made, again, wanted in zip(found, flow.export.load(tmp_path / "m.stablehlo")(*given), predict(*given), strict=True):
        close(made, wanted, 1e-6)
        close(again, wanted, 1e-6)


def test_models_that_one_file_cannot_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oneflow.onnx._export._MOST_BYTES", 2**11)  # instead of 2 GB

    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:
        return flow.layers.dense(x, 400, kernel_initializer=flow.random_normal_initializer(), name="dense")

    flow.export.onnx(predict, tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").stat().st_size < 4096 < (tmp_path / "m.onnx.data").stat().st_size
    close(run(session(tmp_path / "m.onnx"), [X])[0], X @ flow.get_all_variables()["dense-weight"].numpy().T, 1e-5)


@pytest.mark.parametrize(("padding", "stride", "dilation"), [("SAME_UPPER", 2, 1), ("SAME_LOWER", 3, 1), ("SAME", 1, 2)])
def test_a_convolution_over_an_open_height(padding: str, stride: int, dilation: int, tmp_path: Path) -> None:
    def job(height: int) -> Any:
        @flow.global_function()
        def predict(x: tp.Numpy.Placeholder((2, 4, height, 15))) -> tp.Numpy:
            w = flow.get_variable("w", (5, 4, 4, 3), initializer=flow.random_normal_initializer())
            return flow.nn.conv2d(x, w, stride, padding, "NCHW", dilation)

        return predict

    images = {height: np.random.default_rng(height).standard_normal((2, 4, height, 15), np.float32) for height in (16, 17, 9)}
    first = job(16)
    first(images[16])
    for export, name in ((flow.export.onnx, "m.onnx"), (flow.export.stablehlo, "m.stablehlo")):
        export(first, tmp_path / name, dynamic_axes={"x": {2: "height"}})
    by_runtime, by_xla = session(tmp_path / "m.onnx"), flow.export.load(tmp_path / "m.stablehlo")
    for height, x in images.items():
        expected = job(height)(x)
        close(by_runtime.run(None, {"x": x})[0], expected, 1e-5)
        close(by_xla(x), expected, 1e-5)


@pytest.mark.parametrize(("padding", "size", "window"), [("SAME", 20, 2), ("SAME", 19, 3), ("VALID", 22, 4), ("VALID", 23, 4)])
def test_a_transposed_convolution_of_an_open_height(padding: str, size: int, window: int, tmp_path: Path) -> None:
    @flow.global_function()
    def predict(x: tp.Numpy.Placeholder((2, 3, 10, 4))) -> tp.Numpy:
        w = flow.get_variable("w", (3, 5, window, 2), initializer=flow.random_normal_initializer())
        return flow.nn.conv2d_transpose(x, w, (2, 5, size, 8), 2, padding)

    @flow.global_function()
    def varying(x: tp.ListNumpy.Placeholder((2, 3, 10, 4))) -> tp.ListNumpy:
        w = flow.get_variable("w", (3, 5, window, 2), initializer=flow.random_normal_initializer())
        return flow.nn.conv2d_transpose(x, w, (2, 5, size, 8), 2, padding)

    x = np.random.default_rng(0).standard_normal((2, 3, 10, 4), np.float32)
    expected = predict(x)  # whose first rows are those of fewer rows, as far as the windows of these reach
    for export, name in ((flow.export.onnx, "m.onnx"), (flow.export.stablehlo, "m.stablehlo")):
        export(predict, tmp_path / name, dynamic_axes={"x": {2: "height"}})
    short = x[:, :, :7]
    for found in (
        session(tmp_path / "m.onnx").run(None, {"x": short})[0],
        flow.export.load(tmp_path / "m.stablehlo")(short),
        varying([short])[0],
    ):
        assert found.shape == (2, 5, size - 6, 8)
        close(found[:, :, :12], expected[:, :, :12], 1e-5)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int32", "int64"])
def test_indices_of_all_dtypes(kind: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="the reference")

    @flow.global_function("predict")
    def job(i: tp.Numpy.Placeholder((4,), dtype=getattr(flow, kind))) -> tp.Dict[str, tp.Numpy]:
        table = flow.get_variable("table", (4, 3), initializer=flow.random_normal_initializer())
        return {"gather": flow.gather(table, i), "dim_gather": flow.dim_gather(table, 1, flow.expand_dims(i, 1))}

    flow.export.onnx(job, tmp_path / "m.onnx", dynamic_axes={})
    indices = np.array([0, 2, 1, 2], kind)
    expected = job(indices)
    model = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    for name, value in zip(expected, model.run(list(expected), {"i": indices}), strict=True):
        np.testing.assert_array_equal(value, expected[name])


@pytest.mark.parametrize("divisor", [0.3, -41.0, 0.1])
def test_floor_divisions_are_exact(divisor: float, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="the reference")
    x = (np.arange(-200, 201) * divisor).astype(np.float32)
    x[:4] = np.inf, -np.inf, np.nan, 0

    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((401,)), y: tp.Numpy.Placeholder((401,))) -> tuple[tp.Numpy, tp.Numpy]:
        return x // divisor, x // y

    flow.export.onnx(job, tmp_path / "m.onnx", dynamic_axes={})
    y = np.full_like(x, divisor)
    y[5:9] = 0, np.inf, -np.inf, np.nan
    outputs = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, {"x": x, "y": y})
    for found, same, by in zip(outputs, job(x, y), (np.float32(divisor), y), strict=True):
        np.testing.assert_array_equal(found, same)
        with np.errstate(all="ignore"):
            plain = np.isfinite(x) & np.isfinite(by) & (by != 0)
            np.testing.assert_array_equal(found[plain], (x // by)[plain])


@pytest.mark.filterwarnings("error")
def test_a_model_that_is_loaded_where_it_was_exported_computes_the_same(tmp_path: Path) -> None:
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((2, 3, 3, 4))) -> tp.Numpy:
        start = flow.random_normal_initializer()
        x = flow.layers.conv2d(x, 4, 3, padding="SAME", data_format="NHWC", kernel_initializer=start, name="conv")
        return flow.layers.dense(x, 4, kernel_initializer=start, name="square")

    x = np.random.default_rng(0).standard_normal((2, 3, 3, 4), np.float32)
    expected = job(x)
    flow.export.onnx(job, tmp_path / "m.onnx")
    model = flow.onnx.load(tmp_path / "m.onnx")

    @flow.global_function("predict")
    def again(x: tp.Numpy.Placeholder((2, 3, 3, 4))) -> tp.Numpy:
        return model(x)

    close(again(x), expected, 1e-5, "loaded")
