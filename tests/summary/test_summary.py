"""``flow.summary``: what jobs write, read back from the event files."""

from __future__ import annotations

import io
import json
import os
import re
import struct
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ArgumentError, CallbackError, DtypeError, MissingExtraError, ModeError, ShapeError
from oneflow.runtime.process import process

pytest.importorskip("tensorboardX")


@pytest.fixture(autouse=True)
def no_writer():
    yield
    flow.sync_default_session()
    if process.summary_writer is not None:
        process.summary_writer.close()
        process.summary_writer = None


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def events(directory: Path) -> list[Any]:
    """All events of the event files in a directory, by a reader of our own."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted(directory.rglob("*tfevents*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            assert struct.unpack_from("<I", data, at + 8)[0] == masked(data[at : at + 8])
            body = data[at + 12 : at + 12 + size]
            assert struct.unpack_from("<I", data, at + 12 + size)[0] == masked(body)
            found.append(Event.FromString(body))
            at += 16 + size
    return found


def values(directory: Path) -> list[tuple[int, Any]]:
    """Steps and values, in the order of the file."""
    flush()
    return [(event.step, value) for event in events(directory) for value in event.summary.value]


def call(body: Any, name: str = "job", *args: Any) -> Any:
    """Declares a job without inputs and calls it."""
    body.__name__ = name
    return flow.global_function()(body)(*args)


def open_writer(directory: Path) -> None:
    call(lambda: flow.summary.create_summary_writer(str(directory)), "open_writer")


def flush() -> None:
    call(lambda: flow.summary.flush_summary_writer(), "flush")
    flow.sync_default_session()


def int8(text: Any) -> np.ndarray:
    return np.array(list(str(text).encode("ascii")), dtype=np.int8)


def test_a_program_of_2021(tmp_path: Path) -> None:
    """Jobs in the mirrored view that return nothing, fed with values, steps and tags."""
    config = flow.FunctionConfig()
    config.default_logical_view(flow.scope.mirrored_view())

    @flow.global_function(function_config=config)
    def create():
        flow.summary.create_summary_writer(str(tmp_path))

    @flow.global_function(function_config=config)
    def scalar(
        value: tp.ListNumpy.Placeholder((1,)), step: tp.ListNumpy.Placeholder((1,), dtype=flow.int64),
        tag: tp.ListNumpy.Placeholder((1000,), dtype=flow.int8),
    ):  # fmt: skip
        flow.summary.scalar(value, step, tag)

    @flow.global_function(function_config=config)
    def histogram(
        value: tp.ListNumpy.Placeholder((200, 200)), step: tp.ListNumpy.Placeholder((1,), dtype=flow.int64),
        tag: tp.ListNumpy.Placeholder((9,), dtype=flow.int8),
    ):  # fmt: skip
        flow.summary.histogram(value, step, tag)

    @flow.global_function(function_config=config)
    def message(
        value: tp.ListNumpy.Placeholder((1500,), dtype=flow.int8), step: tp.ListNumpy.Placeholder((1,), dtype=flow.int64)
    ):
        flow.summary.pb(value, step=step)

    @flow.global_function(function_config=config)
    def flushed():
        flow.summary.flush_summary_writer()

    create()
    rng = np.random.default_rng(0)
    for step in range(5):
        scalar([np.array([0.5 * step], np.float32)], [np.array([step])], [int8("scalar" if step % 2 else "scalar/even")])
        histogram([rng.random((20 + step, 3)).astype(np.float32)], [np.array([step])], [int8("histogram")])
    message([int8(flow.summary.text(["vegetable", "früit"], tag="food"))], [np.array([7])])
    flushed()
    flow.sync_default_session()
    found = [(event.step, value) for event in events(tmp_path / "event") for value in event.summary.value]
    scalars = [(s, v.tag, v.simple_value) for s, v in found if v.HasField("simple_value")]
    assert scalars == [(s, "scalar" if s % 2 else "scalar/even", 0.5 * s) for s in range(5)]
    assert [(s, v.histo.num) for s, v in found if v.HasField("histo")] == [(s, 3.0 * (20 + s)) for s in range(5)]
    ((step, text),) = [(s, v) for s, v in found if v.HasField("tensor")]
    assert step == 7 and text.tag == "food" and [t.decode() for t in text.tensor.string_val] == ["vegetable", "früit"]
    names = {v.WhichOneof("value"): v.metadata.plugin_data.plugin_name for _, v in found}
    assert names == {"simple_value": "scalars", "histo": "histograms", "tensor": "text"}
    assert all("tfevents" in path.name for path in (tmp_path / "event").iterdir())  # what TensorBoard looks for


def test_values_of_a_training(tmp_path: Path) -> None:
    open_writer(tmp_path)

    @flow.global_function("train")
    def train(x: tp.Numpy.Placeholder((4, 3)), step: tp.Numpy.Placeholder((1,), dtype=flow.int64)) -> tp.Numpy:
        w = flow.get_variable("w", (3, 2), initializer=flow.ones_initializer())
        loss = flow.math.reduce_mean(flow.matmul(x, w))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
        flow.summary.scalar(loss, step, "loss")
        flow.summary.histogram(w, step, "w", name="weights")
        return loss

    x = np.ones((4, 3), np.float32)
    results = [train(x, np.array([step])) for step in range(4)]
    results += [train.submit(x, np.array([4])).result()]
    found = values(tmp_path)
    assert [(s, v.simple_value) for s, v in found if v.tag == "loss"] == [
        (s, pytest.approx(r.item())) for s, r in enumerate(results)
    ]
    weights = [v.histo for _, v in found if v.tag == "w"]
    assert [h.max for h in weights] == [pytest.approx(1 - 0.5 * s) for s in range(5)]
    assert any(node.name == "weights" for node in train.graph.nodes)


def test_asynchronous_and_synchronous_calls_keep_their_order(tmp_path: Path) -> None:
    def writes(returns: bool, name: str) -> Any:
        def body(step: tp.Numpy.Placeholder((1,), dtype=flow.int64)):
            flow.summary.scalar(flow.cast(step, flow.float32), step, "x")
            return step if returns else None

        body.__name__ = name
        body.__annotations__ = {"step": body.__annotations__["step"], **({"return": tp.Numpy} if returns else {})}
        return flow.global_function()(body)

    open_writer(tmp_path)  # returns before the file is open
    later, now = writes(False, "later"), writes(True, "now")
    for step in range(40):
        (now if step % 3 == 0 else later)(np.array([step]))
    assert [s for s, _ in values(tmp_path)] == list(range(40))


def test_threads_do_not_mix_their_values(tmp_path: Path) -> None:
    open_writer(tmp_path)

    @flow.global_function()
    def write(
        value: tp.Numpy.Placeholder((1,), dtype=flow.float64), step: tp.Numpy.Placeholder((1,), dtype=flow.int64)
    ) -> tp.Numpy:
        flow.summary.scalar(value, step, "x")
        return value

    write(np.array([0.0]), np.array([0]))
    threads = [
        threading.Thread(target=lambda n=n: [write(np.array([2.0 * i]), np.array([i])) for i in range(n, 100, 4)])
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = values(tmp_path)
    assert len(found) == 101 and all(v.simple_value == 2 * s for s, v in found)


def test_a_histogram_holds_every_finite_element_once(tmp_path: Path) -> None:
    open_writer(tmp_path)
    x = np.concatenate([np.random.default_rng(0).standard_normal(500) * 10.0 ** np.arange(-10, 15).repeat(20), [0.0, -0.0, 1.0]])
    x = np.concatenate([x, [np.inf, -np.inf, np.nan]]).reshape(2, -1)

    @flow.global_function()
    def write(x: tp.Numpy.Placeholder(x.shape, dtype=flow.float64)) -> tp.Numpy:
        flow.summary.histogram(x, 3, "x")
        flow.summary.histogram(flow.cast(x * 0.0 + 7.0, flow.int32), 3, "sevens")
        flow.summary.histogram(flow.gather_nd(x, flow.argwhere(x > 1e9)), None, "chosen")
        return x

    write(x)
    write(x)
    found = values(tmp_path)
    assert [(s, v.tag) for s, v in found] == [(3, "x"), (3, "sevens"), (0, "chosen"), (3, "x"), (3, "sevens"), (1, "chosen")]
    histo = found[0][1].histo
    kept = x[np.isfinite(x)]
    assert histo.num == kept.size == sum(histo.bucket) and (histo.min, histo.max) == (kept.min(), kept.max())
    np.testing.assert_allclose([histo.sum, histo.sum_squares], [kept.sum(), (kept**2).sum()], rtol=1e-9)
    edges = [-np.inf, *histo.bucket_limit]
    for low, high, count in zip(edges, edges[1:], histo.bucket, strict=False):
        assert count == np.count_nonzero((kept >= low) & (kept < high)), (low, high)
    wide = [b / a for a, b in zip(edges[1:], edges[2:], strict=False) if a > 1e-12]
    np.testing.assert_allclose(wide, 1.1)
    assert found[2][1].histo.num == np.count_nonzero(np.isfinite(x) & (x > 1e9))  # of a size that depends on data


@pytest.mark.parametrize("shape", [(1, 5, 4, 1), (3, 5, 4, 3), (2, 5, 4, 4)])
def test_images(tmp_path: Path, shape: tuple[int, ...]) -> None:
    open_writer(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)

    @flow.global_function()
    def write(
        images: tp.Numpy.Placeholder(shape, dtype=flow.uint8), step: tp.Numpy.Placeholder((1,), dtype=flow.int64),
        tag: tp.Numpy.Placeholder((6,), dtype=flow.int8),
    ) -> tp.Numpy:  # fmt: skip
        flow.summary.image(images, step, tag)
        flow.summary.image(images, name="unnamed")
        return images

    write(pixels, np.array([9]), int8("digits"))
    found = values(tmp_path)
    tags = ["digits"] if shape[0] == 1 else [f"digits{i}" for i in range(shape[0])]
    assert [v.tag for s, v in found if s == 9] == tags and [v.tag for s, v in found if s == 0] == [
        t.replace("digits", "unnamed") for t in tags
    ]
    for (_, value), expected in zip(found, pixels, strict=False):
        image = Image.open(io.BytesIO(value.image.encoded_image_string))
        np.testing.assert_array_equal(np.asarray(image).reshape(shape[1:]), expected)
        assert (value.image.height, value.image.width, value.image.colorspace) == shape[1:]


def test_hyperparameters(tmp_path: Path) -> None:
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    summary = flow.summary
    given = {
        summary.HParam("rate", summary.RealRange(0.001, 0.1)): 0.01,
        summary.Hparam("layers", summary.IntegerRange(2, 9)): np.int64(3),
        summary.Hparam("optimizer", summary.ValueSet(["sgd", "adam"])): "adam",
        summary.Hparam("warm", summary.ValueSet((True, False), dtype=bool)): True,
        "batch": 32,
        summary.Metric("accuracy", float): 0.875,
    }
    message = summary.hparams(given)
    open_writer(tmp_path)

    @flow.global_function()
    def write(value: tp.Numpy.Placeholder(int8(message).shape, dtype=flow.int8)) -> tp.Numpy:
        flow.summary.pb(value)
        return value

    write(int8(message))
    parts = {v.tag: v for _, v in values(tmp_path)}
    assert {v.metadata.plugin_data.plugin_name for tag, v in parts.items() if tag.startswith("_")} == {"hparams"}
    assert parts["accuracy"].simple_value == 0.875
    data = {tag: HParamsPluginData.FromString(v.metadata.plugin_data.content) for tag, v in parts.items() if tag.startswith("_")}
    infos = {info.name: info for info in data["_hparams_/experiment"].experiment.hparam_infos}
    assert (infos["rate"].domain_interval.min_value, infos["layers"].domain_interval.max_value) == (0.001, 9)
    assert [v.string_value for v in infos["optimizer"].domain_discrete.values] == ["adam", "sgd"]
    assert [m.name.tag for m in data["_hparams_/experiment"].experiment.metric_infos] == ["accuracy"]
    begun = data["_hparams_/session_start_info"].session_start_info
    assert {k: getattr(v, v.WhichOneof("kind")) for k, v in begun.hparams.items()} == {
        "rate": 0.01, "layers": 3.0, "optimizer": "adam", "warm": True, "batch": 32.0,
    }  # fmt: skip
    assert re.fullmatch("[0-9a-f]{64}", begun.group_name)
    same = HParamsPluginData.FromString(summary.hparams(dict(reversed(given.items()))).value[1].metadata.plugin_data.content)
    assert same.session_start_info.group_name == begun.group_name
    assert data["_hparams_/session_end_info"].session_end_info.status == 1


def test_a_message_as_its_own_bytes(tmp_path: Path) -> None:
    message = flow.summary.text(["früit"], tag="food")
    data = np.frombuffer(message.SerializeToString(), np.int8)
    open_writer(tmp_path)

    @flow.global_function()
    def write(value: tp.Numpy.Placeholder(data.shape, dtype=flow.int8)) -> tp.Numpy:
        flow.summary.pb(value)
        return value

    write(data)
    ((_, found),) = values(tmp_path)
    assert found == message.value[0]


def test_one_writer_per_process(tmp_path: Path) -> None:
    def write(tag: str) -> None:
        call(lambda: flow.summary.scalar(flow.constant(1.0, flow.float32), 1, tag), "write_" + tag)

    with pytest.raises(CallbackError, match=r"flow.summary.scalar has no writer\n.*create_summary_writer"):
        write("lost")
        flow.sync_default_session()
    open_writer(tmp_path / "one")
    write("a")
    open_writer(tmp_path / "one")  # goes on with the file
    write("b")
    assert [v.tag for _, v in values(tmp_path / "one")] == ["a", "b"]
    assert len(list((tmp_path / "one" / "event").iterdir())) == 1
    open_writer(tmp_path / "two")
    write("c")
    assert [v.tag for _, v in values(tmp_path / "two")] == ["c"] and len(values(tmp_path / "one")) == 2


def test_a_program_that_just_ends(tmp_path: Path) -> None:
    program = textwrap.dedent(
        f"""
        import numpy as np
        import oneflow as flow, oneflow.typing as tp

        @flow.global_function()
        def job(x: tp.Numpy.Placeholder((1,))) -> tp.Callback[tp.Numpy]:
            flow.summary.create_summary_writer({str(tmp_path)!r})
            flow.summary.scalar(x, None, "x")
            return x

        for i in range(30):
            job(np.array([i], np.float32))(lambda value: None)
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = [(e.step, v.simple_value) for e in events(tmp_path) for v in e.summary.value]
    assert found == [(i, float(i)) for i in range(30)]


def test_what_cannot_be_written_is_raised_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_writer(tmp_path)

    @flow.global_function()
    def write(value: tp.Numpy.Placeholder((5,), dtype=flow.int8)) -> tp.Numpy:
        flow.summary.pb(value, 1)
        return value

    for given in ("value", "\5\6\7.."):
        write(int8(given))
        with pytest.raises(ArgumentError, match="bytes are not those of a Summary message") as caught:
            flow.sync_default_session()
        assert "flow.summary.pb in job 'write'" in str(caught.value) and "flow.summary.pb(value, 1)" in str(caught.value)
        assert "SerializeToString" in str(caught.value)

    def full(event: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(process.summary_writer._file, "write_event", full)
    call(lambda: flow.summary.scalar(flow.constant(1.0, flow.float32), 1, "x"), "scalar")
    with pytest.raises(ModeError, match="a summary could not be written to .*No space left"):
        flush()
    monkeypatch.undo()
    assert write(int8("     ")).size == 5
    flush()


def refused(build: Any, error: type[Exception], match: str) -> None:
    def body(
        x: tp.Numpy.Placeholder((2, 3)), step: tp.Numpy.Placeholder((1,), dtype=flow.int64),
        u: tp.Numpy.Placeholder((4, 5, 5, 2), dtype=flow.uint8),
    ) -> tp.Numpy:  # fmt: skip
        build(x, step, u)
        return x

    with pytest.raises(error, match=match):
        flow.global_function()(body).summary()


def test_wrong_arguments_are_refused_when_the_job_is_built() -> None:
    summary = flow.summary
    refused(lambda x, s, u: summary.scalar(x, s, "t"), ShapeError, r"value must have one element, got shape \(2, 3\)")
    refused(lambda x, s, u: summary.scalar(1.0, s, "t"), ArgumentError, "value must be a Blob")
    refused(lambda x, s, u: summary.scalar(flow.cast(s, flow.float16), s, "t"), DtypeError, "value must be one of float32")
    refused(lambda x, s, u: summary.histogram(x, x, "t"), ArgumentError, "step must be an integer Blob with one element")
    refused(lambda x, s, u: summary.histogram(x, -1, "t"), ArgumentError, "step must be an int >= 0")
    refused(lambda x, s, u: summary.histogram(x, s, s), ArgumentError, "tag must be an int8 Blob")
    refused(lambda x, s, u: summary.histogram(x, s, 5), ArgumentError, "tag must be an int8 Blob, or a str")
    refused(lambda x, s, u: summary.image(u), ShapeError, "1, 3 or 4 channels")
    refused(lambda x, s, u: summary.image(x), DtypeError, "value must be one of uint8")
    refused(lambda x, s, u: summary.pb(x), DtypeError, "value must be one of int8")
    refused(lambda x, s, u: summary.create_summary_writer(3), ArgumentError, "logdir must be a path")
    for outside in (lambda: summary.create_summary_writer("x"), summary.flush_summary_writer, lambda: summary.scalar(1, 2, "t")):
        with pytest.raises(ModeError):
            outside()
    for wrong in (
        lambda: summary.IntegerRange(1.0, 2), lambda: summary.IntegerRange(3, 2), lambda: summary.RealRange(1, 2.0),
        lambda: summary.ValueSet([]), lambda: summary.ValueSet([1, "a"]), lambda: summary.ValueSet([1], dtype=list),
        lambda: summary.Hparam(3), lambda: summary.Hparam("a", float), lambda: summary.Metric("a", str),
        lambda: summary.hparams({3: 4}), lambda: summary.hparams({"a": []}), lambda: summary.hparams([1]),
        lambda: summary.hparams({"a": 1, summary.Hparam("a"): 2}), lambda: summary.text([]), lambda: summary.text("a"),
        lambda: summary.text(["a", 1]), lambda: summary.text(["a"], tag=1), summary.Graph, summary.Projector,
    ):  # fmt: skip
        for builtin in (ValueError, TypeError):
            with pytest.raises(builtin):
                wrong()
    for wrong in (lambda: summary.ValueSet([1], dtype=np.zeros(2)), lambda: summary.Metric("a", np.zeros(2))):
        with pytest.raises(ArgumentError, match="dtype must be"):
            wrong()


def test_without_tensorboardx(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "tensorboardX"]:
        monkeypatch.setitem(sys.modules, name, None)
    refused(lambda x, s, u: flow.summary.create_summary_writer("x"), MissingExtraError, r"oneflow-jax\[tensorboard\]")
    with pytest.raises(MissingExtraError, match=r"oneflow-jax\[tensorboard\]"):
        flow.summary.text(["a"])


def test_graph(tmp_path: Path) -> None:
    from tensorboardX.proto.graph_pb2 import GraphDef

    for name in ("first", "second"):
        call(lambda: flow.math.relu(flow.constant(1.0, flow.float32, name="one"), name="two"), name)
    graph = flow.summary.Graph(tmp_path)
    graph.write_structure_graph()
    assert graph.logdir == str(tmp_path) and graph.structure_graph_filename == str(tmp_path / "graph" / "structure_graph.json")
    jobs = json.loads(Path(graph.structure_graph_filename).read_text())["jobs"]
    assert [(job["name"], [(n["name"], n["op"]) for n in job["nodes"]]) for job in jobs] == [
        (name, [("one", "constant"), ("two", "relu")]) for name in ("first", "second")
    ]
    assert jobs[0]["nodes"][1]["inputs"] == ["one/out_0"] and jobs[0]["nodes"][1]["outputs"][0]["shape"] == [1]
    (found,) = [GraphDef.FromString(e.graph_def) for e in events(tmp_path) if e.graph_def]
    assert {node.name: list(node.input) for node in found.node} == {
        "first/one": [], "first/two": ["first/one"], "second/one": [], "second/two": ["second/one"],
    }  # fmt: skip


def test_projector(tmp_path: Path) -> None:
    projector = flow.summary.Projector(str(tmp_path))
    vectors = np.random.default_rng(0).standard_normal((5, 2, 3)).astype(np.float32)
    with pytest.raises(ModeError, match="create_embedding_projector"):
        projector.embedding_projector(value=vectors, label=np.arange(5), tag="rows", step=1)
    projector.create_embedding_projector()
    projector.create_exception_projector()
    images = np.random.default_rng(0).integers(0, 256, (5, 4, 6), np.uint8)
    for step in (1, 2):  # the second replaces the first
        projector.embedding_projector(
            value=vectors * step,
            label=np.arange(5),
            tag='the "rows"',
            step=step,
            sample_name="digit",
            sample_type="image",
            x=images,
        )
    projector.exception_projector(value=vectors[:, 0], tag="odd", step=3, sample_name="word", sample_type="text", x=list("abcde"))
    config = (tmp_path / "projector_config.pbtxt").read_text()
    assert re.findall(r'tensor_name: "(.*)"', config) == [r"the \"rows\":2", "odd:3"]
    (rows, odd) = (tmp_path / path for path in re.findall(r'tensor_path: "(.*)"', config))
    np.testing.assert_allclose(np.loadtxt(rows, delimiter="\t"), 2 * vectors.reshape(5, 6), rtol=1e-6)
    np.testing.assert_allclose(np.loadtxt(odd, delimiter="\t"), vectors[:, 0], rtol=1e-6)
    assert str(rows).startswith(projector.embedding_filename) and str(odd).startswith(projector.exception_filename)
    labels, words = (tmp_path / path for path in re.findall(r'metadata_path: "(.*)"', config))
    assert labels.read_text().splitlines() == ["label\tdigit", *(f"{i}\t{i}" for i in range(5))]
    assert words.read_text().splitlines() == list("abcde")
    assert re.findall(r"single_image_dim: (\d+)", config) == ["6", "4"]
    (sprite,) = re.findall(r'image_path: "(.*)"', config)
    whole = np.asarray(Image.open(tmp_path / sprite))
    np.testing.assert_array_equal(whole[4:8, 0:6, 0], images[3])  # three in a row
    for wrong in (
        {"value": vectors, "label": np.arange(4)}, {"value": vectors[:, 0, 0]}, {}, {"value": vectors, "tag": 3},
        {"value": vectors, "step": -1}, {"value": vectors, "sample_type": "video", "x": images},
        {"value": vectors, "sample_type": "image", "x": images[:2]}, {"value": vectors, "sample_type": "image", "x": [1] * 5},
    ):  # fmt: skip
        with pytest.raises(ArgumentError):
            projector.embedding_projector(**wrong)


def test_ops_by_their_registered_names(tmp_path: Path) -> None:
    @flow.global_function()
    def job(step: tp.Numpy.Placeholder((1,), dtype=flow.int64), tag: tp.Numpy.Placeholder((1,), dtype=flow.int8)) -> tp.Numpy:
        flow.user_op_builder("open").Op("create_summary_writer").Attr("logdir", os.fspath(tmp_path)).Build().InferAndTryRun()
        value = flow.cast(step, flow.float32)
        op = (
            flow.user_op_builder("write")
            .Op("summary_write_scalar")
            .Input("in", [value])
            .Input("step", [step])
            .Input("tag", [tag])
        )
        op.Build().InferAndTryRun()
        flow.user_op_builder("flush").Op("flush_summary_writer").Build().InferAndTryRun()
        return step

    job(np.array([4]), int8("t"))
    assert [(e.step, v.tag, v.simple_value) for e in events(tmp_path) for v in e.summary.value] == [(4, "t", 4.0)]
