"""A GPT against PyTorch: every layer's values, every variable's gradient, and some steps of Adam."""

from __future__ import annotations

import dataclasses

import generate_gpt
import gpt
import numpy as np
from compare import BACKWARD, FORWARD, array, close, gradients, load, recorded, scrambled, torch, torch_gradients
from torch_gpt import GPT

import oneflow as flow
import oneflow.typing as tp

BATCH, LENGTH, STEPS = 4, 16, 6
TOKENS = np.random.default_rng(0).integers(0, gpt.TINY.vocab_size, (BATCH, LENGTH + 1)).astype(np.int32)


def test_training_is_that_of_pytorch() -> None:
    @flow.global_function(type="train")
    def job(tokens: tp.Numpy.Placeholder(TOKENS.shape, flow.int32)) -> tp.Tuple[tp.Numpy, tp.Dict[str, tp.Numpy]]:
        model = gpt.GPT(gpt.TINY)
        loss = model.loss(tokens)
        rate = flow.optimizer.PiecewiseConstantScheduler([], [1e-3])
        flow.optimizer.Adam(rate, do_bias_correction=True).minimize(loss)
        return loss, model.outputs

    torch.manual_seed(0)
    module = scrambled(GPT(gpt.TINY))
    load(module)
    optimizer = torch.optim.Adam(module.parameters(), 1e-3)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        expected, values = recorded(module, lambda: module(torch.tensor(TOKENS).long()))
        expected.backward()
        loss, found = job(TOKENS)
        losses.append(loss.item())
        close(f"loss {step}", {"loss": loss}, {"loss": array(expected).reshape(1)}, FORWARD if step == 0 else 1e-2)
        if step == 0:
            values["model-logits"] = values["model"]
            assert len(found) == 6 * gpt.TINY.layers + 2
            close("values", found, {name: values[name] for name in found}, FORWARD)
            close("gradients", gradients("-m", 10.0), torch_gradients(module), BACKWARD, floor=1e-4)
        optimizer.step()
    assert losses[-1] < losses[0] - 0.1


def test_cached_keys_and_values_write_what_whole_texts_do() -> None:
    """As likely tokens as without a cache, for a prompt of any length up to the last place."""
    config = dataclasses.replace(gpt.TINY, layers=1, seq_length=12, initializer_range=0.2)
    prompt = TOKENS[:2, :5]
    text = np.concatenate([prompt, np.stack(list(generate_gpt.generate(generate_gpt.make_jobs(config, 5, 2), prompt, 7)), 1)], 1)

    @flow.global_function()
    def whole(tokens: tp.Numpy.Placeholder(text.shape, dtype=flow.int32)) -> tp.Numpy:
        return gpt.GPT(config, training=False).logits(tokens)

    np.testing.assert_array_equal(whole(text).argmax(-1)[:, 4:-1], text[:, 5:])
    assert len(np.unique(text[:, 5:])) > 3
