"""Attention by cuDNN: what is called, by JAX's own XLA implementation in its place; what is refused, and where that is said.

What the kernels compute is tested on a GPU alone, at the end.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import oneflow as flow
import oneflow.typing as tp
from oneflow._base.dist import parse_placement
from oneflow.compiler import cudnn_attention as cudnn
from oneflow.compiler.attention_kernels import Attention
from oneflow.compiler.attention_kernels import define as by_separate_ops
from oneflow.runtime import devices

INFINITY = float("inf")
BATCH, LENGTH, HEADS, SIZE = 4, 16, 4, 8
FIRST, TURNED, LENGTH_FIRST = (0, 1, 2, 3), (0, 2, 1, 3), (1, 2, 0, 3)


def on_gpu():
    """Why the tests of the kernels cannot run; "" where they can."""
    if jax.default_backend() != "gpu":
        return "JAX has no GPU here"
    return cudnn.limits_of(jax.devices()[:1]).without


# --- the op, without a job


def by_torch(attrs, arrays, dy):
    """The result and the gradients of (q, k, v), in float64."""
    q, k, v = (torch.tensor(np.asarray(x, np.float64), requires_grad=True) for x in arrays[:3])
    first = [x.permute(perm) if x.ndim == 4 else x for x, perm in zip((q, k, v), attrs["perms"], strict=False)]
    scores = first[0] @ first[1].transpose(-1, -2) * attrs["factor"]
    if len(arrays) > 3:
        scores = scores + attrs["mask_sign"] * torch.tensor(np.asarray(arrays[3], np.float64))
    if attrs["causal"] is not None:
        kept = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(attrs["causal"][0])
        scores = torch.where(kept, scores, torch.tensor(attrs["causal"][1], dtype=torch.float64))
    y = torch.softmax(scores, -1) @ first[2]
    y = y if q.ndim == 3 else y.permute([attrs["perms"][3].index(axis) for axis in range(4)])
    y.backward(torch.tensor(np.asarray(dy, np.float64)))
    return [x.numpy() for x in (y.detach(), q.grad, k.grad, v.grad)]


def shape_of(perm, *sizes):
    return [sizes[perm.index(axis)] for axis in range(4)]


CASES = {
    "heads first": {},
    "positions first, in other orders": {"perms": (TURNED, LENGTH_FIRST, TURNED, LENGTH_FIRST)},
    "causal": {"causal": (0, -INFINITY), "perms": (TURNED,) * 4, "keys": 10},
    "a mask of keys": {"mask": (BATCH, 1, 1, 12), "factor": 0.5},
    "a mask without leading axes, taken away": {"mask": (10, 12), "mask_sign": -1},
    "a mask for each head, and causal": {"mask": (1, HEADS, 10, 10), "causal": (0, -1e4), "keys": 10},
    "no axis of heads": {"rank": 3, "mask": (BATCH, 1, 12)},
}


@pytest.mark.parametrize("case", CASES)
def test_the_call_computes_what_the_separate_ops_and_torch_compute(case, monkeypatch):
    monkeypatch.setattr(cudnn, "IMPLEMENTATION", "xla")
    asked = dict(CASES[case])
    keys, rank, mask = asked.pop("keys", 12), asked.pop("rank", 4), asked.pop("mask", None)
    attrs = {"perms": (FIRST,) * 4, "factor": 0.3, "mask_sign": 1, "causal": None, "packed": 0} | asked
    rng = np.random.default_rng(0)
    sizes = [(BATCH, HEADS, n, SIZE) for n in (10, keys, keys, 10)]
    shapes = [shape_of(perm, *s) if rank == 4 else [s[0], *s[2:]] for perm, s in zip(attrs["perms"], sizes, strict=True)]
    *arrays, dy = (rng.standard_normal(shape, np.float32) for shape in shapes)
    arrays += [] if mask is None else [rng.choice(np.array([0, 0.5, -1e9], np.float32), mask)]
    if mask is not None:
        arrays[3][..., 0] = 0  # each query sees a key
        arrays[3] *= attrs["mask_sign"]

    def both(function):
        y, pull = jax.vjp(lambda *qkv: function(*qkv, *arrays[3:]), *arrays[:3])
        return [y, *pull(dy)]

    found = both(partial(cudnn.CUDNN_ATTENTION.define, **attrs, split=None, mesh=None))
    for got, same, want in zip(found, both(partial(by_separate_ops, **attrs)), by_torch(attrs, arrays, dy), strict=True):
        np.testing.assert_allclose(got, same, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_masks_keep_within_what_cudnn_can_subtract(monkeypatch):
    monkeypatch.setattr(cudnn, "IMPLEMENTATION", "xla")
    q = jnp.ones((1, 2, 1, 8), jnp.float16)
    made = cudnn._bias(jnp.asarray([[[[-INFINITY, 0]]]]), 1, q, q)
    assert made.shape == (1, 1, 2, 2) and made.dtype == jnp.float16 and made[0, 0, 0].tolist() == [-32768, 0]


A = Attention(2, 4, 128, 128, 64, factor=0.125)
RULES = [
    ({}, "float32", "float16 and bfloat16, not in float32"),
    ({"size": 65}, "bfloat16", "heads of 65 elements: cuDNN takes multiples of 8 up to 128"),
    ({"size": 136}, "bfloat16", "heads of 136 elements"),
    ({"queries": 511, "keys": 511, "mask": (True, False, False, True)}, "bfloat16", "even numbers of queries and keys, not 511"),
    ({"causal": (1, -INFINITY)}, "bfloat16", "with diagonal 1 is not cuDNN's causal mask"),
    ({"keys": 130, "causal": (0, -INFINITY)}, "bfloat16", "128 queries and 130 keys"),
    ({"causal": (0, -3.0)}, "float16", "filled with -3 instead of at most -10000"),
    ({"heads": 0}, "float16", "an array is empty"),
]


@pytest.mark.parametrize(("changed", "dtype", "why"), RULES)
def test_what_cudnn_does_not_compute(changed, dtype, why):
    given = {name: getattr(A, name) for name in A.__dataclass_fields__} | changed
    assert why in cudnn.unsupported_reason(Attention(**given), [dtype], 128)


def test_what_cudnn_computes():
    for changed in ({}, {"causal": (0, -1e9)}, {"mask": (True, False, False, True)}, {"queries": 511}, {"size": 8}):
        given = {name: getattr(A, name) for name in A.__dataclass_fields__} | changed
        assert cudnn.unsupported_reason(Attention(**given), ["bfloat16"], 128) == ""
    assert cudnn.unsupported_reason(Attention(2, 4, 128, 128, 256), ["float16"], 256) == ""


class Device:
    def __init__(self, platform, capability=None):
        self.platform = platform
        if capability is not None:
            self.compute_capability = capability


@pytest.mark.parametrize(
    ("devices", "head_size", "without"),
    [
        ([Device("gpu", "8.0")], 128, ""), ([Device("gpu", "9.0")] * 2, 256, ""), ([Device("gpu", "12.0")], 256, ""),
        ([Device("gpu", "9.0"), Device("gpu", "7.5")], 128, "capability 7.5 is older than 8.0"),
        ([Device("gpu")], 128, ""), ([Device("cpu")], 128, "not GPUs"),
    ],
)  # fmt: skip
def test_devices_have_their_limits(devices, head_size, without):
    found = cudnn.limits_of(devices)
    assert without in found.without and bool(without) == bool(found.without)
    assert without or found.head_size == head_size


@pytest.mark.parametrize(
    ("hierarchy", "batch", "heads", "batch_is_split", "split"),
    [
        ((4,), 8, 3, True, ((0,), ())), ((4,), 8, 4, False, ((), (0,))), ((4,), 6, 8, True, ((), (0,))), ((4,), 6, 6, True, None),
        ((2, 2), 2, 4, True, ((0,), (1,))), ((2, 4), 8, 3, True, ((0, 1), ())), ((2, 2), 3, 4, True, ((), (0, 1))),
        ((2, 2), 2, 3, True, None),
    ],
)  # fmt: skip
def test_devices_divide_samples_and_heads(hierarchy, batch, heads, batch_is_split, split):
    placement = parse_placement("gpu", f"0:0-{np.prod(hierarchy) - 1}", hierarchy)
    assert cudnn.split_of(placement, Attention(batch, heads, 8, 8, 8), batch_is_split) == split


# --- jobs


@pytest.fixture
def as_gpu(monkeypatch):
    """Jobs are compiled as for GPUs and run on the CPU, attention by XLA. The list counts traced calls."""
    called = []

    def attend(*arrays, implementation, **more):
        assert implementation == "cudnn"
        if arrays[0].shape != (1, 8, 1, 8):  # what is asked first: whether cuDNN is there
            called.append(arrays)
        return real(*arrays, implementation="xla", **more)

    real = jax.nn.dot_product_attention
    monkeypatch.setattr(jax.nn, "dot_product_attention", attend)
    monkeypatch.setattr(devices, "platform_of", lambda graph: "gpu")
    monkeypatch.setattr(cudnn, "limits_of", lambda devices: cudnn.Limits())
    return called


def heads_first(x):
    return flow.transpose(flow.reshape(x, (*x.shape[:2], HEADS, -1)), (0, 2, 1, 3))


def plain(q, k, m):
    return flow.nn.softmax(flow.matmul(q, k, transpose_b=True, alpha=0.2))


def bert(q, k, m):
    return flow.nn.softmax(flow.matmul(q, k, transpose_b=True, alpha=0.2) + m)


def gpt(q, k, m):
    return flow.nn.fused_scale_tril_softmax_dropout(flow.matmul(q, k, transpose_b=True, alpha=0.2), fill_value=-INFINITY)


def dropped(q, k, m):
    return flow.nn.dropout(plain(q, k, m), 0.5, name="dropped")


def scaled_later(q, k, m):
    return flow.nn.softmax((flow.matmul(q, k, transpose_b=True) + m) * 0.2)


def masked_from_elsewhere(q, k, m):
    with flow.scope.placement("cpu", "0:1"):
        mask = flow.math.sigmoid(flow.constant(0.5, flow.float32, (LENGTH, LENGTH)))
    return flow.nn.softmax(flow.matmul(q, k, transpose_b=True, alpha=0.2) + mask)


def build(weigh, *, on=True, mixed=True, devices=1, hierarchy=None, micro_batches=1, view=None, size=SIZE, layers=1):
    flow.clear_default_session()
    flow.config.cudnn_attention(on)
    flow.config.cpu_device_num(devices + (weigh is masked_from_elsewhere))
    config = flow.FunctionConfig()
    config.enable_auto_mixed_precision(mixed)
    if micro_batches > 1:
        config.train.num_gradient_accumulation_steps(micro_batches)
    if view is not None:
        config.default_logical_view(view)

    def layer(x, m, number):
        def dense(name):
            w = flow.get_variable(
                f"{name}{number}", (x.shape[-1], HEADS * size), initializer=flow.random_normal_initializer(stddev=0.2),
                random_seed=3, **({} if hierarchy is None else {"parallel_distribution": ["B", "S(1)"]}),
            )  # fmt: skip
            return heads_first(flow.matmul(x, w))

        y = flow.matmul(weigh(dense("q"), dense("k"), m), dense("v"), name=f"context{number}")
        return flow.reshape(flow.transpose(y, (0, 2, 1, 3)), (*x.shape[:2], -1))

    @flow.global_function("train", config)
    def job(
        x: tp.Numpy.Placeholder((BATCH, LENGTH, HEADS * size)), m: tp.Numpy.Placeholder((BATCH, 1, 1, LENGTH))
    ) -> tuple[tp.Numpy, tp.Numpy]:
        with flow.scope.placement("cpu", f"0:0-{devices - 1}", hierarchy):
            y = x
            for number in range(layers):
                y = layer(y, m, number)
            loss = flow.math.reduce_mean(flow.math.square(y), axis=[1, 2])
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [5.0])).minimize(loss)
            return loss, y

    return job


def run(job, size=SIZE, steps=3):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((BATCH, LENGTH, HEADS * size), np.float32)
    mask = rng.choice(np.array([0, -1e9], np.float32), (BATCH, 1, 1, LENGTH))
    mask[..., 0] = 0
    return [value for _ in range(steps) for value in job(x, mask)]


def rarely(*values):
    return pytest.param(*values, marks=pytest.mark.thorough)


ONE_LAYER = ("attention by cuDNN: 1 layer",)
WAYS = {
    "one device": (gpt, {}),
    "a mask": (bert, {}),
    "four devices share the samples": (bert, {"devices": 4}),
    "rows share the samples, columns the heads": (gpt, {"devices": 4, "hierarchy": (2, 2)}),
    "micro-batches on two devices": (gpt, {"devices": 2, "micro_batches": 2}),
}


@pytest.mark.parametrize(
    "way", [way if way in ("one device", "rows share the samples, columns the heads") else rarely(way) for way in WAYS]
)
def test_jobs_train_as_with_separate_ops(way, as_gpu):
    weigh, options = WAYS[way]
    job = build(weigh, **options)
    found = run(job, steps=2)
    assert all(x.dtype == jnp.bfloat16 for x in as_gpu[0])
    devices, micro_batches = options.get("devices", 1), options.get("micro_batches", 1)
    split = {(2, 2): (2, 2)}.get(options.get("hierarchy"), (devices, 1))
    part = BATCH // micro_batches // split[0], LENGTH, HEADS // split[1], SIZE
    assert {arrays[0].shape for arrays in as_gpu} == {part}, "each device computes its own part"
    assert job.executables[-1][1].plan.notes == ONE_LAYER and ONE_LAYER[0] in str(job.plan())
    if "hierarchy" in options:
        collectives = job.plan().collectives
        assert collectives and not [row for row in collectives if row.kind == "all-gather" and row.op.startswith("context")]
    traced = len(as_gpu)
    wanted = [run(build(weigh, on=False, **options), steps=2)] + (
        [] if options else [run(build(weigh, on=False, mixed=False), steps=2)]
    )
    assert len(as_gpu) == traced
    for values in wanted:
        for got, want in zip(found, values, strict=True):
            np.testing.assert_allclose(got, want, rtol=0.1, atol=0.05)


@pytest.mark.thorough
def test_layers_that_are_alike_are_each_computed_by_a_call(as_gpu):
    job = build(gpt, layers=4)
    found = run(job, steps=1)
    assert job.executables[-1][1].plan.notes == ("attention by cuDNN: 4 layers",)
    for got, same in zip(found, run(build(gpt, layers=4, on=False), steps=1), strict=True):
        np.testing.assert_allclose(got, same, rtol=0.1, atol=0.05)


@pytest.mark.parametrize(
    ("weigh", "options", "why"),
    [
        (dropped, {}, "dropout 'dropped' changes its weights"),
        rarely(masked_from_elsewhere, {}, "its mask waits for another stage"),
        rarely(scaled_later, {}, "its scores are not a product, then factors"),
        (plain, {"mixed": False}, "cuDNN computes attention in float16 and bfloat16, not in float32"),
        rarely(plain, {"size": 12}, "heads of 12 elements"),
        rarely(plain, {"devices": 3}, "4 samples of 4 heads cannot be divided evenly among 3 devices"),
    ],
)
def test_what_stays_separate_is_said_in_the_plan_the_summary_and_the_log(weigh, options, why, as_gpu, caplog):
    job = build(weigh, **options)
    with caplog.at_level("INFO", "oneflow"):
        run(job, options.get("size", SIZE), steps=1)
    assert not as_gpu
    sentence = f"attention not by cuDNN: context0: {why}"
    assert sentence in str(job.plan()) and f"XLA: {why}" in " ".join(str(job.summary()).split())
    assert f"job 'job': {sentence}" in caplog.text


def test_the_mirrored_view_keeps_the_separate_ops(as_gpu):
    flow.clear_default_session()
    flow.config.cudnn_attention(True)
    flow.config.cpu_device_num(2)
    config = flow.FunctionConfig()
    config.default_logical_view(flow.scope.mirrored_view())
    config.enable_auto_mixed_precision(True)

    @flow.global_function(function_config=config)
    def job(x: tp.ListNumpy.Placeholder((2, 2, 8, 8))) -> tp.ListNumpy:
        with flow.scope.placement("cpu", "0:0-1"):
            return flow.matmul(flow.nn.softmax(flow.matmul(x, x, transpose_b=True)), x)

    job([np.ones((2, 2, 8, 8), np.float32)] * 2)
    assert not as_gpu


def test_by_default_and_on_cpus_nothing_changes(monkeypatch):
    assert flow.config.cudnn_attention.option.default is False
    monkeypatch.setattr(jax.nn, "dot_product_attention", None)
    job = build(gpt)
    run(job, steps=1)
    assert job.executables[-1][1].plan.notes == ()


def test_without_cudnn_the_error_says_what_to_install(as_gpu, monkeypatch):
    def missing(*arrays, **more):
        raise RuntimeError("cuDNN not found.")

    monkeypatch.setattr(jax.nn, "dot_product_attention", missing)
    with pytest.raises(flow.errors.MissingExtraError) as raised:
        run(build(gpt), steps=1)
    text = str(raised.value)
    assert "job 'job'" in text and "cuDNN not found." in text
    assert "nvidia-cudnn-cu12" in text and "cudnn_attention(False)" in text and raised.value.name == "nvidia-cudnn-cu12"


# --- the kernels


@pytest.mark.skipif(bool(on_gpu()), reason=f"the kernels run on NVIDIA GPUs alone: {on_gpu()}")
@pytest.mark.parametrize("weigh", [plain, bert, gpt])
@pytest.mark.parametrize("size", [64, 128])
def test_on_a_gpu_jobs_train_as_with_separate_ops(weigh, size):
    def trained(on):
        flow.clear_default_session()
        flow.config.cudnn_attention(on)
        config = flow.FunctionConfig()
        config.enable_auto_mixed_precision(True)

        @flow.global_function("train", config)
        def job(
            x: tp.Numpy.Placeholder((BATCH, 256, HEADS * size)), m: tp.Numpy.Placeholder((BATCH, 1, 1, 256))
        ) -> tuple[tp.Numpy, tp.Numpy]:
            parts = []
            normal = flow.random_normal_initializer(stddev=0.05)
            for name in "qkv":
                w = flow.get_variable(name, (HEADS * size,) * 2, initializer=normal, random_seed=3)
                parts.append(heads_first(flow.matmul(x, w)))
            q, k, v = parts
            y = flow.matmul(weigh(q, k, m), v, name="context")
            loss = flow.math.reduce_mean(flow.math.square(y))
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [5.0])).minimize(loss)
            return loss, y

        rng = np.random.default_rng(0)
        x = rng.standard_normal((BATCH, 256, HEADS * size), np.float32)
        mask = rng.choice(np.array([0, -1e9], np.float32), (BATCH, 1, 1, 256))
        mask[..., 0] = 0
        found = [value for _ in range(3) for value in job(x, mask)]
        return found, job.executables[-1][1]

    found, compiled = trained(True)
    assert compiled.plan.notes == ONE_LAYER and "fmha" in compiled.hlo()
    for got, want in zip(found, trained(False)[0], strict=True):
        assert np.linalg.norm(got - want) < 0.02 * np.linalg.norm(want)
