"""Op types of 0.4 to 0.6, and that the names of either release work under both spellings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from both import floats, value

import oneflow as flow
from oneflow.compatible import single_client as sc
from oneflow.errors import ArgumentError

X = floats(3, 4, 6, 6)
BOTH = pytest.mark.parametrize("package", [flow, sc], ids=["0.3.4", "0.6"])


def built(package: Any, type_name: str, inputs: dict[str, Any], outputs: list[str], **attributes: Any) -> Any:
    builder = package.user_op_builder("op").Op(type_name)
    for name, given in inputs.items():
        builder = builder.Input(name, [given])
    for name in outputs:
        builder = builder.Output(name)
    for name, given in attributes.items():
        builder = builder.Attr(name, given)
    return list(builder.Build().InferAndTryRun().RemoteBlobList())


@BOTH
@pytest.mark.parametrize(("x", "y"), [("in", "out"), ("x", "y")])
def test_relu(package: Any, x: str, y: str) -> None:
    np.testing.assert_array_equal(value(lambda b: built(package, "relu", {x: b}, [y]), X)[0], np.maximum(X, 0))


@BOTH
def test_scalar_pow(package: Any) -> None:
    newer = {"has_int_operand": True, "has_float_operand": False, "int_operand": 2, "float_operand": 0.0}
    for attributes in ({"exponent": 2.0}, newer):
        found = value(lambda b: built(package, "scalar_pow", {"in": b}, ["out"], **attributes), X)[0]  # noqa: B023
        np.testing.assert_allclose(found, X**2, rtol=1e-5)


@BOTH
@pytest.mark.parametrize("names", [("prediction", "label", "loss"), ("input", "target", "out")])
def test_smooth_l1_loss(package: Any, names: tuple[str, str, str]) -> None:
    other = floats(*X.shape)
    expected = torch.nn.functional.smooth_l1_loss(torch.from_numpy(X), torch.from_numpy(other), reduction="none", beta=0.5)
    x, target, loss = names
    found = value(lambda a, b: built(package, "smooth_l1_loss", {x: a, target: b}, [loss], beta=0.5), X, other)[0]
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-6)


@BOTH
def test_broadcast_matmul(package: Any) -> None:
    a, b = floats(2, 3, 4), floats(5, 4)
    found = value(lambda a, b: built(package, "broadcast_matmul", {"a": a, "b": b}, ["out"], transpose_b=True, alpha=0.5), a, b)[
        0
    ]
    np.testing.assert_allclose(found, 0.5 * (a @ b.T), rtol=1e-5)


@BOTH
@pytest.mark.parametrize(
    ("name", "attributes", "factor"), [("scalar", {}, 1), ("scalar", {"scale": 3.0}, 3), ("scale_by_tensor", {"scale": 3.0}, 3)]
)
def test_fused_cast_scale(package: Any, name: str, attributes: dict[str, Any], factor: int) -> None:
    x = X.astype(np.float16)
    found = value(lambda x, s: built(package, "fused_cast_scale", {"x": x, name: s}, ["y"], **attributes), x, np.array([2], "f"))[
        0
    ]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, x.astype("f") * 2 * factor, rtol=1e-6)


@BOTH
def test_dropout_makes_its_mask_in_0_6(package: Any) -> None:
    out, mask = value(lambda b: built(package, "dropout", {"in": b}, ["out", "mask"], rate=0.5), np.ones((50, 20), np.float32))
    assert mask.dtype == np.int8 and 300 < mask.sum() < 700
    np.testing.assert_array_equal(out, mask * np.float32(2))
    given = (np.arange(12) % 2).astype(np.int8).reshape(3, 4)
    older = value(lambda b, m: built(package, "dropout", {"in": b, "mask": m}, ["out"], scale=2.0), floats(3, 4), given)[0]
    assert (older[given == 0] == 0).all()


def test_prelu_is_another_op_since_0_5() -> None:
    alpha = floats(4)
    expected = np.where(X > 0, X, X * alpha.reshape(1, 4, 1, 1))
    found = value(lambda x, a: built(sc, "prelu", {"x": x, "alpha": a}, ["y"]), X, alpha)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    for package, name in ((flow, "prelu"), (sc, "tf_prelu"), (flow, "tf_prelu")):
        found = value(lambda x, a: built(package, name, {"x": x, "alpha": a}, ["y"]), X, alpha.reshape(4, 1, 1))[0]  # noqa: B023
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@BOTH
@pytest.mark.parametrize("kind", ["max", "avg"])
def test_pools(package: Any, kind: str) -> None:
    attributes: dict[str, Any] = {"padding": "valid", "padding_before": [0, 0], "padding_after": [0, 0], "pool_size": [2, 2],
                                  "strides": [2, 2], "data_format": "channels_first", "ceil_mode": False}  # fmt: skip
    pool: Callable[..., Any] = getattr(torch.nn.functional, f"{kind}_pool2d")
    for name in (f"{kind}_pool_2d", f"tf_{kind}_pool_2d"):
        found = value(lambda b: built(package, name, {"x": b}, ["y"], **attributes), X)[0]  # noqa: B023
        np.testing.assert_allclose(found, pool(torch.from_numpy(X), 2).numpy(), rtol=1e-5)


@BOTH
def test_arange(package: Any) -> None:
    whole = value(lambda b: built(package, "arange", {}, ["out"], integer_start=2, integer_delta=3, integer_limit=10,
                                  dtype=flow.int32), X)[0]  # fmt: skip
    assert whole.dtype == np.int32 and whole.tolist() == [2, 5, 8]
    real = value(lambda b: built(package, "arange", {}, ["out"], float_start=1.0, float_delta=-0.5, float_limit=-0.1,
                                 dtype=flow.float64), X)[0]  # fmt: skip
    assert real.dtype == np.float64 and real.tolist() == [1.0, 0.5, 0.0]
    older = value(lambda b: built(package, "range", {}, ["out"], start=2, delta=3, limit=10, dtype=flow.int64), X)[0]
    assert older.tolist() == [2, 5, 8]


def test_names_of_two_forms_do_not_mix() -> None:
    with pytest.raises(ArgumentError, match="there is no output 'out'; it has y"):
        value(lambda b: built(sc, "relu", {"x": b}, ["out"]), X)
    with pytest.raises(ArgumentError, match="there is no input 'x'; it has in"):
        value(lambda b: built(flow, "relu", {"x": b}, ["out"]), X)
    assert {"tf_prelu", "arange", "broadcast_matmul", "tf_max_pool_3d_grad"} <= set(flow.user_op_names())
