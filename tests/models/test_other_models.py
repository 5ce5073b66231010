"""Wide & Deep and DCGAN against PyTorch: losses, gradients, variables, some steps."""

from __future__ import annotations

import dcgan
import numpy as np
import train_wide_and_deep
from compare import BACKWARD, FORWARD, array, close, from_torch, gradients, load, scrambled, torch, torch_gradients, variables
from torch_rest import DCGAN, WideAndDeep
from wide_and_deep import wide_and_deep

import oneflow as flow
import oneflow.typing as tp

STEPS = 4


def sgd(rate: float) -> flow.optimizer.SGD:
    return flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [rate]), momentum=0.9)


def test_wide_and_deep_is_that_of_pytorch() -> None:
    rate = 0.5
    options = train_wide_and_deep.arguments().parse_args(["--batch=64", "--values=30", "--embedding=4", "--hidden=16"])
    f = train_wide_and_deep.features_of(options)
    dense, wide, deep, labels = next(train_wide_and_deep.batches(options))

    @flow.global_function(type="train")
    def train(
        dense: tp.Numpy.Placeholder(dense.shape),
        wide: tp.Numpy.Placeholder(wide.shape, flow.int32),
        deep: tp.Numpy.Placeholder(deep.shape, flow.int32),
        labels: tp.Numpy.Placeholder(labels.shape),
    ) -> tp.Numpy:
        loss = flow.nn.sigmoid_cross_entropy_with_logits(labels, wide_and_deep(dense, wide, deep, f, rate=0.0))
        sgd(rate).minimize(loss)
        return loss

    torch.manual_seed(0)
    module = scrambled(WideAndDeep(f))
    load(module)
    optimizer = torch.optim.SGD(module.parameters(), rate, momentum=0.9)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        logits = module(torch.tensor(dense), torch.tensor(wide), torch.tensor(deep))
        expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.tensor(labels), reduction="none")
        expected.mean().backward()
        optimizer.step()
        losses.append(train(dense, wide, deep, labels))
        close(f"loss {step}", {"": losses[-1]}, {"": array(expected)}, FORWARD)
        if step == 0:
            close("gradients", gradients("-momentum", -1 / rate), torch_gradients(module), BACKWARD)
    assert losses[-1].mean() < losses[0].mean()


def test_dcgan_is_that_of_pytorch() -> None:
    batch, width, rate = 8, 8, 2.0**-7
    rng = np.random.default_rng(0)
    codes = rng.standard_normal((batch, dcgan.CODE), np.float32)
    images = rng.uniform(-1, 1, (batch, 1, 28, 28)).astype(np.float32)

    @flow.global_function(type="train")
    def train_generator(codes: tp.Numpy.Placeholder(codes.shape)) -> tp.Numpy:
        loss = dcgan.generator_loss(codes, width)
        sgd(rate).minimize(loss)
        return loss

    @flow.global_function(type="train")
    def train_discriminator(codes: tp.Numpy.Placeholder(codes.shape), images: tp.Numpy.Placeholder(images.shape)) -> tp.Numpy:
        loss = dcgan.discriminator_loss(codes, images, width)
        sgd(rate).minimize(loss)
        return loss

    @flow.global_function()
    def draw(codes: tp.Numpy.Placeholder(codes.shape)) -> tp.Numpy:
        return dcgan.generator(codes, width=width)

    torch.manual_seed(0)
    module = scrambled(DCGAN(width, dcgan.CODE))
    load(module)
    players = [torch.optim.SGD(part.parameters(), rate, momentum=0.9) for part in (module.generator, module.discriminator)]
    x, real = torch.tensor(codes), torch.tensor(images)
    for step in range(STEPS):  # in turn, as they train in earnest; what one learns the other job sees
        module.zero_grad()
        expected = module.generator_loss(x)
        expected.mean().backward()
        players[0].step()
        close(f"generator {step}", {"": train_generator(codes)}, {"": array(expected)}, FORWARD if step == 0 else 1e-2)
        if step == 0:
            wanted = {n: g for n, g in torch_gradients(module).items() if n.startswith("generator")}
            found = gradients("-momentum", -1 / rate)
            close("gradients", {n: found[n] for n in wanted}, wanted, BACKWARD, 1e-4)
        module.zero_grad()
        expected = module.discriminator_loss(x, real)
        expected.mean().backward()
        players[1].step()
        close(f"discriminator {step}", {"": train_discriminator(codes, images)}, {"": array(expected)}, 1e-2)
        if step == 0:
            wanted = torch_gradients(module.discriminator, rename=lambda name: f"discriminator.{name}")
            found = gradients("-momentum", -1 / rate)
            close("gradients", {n: found[n] for n in wanted}, wanted, BACKWARD, 1e-4)
    close("variables", variables(), from_torch(module.state_dict()), 1e-3)
    module.generator.eval()
    close("images", {"": draw(codes)}, {"": array(module.generator(x))}, BACKWARD)
