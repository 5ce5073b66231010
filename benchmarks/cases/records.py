"""Data from disk, without a job: raw records against a loop over protobuf messages, JPEG images against plain OpenCV."""

from __future__ import annotations

from pathlib import Path

from oneflow.data import samples
from oneflow.data.decoders import decode_bytes
from oneflow.data.parts import part_paths, read_part

from ..effort import Effort
from ..process import Contender
from ..race import race
from ..report import Check, Section

PARTS, BATCH, RECORDS = 4, 512, 8192
IMAGES, IMAGE_BATCH, THREADS = 128, 32, 2
OURS, LOOP, FRAMES = "ours", "Python loop over protobuf messages", "ours, records found but not decoded"
OPENCV, TORCH = "plain OpenCV and NumPy, 2 threads, from memory", "DataLoader, 2 workers, the same calls, from memory"


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
        _images(effort, data.parent),
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


def _images(effort: Effort, folder: Path) -> Section:
    target = folder / "photographs"
    samples.photographs(target, IMAGES, PARTS)
    images = [p for path in part_paths(target, PARTS) for batch in read_part(path) for p in decode_bytes(batch, "encoded")]
    for i, image in enumerate(images):
        (target / f"{i:04d}.jpg").write_bytes(image.tobytes())
    options = {"folder": str(target), "batch": IMAGE_BATCH, "threads": THREADS}
    result = race(
        [
            Contender(OURS, "benchmarks.ours.images", {**options, "parts": PARTS}),
            Contender(OPENCV, "benchmarks.handwritten.images_opencv", options),
            Contender(TORCH, "benchmarks.pytorch.images", options),
        ],
        rounds=effort.rounds, seconds=max(effort.seconds, 0.5), data=None,
    )  # fmt: skip
    made = Section(
        "JPEG images: decode, random crop to 224 x 224, flip, normalise, batch",
        f"Made images of about 500 x 375, {sum(map(len, images)) // len(images) // 1000} kB each, "
        f"batches of {IMAGE_BATCH}, {THREADS} threads or workers; ours reads part files.",
        ["", "images/s", "ms an image: median", "quartiles"], failures=result.failures, quiet=result.quiet(),
        raw={"seconds": result.seconds},
    )  # fmt: skip
    for label in result.seconds:
        s = result.spread(label).scaled(1 / IMAGE_BATCH)
        made.rows.append([label, f"{1 / s.median:.0f}", f"{s.median * 1e3:.2f}", f"{s.low * 1e3:.2f} .. {s.high * 1e3:.2f}"])
    for label, bound in ((OPENCV, 0.9), (TORCH, 1.1)):
        ratio = result.ratio(label, OURS)
        if ratio is not None:
            made.checks.append(Check(f"images/s of ours / of {label}", ratio, bound))
    return made
