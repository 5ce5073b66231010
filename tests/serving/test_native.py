"""Saved models and checkpoints with a job are computed by the native part where it is there, exports by XLA."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow._base import native
from oneflow.serving import _model

SCRIPT = """
import numpy as np
import oneflow as flow
import oneflow.typing as tp

def net(x):
    x = flow.layers.conv2d(x, 8, 3, padding="SAME", activation=flow.nn.relu, name="conv")
    x = flow.nn.max_pool2d(x, 2, 2, "VALID")
    x = flow.reshape(x, (x.shape[0], -1))[:, 1:]
    return flow.nn.softmax(flow.layers.dense(x, 5, name="dense"))

@flow.global_function()
def predict(x: tp.Numpy.Placeholder((3, 4, 8, 8))) -> tp.Dict[str, tp.Numpy]:
    y = net(x)
    return {"y": y, "a": y * 2.0}
"""
ROWS = np.random.default_rng(0).standard_normal((4, 4, 8, 8), np.float32)


@pytest.fixture
def job(tmp_path: Path) -> Any:
    script: dict[str, Any] = {}
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    exec(compile(SCRIPT, str(path), "exec"), script)
    script["predict"](ROWS[:3])  # with first values of the weights
    return script["predict"]


def answered(http: Any, model: str, rows: np.ndarray) -> dict[str, np.ndarray]:
    status, answer = http.infer(rows, model)
    assert status == 200, answer
    return {each["name"]: np.array(each["data"], np.float32).reshape(each["shape"]) for each in answer["outputs"]}


def test_the_native_part_computes_saved_models_and_jobs(tmp_path: Path, start: Any, job: Any) -> None:
    models = tmp_path / "models"
    models.mkdir()
    flow.export.stablehlo(job, models / "exported.stablehlo")
    (models / "trained").mkdir()
    (models / "trained" / "train.py").write_text(SCRIPT + "\npredict(np.zeros((3, 4, 8, 8), np.float32))\n")
    (models / "trained" / "config.json").write_text(json.dumps({"job": "train.py:predict"}))
    flow.checkpoint.save(models / "trained" / "1")
    returns = job.graph.returns
    builder = flow.saved_model.ModelBuilder(str(models / "saved")).ModelName("saved").Version(1)
    signature = builder.AddFunction(job).AddSignature("predict").Input("x", job.graph.inputs[0].blob.logical_blob_name)
    for name, blob in returns.items():
        signature = signature.Output(name, blob.logical_blob_name)
    builder.Save()

    _, http = start()
    kernels = {
        name: http("GET", f"/v2/models/{name}/config")[1]["parameters"]["kernels"]["string_value"]
        for name in ("exported", "trained", "saved")
    }
    wanted = f"XLA: {native.part().reason}" if native.part().reason else "native part"
    assert kernels == {"exported": "XLA: StableHLO is computed by XLA", "trained": wanted, "saved": wanted}
    for count in (1, 3, 4):  # as 1, padded to 4, and 4
        expected = answered(http, "exported", ROWS[:count])
        for name in ("trained", "saved"):
            found = answered(http, name, ROWS[:count])
            assert found.keys() == expected.keys() == {"y", "a"}
            for key, values in expected.items():
                np.testing.assert_allclose(found[key], values, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(answered(http, "saved", ROWS[:3])["y"], job(ROWS[:3])["y"], rtol=1e-4, atol=1e-6)


def test_jobs_stay_with_xla_where_the_native_part_is_switched_off(tmp_path: Path, start: Any, job: Any) -> None:
    folder = tmp_path / "models" / "saved"
    builder = flow.saved_model.ModelBuilder(str(folder)).ModelName("saved").Version(1)
    blobs = job.graph.inputs[0].blob, job.graph.returns["y"]
    signature = builder.AddFunction(job).AddSignature("predict").Input("x", blobs[0].logical_blob_name)
    signature.Output("y", blobs[1].logical_blob_name)
    builder.Save()
    expected = job(ROWS[:3])["y"]
    flow.clear_default_session()  # a running session keeps its settings
    flow.config.enable_native_cpu(False)
    try:
        _, http = start()
        kernels = http("GET", "/v2/models/saved/config")[1]["parameters"]["kernels"]["string_value"]
        np.testing.assert_allclose(answered(http, "saved", ROWS[:3])["y"], expected, rtol=1e-4, atol=1e-6)
    finally:
        flow.clear_default_session()
        flow.config.enable_native_cpu(True)
    assert kernels == "XLA: switched off by flow.config.enable_native_cpu(False)"


def test_saved_models_compute_with_packed_weights_as_jobs_do(tmp_path: Path, start: Any) -> None:
    @flow.global_function()
    def net(x: tp.Numpy.Placeholder((4, 3, 10, 10))) -> tp.Dict[str, tp.Numpy]:
        y = flow.layers.conv2d(x, 16, 3, padding="SAME", use_bias=False, name="conv")
        y = flow.nn.relu(flow.layers.batch_normalization(y, axis=1, training=False, name="norm"))
        y = flow.layers.dense(flow.flatten(y, 1), 32, activation=flow.math.gelu, name="hidden")
        return {"y": flow.layers.dense(y, 7, name="dense")}

    images = np.random.default_rng(1).standard_normal((4, 3, 10, 10), np.float32)
    net(images)
    random = np.random.default_rng(2)
    flow.load_variables(
        {name: random.uniform(0.5, 1.5, v.numpy().shape).astype(np.float32) for name, v in flow.get_all_variables().items()}
    )
    expected = net(images)["y"]
    builder = flow.saved_model.ModelBuilder(str(tmp_path / "models" / "net")).ModelName("net").Version(1)
    signature = builder.AddFunction(net).AddSignature("predict").Input("x", net.graph.inputs[0].blob.logical_blob_name)
    signature.Output("y", net.graph.returns["y"].logical_blob_name)
    builder.Save()

    session = flow.serving.InferenceSession()
    session.load_saved_model(str(tmp_path / "models" / "net"))
    session.launch()
    (by_session,) = session.run("net", x=images)
    (row,) = session.run("net", x=images[:1])
    session.close()
    _, http = start(batch_sizes=[1, 4])
    by_server = answered(http, "net", images)["y"]
    if native.part().reason:
        np.testing.assert_allclose(by_session, expected, rtol=1e-4)
    else:  # the same calls with the same folded weights, where XLA's own sums differ in the last digits
        np.testing.assert_array_equal(by_session, expected)
    np.testing.assert_allclose(by_server, expected, rtol=1e-5)
    np.testing.assert_allclose(row, expected[:1], rtol=1e-4)


@pytest.mark.skipif(bool(native.part().reason), reason="needs the native part")
@pytest.mark.parametrize("light", [0, 10**9])
def test_the_threads_of_a_batch_are_chosen_by_how_light_its_rows_are(
    tmp_path: Path, start: Any, job: Any, monkeypatch: pytest.MonkeyPatch, light: int
) -> None:
    """Saved models are traced here, jobs of checkpoints in another process: for either choice."""
    monkeypatch.setattr(_model, "_LIGHT", light)
    library = native.part().library
    monkeypatch.setattr(type(library), "threads", 4)
    models = tmp_path / "models"
    builder = flow.saved_model.ModelBuilder(str(models / "saved")).ModelName("saved").Version(1)
    blobs = job.graph.inputs[0].blob, job.graph.returns["y"]
    signature = builder.AddFunction(job).AddSignature("predict").Input("x", blobs[0].logical_blob_name)
    signature.Output("y", blobs[1].logical_blob_name)
    builder.Save()
    flow.checkpoint.save(str(models / "trained" / "1"))
    (models / "trained" / "train.py").write_text(SCRIPT)
    (models / "trained" / "config.json").write_text('{"job": "train.py:predict"}')
    expected = job(ROWS[:3])["y"]
    _, http = start(batches_in_flight=2)
    for name in ("saved", "trained"):
        config = http("GET", f"/v2/models/{name}/config")[1]
        assert config["parameters"]["native_threads"]["string_value"] == ("1" if light else "2")  # two batches share four threads
        np.testing.assert_allclose(answered(http, name, ROWS[:3])["y"], expected, rtol=1e-4, atol=1e-6)
