"""Mutated data files of every format that the library reads: only its own errors may come, within 2 GB and 10 seconds
of processor time each.

    python -m tests.campaign.files --count 1000 --seed 7           # a table of counts; the exit status is 1 where one fails
    python -m tests.campaign.files --formats coco --only 17 --seed 7   # one case again, with what it did

The case of a number is a function of (seed, format, number).
"""

from __future__ import annotations

import argparse
import hashlib
import io
import itertools
import json
import os
import shutil
import struct
import sys
import tempfile
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image

import oneflow.data as data
from oneflow.data import crc32c, detection, images, inputs, inspect, pack
from oneflow.data.coco import CocoAnnotations, CocoSource
from oneflow.data.decoders import decode_bytes, decode_image, decode_raw
from oneflow.data.gpt import IndexedTokens, SampleStream, TokenBatches
from oneflow.data.inputs import make_record
from oneflow.data.onerec import OneRecSource, decode_onerec, encode_example, write_onerec
from oneflow.errors import OneFlowError

from . import isolation, models
from .isolation import each
from .mutations import Damage


@dataclass(frozen=True)
class Format:
    """``write`` makes a damaged data set in an empty folder; ``read`` reads it as a program would."""

    write: Callable[[Path, Damage], None]
    read: Callable[[Path], None]


def _photo(height: int = 24, width: int = 32) -> np.ndarray:
    small = np.random.default_rng(0).integers(0, 256, (4, 5, 3), np.uint8)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)


# --- records


def _records() -> list[bytes]:
    jpeg = images.encode(_photo(), ".jpg")
    return [
        make_record({
            "floats": ("float", [0.5, i, -1.5]), "doubles": ("double", [i, 2.5]), "ids": ("int64", [i, 2**40, -5]),
            "label": ("int32", [i]), "raw": ("bytes", [bytes([i, 255, 7])]), "image": ("bytes", [jpeg]),
        })
        for i in range(6)
    ]  # fmt: skip


def _framed(records: Sequence[bytes]) -> bytes:
    return b"".join(struct.pack("<q", len(record)) + record for record in records)


def _write_part(folder: Path, damage: Damage) -> None:
    records = _records()
    if damage.chance(0.5):
        content = damage.bytes(_framed(records))
    else:  # the frame is whole, what it holds is not
        i = damage.below(len(records))
        records[i] = damage.bytes(records[i]) or b"\0"
        content = _framed(records)
    (folder / "part-0").write_bytes(content)


def _read_part(folder: Path) -> None:
    def batch(decode: Callable[[Any], object], **options: Any) -> Callable[[], object]:
        source = data.RecordSource(data.part_paths(folder, 1), **options)
        return lambda: [decode(source.take(4)) for _ in range(3)]

    paths = [str(folder / "part-0")]
    each(
        batch(lambda records: decode_raw(records, "floats", (3,), np.float32)),
        batch(lambda records: decode_raw(records, "doubles", (2,), np.float64), random_shuffle=True, buffer_size=5),
        batch(lambda records: decode_raw(records, "ids", (3,), np.int64)),
        batch(lambda records: decode_raw(records, "label", (8,), np.int32, auto_zero_padding=True)),
        batch(lambda records: decode_raw(records, "label", (), np.int8)),
        batch(lambda records: decode_raw(records, "raw", (3,), np.uint8)),
        batch(lambda records: decode_bytes(records, "raw")),
        batch(lambda records: decode_image(records, "image")),
        batch(lambda records: records.features()),
        lambda: str(inspect.describe(paths)),
        lambda: inspect.verify(paths, image_features=["image"], workers=1),
        lambda: inspect.contact_sheet(paths, folder / "sheet.png"),
    )


def _write_onerec(folder: Path, damage: Damage) -> None:
    x, z = np.arange(6, dtype=np.int32).reshape(2, 3), np.zeros(5, np.int8)
    payloads = [encode_example({"x": x, "y": np.array([i], np.float64), "z": z}) for i in range(4)]
    path = folder / "x.onerec"
    if damage.chance(0.7):  # the digests are right, the payload is not
        i = damage.below(len(payloads))
        payloads[i] = damage.bytes(payloads[i])
        write_onerec(path, payloads)
    else:
        write_onerec(path, payloads)
        path.write_bytes(damage.bytes(path.read_bytes()))


def _read_onerec(folder: Path) -> None:
    def batch(key: str, dtype: Any, shape: tuple[int, ...], **options: Any) -> Callable[[], object]:
        source = OneRecSource([str(folder / "x.onerec")], verify=options.pop("verify", True))
        return lambda: [decode_onerec(source.take(3), key, dtype, shape, **options) for _ in range(3)]

    each(
        batch("x", np.int32, (2, 3)),
        batch("x", np.int32, (9, 9), is_dynamic=True, reshape=(-1, 3), batch_padding=(9, 0), verify=False),
        batch("y", np.float64, (1,)),
    )


# --- images


@cache
def _encoded() -> dict[str, bytes]:
    image = _photo()
    made = {
        "jpeg": images.encode(image, ".jpg"), "png": images.encode(image, ".png"), "bmp": images.encode(image, ".bmp"),
        "tiff": images.encode(image, ".tiff"), "webp": images.encode(image, ".webp"),
        "jp2": images.encode(_photo(96, 128), ".jp2"), "ppm": images.encode(image, ".ppm"), "ras": images.encode(image, ".ras"),
        "progressive": cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1].tobytes(),
        "deep": cv2.imencode(".png", image.astype(np.uint16) * 257)[1].tobytes(),
        "hdr": cv2.imencode(".hdr", image.astype(np.float32))[1].tobytes(),
    }  # fmt: skip
    options: dict[str, Any] = {"GIF": {"append_images": [Image.fromarray(image[::-1])], "save_all": True}, "PNG": {}, "WebP": {}}
    for kind, more in options.items():
        file = io.BytesIO()
        pixels = Image.fromarray(image).convert("P" if kind == "PNG" else "RGBA" if kind == "WebP" else "RGB")
        pixels.save(file, kind, **more)
        made[f"{kind.lower()} by pillow"] = file.getvalue()
    return made


def _png_with_sums(content: bytes) -> bytes:
    """The chunks of a PNG with their checksums put right, so that decoders get past them."""
    made, at = bytearray(content[:8]), 8
    while at + 12 <= len(content):
        size = int.from_bytes(content[at : at + 4], "big")
        if at + 12 + size > len(content):
            break
        body = content[at + 4 : at + 8 + size]
        made += content[at : at + 4] + body + zlib.crc32(body).to_bytes(4, "big")
        at += 12 + size
    return bytes(made + content[at:])


def _write_image(folder: Path, damage: Damage) -> None:
    encoded = _encoded()
    name = sorted(encoded)[damage.below(len(encoded))]
    content = damage.bytes(encoded[name])
    if content[:4] == b"\x89PNG" and damage.chance(0.7):
        content = _png_with_sums(content)
    (folder / "image").write_bytes(content)


def _read_image(folder: Path) -> None:
    content = (folder / "image").read_bytes()
    each(
        lambda: images.decode(content),
        lambda: images.decode(content, "RGB", np.float32),
        lambda: images.decode(content, "GRAY", any_depth=True),
        lambda: images.resize_keeping_aspect(images.decode(content), 600, max_size=10**6),
    )


# --- COCO


def _coco() -> dict[str, Any]:
    polygon = [1.0, 1.0, 9.0, 1.5, 9.5, 9.0, 1.0, 9.5]
    annotations = [
        {"id": i, "image_id": 1 + i % 3, "category_id": (3, 7)[i % 2], "iscrowd": int(i == 5), "bbox": [1.0, 2.0, 10.0, 5.5],
         "segmentation": [polygon] * (1 + i % 2) if i != 5 else {"counts": [1, 2], "size": [24, 32]},
         "keypoints": [5, 5, 2] * 12, "num_keypoints": 12, "area": 55.0}
        for i in range(6)
    ]  # fmt: skip
    photos = [{"id": i, "file_name": f"{i}.jpg", "height": 24, "width": 32} for i in (1, 2, 3)]
    return {"images": photos, "annotations": annotations, "categories": [{"id": 3, "name": "a"}, {"id": 7, "name": "b"}]}


def _write_coco(folder: Path, damage: Damage) -> None:
    for i in (1, 2, 3):
        (folder / f"{i}.jpg").write_bytes(images.encode(_photo(), ".jpg"))
    if damage.chance(0.8):
        content = _text(damage.json(_coco()))
    else:
        content = damage.bytes(_text(_coco()))
    (folder / "annotations.json").write_bytes(content)


def _read_coco(folder: Path) -> None:
    def read(remove: bool, grouped: bool) -> None:
        source = CocoSource(CocoAnnotations(folder / "annotations.json", folder, remove), 2, group_by_aspect_ratio=grouped)
        for sample in itertools.chain.from_iterable(source.take() for _ in range(4)):
            height, width = sample.image_size
            np.array([sample.image_id], np.int64), np.array([sample.image_size], np.int32)
            image = images.decode(sample.image)
            detection.flip_boxes(sample.boxes, width, height, 17)
            masks = detection.polygons_to_mask(sample.polygons, sample.polygon_index, width, height)
            assert image.shape == (24, 32, 3) and len(masks) <= len(sample.boxes)
        source.restore(json.loads(json.dumps(source.state())))

    each(lambda: read(True, True), lambda: read(False, False))


# --- arrays


def _npy(array: np.ndarray, damage: Damage | None) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    content = file.getvalue()
    end = content.index(b"\n")
    if damage is None:
        return content
    parts = ("60000", "10000", "28", "|u1", "False", "(", ")", "'shape'", ",")
    others = (str(2**40), "-1", "0", "<f8", "|O", "True", "()", "((", "'<i4', (3,)", "60000L", "1" * 400, "|V0")
    header = damage.text(content[10:end].decode(), parts, others).rstrip().encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return content[:8] + struct.pack("<H", len(header)) + header + content[end + 1 :]


def _write_npz(folder: Path, damage: Damage) -> None:
    shapes = {"x_train": (60000, 28, 28), "y_train": (60000,), "x_test": (10000, 28, 28), "y_test": (10000,)}
    if damage.chance(0.5):
        shapes = {name: (5, *shape[1:]) for name, shape in shapes.items()}
    chosen = list(shapes)[damage.below(4)] if damage.chance(0.6) else None
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        for name, shape in shapes.items():
            packed.writestr(f"{name}.npy", _npy(np.zeros(shape, np.uint8), damage if name == chosen else None))
    content = file.getvalue()
    if chosen is None:
        content = damage.bytes(content)
        if damage.chance(0.5):  # the directory of the archive is at its end
            tail = min(len(content), 300)
            content = content[:-tail] + damage.bytes(content[-tail:])
    (folder / "mnist.npz").write_bytes(content)


def _read_npz(folder: Path) -> None:
    digest = hashlib.sha256((folder / "mnist.npz").read_bytes()).hexdigest()
    each(
        lambda: data.read_mnist(out_dir=folder, hash_check=digest),
        lambda: list(inputs.Arrays(folder / "mnist.npz", {"image": "x_test", "label": "y_test"}).records(0, 3)),
    )


# --- tokens


def _write_tokens(folder: Path, damage: Damage) -> None:
    lengths = np.array([5, 3, 7, 4, 6], "<i4")
    addresses = (np.cumsum([0, *lengths])[:-1] * 2).astype("<i8")
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 5, 6) + lengths.tobytes() + addresses.tobytes()
    index += np.arange(6, dtype="<i8").tobytes()
    tokens = np.arange(25, dtype="<u2").tobytes()
    if damage.chance(0.9):
        index = damage.bytes(index) if damage.chance(0.5) else index[:9] + damage.bytes(index[9:])
    else:
        tokens = damage.bytes(tokens)
    (folder / "tokens.idx").write_bytes(index)
    (folder / "tokens.bin").write_bytes(tokens)


def _read_tokens(folder: Path) -> None:
    tokens = IndexedTokens(str(folder / "tokens"))
    stream = SampleStream(tokens, range(len(tokens.lengths)), 8, 200, 3)
    batches = TokenBatches(stream, 5, np.dtype(np.int32), True)
    for _ in range(len(stream) // 5):
        batches.next()


# --- what the packing tools read


def _write_table(folder: Path, damage: Damage) -> None:
    rows = ["id,when,I1,text", *(f'{i},202{i},{i / 3},"a, {i}"' for i in range(9))]
    (folder / "x.csv").write_bytes(damage.bytes("\r\n".join(rows).encode()))
    (folder / "images").mkdir()
    for i in range(3):
        (folder / "images" / f"{i}.png").write_bytes(images.encode(_photo(), ".png"))
    (folder / "labels").write_bytes(damage.bytes(b"file,label\n0.png 5\n1.png\t6\n2.png,7\n"))
    features = b"\x0a\x01a\x12\x06\x1a\x04\x0a\x02\x01\x02"
    example = b"\x0a" + bytes([len(features) + 2]) + b"\x0a" + bytes([len(features)]) + features

    def check(content: bytes) -> bytes:
        return struct.pack("<I", crc32c.masked(crc32c.crc32c(content)))

    framed = b""
    for _ in range(3):
        body = damage.bytes(example) if damage.chance(0.5) else example
        head = struct.pack("<Q", len(body))
        framed += head + check(head) + body + check(body)
    (folder / "x.tfrecord").write_bytes(damage.bytes(framed) if damage.chance(0.5) else framed)
    (folder / "csv").mkdir()
    (folder / "csv" / pack.MANIFEST).write_bytes(damage.bytes(b'{"format": 1, "parts": 1, "kind": "csv"}'))


def _read_table(folder: Path) -> None:
    each(
        lambda: pack.pack(inputs.CsvFile(folder / "x.csv", missing=0), folder / "csv", workers=1),
        lambda: pack.pack(inputs.CsvFile(folder / "x.csv", header=False), folder / "plain", workers=1),
        lambda: pack.pack(inputs.ImageFolder(folder / "images", folder / "labels"), folder / "packed", workers=1),
        lambda: pack.pack(inputs.TfRecords([folder / "x.tfrecord"]), folder / "records", workers=1),
    )


# --- saved positions


def _write_position(folder: Path, damage: Damage) -> None:
    for i in range(3):
        (folder / f"part-{i}").write_bytes(_framed(_records()))
    for i in (1, 2, 3):
        (folder / f"{i}.jpg").write_bytes(images.encode(_photo(), ".jpg"))
    (folder / "annotations.json").write_bytes(_text(_coco()))
    sources = _sources(folder)
    for source in sources:
        source.take(*_TAKE[type(source)])
    (folder / "state").write_bytes(_text(damage.json([source.state() for source in sources])))


_TAKE: dict[type, tuple[int, ...]] = {data.RecordSource: (4,), CocoSource: ()}


def _sources(folder: Path) -> list[Any]:
    options = {"random_shuffle": True, "buffer_size": 5, "shuffle_after_epoch": True}
    annotations = CocoAnnotations(folder / "annotations.json", folder)
    return [data.RecordSource(data.part_paths(folder, 3), **options), CocoSource(annotations, 2)]


def _read_position(folder: Path) -> None:
    states = json.loads((folder / "state").read_bytes())

    def resumed(source: Any, state: Any) -> None:
        source.restore(state)
        for _ in range(5):
            source.take(*_TAKE[type(source)])

    states = states if isinstance(states, list) else [states]
    pairs = zip(_sources(folder), [*states, None, None], strict=False)
    each(*(lambda source=source, state=state: resumed(source, state) for source, state in pairs))


FORMATS: dict[str, Format] = {
    "ofrecord": Format(_write_part, _read_part),
    "onerec": Format(_write_onerec, _read_onerec),
    "images": Format(_write_image, _read_image),
    "coco": Format(_write_coco, _read_coco),
    "npz": Format(_write_npz, _read_npz),
    "tokens": Format(_write_tokens, _read_tokens),
    "inputs": Format(_write_table, _read_table),
    "positions": Format(_write_position, _read_position),
    "checkpoint": Format(models.write_checkpoint, models.read_checkpoint),
    "safetensors": Format(models.write_safetensors, models.read_safetensors),
    "onnx": Format(models.write_onnx, models.read_onnx),
    "stablehlo": Format(models.write_stablehlo, models.read_stablehlo),
    "settings": Format(models.write_settings, models.read_settings),
}


def _text(content: Any) -> bytes:
    return json.dumps(content).encode()  # lone surrogates, too


def case(name: str, number: int, seed: int, *, keep: Path | None = None) -> isolation.Outcome:
    """Writes and reads one case; case -1 is not damaged. ``keep`` is where its files are left."""
    folder = Path(tempfile.mkdtemp(prefix=f"oneflow-{name}-"))
    try:
        rng = np.random.default_rng([seed, zlib.crc32(name.encode()), max(number, 0)])
        FORMATS[name].write(folder, Damage(rng, none=number < 0))
        if keep is not None:
            shutil.copytree(folder, keep, dirs_exist_ok=True)
        return isolation.run(f"{name} {number}", lambda: FORMATS[name].read(folder), OneFlowError)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def campaign(names: Sequence[str], count: int, seed: int, seconds: float | None = None) -> Iterator[isolation.Outcome]:
    """``count`` cases of each format, by turns; fewer where the time is up. An undamaged one that is refused ends it."""
    for name in names:
        whole = case(name, -1, seed)
        if whole.kind != "read":
            raise RuntimeError(f"{name}: an undamaged data set is {whole.kind}\n{whole.detail}")
    end = time.monotonic() + seconds if seconds is not None else float("inf")
    for number in range(count):
        for name in names:
            if time.monotonic() > end:
                return
            yield case(name, number, seed)


def table(outcomes: Sequence[isolation.Outcome]) -> str:
    """Counts by format, the largest memory and the longest time."""
    rows = [("format", "cases", "read", "refused", "raw", "time", "killed", "peak MB", "longest s")]
    for name in dict.fromkeys(outcome.case.split()[0] for outcome in outcomes):
        mine = [outcome for outcome in outcomes if outcome.case.split()[0] == name]
        kinds = Counter(outcome.kind for outcome in mine)
        counts = [str(kinds[kind]) for kind in rows[0][2:7]]
        peak, longest = max(o.peak for o in mine) / 1e6, max(o.seconds for o in mine)
        rows.append((name, str(len(mine)), *counts, f"{peak:.0f}", f"{longest:.1f}"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the campaign; 1 where a case was neither read nor refused."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.files", description=__doc__.splitlines()[0])
    parser.add_argument("--formats", nargs="+", choices=sorted(FORMATS), default=list(FORMATS))
    parser.add_argument("--count", type=int, default=100, help="cases of each format (100)")
    parser.add_argument("--seconds", type=float, help="stop after so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, metavar="N", help="case N alone, of the first format; tells what it did")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="with --only: where its files are left")
    options = parser.parse_args(arguments)
    cv2.setNumThreads(1)
    if options.only is not None:
        outcome = case(options.formats[0], options.only, options.seed, keep=options.keep)
        print(f"{outcome.case}: {outcome.kind}, {outcome.peak / 1e6:.0f} MB, {outcome.seconds:.1f} s\n{outcome.detail}")
        return 0 if outcome.is_good else 1
    outcomes = []
    for outcome in campaign(options.formats, options.count, options.seed, options.seconds):
        outcomes.append(outcome)
        if not outcome.is_good:
            print(
                f"{outcome.case} seed {options.seed}: {outcome.kind}, {outcome.peak / 1e6:.0f} MB\n{outcome.detail}", flush=True
            )
    print(table(outcomes))
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


if __name__ == "__main__":
    os.environ.setdefault("OPENCV_LOG_LEVEL", "OFF")
    sys.exit(main())
