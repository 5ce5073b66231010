"""ResNet-50 against PyTorch: every layer's values, every variable's gradient, statistics, and a few steps of training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compare import (
    BACKWARD,
    FORWARD,
    array,
    close,
    differences,
    from_torch,
    gradients,
    load,
    recorded,
    scrambled,
    torch,
    torch_gradients,
    variables,
)
from resnet import resnet50
from torch_resnet import ResNet50
from vision import Layers

import oneflow as flow
import oneflow.typing as tp

pytestmark = pytest.mark.timeout(600)  # compiling dominates, and takes long where others use the machine
BATCH, SIZE, CLASSES = 4, 64, 10
RATE = 2.0**-7  # exact in float32, as learning rates are
RNG = np.random.default_rng(4)
IMAGES = RNG.standard_normal((BATCH, 3, SIZE, SIZE), np.float32)
LABELS = RNG.integers(0, CLASSES, BATCH).astype(np.int32)


def reference() -> Any:
    """A network whose blocks change little, as after training.

    With gammas of 1 everywhere, gradients in float32 are mostly rounding: PyTorch's own are 30 % off those in float64.
    """
    torch.manual_seed(0)
    module = scrambled(ResNet50(CLASSES))
    for name, weight in module.named_parameters():
        if name.endswith("bn3.weight"):
            weight.data *= 0.2
    return module


def test_every_layer_has_the_values_of_pytorch() -> None:
    @flow.global_function()
    def evaluate(images: tp.Numpy.Placeholder(IMAGES.shape)) -> tp.Dict[str, tp.Numpy]:
        net = Layers()
        resnet50(images, CLASSES, net)
        return net.outputs

    module = reference().eval()
    load(module)
    with torch.no_grad():
        _, layers = recorded(module, lambda: module(torch.tensor(IMAGES)))
    ours = evaluate(IMAGES)
    assert len(ours) == 53 + 53 + 16 + 3  # convolutions, normalizations, blocks; pooling twice, and the dense layer
    close("values", ours, {name: layers[name] for name in ours}, FORWARD)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_training_is_that_of_pytorch(kind: str) -> None:
    dtype = getattr(flow, kind)

    @flow.global_function(type="train")
    def train(x: tp.Numpy.Placeholder(IMAGES.shape, dtype), labels: tp.Numpy.Placeholder((BATCH,), flow.int32)) -> tp.Numpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, resnet50(x, CLASSES))
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [RATE]), momentum=0.9).minimize(loss)
        return loss

    def trained(images: np.ndarray, steps: int) -> float:
        """How far most gradients of the first step are from those of PyTorch; losses and, in float64, all else are compared."""
        module = reference().to(getattr(torch, kind)).train()
        optimizer = torch.optim.SGD(module.parameters(), RATE, momentum=0.9)
        load(module)
        handles = flow.get_all_variables().items()
        flow.load_variables({name: 0 * handle.numpy() for name, handle in handles if name.endswith("-momentum")})
        losses, most = [], 0.0
        for step in range(steps):
            optimizer.zero_grad()
            expected = torch.nn.functional.cross_entropy(
                module(torch.tensor(images)), torch.tensor(LABELS).long(), reduction="none"
            )
            expected.mean().backward()
            optimizer.step()
            losses.append(train(images, LABELS))
            tolerance = FORWARD if step == 0 or kind == "float64" else 5e-2
            close(f"loss {step}", {"loss": losses[-1]}, {"loss": array(expected)}, tolerance)
            if step == 0:
                found = gradients("-momentum", -1 / RATE), torch_gradients(module)
                if kind == "float64":
                    close("gradients", *found, 1e-6, floor=1e-4)
                    close("variables", variables(), from_torch(module.state_dict()), 1e-6)
                errors = sorted(differences(*found, floor=1e-4).values())
                most = errors[len(errors) * 9 // 10]
        assert steps == 1 or losses[-1].mean() < 0.2 * losses[0].mean()
        return most

    # a unit that rounding moves across relu's corner changes one layer's gradient, and with it those below: by what few images
    # that is so depends on how the machine rounds
    found = []
    for seed, steps in ((4, 4 if kind == "float32" else 2), (0, 1), (1, 1)):
        found.append(trained(np.random.default_rng(seed).standard_normal(IMAGES.shape).astype(kind), steps))
        if found[-1] < BACKWARD:
            break
    assert found[-1] < BACKWARD and max(found) < 0.1, found
