"""Boxes, polygons, and COCO annotations."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from oneflow.data import _mt19937, detection
from oneflow.data.coco import CocoAnnotations, CocoSource
from oneflow.errors import ArgumentError, DataError

BOXES = np.array([[1, 2, 5, 9], [0, 0, 9, 19]], np.float32)


def test_boxes() -> None:
    assert detection.flip_boxes(BOXES, 10, 20, 1).tolist() == [[4, 2, 8, 9], [0, 0, 9, 19]]
    assert detection.flip_boxes(BOXES, 10, 20, 16).tolist() == [[1, 10, 5, 17], [0, 0, 9, 19]]
    assert detection.flip_boxes(BOXES, 10, 20, 17).tolist() == [[4, 10, 8, 17], [0, 0, 9, 19]]
    assert (detection.flip_boxes(detection.flip_boxes(BOXES, 10, 20, 17), 10, 20, 17) == BOXES).all()
    assert (detection.flip_boxes(BOXES, 10, 20, 0) == BOXES).all()
    scaled = detection.scale_boxes(BOXES, np.array([2, 0.5], np.float32))
    assert scaled.tolist() == [[2, 1, 10, 4.5], [0, 0, 18, 9.5]] and scaled.dtype == np.float32
    with pytest.raises(ArgumentError, match="flip_code"):
        detection.flip_boxes(BOXES, 10, 20, 3)


def test_polygons() -> None:
    points = np.array([[1, 2], [3, 4]], np.float32)
    assert detection.flip_polygons(points, 10, 20, 1).tolist() == [[9, 2], [7, 4]]
    assert detection.flip_polygons(points, 10, 20, 17).tolist() == [[9, 18], [7, 16]]
    assert detection.scale_polygons(points, np.array([2, 3])).tolist() == [[2, 6], [6, 12]]


def square(x: int, y: int, size: int) -> list[list[int]]:
    return [[x, y], [x + size, y], [x + size, y + size], [x, y + size]]


def test_masks() -> None:
    polygons = [(square(1, 1, 4), 0, 0), (square(7, 1, 2), 1, 0), (square(2, 2, 3), 0, 1)]
    points = np.array([p for polygon, _, _ in polygons for p in polygon], np.float32) + 0.4
    index = np.array([(k, p, i) for polygon, p, i in polygons for k in range(4)], np.int32)
    mask = detection.polygons_to_mask(points, index, 12, 10)
    expected = np.zeros((2, 10, 12), np.int8)
    expected[0, 1:6, 1:6] = expected[0, 1:4, 7:10] = expected[1, 2:6, 2:6] = 1  # OpenCV's fill includes the outline
    assert mask.dtype == np.int8 and (mask == expected).all()
    half = np.array([[0.5, 0.5], [2.5, 0.5], [2.5, 2.5], [0.5, 2.5]], np.float32)  # rounded to even: 0 and 2
    assert detection.polygons_to_mask(half, index[:4], 4, 4).sum() == 9
    assert detection.polygons_to_mask(np.zeros((0, 2)), np.zeros((0, 3), int), 4, 4).shape == (0, 4, 4)
    ring = np.array([*square(0, 0, 8), *square(2, 2, 4)], np.float32)
    ring_index = np.array([(k % 4, k // 4, 0) for k in range(8)])
    assert detection.polygons_to_mask(ring, ring_index, 9, 9)[0, 4, 4] == 0  # a polygon in another of its instance is a hole
    for wrong in (-index, index + [0, 0, 90]):
        with pytest.raises(DataError):
            detection.polygons_to_mask(points, wrong, 12, 10)
    with pytest.raises(DataError, match="must hold integers, got float32"):
        detection.polygons_to_mask(points, index.astype(np.float32) + 0.5, 12, 10)
    with pytest.raises(DataError, match="not a number"):
        detection.polygons_to_mask(points * np.nan, index, 12, 10)
    with pytest.raises(DataError, match=r"2 instances of 30000 x 30000 pixels are more than the limit of 1073741820 bytes"):
        detection.polygons_to_mask(points, index, 30000, 30000)
    with pytest.raises(DataError, match="cannot have the size -1 x 5"):
        detection.polygons_to_mask(points, index, -1, 5)


# --- COCO


def write_coco(folder: Path, sizes: list[tuple[int, int]], **changes) -> tuple[Path, Path]:
    """Images of these (width, height), ids 100, 99, ...; two instances each, of categories 7 and 3."""
    images, annotations = [], []
    for i, (width, height) in enumerate(sizes):
        name = f"{i}.jpg"
        (folder / name).write_bytes(b"image %d" % i)
        images.append({"id": 100 - i, "file_name": name, "width": width, "height": height})
        for k, category in enumerate((7, 3)):
            box = [k, 1, width / 2, height / 2]
            polygon = [0, 0, 8, 0, 8, 8, 0, 8]
            entry = {
                "id": 10 * i + k,
                "image_id": 100 - i,
                "category_id": category,
                "bbox": box,
                "segmentation": [polygon] * (k + 1),
            }
            annotations.append({**entry, "iscrowd": 0})
    content = {"images": images, "annotations": annotations, "categories": [{"id": 7}, {"id": 3}, {"id": 12}], **changes}
    file = folder / "instances.json"
    file.write_text(json.dumps(content))
    return file, folder


def test_what_a_sample_holds(tmp_path: Path) -> None:
    data = CocoAnnotations(*write_coco(tmp_path, [(20, 10), (30, 40)]))
    assert [image.id for image in data.images] == [99, 100]
    sample = data.load(0)
    assert sample.image.tobytes() == b"image 1" and sample.image.dtype == np.int8
    assert (sample.image_id, sample.image_size) == (99, (40, 30))
    assert sample.boxes.tolist() == [[0, 1, 14, 20], [1, 1, 15, 20]] and sample.boxes.dtype == np.float32
    assert sample.labels.tolist() == [2, 1] and sample.labels.dtype == np.int32  # categories 3, 7, 12 are 1, 2, 3
    assert sample.polygons.shape == (12, 2) and sample.polygon_index.dtype == np.int32
    assert sample.polygon_index[[0, 3, 4, 8]].tolist() == [[0, 0, 0], [3, 0, 0], [0, 0, 1], [0, 1, 1]]


def test_images_are_read_after_the_program_has_changed_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, folder = write_coco(tmp_path, [(20, 10)])
    monkeypatch.chdir(tmp_path)
    data = CocoAnnotations(file, os.path.relpath(folder))
    monkeypatch.chdir("/")
    assert data.load(0).image.tobytes() == b"image 0"


def test_which_images_are_used(tmp_path: Path) -> None:
    def annotation(image: int, box: list[float], **more) -> dict:
        return {"id": image, "image_id": image, "category_id": 3, "bbox": box, "segmentation": [], "iscrowd": 0, **more}

    visible = [1, 1, 2] * 9 + [0, 0, 0] * 8
    annotations = [
        annotation(100, [1, 1, 5, 5]),
        annotation(99, [1, 1, 1, 50]),  # too narrow
        annotation(98, [1, 1, 5, 5], iscrowd=1),
        annotation(97, [1, 1, 5, 5], keypoints=visible),  # nine are visible
        annotation(96, [1, 1, 5, 5], keypoints=[1, 1, 2] * 10),
        annotation(95, [50, 1, 5, 5]),  # outside: the image stays, the instance does not
    ]
    file = write_coco(tmp_path, [(20, 20)] * 7, annotations=annotations)
    data = CocoAnnotations(*file)
    assert [image.id for image in data.images] == [95, 96, 100]
    outside = data.load(0)
    assert outside.boxes.shape == (0, 4) and outside.labels.shape == (0,) and outside.polygons.shape == (0, 2)
    assert len(CocoAnnotations(*file, remove_images_without_annotations=False)) == 7


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"images": None}, 'no list "images"'),
        ({"images": [{"id": 1}]}, 'image 0 has no "file_name"'),
        ({"annotations": [{"image_id": 100, "bbox": [1, 2], "category_id": 3}]}, 'annotation 0 has a "bbox" that is not'),
        ({"annotations": [{"image_id": 100, "bbox": [1, 2, 3, 4], "category_id": 5}]}, "category 5, which is not one of the 3"),
        (
            {"annotations": [{"image_id": 100, "bbox": [1, 2, 3, 4], "category_id": 3, "segmentation": [[1, 2, 3, 4, 5, 6]]}]},
            "more than 6, and has 6 numbers",
        ),
        ({"annotations": []}, "no image in it has an annotation"),
    ],
)
def test_annotations_that_are_refused(tmp_path: Path, changes, says) -> None:
    with pytest.raises(DataError, match=says):
        CocoAnnotations(*write_coco(tmp_path, [(20, 20)], **changes))


@pytest.mark.parametrize(
    "list_name, field, values",
    [
        ("images", "id", ["7", 2**63, [], True, 1.0]),
        ("images", "file_name", [5, "", "a\0b", []]),
        ("images", "height", [0, True, 10**9, 3.5, "5"]),
        ("annotations", "image_id", [None, {}, "x"]),
        ("annotations", "iscrowd", [[], 2, "no"]),
        ("annotations", "bbox", ["abcd", [1, 2, 3, "4"], [1, 2, 3, 1e999], [1, 2, 3, float("nan")], [1, 2, 3, 10**400], [1, 2]]),
        ("annotations", "category_id", [[], {}, "3", 3.0]),
        ("annotations", "segmentation", [[[0, 0, 8, 0, 8, 8, 0, "8"]], [[0, 0, 8, 0, 8, 8, 0, []]], [5], [[1e300] * 8]]),
        ("annotations", "keypoints", [5, ["x"] * 3, [1, 1], {"a": 1}]),
        ("categories", "id", ["x", None, 7, []]),
    ],
)
def test_every_field_is_checked(tmp_path: Path, list_name: str, field: str, values: list) -> None:
    file, folder = write_coco(tmp_path, [(20, 20)] * 3)
    good, kind = file.read_text(), {"images": "image", "annotations": "annotation", "categories": "category"}[list_name]
    for value in values:
        content = json.loads(good)
        content[list_name][1][field] = value
        file.write_text(json.dumps(content))
        with pytest.raises(DataError) as caught:
            CocoAnnotations(file, folder)
        text = str(caught.value)
        assert f"{kind} 1 has " in text and f"file       {file}" in text and f"field      {field!r}" in text, text
        content[list_name][1] = value
        file.write_text(json.dumps(content))
        with pytest.raises(DataError, match=rf"{kind} 1 has no"):
            CocoAnnotations(file, folder)


def test_images_and_their_ids(tmp_path: Path) -> None:
    file, folder = write_coco(tmp_path, [(20, 20)] * 3)
    content = json.loads(file.read_text())
    content["images"][2]["id"] = 100
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match='image 2 has the "id" of image 0'):
        CocoAnnotations(file, folder)


def test_annotations_that_are_nested_deeply_or_no_text(tmp_path: Path) -> None:
    file, folder = write_coco(tmp_path, [(20, 20)])
    for content, says in (
        (b'{"images": ' + b"[" * 200_000, "nested too deeply"),
        (b'{"images": ' + b'{"a":' * 200_000, "nested too deeply"),
        (b"\xff\xfe\xfd", "not JSON"),
        (b'{"images": ' + b"1" * 5000 + b"}", "not JSON"),
    ):
        file.write_bytes(content)
        with pytest.raises(DataError, match=says):
            CocoAnnotations(file, folder)


@pytest.mark.timeout(30)
def test_images_stay_below_their_folder(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(b"secret")

    def data(name: str, **options: bool) -> CocoAnnotations:
        file, _ = write_coco(folder, [(20, 20)])
        file.write_text(file.read_text().replace('"0.jpg"', json.dumps(name)))
        return CocoAnnotations(file, folder, **options)

    for name in ("/etc/passwd", "../secret", "deeper/../../secret", "..", "/dev/zero", str(tmp_path / "secret")):
        with pytest.raises(DataError, match=r'"file_name" that leads outside(.|\n)*allow_outside_image_dir'):
            data(name)
    (folder / "link").symlink_to("../secret")
    (folder / "up").symlink_to("..")
    for name in ("link", "up/secret"):
        with pytest.raises(DataError, match=r"(?s)symbolic link that leads outside.*image      100.*allow_outside_image_dir"):
            data(name).load(0)
    for name in ("link", "up/secret", "../secret", str(tmp_path / "secret")):
        assert data(name, allow_outside_image_dir=True).load(0).image.tobytes() == b"secret"
    assert data("./0.jpg").load(0).image.tobytes() == b"image 0"
    os.mkfifo(folder / "pipe")
    for name, says in (("pipe", "it is a FIFO"), (".", "it is a directory"), ("missing", "No such file")):
        with pytest.raises(DataError, match=says):
            data(name).load(0)
    with pytest.raises(DataError, match="it is a character device"):
        data("/dev/zero", allow_outside_image_dir=True).load(0)
    with open(folder / "sparse", "wb") as file:
        file.truncate(39 << 30)
    with pytest.raises(DataError, match="longer than 268435456 bytes"):
        data("sparse").load(0)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such file"):
        CocoAnnotations(tmp_path / "x.json", tmp_path)
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(DataError, match="it is not JSON"):
        CocoAnnotations(tmp_path / "x.json", tmp_path)
    source = CocoSource(CocoAnnotations(*write_coco(tmp_path, [(20, 20)] * 4)), 3, shuffle=False)
    (tmp_path / "2.jpg").unlink()
    for _ in range(2):
        with pytest.raises(DataError, match="(?s)cannot be read.*2.jpg.*image      98"):
            source.take()
    (tmp_path / "2.jpg").write_bytes(b"back")
    assert [s.image_id for s in source.take()] == [97, 98, 99]


@pytest.fixture
def ten(tmp_path: Path) -> CocoAnnotations:
    return CocoAnnotations(*write_coco(tmp_path, [(20, 20)] * 10))


def indices(source: CocoSource, count: int) -> list[int]:
    return [i for _ in range(count // source.batch_size) for i in source.next_batch()]


def test_order_over_several_instances(ten: CocoAnnotations) -> None:
    def one(shard: int, stride: bool) -> CocoSource:
        return CocoSource(ten, 1, shard=shard, shards=4, shuffle=False, stride_partition=stride)

    assert indices(one(0, True), 7) == [0, 4, 8, 2, 6, 0, 4]
    assert indices(one(3, True), 4) == [3, 7, 1, 5]
    assert indices(one(0, False), 6) == [0, 1, 2, 2, 3, 4]  # the examples of the description
    assert indices(one(3, False), 6) == [9, 0, 1, 1, 2, 3]


def test_shuffling_is_by_epoch_and_cumulative(ten: CocoAnnotations) -> None:
    source, order, expected = CocoSource(ten, 5, random_seed=3), list(range(10)), []
    for epoch in range(3):
        _mt19937.shuffle(order, 3 + epoch)
        expected += order
    assert indices(source, 30) == expected
    assert indices(CocoSource(ten, 5, random_seed=4), 30) != expected


def test_groups_of_equal_aspect(tmp_path: Path) -> None:
    tall, flat = (10, 25), (25, 10)
    data = CocoAnnotations(*write_coco(tmp_path, [flat, tall, tall, flat, tall, tall, flat][::-1]))  # ids count down
    source = CocoSource(data, 2, shuffle=False)
    # 0 waits for 3 while 1 and 2 wait as a batch; then that batch; 4 5; 6 with the next round's 0; ...
    assert [source.next_batch() for _ in range(5)] == [[0, 3], [1, 2], [4, 5], [6, 0], [1, 2]]
    plain = CocoSource(data, 2, shuffle=False, group_by_aspect_ratio=False)
    assert [plain.next_batch() for _ in range(2)] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("stride", [True, False])
def test_coco_sources_go_on_exactly(tmp_path: Path, stride: bool) -> None:
    sizes = [(20, 20), (10, 30), (30, 10), (10, 21), (12, 12)] * 3
    data = CocoAnnotations(*write_coco(tmp_path, sizes))
    for taken in (0, 1, 2, 7, 20):
        source = CocoSource(data, 4, shard=1, shards=2, random_seed=5, stride_partition=stride)
        for _ in range(taken):
            source.next_batch()
        state = json.loads(json.dumps(source.state()))
        expected = [source.next_batch() for _ in range(9)]
        other = CocoSource(data, 4, shard=1, shards=2, random_seed=77, stride_partition=stride)
        other.next_batch()
        other.restore(state)
        assert [other.next_batch() for _ in range(9)] == expected
    with pytest.raises(DataError, match="belongs to other data"):
        CocoSource(data, 4).restore(state)
    wrong = {
        "epoch": [10**12, -1, None, "1"],
        "at": [99, -1, 1.5],
        "waiting": [None, [[0]], [[0, [99]]], [[0, []]], [["x", [1]]]],
    }
    for key, value in [*((k, v) for k, values in wrong.items() for v in values), ("seed", [])]:
        before = other.state()
        with pytest.raises(DataError, match="saved position cannot be used"):
            other.restore({**state, key: value})
        assert other.state() == before
