"""A GPT written as in 2021 for `oneflow.compatible.single_client`: the same on all its axes, and the same as PyTorch's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import megatron_gpt
import numpy as np
import pytest
from compare import close, from_torch, gradients, scrambled, torch, torch_gradients
from torch_gpt import GPT

import oneflow as flow
from oneflow.data.gpt import IndexedTokens, SampleStream

SIZES = "--num-layers 2 --hidden-size 32 --seq-length 8 --padded-vocab-size 64 --global-batch-size 8 --lr-warmup-iters 0"
DOCUMENTS = [np.random.default_rng(i).integers(0, 64, 40).astype(np.uint8).tobytes() for i in range(30)]


@pytest.fixture(autouse=True)
def one_device_afterwards() -> Iterator[None]:
    """Other tests expect a session of one device."""
    yield
    flow.clear_default_session()


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    megatron_gpt.write_dataset(str(tmp_path / "tokens"), DOCUMENTS)
    return str(tmp_path / "tokens")


def trained(dataset: str, options: str, steps: int = 3) -> tuple[list[float], dict[str, np.ndarray]]:
    """The losses of a training, and all variables after it."""
    flow.clear_default_session()
    command = f"{SIZES} --dataset {dataset} --train-iters {steps} {options}"
    losses: list[float] = []
    megatron_gpt.train(megatron_gpt.parser().parse_args(command.split()), lambda _, loss: losses.append(float(loss)))
    values = {name: handle.numpy() for name, handle in flow.get_all_variables().items()}
    return losses, {name: value for name, value in values.items() if "-iteration-" not in name}  # named after the layout


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_many_devices_train_as_one_does(dataset: str) -> None:
    axes = (
        "--data 2 --tensor 2 --pipeline 2 --checkpoint-activations --no-bias-gelu-fusion --no-scale-tril-softmax-dropout-fusion"
    )
    same = "--num-accumulation-steps 2 --dropout 0.1 --apply-query-key-layer-scaling"
    many, one = trained(dataset, f"{axes} {same}"), trained(dataset, same)
    np.testing.assert_allclose(many[0], one[0], rtol=1e-5)
    assert many[1].keys() == one[1].keys()
    for variable, value in one[1].items():
        # Adam divides by the gradient's size: where that is rounding alone, so is the step
        tolerance = 1e-5 if not variable.endswith("c_attn-bias") else 1e-3
        np.testing.assert_allclose(many[1][variable], value, rtol=1e-4, atol=tolerance, err_msg=variable)


@pytest.mark.timeout(400)
def test_a_snapshot_of_two_devices_goes_on_on_one(dataset: str, tmp_path: Path) -> None:
    """The last loss, and so the data, are those of the run that was not interrupted."""
    whole, _ = trained(dataset, f"--num-layers 1 --tensor 2 --save {tmp_path} --save-interval 1", steps=2)
    path = tmp_path / "iter1_snapshot"
    assert np.fromfile(path / "model-layernorm_f-gamma" / "out", np.float32).shape == (32,)
    with pytest.warns(flow.errors.CheckpointWarning, match="-spi0-"):  # the reader's position has its layout in its name
        losses, _ = trained(dataset, f"--num-layers 1 --load {path} --iteration 1", steps=2)
    np.testing.assert_allclose(losses, whole[1:], rtol=1e-5)


@pytest.mark.timeout(400)
def test_loss_and_gradients_are_those_of_pytorch(dataset: str) -> None:
    axes = "--tensor 2 --pipeline 2 --num-accumulation-steps 2 --multihead-attention-fusion --clip-grad 0"
    args = megatron_gpt.parser().parse_args(f"{SIZES} --dataset {dataset} --train-iters 2 {axes}".split())
    flow.clear_default_session()
    megatron_gpt.configure(args)
    job = megatron_gpt.make_train_job(args)
    torch.manual_seed(0)
    module = scrambled(GPT(SimpleNamespace(vocab_size=64, hidden_size=32, seq_length=8, layers=2, heads=4)))
    flow.load_variables(from_torch(module.state_dict(), strict=False))
    loss = job().get()["loss"].numpy().mean()
    stream = SampleStream(IndexedTokens(dataset), range(len(DOCUMENTS)), 8, 16, args.seed)
    expected = module(torch.tensor(np.stack([stream.sample(i) for i in range(8)]).astype(np.int64)))
    expected.backward()
    np.testing.assert_allclose(loss, expected.item(), rtol=1e-5)
    close("gradients", gradients("-m", 10.0), torch_gradients(module), 1e-4, floor=1e-4)
