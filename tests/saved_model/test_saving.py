"""Builders, and what they write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from saving import X, affine, launched, save, session

import oneflow as flow
import oneflow.typing as tp
from oneflow.core.framework import user_op_attr_pb2
from oneflow.core.job import job_conf_pb2
from oneflow.core.operator import op_conf_pb2
from oneflow.core.serving import saved_model_pb2
from oneflow.errors import JobWarning, SavedModelError

text_format = pytest.importorskip("google.protobuf.text_format", reason="needs the extra [data]")


def builder(path: Path) -> Any:
    return flow.saved_model.ModelBuilder(str(path)).ModelName("net").Version(1)


NUMBERS = {
    saved_model_pb2.SavedModel: {"name": 1, "version": 2, "checkpoint_dir": 3, "graphs": 4, "default_graph_name": 5},
    saved_model_pb2.GraphDef: {"op_list": 1, "signatures": 2, "default_signature_name": 3},
    job_conf_pb2.JobSignatureDef: {"inputs": 1, "outputs": 2},
    job_conf_pb2.JobInputDef: {"lbi": 1, "blob_conf": 2},
    op_conf_pb2.OperatorConf: {
        "name": 1, "device_tag": 4, "ctrl_in_op_name": 7, "scope_symbol_id": 8, "variable_conf": 122, "input_conf": 137,
        "return_conf": 146, "user_conf": 199, "identity_conf": 290, "constant_like_conf": 339,
        "broadcast_to_compatible_with_conf": 525, "dynamic_reshape_conf": 203,
    },
    op_conf_pb2.VariableOpConf: {
        "out": 2, "shape": 3, "data_type": 4, "initializer": 5, "model_name": 7, "random_seed": 9, "regularizer": 10,
        "trainable": 11, "nd_sbp": 12,
    },
    user_op_attr_pb2.AttrValue: {
        "at_int32": 1, "at_int64": 2, "at_bool": 3, "at_float": 4, "at_double": 5, "at_string": 6, "at_shape": 7,
        "at_data_type": 8, "at_list_int32": 9, "at_list_int64": 10, "at_list_float": 11, "at_list_data_type": 12,
        "at_list_shape": 13, "at_list_string": 14,
    },
}  # fmt: skip


def test_field_numbers_are_oneflows() -> None:
    for message, fields in NUMBERS.items():
        assert {name: message.DESCRIPTOR.fields_by_name[name].number for name in fields} == fields


def test_files(tmp_path: Path) -> None:
    path = save(tmp_path / "net") / "1"
    assert {p.name for p in path.iterdir()} >= {"saved_model.pb", "saved_model.prototxt", "variables"}
    assert {p.name for p in (path / "variables").iterdir()} >= {"w", "b", "snapshot_done"}
    model = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    text = text_format.Parse((path / "saved_model.prototxt").read_text(), saved_model_pb2.SavedModel())
    graph = model.graphs["affine"]
    assert (model.name, model.version, model.checkpoint_dir, model.default_graph_name) == ("net", 1, "variables", "affine")
    assert graph.default_signature_name == "predict" and [c.name for c in graph.op_list[:3]] == ["Input_0", "Input_1", "w"]
    kinds = {conf.name: conf.user_conf.op_type_name for conf in graph.op_list if conf.HasField("user_conf")}
    assert kinds["Multiply_0"] == "broadcast_mul" and kinds["Add_0"] == "broadcast_add"
    image = graph.signatures["predict"].inputs["image"]
    assert (image.lbi.op_name, image.lbi.blob_name) == ("Input_0", "out")
    assert list(image.blob_conf.shape.dim) == [4, 3] and image.blob_conf.data_type == 2
    for signature in graph.signatures.values():  # their order is not in OneFlow's schema, and so not in the text
        signature.ClearField("input_order")
        signature.ClearField("output_order")
    assert text == model


def test_defaults_and_owners(tmp_path: Path) -> None:
    flow.clear_default_session()
    first, lbn = affine(2.0, "first")

    @flow.global_function("predict")
    def second(x: tp.Numpy.Placeholder((2, 2))) -> tp.Numpy:
        lbn["x2"], y = x.logical_blob_name, flow.math.relu(x)
        lbn["y2"] = y.logical_blob_name
        return y

    second.graph  # noqa: B018 - runs the body
    model = builder(tmp_path / "net")
    one, two = model.AddFunction(first), model.AddFunction(second)
    assert model.proto.default_graph_name == "first" and one.name == "first" and not one.finished
    s1 = one.AddSignature("s1").Input("x", lbn["x"]).Output("half", lbn["half"]).Output("y", lbn["y"])
    s2 = one.AddSignature("s2").Input("scaled", lbn["scaled"]).Output("loss", lbn["loss"]).Input("label", lbn["label"])
    assert one.proto.default_signature_name == "s1" and s2.AsDefault() is s2 and one.proto.default_signature_name == "s2"
    assert two.AsDefault() is two and model.proto.default_graph_name == "second"
    assert s1.OwnerGraphBuilder() is one and one.OwnerModelBuilder() is model and s1.name == "s1"
    plain = two.AddSignature("plain").Input("x2", lbn["x2"]).Output("y2", lbn["y2"])
    assert two.Finish() is two and two.finished
    for call in (two.Finish, lambda: two.AddSignature("late"), lambda: plain.Input("late", lbn["x2"])):
        with pytest.raises(AssertionError, match="is finished"):
            call()
    model.Save()
    assert one.finished
    s = launched(tmp_path / "net")
    assert s.list_jobs() == ["second"]
    np.testing.assert_array_equal(s.run("second", x2=np.array([[-1, 2], [3, -4]], np.float32))[0], [[0, 2], [3, 0]])
    s = launched(tmp_path / "net", graph_name="first")
    assert s.list_inputs() == ("scaled", "label") and s.list_outputs() == ("loss",)
    s = session()
    s.load_saved_model(str(tmp_path / "net"), graph_name="first", signature_name="s1")
    s.load_saved_model(str(tmp_path / "net"), graph_name="second")
    s.launch()
    assert s.list_inputs() == ("x", "x2") and s.list_outputs() == ("half", "y", "y2")  # in the order of the signature
    half, y = s.run("first", x=X)
    np.testing.assert_allclose(half * 2, y)
    np.testing.assert_allclose(y, X * 2 + 1)


def test_builders_of_their_own() -> None:
    graph, signature = flow.saved_model.GraphBuilder("g"), flow.saved_model.SignatureBuilder("s")
    signature.Input("x", "op/out").Output("y", "other/out_0")
    assert signature.proto.inputs["x"].lbi.op_name == "op" and signature.proto.outputs["y"].lbi.blob_name == "out_0"
    assert graph.AddSignature("a").name == "a" and list(graph.proto.signatures) == ["a"]
    for call in (graph.OwnerModelBuilder, graph.AsDefault, graph.Finish, signature.OwnerGraphBuilder, signature.AsDefault):
        with pytest.raises(SavedModelError):
            call()


def test_mistakes(tmp_path: Path) -> None:
    flow.clear_default_session()
    job, lbn = affine()
    for wrong in (3, None, b"x", "", tmp_path):
        with pytest.raises(ValueError, match="save_path"):
            flow.saved_model.ModelBuilder(wrong)
    model = flow.saved_model.ModelBuilder(str(tmp_path / "net"))
    for function, argument in (
        (model.ModelName, 3), (model.Version, "1"), (model.Version, -1), (model.AddFunction, len),
        (flow.saved_model.GraphBuilder, 3), (flow.saved_model.SignatureBuilder, None),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            function(argument)
    with pytest.raises(ValueError, match="model_builder"):
        flow.saved_model.GraphBuilder("x", job)
    graph = model.AddFunction(job)
    with pytest.raises(ValueError, match="a graph named 'affine' already"):
        model.AddFunction(job)
    signature = graph.AddSignature("s").Input("x", lbn["x"])
    with pytest.raises(ValueError, match="a signature named 's' already"):
        graph.AddSignature("s")
    with pytest.raises(ValueError, match="has an input named 'x' already"):
        signature.Input("x", lbn["label"])
    for wrong in ("out", "/", "a/", "/a", 3):
        with pytest.raises(AssertionError, match="lbn|logical Blob name"):
            signature.Output("y", wrong)
    with pytest.raises(ValueError, match="has no name"):
        model.Save()
    model.ModelName("net")
    with pytest.raises(ValueError, match="has no version"):
        model.Save()
    model.Version(1)
    signature.Output("y", "nothing/out")
    with pytest.raises(ValueError, match="bound to 'nothing/out', and job 'affine' has no such Blob"):
        model.Save()
    assert not (tmp_path / "net").exists()
    np.testing.assert_allclose(job(X, np.zeros(4, np.int32))[0], X * 2 + 1)


def test_conflicts(tmp_path: Path) -> None:
    flow.clear_default_session()
    job, lbn = affine()

    def saved(*pairs: tuple[str, str, str]) -> None:
        graph = builder(tmp_path / "net").AddFunction(job)
        for i, (x, y, source) in enumerate(pairs):
            graph.AddSignature(f"s{i}").Input(x, lbn[source]).Output(y, lbn["y" if i else "half"])
        graph.OwnerModelBuilder().Save()

    with pytest.raises(ValueError, match="input conflict, x already exist"):
        saved(("x", "a", "x"), ("x", "b", "scaled"))
    with pytest.raises(ValueError, match="output conflict, a already exist"):
        saved(("x", "a", "x"), ("z", "a", "scaled"))
    with pytest.raises(ValueError, match="input conflict, Input_0/out already bind to other input"):
        saved(("x", "a", "x"), ("z", "b", "x"))
    saved(("x", "a", "x"))
    with pytest.raises(ValueError, match="version 1 of saved model .* exists already"):
        saved(("x", "a", "x"))
    assert sorted(os.listdir(tmp_path / "net")) == ["1"]


def test_what_cannot_be_served(tmp_path: Path) -> None:
    flow.clear_default_session()

    @flow.global_function("predict")
    def noisy(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        return x + flow.random.normal((4, 3))

    model = builder(tmp_path / "net")
    model.AddFunction(noisy)
    with pytest.warns(JobWarning, match="draws random numbers(?s:.*)flow.serving cannot run this part"):
        model.Save()
    with pytest.raises(SavedModelError, match="draws random numbers"):
        session().load_saved_model(str(tmp_path / "net"))


def test_as_it_runs(tmp_path: Path) -> None:
    """Without what nothing needs, and with the casts of mixed precision."""
    flow.clear_default_session()
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(True)
    lbn = {}

    @flow.global_function("predict", config)
    def infer(x: tp.Numpy.Placeholder((4, 64))) -> tp.Numpy:
        flow.math.exp(x, name="unused")
        w = flow.get_variable("w", (64, 8), initializer=flow.random_normal_initializer())
        y = flow.matmul(x, w, name="product")
        lbn.update(x=x.logical_blob_name, y=y.logical_blob_name)
        return y

    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    wanted = infer(x)
    for version, as_traced in ((1, True), (2, False)):
        model = flow.saved_model.ModelBuilder(str(tmp_path / "net")).ModelName("net").Version(version)
        model.AddFunction(infer).AddSignature("s").Input("x", lbn["x"]).Output("y", lbn["y"])
        model.Save(as_traced)
        names = [conf.name for conf in model.proto.graphs["infer"].op_list]
        assert ("unused" in names) == as_traced and ("product-narrow" in names) == (not as_traced)
    wide, narrow = (launched(tmp_path / "net", version).run("infer", x=x)[0] for version in (1, 2))
    np.testing.assert_allclose(narrow, wanted, rtol=1e-6)
    weights = flow.get_all_variables()["w"].numpy()
    np.testing.assert_allclose(wide, x @ weights, rtol=1e-4, atol=1e-4)
    assert np.abs(wide - wanted).max() > 1e-4  # 16 bits show


def test_spellings() -> None:
    import oneflow.compatible.single_client as sc
    from oneflow.compatible.single_client.serving.inference_session import InferenceSession, ModelVersionPolicy, SessionOption
    from oneflow.compatible.single_client.serving.saved_model_builder import ModelBuilder

    assert sc.saved_model is flow.saved_model and sc.serving.InferenceSession is InferenceSession is flow.serving.InferenceSession
    assert ModelBuilder is flow.saved_model.ModelBuilder and SessionOption is flow.serving.SessionOption
    assert ModelVersionPolicy.LATEST is sc.serving.ModelVersionPolicy.LATEST


# the program of OneFlow's documentation, but for the network
PROGRAM = """
import sys
import numpy as np
import oneflow.compatible.single_client as flow
import oneflow.compatible.single_client.typing as tp

def net(x):
    x = flow.reshape(x, [x.shape[0], -1])
    x = flow.layers.dense(x, 16, activation=flow.nn.relu, name="hidden")
    return flow.layers.dense(x, 10, name="dense")

@flow.global_function("train")
def train(x: tp.Numpy.Placeholder((4, 1, 8, 8)), y: tp.Numpy.Placeholder((4,), dtype=flow.int32)) -> tp.Numpy:
    loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, net(x))
    flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
    return loss

lbn = {}
@flow.global_function("predict")
def infer(x: tp.Numpy.Placeholder((4, 1, 8, 8))) -> tp.Numpy:
    y = flow.nn.softmax(net(x)); lbn.update(x=x.logical_blob_name, y=y.logical_blob_name); return y

rng = np.random.default_rng(0)
batch = rng.standard_normal((4, 1, 8, 8)).astype(np.float32)
for _ in range(3):
    train(batch, np.arange(4, dtype=np.int32))
flow.checkpoint.save(sys.argv[1] + "/trained")
flow.load_variables(flow.checkpoint.get(sys.argv[1] + "/trained"))
m = flow.saved_model.ModelBuilder(sys.argv[1] + "/models").ModelName("net").Version(1)
m.AddFunction(infer).AddSignature("classify").Input("image", lbn["x"]).Output("prob", lbn["y"])
m.Save()
np.savez(sys.argv[1] + "/expected.npz", batch=batch, prob=infer(batch))
flow.clear_default_session()
opt = flow.serving.SessionOption(); opt.device_tag = "cpu"
s = flow.serving.InferenceSession(opt); s.load_saved_model(sys.argv[1] + "/models"); s.launch()
info = s.input_info("image", s.list_jobs()[0])
assert info == {"shape": (4, 1, 8, 8), "dtype": flow.float32}, info
prob = s.run("infer", image=batch)[0]; s.close()
np.save(sys.argv[1] + "/prob.npy", prob)
"""


def test_another_process_gives_the_same_answers(tmp_path: Path) -> None:
    """The worked flow of 0.6 in a process of its own; this one has never seen its Python."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = np.load(tmp_path / "expected.npz")
    np.testing.assert_allclose(np.load(tmp_path / "prob.npy"), expected["prob"], rtol=1e-6, atol=1e-7)
    s = launched(tmp_path / "models")
    np.testing.assert_allclose(s.run("infer", image=expected["batch"])[0], expected["prob"], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(s.run("infer", image=expected["batch"][:1])[0], expected["prob"][:1], rtol=1e-6, atol=1e-7)


def test_without_flatbuffers_the_missing_compiled_form_is_told_once(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    with pytest.warns(JobWarning, match=r"(?s)flatbuffers.*oneflow-jax\[export\].*no compiled form: loading it traces") as told:
        save(tmp_path / "m")
    assert len([w for w in told if "flatbuffers" in str(w.message)]) == 1  # although it has two signatures
    assert not (tmp_path / "m" / "1" / "compiled").exists()
    running = launched(tmp_path / "m")
    np.testing.assert_allclose(running.run("affine", image=X)[0], X * 2 + 1)
    running.close()


def test_numbers_that_follow_from_the_batch_are_told(tmp_path: Path) -> None:
    @flow.global_function("predict")
    def mean(x: tp.Numpy.Placeholder((4, 3))) -> tp.Numpy:
        return x + flow.math.reduce_sum(x, 0, keepdims=True) / x.shape[0]

    made = builder(tmp_path)
    made.AddFunction(mean)
    with pytest.warns(JobWarning, match=r"(?s)computes something else for other batch sizes.*scalar_div.*its number stays 4"):
        made.Save()


def test_a_builder_says_what_it_saves(tmp_path):
    path = str(tmp_path / "net")
    assert repr(flow.saved_model.ModelBuilder(path)) == f"<ModelBuilder of '' below {path!r}: no graph>"
    model = flow.saved_model.ModelBuilder(path).ModelName("net").Version(3)
    assert repr(model) == f"<ModelBuilder of 'net', version 3 below {path!r}: no graph>"
