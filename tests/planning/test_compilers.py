"""The real compilers: ``pytest -m compilers tests/planning`` with the extras plan-gpu and plan-tpu installed."""

from __future__ import annotations

import ast
import importlib.util
import re
import runpy
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jobs import small

import oneflow as flow
import oneflow.typing as tp
from oneflow._targets import compiling
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
    "alexnet in mixed precision": ["train_cnn.py:train_job", "--model=alexnet", "--batch=4", "--size=64", "--amp"],
    "alexnet predicts": ["train_cnn.py:eval_job", "--model=alexnet", "--batch=4", "--size=64"],
    "mobilenet_v2 in mixed precision": ["train_cnn.py:train_job", "--model=mobilenet_v2", "--batch=4", "--size=64", "--amp"],
    "mobilenet_v2 predicts": ["train_cnn.py:eval_job", "--model=mobilenet_v2", "--batch=4", "--size=64"],
    "vgg16 in mixed precision": ["train_cnn.py:train_job", "--model=vgg16", "--batch=4", "--size=64", "--amp"],
    "vgg16 predicts": ["train_cnn.py:eval_job", "--model=vgg16", "--batch=4", "--size=64"],
    "inception_v3 in mixed precision": ["train_cnn.py:train_job", "--model=inception_v3", "--batch=4", "--size=96", "--amp"],
    "inception_v3 predicts": ["train_cnn.py:eval_job", "--model=inception_v3", "--batch=4", "--size=96"],
}


TUTORIALS = sorted(str(p.relative_to(ROOT / "tests" / "tutorials")) for p in (ROOT / "tests" / "tutorials").glob("t[125]/0*.py"))


@pytest.mark.parametrize("target", ["h100:1", "tpu-v5e:1x1"])
@pytest.mark.parametrize("name", TUTORIALS)
def test_a_program_of_the_tutorials_compiles_there(name, target, tmp_path, monkeypatch):
    """Unchanged; its jobs are declared, its data is not read."""
    need(target)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    for job in jobs_of(ROOT / "tests" / "tutorials" / name):
        plan = job.plan(target=target)
        assert plan.fits and len(plan.devices) == 1 and plan.flops > 1e5


def jobs_of(path):
    """The jobs that a program declares before it does anything: its imports, functions, and numbers in capitals."""
    from oneflow.runtime.session import default_session

    tree = ast.parse(path.read_text(encoding="utf-8"))
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef)
    tree.body = [n for n in tree.body if isinstance(n, kinds) or (isinstance(n, ast.Assign) and n.targets[0].id.isupper())]
    exec(compile(tree, str(path), "exec"), {"__name__": "tutorial"})
    found = list(default_session().jobs.values())
    assert found
    return found


@pytest.mark.parametrize("target", ["h100:8", "tpu-v5e:2x4"])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("kind", ["mirrored", "accumulation", "split state", "custom op"])
def test_a_way_of_training_on_8_devices_compiles_there(kind, mixed, target):
    need(target)
    custom = flow.experimental.register_op(f"summed_{mixed}")(lambda x: jnp.tanh(x) * jnp.cumsum(x, 1))
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(mixed)
    placeholder, returns = tp.Numpy.Placeholder((64, 3, 16, 16)), tp.Numpy
    if kind == "mirrored":
        config.default_logical_view(flow.scope.mirrored_view())
        placeholder, returns = tp.ListNumpy.Placeholder((8, 3, 16, 16)), tp.ListNumpy
    elif kind == "accumulation":
        config.train.num_gradient_accumulation_steps(4)
    elif kind == "split state":
        config.optimizer_placement_optimization_mode("distributed_split")

    @flow.global_function(type="train", function_config=config)
    def train_job(x: placeholder) -> returns:
        h = flow.nn.relu(flow.layers.conv2d(x, 16, 3, padding="SAME", name="conv"))
        h = flow.layers.batch_normalization(h, axis=1, name="bn")
        h = flow.layers.dense(flow.reshape(h, (x.shape[0], -1)), 64, name="hidden")
        if kind == "custom op":
            h = custom(h)
        loss = flow.math.reduce_mean(flow.layers.dense(h, 8, name="out"))
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    plan = train_job.plan(target=target)
    assert len(plan.devices) == 8 and plan.fits
    assert {r.kind for r in plan.collectives} & {"all-reduce", "reduce-scatter"}
    if mixed:
        assert plan.peak[0] == "bfloat16"


@pytest.mark.parametrize("target", ["h100:4", "tpu-v5e:2x2"])
def test_pieces_of_parameters_travel_in_bfloat16(target):
    need(target)
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(True)
    config.optimizer_placement_optimization_mode("distributed_split")

    @flow.global_function(type="train", function_config=config)
    def train_job(x: tp.Numpy.Placeholder((32, 256))) -> tp.Numpy:
        for i in range(3):
            x = flow.layers.dense(x, 256, activation=flow.nn.relu, name=f"d{i}")
        loss = flow.math.reduce_mean(flow.math.square(x))
        flow.optimizer.Adam(flow.optimizer.PiecewiseConstantScheduler([], [1e-3])).minimize(loss)
        return loss

    gathered = [r for r in train_job.plan(target=target).collectives if r.kind == "all-gather"]
    assert sorted(r.name for r in gathered) == ["d0-matmul", "d1-matmul", "d2-matmul"]
    assert {(r.bytes, r.times) for r in gathered} == {(256 * 256 * 2, 1)}


@pytest.mark.parametrize("name", ["resnet50 in mixed precision", "resnet50"])
def test_a_gpu_updates_weights_in_place_and_convolves_in_channels_last_order(name, examples, tmp_path, monkeypatch):
    need("h100:1")
    monkeypatch.chdir(tmp_path)
    texts = []
    compile_one = compiling.Compiler.compile

    def keep(self, traced, shardings):
        made = compile_one(self, traced, shardings)
        texts.append(made.text)
        return made

    monkeypatch.setattr(compiling.Compiler, "compile", keep)
    script, *arguments = PROGRAMS[name]
    path, _, job = script.partition(":")
    load_job(f"{EXAMPLES / path}:{job}", arguments).plan(target="h100:1")
    (text,) = texts
    copied = [int(n) for n in re.findall(r"= f32\[(\d+)\]\{0\} copy\(", text)]
    if "mixed" in name:  # in float32 some are left: docs/performance-machines.md
        assert [n for n in copied if n > 4096] == [], "no copy of a donated kernel"
    convolutions = re.findall(r"dim_labels=(\w+)", text)
    assert len(convolutions) > 100 and set(convolutions) == {"b01f_o01i"}


@pytest.mark.parametrize("target", ["h100:1", "tpu-v5e:1x1"])
def test_products_of_float32_are_rounded_or_not_as_the_setting_says(target):
    need(target)

    def kind(on):
        flow.clear_default_session()
        flow.config.enable_tensor_float_32_compute(on)
        return small().plan(target=target).peak[0]

    assert (kind(True), kind(False)) == ("tfloat32", "float32")


HEADS, SIZE, LENGTH, BATCH = 16, 64, 512, 32  # the layer of docs/performance-machines.md


def attention_layer(hierarchy=None, micro_batches=1):
    """One layer of attention with a causal mask, in mixed precision; over two axes of devices the second splits the heads."""
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(True)
    if micro_batches > 1:
        config.train.num_gradient_accumulation_steps(micro_batches)
    split = {} if hierarchy is None else {"parallel_distribution": ["B", "S(1)"]}

    def heads(x, name):
        w = flow.get_variable(name, (HEADS * SIZE,) * 2, initializer=flow.random_normal_initializer(), **split)
        return flow.transpose(flow.reshape(flow.matmul(x, w), (-1, LENGTH, HEADS, SIZE)), (0, 2, 1, 3))

    @flow.global_function("train", config)
    def job(x: tp.Numpy.Placeholder((BATCH, LENGTH, HEADS * SIZE))) -> tp.Numpy:
        devices = 1 if hierarchy is None else hierarchy[0] * hierarchy[1]
        with flow.scope.placement("gpu", f"0:0-{devices - 1}", hierarchy):
            q, k, v = (heads(x, name) for name in "qkv")
            scores = flow.matmul(q, k, transpose_b=True, alpha=SIZE**-0.5)
            y = flow.matmul(flow.nn.fused_scale_tril_softmax_dropout(scores, fill_value=float("-inf")), v, name="context")
            y = flow.reshape(flow.transpose(y, (0, 2, 1, 3)), (-1, LENGTH, HEADS * SIZE))
            loss = flow.math.reduce_mean(flow.math.square(y), axis=[1, 2])
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
            return loss

    return job


@pytest.fixture
def cudnn():
    """JAX asks cuDNN for its version while it traces a call."""
    x = jax.ShapeDtypeStruct((1, 8, 1, 8), jnp.bfloat16)
    try:
        jax.eval_shape(partial(jax.nn.dot_product_attention, implementation="cudnn"), x, x, x)
    except RuntimeError as error:
        pytest.skip(f"needs NVIDIA's library cuDNN ({error}): pip install nvidia-cudnn-cu12")


@pytest.fixture
def texts(monkeypatch):
    """The programs that the tests compile."""
    found = []
    of_worker = compiling.TargetProgram

    def kept(text, *more):
        found.append(text)
        return of_worker(text, *more)

    monkeypatch.setattr(compiling, "TargetProgram", kept)
    return found


@pytest.mark.parametrize(
    ("target", "options", "part"),
    [
        ("h100:1", {}, (BATCH, HEADS)),
        ("h100:4", {"hierarchy": (2, 2)}, (BATCH // 2, HEADS // 2)),
        ("a100:1", {"micro_batches": 2}, (BATCH // 2, HEADS)),
    ],
)
def test_cudnn_computes_attention_in_both_passes_each_device_its_part(target, options, part, cudnn, texts):
    need(target)
    flow.config.cudnn_attention(True)
    plan = attention_layer(**options).plan(target=target)
    assert "attention by cuDNN: 1 layer" in plan.notes and not plan.not_counted
    calls = re.findall(r"= \((bf16\[[\d,]+\]).*custom_call_target=\"__cudnn\$fmhaSoftmax(\w*)\"", "\n".join(texts))
    kind = f"bf16[{part[0]},{part[1]},{LENGTH},{SIZE}]"
    assert {(kind, ""), (kind, "Backward")} == set(calls), "with the sizes of one device's part"
    attention = [row for row in plan.parts if row.name == "context"]
    product = 2 * BATCH * HEADS * LENGTH * LENGTH * SIZE / len(plan.devices) / 2  # the mask hides half
    flops = {row.phase: row.flops for row in attention}
    assert flops["forward"] == pytest.approx(2 * product, rel=0.05)
    assert flops["backward"] == pytest.approx(5 * product, rel=0.05)
    assert not [row for row in plan.collectives if row.kind == "all-gather" and row.name == "context"]


def test_cudnn_moves_less_memory_than_separate_ops(cudnn):
    need("h100:1")

    def planned(on):
        flow.clear_default_session()
        flow.config.cudnn_attention(on)
        return attention_layer().plan(target="h100:1")

    fused, separate = planned(True), planned(False)
    assert fused.bytes < separate.bytes / 2 and fused.seconds < separate.seconds / 1.5
    assert fused.devices[0].total < separate.devices[0].total


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
