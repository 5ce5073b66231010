"""Where formulas leave their domain: zeros under roots, infinities, narrow dtypes. References: PyTorch."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from table import Row, gradients, run

import oneflow as flow

torch = pytest.importorskip("torch")

F = torch.nn.functional
ZEROS = np.zeros((2, 3), np.float32)


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def triplet(p: float):
    def build(anchor, positive):
        return flow.nn.TripletMarginLoss(anchor, positive, 2.0 * anchor - 1.0, p=p, eps=0.0)

    return build, lambda anchor, positive: F.triplet_margin_loss(anchor, positive, 2 * anchor - 1, p=p, eps=0)


@pytest.mark.parametrize(
    ("build", "reference", "arrays"),
    [
        (lambda x: flow.math.reduce_euclidean_norm(x, 1), lambda x: x.norm(dim=1), [ZEROS]),
        (lambda x: flow.math.reduce_euclidean_norm(x, 1), lambda x: x.norm(dim=1), [np.eye(3, dtype=np.float32)]),
        (lambda x: flow.math.reduce_std(x, 1), lambda x: x.std(dim=1, unbiased=False), [ZEROS + 2]),
        (flow.math.atan2, torch.atan2, [ZEROS, ZEROS]),
        (flow.math.atan2, torch.atan2, [np.array([0.0, -1.0, 1e-3], np.float32), np.array([-2.0, 0.0, 1e3], np.float32)]),
        (lambda x: flow.math.atan2(0.0, x), lambda x: torch.atan2(torch.tensor(0.0), x), [ZEROS]),
        *((*triplet(p), [ZEROS, np.eye(2, 3, dtype=np.float32)]) for p in (0.5, 1.0, 1.5, 2.0, 3.0)),
    ],
)
def test_gradients_at_zero(build, reference, arrays) -> None:
    inputs = [torch.tensor(a, requires_grad=True) for a in arrays]
    expected = reference(*inputs)
    expected.sum().backward()
    np.testing.assert_allclose(run(Row("", build, None, arrays), arrays)[0].ravel(), expected.detach().ravel(), rtol=1e-6)
    for found, x in zip(gradients(Row("", build, None, arrays), arrays), inputs, strict=True):
        np.testing.assert_allclose(found, x.grad, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("factor", "options"),
    [(1.5, {"mode": "nearest-exact"}), (2.0, {"mode": "bilinear"}), (1.5, {"mode": "bilinear", "align_corners": True})],
)
def test_enlarged_images_keep_a_bad_pixel_in_its_place(value: float, factor: float, options: dict) -> None:
    image = np.random.default_rng(0).standard_normal((1, 2, 6, 8)).astype(np.float32)
    image[0, 1, 2, 3] = value

    def build(x):
        return flow.layers.upsample_2d(
            x, factor, interpolation=options["mode"].removesuffix("-exact"), align_corners=options.get("align_corners", False)
        )

    (found,) = run(Row("", build, None, [image]), [image])
    expected = F.interpolate(torch.tensor(image), scale_factor=factor, **options).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert np.isfinite(found[0, 0]).all()


@pytest.mark.parametrize(
    ("build", "reference"), [(flow.math.gelu, F.gelu), (flow.nn.hardsigmoid, F.hardsigmoid), (flow.nn.hardswish, F.hardswish)]
)
def test_activations_in_float16_are_rounded_once(build, reference) -> None:
    x = np.linspace(-5, 5, 401).astype(np.float16)
    (found,) = run(Row("", build, None, [x]), [x])
    precise = reference(torch.tensor(x.astype(np.float64))).numpy()
    np.testing.assert_allclose(found.astype(np.float64), precise, rtol=2**-10, atol=5e-7)  # the last: of float32


def test_many_terms_in_float16_are_rounded_once() -> None:
    terms = [np.full(2, value, np.float16) for value in (2048.0, *[1.0] * 16)]
    (found,) = run(Row("", lambda *blobs: flow.math.add_n(list(blobs)), None, terms), terms)
    np.testing.assert_array_equal(found, np.full(2, 2064.0, np.float16))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_indices_of_8_bits_reach_beyond_their_dtype(dtype) -> None:
    scores = np.zeros((2, 300), np.float32)
    scores[:, 100], scores[:, 44] = 1.0, 0.5  # 300 is 44 in 8 bits
    targets = np.array([100, 44], dtype)
    (found,) = run(Row("", lambda t, p: flow.math.in_top_k(t, p, 1), None, [targets, scores]), [targets, scores])
    np.testing.assert_array_equal(found, [1, 0])

    place, row = np.array([[100]], dtype), np.ones((1, 2), np.float32)
    table = np.zeros((256, 2), np.float32)
    (found,) = run(Row("", flow.tensor_scatter_nd_update, None, [table, place, row]), [table, place, row])
    table[100] = 1
    np.testing.assert_array_equal(found, table)


def test_no_frames_spell_the_empty_target() -> None:
    log_probs = torch.randn(4, 3, 5, generator=torch.manual_seed(0)).log_softmax(-1).numpy()
    targets = np.array([[1], [1], [1]], np.int32)
    lengths, sizes = np.array([0, 0, 4], np.int32), np.array([0, 1, 1], np.int32)
    arrays = [log_probs, targets, lengths, sizes]

    def build(*blobs):
        return flow.ctc_loss(*blobs, reduction="none", zero_infinity=True)

    x = torch.tensor(log_probs, requires_grad=True)
    expected = F.ctc_loss(x, *map(torch.tensor, arrays[1:]), reduction="none", zero_infinity=True)
    expected.sum().backward()
    (found,) = run(Row("", lambda *blobs: flow.ctc_loss(*blobs, reduction="none"), None, arrays), arrays)
    np.testing.assert_allclose(found, [0, np.inf, expected[2].item()], rtol=1e-5)
    np.testing.assert_allclose(gradients(Row("", build, None, arrays), arrays)[0], x.grad, atol=1e-6)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("divisor", [41.0, 49.0, 61.0, 0.3, 0.1, -41.0])
def test_floor_divisions_by_constants_are_exact(dtype, divisor: float) -> None:
    """XLA multiplies by the reciprocal of a constant, by which 41 // 41 were 0."""
    x = (np.arange(-200, 201) * divisor).astype(dtype)
    builds = [lambda x: x // divisor, lambda x: flow.math.floordiv(x, flow.constant_like(x, divisor))]
    for build in builds:
        (found,) = run(Row("", build, None, [x]), [x])
        np.testing.assert_array_equal(found, x // dtype(divisor))
    (found,) = run(Row("", lambda x: x // 0.0, None, [x]), [x])
    with np.errstate(divide="ignore", invalid="ignore"):
        np.testing.assert_array_equal(found, np.floor(x / dtype(0)))


@pytest.mark.parametrize("pads", [[(1, 0), (0, 0)], [(1, 0), (1, 0)], [(2, 1), (0, 0)]])
@pytest.mark.parametrize("filters", [8, 64])
def test_windows_that_lie_in_the_padding(pads: list[tuple[int, int]], filters: int) -> None:
    """XLA's gradient to such weights was a sum over the data."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in ((8, 1, 1, 2), (filters, 1, 1, 1)))
    row = Row("", lambda x, w: flow.nn.conv2d(x, w, 2, [(0, 0), (0, 0), *pads], "NCHW"), None, [x, w])
    a, b = torch.tensor(x, requires_grad=True), torch.tensor(w, requires_grad=True)
    expected = F.conv2d(F.pad(a, (*pads[1], *pads[0])), b, stride=2)
    expected.square().sum().backward()
    squares = Row("", lambda x, w: flow.math.square(row.build(x, w)), None, [x, w])
    np.testing.assert_allclose(run(row, [x, w])[0], expected.detach(), rtol=1e-5)
    for found, tensor in zip(gradients(squares, [x, w]), (a, b), strict=True):
        np.testing.assert_allclose(found, tensor.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("diagonal", [2**31 - 1, -(2**31 - 1)])
def test_triangles_of_far_diagonals(diagonal: int) -> None:
    x = np.ones((2, 3), np.float32)
    (found,) = run(Row("", lambda x: flow.math.tril(x, diagonal), None, [x]), [x])
    np.testing.assert_array_equal(found, np.tril(x, diagonal))
