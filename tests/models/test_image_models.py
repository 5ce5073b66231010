"""AlexNet, VGG-16, MobileNet-v2 and Inception-v3 against PyTorch: values of layers, gradients, statistics, some steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch_cnn
from compare import (
    BACKWARD,
    FORWARD,
    array,
    close,
    from_torch,
    gradients,
    load,
    recorded,
    scrambled,
    torch,
    torch_gradients,
    variables,
)
from inception_v3 import inception_v3
from mobilenet_v2 import mobilenet_v2
from plain_cnn import alexnet, vgg16
from vision import Layers

import oneflow as flow
import oneflow.typing as tp

# compiling dominates, and takes long where others use the machine
pytestmark = pytest.mark.timeout(600)
BATCH, CLASSES, STEPS = 4, 10, 3
RATE = 2.0**-7  # exact in float32, as learning rates are


class Case(NamedTuple):
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    size: int
    layers: int  # how many values are compared
    dense: tuple[int, ...] = ()  # of the hidden layers and the columns of the first one, where the model has hidden layers
    kind: str = "float64"  # gradients behind batch normalization of four samples need it


CASES = {
    "alexnet": Case(alexnet, torch_cnn.alexnet, 64, 5 + 3 + 3, (64, 256), "float32"),
    "vgg16": Case(vgg16, torch_cnn.vgg16, 32, 13 + 5 + 3, (64, 512), "float32"),
    "mobilenet_v2": Case(partial(mobilenet_v2, width=0.25), torch_cnn.mobilenet_v2, 32, 52 + 52 + 17 + 2),
    "inception_v3": Case(inception_v3, torch_cnn.inception_v3, 75, 94 + 94 + 11 + 4),
}


@pytest.mark.parametrize("name", ["mobilenet_v2", pytest.param("inception_v3", marks=pytest.mark.thorough)])
def test_moving_statistics_give_the_values_of_pytorch(name: str) -> None:
    case = CASES[name]
    images = np.random.default_rng(0).standard_normal((2, 3, case.size, case.size), np.float32)

    @flow.global_function()
    def evaluate(x: tp.Numpy.Placeholder(images.shape)) -> tp.Dict[str, tp.Numpy]:
        net = Layers()
        case.ours(x, CLASSES, net)
        return net.outputs

    torch.manual_seed(0)
    module = scrambled(case.theirs(CLASSES)).eval()
    load(module)
    with torch.no_grad():
        _, layers = recorded(module, lambda: module(torch.tensor(images)))
    shared = {name: value for name, value in evaluate(images).items() if name in layers}
    assert len(shared) == case.layers
    close("values", shared, {name: layers[name] for name in shared}, FORWARD)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.thorough) if name != "alexnet" else name for name in CASES]
)
def test_a_model_is_that_of_pytorch(name: str) -> None:
    case = CASES[name]
    rng = np.random.default_rng(0)
    images = rng.standard_normal((BATCH, 3, case.size, case.size)).astype(case.kind)
    labels = rng.integers(0, CLASSES, BATCH).astype(np.int32)

    @flow.global_function(type="train")
    def train(
        x: tp.Numpy.Placeholder(images.shape, getattr(flow, case.kind)), labels: tp.Numpy.Placeholder((BATCH,), flow.int32)
    ) -> tp.Tuple[tp.Numpy, tp.Dict[str, tp.Numpy]]:
        net = Layers()
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, case.ours(x, CLASSES, net, *case.dense[:1], rate=0.0))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [RATE]), momentum=0.9).minimize(loss)
        return loss, net.outputs

    torch.manual_seed(0)
    module = scrambled(case.theirs(CLASSES, *case.dense)).to(getattr(torch, case.kind)).train()
    load(module)
    optimizer = torch.optim.SGD(module.parameters(), RATE, momentum=0.9)
    x, y = torch.tensor(images), torch.tensor(labels).long()
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        logits, layers = recorded(module, lambda: module(x))
        expected = torch.nn.functional.cross_entropy(logits, y, reduction="none")
        expected.mean().backward()
        optimizer.step()
        loss, ours = train(images, labels)
        losses.append(loss.mean())
        close(f"loss {step}", {"": loss}, {"": array(expected)}, FORWARD if step == 0 else 1e-2)
        if step == 0:
            shared = {name: value for name, value in ours.items() if name in layers}
            assert len(shared) == case.layers, set(ours) - set(layers)
            close("values", shared, {name: layers[name] for name in shared}, FORWARD)
            close("gradients", gradients("-momentum", -1 / RATE), torch_gradients(module), BACKWARD, floor=1e-4)
            close("variables", variables(), from_torch(module.state_dict()), FORWARD)
    assert losses[-1] < losses[0]
