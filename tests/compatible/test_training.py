"""Training under both spellings in one process: update rules, clipping, schedules, checkpoints; NumPy is the reference."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.compatible import single_client as sc
from oneflow.errors import ConfigError, JobWarning, TrainError
from oneflow.runtime.session import default_session

DATA = np.random.default_rng(5).standard_normal((4, 2, 3))
START = np.array([[1.0, 2.0, -1.0], [0.5, -2.0, 3.0]])
B1, B2, EPS, LR, WD = 0.9, 0.99, 0.1, 0.05, 0.2  # a large epsilon: where it stands is seen


def start() -> Any:
    return flow.constant_initializer(1.0)


def trained(package: Any, make: Callable[[], Any] | dict[str, Any], *, regularizer: Any = None, scale: float = 1.0) -> np.ndarray:
    """The variable after the steps over DATA, of a job declared with a package; its gradient is x / 6."""
    flow.clear_default_session()
    config = flow.FunctionConfig()
    if isinstance(make, dict):
        config.train.primary_lr(LR)
        config.train.model_update_conf(make)

    @package.global_function("train", config)
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:  # type: ignore[valid-type]
        w = flow.get_variable("w", (2, 3), initializer=start(), regularizer=regularizer)
        loss = w * x
        if isinstance(make, dict):
            flow.losses.add_loss(loss)
        else:
            make().minimize(loss)
        return loss

    for x in DATA:
        job((x * scale).astype(np.float32))
    return default_session().read()["w"]


def adam(*, outside: bool, corrects: bool = True, wd: float = 0.0, amsgrad: bool = False) -> np.ndarray:
    x, m, v, top = np.ones((2, 3)), 0.0, 0.0, 0.0
    for t, data in enumerate(DATA):
        g = data / 6
        m, v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * g * g
        top = np.maximum(top, v)
        c1, c2 = (1 - B1 ** (t + 1), 1 - B2 ** (t + 1)) if corrects else (1.0, 1.0)
        if outside:
            x = x - LR / c1 * m / (np.sqrt(top if amsgrad else v) / np.sqrt(c2) + EPS) - LR * wd * x
        else:
            x = x - LR * np.sqrt(c2) / c1 * (m / (np.sqrt(v) + EPS) + wd * x)
    return x


NUMBERS = {"beta1": B1, "beta2": B2, "epsilon": EPS}


def test_the_reference_tells_them_apart() -> None:
    assert np.abs(adam(outside=True) - adam(outside=False)).max() > 1e-3
    assert np.abs(adam(outside=True, wd=WD) - adam(outside=False, wd=WD)).max() > 1e-3


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize(
    ("name", "arguments", "wd"),
    [("Adam", {"do_bias_correction": True}, 0.0), ("Adam", {}, 0.0), ("LazyAdam", {}, 0.0),
     ("AdamW", {"do_bias_correction": True, "weight_decay": WD}, WD)],
)  # fmt: skip
def test_adam(newer: bool, name: str, arguments: dict[str, Any], wd: float) -> None:
    package = sc if newer else flow
    found = trained(package, lambda: getattr(package.optimizer, name)(LR, **NUMBERS, **arguments))
    corrects = name == "LazyAdam" or "do_bias_correction" in arguments
    np.testing.assert_allclose(found, adam(outside=newer, corrects=corrects, wd=wd), rtol=2e-6)
    assert ("w-max_v" in default_session().read()) == newer


def test_an_optimizer_means_what_its_spelling_says_in_jobs_of_the_other() -> None:
    found = trained(flow, lambda: sc.optimizer.Adam(LR, **NUMBERS, do_bias_correction=True))
    np.testing.assert_allclose(found, adam(outside=True), rtol=2e-6)
    found = trained(sc, lambda: flow.optimizer.Adam(LR, **NUMBERS, do_bias_correction=True))
    np.testing.assert_allclose(found, adam(outside=False), rtol=2e-6)


def test_the_dict_form_corrects_by_default_since_0_5() -> None:
    np.testing.assert_allclose(trained(flow, {"adam_conf": NUMBERS}), adam(outside=False, corrects=False), rtol=2e-6)
    np.testing.assert_allclose(trained(sc, {"adam_conf": NUMBERS}), adam(outside=True), rtol=2e-6)
    given = {**NUMBERS, "do_bias_correction": False, "amsgrad": True}
    np.testing.assert_allclose(trained(sc, {"adam_conf": given}), adam(outside=True, corrects=False, amsgrad=True), rtol=2e-6)
    decay = {"weight_decay_conf": {"weight_decay_rate": WD}}
    np.testing.assert_allclose(trained(sc, {"lazy_adam_conf": NUMBERS, **decay}), adam(outside=True, wd=WD), rtol=2e-6)
    with pytest.raises(ConfigError, match="amsgrad"):
        trained(flow, {"adam_conf": given})


def lars(newer: bool) -> np.ndarray:
    x, m = np.ones((2, 3)), 0.0
    for t, data in enumerate(DATA):
        g = data / 6
        if newer:
            q = LR * 0.5 * np.linalg.norm(x) / (EPS + np.linalg.norm(g) + WD * np.linalg.norm(x))
            m = 0.9 * m - q * g
            x = x + m - q * WD * x
        else:
            q = LR * 0.5 * np.linalg.norm(x) / (EPS + np.linalg.norm(g) + (WD * np.linalg.norm(x) if t else 0))
            m = 0.9 * m - q * (g + WD * x)
            x = x + m
    return x


@pytest.mark.parametrize("newer", [False, True])
def test_lars(newer: bool) -> None:
    package = sc if newer else flow
    make = lambda: package.optimizer.LARS(LR, momentum_beta=0.9, epsilon=EPS, lars_coefficient=0.5, weight_decay=WD)  # noqa: E731
    np.testing.assert_allclose(trained(package, make), lars(newer), rtol=2e-6)


def test_lars_moves_a_variable_of_zeros_in_0_6() -> None:
    @sc.global_function("train")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:  # type: ignore[valid-type]
        loss = flow.get_variable("zero", (2, 3), initializer=flow.zeros_initializer()) * x
        sc.optimizer.LARS(LR, momentum_beta=0).minimize(loss)
        return loss

    job(DATA[0].astype(np.float32))
    np.testing.assert_allclose(default_session().read()["zero"], -LR * DATA[0] / 6, rtol=1e-6)


def lamb(newer: bool) -> np.ndarray:
    x, m, v = np.ones((2, 3)), 0.0, 0.0
    p1, p2 = B1, B2
    for data in DATA:
        g = data / 6
        p1, p2 = p1 * B1, p2 * B2
        m, v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * g * g
        root = np.sqrt(v / (1 - p2))
        u = m / (1 - p1) / (root + EPS if newer else np.sqrt(v / (1 - p2) + EPS))
        x = x - LR * np.linalg.norm(x) / np.linalg.norm(u) * (u + WD * x)
    return x


@pytest.mark.parametrize("newer", [False, True])
def test_lamb(newer: bool) -> None:
    package = sc if newer else flow
    if newer:  # weight_decay has a place before grad_clipping
        make: Any = lambda: sc.optimizer.LAMB(LR, B1, B2, EPS, None, WD, None, None)  # noqa: E731
    else:
        make = lambda: flow.optimizer.LAMB(LR, B1, B2, EPS, weight_decay=WD)  # noqa: E731
    np.testing.assert_allclose(trained(package, make), lamb(newer), rtol=3e-6)


@pytest.mark.parametrize("newer", [False, True])
def test_clipping_and_regularizers(newer: bool) -> None:
    """0.6 clips first and adds the penalty then."""
    package = sc if newer else flow
    clip = flow.optimizer.grad_clipping.by_global_norm(0.3)
    found = trained(
        package,
        lambda: package.optimizer.SGD(LR, momentum=0, grad_clipping=clip),
        regularizer=flow.regularizers.l2(0.4),
        scale=9.0,
    )
    x = np.ones((2, 3))
    for data in DATA:
        g = data * 9 / 6
        penalty = 0.4 * x
        g = g + (0 if newer else penalty)
        g = g * min(1.0, 0.3 / np.linalg.norm(g)) + (penalty if newer else 0)
        x = x - LR * g
    np.testing.assert_allclose(found, x, rtol=3e-6)


@pytest.mark.parametrize("package", [flow, sc])
def test_momentum_none_is_zero(package: Any) -> None:
    x = np.ones((2, 3)) - LR * DATA.sum(0) / 6
    np.testing.assert_allclose(trained(package, lambda: package.optimizer.SGD(LR, momentum=None)), x, rtol=3e-6)
    assert package.optimizer.SGD(LR, momentum=None).momentum == 0


@pytest.mark.parametrize(
    ("decay", "rate"),
    [({"step_conf": {"step_size": 2}}, lambda t: LR * 0.1 ** (t // 2)),
     ({"multi_step_conf": {"milestones": [1, 3], "gamma": 0.5}}, lambda t: LR * 0.5 ** ((t >= 1) + (t >= 3))),
     ({"cosine_annealing_conf": {"t_max": 3, "eta_min": 0.01}},
      lambda t: 0.01 + (LR - 0.01) * (1 + np.cos(np.pi * t / 3)) / 2)],
)  # fmt: skip
def test_decays_of_the_dict_form(decay: dict[str, Any], rate: Callable[[int], float]) -> None:
    conf = {"naive_conf": {}, "learning_rate_decay": decay}
    expected = 1 - sum(rate(t) * x / 6 for t, x in enumerate(DATA))
    np.testing.assert_allclose(trained(sc, conf), expected, rtol=3e-6)
    with pytest.raises(ConfigError, match="has no key"):
        trained(flow, conf)


def test_a_predict_job_that_minimizes() -> None:
    def declare(package: Any) -> Any:
        @package.global_function("predict")
        def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:  # type: ignore[valid-type]
            w = package.get_variable("w", (2, 3), initializer=flow.ones_initializer())
            frozen = package.get_variable("frozen", (2, 3), initializer=flow.ones_initializer(), trainable=False)
            loss = w * frozen * x
            package.optimizer.SGD(LR, momentum=0).minimize(loss)
            return loss

        return job

    x = DATA[0].astype(np.float32)
    with pytest.raises(TrainError, match="it is a predict job"):
        declare(flow)(x)
    flow.clear_default_session()
    job = declare(sc)
    with pytest.warns(JobWarning, match="declared as a predict job and calls minimize") as caught:
        job(x)
    assert len(caught) == 1 and job.train
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        job(x)
    found = default_session().read()
    np.testing.assert_allclose(found["w"], 1 - 2 * LR * x / 6, rtol=1e-6)
    assert (found["frozen"] == 1).all()


def test_a_predict_job_that_does_not() -> None:
    @sc.global_function("predict")
    def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:  # type: ignore[valid-type]
        return flow.nn.dropout(x, 0.5) * sc.get_variable("w", (1,), initializer=flow.ones_initializer())

    assert (job(np.ones((2, 3), np.float32)) == 1).all() and not job.train
    assert not any(v.trainable for v in job.graph.variables.values())


def test_a_checkpoint_of_0_3_4_is_loaded_by_an_adam_of_0_6(tmp_path: Path) -> None:
    older = trained(flow, lambda: flow.optimizer.Adam(LR))
    m = default_session().read()["w-m"]
    flow.checkpoint.save(str(tmp_path / "older"))
    trained(sc, lambda: sc.optimizer.Adam(LR))
    with pytest.warns(flow.errors.CheckpointWarning, match="w-max_v"):
        flow.load_variables(flow.checkpoint.get(str(tmp_path / "older")))
    found = default_session().read()
    np.testing.assert_array_equal(found["w"], older)
    np.testing.assert_array_equal(found["w-m"], m)
    flow.checkpoint.save(str(tmp_path / "newer"))
    assert (tmp_path / "newer" / "w-max_v").is_dir()


def test_clipping_before_regularizers_on_several_places() -> None:
    def run(places: tuple[str, str], newer: bool) -> dict[str, np.ndarray]:
        flow.clear_default_session()
        flow.config.gpu_device_num(2)
        package = sc if newer else flow

        @package.global_function("train")
        def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:  # type: ignore[valid-type]
            h = x
            for i, place in enumerate(places):
                with flow.scope.placement("gpu", place):
                    w = flow.get_variable(f"w{i}", (2, 3), initializer=start(), regularizer=flow.regularizers.l2(0.4))
                    h = h * w
            clip = flow.optimizer.grad_clipping.by_global_norm(0.3)
            package.optimizer.SGD(LR, momentum=0, grad_clipping=clip).minimize(h)
            return h

        for x in DATA:
            job((9 * x).astype(np.float32))
        return {name: value for name, value in default_session().read().items() if name.startswith("w")}

    one, two, older = run(("0:0", "0:0"), True), run(("0:0", "0:1"), True), run(("0:0", "0:1"), False)
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, rtol=1e-5)
        assert np.abs(older[name] - value).max() > 1e-3
    flow.clear_default_session()
