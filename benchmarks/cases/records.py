"""Data from disk, without a job: raw records against a loop over protobuf messages, JPEG images against plain OpenCV."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from oneflow.data import samples
from oneflow.data.decoders import decode_bytes
from oneflow.data.inputs import make_record
from oneflow.data.parts import part_paths, read_part, write_parts

from ..effort import Effort
from ..process import Contender
from ..race import race
from ..report import Check, Section

PARTS, BATCH, RECORDS = 4, 512, 8192
SMALL_BATCH, BUFFER, PIXELS = 32, 1024, 784
IMAGES, LARGE_IMAGES, IMAGE_BATCH, THREADS = 128, 32, 32, 2
SCALED = "ours, scaled decoding"
OURS, LOOP, FRAMES = "ours", "Python loop over protobuf messages", "ours, records found but not decoded"
OPENCV, TORCH = "plain OpenCV and NumPy, 2 threads, from memory", "DataLoader, 2 workers, the same calls, from memory"
TORCHVISION = "DataLoader, 2 workers, torchvision's transforms, from memory"


def measure(effort: Effort, data: Path) -> list[Section]:
    lists = {
        "labels": ("int32", 1),
        "dense_fields": ("float", 13),
        "wide_sparse_fields": ("int32", 2),
        "deep_sparse_fields": ("int32", 26),
    }
    single = {name: (kind, 1) for name, kind in samples.separate_features().items()}
    return [
        _clicks(effort, data.parent, "13 + 2 + 26 numbers in 4 features", False, lists),
        _clicks(effort, data.parent, "13 + 26 features of a number each", True, single),
        _shuffled(effort, data.parent, lists),
        _images(effort, data.parent, "Made images of about 500 x 375", 1.0, IMAGES),
        _images(effort, data.parent, "Made images of about 2000 x 1500", 4.0, LARGE_IMAGES),
    ]


def _clicks(effort: Effort, folder: Path, what: str, separate: bool, features: dict[str, tuple[str, int]]) -> Section:
    target = folder / f"clicks-{int(separate)}"
    paths = samples.clicks(target, RECORDS, PARTS, separate=separate)
    size = sum(Path(p).stat().st_size for p in paths) / RECORDS
    options = {"folder": str(target), "parts": PARTS, "batch": BATCH, "features": features}
    result = race(
        [
            Contender(OURS, "benchmarks.ours.records", options),
            Contender(FRAMES, "benchmarks.ours.records", {**options, "decode": False}),
            Contender(LOOP, "benchmarks.handwritten.records_protobuf", options),
        ],
        rounds=effort.rounds, seconds=effort.seconds, data=None,
    )  # fmt: skip
    made = Section(
        f"Click-through records, {what}", f"Batches of {BATCH} records of {size:.0f} bytes, one thread, files in the page cache.",
        ["", "records/s", "MB/s", "µs a record: median", "quartiles"], failures=result.failures, quiet=result.quiet(),
        raw={"seconds": result.seconds},
    )  # fmt: skip
    for label in result.seconds:
        s = result.spread(label).scaled(1 / BATCH)
        made.rows.append(
            [
                label,
                f"{1 / s.median:,.0f}",
                f"{size / s.median / 1e6:.0f}",
                f"{s.median * 1e6:.2f}",
                f"{s.low * 1e6:.2f} .. {s.high * 1e6:.2f}",
            ]
        )
    ratio = result.ratio(LOOP, OURS)
    if ratio is not None:
        made.checks.append(Check("records/s of ours / of the loop", ratio, 3.0))
    return made


def _shuffled(effort: Effort, folder: Path, clicks: dict[str, tuple[str, int]]) -> Section:
    """Batches of 32, drawn from a buffer."""
    made = Section(
        f"Shuffled batches of {SMALL_BATCH} records", f"A buffer of {BUFFER} records, one thread, files in the page cache.",
        ["", "", "µs a record: median", "quartiles"],
    )  # fmt: skip
    random = np.random.default_rng(0)
    numbers = random.integers(0, 256, (RECORDS // 2, PIXELS))
    kinds = {
        "bytes": [[row.astype(np.uint8).tobytes()] for row in numbers],
        "float": numbers.astype(np.float32).tolist(),
        "int32": numbers.tolist(),
    }
    cases = {"the click-through records, 4 features": (folder / "clicks-0", clicks)}
    for kind, values in kinds.items():
        target = folder / f"raw-{kind}"
        records = [make_record({"image": (kind, value), "label": ("int32", [i % 10])}) for i, value in enumerate(values)]
        write_parts(target, records, PARTS)
        cases[f"{PIXELS} numbers as {kind}_list, and a label"] = (target, {"image": (kind, PIXELS), "label": ("int32", 1)})
    for what, (target, features) in cases.items():
        options = {"folder": str(target), "parts": PARTS, "batch": SMALL_BATCH, "features": features, "buffer": BUFFER}
        result = race(
            [
                Contender(OURS, "benchmarks.ours.records", options),
                Contender(LOOP, "benchmarks.handwritten.records_protobuf", options),
            ],
            rounds=effort.rounds, seconds=effort.seconds, data=None,
        )  # fmt: skip
        for label in result.seconds:
            s = result.spread(label).scaled(1e6 / SMALL_BATCH)
            made.rows.append([what, label, f"{s.median:.2f}", f"{s.low:.2f} .. {s.high:.2f}"])
        made.failures |= result.failures
        made.raw[what] = result.seconds
        made.quiet = result.quiet()
        ratio = result.ratio(LOOP, OURS)
        if ratio is not None:
            made.checks.append(Check(f"{what}: records/s of ours / of the loop", ratio, 2.0))
    return made


def _images(effort: Effort, folder: Path, what: str, scale: float, count: int) -> Section:
    target = folder / f"photographs-{scale}"
    samples.photographs(target, count, PARTS, scale=scale)
    images = [p for path in part_paths(target, PARTS) for batch in read_part(path) for p in decode_bytes(batch, "encoded")]
    for i, image in enumerate(images):
        (target / f"{i:04d}.jpg").write_bytes(image.tobytes())
    options = {"folder": str(target), "batch": IMAGE_BATCH, "threads": THREADS}
    result = race(
        [
            Contender(OURS, "benchmarks.ours.images", {**options, "parts": PARTS}),
            Contender(SCALED, "benchmarks.ours.images", {**options, "parts": PARTS, "scaled": True}),
            Contender(OPENCV, "benchmarks.handwritten.images_opencv", options),
            Contender(TORCH, "benchmarks.pytorch.images", options),
            Contender(TORCHVISION, "benchmarks.pytorch.images", {**options, "torchvision": True}),
        ],
        rounds=effort.rounds, seconds=max(effort.seconds, 0.5), data=None,
    )  # fmt: skip
    made = Section(
        f"JPEG images: decode, random crop to 224 x 224, flip, normalise, batch. {what}",
        f"{sum(map(len, images)) // len(images) // 1000} kB each, "
        f"batches of {IMAGE_BATCH}, {THREADS} threads or workers; ours reads part files.",
        ["", "images/s", "ms an image: median", "quartiles"], failures=result.failures, quiet=result.quiet(),
        raw={"seconds": result.seconds},
    )  # fmt: skip
    for label in result.seconds:
        s = result.spread(label).scaled(1 / IMAGE_BATCH)
        made.rows.append([label, f"{1 / s.median:.0f}", f"{s.median * 1e3:.2f}", f"{s.low * 1e3:.2f} .. {s.high * 1e3:.2f}"])
    bounds = (
        (OURS, OPENCV, 0.9),
        (OURS, TORCH, 1.1),
        (SCALED, OPENCV, 1.5 if scale > 1 else None),
        (OURS, TORCHVISION, 3.0),
        (SCALED, TORCHVISION, 3.0),
    )
    for ours, label, bound in bounds:
        ratio = result.ratio(label, ours)
        if ratio is not None:
            made.checks.append(Check(f"images/s of {ours} / of {label}", ratio, bound))
    return made
