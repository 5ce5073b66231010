"""The predict jobs of examples/models, small, with variables that are neither 0 nor 1."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import bert
import gpt
import numpy as np
import pytest
import train_dcgan
import train_wide_and_deep
from inception_v3 import inception_v3
from mobilenet_v2 import mobilenet_v2
from plain_cnn import alexnet, vgg16
from resnet import resnet50
from vision import Layers

import oneflow as flow
import oneflow.typing as tp

BATCH = 2
CLASSES = 10
RANDOM = np.random.default_rng(0)


class Case(NamedTuple):
    """``make()`` declares the job; ``inputs(n)`` are arrays of n samples for it."""

    make: Callable[[], Any]
    inputs: Callable[[int], list[np.ndarray]]
    transposes: int | None = None  # in its ONNX model


# --- images


def _images(data_format: str, size: int, n: int) -> list[np.ndarray]:
    shape = (n, 3, size, size) if data_format == "NCHW" else (n, size, size, 3)
    return [RANDOM.standard_normal(shape, np.float32)]


def _classifier(model: Callable[..., Any], data_format: str, size: int) -> Any:
    (sample,) = _images(data_format, size, BATCH)

    @flow.global_function()
    def classify(images: tp.Numpy.Placeholder(sample.shape)) -> tp.Dict[str, tp.Numpy]:
        return {"logits": model(images, CLASSES, Layers(training=False, data_format=data_format))}

    return classify


def _image_case(model: Callable[..., Any], data_format: str, size: int, transposes: int) -> Case:
    return Case(partial(_classifier, model, data_format, size), partial(_images, data_format, size), transposes)


def _lenet() -> Any:
    @flow.global_function()
    def lenet(images: tp.Numpy.Placeholder((BATCH, 1, 28, 28))) -> tp.Numpy:
        x = flow.layers.conv2d(images, 6, 5, padding="SAME", activation=flow.nn.relu, name="conv1")
        x = flow.nn.max_pool2d(x, 2, 2, "SAME", "NCHW")
        x = flow.layers.conv2d(x, 16, 5, padding="SAME", activation=flow.nn.relu, name="conv2")
        x = flow.nn.max_pool2d(x, 3, 2, "SAME", "NCHW")
        x = flow.reshape(x, (x.shape[0], -1))
        return flow.layers.dense(flow.layers.dense(x, 64, flow.nn.relu, name="dense1"), 10, name="dense2")

    return lenet


def _quantized() -> Any:
    """A convolution and a dense layer as quantization-aware training leaves them."""

    def quantized(x: Any, name: str, scheme: str) -> Any:
        scale, zero = flow.quantization.moving_average_min_max_observer(x, quantization_scheme=scheme, name=name)
        return flow.quantization.fake_quantization(x, scale, zero, quantization_scheme=scheme)

    def weight(name: str, shape: tuple[int, ...]) -> Any:
        w = flow.get_variable(name, shape, initializer=flow.random_normal_initializer(stddev=0.2))
        return flow.quantization.fake_quantization(w, *flow.quantization.min_max_observer(w, per_layer_quantization=False))

    @flow.global_function()
    def quantized_cnn(images: tp.Numpy.Placeholder((BATCH, 3, 12, 12))) -> tp.Numpy:
        x = quantized(images, "observed_images", "affine")
        x = flow.nn.relu(flow.nn.conv2d(x, weight("conv-weight", (8, 3, 3, 3)), 1, "SAME", "NCHW"))
        x = flow.math.reduce_mean(quantized(x, "observed_features", "symmetric"), axis=[2, 3])
        return flow.matmul(x, weight("dense-weight", (10, 8)), transpose_b=True)

    return quantized_cnn


# --- text


TEXT = 12


def _words(n: int, most: int) -> np.ndarray:
    return RANDOM.integers(0, most, (n, TEXT), dtype=np.int32)


def _bert_inputs(n: int) -> list[np.ndarray]:
    return [_words(n, bert.TINY.vocab_size), _words(n, 2), np.maximum(_words(n, 2), np.arange(TEXT, dtype=np.int32) < 4)]


def _bert() -> Any:
    text = tp.Numpy.Placeholder((BATCH, TEXT), flow.int32)

    @flow.global_function()
    def encode(ids: text, types: text, mask: text) -> tp.Dict[str, tp.Numpy]:
        model = bert.Bert(bert.TINY, training=False)
        x = model.encode(ids, types, mask)
        start, end = model.span(x)
        return {"encoded": x, "start": start, "end": end, "follows": model.next_sentence(x)}

    return encode


def _gpt() -> Any:
    @flow.global_function()
    def logits(tokens: tp.Numpy.Placeholder((BATCH, TEXT), flow.int32)) -> tp.Numpy:
        return gpt.GPT(gpt.TINY, training=False).logits(tokens)

    return logits


def _cached_attention() -> Any:
    """One step of a decoder: the keys and values of earlier words come in, and go out with one word more."""
    heads, size = 4, 8
    past = tp.Numpy.Placeholder((BATCH, heads, TEXT, size))

    @flow.global_function()
    def step(x: tp.Numpy.Placeholder((BATCH, 1, heads * size)), keys: past, values: past) -> tp.Dict[str, tp.Numpy]:
        def projected(name: str) -> Any:
            y = flow.layers.dense(flow.reshape(x, (-1, heads * size)), heads * size, name=name)
            return flow.transpose(flow.reshape(y, (x.shape[0], 1, heads, size)), (0, 2, 1, 3))

        query = projected("query")
        k = flow.concat([keys, projected("key")], axis=2)
        v = flow.concat([values, projected("value")], axis=2)
        weights = flow.nn.softmax(flow.matmul(query, k, transpose_b=True, alpha=size**-0.5))
        y = flow.reshape(flow.transpose(flow.matmul(weights, v), (0, 2, 1, 3)), (x.shape[0], 1, heads * size))
        return {"y": y, "keys": k, "values": v}

    return step


def _cached_inputs(n: int) -> list[np.ndarray]:
    return [RANDOM.standard_normal(s, np.float32) for s in ((n, 1, 32), (n, 4, TEXT, 8), (n, 4, TEXT, 8))]


# --- others


def _wide_and_deep_options() -> Any:
    return train_wide_and_deep.arguments().parse_args([f"--batch={BATCH}", "--values=30", "--embedding=4", "--hidden=16"])


def _wide_and_deep() -> Any:
    return train_wide_and_deep.make_jobs(_wide_and_deep_options())[1]


def _wide_and_deep_inputs(n: int) -> list[np.ndarray]:
    f = train_wide_and_deep.features_of(_wide_and_deep_options())
    ids = [RANDOM.integers(0, 30, (n, count), dtype=np.int32) for count in (f.wide, f.deep)]
    return [RANDOM.standard_normal((n, f.dense), np.float32), *ids]


def _dcgan() -> Any:
    return train_dcgan.make_jobs(SimpleNamespace(batch=BATCH, width=8, learning_rate=1e-3))[2]


def _dcgan_inputs(n: int) -> list[np.ndarray]:
    return [RANDOM.standard_normal((n, train_dcgan.dcgan.CODE), np.float32)]


SMALL_MOBILENET = partial(mobilenet_v2, width=0.25)
CASES = {
    "lenet": Case(_lenet, lambda n: [RANDOM.standard_normal((n, 1, 28, 28), np.float32)], 0),
    "quantized": Case(_quantized, lambda n: [RANDOM.standard_normal((n, 3, 12, 12), np.float32)], 0),
    "mobilenet_v2 NHWC": _image_case(SMALL_MOBILENET, "NHWC", 32, 1),
    "alexnet NHWC": _image_case(partial(alexnet, hidden=32), "NHWC", 64, 1),
    "bert": Case(_bert, _bert_inputs),
    "gpt": Case(_gpt, lambda n: [_words(n, gpt.TINY.vocab_size)]),
    "cached attention": Case(_cached_attention, _cached_inputs),
    "wide_and_deep": Case(_wide_and_deep, _wide_and_deep_inputs, 0),
    "dcgan": Case(_dcgan, _dcgan_inputs),
}
SLOW = {
    "mobilenet_v2": _image_case(SMALL_MOBILENET, "NCHW", 32, 0),
    "resnet50": _image_case(resnet50, "NCHW", 64, 0),
    "resnet50 NHWC": _image_case(resnet50, "NHWC", 64, 1),
    "inception_v3": _image_case(inception_v3, "NCHW", 75, 0),
    "inception_v3 NHWC": _image_case(inception_v3, "NHWC", 75, 1),
    "vgg16": _image_case(partial(vgg16, hidden=32), "NCHW", 32, 0),
    "vgg16 NHWC": _image_case(partial(vgg16, hidden=32), "NHWC", 32, 1),
    "alexnet": _image_case(partial(alexnet, hidden=32), "NCHW", 64, 0),
}
PARAMS = [
    *(pytest.param(case, id=name) for name, case in CASES.items()),
    *(pytest.param(case, id=name, marks=pytest.mark.thorough) for name, case in SLOW.items()),
]


def scramble() -> None:
    """Sets statistics, factors, biases and observed extremes to values as after some training.

    All numbers of a test follow from here: where a value is rounded, a tie would depend on the tests that ran before.
    """
    global RANDOM
    RANDOM = np.random.default_rng(0)
    flow.manual_seed(0)
    random = np.random.default_rng(1)
    values = {}
    for name, handle in flow.get_all_variables().items():
        if name.endswith(("-moving_variance", "-gamma")):
            values[name] = random.uniform(0.75, 1.25, handle.shape).astype(np.float32)
        elif name.endswith(("-moving_mean", "-beta", "bias")):
            values[name] = 0.1 * random.standard_normal(handle.shape, np.float32)
        elif name.endswith(("-moving_max", "-moving_min")):
            values[name] = np.full(handle.shape, 2.5 if name.endswith("max") else -2.0, np.float32)
    flow.load_variables(values)


def arrays_of(result: Any) -> list[np.ndarray]:
    """The results of a call, in order."""
    if isinstance(result, dict):
        return [a for value in result.values() for a in arrays_of(value)]
    if isinstance(result, (list, tuple)):
        return [a for value in result for a in arrays_of(value)]
    return [np.asarray(result)]


def answers(job: Any, inputs: list[np.ndarray], leaves: Callable[[Any], list[np.ndarray]] = arrays_of) -> list[np.ndarray]:
    """The job's results for any multiple of its batch, batch by batch: samples do not depend on each other."""
    count = len(inputs[0])
    made = [leaves(job(*(a[i : i + BATCH] for a in inputs))) for i in range(0, count, BATCH)]
    return [np.concatenate(pieces) for pieces in zip(*made, strict=True)]
