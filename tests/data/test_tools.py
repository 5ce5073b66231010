"""``python -m oneflow.data`` and its Python functions: packing, showing, verifying, made data."""

from __future__ import annotations

import csv
import json
import os
import signal
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import cv2
import numpy as np
import pytest

from oneflow.core.record import record_pb2 as pb
from oneflow.data import crc32c, inputs, inspect, pack, samples
from oneflow.data.__main__ import main
from oneflow.data.coco import CocoAnnotations, CocoSource
from oneflow.data.decoders import decode_bytes, decode_image, decode_raw
from oneflow.data.parts import part_paths, read_part
from oneflow.data.records import Records
from oneflow.errors import ArgumentError, DataError, RecordError


def all_of(folder: Path, parts: int) -> Records:
    return Records.concat([r for p in part_paths(folder, parts) for r in read_part(p)])


def photo(value: int) -> bytes:
    return cv2.imencode(".png", np.full((3, 4, 3), value, np.uint8))[1].tobytes()


# --- packing


def test_images_with_a_label_file(tmp_path: Path, capsys) -> None:
    folder = tmp_path / "images"
    (folder / "deep").mkdir(parents=True)
    names = ["a.png", "deep/b c.png", "d.png", "e.png"]
    for i, name in enumerate(names):
        (folder / name).write_bytes(photo(i))
    labels = tmp_path / "labels.txt"
    labels.write_text("# comment\na.png 5\ndeep/b c.png\t-2\n\nd.png,7\ne.png   3\n")
    target = tmp_path / "train"
    assert main(["pack", "images", str(folder), str(target), "--labels", str(labels), "--parts", "3", "--quiet"]) == 0
    assert "4 records in 3 parts" in capsys.readouterr().out
    batch = all_of(target, 3)
    assert decode_raw(batch, "class/label", (), np.int32).tolist() == [5, -2, 7, 3]
    assert [v.tobytes() for v in decode_bytes(batch, "encoded")] == [photo(i) for i in range(4)]
    labels.write_text("file,label\na.png,5\n")
    assert [e[1] for e in inputs.ImageFolder(folder, labels).entries] == [5]
    labels.write_text("a.png 5\nnowhere.png 6\n")
    with pytest.raises(DataError, match=r"(?s)names 'nowhere.png'.*labels.txt:2"):
        inputs.ImageFolder(folder, labels)
    labels.write_text("a.png\n")
    with pytest.raises(DataError, match="is not a path and a label"):
        inputs.ImageFolder(folder, labels)


def test_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b,a\n1,2,3\n")
    with pytest.raises(DataError, match=r"two columns of '.*a.csv' are called 'a'"):
        inputs.CsvFile(tmp_path / "a.csv")


def test_one_class(tmp_path: Path, capsys) -> None:
    (tmp_path / "images" / "ant").mkdir(parents=True)
    (tmp_path / "images" / "ant" / "1.png").write_bytes(photo(9))
    assert main(["pack", "images", str(tmp_path / "images"), str(tmp_path / "out"), "--quiet"]) == 0
    assert capsys.readouterr().out.endswith("\n1 classes: 0 is 'ant'\n")


def test_images_in_folders_of_classes(tmp_path: Path) -> None:
    hidden = (".ipynb_checkpoints/1-checkpoint.png", "cat/._1.png", "cat/.cache/1.png")
    for name in ("cat/1.png", "ant/2.png", "cat/sub/3.PNG", "ant/notes.txt", *hidden):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photo(9))
    source = inputs.ImageFolder(tmp_path / "images", image_feature="x", label_feature="y")
    pack.pack(source, tmp_path / "out")
    batch = all_of(tmp_path / "out", 1)
    assert source.classes == ["ant", "cat"]
    assert decode_raw(batch, "y", (), np.int64).tolist() == [0, 1, 1]
    assert [v.tobytes() for v in decode_bytes(batch, "class/text")] == [b"ant", b"cat", b"cat"]
    with pytest.raises(DataError, match="one subfolder for each class"):
        inputs.ImageFolder(tmp_path / "images" / "cat" / "sub")


def test_arrays(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "f4": rng.random((5, 2, 3), np.float32),
        "f8": rng.random(5),
        "f2": rng.random((5, 2)).astype(np.float16),
        "u1": rng.integers(0, 256, (5, 4), dtype=np.uint8),
        "label": np.arange(5, dtype=np.uint8),
        "i8": rng.integers(-(1 << 60), 1 << 60, (5, 2)),
        "flag": np.array([True, False, True, True, False]),
        "name": np.array(["a", "ä", "", "long name", "x"]),
        "image": rng.integers(0, 256, (5, 6, 7), dtype=np.uint8),
    }
    np.savez(tmp_path / "set.npz", **arrays)
    arguments = [f"--feature={name}={name}" for name in arrays if name != "image"]
    command = ["pack", "arrays", str(tmp_path / "set.npz"), str(tmp_path / "out"), "--feature", "pixels=image", "--png=pixels"]
    assert main([*command, *arguments, "--suffix-length", "3", "--prefix", "p-", "--quiet"]) == 0
    (batch,) = read_part(tmp_path / "out" / "p-000")
    for name, shape, dtype in (
        ("f4", (2, 3), np.float32),
        ("f8", (), np.float64),
        ("u1", (4,), np.uint8),
        ("i8", (2,), np.int64),
    ):
        assert (decode_raw(batch, name, shape, dtype) == arrays[name]).all()
    assert (decode_raw(batch, "f2", (2,), np.float32) == arrays["f2"]).all()
    assert decode_raw(batch, "label", (), np.int32).tolist() == [0, 1, 2, 3, 4]
    assert decode_raw(batch, "flag", (), np.int8).tolist() == [1, 0, 1, 1, 0]
    assert [v.tobytes().decode() for v in decode_bytes(batch, "name")] == arrays["name"].tolist()
    assert (np.array(decode_image(batch, "pixels", "GRAY"))[..., 0] == arrays["image"]).all()
    with pytest.raises(DataError, match="needs an array 'y'"):
        inputs.Arrays(arrays, {"x": "y"})
    with pytest.raises(DataError, match=r"same number of samples(?s:.*)features= \(--feature NAME=ARRAY\)"):
        inputs.Arrays({"a": np.zeros(3), "b": np.zeros(4)})
    with pytest.raises(DataError, match="cannot hold"):
        inputs.Arrays({"a": np.zeros(3, np.complex64)})
    with pytest.raises(DataError, match="not an .npz file"):
        inputs.Arrays(tmp_path / "out" / "p-000")


def test_csv(tmp_path: Path, capsys) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text('id,when,I1,I2,text\r\n1,2020,0.5,7,"a, b"\r\n\r\n2,2021,-1.5,8,"two\nlines"\r\n3,2022,1e3,,c\r\n\n')
    with pytest.raises(
        DataError, match=r"(?s)cannot be read.*row        3, column 'I2'.*expected   int64.*missing=0 \(--missing 0\)"
    ):
        pack.pack(inputs.CsvFile(path), tmp_path / "fails")
    assert not list((tmp_path / "fails").glob("part*"))
    pack.pack(inputs.CsvFile(path, missing=0), tmp_path / "guessed", 2)
    batch = all_of(tmp_path / "guessed", 2)
    kinds = {name: next(iter(f.kinds)) for name, f in inspect.describe(part_paths(tmp_path / "guessed", 2)).features.items()}
    assert kinds == {"id": "int64_list", "when": "int64_list", "I1": "float_list", "I2": "int64_list", "text": "bytes_list"}
    assert [v.tobytes() for v in decode_bytes(batch, "text")] == [b"a, b", b"two\nlines", b"c"]
    command = [
        "pack",
        "csv",
        str(path),
        str(tmp_path / "chosen"),
        "--feature=dense=I1,I2:float",
        "--feature=id=id:int32",
        "--missing=-1",
    ]
    assert main([*command, "--quiet"]) == 0
    assert decode_raw(all_of(tmp_path / "chosen", 1), "dense", (2,), np.float32).tolist() == [[0.5, 7], [-1.5, 8], [1000, -1]]
    plain = tmp_path / "plain.tsv"
    plain.write_text("5\t1.5\n6\t2.5")
    assert main(["pack", "csv", str(plain), str(tmp_path / "plain"), "--no-header", "--delimiter", "\\t", "--quiet"]) == 0
    assert decode_raw(all_of(tmp_path / "plain", 1), "1", (), np.float32).tolist() == [1.5, 2.5]
    capsys.readouterr()
    assert main([*command[:4], "--feature=x=nothing", "--quiet"]) == 2
    assert "error: feature 'x' needs column 'nothing'" in capsys.readouterr().err
    assert main([*command[:4], "--feature=x", "--quiet"]) == 2
    assert "NAME=SOURCE" in capsys.readouterr().err


def test_checksum() -> None:
    assert crc32c.crc32c(b"123456789") == 0xE3069283  # the check value that its standard gives
    assert crc32c.crc32c(bytes(32)) == 0x8A9136AA and crc32c.crc32c(b"\xff" * 32) == 0x62A8AB43  # RFC 3720
    data = np.random.default_rng(0).integers(0, 256, 2000, dtype=np.uint8)
    crc = 0xFFFFFFFF  # bit by bit
    for byte in data.tolist():
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    assert crc32c.crc32c(data) == crc ^ 0xFFFFFFFF


def test_checksums_of_rows_are_those_of_each():
    for size in (0, 1, 5, 56, 255, 256, 257, 700):
        rows = np.random.default_rng(size).integers(0, 256, (4, size)).astype(np.uint8)
        each = [crc32c.crc32c(row) for row in rows]
        assert crc32c.crc32c_of_rows(rows).tolist() == each
        assert crc32c.masked(crc32c.crc32c_of_rows(rows)).tolist() == [crc32c.masked(crc) for crc in each]


def tfrecord(examples: list[bytes]) -> bytes:
    def check(data: bytes) -> bytes:
        return struct.pack("<I", crc32c.masked(crc32c.crc32c(data)))

    return b"".join((head := struct.pack("<Q", len(e))) + check(head) + e + check(e) for e in examples)


def test_tfrecords(tmp_path: Path) -> None:
    # tf.train.Example by hand: features { a: int64 1, 2 (packed); b: float 1.0; c: bytes "xy"; d: nothing }
    features = [
        b"\x0a\x01a\x12\x06\x1a\x04\x0a\x02\x01\x02", b"\x0a\x01b\x12\x08\x12\x06\x0a\x04\0\0\x80?",
        b"\x0a\x01c\x12\x06\x0a\x04\x0a\x02xy", b"\x0a\x01d\x12\x00",
    ]  # fmt: skip
    body = b"".join(b"\x0a" + bytes([len(f)]) + f for f in features)
    example = b"\x0a" + bytes([len(body)]) + body
    data = tfrecord([example] * 3)
    for i in range(2):
        (tmp_path / f"{i}.tfrecord").write_bytes(data)
    files = [str(tmp_path / f"{i}.tfrecord") for i in range(2)]
    assert main(["pack", "tfrecord", *files, str(tmp_path / "out"), "--parts", "2", "--quiet"]) == 0
    batch = all_of(tmp_path / "out", 2)
    assert len(batch) == 6 and sorted(batch.features()) == ["a", "b", "c"]
    assert decode_raw(batch, "a", (2,), np.int64)[5].tolist() == [1, 2] and decode_raw(batch, "b", (), np.float32)[0] == 1
    for at, says in ((3, "length does not match"), (20, "checksum does not match"), (len(data) - 1, "checksum does not match")):
        (tmp_path / "bad").write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(RecordError, match=says) as caught:
            pack.pack(inputs.TfRecords([tmp_path / "bad"]), tmp_path / "no")
        assert caught.value.record == (0 if at < 30 else 2)
    (tmp_path / "bad").write_bytes(data[:-3])
    with pytest.raises(RecordError, match="ends inside a record"):
        inputs.TfRecords([tmp_path / "bad"])
    (tmp_path / "bad").write_bytes(tfrecord([b"\xff\xff"]))
    with pytest.raises(RecordError, match=r"not a tf\.train\.Example"):
        pack.pack(inputs.TfRecords([tmp_path / "bad"]), tmp_path / "no")


class Counted:
    """An input that notes which ranges were asked for, and fails at one record."""

    def __init__(self, size: int, fails_at: int | None = None):
        self.size, self.fails_at, self.asked = size, fails_at, []
        self.identity = {"kind": "test", "size": size}

    def __len__(self) -> int:
        return self.size

    def records(self, begin: int, end: int):
        self.asked.append((begin, end))
        for i in range(begin, end):
            if i == self.fails_at:
                raise DataError("stop here")
            yield inputs.make_record({"x": ("int64", [i])})


def test_packing_is_taken_up_again(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="stop here"):
        pack.pack(Counted(40, fails_at=25), tmp_path, 4, workers=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == [pack.MANIFEST, "part-0", "part-1"]
    (tmp_path / ".part-2.0123.tmp").write_bytes(b"left by a run that was killed")
    again = Counted(40)
    done = pack.pack(again, tmp_path, 4, workers=2)
    assert (done.kept, sorted(again.asked)) == (2, [(20, 30), (30, 40)])
    assert decode_raw(all_of(tmp_path, 4), "x", (), np.int64).tolist() == list(range(40))
    assert not list(tmp_path.glob(".*.tmp"))
    with pytest.raises(DataError, match="made of something else"):
        pack.pack(Counted(50), tmp_path, 4)
    pack.pack(Counted(50), tmp_path, 4, overwrite=True)
    assert len(all_of(tmp_path, 4)) == 50
    for parts in (0, 51, True):
        with pytest.raises(ArgumentError, match="1 to 50 parts"):
            pack.pack(Counted(50), tmp_path / "x", parts)


def test_packing_with_a_progress_bar_where_standard_error_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert pack.pack(Counted(40), tmp_path, progress=True).records == 40


def test_other_values_are_not_taken_for_those_that_were_packed(tmp_path: Path) -> None:
    def packed(parts: int, values: np.ndarray, **options: bool) -> list[int]:
        pack.pack(inputs.Arrays({"v": values}), tmp_path / "arrays", parts, **options)
        number = len([p for p in (tmp_path / "arrays").iterdir() if p.name.startswith("part-")])
        return decode_raw(all_of(tmp_path / "arrays", number), "v", (), np.int64).tolist()

    assert packed(3, np.arange(6)) == packed(3, np.arange(6)) == list(range(6))
    with pytest.raises(DataError, match="made of something else"):
        packed(3, np.arange(6) + 10)
    assert packed(2, np.arange(4) + 10, overwrite=True) == [10, 11, 12, 13]  # and the third part is gone
    path = tmp_path / "a.npz"
    np.savez(path, one=np.arange(4), two=np.arange(4) + 50)
    pack.pack(inputs.Arrays(path, {"v": "one"}), tmp_path / "npz")
    with pytest.raises(DataError, match="made of something else"):
        pack.pack(inputs.Arrays(path, {"v": "two"}), tmp_path / "npz")
    image = tmp_path / "images" / "class" / "1.png"
    image.parent.mkdir(parents=True)
    image.write_bytes(photo(1))
    pack.pack(inputs.ImageFolder(tmp_path / "images"), tmp_path / "packed")
    image.write_bytes(photo(2) + b" ")
    with pytest.raises(DataError, match="made of something else"):
        pack.pack(inputs.ImageFolder(tmp_path / "images"), tmp_path / "packed")


@pytest.mark.parametrize(
    "array", [np.linspace(0, 1, 48).reshape(3, 4, 4), np.zeros((3, 4, 4), np.int64), np.zeros((3, 4, 4, 2), np.uint8),
              np.zeros(3, np.uint8)],
    ids=["floats", "wide integers", "two channels", "numbers"],
)  # fmt: skip
def test_what_cannot_be_stored_as_png(array: np.ndarray) -> None:
    with pytest.raises(DataError, match="feature 'v' cannot be stored as PNG"):
        inputs.Arrays({"v": array}, png=["v"])


def test_interrupting_the_command(tmp_path: Path) -> None:
    """Ctrl-C leaves whole parts only, and the same command goes on."""
    folder = tmp_path / "images" / "class"
    folder.mkdir(parents=True)
    for i in range(4000):
        (folder / f"{i}.png").write_bytes(b"x" * 2000)
    command = [
        sys.executable,
        "-m",
        "oneflow.data",
        "pack",
        "images",
        str(folder.parent),
        str(tmp_path / "out"),
        "--parts",
        "100",
    ]
    process = subprocess.Popen([*command, "--workers", "1"], stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    end = time.monotonic() + 60
    while not (tmp_path / "out" / "part-3").exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    if process.returncode == 130:  # it may have been done before
        assert b"interrupted" in err and b"Traceback" not in err
        assert not list((tmp_path / "out").glob(".*.tmp"))
    done = subprocess.run([*command, "--quiet"], capture_output=True, text=True, check=True)
    assert "4000 records in 100 parts (" in done.stdout
    assert len(all_of(tmp_path / "out", 100)) == 4000


# --- showing and verifying


def test_show(tmp_path: Path, capsys) -> None:
    samples.digits(tmp_path / "digits", 20, 2)
    assert main(["show", str(tmp_path / "digits"), "--sheet", str(tmp_path / "sheet.png")]) == 0
    out = capsys.readouterr().out
    assert "2 parts, 20 records" in out and "bytes_list (PNG)" in out and "0 .. 9" in out
    assert cv2.imread(str(tmp_path / "sheet.png")).shape == (3 * 146, 8 * 128, 3)
    assert main(["show", str(tmp_path / "digits"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["records"] == 20 and shown["features"]["class/label"]["kinds"] == {"int32_list": 20}
    assert main(["show", str(tmp_path / "digits" / "part-1"), "--record", "3"]) == 0
    assert 'key: "class/label"' in capsys.readouterr().out
    of_part = []
    for words in (["part-1", "--record", "3"], [".", "--record", "13"]):
        assert main(["show", str(tmp_path / "digits" / words[0]), *words[1:]]) == 0
        of_part.append(capsys.readouterr().out)
    assert of_part[0] == of_part[1]  # counted over the parts
    assert main(["show", str(tmp_path / "digits"), "--record", "20"]) == 2
    assert "the 2 part files from" in (error := capsys.readouterr().err) and "hold 20 records, so record 20" in error
    assert main(["show", str(tmp_path / "digits" / "part-1"), "--record", "30"]) == 2
    assert "part-1' holds 10 records, so record 30 does not exist" in capsys.readouterr().err
    assert main(["show", str(tmp_path)]) == 2
    assert "no file named" in capsys.readouterr().err
    samples.clicks(tmp_path / "clicks", 5)
    with pytest.raises(DataError, match="no feature of the first record is an image"):
        inspect.contact_sheet([tmp_path / "clicks" / "part-0"], tmp_path / "x.png")
    with pytest.raises(ArgumentError, match="the count of images must be an int > 0, got 0"):
        inspect.contact_sheet([tmp_path / "digits" / "part-0"], tmp_path / "x.png", count=0)


def test_json_without_numbers_that_json_has_not(tmp_path: Path, capsys) -> None:
    pack.pack(inputs.Arrays({"x": np.array([np.nan, np.inf], np.float32)}), tmp_path)
    assert main(["show", str(tmp_path), "--json"]) == 0
    json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def test_a_pipe_that_is_closed_early(tmp_path: Path) -> None:
    samples.clicks(tmp_path, 5)
    command = [sys.executable, "-m", "oneflow.data", "show", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


def test_parts_of_a_directory_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    samples.clicks(tmp_path, 12, 12)
    assert [os.path.basename(p) for p in inspect.part_files([tmp_path])] == [f"part-{i}" for i in range(12)]


def test_verify(tmp_path: Path, capsys) -> None:
    paths = samples.digits(tmp_path, 30, 3)
    assert main(["verify", str(tmp_path), "--images", "encoded", "--quiet"]) == 0
    assert capsys.readouterr().out == "3 parts: no errors\n"
    Path(paths[0]).write_bytes(Path(paths[0]).read_bytes()[:-1])
    records = [r for batch in read_part(paths[1]) for r in batch]
    records[4] = records[4].replace(b"IHDR", b"XXXX")
    records[7] = b"\xff" + records[7]
    Path(paths[1]).write_bytes(b"".join(struct.pack("<q", len(r)) + r for r in records))
    assert main(["verify", str(tmp_path), "--images", "encoded", "--quiet"]) == 1
    out = capsys.readouterr().out
    assert "part-0\n  record     9," in out and "part-1\n  record     4," in out and "part-1\n  record     7," in out
    assert out.endswith("3 parts: 3 errors\n")
    assert [e.record for e in inspect.verify(paths)] == [9, 7]  # type: ignore[union-attr]


# --- made data


def test_made_data(tmp_path: Path) -> None:
    paths = samples.photographs(tmp_path / "p", 6, 2, scale=0.2)
    assert samples.photographs(tmp_path / "q", 6, 2, scale=0.2) != paths
    assert [Path(a).read_bytes() for a in paths] == [(tmp_path / "q" / Path(a).name).read_bytes() for a in paths]
    batch = all_of(tmp_path / "p", 2)
    assert {i.shape[2] for i in decode_image(batch, "encoded") if i is not None} == {3}
    samples.clicks(tmp_path / "c", 500)
    clicks = all_of(tmp_path / "c", 1)
    dense, label = decode_raw(clicks, "dense_fields", (13,), np.float32), decode_raw(clicks, "labels", (), np.int32)
    assert (
        np.corrcoef(dense[:, 0], label)[0, 1] > 0.2 and decode_raw(clicks, "deep_sparse_fields", (26,), np.int32).max() < 100000
    )
    (file,) = samples.coco(tmp_path / "coco", 12)
    annotations = CocoAnnotations(file, tmp_path / "coco" / "images")
    for sample in CocoSource(annotations, 4).take():
        assert len(sample.boxes) == len(sample.labels) > 0 and sample.polygon_index[-1, 2] == len(sample.boxes) - 1
        assert sample.boxes.max() <= 96 and set(sample.labels) <= {1, 2, 3}


def test_make_record() -> None:
    made = pb.OFRecord.FromString(inputs.make_record({"a": ("float", [1.5]), "b": ("bytes", [b"x", b"y"])}))
    assert list(made.feature["b"].bytes_list.value) == [b"x", b"y"] and made.feature["a"].float_list.value[0] == 1.5


# --- inputs that are not what they should be


def test_images_stay_below_their_folder(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for path in (folder / "a.png", tmp_path / "secret.png"):
        path.write_bytes(photo(1))
    (folder / "link.png").symlink_to("../secret.png")
    labels = tmp_path / "labels.txt"
    for name in ("../secret.png", str(tmp_path / "secret.png"), "link.png"):
        labels.write_text(f"a.png 1\n{name} 2\n")
        with pytest.raises(DataError, match=r"(?s)outside.*--allow-outside"):
            list(inputs.ImageFolder(folder, labels).records(0, 2))
        assert len(list(inputs.ImageFolder(folder, labels, allow_outside=True).records(0, 2))) == 2
        command = ["pack", "images", str(folder), str(tmp_path / "out"), "--labels", str(labels), "--quiet", "--overwrite"]
        assert main(command) == 2 and main([*command, "--allow-outside"]) == 0
    labels.write_text("a.png +-5\n")
    assert inputs.ImageFolder(folder, labels).classes == ["+-5"]
    labels.write_text("a.png 3000000000\n")  # no int32, so the name of a class
    assert inputs.ImageFolder(folder, labels).classes == ["3000000000"]
    for wrong in (b"a.png 1\n\xff\xfe 2\n", b"a\0.png 1\na.png 1\n"):
        labels.write_bytes(wrong)
        with pytest.raises(DataError):
            inputs.ImageFolder(folder, labels)
    with pytest.raises(DataError, match="a file cannot be read: No such file"):
        inputs.ImageFolder(folder, tmp_path / "nothing")


@pytest.mark.timeout(30)
def test_special_files_and_huge_ones(tmp_path: Path) -> None:
    pipe, sparse = tmp_path / "pipe", tmp_path / "sparse"
    os.mkfifo(pipe)
    with open(sparse, "wb") as file:
        file.truncate(39 << 30)
    (tmp_path / "images" / "class").mkdir(parents=True)
    for name, target in (("0.png", pipe), ("1.png", sparse)):
        (tmp_path / "images" / "class" / name).symlink_to(target)
    folder = inputs.ImageFolder(tmp_path / "images", allow_outside=True)
    for i, says in ((0, "it is a FIFO"), (1, "longer than 268435456 bytes")):
        with pytest.raises(DataError, match=says):
            list(folder.records(i, i + 1))
    for make in (
        inputs.CsvFile,
        inputs.Arrays,
        lambda path: inputs.TfRecords([path]),
        lambda path: inputs.ImageFolder(".", path),
    ):
        for path, says in ((pipe, "it is a FIFO"), (tmp_path, "it is a directory"), ("/dev/zero", "it is a character device")):
            with pytest.raises(DataError, match=says):
                make(path)
    head = struct.pack("<Q", (39 << 30) - 16)
    with open(sparse, "r+b") as file:
        file.write(head + struct.pack("<I", crc32c.masked(crc32c.crc32c(head))))
    with pytest.raises(RecordError, match="longer than the limit of 268435456 bytes"):
        inputs.TfRecords([sparse])
    out = tmp_path / "out"
    out.mkdir()
    os.mkfifo(out / pack.MANIFEST)
    pack.pack(Counted(3), out)
    assert len(all_of(out, 1)) == 3


@pytest.mark.parametrize(
    "content, says",
    [
        (b"a,b\n1,\xff\n", "cannot be read: 'utf-8' codec"),
        (b"a\n" + b"x" * 200_000 + b"\n", "field larger than field limit"),
        (b"a\n9223372036854775808\n", "expected   int64"),
        (b"a\n-1e400\nx\n", None),
        (b'a,b\n"1,2\n', "a row of 1 values"),
        (b"\n\n\n", "holds no rows"),
        (b"a,b\n1,2\n3,4,5\n", "(?s)more values than the first.*row        2"),
        (b"\xef\xbb\xbfa,b\r\n1,2,\r\n", None),
        (b"a\n" + b"9" * 5000 + b"\n", None),
    ],
)
def test_csv_files_that_are_damaged(tmp_path: Path, content: bytes, says: str | None) -> None:
    (tmp_path / "x.csv").write_bytes(content)
    if says is None:
        pack.pack(inputs.CsvFile(tmp_path / "x.csv", missing=0), tmp_path / "out")
    else:
        with pytest.raises(DataError, match=says):
            pack.pack(inputs.CsvFile(tmp_path / "x.csv"), tmp_path / "out")


def test_integers_of_a_csv_file_that_no_list_can_hold(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a\n1\n2147483648\n")
    with pytest.raises(DataError, match="(?s)row        2, column 'a'.*expected   int32.*found      '2147483648'"):
        pack.pack(inputs.CsvFile(tmp_path / "x.csv", {"a": (["a"], "int32")}), tmp_path / "out")
    with pytest.raises(ArgumentError, match="delimiter must be one character"):
        inputs.CsvFile(tmp_path / "x.csv", delimiter=";;")


def npz(path: Path, header: str, content: bytes = b"", compressed: bool = True, version: bytes = b"\x01\x00") -> Path:
    """One array ``x`` whose header says this."""
    text = header.encode() + b" " * (-(len(header) + 11) % 64) + b"\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED) as file:
        file.writestr("x.npy", b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text + content)
    return path


@pytest.mark.parametrize(
    "header, says",
    [
        ("{'descr': '|u1', 'fortran_order': False, 'shape': (1099511627776, 28, 28), }", r"uint8\[1099511627776, 28, 28\]"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 4), }", r"float64\[-1, 4\]"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }", r"float64\[2\], and the file holds 8 bytes"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", "Python objects"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (0, 4611686018427387904, 8), }", "not an .npz file"),
        ("(" * 3000, "not an .npz file"),
        ("{'descr': 5}", "not an .npz file"),
    ],
)
def test_npz_files_whose_headers_lie(tmp_path: Path, header: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        inputs.Arrays(npz(tmp_path / "x.npz", header, bytes(8)))


def test_npz_files_that_are_damaged(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    header = "{'descr': '<f8', 'fortran_order': True, 'shape': (2, 3), }"
    good = inputs.Arrays(npz(path, header, np.arange(6.0).tobytes())).arrays["x"]
    assert good.tolist() == [[0, 2, 4], [1, 3, 5]]
    with pytest.raises(DataError, match="version"):
        inputs.Arrays(npz(path, header, np.arange(6.0).tobytes(), version=b"\x03\x00"))
    content = npz(path, header, np.arange(6.0).tobytes(), compressed=False).read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
        try:
            inputs.Arrays(path)
        except DataError:
            pass


@pytest.mark.parametrize("rows", [
    [["a", "b"], ['len 5"', "1"], ["x", "2"], ['6" by 7"', "3"], ["y", "4"]],
    [["a", "b"], ['he said "no', "1"], ["two\nlines", "2"], ['"', "3"], ["", "4"]],
    [["a", "b"], ['"quoted" and more', "1"], ['a""b', "2"]],
])  # fmt: skip
@pytest.mark.parametrize("quoting", ["as csv does", "none"])
def test_quotes_inside_of_cells(tmp_path: Path, rows: list[list[str]], quoting: str) -> None:
    path = tmp_path / "x.csv"
    if quoting == "none" and not any("\n" in cell or cell.startswith('"') for row in rows for cell in row):
        path.write_text("".join(",".join(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    with path.open(newline="") as file:
        expected = list(csv.reader(file))[1:]
    made = inputs.CsvFile(path)
    assert len(made) == len(expected)
    features = [pb.OFRecord.FromString(record).feature for record in made.records(0, len(made))]
    assert [[f["a"].bytes_list.value[0].decode(), str(f["b"].int64_list.value[0])] for f in features] == expected


def test_a_file_of_the_same_second_and_size_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a\n1\n")
    os.utime(path, ns=(0, 1_000_000_000))
    before = inputs.CsvFile(path).identity
    path.write_text("a\n2\n")
    os.utime(path, ns=(0, 1_000_000_001))
    assert inputs.CsvFile(path).identity != before


@pytest.mark.parametrize("data, delimiter, expected", [
    (b'\xef\xbb\xbf"a\nb",c\nlen 5",1\nx,2\n', ",", [['len 5"', "1"], ["x", "2"]]),
    (b"\xef\xbb\xbf\na,b\n1,2\n", ",", [["1", "2"]]),
    (b"a,b\r1,2\r3,4\n5,6\n", ",", [["1", "2"], ["3", "4"], ["5", "6"]]),
    (b'a,b\r\n1,"x\ry"\r\n3,z\r', ",", [["1", "x\ry"], ["3", "z"]]),
    ('a；b\n1；xś"\n2；y\n3；z\n'.encode(), "；", [["1", 'xś"'], ["2", "y"], ["3", "z"]]),  # both end in the byte 0x9b
])  # fmt: skip
def test_where_rows_of_csv_files_begin(tmp_path: Path, data: bytes, delimiter: str, expected: list[list[str]]) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(data)
    made = inputs.CsvFile(path, delimiter=delimiter)
    assert len(made) == len(expected)
    features = [pb.OFRecord.FromString(record).feature for record in made.records(0, len(made))]
    assert [[_text(value) for _, value in sorted(f.items())] for f in features] == expected


def _text(feature: pb.Feature) -> str:
    return feature.bytes_list.value[0].decode() if feature.bytes_list.value else str(feature.int64_list.value[0])


def test_parts_whose_manifest_has_whole_seconds_are_kept(tmp_path: Path) -> None:
    path, folder = tmp_path / "x.csv", tmp_path / "parts"
    path.write_text("a\n1\n2\n")
    os.utime(path, ns=(0, 1_234_567_890))
    pack.pack(inputs.CsvFile(path), folder, 2, progress=False)
    manifest = folder / pack.MANIFEST
    older = json.loads(manifest.read_text())
    older["file"][2] = 1
    manifest.write_text(json.dumps(older))
    (folder / "part-1").unlink()
    assert pack.pack(inputs.CsvFile(path), folder, 2, progress=False).kept == 1
    assert json.loads(manifest.read_text())["file"][2] == 1_234_567_890
    manifest.write_text(json.dumps({**older, "file": [*older["file"][:2], 2]}))
    with pytest.raises(DataError, match="made of something else"):
        pack.pack(inputs.CsvFile(path), folder, 2, progress=False)


def test_names_that_are_given_twice_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones(4), y=np.zeros(4))
    wrong = ["pack", "arrays", str(tmp_path / "a.npz"), str(tmp_path / "q"), "--feature", "X=x", "--feature", "X=y"]
    assert main(wrong) == 2 and "feature 'X' is given twice: x and y" in capsys.readouterr().err
    (tmp_path / "c.csv").write_text("id,label,label\n1,2,3\n")
    with pytest.raises(DataError, match="two columns .* are called 'label', which feature 'l' is to be made of"):
        inputs.CsvFile(tmp_path / "c.csv", {"l": (["label"], "int32")})
    assert len(inputs.CsvFile(tmp_path / "c.csv", {"id": (["id"], "int32")})) == 1
    assert main(["show", str(tmp_path), "--limit", "0"]) == 2
    with pytest.raises(ArgumentError, match="there are 60000 digits, not 60001"):
        samples.digits(tmp_path / "d", 60001)


def test_mistakes_in_features_and_missing_are_told(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,2.5\n")
    with pytest.raises(ArgumentError, match=r"must map names to \(columns, kind\), got 'a:int32' for 'x'"):
        inputs.CsvFile(tmp_path / "x.csv", {"x": "a:int32"})
    (tmp_path / "y.csv").write_text("a,b\n1,2.5\n,3\n")
    with pytest.raises(DataError, match="cannot be read as its feature's kind"):
        pack.pack(inputs.CsvFile(tmp_path / "y.csv", missing=-1.5), tmp_path / "halves")


def test_names_with_underscores_are_no_numbers(tmp_path):
    (tmp_path / "x.csv").write_text("code,other\n2020_01,1\n2020_02,2\n")
    pack.pack(inputs.CsvFile(tmp_path / "x.csv"), tmp_path / "out")
    assert b"2020_01" in (tmp_path / "out" / "part-0").read_bytes()
    with pytest.raises(DataError, match="cannot be read as its feature's kind"):
        pack.pack(inputs.CsvFile(tmp_path / "x.csv", {"code": (["code"], "int64")}), tmp_path / "refused")
