"""The update rules, against formulas written once more in NumPy and against torch where torch has the same rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow import optimizer as opt
from oneflow._base.source import caller
from oneflow.errors import DtypeError
from oneflow.graph.graph import Variable

RATES = [0.1, 0.1, 0.03, 0.03, 0.01]
SCHEDULE = opt.PiecewiseConstantScheduler([], [0.1])
WD = 0.05
State = dict[str, np.ndarray]


@pytest.fixture(autouse=True)
def _x64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def variable(name: str, shape: tuple[int, ...], dtype: flow.dtype = flow.float32) -> Variable:
    return Variable(name=name, shape=shape, dtype=dtype, initializer=None, source=caller(), trainable=True)  # type: ignore[arg-type]


def gradients(shape: tuple[int, ...], steps: int) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.standard_normal(shape) * 10.0 ** rng.integers(-2, 1) for _ in range(steps)]


def run(
    optimizer: Any, x: np.ndarray, grads: list[np.ndarray], rates: list[float], wd: float = 0.0, first_step: int = 0
) -> tuple[np.ndarray, State]:
    """The compiler's use of an optimizer, for one variable."""
    dtype = flow.float64 if x.dtype == np.float64 else flow.float16 if x.dtype == np.float16 else flow.float32
    slots = {s.suffix: np.full(s.shape, s.value, s.dtype.numpy_dtype) for s in optimizer.slots(variable("w", x.shape, dtype))}

    @jax.jit
    def update(x: Any, g: Any, slots: Any, lr: Any, step: Any) -> Any:
        return optimizer.update(x, g, slots, lr=lr, step=step, weight_decay=wd)

    for i, (g, rate) in enumerate(zip(grads, rates, strict=True)):
        new_x, new_slots = update(x, g.astype(x.dtype), slots, np.float32(rate), np.int64(first_step + i))
        assert new_x.dtype == x.dtype and new_x.shape == x.shape
        assert {k: (v.shape, v.dtype) for k, v in new_slots.items()} == {k: (v.shape, v.dtype) for k, v in slots.items()}
        x, slots = np.asarray(new_x), {k: np.asarray(v) for k, v in new_slots.items()}
    return x, slots


# --- the formulas once more: (x, g, state, lr, t, wd) -> new x, in float64


def sgd(x: np.ndarray, g: np.ndarray, s: State, lr: float, t: int, wd: float) -> np.ndarray:
    return x - lr * (g + wd * x)


def momentum(beta: float) -> Callable[..., np.ndarray]:
    def rule(x: np.ndarray, g: np.ndarray, s: State, lr: float, t: int, wd: float) -> np.ndarray:
        s["momentum"] = beta * s.get("momentum", 0) - lr * g
        return x + s["momentum"] - lr * wd * x

    return rule


def adam(b1: float, b2: float, eps: float, corrected: bool) -> Callable[..., np.ndarray]:
    def rule(x: np.ndarray, g: np.ndarray, s: State, lr: float, t: int, wd: float) -> np.ndarray:
        s["m"] = b1 * s.get("m", 0) + (1 - b1) * g
        s["v"] = b2 * s.get("v", 0) + (1 - b2) * g * g
        if corrected:
            lr = lr * np.sqrt(1 - b2 ** (t + 1)) / (1 - b1 ** (t + 1))
        return x - lr * (s["m"] / (np.sqrt(s["v"]) + eps) + wd * x)

    return rule


def rmsprop(d: float, eps: float, centered: bool) -> Callable[..., np.ndarray]:
    def rule(x: np.ndarray, g: np.ndarray, s: State, lr: float, t: int, wd: float) -> np.ndarray:
        s["mean_square"] = d * s.get("mean_square", 0) + (1 - d) * g * g
        inside = s["mean_square"]
        if centered:
            s["mean_gradient"] = d * s.get("mean_gradient", 0) + (1 - d) * g
            inside = inside - s["mean_gradient"] ** 2
        return x - lr * g / np.sqrt(inside + eps)

    return rule


def lars(beta: float, eps: float, coefficient: float) -> Callable[..., np.ndarray]:
    def rule(x: np.ndarray, g: np.ndarray, s: State, lr: float, t: int, wd: float) -> np.ndarray:
        nx, ng = np.linalg.norm(x.ravel()), np.linalg.norm(g.ravel())
        local = lr * coefficient * nx / (eps + ng + (wd * nx if t > 0 else 0))
        s["momentum"] = beta * s.get("momentum", 0) - local * (g + wd * x)
        return x + s["momentum"]

    return rule


def lamb(b1: float, b2: float, eps: float) -> Callable[..., np.ndarray]:
    def rule(x: np.ndarray, g: np.ndarray, s: State, lr: float, t: int, wd: float) -> np.ndarray:
        s["beta1_t"] = s.get("beta1_t", np.full(1, b1)) * b1
        s["beta2_t"] = s.get("beta2_t", np.full(1, b2)) * b2
        s["m"] = b1 * s.get("m", 0) + (1 - b1) * g
        s["v"] = b2 * s.get("v", 0) + (1 - b2) * g * g
        u = (s["m"] / (1 - s["beta1_t"][0])) / np.sqrt(s["v"] / (1 - s["beta2_t"][0]) + eps)
        nx, nu = np.linalg.norm(x.ravel()), np.linalg.norm(u.ravel())
        ratio = nx / nu if nx > 0 and nu > 0 else 1.0
        return x - lr * ratio * (u + wd * x)

    return rule


@dataclass(frozen=True)
class Row:
    name: str
    optimizer: Any
    formula: Callable[..., np.ndarray]
    wd: float = 0.0


ROWS = [
    Row("sgd", opt.SGD(SCHEDULE, momentum=0), sgd),
    Row("momentum", opt.SGD(SCHEDULE), momentum(0.9)),
    Row("sgdw", opt.SGDW(SCHEDULE, momentum=0, weight_decay=WD), sgd, WD),
    Row("sgdw momentum", opt.SGDW(SCHEDULE, momentum=0.5, weight_decay=WD), momentum(0.5), WD),
    Row("adam", opt.Adam(SCHEDULE), adam(0.9, 0.999, 1e-8, False)),
    Row("adam corrected", opt.Adam(SCHEDULE, 0.8, 0.95, 1e-6, True), adam(0.8, 0.95, 1e-6, True)),
    Row("adamw", opt.AdamW(SCHEDULE, weight_decay=WD), adam(0.9, 0.999, 1e-8, False), WD),
    Row("adamw corrected", opt.AdamW(SCHEDULE, do_bias_correction=True, weight_decay=WD), adam(0.9, 0.999, 1e-8, True), WD),
    Row("lazy adam", opt.LazyAdam(SCHEDULE), adam(0.9, 0.999, 1e-8, True)),
    Row("rmsprop", opt.RMSProp(SCHEDULE), rmsprop(0.99, 1e-8, False)),
    Row("rmsprop centered", opt.RMSProp(SCHEDULE, 0.9, 1e-5, True), rmsprop(0.9, 1e-5, True)),
    Row("lars", opt.LARS(SCHEDULE, lars_coefficient=0.1), lars(0.9, 1e-9, 0.1)),
    Row("lars decay", opt.LARS(SCHEDULE, 0.8, lars_coefficient=0.1, weight_decay=WD), lars(0.8, 1e-9, 0.1), WD),
    Row("lamb", opt.LAMB(SCHEDULE), lamb(0.9, 0.999, 1e-6)),
    Row("lamb decay", opt.LAMB(SCHEDULE, 0.8, 0.9, 1e-3, weight_decay=WD), lamb(0.8, 0.9, 1e-3), WD),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rule_is_its_formula(row: Row, dtype: Any) -> None:
    x = np.random.default_rng(1).standard_normal((3, 5))
    grads = gradients(x.shape, len(RATES))
    assert row.optimizer.weight_decay_of("w") == row.wd
    got, slots = run(row.optimizer, x.astype(dtype), grads, RATES, row.wd)
    want, state = x, {}
    for t, (g, rate) in enumerate(zip(grads, RATES, strict=True)):
        want = row.formula(want, g, state, float(np.float32(rate)), t, row.wd)
    # the step's rate is float32 in either case; LAMB's 1 - beta2^2 loses digits in float32
    tolerance = 2e-5 if dtype == np.float32 else 1e-7
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    assert slots.keys() == state.keys()
    for suffix, value in state.items():
        np.testing.assert_allclose(slots[suffix], value, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_tensors_stay_in_the_parameters_dtype(row: Row) -> None:
    """Under 64-bit mode a careless constant would turn whole tensors into float64."""
    x = jax.ShapeDtypeStruct((3, 5), np.float32)
    slots = {s.suffix: jax.ShapeDtypeStruct(s.shape, np.float32) for s in row.optimizer.slots(variable("w", (3, 5)))}
    jaxpr = jax.make_jaxpr(lambda x, g, s, lr, t: row.optimizer.update(x, g, s, lr=lr, step=t, weight_decay=row.wd))(
        x, x, slots, jax.ShapeDtypeStruct((), np.float32), jax.ShapeDtypeStruct((), np.int64)
    )
    equations = list(inside(jaxpr.jaxpr))
    assert len(equations) > 2
    wide = [str(e) for e in equations for v in e.outvars if v.aval.size > 1 and v.aval.dtype.itemsize == 8]
    assert not wide
    casts = [str(e) for e in equations if e.primitive.name == "convert_element_type" and e.outvars[0].aval.size > 1]
    assert not casts


def inside(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            if hasattr(value, "jaxpr"):
                yield from inside(value.jaxpr)


def test_variables_of_one_shape_are_traced_once() -> None:
    calls = []

    @dataclass(repr=False)
    class Counting(opt.SGD):
        def formula(self, x: Any, *rest: Any) -> Any:
            calls.append(x.shape)
            return super().formula(x, *rest)

    def all_of_them(xs: Any, lr: Any, step: Any) -> Any:
        return [optimizer.update(x, x, {}, lr=lr, step=step, weight_decay=0.0)[0] for x in xs]

    optimizer = Counting(SCHEDULE, momentum=0)
    jax.jit(all_of_them).lower([np.ones((2, 3), np.float32)] * 10 + [np.ones(4, np.float32)] * 10, np.float32(0.1), np.int64(0))
    assert calls == [(2, 3), (4,)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_names_of_the_state(row: Row) -> None:
    expected = {
        "sgd": [], "momentum": ["momentum"], "sgdw": [], "sgdw momentum": ["momentum"], "rmsprop": ["mean_square"],
        "rmsprop centered": ["mean_square", "mean_gradient"], "lars": ["momentum"], "lars decay": ["momentum"],
        "lamb": ["m", "v", "beta1_t", "beta2_t"], "lamb decay": ["m", "v", "beta1_t", "beta2_t"],
    }.get(row.name, ["m", "v"])  # fmt: skip
    slots = row.optimizer.slots(variable("w", (2, 3), flow.float64))
    assert [s.suffix for s in slots] == expected
    for slot in slots:
        assert slot.dtype == flow.float64
        assert slot.shape == ((1,) if slot.suffix.endswith("_t") else (2, 3))
        assert slot.value == (getattr(row.optimizer, slot.suffix[:5]) if slot.suffix.endswith("_t") else 0.0)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("rule", ["Adam", "AdamW", "LAMB", "LARS", "RMSProp", "SGD"])
def test_variables_of_16_bits_move_as_those_of_32(rule: str, kind: str) -> None:
    """Also by gradients whose squares no float16 holds: optimizers keep their state in float32."""
    slopes, paths = np.linspace(1, 2, 64, dtype=np.float32).reshape(1, 64), []
    for each in ("float32", kind):
        flow.clear_default_session()
        dtype = getattr(flow, each)

        @flow.global_function("train")
        def train(x: tp.Numpy.Placeholder((1, 64))) -> tp.Numpy:
            w = flow.get_variable("w", (1, 64), dtype=dtype, initializer=flow.constant_initializer(0.5))  # noqa: B023
            loss = flow.math.reduce_sum(flow.cast(w, flow.float32) * x)
            getattr(opt, rule)(opt.PiecewiseConstantScheduler([], [0.05])).minimize(loss * 1e-4)
            return w

        train(slopes)
        paths.append([train(slopes * (-1) ** (i // 3)).astype(np.float64) for i in range(12)])
        kept = {name: v.numpy().dtype for name, v in flow.get_all_variables().items() if name.startswith("w-")}
        assert all(found == np.float32 for found in kept.values())
    np.testing.assert_allclose(*paths, rtol=0.05, atol=0.01)


def test_sixteen_bit_parameters_survive_gradients_of_zero() -> None:
    x = np.array([1.0, 2.0, 3.0], np.float16)
    for row in ROWS:
        got, _ = run(row.optimizer, x, [np.zeros(3)] * 2, [0.1, 0.1])
        np.testing.assert_array_equal(got, x, err_msg=row.name)


def test_centered_rmsprop_survives_gradients_that_never_change() -> None:
    optimizer = opt.RMSProp(SCHEDULE, decay_rate=0.5, epsilon=1e-8, centered=True)
    got, _ = run(optimizer, np.zeros(64, np.float32), [np.linspace(1, 1000, 64)] * 60, [1e-9] * 60)
    assert np.isfinite(got).all()


def test_lamb_without_norm_uses_the_plain_rate() -> None:
    got, _ = run(opt.LAMB(SCHEDULE), np.zeros(4, np.float32), [np.ones(4)], [0.5])
    want = lamb(0.9, 0.999, 1e-6)(np.zeros(4), np.ones(4), {}, 0.5, 0, 0.0)
    np.testing.assert_allclose(got, want, rtol=1e-4)
    assert (got < 0).all()


def test_lars_leaves_a_variable_of_zeros_where_it_is() -> None:
    got, _ = run(opt.LARS(SCHEDULE), np.zeros(4, np.float32), [np.ones(4)] * 2, [0.5, 0.5])
    np.testing.assert_array_equal(got, np.zeros(4))


def test_bias_correction_at_large_steps_is_none() -> None:
    x, g = np.ones(3, np.float32), [np.full(3, 0.5)]
    corrected, _ = run(opt.Adam(SCHEDULE, do_bias_correction=True), x, g, [0.1], first_step=10**9)
    plain, _ = run(opt.Adam(SCHEDULE), x, g, [0.1])
    np.testing.assert_array_equal(corrected, plain)


def test_integer_variables_are_refused() -> None:
    with pytest.raises(DtypeError, match="trainable=False"):
        opt.SGD(SCHEDULE).slots(variable("steps", (1,), flow.int64))


TORCH = [
    ("SGD", {}, opt.SGD(SCHEDULE, momentum=0), 0.0),
    ("SGD", {"momentum": 0.9}, opt.SGD(SCHEDULE), 0.0),
    ("SGD", {"weight_decay": WD}, opt.SGDW(SCHEDULE, momentum=0, weight_decay=WD), WD),
    # epsilon stands elsewhere in torch, so there is none
    ("Adam", {"eps": 0.0}, opt.Adam(SCHEDULE, epsilon=0, do_bias_correction=True), 0.0),
    ("AdamW", {"eps": 0.0, "weight_decay": 0.0}, opt.AdamW(SCHEDULE, epsilon=0, do_bias_correction=True, weight_decay=0), 0.0),
    ("Adam", {"eps": 0.0}, opt.LazyAdam(SCHEDULE, epsilon=0), 0.0),
    ("RMSprop", {"eps": 0.0}, opt.RMSProp(SCHEDULE, epsilon=0), 0.0),
    ("RMSprop", {"eps": 0.0, "centered": True, "alpha": 0.9}, opt.RMSProp(SCHEDULE, 0.9, 0, True), 0.0),
]


@pytest.mark.parametrize(("name", "arguments", "optimizer", "wd"), TORCH, ids=[f"{i}-{row[0]}" for i, row in enumerate(TORCH)])
def test_rule_is_that_of_torch(name: str, arguments: dict[str, Any], optimizer: Any, wd: float) -> None:
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(2).standard_normal((4, 3)).astype(np.float32)
    grads = gradients(x.shape, 6)
    theirs = torch.nn.Parameter(torch.tensor(x))
    torch_optimizer = getattr(torch.optim, name)([theirs], lr=float(np.float32(0.01)), **arguments)
    for g in grads:
        theirs.grad = torch.tensor(g.astype(np.float32))
        torch_optimizer.step()
    ours, _ = run(optimizer, x, grads, [0.01] * len(grads), wd)
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_adamw_with_decay_is_torchs_but_for_the_rate_of_the_decay() -> None:
    """torch decays by lr, OneFlow by the corrected rate: the same once that correction is undone."""
    torch = pytest.importorskip("torch")
    x, lr = np.random.default_rng(3).standard_normal((4, 3)).astype(np.float32), 0.01
    theirs = torch.nn.Parameter(torch.tensor(x))
    grads = gradients(x.shape, 4)
    for t, g in enumerate(grads):
        correction = np.sqrt(1 - 0.999 ** (t + 1)) / (1 - 0.9 ** (t + 1))
        if t == 0:
            adamw = torch.optim.AdamW([theirs], lr=lr, eps=0.0)
        adamw.param_groups[0]["weight_decay"] = WD * correction
        theirs.grad = torch.tensor(g.astype(np.float32))
        adamw.step()
    ours, _ = run(opt.AdamW(SCHEDULE, epsilon=0, do_bias_correction=True, weight_decay=WD), x, grads, [lr] * 4, WD)
    # torch multiplies x by 1 - lr * wd first and then subtracts, which is the same sum
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-5, atol=1e-6)


SIGNATURES = {
    "SGD": "lr_scheduler, loss_scale_factor=None, momentum=0.9, grad_clipping=None, train_step_lbn=None, loss_scale_policy=None",
    "SGDW": "lr_scheduler, loss_scale_factor=None, momentum=0.9, weight_decay=None, weight_decay_includes=None, "
    "weight_decay_excludes=None, grad_clipping=None, train_step_lbn=None, loss_scale_policy=None",
    "Adam": "lr_scheduler, beta1=0.9, beta2=0.999, epsilon=1e-08, do_bias_correction=False, loss_scale_factor=None, "
    "grad_clipping=None, train_step_lbn=None, loss_scale_policy=None",
    "AdamW": "lr_scheduler, beta1=0.9, beta2=0.999, epsilon=1e-08, do_bias_correction=False, loss_scale_factor=None, "
    "weight_decay=None, weight_decay_includes=None, weight_decay_excludes=None, grad_clipping=None, train_step_lbn=None, "
    "loss_scale_policy=None",
    "LazyAdam": "lr_scheduler, beta1=0.9, beta2=0.999, epsilon=1e-08, loss_scale_factor=None, grad_clipping=None, "
    "train_step_lbn=None, loss_scale_policy=None",
    "RMSProp": "lr_scheduler, decay_rate=0.99, epsilon=1e-08, centered=False, loss_scale_factor=None, grad_clipping=None, "
    "train_step_lbn=None, loss_scale_policy=None",
    "LARS": "lr_scheduler, momentum_beta=0.9, epsilon=1e-09, lars_coefficient=0.0001, loss_scale_factor=None, "
    "grad_clipping=None, train_step_lbn=None, loss_scale_policy=None",
    "LAMB": "lr_scheduler, beta1=0.9, beta2=0.999, epsilon=1e-06, loss_scale_factor=None, grad_clipping=None, "
    "train_step_lbn=None, loss_scale_policy=None",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name: str) -> None:
    parameters = list(inspect.signature(getattr(opt, name)).parameters.values())
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    text = ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in positional)
    assert text == SIGNATURES[name] + ", variables=None"
    keyword_only = {p.name for p in parameters} - {p.name for p in positional}
    assert keyword_only == (
        {"weight_decay", "weight_decay_includes", "weight_decay_excludes"} if name in ("LARS", "LAMB") else set()
    )


@pytest.mark.parametrize(
    ("includes", "excludes", "decaying"),
    [
        (None, None, ["dense1-weight", "dense1-bias", "bn-gamma"]),
        ("weight", None, ["dense1-weight"]),
        (["weight$", "^bn"], None, ["dense1-weight", "bn-gamma"]),
        (None, ["bias", "gamma"], ["dense1-weight"]),
        (None, "1-b", ["dense1-weight", "bn-gamma"]),
        ([], None, []),
        (None, [], ["dense1-weight", "dense1-bias", "bn-gamma"]),
    ],
)
def test_patterns_of_weight_decay(includes: Any, excludes: Any, decaying: list[str]) -> None:
    names = ["dense1-weight", "dense1-bias", "bn-gamma"]
    for cls in (opt.SGDW, opt.AdamW, opt.LARS, opt.LAMB):
        optimizer = cls(SCHEDULE, weight_decay=WD, weight_decay_includes=includes, weight_decay_excludes=excludes)
        assert [n for n in names if optimizer.weight_decay_of(n)] == decaying
        assert {optimizer.weight_decay_of(n) for n in names} <= {0.0, WD}
    # without a rate, patterns are not looked at
    assert opt.SGDW(SCHEDULE, weight_decay_includes="a", weight_decay_excludes="b").weight_decay_of("ab") == 0.0


def test_repr_shows_what_was_asked_for() -> None:
    optimizer = opt.AdamW(SCHEDULE, beta1=0.8, weight_decay=0.01, weight_decay_excludes="bias")
    assert repr(optimizer) == (
        "AdamW(lr_scheduler=PiecewiseConstantScheduler(boundaries=(), values=(0.1,)), beta1=0.8, weight_decay=0.01, "
        "weight_decay_excludes=('bias',))"
    )
