"""flow.plot_model, and how notebooks show jobs and variables."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oneflow as flow
import oneflow.typing as tp
from oneflow._reports.layered import lay_out
from oneflow.errors import ArgumentError

SVG = "{http://www.w3.org/2000/svg}"


def lenet(x):
    start = flow.truncated_normal(0.1)
    relu = flow.nn.relu
    x = flow.layers.conv2d(x, 32, 5, padding="SAME", activation=relu, kernel_initializer=start, name="conv1")
    x = flow.nn.max_pool2d(x, 2, 2, "SAME", name="pool1")
    x = flow.reshape(x, (x.shape[0], -1), name="flat")
    x = flow.layers.dense(x, 64, activation=relu, kernel_initializer=start, name="dense1")
    return flow.layers.dense(x, 10, kernel_initializer=start, name="dense2")


def train_lenet():
    @flow.global_function("train")
    def train(
        images: tp.Numpy.Placeholder((8, 1, 28, 28)), labels: tp.Numpy.Placeholder((8,), dtype=flow.int32)
    ) -> tp.Tuple[tp.Numpy, tp.Numpy]:
        logits = lenet(images)
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits, name="loss")
        flow.optimizer.SGD(0.1).minimize(loss)
        return loss, logits

    return train


def texts(path):
    """The texts of a picture; those of arrows begin with a tooltip."""
    found = ET.parse(path).getroot().iter(f"{SVG}text")
    return [element.text or element[0].tail for element in found if element.get("fill") != "white"]


def stack(layers, units=4):
    """Blocks of an attention-like part with a residual, in namespaces."""

    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((2, units))) -> tp.Numpy:
        for i in range(layers):
            with flow.scope.namespace(f"encoder-layer-{i}"):
                with flow.scope.namespace("attention"):
                    y = flow.layers.dense(x, units, activation=flow.math.tanh, name="query")
                    y = flow.layers.dense(y, units, activation=flow.math.tanh, name="output")
                x = flow.nn.relu(x + y)
        return x

    return job


def test_lenet_as_svg(tmp_path):
    flow.plot_model(train_lenet(), tmp_path / "lenet.svg")
    found = texts(tmp_path / "lenet.svg")
    for title in ("images", "labels", "conv1", "pool1", "flat", "dense1", "dense2", "loss", "loss, returned", "result 1"):
        assert found.count(title) == 1, title
    assert "conv2d, bias_add, relu" in found and "832 parameters" in found
    assert {"float32[8, 1, 28, 28]", "float32[8, 32, 14, 14]", "float32[8, 10]", "int32[8]"} <= set(found)


def test_modules_are_opened_to_a_depth(tmp_path):
    job = stack(3)

    def boxes(depth):
        flow.plot_model(job, tmp_path / "stack.svg", depth)
        return [text for text in texts(tmp_path / "stack.svg") if text.startswith("encoder")]

    assert boxes(1) == ["encoder-layer"]
    assert boxes(2) == ["encoder-layer-0", "encoder-layer-1", "encoder-layer-2"]
    assert "encoder-layer-0-attention" in boxes(3) and len(boxes(3)) == 9
    assert "encoder-layer-0-attention-query" in boxes(4)
    ops = [node.name for node in job.graph.nodes if node.op.name not in ("input", "variable")]
    assert sorted(boxes(0)) == sorted(ops)


def test_a_deep_model_stays_readable(tmp_path):
    flow.plot_model(stack(24), tmp_path / "deep.svg")
    found = [text for text in texts(tmp_path / "deep.svg") if text.startswith("encoder")]
    assert found == [f"encoder-layer-{i}" for i in range(24)]


def test_devices_are_colours(tmp_path):
    flow.clear_default_session()
    flow.config.gpu_device_num(2)

    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((2, 4))) -> tp.Numpy:
        with flow.scope.placement("gpu", "0:0"):
            h = flow.math.tanh(x, name="one")
        with flow.scope.placement("gpu", "0:1"):
            return flow.math.tanh(h, name="two")

    flow.plot_model(job, tmp_path / "job.svg")
    fills = {}
    for group in ET.parse(tmp_path / "job.svg").getroot().iter(f"{SVG}g"):
        fills[group.findall(f"{SVG}text")[0].text] = group.find(f"{SVG}rect").get("fill")
    assert len({fills["one"], fills["two"], fills["x"]}) == 3
    places = {str(node.scope.placement) for node in job.graph.nodes if node.name in ("one", "two")}
    assert len(places) == 2 and places <= set(texts(tmp_path / "job.svg"))


def test_html_stands_alone(tmp_path):
    flow.plot_model(train_lenet(), str(tmp_path / "lenet.html"))
    text = (tmp_path / "lenet.html").read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and "<svg" in text and "conv1-bias_add" in text and "</table>" in text
    style = text.partition("<style>")[2].partition("</style>")[0]
    assert re.fullmatch(r"(\s*[^{}]+\{[^{}]+\})+", style), style
    assert not re.search(r"(src|href)=|@import|url\((?!#)", text)


def test_graphviz_and_mermaid(tmp_path):
    train = train_lenet()
    flow.plot_model(train, tmp_path / "a.dot")
    flow.plot_model(train, tmp_path / "a.mmd")
    dot, mermaid = ((tmp_path / f"a.{e}").read_text(encoding="utf-8") for e in ("dot", "mmd"))
    assert dot.startswith('digraph "train job train" {') and dot.count("{") == dot.count("}")
    assert dot.count(" -> ") == mermaid.count(" -->|") == 9
    assert mermaid.startswith("flowchart TD") and 'n0(["images"])' in mermaid
    for text in (dot, mermaid):
        numbers = set(re.findall(r"(?:^  |-> |\| )n(\d+)\b", text, re.MULTILINE))
        assert numbers == {str(i) for i in range(len(numbers))}


def test_a_picture_that_cannot_be_written(tmp_path):
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((2, 4))) -> tp.Numpy:
        return x

    text = r"(?s)flow.plot_model: .*no/job.svg' cannot be written: No such file.*your line .*test_pictures.py.*create the dir"
    with pytest.raises(flow.errors.ExportError, match=text):
        flow.plot_model(job, tmp_path / "no" / "job.svg")
    (tmp_path / "job.dot").mkdir()
    with pytest.raises(flow.errors.ExportError, match="cannot be written"):
        flow.plot_model(job, tmp_path / "job.dot")
    assert [path.name for path in tmp_path.iterdir()] == ["job.dot"]


def test_names_are_escaped(tmp_path):
    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((2, 4))) -> tp.Numpy:
        return flow.math.tanh(x, name='<b>"&\\ bold')

    for ending in ("svg", "html", "dot", "mmd"):
        flow.plot_model(job, tmp_path / f"job.{ending}")
    assert '<b>"&\\ bold' in texts(tmp_path / "job.svg")
    assert "<b>" not in (tmp_path / "job.html").read_text() and "<b>" not in (tmp_path / "job.mmd").read_text()
    assert '\\"&\\\\ bold' in (tmp_path / "job.dot").read_text()


def test_a_module_around_other_ops(tmp_path):
    """Its arrows go up and down."""

    @flow.global_function("predict")
    def job(x: tp.Numpy.Placeholder((2, 4))) -> tp.Numpy:
        y = flow.math.tanh(flow.math.tanh(x, name="module-a"), name="module-b")
        y = flow.math.exp(y, name="between")
        return flow.math.tanh(flow.math.tanh(y, name="module-c"), name="module-d")

    flow.plot_model(job, tmp_path / "job.svg", depth=1)
    assert {"module", "between", "result"} <= set(texts(tmp_path / "job.svg"))


@st.composite
def graphs(draw):
    n = draw(st.integers(1, 9))
    sizes = {i: (draw(st.integers(20, 200)), draw(st.integers(20, 80))) for i in range(n)}
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
    arrows = draw(st.lists(st.sampled_from(pairs), max_size=14, unique=True)) if pairs else []
    return sizes, arrows


@given(graphs())
@settings(max_examples=60, deadline=None)
def test_boxes_never_overlap_and_arrows_end_at_them(graph):
    sizes, arrows = graph
    layout = lay_out(sizes, arrows)
    assert set(layout.centres) == set(sizes) and len(layout.routes) == len(arrows)
    for key, (x, y) in layout.centres.items():
        w, h = sizes[key]
        assert -1e-6 <= x - w / 2 and x + w / 2 <= layout.width + 1e-6 and -1e-6 <= y - h / 2 <= layout.height
    for a, b in combinations(sizes, 2):
        (xa, ya), (xb, yb) = layout.centres[a], layout.centres[b]
        (wa, ha), (wb, hb) = sizes[a], sizes[b]
        assert abs(xa - xb) >= (wa + wb) / 2 - 1e-6 or abs(ya - yb) >= (ha + hb) / 2 - 1e-6
    for (source, target), route in zip(arrows, layout.routes, strict=True):
        assert len(route) % 2 == 0
        for key, (x, y) in ((source, route[0]), (target, route[-1])):
            assert x == pytest.approx(layout.centres[key][0])
            assert abs(y - layout.centres[key][1]) == pytest.approx(sizes[key][1] / 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, "a.svg"), "needs a job function"),
        ((None, 3), "needs a path"),
        ((None, b"a.svg"), "needs a path"),
        ((None, "a.png"), "writes .svg"),
        ((None, "a.svg", -1), "depth"),
        ((None, "a.svg", 1.5), "depth"),
    ],
)
def test_wrong_use(arguments, message):
    job, *rest = arguments
    with pytest.raises(ArgumentError, match=re.escape(message)):
        flow.plot_model(train_lenet() if job is None else job, *rest)


def test_notebooks_show_tables():
    train = train_lenet()
    html = train.summary()._repr_html_()
    assert html.count("<tr>") == len(train.summary().rows) + 1 and "conv1-bias_add" in html and "optimizer state" in html
    rng = np.random.default_rng(0)
    train(rng.standard_normal((8, 1, 28, 28)).astype(np.float32), np.zeros(8, np.int32))
    weight = flow.get_all_variables()["conv1-weight"]
    html = weight._repr_html_()
    assert "conv1-weight" in html and "float32[32, 1, 5, 5]" in html and f"max {weight.numpy().max():.4g}" in html
    flow.clear_default_session()
    assert "conv1-weight" in weight._repr_html_()
