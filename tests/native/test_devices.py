"""Native calls in programs that run on several devices: what each computes, and that the results are those of one device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import oneflow as flow
import oneflow.typing as tp
from oneflow._base import native as _native
from oneflow.compiler import attention_kernels
from oneflow.compiler.attention_kernels import Attention
from oneflow.ops import _native_conv, _native_loss, _native_matmul, _native_norm, _native_pool
from oneflow.ops._native_conv import Geometry
from oneflow.ops._native_matmul import Gemm

pytestmark = pytest.mark.usefixtures("native_part")


@pytest.fixture(autouse=True, scope="module")
def one_device_afterwards() -> Iterator[None]:
    yield
    flow.clear_default_session()


def begin(devices: int) -> None:
    flow.clear_default_session()
    flow.config.gpu_device_num(devices)
    flow.manual_seed(5)


def train(devices: int, *, dense: int | None = None, conv: int | None = None, mixed: bool = False, batch: int = 8) -> Any:
    """Losses of three steps, the variables after them, and the job. ``dense`` and ``conv``: axes that split the weights."""
    begin(devices)
    config = flow.FunctionConfig()
    config.default_placement_scope(flow.scope.placement("gpu", f"0:0-{devices - 1}"))
    config.enable_auto_mixed_precision(mixed)

    def split(axis: int | None) -> Any:
        return flow.distribute.auto() if axis is None or devices == 1 else flow.distribute.split(axis)

    def weight(name: str, shape: tuple[int, ...], axis: int | None) -> Any:
        start = flow.random_normal_initializer(stddev=0.2)
        return flow.get_variable(name, shape, initializer=start, distribute=split(axis))

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.Numpy.Placeholder((batch, 4, 12, 12)), y: tp.Numpy.Placeholder((batch,), dtype=flow.int32)) -> tp.Numpy:
        x = flow.nn.relu(flow.nn.conv2d(x, weight("first", (16, 4, 3, 3), conv), 1, "SAME"))
        x = flow.nn.max_pool2d(x, 2, 2, "SAME")
        x = flow.nn.relu(flow.nn.conv2d(x, weight("second", (16, 16, 3, 3), conv), 1, "SAME"))
        x = flow.reshape(x, (batch, -1))
        x = flow.nn.relu(flow.matmul(x, weight("hidden", (512, 576), dense), transpose_b=True))
        x = flow.matmul(x, weight("output", (512, 64), dense))
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(y, x)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.01]), momentum=0.9).minimize(loss)
        return loss

    rng = np.random.default_rng(0)
    images = rng.standard_normal((3, batch, 4, 12, 12), np.float32)
    labels = rng.integers(0, 64, (3, batch)).astype(np.int32)
    losses = np.stack([job(x, y) for x, y in zip(images, labels, strict=True)])
    return losses, {name: v.numpy() for name, v in flow.get_all_variables().items()}, job


CASES = [{"devices": 4, "dense": 1, "conv": 0}, {"devices": 2, "mixed": True}, {"devices": 4, "batch": 10}]
FURTHER = [
    {"devices": 2}, {"devices": 4, "dense": 0}, {"devices": 2, "conv": 1}, {"devices": 2, "mixed": True, "dense": 1},
]  # fmt: skip


@pytest.mark.parametrize("options", [*CASES, *(pytest.param(case, marks=pytest.mark.thorough) for case in FURTHER)], ids=str)
def test_training_is_that_of_one_device(options: dict[str, Any]) -> None:
    tolerance = 1e-2 if options.get("mixed") else 1e-5
    losses, variables, job = train(**options)
    rows = {row[0]: row for row in job.summary().rows}
    program = "".join(compiled.as_text() for _, compiled in job.executables[-1][1].compiled)
    one_losses, one_variables, _ = train(1, batch=options.get("batch", 8), mixed=options.get("mixed", False))
    np.testing.assert_allclose(losses, one_losses, rtol=tolerance, atol=tolerance)
    for name, value in one_variables.items():
        np.testing.assert_allclose(variables[name], value, rtol=tolerance, atol=tolerance, err_msg=name)
    words = [row[5] for row in rows.values() if row[1].startswith("matmul")]
    assert not words[0].startswith("XLA") and words[0].endswith("each device its pieces, small ones by XLA"), words
    assert all(_native.target(call) in program for call in ("matmul", "conv"))
    assert f"update_{_native.PROTOCOL}" in program


def updated(devices: int, native: bool = True, mode: str = "", stages: int = 1, distribute: Any = None, scale: Any = None) -> Any:
    """Losses of three steps with Adam, the variables after them, and the job. Each stage is on ``devices`` devices."""
    begin(devices * stages)
    flow.config.enable_native_cpu(native)
    config = flow.FunctionConfig()
    config.default_placement_scope(flow.scope.placement("gpu", f"0:0-{devices - 1}"))
    if mode:
        config.optimizer_placement_optimization_mode(mode)

    def layer(x: Any, name: str, shape: tuple[int, ...]) -> Any:
        start = flow.random_normal_initializer(stddev=0.1)
        return flow.matmul(x, flow.get_variable(name, shape, initializer=start, distribute=distribute or flow.distribute.auto()))

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.Numpy.Placeholder((8, 64))) -> tp.Numpy:
        x = flow.reshape(x, (8, 4, 4, 4))
        kernel = flow.get_variable("kernel", (64, 4, 3, 3), initializer=flow.random_normal_initializer(stddev=0.2))
        x = flow.reshape(flow.nn.relu(flow.nn.conv2d(x, kernel, 1, "SAME")), (8, 1024))
        with flow.scope.placement("gpu", f"0:{devices * (stages - 1)}-{devices * stages - 1}"):
            loss = flow.math.square(layer(flow.nn.relu(layer(x, "hidden", (1024, 66))), "output", (66, 10)))
            rate = flow.optimizer.PiecewiseConstantScheduler([], [0.01])
            clipping = flow.optimizer.grad_clipping.by_global_norm(0.5)
            flow.optimizer.Adam(rate, do_bias_correction=True, grad_clipping=clipping, loss_scale_policy=scale).minimize(loss)
        return loss

    rng = np.random.default_rng(0)
    losses = np.stack([job(rng.standard_normal((8, 64), np.float32)) for _ in range(3)])
    return losses, {name: v.numpy() for name, v in flow.get_all_variables().items()}, job


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 3),
        ({"mode": "distributed_split", "scale": flow.optimizer.loss_scale.dynamic_loss_scale(8, increment_period=2)}, 3),
        pytest.param({"mode": "non_distributed"}, 3, marks=pytest.mark.thorough),
        ({"stages": 2}, 3),
        ({"distribute": flow.distribute.split(0)}, 3),
        pytest.param({"devices": 4, "distribute": flow.distribute.split(1)}, 1, marks=pytest.mark.thorough),  # uneven pieces
    ],
    ids=str,
)
def test_each_device_updates_what_it_has(options: dict[str, Any], count: int) -> None:
    losses, variables, job = updated(**{"devices": 2, **options})
    assert f"{count} variable{'s' if count > 1 else ''} updated in one pass" in str(job.summary())
    programs = [compiled.as_text() for _, compiled in job.executables[-1][1].compiled]
    assert any(_native.target("update") in program for program in programs)
    one_losses, one_variables, _ = updated(1, native=False, scale=options.get("scale"))
    np.testing.assert_allclose(losses, one_losses, rtol=1e-4, atol=1e-6)
    assert variables.keys() == one_variables.keys()
    for name, value in one_variables.items():
        np.testing.assert_allclose(variables[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


def test_an_update_on_several_devices_copies_nothing() -> None:
    _, _, job = updated(2)
    program = job.executables[-1][1].compiled[0][1].as_text()
    copies = [line for line in program.splitlines() if " copy(" in line and ("1024,66" in line or "[2304]" in line)]
    assert not copies, copies


def test_find_nonfinite_on_several_devices() -> None:
    _, _, job = updated(2)
    found = job.find_nonfinite(np.full((8, 64), np.nan, np.float32))
    assert found is not None
    assert job.find_nonfinite(np.ones((8, 64), np.float32)) is None


def test_between_convolutions_channels_are_last_on_several_devices() -> None:
    changed = []
    for devices in (1, 2):
        _, _, job = train(devices)
        changed.append(next(p.changed for p in job.executables[-1][1].plan.passes if p.name.endswith(("one device", "devices"))))
    assert "channels last" in changed[0] and changed[0] == changed[1]


SUMMED = 'custom_call_target="' + _native.target("summed_update") + '"'


def program(job: Any) -> str:
    """The compiled program of a job as text."""
    return "".join(compiled.as_text() for _, compiled in job.executables[-1][1].compiled)


def perceptron(
    devices: int, rule: Any, *, batch: int = 16, regularizer: Any = None, watch: bool = False, mixed: bool = False
) -> Any:
    """Losses of three steps, the variables after them, and the job: a convolution and two layers, each with a bias."""
    begin(devices)
    config = flow.FunctionConfig()
    config.default_placement_scope(flow.scope.placement("gpu", f"0:0-{devices - 1}"))
    config.enable_auto_mixed_precision(mixed)
    start = flow.random_normal_initializer(stddev=0.1)
    seen: list[np.ndarray] = []

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.Numpy.Placeholder((batch, 3, 8, 8)), y: tp.Numpy.Placeholder((batch, 6))) -> tp.Numpy:
        x = flow.layers.conv2d(x, 20, 3, padding="SAME", activation=flow.nn.relu, kernel_initializer=start, name="c")
        x = flow.reshape(x, (batch, -1))
        x = flow.layers.dense(x, 70, activation=flow.nn.relu, kernel_initializer=start, kernel_regularizer=regularizer, name="a")
        if watch:
            flow.watch_diff(x, lambda g: seen.append(g.numpy()))
        loss = flow.math.square(flow.layers.dense(x, 6, kernel_initializer=start, name="b") - y)
        rule().minimize(loss)
        return loss

    rng = np.random.default_rng(0)
    images, targets = rng.standard_normal((3, batch, 3, 8, 8), np.float32), rng.standard_normal((3, batch, 6), np.float32)
    losses = np.stack([job(x, y) for x, y in zip(images, targets, strict=True)])
    assert len(seen) == 3 * watch
    return losses, {name: v.numpy() for name, v in flow.get_all_variables().items()}, job


def rate() -> Any:
    return flow.optimizer.PiecewiseConstantScheduler([], [0.05])


RULES = {
    "sgd": lambda: flow.optimizer.SGD(rate(), momentum=0),
    "momentum": lambda: flow.optimizer.SGD(rate(), momentum=0.9),
    "adam": lambda: flow.optimizer.AdamW(rate(), epsilon=1e-2, weight_decay=0.1),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("devices", [2, 4, 8])
def test_devices_add_up_their_gradients_as_they_update(rule: str, devices: int) -> None:
    regularizer = flow.regularizers.l1_l2(0.01, 0.02) if devices == 4 else None
    losses, variables, job = perceptron(devices, RULES[rule], regularizer=regularizer, watch=devices == 2)
    assert SUMMED in program(job) and "all-reduce" not in program(job)
    one_losses, one_variables, one = perceptron(1, RULES[rule], regularizer=regularizer)
    assert SUMMED not in program(one)
    np.testing.assert_allclose(losses, one_losses, rtol=2e-5, atol=2e-5)
    for name, value in one_variables.items():
        np.testing.assert_allclose(variables[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def test_every_device_has_the_variables_that_all_have_updated() -> None:
    _, _, job = perceptron(4, RULES["momentum"])
    assert SUMMED in program(job)
    for cell in job.executables[-1][1]._state.cells:
        copies = [np.asarray(shard.data) for shard in cell.value.addressable_shards]
        assert len(copies) == 4
        for copy in copies[1:]:
            np.testing.assert_array_equal(copy, copies[0])


def test_in_mixed_precision_devices_add_up_their_gradients_in_float32() -> None:
    losses, variables, job = perceptron(2, RULES["momentum"], mixed=True)
    assert SUMMED in program(job)
    one_losses, one_variables, _ = perceptron(1, RULES["momentum"], mixed=True)
    np.testing.assert_allclose(losses, one_losses, rtol=2e-2, atol=2e-2)
    for name, value in one_variables.items():
        np.testing.assert_allclose(variables[name], value, rtol=2e-2, atol=1e-2, err_msg=name)


def clipped() -> Any:
    return flow.optimizer.SGD(rate(), momentum=0.9, grad_clipping=flow.optimizer.grad_clipping.by_global_norm(0.5))


def scaled() -> Any:
    return flow.optimizer.SGD(rate(), loss_scale_policy=flow.optimizer.loss_scale.dynamic_loss_scale(2.0**4, 2, 2.0))


@pytest.mark.parametrize(
    ("rule", "batch"), [(clipped, 16), (scaled, 16), (RULES["momentum"], 10)], ids=["clipped", "scaled", "uneven"]
)
def test_gradients_that_something_else_reads_are_added_up_before(rule: Any, batch: int) -> None:
    losses, variables, job = perceptron(4, rule, batch=batch)
    assert SUMMED not in program(job)
    one_losses, one_variables, _ = perceptron(1, rule, batch=batch)
    np.testing.assert_allclose(losses, one_losses, rtol=2e-5, atol=2e-5)
    for name, value in one_variables.items():
        np.testing.assert_allclose(variables[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("rule", RULES)
def test_a_variable_whose_gradient_is_not_there_is_regularized_once(rule: str) -> None:
    @flow.experimental.register_op(f"nothing_{rule}", inputs=("x",), outputs=("y",), grad=lambda inputs, outputs, dy: (None,))
    def nothing(x: Any) -> Any:
        return jax.numpy.zeros_like(x)

    def trained(devices: int) -> np.ndarray:
        begin(devices)
        config = flow.FunctionConfig()
        config.default_placement_scope(flow.scope.placement("gpu", f"0:0-{devices - 1}"))

        @flow.global_function(type="train", function_config=config)
        def job(x: tp.Numpy.Placeholder((8, 12))) -> tp.Numpy:
            ones = flow.ones_initializer()
            alone = flow.get_variable("alone", (12, 4), initializer=ones, regularizer=flow.regularizers.l2(0.1))
            loss = flow.matmul(x, flow.get_variable("w", (12, 4), initializer=ones)) + nothing(flow.matmul(x, alone))
            RULES[rule]().minimize(loss)
            return loss

        for _ in range(2):
            job(np.ones((8, 12), np.float32))
        return flow.get_all_variables()["alone"].numpy()

    np.testing.assert_allclose(trained(4), trained(1), rtol=1e-6)


def test_two_jobs_whose_devices_add_up_gradients_at_the_same_time() -> None:
    begin(4)
    config = flow.FunctionConfig()
    config.default_placement_scope(flow.scope.placement("gpu", "0:0-3"))
    x = np.ones((8, 64), np.float32)

    def declared(factor: float) -> Any:
        def train(x: tp.Numpy.Placeholder((8, 64))) -> tp.Callback[tp.Numpy]:
            w = flow.get_variable(f"w{factor}", (64, 64), initializer=flow.zeros_initializer())
            loss = flow.math.reduce_sum(flow.matmul(x, w), keepdims=True) * factor
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [1.0]), momentum=0).minimize(loss)
            return loss

        train.__name__ = f"train{factor:.0f}"
        return flow.global_function(type="train", function_config=config)(train)

    jobs = {factor: declared(factor) for factor in (1.0, 2.0)}
    for _ in range(50):
        for job in jobs.values():
            job(x)(lambda _: None)
    for factor, job in jobs.items():
        assert SUMMED in program(job)
        np.testing.assert_array_equal(flow.get_all_variables()[f"w{factor}"].numpy(), np.full((64, 64), -50 * 8 * factor))


def sgd(devices: int, number: int, size: int) -> list[int]:
    """The spec of a summed update by gradient descent."""
    return [devices, number, 2, 0, 0, 0, 0, 0, 0, 1, size]


def on_mesh(devices: int, run: Any) -> Any:
    """A jitted function of one array, of which each device has a row."""
    mesh, rows = Mesh(np.array(jax.devices()[:devices]), ("d",)), PartitionSpec("d")
    return jax.jit(jax.shard_map(run, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False))


def test_calls_that_devices_make_together_in_any_order() -> None:
    perceptron(8, RULES["sgd"])  # JAX has eight devices from now on
    size = 1000

    def run(g: Any) -> Any:
        x, result = jax.numpy.zeros(size, np.float32), [((size,), np.float32)]
        made = []
        for i in range(6):  # independent of each other: XLA may begin with any
            made += _native.call_several("summed_update", sgd(8, i, size), result, np.float32(-1 - i), x, g[0] * (i + 1))
        total = sum(made[1:], start=made[0])
        return jax.lax.psum(total, "d")[None]

    step = on_mesh(8, run)
    for seed in range(20):
        g = np.random.default_rng(seed).integers(-5, 5, (8, size)).astype(np.float32)
        want = 8 * sum((i + 1) ** 2 for i in range(6)) * g.sum(0)
        np.testing.assert_array_equal(np.asarray(step(g)), np.broadcast_to(want, (8, size)))


@pytest.mark.parametrize(("devices", "threads"), [(2, 2), (8, 2), (8, 8)])  # where each has a core, a device waits a while
def test_what_devices_exchange_in_any_order(devices: int, threads: int, native_part: Any) -> None:
    perceptron(8, RULES["sgd"])  # JAX has eight devices from now on

    def run(g: Any) -> Any:
        found = []
        for i in range(6):  # independent of each other: XLA may begin with any
            mine = g[0] * (i + 1)
            found.append(_native.exchange(mine, devices, 2 * i).reshape(-1))
            found.append(_native.exchange(mine, devices, 2 * i + 1, add_up=True).reshape(-1))
        return jax.numpy.concatenate(found)[None]

    before = native_part.threads
    native_part.threads = threads
    try:
        step = on_mesh(devices, run)
        for seed in range(20):
            g = np.random.default_rng(seed).integers(-5, 5, (devices, 3, 7)).astype(np.float32)
            want = np.concatenate([a.ravel() * (i + 1) for i in range(6) for a in (g, g.sum(0))])
            np.testing.assert_array_equal(np.asarray(step(g)), np.broadcast_to(want, (devices, want.size)))
    finally:
        native_part.threads = before


@pytest.mark.parametrize("call", ["summed_update", "exchange"])
def test_a_device_that_does_not_come_ends_the_call_of_the_others(call: str, native_part: Any) -> None:
    perceptron(2, RULES["sgd"])

    def run(g: Any) -> Any:
        def update(g: Any) -> Any:
            if call == "exchange":
                return _native.exchange(g, 2, 0, add_up=True)
            spec, x = sgd(2, 0, 16), jax.numpy.zeros(16, np.float32)
            return _native.call_several("summed_update", spec, [((16,), np.float32)], np.float32(1), x, g)[0]

        return jax.lax.cond(jax.lax.axis_index("d") == 0, update, lambda g: g, g[0])[None]

    native_part.set_patience(1)
    try:
        with pytest.raises(Exception, match="a device of the program did not come to a call that all make together"):
            jax.block_until_ready(on_mesh(2, run)(np.ones((2, 16), np.float32)))
    finally:
        native_part.set_patience(600)


def test_what_is_wrong_with_a_call_that_devices_make_together_all_of_them_hear() -> None:
    perceptron(2, RULES["sgd"])

    def run(g: Any) -> Any:
        spec, x = sgd(2, 0, 17), jax.numpy.zeros(16, np.float32)
        return _native.call_several("summed_update", spec, [((16,), np.float32)], np.float32(1), x, g[0])[0][None]

    with pytest.raises(Exception, match="an operand's size is not that of the spec"):
        jax.block_until_ready(on_mesh(2, run)(np.ones((2, 16), np.float32)))


AXES = st.sampled_from([None, "x", "y", ("x", "y")])


def mesh_of_four() -> Mesh:
    begin(4)

    @flow.global_function("predict")
    def first(x: tp.Numpy.Placeholder((4,))) -> tp.Numpy:
        return x + 1

    first(np.zeros(4, np.float32))  # only now JAX has as many devices
    return Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))


def split(mesh: Mesh, array: Any, wanted: Sequence[Any]) -> Any:
    """In a traced program: the array, split along these axes of the mesh, of which none is used twice; evenly or not."""
    spec, used = [], set[str]()
    for entry in wanted:
        names = set(entry if isinstance(entry, tuple) else [entry]) - {None}
        spec.append(None if names & used else entry)
        used |= names if spec[-1] is not None else set()
    return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, PartitionSpec(*spec)))


@given(
    sizes=st.tuples(*[st.sampled_from([4, 12, 33, 64])] * 3),
    batch=st.sampled_from([1, 4, 5]),
    transposed=st.tuples(*[st.booleans()] * 2),
    axes=st.tuples(AXES, AXES, AXES, AXES, AXES),
    dtype=st.sampled_from(["float32", "bfloat16"]),
)
@settings(max_examples=20, deadline=None)
def test_products_of_matrices_that_are_sharded_in_any_way(
    sizes: tuple[int, int, int], batch: int, transposed: tuple[bool, bool], axes: tuple[Any, ...], dtype: str
) -> None:
    mesh = mesh_of_four()
    gemm = Gemm(batch, *sizes, *transposed)
    m, n, k = sizes
    rng = np.random.default_rng(1)
    pairs = (batch,) if batch > 1 else ()
    a = rng.standard_normal((*pairs, *((k, m) if gemm.a_transposed else (m, k))), np.float32).astype(dtype)
    b = rng.standard_normal((*pairs, *((n, k) if gemm.b_transposed else (k, n))), np.float32).astype(dtype)

    wanted = [axes[0]] * len(pairs)

    def product(a: Any, b: Any) -> Any:
        run = _native_matmul._call(gemm, None, sharded=True)
        return run(split(mesh, a, [*wanted, *axes[1:3]]), split(mesh, b, [*wanted, *axes[3:]]))

    made = jax.jit(product)(a, b)
    x, y = (v.astype(np.float32) for v in (a, b))
    x, y = x.swapaxes(-1, -2) if gemm.a_transposed else x, y.swapaxes(-1, -2) if gemm.b_transposed else y
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(np.asarray(made).astype(np.float32), x @ y, rtol=tolerance, atol=tolerance * 10)


def attention(sharded: bool, mask: tuple[bool, ...] | None, perm: tuple[int, ...]) -> tuple[Callable[..., Any], list[Any]]:
    a = Attention(4, 2, 24, 40, 16, (perm,) * 4, 0.25, mask)
    arrays: list[Any] = [a.shape(perm, positions) for positions in (24, 40, 40)]
    arrays.append((1,) if mask is None else tuple(n if varies else 1 for n, varies in zip((4, 2, 24, 40), mask, strict=True)))
    return attention_kernels.differentiable(a, sharded), arrays


OF_ROWS = {"transpose_a": False, "transpose_b": False}
# What one device or several compute, and the shapes of its arguments.
SHARDED: dict[str, Callable[[bool], tuple[Callable[..., Any], list[Any]]]] = {
    "attention": lambda sharded: attention(sharded, None, (0, 1, 2, 3)),
    "attention of positions before heads": lambda sharded: attention(sharded, (True, False, True, True), (0, 2, 1, 3)),
    "attention of positions first": lambda sharded: attention(sharded, (False, True, False, True), (1, 2, 0, 3)),
    "layer": lambda sharded: (
        lambda x, *p: _native_norm.lower_layer(x, *p, sharded=sharded, begin=2, epsilon=1e-5, scale=True, center=True),
        [(8, 6, 40), (40,), (40,)],
    ),
    "layer without parameters": lambda sharded: (
        lambda x: _native_norm.lower_layer(x, sharded=sharded, begin=1, epsilon=1e-5, scale=False, center=False), [(12, 4, 10)],
    ),
    "groups": lambda sharded: (
        lambda x, *p: _native_norm.lower_groups(x, *p, sharded=sharded, epsilon=1e-5, groups=2),
        [(6, 4, 5, 6), (1, 4, 1), (1, 4, 1)],
    ),
    "instances": lambda sharded: (
        lambda x, *p: _native_norm.lower_groups(x, *p, sharded=sharded, epsilon=1e-5, groups=None),
        [(4, 3, 30), (1, 3, 1), (1, 3, 1)],
    ),
    "groups of the last axis": lambda sharded: (
        lambda x, *p: _native_norm.lower_groups(x, *p, sharded=sharded, epsilon=1e-5, groups=2, channels_last=True),
        [(6, 5, 6, 8), (1, 8, 1), (1, 8, 1)],
    ),
    "instances without parameters": lambda sharded: (
        lambda x: _native_norm.lower_groups(x, sharded=sharded, epsilon=1e-5, groups=None, channels_last=True), [(5, 30, 9)],
    ),
    "losses": lambda sharded: (
        lambda x: _native_loss.lower(np.arange(24).reshape(8, 3) % 50, x, sharded=sharded), [(8, 3, 50)],
    ),
    "product": lambda sharded: (partial(_native_matmul.matmul, sharded=sharded, alpha=2, **OF_ROWS), [(6, 5, 24), (24, 40)]),
    "product with the second transposed": lambda sharded: (
        partial(_native_matmul.matmul, sharded=sharded, alpha=1, **{**OF_ROWS, "transpose_b": True}), [(7, 2, 3, 24), (40, 24)],
    ),
    "convolution": lambda sharded: (
        lambda x, w: _native_conv.differentiable(Geometry((2, 1), (1, 1), (1, 0), (1, 1), 1), sharded)(x, w),
        [(6, 9, 8, 4), (10, 4, 3, 2)],
    ),
    "pool": lambda sharded: (
        lambda x: _native_pool._lower(x, sharded=sharded, ksize=(3, 2), strides=(2, 1), padding="VALID", ceil_mode=False),
        [(5, 9, 8, 16)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("vmapped", [False, True])
@pytest.mark.parametrize("name", SHARDED)
@given(axes=st.lists(AXES, min_size=12, max_size=12), seed=st.integers(0, 100))
@settings(max_examples=2, deadline=None)
def test_calls_of_arrays_that_are_sharded_in_any_way(name: str, vmapped: bool, axes: list[Any], seed: int) -> None:
    mesh, rng = mesh_of_four(), np.random.default_rng(seed)
    (whole, shapes), (sharded, _) = SHARDED[name](False), SHARDED[name](True)
    leading = [(4,) if vmapped and i != 1 else () for i in range(len(shapes))]  # the second argument is shared by all devices
    arrays = [rng.standard_normal((*more, *shape), np.float32) for more, shape in zip(leading, shapes, strict=True)]
    if vmapped:
        in_axes = [0 if more else None for more in leading]
        whole, sharded = jax.vmap(whole, in_axes), jax.vmap(sharded, in_axes)
    expected, pull = jax.vjp(whole, *arrays)
    dy = rng.standard_normal(expected.shape, np.float32)

    def both(*arrays: Any) -> Any:
        dy, *arguments = (split(mesh, array, [*axes[i : i + 4], None][: array.ndim]) for i, array in enumerate(arrays))
        y, pull = jax.vjp(sharded, *arguments)
        return y, *pull(dy)

    for found, value in zip(jax.jit(both)(dy, *arrays), (expected, *pull(dy)), strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)


def transformer(devices: int, *, native: bool = True, batch: int = 8, view: str = "", heads: bool = False) -> Any:
    """Losses of three steps, the variables after them, and the program."""
    begin(devices)
    flow.config.enable_native_cpu(native)
    config = flow.FunctionConfig()
    config.default_placement_scope(flow.scope.placement("gpu", f"0:0-{devices - 1}"))
    if view == "mirrored":
        config.default_logical_view(flow.scope.mirrored_view())
    rows = batch // devices if view == "mirrored" and devices > 1 else batch
    start = flow.random_normal_initializer(stddev=0.1)

    def dense(x: Any, name: str, axis: int | None = None) -> Any:
        layout = flow.distribute.split(axis) if heads and axis is not None and devices > 1 else flow.distribute.auto()
        x, shape = flow.reshape(x, (-1, x.shape[-1])), x.shape[:-1]
        y = flow.matmul(x, flow.get_variable(name, (64, 64), initializer=start, distribute=layout))
        return flow.reshape(y, (*shape, 64))

    def in_heads(x: Any) -> Any:
        return flow.transpose(flow.reshape(x, (rows, 16, 4, 16)), perm=(0, 2, 1, 3))

    @flow.global_function("train", config)
    def job(x: tp.Numpy.Placeholder((batch, 16, 64)), labels: tp.Numpy.Placeholder((batch, 16), flow.int32)) -> tp.Numpy:
        y = flow.layers.layer_norm(x, begin_norm_axis=2, begin_params_axis=2, name="norm")
        q, k, v = (in_heads(dense(y, name, 1)) for name in "qkv")
        y = flow.matmul(flow.nn.softmax(flow.matmul(q, k, transpose_b=True, alpha=0.25)), v)
        x += dense(flow.reshape(flow.transpose(y, perm=(0, 2, 1, 3)), (rows, 16, 64)), "o", 0)
        images = flow.nn.GroupNorm(flow.reshape(x, (rows, 16, 8, 8)), num_groups=4, name="groups")
        pooled = flow.nn.max_pool2d(flow.transpose(images, perm=(0, 2, 3, 1)), 3, 1, "SAME", data_format="NHWC")
        logits = dense(flow.reshape(pooled, (rows, 16, 64)), "out")
        logits = flow.concat([logits] * 4, axis=2)
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.01]), momentum=0.9).minimize(loss)
        return loss

    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, batch, 16, 64), np.float32)
    labels = rng.integers(0, 256, (3, batch, 16)).astype(np.int32)
    losses = np.stack([job(*each) for each in zip(x, labels, strict=True)])
    program = "".join(compiled.as_text() for _, compiled in job.executables[-1][1].compiled)
    return losses, {name: v.numpy() for name, v in flow.get_all_variables().items()}, program


@pytest.mark.parametrize(
    ("devices", "options", "calls"),
    [
        (2, {}, ["attention", "attention_grad", "layer_norm", "layer_norm_grad", "max_pool", "max_pool_grad", "cross_entropy"]),
        (4, {"heads": True}, ["attention", "attention_grad", "layer_norm"]),
        (4, {"batch": 10}, ["attention", "attention_grad", "layer_norm", "layer_norm_grad", "max_pool", "max_pool_grad"]),
        (2, {"view": "mirrored"}, ["layer_norm", "layer_norm_grad", "max_pool", "max_pool_grad", "cross_entropy_grad"]),
    ],
    ids=str,
)
def test_a_transformer_trains_on_several_devices_as_on_one(devices: int, options: dict[str, Any], calls: list[str]) -> None:
    losses, variables, program = transformer(devices, **options)
    one_losses, one_variables, _ = transformer(devices if "view" in options else 1, native=False, **{**options, "heads": False})
    np.testing.assert_allclose(losses, one_losses, rtol=1e-3, atol=1e-4)
    for name, value in one_variables.items():
        np.testing.assert_allclose(variables[name], value, rtol=1e-2, atol=1e-3, err_msg=name)
    for call in calls:
        assert f'"{_native.target(call)}"' in program, call


def attending_stages(native: bool, micro_batches: int, mixed: bool) -> Any:
    """Losses of three steps of two stages with attention, and the job."""
    begin(2)
    flow.config.enable_native_cpu(native)
    config = flow.FunctionConfig()
    config.train.num_gradient_accumulation_steps(micro_batches)
    config.enable_auto_mixed_precision(mixed)
    start = flow.random_normal_initializer(stddev=0.1)

    def attend(x: Any, i: int) -> Any:
        names = [f"{letter}{i}" for letter in "qkv"]
        q, k, v = (flow.layers.dense(x, 64, name=name, kernel_initializer=start) for name in names)
        q, k, v = (flow.transpose(flow.reshape(h, (-1, 32, 4, 16)), perm=(0, 2, 1, 3)) for h in (q, k, v))
        y = flow.matmul(flow.nn.softmax(flow.matmul(q, k, transpose_b=True, alpha=0.25)), v)
        return x + flow.reshape(flow.transpose(y, perm=(0, 2, 1, 3)), (-1, 32, 64))

    @flow.global_function("train", config)
    def job(x: tp.Numpy.Placeholder((8, 32, 64))) -> tp.Numpy:
        with flow.scope.placement("gpu", "0:0"):
            x = attend(x, 0)
        with flow.scope.placement("gpu", "0:1"):
            loss = flow.math.reduce_mean(flow.math.square(attend(x, 1) - 1))
            flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.3])).minimize(loss)
        return loss

    rng = np.random.default_rng(0)
    return np.stack([job(rng.standard_normal((8, 32, 64), np.float32)) for _ in range(3)]), job


@pytest.mark.parametrize(("micro_batches", "mixed"), [(1, True), (2, False)])
def test_stages_compute_attention_in_one_call(micro_batches: int, mixed: bool, bfloat16_kernels: str) -> None:
    losses, job = attending_stages(True, micro_batches, mixed)
    programs = "".join(compiled.as_text() for _, compiled in job.executables[-1][1].compiled)
    assert all(programs.count(f'"{_native.target(call)}"') == 2 for call in ("attention", "attention_grad"))
    expected, _ = attending_stages(False, micro_batches, mixed)
    np.testing.assert_allclose(losses, expected, rtol=1e-3 if mixed else 1e-5)


def test_the_plan_counts_what_devices_exchange_in_place_of_collectives() -> None:
    begin(2)
    config = flow.FunctionConfig()
    config.default_placement_scope(flow.scope.placement("gpu", "0:0-1"))

    @flow.global_function(type="train", function_config=config)
    def job(x: tp.Numpy.Placeholder((8, 512))) -> tp.Numpy:
        x = flow.layers.batch_normalization(flow.layers.dense(x, 256, name="d"), axis=1, name="n")
        loss = flow.math.reduce_mean(flow.math.square(x), axis=[1])
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.01]), momentum=0.9).minimize(loss)
        return loss

    plan = job.plan()
    rows = [(row.kind, row.devices, row.bytes, row.count, row.op) for row in plan.collectives if row.kind.startswith("native")]
    assert sorted(rows) == [
        ("native exchange", 2, 2 * 256 * 4, 1, "n"),  # the sums of the gradient
        ("native exchange", 2, 2 * 2 * 256 * 4, 1, "n"),  # mean and squares of each device
        ("native summed update", 2, (512 + 1) * 256 * 4, 1, "d-weight"),
    ]
    assert "native summed update" in str(plan) and plan.sent_bytes >= 2 * sum(row[2] for row in rows)
