"""Readers and decoders as ops of a job: order, values, errors, and that nothing depends on threads."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import cv2
import made_data
import numpy as np
import pytest
from campaign.mutations import Damage

import oneflow as flow
import oneflow.typing as tp
from oneflow.data.onerec import encode_example, write_onerec
from oneflow.errors import (
    ArgumentError,
    DataError,
    DtypeError,
    FeatureError,
    ImageError,
    OneFlowError,
    PartNotFoundError,
    RecordError,
)


def reading(folder: str, **options: Any) -> Any:
    @flow.global_function()
    def job() -> tp.Numpy:
        records = flow.data.ofrecord_reader(folder, data_part_num=3, **options)
        assert records.dtype == flow.record and records.shape == (options.get("batch_size", 1),)
        return flow.data.OFRecordRawDecoder(records, "i", shape=(), dtype=flow.int32)

    return job


def test_records_come_in_order_and_endlessly(tmp_path: Path) -> None:
    job = reading(made_data.numbered(tmp_path), batch_size=5)
    found = np.concatenate([job() for _ in range(11)])
    np.testing.assert_array_equal(found, np.arange(55) % 24)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("ahead", [0, 3])
def test_the_same_seed_gives_the_same_batches(tmp_path: Path, threads: int, ahead: int) -> None:
    folder = made_data.numbered(tmp_path)

    def batches() -> np.ndarray:
        flow.clear_default_session()
        flow.manual_seed(7)
        flow.config.compute_thread_pool_size(threads)
        flow.config.read_ahead_batches(ahead)
        job = reading(folder, batch_size=4, random_shuffle=True, shuffle_buffer_size=10, shuffle_after_epoch=True)
        return np.stack([job() for _ in range(12)])

    found = batches()
    np.testing.assert_array_equal(found, batches())
    source = flow.data.RecordSource(flow.data.part_paths(folder, 3), shuffle_after_epoch=True)
    assert sorted({*found.ravel().tolist()}) == list(range(24)) and not np.array_equal(found[0], np.arange(4))
    del source


def test_the_limit_of_a_record_is_a_setting(tmp_path: Path) -> None:
    folder = made_data.write(tmp_path, [[{"i": np.int32(1), "more": bytes(3 << 20)}]] * 3)
    with pytest.raises(ArgumentError, match="less than 2048"):
        flow.config.max_record_mbyte(2048)
    flow.config.max_record_mbyte(4)
    assert reading(folder)().tolist() == [1]
    flow.clear_default_session()
    flow.config.max_record_mbyte(2)
    advice = r"limit of 2097152 bytes(.|\n)*your line(.|\n)*test_readers\.py(.|\n)*max_record_mbyte"
    with pytest.raises(RecordError, match=advice) as caught:
        reading(folder)()
    assert (caught.value.file, caught.value.record, caught.value.offset) == (f"{folder}/part-0", 0, 0)


@pytest.mark.timeout(60)
def test_a_pipe_in_place_of_a_file_is_an_error_with_the_line_and_not_a_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "part-0")
    os.mkfifo(tmp_path / "tokens.idx")
    path = str(tmp_path / "part-0")

    def refused(reader: Any) -> None:
        flow.clear_default_session()

        @flow.global_function()
        def job() -> tp.ListListNumpy:
            return flow.tensor_buffer_to_tensor_list(reader(), (1,), flow.int8)

        with pytest.raises(DataError, match=r"your line(.|\n)*test_readers\.py"):
            job()

    refused(lambda: flow.data.OFRecordBytesDecoder(flow.data.ofrecord_reader(str(tmp_path)), "i"))
    refused(lambda: flow.data.onerec_reader([path]))
    refused(lambda: flow.data.coco_reader(path, str(tmp_path), 1, name="coco")[0])
    prefix = str(tmp_path / "tokens")
    refused(lambda: flow.tensor_to_tensor_buffer(flow.data.megatron_gpt_mmap_data_loader(prefix, 2, 2, 1), 1))


@pytest.mark.parametrize("seed", range(20))
def test_damaged_parts_raise_errors_of_the_library_with_the_line(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "part-0"
    made_data.write(tmp_path, [[{"i": np.int32(k), "encoded": made_data.encoded(made_data.photograph(k))} for k in range(3)]])
    path.write_bytes(Damage(np.random.default_rng(seed)).bytes(path.read_bytes()))

    @flow.global_function()
    def job() -> tuple[tp.Numpy, tp.Numpy]:
        records = flow.data.ofrecord_reader(str(tmp_path), batch_size=4)
        images, _, _ = flow.image.Resize(flow.data.OFRecordImageDecoder(records, "encoded"), target_size=(8, 8))
        return images, flow.data.OFRecordRawDecoder(records, "i", (), flow.int32)

    for _ in range(2):
        try:
            job()
        except DataError as error:
            assert "your line" in str(error) and "test_readers.py" in str(error)


def test_asynchronous_and_synchronous_calls_see_the_same(tmp_path: Path) -> None:
    folder, found = made_data.numbered(tmp_path), []

    @flow.global_function()
    def job() -> tp.Callback[tp.Numpy]:
        return flow.data.OFRecordRawDecoder(flow.data.ofrecord_reader(folder, 5, 3), "i", (1,), flow.float)

    for _ in range(30):
        job()(found.append)
    flow.sync_default_session()
    np.testing.assert_array_equal(np.concatenate(found)[:, 0], (np.arange(150) % 24).astype(np.float32))


@pytest.mark.parametrize(("numbers", "shape"), [([1_700_000_000_000_000], (1,)), ([2**49 + 1, 2**55], (2,))])
def test_integers_as_doubles(tmp_path: Path, numbers: list[int], shape: tuple[int, ...]) -> None:
    """Packed, each of these takes as many bytes as a double."""
    folder = made_data.write(tmp_path, [[{"x": np.array(numbers, np.int64)}]])

    @flow.global_function()
    def job() -> tp.Numpy:
        return flow.data.OFRecordRawDecoder(flow.data.ofrecord_reader(folder), "x", shape=shape, dtype=flow.float64)

    np.testing.assert_array_equal(job(), [np.array(numbers, np.float64)])


@pytest.mark.parametrize("threads", [1, 4])
def test_ops_of_samples_behind_ops_of_whole_batches(tmp_path: Path, threads: int) -> None:
    images = [made_data.photograph(i, 8, 10) for i in range(4)]
    parts = [[{"image": made_data.encoded(x, ".png"), "flip": np.array([i % 2])} for i, x in enumerate(images)]]
    folder = made_data.write(tmp_path, parts)
    flow.config.compute_thread_pool_size(threads)

    @flow.global_function()
    def job() -> tp.Numpy:
        records = flow.data.ofrecord_reader(folder, batch_size=4)
        pixels = flow.data.OFRecordImageDecoder(records, "image", color_space="BGR")
        flip = flow.cast(flow.data.OFRecordRawDecoder(records, "flip", shape=(), dtype=flow.int32), flow.int8)
        return flow.image.CropMirrorNormalize(pixels, flip, color_space="BGR", crop_h=8, crop_w=10, output_layout="NHWC")

    expected = [image[:, ::-1] if i % 2 else image for i, image in enumerate(images)]
    np.testing.assert_array_equal(job(), np.stack(expected).astype(np.float32))


def test_records_in_the_mirrored_view(tmp_path: Path) -> None:
    folder = made_data.numbered(tmp_path)
    flow.config.cpu_device_num(2)
    config = flow.FunctionConfig()
    config.default_logical_view(flow.scope.mirrored_view())

    @flow.global_function(function_config=config)
    def job() -> tp.ListNumpy:
        records = flow.data.ofrecord_loader(folder, batch_size=4, data_part_num=3)
        return flow.data.OFRecordRawDecoder(records, "i", (), flow.int32)

    np.testing.assert_array_equal(job(), [[0, 1], [16, 17]])  # parts 0 and 1, and part 2


def test_every_decoder(tmp_path: Path) -> None:
    images = [made_data.photograph(i, 20 + i, 30) for i in range(4)]
    data = [made_data.encoded(image, ".png") for image in images]
    parts = [[{"image": d, "floats": np.arange(3) + 0.5 * i, "ids": np.array([i, 2**40 + i]), "raw": bytes([i, 255])}]
             for i, d in enumerate(data)]  # fmt: skip
    folder = made_data.write(tmp_path, parts)

    @flow.global_function()
    def job() -> tuple[tp.Numpy, tp.Numpy, tp.Numpy, tp.Numpy, tp.ListListNumpy, tp.ListListNumpy, tp.ListListNumpy]:
        records = flow.data.ofrecord_loader(folder, batch_size=4, data_part_num=4)
        floats = flow.data.ofrecord_raw_decoder(records, "floats", (3,), flow.double)
        ids = flow.data.ofrecord_raw_decoder(records, "ids", (2,), flow.int64)
        raw = flow.data.ofrecord_raw_decoder(records, "raw", (2,), flow.uint8)
        padded = flow.data.ofrecord_raw_decoder(records, "floats", (4,), flow.float, auto_zero_padding=True)
        encoded = flow.data.ofrecord_bytes_decoder(records, "image")
        rgb = flow.data.ofrecord_image_decoder(records, "image", color_space="RGB")
        gray = flow.image.decode(encoded, dtype=flow.float, color_space="GRAY")
        lists = [flow.tensor_buffer_to_tensor_list(b, shape, dt) for b, shape, dt in (
            (encoded, (9999,), flow.uint8), (rgb, (30, 30, 3), flow.uint8), (gray, (30, 30, 1), flow.float))]  # fmt: skip
        return floats, ids, raw, padded, *lists

    floats, ids, raw, padded, encoded, rgb, gray = job()
    np.testing.assert_array_equal(floats, [np.arange(3) + 0.5 * i for i in range(4)])
    np.testing.assert_array_equal(ids, [[i, 2**40 + i] for i in range(4)])
    np.testing.assert_array_equal(raw, [[i, 255] for i in range(4)])
    np.testing.assert_array_equal(padded[:, 3], np.zeros(4))
    for i, image in enumerate(images):
        assert encoded[0][i].tobytes() == data[i]
        np.testing.assert_array_equal(rgb[0][i][0], image[..., ::-1])
        expected = cv2.imdecode(np.frombuffer(data[i], np.uint8), cv2.IMREAD_GRAYSCALE)[..., None].astype(np.float32)
        np.testing.assert_array_equal(gray[0][i][0], expected)


def test_random_crops_differ_from_call_to_call_and_repeat_with_the_seed(tmp_path: Path) -> None:
    folder = made_data.image_parts(tmp_path, 6)

    def crops(seed: int | None) -> list[list[np.ndarray]]:
        flow.clear_default_session()
        flow.manual_seed(1)

        @flow.global_function()
        def job() -> tp.ListListNumpy:
            records = flow.data.ofrecord_reader(folder, batch_size=6, data_part_num=3)
            images = flow.data.OFRecordImageDecoderRandomCrop(records, "encoded", seed=seed, random_area=[0.2, 0.6])
            return flow.tensor_buffer_to_tensor_list(images, (70, 80, 3), flow.uint8)

        return [[a[0] for a in job()[0]] for _ in range(2)]

    for seed in (None, 5):
        first, second = crops(seed)
        again, _ = crops(seed)
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
        assert any(a.shape != b.shape for a, b in zip(first, second, strict=True))
        whole = [
            cv2.imdecode(np.frombuffer(made_data.encoded(made_data.photograph(i, 60 + i, 80)), np.uint8), 1) for i in range(6)
        ]
        for part, image in zip(first, whole, strict=True):
            match = cv2.matchTemplate(image, part, cv2.TM_SQDIFF)
            assert match.min() < 1e-2 * part.size  # it is a window of its image


@pytest.mark.parametrize("threads", [1, 3])
def test_later_ops_name_the_record_of_a_bad_image(tmp_path: Path, threads: int) -> None:
    records = [{"encoded": made_data.encoded(made_data.photograph(i))} for i in range(24)]
    records[21]["encoded"] = b"no image"
    folder = made_data.write(tmp_path, [records[:16], records[16:]])
    flow.config.compute_thread_pool_size(threads)

    @flow.global_function()
    def job() -> tp.Numpy:
        encoded = flow.data.OFRecordBytesDecoder(flow.data.ofrecord_reader(folder, 12, 2), "encoded")
        return flow.image.Resize(flow.image.flip(flow.image.decode(encoded), 1), target_size=(8, 8))[0]

    job()
    with pytest.raises(ImageError, match=r"element 9: .*\n  file .*part-1\n  record     5, at byte \d+\n") as caught:
        job()
    assert (caught.value.file, caught.value.record, caught.value.feature) == (str(tmp_path / "part-1"), 5, "encoded")


def test_decode_and_crop_and_resize_at_once(tmp_path: Path) -> None:
    folder = made_data.image_parts(tmp_path, 6)

    @flow.global_function()
    def job() -> tuple[tp.Numpy, tp.Numpy]:
        records = flow.data.ofrecord_reader(folder, batch_size=6, data_part_num=3)
        encoded = flow.data.OFRecordBytesDecoder(records, "encoded")
        one = flow.data.ImageDecoderRandomCropResize(encoded, 32, 24, seed=3)
        images = flow.data.OFRecordImageDecoderRandomCrop(records, "encoded", color_space="RGB", seed=3)
        other, _, _ = flow.image.Resize(images, target_size=(32, 24), interpolation_type="bilinear")
        return one, other

    one, other = job()
    assert one.shape == (6, 24, 32, 3)
    np.testing.assert_array_equal(one, other)


def test_scaled_decoding_is_a_setting(tmp_path: Path) -> None:
    folder = made_data.image_parts(tmp_path, 6)

    def decoded() -> np.ndarray:
        @flow.global_function()
        def job() -> tp.Numpy:
            records = flow.data.ofrecord_reader(folder, batch_size=6, data_part_num=3)
            encoded = flow.data.OFRecordBytesDecoder(records, "encoded")
            return flow.data.ImageDecoderRandomCropResize(encoded, 8, 6, seed=3, random_area=(0.9, 1.0))

        return job()

    exact = decoded()
    flow.clear_default_session()
    flow.config.enable_scaled_jpeg_decoding(True)
    try:
        scaled = decoded()
    finally:
        flow.clear_default_session()
        flow.config.enable_scaled_jpeg_decoding(False)
    assert scaled.shape == exact.shape and (scaled != exact).any()
    assert np.abs(scaled.astype(int) - exact).mean() < 30  # the same windows of images that are mostly noise


def test_the_image_classification_reader(tmp_path: Path) -> None:
    folder = made_data.image_parts(tmp_path, 6)

    @flow.global_function()
    def job() -> tuple[tp.ListListNumpy, tp.Numpy]:
        images, labels = flow.data.ofrecord_image_classification_reader(folder, "encoded", "label", 4, 3, color_space="RGB")
        return flow.tensor_buffer_to_tensor_list(images, (70, 80, 3), flow.uint8), labels

    job()
    images, labels = job()
    np.testing.assert_array_equal(labels, [4, 5, 0, 1])
    assert images[0][1].shape == (1, 65, 80, 3) and labels.dtype == np.int32


def test_decode_ofrecord(tmp_path: Path) -> None:
    folder = made_data.image_parts(tmp_path, 6, size=lambda i: (20, 30))

    @flow.global_function()
    def job() -> tuple[tp.Numpy, tp.Numpy]:
        image = flow.data.BlobConf(
            "encoded", shape=(24, 24, 3), dtype=flow.float,
            codec=flow.data.ImageCodec([flow.data.ImagePreprocessor("bgr2rgb"), flow.data.ImageResizePreprocessor(24, 24)]),
            preprocessors=[flow.data.NormByChannelPreprocessor((123.68, 116.78, 103.94))],
        )  # fmt: skip
        label = flow.data.BlobConf("label", shape=(1,), dtype=flow.int32, codec=flow.data.RawCodec())
        return flow.data.decode_ofrecord(folder, (image, label), batch_size=4, data_part_num=3, name="decode")

    images, labels = job()
    np.testing.assert_array_equal(labels[:, 0], range(4))
    decoded = cv2.imdecode(np.frombuffer(made_data.encoded(made_data.photograph(1, 20, 30)), np.uint8), 1)[..., ::-1]
    expected = cv2.resize(decoded, (24, 24)).astype(np.float32) - np.array([123.68, 116.78, 103.94], np.float32)
    np.testing.assert_allclose(images[1], expected, atol=1e-4)


def test_a_random_batch_that_stays(tmp_path: Path) -> None:
    @flow.global_function()
    def job() -> tp.Numpy:
        return flow.data.decode_random((3, 2), flow.float, batch_size=4) * 2.0

    first = job()
    assert first.shape == (4, 3, 2) and 0 <= first.min() < first.max() < 2
    np.testing.assert_array_equal(first, job())


# --- mistakes


def test_what_is_missing_is_named_at_each_call_until_it_is_there(tmp_path: Path) -> None:
    folder = made_data.numbered(tmp_path)
    part = tmp_path / "part-1"
    data = part.read_bytes()
    part.unlink()
    job = reading(folder, batch_size=4)
    for _ in range(2):
        with pytest.raises(PartNotFoundError, match="part-1") as caught:
            job()
        assert "test_readers.py" in str(caught.value) and "OFRecordReader_0" in str(caught.value)
    part.write_bytes(data)
    np.testing.assert_array_equal(job(), range(4))


def test_a_damaged_part_is_told_at_the_call_that_needs_it(tmp_path: Path) -> None:
    folder = made_data.numbered(tmp_path)
    part = tmp_path / "part-1"
    data = part.read_bytes()
    part.write_bytes(data[:-3])
    job = reading(folder, batch_size=4)
    for i in range(3):
        np.testing.assert_array_equal(job(), np.arange(4) + 4 * i)
    for _ in range(2):
        with pytest.raises(RecordError) as caught:
            job()
        assert caught.value.file == str(part) and caught.value.record == 7 and "your line" in str(caught.value)
    part.write_bytes(data)
    np.testing.assert_array_equal(job(), np.arange(12, 16))


def test_a_record_without_the_feature(tmp_path: Path) -> None:
    parts: list[list[dict[str, Any]]] = [[{"i": np.int32(k)} for k in range(4)] for _ in range(3)]
    parts[1][2] = {"j": np.int32(9)}
    job = reading(made_data.write(tmp_path, parts), batch_size=4)
    job()
    with pytest.raises(FeatureError, match="Field i not found") as caught:
        job()
    assert (caught.value.record, caught.value.feature) == (2, "i") and str(caught.value.file).endswith("part-1")
    np.testing.assert_array_equal(job(), range(4))  # the batch is lost, the session is not


def test_labels_that_are_no_classes(tmp_path: Path) -> None:
    folder = made_data.write(tmp_path, [[{"label": np.int64(k)} for k in (1, 2, 0, 7, 1, 2**40)]])

    @flow.global_function(type="train")
    def job() -> tp.Numpy:
        records = flow.data.ofrecord_reader(folder, batch_size=2)
        labels = flow.data.OFRecordRawDecoder(records, "label", (1,), flow.int32)
        scores = flow.get_variable("w", (2, 3), initializer=flow.zeros_initializer())
        loss = flow.nn.sparse_softmax_cross_entropy_with_logits(flow.reshape(labels, (2,)), scores)
        flow.optimizer.SGD(flow.optimizer.PiecewiseConstantScheduler([], [0.1])).minimize(loss)
        return loss

    job()
    for record, text in ((3, "sample 1 of a batch has label 7, and there are 3 classes"), (5, "outside the range of int32")):
        with pytest.raises(FeatureError, match=text) as caught:
            job()
        assert (caught.value.record, caught.value.feature) == (record, "label") and "your line" in str(caught.value)
    job()


def test_corrupt_images(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    records = [{"encoded": made_data.encoded(made_data.photograph(i)), "label": np.int32(i)} for i in range(8)]
    records[2]["encoded"] = b"no image"
    records[7]["encoded"] = records[7]["encoded"][:100]
    folder = made_data.write(tmp_path, [records])

    def make() -> Any:
        @flow.global_function()
        def job() -> tuple[tp.Numpy, tp.Numpy]:
            read = flow.data.ofrecord_reader(folder, batch_size=4)
            images, _, _ = flow.image.Resize(flow.data.OFRecordImageDecoder(read, "encoded"), target_size=(8, 8))
            return images, flow.data.OFRecordRawDecoder(read, "label", (), flow.int32)

        return job

    job = make()
    with pytest.raises(ImageError, match="cannot be decoded") as caught:
        job()
    assert (caught.value.record, caught.value.feature) == (2, "encoded")
    flow.clear_default_session()
    flow.config.skip_corrupt_images(True)
    job = make()
    images, labels = job()
    np.testing.assert_array_equal(labels, [0, 1, 3, 3])  # its place is taken by the next good one
    np.testing.assert_array_equal(images[2], images[3])
    _, labels = job()
    np.testing.assert_array_equal(labels, [4, 5, 6, 4] if len(set(labels)) == 3 else [4, 5, 6, 7])
    assert flow.data.skipped_images() == 1 + (labels[3] == 4)
    assert f"file       {tmp_path / 'part-0'}; record     2, at byte" in caplog.text


@pytest.mark.parametrize(
    ("body", "error", "text"),
    [
        (lambda: flow.data.ofrecord_reader("x", batch_size=0), ArgumentError, "batch_size must be at least 1, got 0"),
        (lambda: flow.data.ofrecord_reader("x", data_part_num=0), ArgumentError, "data_part_num must be at least 1"),
        (lambda: flow.data.ofrecord_reader(3), ArgumentError, "ofrecord_dir must be a path, a non-empty str or os.PathLike"),
        (lambda: flow.data.ofrecord_reader("x", random_shuffle="yes"), ArgumentError, "random_shuffle must be True or False"),
        (lambda: flow.data.ofrecord_reader("x", part_name_prefix=1), ArgumentError, "part_name_prefix must be a str"),
        (lambda: flow.nn.relu(flow.data.ofrecord_reader("x")), DtypeError, "is of oneflow.record"),
        (lambda: flow.data.OFRecordRawDecoder(flow.constant(1, flow.int32, (2,)), "i", (), flow.int32), DtypeError,
         "input_blob must be of records"),
        (lambda: flow.data.OFRecordRawDecoder(flow.data.ofrecord_reader("x"), "", (), flow.int32), ArgumentError,
         "blob_name must be a str"),
        (lambda: flow.data.OFRecordRawDecoder(flow.data.ofrecord_reader("x"), "i", (), flow.float16), DtypeError,
         "must be one of"),
        (lambda: flow.data.OFRecordImageDecoder(flow.data.ofrecord_reader("x"), "i", "CMYK"), ArgumentError,
         "'BGR', 'RGB', 'GRAY'"),
        (lambda: flow.data.OFRecordImageDecoderRandomCrop(flow.data.ofrecord_reader("x"), "i", random_area=[1.0, 0.5]),
         ArgumentError, "0 < least <= most"),
        (lambda: flow.data.onerec_reader([]), ArgumentError, "files must be a list or tuple of paths"),
        (lambda: flow.data.decode_ofrecord("x", [3]), ArgumentError, "flow.data.BlobConf"),
        (lambda: flow.data.coco_reader("a", "b", 0), ArgumentError, "batch_size must be at least 1"),
    ],
)  # fmt: skip
def test_mistakes_are_told_when_the_job_is_built(body: Any, error: type[OneFlowError], text: str) -> None:
    @flow.global_function()
    def job() -> tp.Numpy:
        return body()

    with pytest.raises(error, match=text) as caught:
        job()
    assert "test_readers.py" in str(caught.value)


def test_onerec(tmp_path: Path) -> None:
    files = []
    for k in range(2):
        files.append(str(tmp_path / f"{k}.onerec"))
        examples = [{"id": np.array([3 * k + i]), "ragged": np.arange(i + 1, dtype=np.float32)} for i in range(3)]
        write_onerec(files[-1], [encode_example(example) for example in examples])

    @flow.global_function()
    def job() -> tuple[tp.Numpy, tp.ListNumpy]:
        examples = flow.data.onerec_reader(files, batch_size=4)
        ids = flow.data.OneRecDecoder(examples, "id", flow.int64, (1,))
        ragged = flow.data.onerec_decoder(examples, "ragged", flow.float, (4,), is_dynamic=True, batch_padding=(-1,))
        return ids, ragged + 1.0

    @flow.global_function()
    def padded() -> tp.Numpy:
        examples = flow.data.onerec_reader(files, batch_size=4)
        return flow.data.onerec_decoder(examples, "ragged", flow.float, (4,), batch_padding=(4,))

    @flow.global_function()
    def longest() -> tp.Numpy:
        examples = flow.data.onerec_reader(files, batch_size=4)
        return flow.data.onerec_decoder(examples, "ragged", flow.float, (4,), batch_padding=(-1,))

    np.testing.assert_array_equal(padded(), [[0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 2, 0], [0, 0, 0, 0]])
    with pytest.raises(FeatureError, match="another size"):
        longest()

    @flow.global_function()
    def beyond() -> tp.Numpy:
        examples = flow.data.onerec_reader(files, batch_size=4)
        return flow.data.onerec_decoder(examples, "ragged", flow.float, (4,), is_dynamic=True, batch_padding=(5,))

    with pytest.raises(ArgumentError, match=r"pads to 5 rows, more than shape \(4,\)"):
        beyond()

    ids, (ragged,) = job()
    np.testing.assert_array_equal(ids[:, 0], range(4))
    np.testing.assert_array_equal(ragged, [[1, 1, 1], [1, 2, 1], [1, 2, 3], [1, 1, 1]])
    ids, _ = job()
    np.testing.assert_array_equal(ids[:, 0], [4, 5, 0, 1])

    @flow.global_function()
    def wrong() -> tp.Numpy:
        return flow.data.OneRecDecoder(flow.data.onerec_reader(files, batch_size=4), "name", flow.int64, (1,))

    with pytest.raises(FeatureError, match="no tensor 'name'") as caught:
        wrong()
    assert caught.value.file == files[0] and caught.value.record == 0
