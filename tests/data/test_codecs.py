"""BlobConf, codecs and preprocessors of ``decode_ofrecord``."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest

import oneflow as flow
from oneflow.core.record import record_pb2 as pb
from oneflow.data import (
    BlobConf,
    BytesListCodec,
    ImageCodec,
    ImagePreprocessor,
    ImageResizePreprocessor,
    NormByChannelPreprocessor,
    RawCodec,
    Records,
)
from oneflow.data.codecs import decode_blob
from oneflow.errors import ArgumentError, FeatureError, ImageError

RNG = np.random.default_rng(3)
COLOR = [RNG.integers(0, 256, (6, 8, 3), dtype=np.uint8) for _ in range(4)]
GRAY = [RNG.integers(0, 256, (6, 8), dtype=np.uint8) for _ in range(4)]


def photos(arrays: list[np.ndarray]) -> Records:
    return batch([pb.Feature(bytes_list=pb.BytesList(value=[cv2.imencode(".png", a)[1].tobytes()])) for a in arrays])


def batch(features: list[pb.Feature]) -> Records:
    return Records.of([pb.OFRecord(feature={"x": f}) for f in features])


def test_raw_codec() -> None:
    records = batch([pb.Feature(int32_list=pb.Int32List(value=v)) for v in ([1, 2, 3], [4, 5])])
    made = decode_blob(records, BlobConf("x", (3,), flow.float, RawCodec(auto_zero_padding=True)))
    assert made.dtype == np.float32 and made.tolist() == [[1, 2, 3], [4, 5, 0]]
    with pytest.raises(FeatureError, match="auto_zero_padding"):
        decode_blob(records, BlobConf("x", (3,), flow.int64, RawCodec()))
    assert decode_blob(records[:1], BlobConf("x", (3,), flow.float16, RawCodec())).dtype == np.float16


def test_bytes_list_codec() -> None:
    records = batch([pb.Feature(bytes_list=pb.BytesList(value=v)) for v in ([b"ab", b""], [b"xyz", b"\xff"])])
    made = decode_blob(records, BlobConf("x", (2, 4), flow.char, BytesListCodec()))
    assert made.tolist() == [[[97, 98, 0, 0], [0] * 4], [[120, 121, 122, 0], [-1, 0, 0, 0]]]
    with pytest.raises(FeatureError, match="(?s)does not fit.*record     1.*the longest of 3 bytes"):
        decode_blob(records, BlobConf("x", (2, 2), flow.int8, BytesListCodec()))


def test_image_codec() -> None:
    conf = BlobConf("x", (6, 8, 3), flow.float, ImageCodec())
    assert (decode_blob(photos(COLOR), conf) == np.float32(COLOR)).all()
    from_gray = decode_blob(photos(GRAY), conf)
    assert (from_gray == np.float32(GRAY)[..., None]).all()  # replicated
    to_gray = decode_blob(photos(COLOR), BlobConf("x", (6, 8, 1), flow.uint8, ImageCodec()))
    assert (to_gray[..., 0] == [cv2.cvtColor(c, cv2.COLOR_BGR2GRAY) for c in COLOR]).all()
    with pytest.raises(ImageError, match=r"(?s)6 x 8.*record     0.*ImageResizePreprocessor\(9, 5\)"):
        decode_blob(photos(COLOR), BlobConf("x", (5, 9, 3), flow.uint8, ImageCodec()))
    with pytest.raises(ImageError, match="(?s)cannot be decoded.*record     1"):
        data = photos(COLOR[:1])[0].replace(b"IHDR", b"IxxR")
        decode_blob(Records.of([photos(COLOR)[0], data]), conf)


def test_image_preprocessors_in_order() -> None:
    steps = [ImageResizePreprocessor(4, 5), ImagePreprocessor("BGR2RGB"), ImagePreprocessor("mirror")]
    conf = BlobConf("x", [5, 4, 3], flow.float, ImageCodec(steps), [NormByChannelPreprocessor((1.0, 2.0, 3.0), (4.0, 5.0, 6.0))])
    mirror = np.array([0, 1, 0, 1])
    resized = [cv2.resize(c, (4, 5), interpolation=cv2.INTER_LINEAR)[..., ::-1] for c in COLOR]
    expected = np.float32([r[:, ::-1] if m else r for r, m in zip(resized, mirror, strict=True)])
    with ThreadPoolExecutor(2) as pool:
        made = decode_blob(photos(COLOR), conf, mirror, pool=pool)
    np.testing.assert_allclose(made, (expected - np.float32([1, 2, 3])) / np.float32([4, 5, 6]), rtol=1e-6)
    assert conf.codec.mirrors and not ImageCodec().mirrors  # type: ignore[union-attr]
    with pytest.raises(ArgumentError, match="mirror="):
        decode_blob(photos(COLOR), conf)


def test_norm_by_channel() -> None:
    values = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    first = NormByChannelPreprocessor([1, 2, 3], [2, 4, 8], "channels_first").apply(values)
    assert (first[:, 1] == (values[:, 1] - 2) / 4).all()
    one = NormByChannelPreprocessor([5], data_format="no_channel")
    one.check((3, 4))
    NormByChannelPreprocessor([1.0]).check((5, 5, 1))  # the default std fits any number of channels
    assert (one.apply(values) == values - 5).all()


@pytest.mark.parametrize(
    "make, says",
    [
        (lambda: ImagePreprocessor("rotate"), '"bgr2rgb" or "mirror"'),
        (lambda: ImageResizePreprocessor(0, 5), r"width must be an int in \[1, 32767\]"),
        (lambda: ImageCodec([NormByChannelPreprocessor([1])]), "image_preprocessors takes"),
        (lambda: NormByChannelPreprocessor(1.0), "list or tuple"),
        (lambda: NormByChannelPreprocessor([1.0], data_format="NCHW"), "data_format"),
        (lambda: BlobConf("x", 5, flow.float, RawCodec()), "shape must be a list or tuple"),
        (lambda: BlobConf("x", (0,), flow.float, RawCodec()), "ints > 0"),
        (lambda: BlobConf("x", (5,), np.float32, RawCodec()), "flow.float32"),
        (lambda: BlobConf("x", (5,), flow.float, RawCodec), "codec must be"),
        (lambda: BlobConf("x", (5,), flow.float, ImageCodec()), "height, width and channels"),
        (lambda: BlobConf("x", (5, 5), flow.float, BytesListCodec()), "char or int8"),
        (lambda: BlobConf("x", (5, 5, 3), flow.float, ImageCodec(), [NormByChannelPreprocessor([1.0, 2.0])]), "3 channels need"),
        (lambda: BlobConf("x", (5, 5, 3), flow.float, ImageCodec(), [ImagePreprocessor("mirror")]), "ImageCodec"),
        (lambda: BlobConf(3, (5,), flow.float, RawCodec()), "name must be a str"),
    ],
)
def test_confs_that_are_refused(make, says) -> None:
    with pytest.raises(ArgumentError, match=says):
        make()
