"""Image and detection ops in jobs, against OpenCV and NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import made_data
import numpy as np
import pytest

import oneflow as flow
import oneflow.typing as tp
from oneflow.errors import ArgumentError, DataError, DtypeError, ImageError, OneFlowError, ShapeError

PHOTOS = [made_data.photograph(i, 40 + 10 * i, 60 - 8 * i) for i in range(3)]
FLOATS = [p.astype(np.float32) for p in PHOTOS]
LIST = tp.ListListNumpy.Placeholder((3, 64, 64, 3), dtype=flow.uint8)
FLOAT_LIST = tp.ListListNumpy.Placeholder((3, 64, 64, 3), dtype=flow.float)
BOUND = (64, 64, 3)


def fed(arrays: list[np.ndarray]) -> list[list[np.ndarray]]:
    return [[a[np.newaxis] for a in arrays]]


def unpacked(lists: Any) -> list[np.ndarray]:
    return [a[0] for a in lists[0]]


def mapped(body: Any, arrays: list[np.ndarray], dtype: Any = flow.uint8, bound: Any = BOUND) -> list[np.ndarray]:
    """Applies an op from images to images."""

    @flow.global_function()
    def job(x: tp.ListListNumpy.Placeholder((len(arrays), *bound), dtype=dtype)) -> tp.ListListNumpy:
        return flow.tensor_buffer_to_tensor_list(body(flow.tensor_list_to_tensor_buffer(x)), bound, dtype)

    return unpacked(job(fed(arrays)))


def test_decode() -> None:
    data = [np.frombuffer(made_data.encoded(p, kind), np.int8) for p, kind in zip(PHOTOS, (".jpg", ".png", ".bmp"), strict=True)]

    @flow.global_function()
    def job(x: tp.ListListNumpy.Placeholder((3, 20000), dtype=flow.int8)) -> tp.ListListNumpy:
        images = flow.image_decode(flow.tensor_list_to_tensor_buffer(x), color_space="RGB")
        return flow.tensor_buffer_to_tensor_list(images, BOUND, flow.uint8)

    for found, encoded in zip(unpacked(job(fed(data))), data, strict=True):
        np.testing.assert_array_equal(found, cv2.imdecode(encoded.view(np.uint8), 1)[..., ::-1])


@pytest.mark.parametrize(("dtype", "most"), [(flow.float, 65535), (flow.uint8, 255)])
def test_decode_keeps_16_bits(dtype: Any, most: int) -> None:
    image = np.array([[256, 65535], [300, 128]], np.uint16)
    data = [np.frombuffer(made_data.encoded(image, ".png"), np.int8)]

    @flow.global_function()
    def job(x: tp.ListListNumpy.Placeholder((1, 20000), dtype=flow.int8)) -> tp.ListListNumpy:
        images = flow.image.decode(flow.tensor_list_to_tensor_buffer(x), dtype=dtype, color_space="GRAY")
        return flow.tensor_buffer_to_tensor_list(images, (2, 2, 1), dtype)

    np.testing.assert_array_equal(unpacked(job(fed(data)))[0][..., 0], np.minimum(image, most))


def test_resize_by_its_op_type_gives_the_size_second() -> None:
    @flow.global_function()
    def job(x: LIST) -> tuple[tp.Numpy, tp.Numpy]:
        op = flow.user_op_builder("r").Op("image_resize_keep_aspect_ratio").Input("in", [flow.tensor_list_to_tensor_buffer(x)])
        op = op.Output("out").Output("size").Output("scale").Attr("target_size", 32)
        _, size, scale = op.Build().InferAndTryRun().RemoteBlobList()
        return size, scale

    size, scale = job(fed(PHOTOS))
    assert size.dtype == np.int32 and scale.dtype == np.float32
    np.testing.assert_allclose(size, [np.array(p.shape[1::-1]) for p in PHOTOS] * scale, atol=0.6)


def test_the_limit_of_pixels_is_a_setting() -> None:
    data = [np.frombuffer(made_data.encoded(PHOTOS[0]), np.int8)]

    def decoding(limit: int, body: Any) -> Any:
        flow.clear_default_session()
        flow.config.max_image_pixels(limit)

        @flow.global_function()
        def job(x: tp.ListListNumpy.Placeholder((1, 20000), dtype=flow.int8)) -> tp.ListListNumpy:
            images = body(flow.image_decode(flow.tensor_list_to_tensor_buffer(x)))
            return flow.tensor_buffer_to_tensor_list(images, BOUND, flow.uint8)

        return job(fed(data))

    assert unpacked(decoding(2400, lambda images: images))[0].shape == (40, 60, 3)
    advice = r"(.|\n)*your line(.|\n)*test_images\.py(.|\n)*try .*flow\.config\.max_image_pixels"
    with pytest.raises(ImageError, match=r"60 x 40 pixels, more than the limit of 2399" + advice):
        decoding(2399, lambda images: images)
    with pytest.raises(ImageError, match=r"would become 300 x 200 pixels, more than the limit of 2400" + advice):
        decoding(2400, lambda images: flow.image.target_resize(images, target_size=200)[0])


@pytest.mark.parametrize("interpolation", ["bilinear", "nn", "bicubic", "area", "auto"])
def test_resize_to_one_size(interpolation: str) -> None:
    @flow.global_function()
    def job(x: LIST) -> tuple[tp.Numpy, tp.Numpy, tp.Numpy]:
        images = flow.tensor_list_to_tensor_buffer(x)
        made, scale, nothing = flow.image.Resize(images, target_size=(48, 56), interpolation_type=interpolation)
        assert nothing is None and made.shape == (3, 56, 48, 3) and made.dtype == flow.uint8
        floats, _, _ = flow.image_resize(images, target_size=[48, 56], dtype=flow.float, interpolation_type=interpolation)
        return made, scale, floats

    made, scale, floats = job(fed(PHOTOS))
    flags = {"bilinear": cv2.INTER_LINEAR, "nn": cv2.INTER_NEAREST, "bicubic": cv2.INTER_CUBIC, "area": cv2.INTER_AREA}
    for i, image in enumerate(PHOTOS):
        grows = 48 * 56 >= image.shape[0] * image.shape[1]
        flag = flags.get(interpolation, cv2.INTER_LINEAR if grows else cv2.INTER_AREA)
        expected = cv2.resize(image, (48, 56), interpolation=flag)
        np.testing.assert_array_equal(made[i], expected)
        np.testing.assert_array_equal(floats[i], expected.astype(np.float32))
        np.testing.assert_allclose(scale[i], [48 / image.shape[1], 56 / image.shape[0]], rtol=1e-6)


def test_resize_that_keeps_the_proportions() -> None:
    @flow.global_function()
    def job(x: LIST) -> tuple[tp.ListListNumpy, tp.ListNumpy, tp.ListNumpy, tp.Numpy]:
        images = flow.tensor_list_to_tensor_buffer(x)
        made, scale, size = flow.image.Resize(images, target_size=32, max_size=44, keep_aspect_ratio=True)
        again, new_size, _ = flow.image_target_resize(images, target_size=32, max_size=44)
        other, _, longer = flow.image.Resize(images, target_size=50, min_size=40, keep_aspect_ratio=True, resize_side="longer")
        return flow.tensor_buffer_to_tensor_list(made, BOUND, flow.uint8), scale, new_size, longer

    made, scale, size, longer = job(fed(PHOTOS))
    for i, image in enumerate(PHOTOS):
        h, w = image.shape[:2]
        low, high = min(h, w), max(h, w)
        target = (32, round(32 * high / low))
        if target[1] > 44:
            target = (round(44 * low / high), 44)
        expected = target if w <= h else target[::-1]
        assert tuple(size[0][i]) == expected and made[0][i].shape[1:3] == expected[::-1]
        np.testing.assert_allclose(scale[0][i], [expected[0] / w, expected[1] / h], rtol=1e-6)
        side = (max(round(50 * low / high), 40), 50) if round(50 * low / high) >= 40 else (40, round(40 * high / low))
        assert tuple(longer[i]) == (side if w <= h else side[::-1])


def test_older_spellings_of_resize_give_the_image_alone() -> None:
    @flow.global_function()
    def job(x: LIST) -> tuple[tp.Numpy, tp.Numpy, tp.ListListNumpy]:
        images = flow.tensor_list_to_tensor_buffer(x)
        one = flow.image.Resize(images, color_space="RGB", interp_type="Linear", resize_x=20, resize_y=30)
        two = flow.image.Resize(images, target_size=(20, 30), color_space="BGR", interpolation_type="bilinear")
        kept = flow.image.Resize(images, resize_shorter=30, color_space="RGB")
        return one, two, flow.tensor_buffer_to_tensor_list(kept, BOUND, flow.uint8)

    one, two, kept = job(fed(PHOTOS))
    assert one.shape == (3, 30, 20, 3)
    np.testing.assert_array_equal(one, two)
    assert [min(a.shape[1:3]) for a in kept[0]] == [30, 30, 30]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dense", [False, True])
def test_crop_mirror_normalize(layout: str, dense: bool) -> None:
    photos = [made_data.photograph(i, 40, 50) for i in range(3)]
    mean, std = (10.0, 20.0, 30.0), (2.0, 3.0, 4.0)

    @flow.global_function()
    def job(
        x: tp.ListListNumpy.Placeholder((3, 40, 50, 3), dtype=flow.uint8),
        array: tp.ListNumpy.Placeholder((3, 40, 50, 3), dtype=flow.uint8),
        mirror: tp.Numpy.Placeholder((3,), dtype=flow.int8),
    ):
        images = array if dense else flow.tensor_list_to_tensor_buffer(x)
        return flow.image.CropMirrorNormalize(
            images, mirror, color_space="RGB", output_layout=layout, crop_h=24, crop_w=30, crop_pos_y=0.25, crop_pos_x=1.0,
            mean=mean, std=std,
        )  # fmt: skip

    mirror = np.array([0, 1, 0], np.int8)
    found = job(fed(photos), [np.stack(photos)], mirror).get().numpy()
    for i, image in enumerate(photos):
        part = image[4:28, 20:50].astype(np.float64)
        part = part[:, ::-1] if mirror[i] else part
        expected = (part - mean) / std
        np.testing.assert_allclose(found[i], expected.transpose(2, 0, 1) if layout == "NCHW" else expected, atol=1e-4)


def test_flip_normalize_and_random_crop() -> None:
    codes = np.array([1, 16, 17], np.int8)

    @flow.global_function()
    def job(x: LIST, c: tp.Numpy.Placeholder((3,), dtype=flow.int8)) -> tp.ListListNumpy:
        flipped = flow.image_flip(flow.tensor_list_to_tensor_buffer(x), c)
        return flow.tensor_buffer_to_tensor_list(flipped, BOUND, flow.uint8)

    for code, image, found in zip(codes, PHOTOS, unpacked(job(fed(PHOTOS), codes)), strict=True):
        expected = image[:, ::-1] if code & 1 else image
        np.testing.assert_array_equal(found, expected[::-1] if code & 16 else expected)
    flow.clear_default_session()
    constant = mapped(lambda x: flow.image.flip(x, flow.constant(1, flow.int8, (3,))), PHOTOS)  # an op of the device, run here
    np.testing.assert_array_equal(constant[2], PHOTOS[2][:, ::-1])
    flow.clear_default_session()
    mean, std = (102.9, 115.9, 122.7), (57.4, 57.1, 58.4)
    for image, found in zip(FLOATS, mapped(lambda x: flow.image.normalize(x, std, mean), FLOATS, flow.float), strict=True):
        np.testing.assert_allclose(found, (image - np.float32(mean)) / np.float32(std), rtol=1e-5, atol=1e-6)
    flow.clear_default_session()
    for image, found in zip(PHOTOS, mapped(lambda x: flow.image_random_crop(x, seed=2), PHOTOS), strict=True):
        assert cv2.matchTemplate(image, found, cv2.TM_SQDIFF).min() < 1e-2 * found.size


def test_batch_align_compiles_once_a_size_and_feeds_a_step() -> None:
    @flow.global_function()
    def job(x: FLOAT_LIST) -> tuple[tp.ListNumpy, tp.ListNumpy]:
        batch = flow.image_batch_align(flow.tensor_list_to_tensor_buffer(x), BOUND, flow.float, alignment=16)
        assert batch.is_dynamic and batch.shape == (3, *BOUND)
        return batch, flow.math.relu(batch) * 2.0

    for photos in (FLOATS, [f[:20, :10] for f in FLOATS], FLOATS):
        (batch,), (doubled,) = job(fed(photos))
        height, width = (-(-max(p.shape[axis] for p in photos) // 16) * 16 for axis in (0, 1))
        assert batch.shape == (3, height, width, 3)
        for place, image in zip(batch, photos, strict=True):
            np.testing.assert_array_equal(place[: image.shape[0], : image.shape[1]], image)
            assert not place[image.shape[0] :].any() and not place[:, image.shape[1] :].any()
        np.testing.assert_array_equal(doubled, 2 * batch)


BOXES = [np.array([[1, 2, 11, 22], [5, 6, 7, 8]], np.float32), np.array([[0, 0, 30, 20]], np.float32)]
SIZES = np.array([[40, 50], [60, 30]], np.int32)  # width, height


def _on_elements(body: Any, elements: list[np.ndarray], width: int) -> list[np.ndarray]:
    @flow.global_function()
    def job(
        x: tp.ListListNumpy.Placeholder((2, 9, width)),
        size: tp.ListNumpy.Placeholder((2, 2), dtype=flow.int32),
        scale: tp.ListNumpy.Placeholder((2, 2)),
    ) -> tp.ListListNumpy:
        made = body(flow.tensor_list_to_tensor_buffer(x), size, scale)
        return flow.tensor_buffer_to_tensor_list(made, (9, width), flow.float)

    return unpacked(job(fed(elements), [SIZES], [np.array([[2, 3], [0.5, 4]], np.float32)]))


def test_boxes() -> None:
    found = _on_elements(lambda b, size, _: flow.object_bbox_flip(b, size, 1), BOXES, 4)
    for boxes, (w, _), mine in zip(BOXES, SIZES, found, strict=True):
        np.testing.assert_array_equal(mine, np.stack([w - boxes[:, 2] - 1, boxes[:, 1], w - boxes[:, 0] - 1, boxes[:, 3]], 1))
    flow.clear_default_session()
    found = _on_elements(lambda b, size, scale: flow.detection.object_bbox_scale(b, scale), BOXES, 4)
    np.testing.assert_array_equal(found[0], BOXES[0] * [2, 3, 2, 3])
    np.testing.assert_array_equal(found[1], BOXES[1] * [0.5, 4, 0.5, 4])


def test_polygons() -> None:
    polygons = [np.array([[3, 4], [20, 4], [20, 30], [3, 30]], np.float32), np.array([[1, 1], [9, 1], [9, 9]], np.float32)]
    found = _on_elements(lambda p, size, _: flow.object_segmentation_polygon_flip(p, size, 17), polygons, 2)
    for points, size, mine in zip(polygons, SIZES, found, strict=True):
        np.testing.assert_array_equal(mine, size - points)
    flow.clear_default_session()
    found = _on_elements(lambda p, _, scale: flow.object_segmentation_polygon_scale(p, scale), polygons, 2)
    np.testing.assert_array_equal(found[0], polygons[0] * [2, 3])
    flow.clear_default_session()

    @flow.global_function()
    def job(
        x: tp.ListListNumpy.Placeholder((2, 9, 2)),
        index: tp.ListListNumpy.Placeholder((2, 9, 3), dtype=flow.int32),
        size: tp.Numpy.Placeholder((2, 2), dtype=flow.int32),
    ) -> tp.ListListNumpy:
        masks = flow.object_segmentation_polygon_to_mask(
            flow.tensor_list_to_tensor_buffer(x), flow.tensor_list_to_tensor_buffer(index), size
        )  # fmt: skip
        return flow.tensor_buffer_to_tensor_list(masks, (1, 64, 64), flow.int8)

    numbers = [np.array([[k, 0, 0] for k in range(len(p))], np.int32) for p in polygons]
    masks = unpacked(job(fed(polygons), fed(numbers), SIZES))
    for points, (w, h), mask in zip(polygons, SIZES, masks, strict=True):
        expected = cv2.fillPoly(np.zeros((h, w), np.uint8), [points.astype(np.int32)], 1)
        np.testing.assert_array_equal(mask[0], expected)


def test_coco_reader(tmp_path: Path) -> None:
    annotations, folder = made_data.coco(tmp_path)

    @flow.global_function()
    def job():
        image, image_id, image_size, boxes, labels, polygons, index = flow.data.coco_reader(
            annotations, folder, 2, shuffle=False, name="coco"
        )
        images = flow.image.decode(image, dtype=flow.uint8)
        masks = flow.detection.object_segmentation_polygon_to_mask(polygons, index, flow.reverse(image_size, axis=1))
        lists = [(images, (64, 64, 3), flow.uint8), (boxes, (9, 4), flow.float), (labels, (9,), flow.int32),
                 (masks, (3, 64, 64), flow.int8)]  # fmt: skip
        made = [flow.tensor_buffer_to_tensor_list(*arguments) for arguments in lists]
        return {"id": image_id, "size": image_size, "image": made[0], "boxes": made[1], "labels": made[2], "masks": made[3]}

    found = job().get()
    assert found["id"].numpy().tolist() == [100, 102] and found["id"].dtype == np.int64  # one aspect group: height // width == 1
    assert found["size"].numpy().tolist() == [[64, 48], [64, 48]]
    (images,), (boxes,), (labels,), (masks,) = (found[k].numpy_lists() for k in ("image", "boxes", "labels", "masks"))
    for image, box, label, mask in zip(images, boxes, labels, masks, strict=True):
        x1, y1, x2, y2 = box[0][0].astype(int)
        assert label[0].tolist() == [1]
        assert (image[0][y1 : y2 + 1, x1 : x2 + 1] == (0, 0, 255)).all() and mask[0][0][y1 : y2 + 1, x1 : x2 + 1].all()


def test_a_skipped_image_of_coco_takes_its_boxes_along(tmp_path: Path) -> None:
    annotations, images = made_data.coco(tmp_path)
    damaged = Path(images) / "2.png"
    damaged.write_bytes(damaged.read_bytes()[:60])
    flow.config.skip_corrupt_images(True)

    @flow.global_function()
    def job() -> tuple[tp.Numpy, tp.Numpy, tp.ListListNumpy]:
        image, ids, _, boxes, *_ = flow.data.coco_reader(annotations, images, 4, shuffle=False, group_by_aspect_ratio=False)
        pixels, _, _ = flow.image.Resize(flow.image.decode(image), target_size=(16, 16))
        return pixels, ids, flow.tensor_buffer_to_tensor_list(boxes, (4, 4), flow.float)

    pixels, ids, boxes = job()
    np.testing.assert_array_equal(pixels[2], pixels[3])
    np.testing.assert_array_equal(ids, [100, 101, 103, 103])
    np.testing.assert_array_equal(boxes[0][2], boxes[0][3])
    np.testing.assert_array_equal(job()[1], [104, 105, 106, 107])


def test_mistakes_of_a_program_are_not_skipped() -> None:
    flow.config.skip_corrupt_images(True)
    with pytest.raises(ImageError, match="none of the 3 images of the batch can be used") as caught:
        mapped(lambda x: flow.image.decode(x), [np.zeros(9, np.uint8)] * 3, bound=(9,))
    assert "image_decode" in str(caught.value) and "test_images.py" in str(caught.value)


def test_a_bad_image_of_coco_is_named(tmp_path: Path) -> None:
    annotations, folder = made_data.coco(tmp_path)
    bad = sorted(Path(folder).iterdir())[0]
    bad.write_bytes(b"no image")

    @flow.global_function()
    def job() -> tp.Numpy:
        image = flow.data.coco_reader(annotations, folder, 2, shuffle=False, group_by_aspect_ratio=False, name="coco")[0]
        return flow.image.Resize(flow.image.decode(image), target_size=(8, 8))[0]

    with pytest.raises(ImageError, match="cannot be decoded") as caught:
        for _ in range(9):
            job()
    assert caught.value.file == str(bad) and caught.value.record is None


# --- mistakes


@pytest.mark.parametrize(
    ("body", "error", "text"),
    [
        (lambda x: flow.image.Resize(x, target_size=224), ArgumentError, r"target_size must be \(width, height\), got 224"),
        (lambda x: flow.image.Resize(x), ArgumentError, "target_size must be"),
        (lambda x: flow.image.Resize(x, target_size=(2**30, 2**30)), ShapeError, "its result would have shape"),
        (lambda x: flow.image.normalize(x, (1.0,), (float("nan"),)), ArgumentError, "must hold finite numbers"),
        (lambda x: flow.image.Resize(x, target_size=(2, 0)), ArgumentError, "every size of target_size must be at least 1"),
        (lambda x: flow.image.Resize(x, target_size=(2, 2), channels=4), ArgumentError, "channels must be 1 or 3"),
        (lambda x: flow.image.Resize(x, target_size=(2, 2), dtype=flow.int32), DtypeError, "dtype must be one of flow.uint8"),
        (lambda x: flow.image.Resize(x, target_size=(2, 2), interpolation_type="lanczos"), ArgumentError, "interpolation_type"),
        (lambda x: flow.image.Resize(x, target_size=(2, 2), keep_aspect_ratio=True), ArgumentError, "must be an int"),
        (lambda x: flow.image.target_resize(x, 32, max_size=16), ArgumentError, "max_size must be 0 or at least"),
        (lambda x: flow.image.target_resize(x, 32, resize_side="wider"), ArgumentError, "'shorter', 'longer'"),
        (lambda x: flow.image.CropMirrorNormalize(x), ArgumentError, "crop_h and crop_w must be > 0"),
        (lambda x: flow.image.CropMirrorNormalize(x, crop_h=8, crop_w=8, mean=[1.0, 2.0]), ArgumentError, "have 1 or 3"),
        (lambda x: flow.image.CropMirrorNormalize(x, crop_h=8, crop_w=8, std=[0.0]), ArgumentError, "std must not be 0"),
        (lambda x: flow.image.CropMirrorNormalize(x, crop_h=8, crop_w=8, output_layout="HWC"), ArgumentError, "'NCHW', 'NHWC'"),
        (lambda x: flow.image.CropMirrorNormalize(x, flow.random.CoinFlip(2), crop_h=8, crop_w=8), ShapeError, "int8 .3."),
        (lambda x: flow.image.CropMirrorNormalize(flow.zeros((2, 8, 8, 3))), NotImplementedError, "must be uint8"),
        (lambda x: flow.image.flip(x, 3), ArgumentError, "flip_code must be 0"),
        (lambda x: flow.image.normalize(x, (1.0,), (1.0, 2.0)), ArgumentError, "mean must have 1 entries"),
        (lambda x: flow.image.batch_align(x, (8, 8, 3), flow.float, 3), ArgumentError, "a power of two, got 3"),
        (lambda x: flow.image.decode(flow.zeros((2,), flow.uint8)), DtypeError, "must be of tensor buffers"),
        (lambda x: flow.image.random_crop(x, num_attempts=0), ArgumentError, "num_attempts must be at least 1"),
        (lambda x: flow.object_bbox_flip(x, flow.zeros((3, 2)), 1), DtypeError, "image_size must be int32"),
        (lambda x: flow.object_bbox_scale(x, flow.zeros((4, 2))), ShapeError, r"scale must be \[3, 2\]"),
    ],
)  # fmt: skip
def test_mistakes_are_told_when_the_job_is_built(body: Any, error: type[Exception], text: str) -> None:
    @flow.global_function()
    def job(x: LIST) -> None:
        body(flow.tensor_list_to_tensor_buffer(x))

    with pytest.raises(error, match=text) as caught:
        job(fed(PHOTOS))
    assert isinstance(caught.value, OneFlowError) and "test_images.py" in str(caught.value)


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
@pytest.mark.parametrize(("width", "body"), [
    (4, lambda x, size, scale: flow.object_bbox_scale(x, scale)),
    (4, lambda x, size, scale: flow.object_bbox_flip(x, size, 17)),
    (2, lambda x, size, scale: flow.object_segmentation_polygon_scale(x, scale)),
    (2, lambda x, size, scale: flow.object_segmentation_polygon_flip(x, size, 17)),
])  # fmt: skip
def test_boxes_and_polygons_of_integers_are_refused(width: int, body: Any, dtype: str) -> None:
    kind = getattr(flow, dtype)  # a scale of 1.5 would become 1, silently

    @flow.global_function()
    def job(x: tp.Numpy.Placeholder((1, 2, width), kind)) -> tp.Numpy:
        size, scale = flow.constant(300, flow.int32, (1, 2)), flow.constant(1.5, flow.float32, (1, 2))
        made = body(flow.tensor_to_tensor_buffer(x, 2), size, scale)
        return flow.tensor_buffer_to_tensor(made, kind, (2, width))

    with pytest.raises(DataError, match=f"element 0: must be .* of floats, got {dtype}"):
        job(np.ones((1, 2, width), dtype))


def test_mistakes_of_a_call_name_the_image() -> None:
    @flow.global_function()
    def crop(x: LIST) -> tp.Numpy:
        return flow.image.CropMirrorNormalize(flow.tensor_list_to_tensor_buffer(x), crop_h=44, crop_w=44)

    @flow.global_function()
    def boxes(x: tp.ListListNumpy.Placeholder((2, 9, 3)), scale: tp.Numpy.Placeholder((2, 2))) -> tp.ListListNumpy:
        made = flow.object_bbox_scale(flow.tensor_list_to_tensor_buffer(x), scale)
        return flow.tensor_buffer_to_tensor_list(made, (9, 4), flow.float)

    good = [p for p in PHOTOS if min(p.shape[:2]) >= 44][:1]
    with pytest.raises(ImageError, match="element 2: .* smaller than the crop of 44 x 44"):
        crop(fed([good[0], good[0], made_data.photograph(0, 40, 60)]))
    assert crop(fed([good[0]] * 3)).shape == (3, 3, 44, 44)
    with pytest.raises(DataError, match=r"element 0: must be boxes \(k, 4\)"):
        boxes(fed([np.zeros((2, 3), np.float32)] * 2), np.ones((2, 2), np.float32))
