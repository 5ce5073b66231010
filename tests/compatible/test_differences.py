"""What 0.3.4 and 0.6 mean by one name: both sides, in one process. The rows of the table in docs/compatibility.md."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from both import floats, value

import oneflow as flow
import oneflow.typing as tp
from oneflow.compatible import single_client as sc
from oneflow.compiler.plan import plan
from oneflow.core.record import record_pb2 as pb
from oneflow.errors import ArgumentError, FeatureError, ImageError

X, W = floats(2, 4, 5, 5), floats(6, 4, 3, 3)


def test_what_is_the_same_is_shared() -> None:
    shared = """math.relu nn.relu float32 Blob typing scope.placement get_all_variables clear_default_session checkpoint.save
        optimizer.CosineScheduler experimental.scope.config layers.dense config.gpu_device_num""".split()
    for path in shared:
        ours, theirs = flow, sc
        for part in path.split("."):
            ours, theirs = getattr(ours, part), getattr(theirs, part)
        assert ours is theirs, path


def test_conv2d_has_a_bias_before_the_format() -> None:
    b = floats(6)
    expected = torch.nn.functional.conv2d(*map(torch.from_numpy, (X, W, b))).numpy()
    found = value(lambda x, w, b: sc.nn.conv2d(x, w, 1, "VALID", b), X, W, b)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    last = value(lambda x, w, b: sc.nn.conv2d(x, w, 1, "VALID", b, "NHWC"), X.transpose(0, 2, 3, 1), W.transpose(0, 2, 3, 1), b)
    np.testing.assert_allclose(last.transpose(0, 3, 1, 2), expected, rtol=1e-4, atol=1e-5)
    older = value(lambda x, w: flow.nn.conv2d(x, w, 1, "VALID", "NCHW"), X, W)
    np.testing.assert_allclose(older, expected - b.reshape(1, 6, 1, 1), rtol=1e-4, atol=1e-5)
    with pytest.raises(ArgumentError, match="bias must be a Blob"):
        value(lambda x, w: sc.nn.conv2d(x, w, 1, "VALID", "NCHW"), X, W)


@pytest.mark.parametrize(("name", "last", "rank"), [("conv1d", "NWC", 1), ("conv3d", "NDHWC", 3)])
def test_groups_of_conv1d_and_conv3d_need_channels_first(name: str, last: str, rank: int) -> None:
    x, w = floats(1, *[3] * rank, 4), floats(4, *[2] * rank, 2)
    assert value(lambda x, w: getattr(flow.nn, name)(x, w, 1, "VALID", last, groups=2), x, w).shape == (1, *[2] * rank, 4)
    with pytest.raises(ValueError, match=f"groups=2 cannot be combined with data_format='{last}'"):
        value(lambda x, w: getattr(sc.nn, name)(x, w, 1, "VALID", last, groups=2), x, w)


def test_upsample_2d_has_align_corners_in_third_place() -> None:
    corners = torch.nn.functional.interpolate(torch.from_numpy(X), scale_factor=2, mode="bilinear", align_corners=True).numpy()
    found = value(lambda x: sc.layers.upsample_2d(x, 2, True, "NCHW", "bilinear"), X)
    np.testing.assert_allclose(found, corners, rtol=1e-4, atol=1e-5)
    older = value(lambda x: flow.layers.upsample_2d(x, 2, "NCHW", "bilinear"), X)
    assert np.abs(older - corners).max() > 0.01
    with pytest.raises(ValueError, match="align_corners"):
        value(lambda x: sc.layers.upsample_2d(x, 2, True), X)


def test_alpha_of_matmul_is_fifth() -> None:
    a, b = floats(2, 3, 4), floats(4, 5)
    assert sc.linalg.matmul is sc.matmul
    np.testing.assert_allclose(value(lambda a, b: sc.matmul(a, b, False, False, 0.5), a, b), 0.5 * (a @ b), rtol=1e-5)
    np.testing.assert_allclose(value(lambda a, b: flow.matmul(a, b, False, False, "name", 0.5), a, b), 0.5 * (a @ b), rtol=1e-5)


def test_ranks_of_matmul() -> None:
    a, b = floats(3, 4), floats(2, 4, 5)
    np.testing.assert_allclose(value(lambda a, b: flow.matmul(a, b), a, b), a @ b, rtol=1e-5)
    with pytest.raises(ValueError, match="ranks 2 and 3"):
        value(lambda a, b: sc.matmul(a, b), a, b)
    with pytest.raises(ValueError, match="cannot be transposed"):
        value(lambda a, b: sc.matmul(a, b, transpose_a=True), floats(2, 4, 3), floats(4, 5))


def test_gather_before_batch_dims() -> None:
    with pytest.raises(ValueError, match="axis=0 must be >= batch_dims=1"):
        value(lambda x, i: sc.gather(x, i, axis=0, batch_dims=1), floats(2, 3), np.zeros((2, 1), np.int32))
    with pytest.raises(NotImplementedError, match="equal to axis=0"):
        value(lambda x, i: flow.gather(x, i, axis=0, batch_dims=1), floats(2, 3), np.zeros((2, 1), np.int32))


def test_reductions_to_bool() -> None:
    x = np.array([[1, 0], [2, 3]], np.float32)
    newer = value(lambda x: [sc.math.reduce_all(x, 1), sc.math.reduce_any(x, 1)], x)
    older = value(lambda x: [flow.math.reduce_all(x, 1), flow.math.reduce_any(x, 1)], x)
    assert [(r.dtype, r.tolist()) for r in newer] == [(np.bool_, [False, True]), (np.bool_, [True, True])]
    assert [(r.dtype, r.tolist()) for r in older] == [(np.int8, [0, 1]), (np.int8, [1, 1])]


def test_reflection_pad2d() -> None:
    np.testing.assert_array_equal(
        value(lambda x: sc.reflection_pad2d(x, [1, 2, 3, 0]), X), np.pad(X, [(0, 0), (0, 0), (3, 0), (1, 2)], mode="reflect")
    )
    np.testing.assert_array_equal(
        value(lambda x: flow.reflection_pad2d(x, [0, 0, 3, 1]), X), np.pad(X, [(0, 0), (0, 0), (3, 3), (1, 1)], mode="reflect")
    )


def test_range_without_a_dtype() -> None:
    assert value(lambda x: sc.range(1, 6, 2), X).dtype == np.int64
    with pytest.raises(ArgumentError, match="dtype is required"):
        value(lambda x: flow.range(1, 6, 2), X)
    np.testing.assert_allclose(value(lambda x: sc.range(0.5, 2, 0.5, flow.float32), X), [0.5, 1.0, 1.5])


def test_masks_of_dropout_follow_manual_seed_in_0_6() -> None:
    def mask(package: Any, seed: int) -> np.ndarray:
        flow.clear_default_session()
        flow.manual_seed(seed)

        @package.global_function("train")
        def job(x: tp.Numpy.Placeholder((64,))) -> tp.Numpy:  # type: ignore[valid-type]
            w = flow.get_variable("w", (1,), initializer=flow.ones_initializer())
            y = package.nn.dropout(x * w, 0.5, seed=7, name="drop")
            flow.optimizer.SGD(0.1).minimize(y)
            return y

        return job(np.ones(64, np.float32)) == 0

    assert (mask(flow, 1) == mask(flow, 2)).all()
    assert (mask(sc, 1) == mask(sc, 1)).all() and (mask(sc, 1) != mask(sc, 2)).any()
    with pytest.raises(AssertionError, match="needs a name"):
        value(lambda x: sc.nn.dropout(x, 0.5, seed=7), X)


def test_layouts_under_all_their_names() -> None:
    start = flow.ones_initializer()

    def body(x: flow.Blob) -> list[flow.Blob]:
        return [
            sc.get_variable("a", (4,), flow.float32, start, None, True, None, None, ["S(0)"]),
            sc.get_variable("b", (4,), initializer=start, nd_sbp=[], reuse=True),
            sc.get_variable("c", (4,), initializer=start, parallel_distribution=[sc.sbp.split(0)]),
            sc.get_variable("d", (4,), initializer=start, distribute=flow.distribute.split(0)),
            flow.get_variable("e", (4,), initializer=start, nd_sbp="B"),
            sc.hierarchical_parallel_cast(x, nd_sbp=["S(0)"], grad_mode="manual", grad_nd_sbp=[sc.sbp.broadcast]),
            sc.hierarchical_parallel_cast(x, parallel_distribution=["B"]),
            flow.hierarchical_parallel_cast(x, nd_sbp=["B"], grad_mode="manual", grad_nd_sbp=["B"]),
        ]

    found = value(body, floats(4))
    assert all(f.shape == (4,) for f in found)
    with pytest.raises(AssertionError, match="nd_sbp and distribute cannot both be given"):
        value(lambda x: sc.get_variable("a", (4,), initializer=start, nd_sbp=["B"], distribute=flow.distribute.split(0)), X)
    with pytest.raises(ArgumentError, match="the same argument"):
        value(lambda x: flow.hierarchical_parallel_cast(x, ["B"], nd_sbp=["B"]), X)


def test_the_formula_of_observers_has_a_place() -> None:
    def newer(x: flow.Blob) -> flow.Blob:
        scale, zero = sc.quantization.min_max_observer(x, 8, "symmetric", "google", True)
        return sc.quantization.fake_quantization(x, scale, zero, 8, "symmetric", "google")

    def older(x: flow.Blob) -> flow.Blob:
        scale, zero = flow.quantization.min_max_observer(x, 8, "symmetric", True)
        return flow.quantization.fake_quantization(x, scale, zero, 8, "symmetric")

    np.testing.assert_array_equal(value(newer, X), value(older, X))
    with pytest.raises(NotImplementedError, match="cambricon"):
        value(lambda x: sc.quantization.min_max_observer(x, 8, "symmetric", "cambricon", False), X)


def test_batch_align_to_a_fixed_shape() -> None:
    image = np.arange(36, dtype=np.uint8).reshape(1, 4, 3, 3)

    def body(package: Any, **given: Any) -> Callable[[flow.Blob], flow.Blob]:
        return lambda x: package.image.batch_align(flow.tensor_to_tensor_buffer(x, 3), (8, 8, 3), flow.float32, 4, **given)

    fixed = value(body(sc, dynamic_out=False), image)
    assert fixed.shape == (1, 8, 8, 3) and (fixed[:, :4, :3] == image).all() and fixed.sum() == image.sum()
    assert value(body(sc), image, package=sc).shape == (1, 4, 4, 3)
    with pytest.raises(ImageError, match="do not fit into 8 x 8"):
        value(body(sc, dynamic_out=False), np.zeros((1, 10, 3, 3), np.uint8))


def test_lists_of_other_lengths(tmp_path: Path) -> None:
    lists = [[1, 2, 3, 4, 5], [6], [7, 8, 9]]
    feature = lambda v: pb.Feature(int32_list=pb.Int32List(value=v))  # noqa: E731
    flow.data.write_parts(tmp_path, [pb.OFRecord(feature={"x": feature(v)}) for v in lists])

    def read(decode: Callable[[flow.Blob], flow.Blob]) -> list[list[int]]:
        flow.clear_default_session()

        @flow.global_function()
        def job() -> tp.Numpy:
            return decode(flow.data.ofrecord_reader(str(tmp_path), batch_size=3))

        return job().tolist()

    cut = [[1, 2, 3], [6, 0, 0], [7, 8, 9]]
    assert read(lambda r: sc.data.OFRecordRawDecoder(r, "x", (3,), flow.int32, False, True)) == cut
    with pytest.warns(DeprecationWarning, match="use truncate"):
        assert read(lambda r: sc.data.ofrecord_raw_decoder(r, "x", (3,), flow.int32, auto_zero_padding=True)) == cut
    padded = [[1, 2, 3, 4, 5], [6, 0, 0, 0, 0], [7, 8, 9, 0, 0]]
    assert read(lambda r: flow.data.OFRecordRawDecoder(r, "x", (5,), flow.int32, False, True)) == padded
    with pytest.raises(FeatureError, match="another size"):
        read(lambda r: flow.data.OFRecordRawDecoder(r, "x", (3,), flow.int32, auto_zero_padding=True))

    def loaded(codec: Any, size: int) -> list[list[int]]:
        flow.clear_default_session()

        @flow.global_function()
        def job() -> tp.Numpy:
            conf = flow.data.BlobConf("x", (size,), flow.int32, codec)
            return flow.data.decode_ofrecord(str(tmp_path), [conf], batch_size=3)[0]

        return job().tolist()

    assert loaded(sc.data.RawCodec(True), 3) == cut and loaded(sc.data.RawCodec(auto_zero_padding=True), 3) == cut
    assert loaded(flow.data.RawCodec(True), 5) == padded


def test_where_coco_reader_has_its_name() -> None:
    newer, older = ([p for p in inspect.signature(f).parameters][:9] for f in (sc.data.coco_reader, flow.data.coco_reader))
    assert newer[6:] == ["stride_partition", "remove_images_without_annotations", "name"] and older[6:8] == [
        "stride_partition",
        "name",
    ]


def test_placeholders_without_batch_axis() -> None:
    assert sc.FixedTensorDef((2, 3), flow.float32, "x").shape == (2, 3)
    assert flow.FixedTensorDef((2, 3), flow.float32, 0, "x").shape == (2, 3)
    assert sc.typing.Numpy.Placeholder((2, 3), flow.int32) is not None


def test_dtypes() -> None:
    assert (sc.half, sc.int, sc.long, sc.float, sc.double) == (flow.float16, flow.int32, flow.int64, flow.float32, flow.float64)
    assert str(sc.bool) == "oneflow.bool" and sc.bool in sc.dtypes() and sc.bool not in flow.dtypes()
    assert not hasattr(flow, "bool") and not hasattr(flow, "half")
    assert sc.complex64.is_complex and not sc.uint16.is_signed and sc.int16.is_signed and sc.bool.bytes == 1
    assert {d.oneflow_proto_dtype for d in sc.dtypes()} == set(range(1, 22))
    assert sc.bool == np.bool_ and flow.convert_oneflow_dtype_to_numpy_dtype(sc.bool) == np.bool_


def test_bool_through_a_job() -> None:
    mask = np.array([[True, False, True]])
    found = value(lambda m, x: [m, flow.where(m, x, -x), flow.cast(m, flow.int32), flow.cast(x, sc.bool),
                                flow.reshape(m, (3,))], mask, np.array([[1, 0, 3]], np.float32))  # fmt: skip
    assert [f.tolist() for f in found] == [mask.tolist(), [[1, 0, 3]], [[1, 0, 1]], [[True, False, True]], mask[0].tolist()]
    assert [f.dtype.name for f in found] == ["bool", "float32", "int32", "bool", "bool"]


def test_a_variable_of_bool() -> None:
    start = flow.ones_initializer(sc.bool)
    found = value(lambda x: sc.get_variable("mask", (3,), sc.bool, start, trainable=False), X)
    assert found.dtype == np.bool_ and found.all()


def test_size() -> None:
    size = sc.Size([2, 3, 4])
    assert size == (2, 3, 4) and size.numel() == 24 and size.count(3) == 1 and size.index(4) == 2
    assert isinstance(size[1:], sc.Size) and size[1:] == (3, 4) and size[-1] == 4 and isinstance(size + (5,), sc.Size)
    assert sc.Size().numel() == 1 and repr(size) == "oneflow.Size([2, 3, 4])"
    with pytest.raises(ArgumentError, match="must be an int"):
        sc.Size([1.5])  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match="sequence of ints"):
        sc.Size(3)  # type: ignore[arg-type]


def test_results_of_the_mirrored_view_are_joined() -> None:
    pieces = [np.full((2, 3), i, np.float32) for i in range(2)]

    def run(package: Any, returns: Any) -> tuple[Any, list[Any]]:
        flow.clear_default_session()
        flow.config.gpu_device_num(2)
        config = flow.FunctionConfig()
        config.default_logical_view(flow.scope.mirrored_view())
        seen: list[Any] = []

        def look(values: tp.ListNumpy) -> None:
            seen.append(values)

        def job(x: tp.ListNumpy.Placeholder((2, 3))):  # type: ignore[no-untyped-def, valid-type]
            flow.watch(x, look)
            return x + 1

        if returns is not None:
            job.__annotations__["return"] = returns
        found = package.global_function("predict", config)(job)(pieces)
        found = found if returns is not None else found.get()
        flow.sync_default_session()
        return found, seen

    whole = np.concatenate(pieces)
    found, seen = run(flow, tp.ListNumpy)
    assert len(found) == 2 and len(seen[0]) == 2
    found, seen = run(sc, tp.ListNumpy)
    assert len(found) == 1 and (found[0] == whole + 1).all()
    assert len(seen[0]) == 1 and (seen[0][0] == whole).all()
    local, _ = run(sc, None)
    assert local.parallel_num() == 1 and (local.numpy() == whole + 1).all()
    assert run(flow, None)[0].parallel_num() == 2
    flow.clear_default_session()


def test_ctc_greedy_decoder() -> None:
    classes = np.array([[0, 0, 1, 2, 1, 1], [2, 1, 1, 1, 0, 0]]).T  # (T, N); class 2 is the blank
    x = np.log(np.full((6, 2, 3), 0.2)) + np.log(3) * np.eye(3)[classes]
    lengths = np.array([6, 4])
    for merge, expected in ((True, [[0, 1, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0]]), (False, [[0, 0, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0]])):
        decoded, score = value(lambda x, n: list(sc.nn.ctc_greedy_decoder(x, n, merge)), x.astype("f"), lengths)  # noqa: B023
        assert decoded.dtype == np.int64 and decoded.tolist() == expected
        np.testing.assert_allclose(score, [[-6 * np.log(0.6)], [-4 * np.log(0.6)]], rtol=1e-5)


def test_native_names() -> None:
    import oneflow._oneflow_internal as internal

    made = []

    def body(x: flow.Blob) -> flow.Blob:
        made.append((isinstance(x, internal.EagerConsistentBlob), internal.GetCurrentScope() is flow.current_scope()))
        return x

    value(body, X)
    assert made == [(False, True)] and internal.Size is sc.Size
    for kind in ("InvalidValue", "Index", "Type", "Timeout", "Runtime", "MemoryZoneOutOfMemory"):
        assert issubclass(getattr(internal.exception, f"{kind}Exception"), flow.errors.OneFlowError)


def test_lists_of_mixed_precision() -> None:
    def narrow(package: Any) -> np.ndarray:
        flow.clear_default_session()
        config = flow.FunctionConfig()
        config.enable_auto_mixed_precision(True)

        @package.global_function("predict", config)
        def job(x: tp.Numpy.Placeholder((2, 3))) -> tp.Numpy:  # type: ignore[valid-type]
            return flow.layers.prelu(x, alpha_initializer=flow.constant_initializer(0.3), name="prelu")

        return job(np.full((2, 3), -1.0, np.float32))

    assert (narrow(flow) == np.float32(-0.3)).all()
    assert (narrow(sc) != np.float32(-0.3)).all() and np.allclose(narrow(sc), -0.3, rtol=1e-2)


@pytest.mark.parametrize("joins", ["pack", "acc"])
def test_repeated_parts_stay_in_16_bits_between_products(joins: str) -> None:
    def narrow(package: Any) -> set[str]:
        flow.clear_default_session()
        config = flow.FunctionConfig()
        config.enable_auto_mixed_precision(True)

        @package.global_function("predict", config)
        def job(x: tp.Numpy.Placeholder((4, 4))) -> tp.Numpy:  # type: ignore[valid-type]
            w = package.get_variable("w", (4, 4), initializer=flow.ones_initializer())
            part = package.matmul(x, w)
            part = package.unpack(part, 2) if joins == "pack" else package.repeat(part, 2)
            return package.matmul(getattr(package, joins)(part, 2), w)

        np.testing.assert_allclose(job(np.ones((4, 4), np.float32)), 16.0 if joins == "pack" else 32.0)
        return {node.op.name for node in plan(job.graph, [job.graph.returns], native_ops=False).precision}

    steps = {"unpack", "pack"} if joins == "pack" else {"repeat", "acc"}
    assert narrow(flow) == {"matmul"} and narrow(sc) == {"matmul"} | steps


@pytest.mark.parametrize("package", [flow, sc], ids=["0.3.4", "0.6"])
@pytest.mark.parametrize("kind", ["gather", "batch_gather", "gather_nd", "dim_gather", "acc"])
def test_gradients_of_16_bits_that_add_up_are_rounded_once(package: Any, kind: str) -> None:
    steps = np.random.default_rng(1).uniform(0, 1, (1, 100)).astype(np.float16)
    gradients: list[np.ndarray] = []

    @package.global_function("train")
    def job(x: tp.Numpy.Placeholder((1, 100), dtype=flow.float16)) -> tp.Numpy:  # type: ignore[valid-type]
        w = package.get_variable("w", (1, 1), flow.float16, flow.ones_initializer())
        flow.watch_diff(w, lambda g: gradients.append(g.numpy()))
        zeros = flow.constant(0, flow.int32, (1, 100))
        if kind == "gather":
            many = flow.reshape(package.gather(w, flow.constant(0, flow.int32, (100,)), axis=0), (1, 100))
        elif kind == "batch_gather":
            many = package.gather(w, zeros, axis=1, batch_dims=1)
        elif kind == "gather_nd":
            many = package.gather_nd(w, flow.constant(0, flow.int32, (1, 100, 2)))
        elif kind == "dim_gather":
            many = package.dim_gather(w, 1, zeros)
        else:
            loss = package.acc(package.unpack(flow.reshape(x, (100, 1)), 100) * w, 100)
            package.optimizer.SGD(0.1).minimize(loss)
            return loss
        package.optimizer.SGD(0.1).minimize(x * many)
        return w

    made = job(steps)
    expected = steps.astype(np.float32).sum().astype(np.float16)
    if kind == "acc":
        assert made[0, 0] == expected
    else:
        assert gradients[0][0, 0] == expected


@pytest.mark.parametrize("package", [flow, sc], ids=["0.3.4", "0.6"])
def test_sums_of_16_bits_are_rounded_once(package: Any) -> None:
    x = np.random.default_rng(1).uniform(0, 1, (13, 10)).astype(np.float16)
    expected = x.astype(np.float32).sum().astype(np.float16)
    assert value(lambda x: package.math.reduce_sum(x), x)[0] == expected
    assert value(lambda x: package.math.reduce_mean(x), x)[0] == x.astype(np.float32).mean().astype(np.float16)
    gradients: list[np.ndarray] = []
    flow.clear_default_session()

    @package.global_function("train")
    def job(x: tp.Numpy.Placeholder((13, 10), dtype=flow.float16)) -> tp.Numpy:  # type: ignore[valid-type]
        w = package.get_variable("w", (1,), flow.float16, flow.ones_initializer())
        flow.watch_diff(w, lambda g: gradients.append(g.numpy()))
        package.optimizer.SGD(0.1).minimize(x * w)
        return w

    job(x)
    flow.sync_default_session()
    assert gradients[0] == expected


@pytest.mark.parametrize("name", ["int16", "uint16", "uint32", "uint64", "complex64", "complex128"])
def test_further_dtypes_are_fed_computed_with_and_returned(name: str) -> None:
    kind = getattr(sc, name)

    @sc.global_function()
    def job(
        x: tp.Numpy.Placeholder((3,), kind), unread: tp.Numpy.Placeholder((2,), kind), y: tp.Numpy.Placeholder((2,))
    ) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy, tp.Numpy]:
        return x, flow.identity(x), flow.reshape(x, (1, 3)), y

    x = np.array([3, 1, 2]).astype(name)
    for _ in range(2):
        results = job(x, x[:2], np.ones(2, np.float32))
        assert [r.dtype.name for r in results] == [name] * 3 + ["float32"]
        for result in results[:3]:
            np.testing.assert_array_equal(result.reshape(3), x)
