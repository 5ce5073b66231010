"""The real compilers: ``pytest -m compilers tests/planning`` with the extras plan-gpu and plan-tpu installed."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path

import pytest
from jobs import small

import oneflow as flow
import oneflow.typing as tp
from oneflow.cli.scripts import load_job

pytestmark = [pytest.mark.compilers, pytest.mark.timeout(1200)]
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "models"
NEEDS = {"gpu": ("jax_plugins.xla_cuda12", "plan-gpu"), "tpu": ("libtpu", "plan-tpu")}


def need(target):
    module, extra = NEEDS[flow.Target(target).platform]
    try:
        there = importlib.util.find_spec(module) is not None
    except ImportError:
        there = False
    if not there:
        pytest.skip(f"needs the compiler that the extra [{extra}] brings: pip install 'oneflow-jax[{extra}]'")


@pytest.fixture
def examples(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.syspath_prepend(str(ROOT / "examples"))


@pytest.mark.parametrize("target", ["h100:2", "a100:2x1", "b200:2", "tpu-v5e:1x2", "tpu-v5p:1x1x2"])
def test_a_job_compiles_for_every_kind_of_device(target):
    need(target)
    plan = small().plan(target=target)
    assert plan.fits and len(plan.devices) == 2 and plan.collectives and plan.flops > 1e5


@pytest.mark.parametrize("target", ["h100:1", "tpu-v5e:2x2"])
def test_lenet_trains_there(target, examples):
    need(target)
    import train_lenet

    @flow.global_function(type="train")
    def train_job(
        images: tp.Numpy.Placeholder((64, 1, 28, 28)), labels: tp.Numpy.Placeholder((64,), dtype=flow.int32)
    ) -> tp.Numpy:
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, train_lenet.lenet(images, train=True))
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.001])).minimize(loss)
        return loss

    plan = train_job.plan(target=target)
    # twice the products of the forward pass, thrice but for the first layer: 2 * MACs
    macs = 64 * (28 * 28 * 32 * 25 + 14 * 14 * 64 * 32 * 25 + 3136 * 512 + 512 * 10)
    assert plan.fits and 2 * 2.2 * macs < plan.flops < 2 * 3.5 * macs
    if plan.compiler_seconds is not None:
        assert 0.2 < plan.seconds / plan.compiler_seconds < 5


@pytest.mark.parametrize("target", ["h100:8", "tpu-v5e:2x4"])
def test_a_gpt_in_stages_each_compiled_for_its_own_devices(target, examples):
    need(target)
    import gpt

    sizes = gpt.GPTConfig(vocab_size=256, hidden_size=64, layers=2, heads=4, seq_length=32, dropout=0.0, attention_dropout=0.0)
    config = flow.FunctionConfig()
    config.train.num_gradient_accumulation_steps(2)

    @flow.global_function(type="train", function_config=config)
    def train_job(tokens: tp.Numpy.Placeholder((16, 33), dtype=flow.int32)) -> tp.Numpy:
        loss = gpt.GPT(sizes, gpt.Devices(2, 2, 2, 2, tag="gpu")).loss(tokens)
        flow.optimizer.AdamW(flow.optimizer.PiecewiseConstantScheduler([], [1e-4])).minimize(loss)
        return loss

    plan = train_job.plan(target=target)
    assert len(plan.devices) == 8 and 0 < plan.bubble < 1 and plan.transfers
    assert {r.axis for r in plan.collectives} >= {"0", "1"}, "data and tensor"
    first, second = ({s.name for s in plan.timeline.spans if (0, d) in s.devices} for d in (0, 4))
    assert first != second


PROGRAMS = {
    "resnet50": ["train_cnn.py:train_job", "--model=resnet50", "--batch=8", "--size=64"],
    "resnet50 in mixed precision": ["train_cnn.py:train_job", "--model=resnet50", "--batch=8", "--size=64", "--amp"],
    "resnet50 predicts": ["train_cnn.py:eval_job", "--model=resnet50", "--batch=8", "--size=64"],
    "alexnet": ["train_cnn.py:train_job", "--model=alexnet", "--batch=4", "--size=64"],
    "mobilenet_v2": ["train_cnn.py:train_job", "--model=mobilenet_v2", "--batch=4", "--size=64"],
    "vgg16": ["train_cnn.py:train_job", "--model=vgg16", "--batch=4", "--size=64"],
    "inception_v3": ["train_cnn.py:train_job", "--model=inception_v3", "--batch=4", "--size=96"],
    "bert": ["train_bert.py:pretrain_job", "--size=tiny"],
    "bert in mixed precision": ["train_bert.py:pretrain_job", "--size=tiny", "--amp"],
    "bert for questions": ["train_bert.py:squad_job", "--size=tiny", "--task=squad"],
    "wide and deep": ["train_wide_and_deep.py", "--steps=4", "--batch=32", "--hidden=16"],
    "dcgan": ["train_dcgan.py", "--steps=3", "--batch=16", "--width=4"],
    "lenet": ["../train_lenet.py:train_job"],
}


@pytest.mark.parametrize("target", ["h100:1", "tpu-v5e:1x1"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_compiles_there(name, target, examples, tmp_path, monkeypatch):
    need(target)
    monkeypatch.chdir(tmp_path)
    script, _, job = PROGRAMS[name][0].partition(":")
    path = str((EXAMPLES / script).resolve())
    arguments = PROGRAMS[name][1:]
    if not job:  # every job that the program declares before it calls one
        try:
            load_job(path, arguments)
        except flow.errors.ArgumentError as error:
            assert "declares several jobs" in str(error)
        from oneflow.runtime.session import default_session

        jobs = list(default_session().jobs.values())
    else:
        jobs = [load_job(f"{path}:{job}", arguments)]
    assert jobs
    for each in jobs:
        assert each.plan(target=target).fits


def test_the_stored_answers_are_of_the_same_form():
    need("h100:2")
    made = runpy.run_path(str(Path(__file__).with_name("store.py")))
    assert (made["DATA"] / "h100_2.json.gz").exists() and "small" in made and sys.modules["jobs"].small is small
