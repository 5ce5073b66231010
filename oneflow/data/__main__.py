"""``oneflow data``: packs, shows and verifies OFRecord part files, and makes test data."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from .._base.command import Parser, in_a_shell, status_of
from ..errors import ArgumentError, DataError, OneFlowError
from . import inspect, samples
from .inputs import Arrays, CsvFile, ImageFolder, TfRecords
from .pack import Packed, pack

_EPILOG = """examples:
  oneflow data pack images photographs train --labels labels.txt --parts 16
  oneflow data pack arrays mnist.npz train --feature image=x_train --feature label=y_train --png image
  oneflow data pack csv clicks.csv train --feature label=clicked:int32 --feature dense=I1,I2,I3:float
  oneflow data pack tfrecord a.tfrecord b.tfrecord train --parts 4
  oneflow data show train --sheet first.png
  oneflow data verify train --images encoded
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Returns 0; 1 where ``verify`` found damage; 2 for an error."""
    options = parser().parse_args(arguments)
    after = "interrupted; the parts that exist are complete, and the same command continues with the others"
    return status_of(lambda: int(options.run(options)), expected=(OneFlowError, OSError), interrupted=after)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = Parser(
        prog="oneflow data", description="OFRecord part files: pack, show, verify, and samples to try things with.",
        epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    verbs = made.add_subparsers(required=True, metavar="VERB")
    kinds = verbs.add_parser("pack", help="turn data into part files").add_subparsers(required=True, metavar="KIND")
    for one in (_add_images(kinds), _add_arrays(kinds), _add_csv(kinds), _add_tfrecord(kinds)):
        one.add_argument("target", help="directory of the parts")
        one.add_argument("--parts", type=int, default=1, metavar="N", help="number of part files (1)")
        one.add_argument("--prefix", default="part-", help="of their names (part-)")
        one.add_argument("--suffix-length", type=int, default=-1, metavar="N", help="digits of their numbers (no padding)")
        one.add_argument("--workers", type=int, metavar="N", help="threads (one per core)")
        one.add_argument("--overwrite", action="store_true", help="replace parts that were made of something else")
        one.add_argument("--quiet", action="store_true", help="no progress bar")
    _add_show(verbs)
    _add_verify(verbs)
    _add_sample(verbs)
    return made


# --- pack


def _add_images(kinds: Any) -> argparse.ArgumentParser:
    parser = kinds.add_parser("images", help="a folder of images, with a file of labels or a subfolder for each class")
    parser.add_argument("source", help="the folder")
    parser.add_argument("--labels", metavar="FILE", help="lines of a path below the folder and a label")
    parser.add_argument("--allow-outside", action="store_true", help="images may be outside the folder, by names or by links")
    parser.add_argument("--image-feature", default="encoded", metavar="NAME", help="name in the records (encoded)")
    parser.add_argument("--label-feature", default="class/label", metavar="NAME", help="name in the records (class/label)")
    parser.set_defaults(run=_pack_images)
    return parser


def _pack_images(options: Any) -> int:
    names = options.image_feature, options.label_feature
    return _pack(ImageFolder(options.source, options.labels, *names, allow_outside=options.allow_outside), options)


def _add_arrays(kinds: Any) -> argparse.ArgumentParser:
    parser = kinds.add_parser("arrays", help="an .npz file")
    parser.add_argument("source", help="the file")
    parser.add_argument(
        "--feature", action="append", metavar="NAME=ARRAY", help="a feature, and its array (all, under their own names)"
    )
    parser.add_argument("--png", action="append", default=[], metavar="NAME", help="store this feature's images as PNG")
    parser.set_defaults(run=lambda o: _pack(Arrays(o.source, _assignments(o.feature) or None, o.png), o))
    return parser


def _add_csv(kinds: Any) -> argparse.ArgumentParser:
    parser = kinds.add_parser("csv", help="a CSV file")
    parser.add_argument("source", help="the file")
    spelled = "NAME=COLUMN[,COLUMN...][:KIND]"
    parser.add_argument(
        "--feature",
        action="append",
        metavar=spelled,
        help="columns make one list; kinds: float double int32 int64 bytes (guessed)",
    )
    parser.add_argument("--delimiter", default=",", help="between values (,); \\t for tabs")
    parser.add_argument("--no-header", action="store_true", help="the first row is data; columns are called 0, 1, ...")
    parser.add_argument("--missing", type=float, metavar="NUMBER", help="the number that an empty cell stands for (an error)")
    parser.set_defaults(run=_pack_csv)
    return parser


def _pack_csv(options: Any) -> int:
    features: dict[str, tuple[list[str], str | None]] = {}
    for name, value in _assignments(options.feature).items():
        columns, _, kind = value.partition(":")
        features[name] = (columns.split(","), kind or None)
    delimiter = options.delimiter.replace("\\t", "\t")
    return _pack(CsvFile(options.source, features or None, delimiter, not options.no_header, options.missing), options)


def _add_tfrecord(kinds: Any) -> argparse.ArgumentParser:
    parser = kinds.add_parser("tfrecord", help="TFRecord files of tf.train.Example")
    parser.add_argument("source", nargs="+", help="the files, in order")
    parser.set_defaults(run=lambda o: _pack(TfRecords(o.source), o))
    return parser


def _assignments(texts: Sequence[str] | None) -> dict[str, str]:
    made: dict[str, str] = {}
    for text in texts or ():
        name, found, value = text.partition("=")
        if not (name and found and value):
            raise ArgumentError(f"a feature is written NAME=SOURCE, not {text!r}")
        if name in made:
            raise ArgumentError(f"feature {name!r} is given twice: {made[name]} and {value}")
        made[name] = value
    return made


def _pack(source: Any, options: Any) -> int:
    done: Packed = pack(
        source, options.target, options.parts, prefix=options.prefix, suffix_length=options.suffix_length,
        workers=options.workers, overwrite=options.overwrite, progress=not options.quiet,
    )  # fmt: skip
    kept = f" ({done.kept} existed already)" if done.kept else ""
    print(f"{done.records} records in {len(done.paths)} parts{kept}: {options.target}")
    classes = getattr(source, "classes", [])
    if classes:
        last = f", {len(classes) - 1} is {classes[-1]!r}" if len(classes) > 1 else ""
        print(f"{len(classes)} classes: 0 is {classes[0]!r}{last}")
    return 0


# --- show, verify, sample


def _add_show(verbs: Any) -> None:
    parser = verbs.add_parser("show", help="show the content of part files")
    parser.add_argument("paths", nargs="+", help="part files, or directories of them")
    parser.add_argument("--prefix", default="part-", help="of the names of parts in a directory (part-)")
    parser.add_argument("--limit", type=int, metavar="N", help="look at about N records only")
    parser.add_argument("--record", type=int, metavar="N", help="print record N, counted from 0 over all files in their order")
    parser.add_argument("--sheet", metavar="FILE.png", help="draw the first images into this file")
    parser.add_argument(
        "--images",
        "--pictures",
        dest="image_feature",
        metavar="NAME",
        help="the feature of the images (the first that has some)",
    )
    parser.add_argument("--count", type=int, default=32, metavar="N", help="number of images (32)")
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=_show)


def _show(options: Any) -> int:
    if options.limit is not None and options.limit < 1:
        raise ArgumentError(f"--limit must be at least 1, got {options.limit}")
    paths = inspect.part_files(options.paths, options.prefix)
    if options.record is not None:
        print(str(inspect.one_record(paths, options.record))[:10000])
        return 0
    summary = inspect.describe(paths, options.limit)
    if options.json:
        plain = json.loads(json.dumps(dataclasses.asdict(summary)), parse_constant=str)  # JSON has no NaN
        print(json.dumps(plain, indent=1))
    else:
        text = str(summary)
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"  # there is no output where it was closed
        print(text.encode(encoding, "backslashreplace").decode(encoding))
    if options.sheet:
        drawn = inspect.contact_sheet(paths, options.sheet, options.image_feature, options.count)
        print(f"{drawn} images: {options.sheet}", file=sys.stderr)
    return 0


def _add_verify(verbs: Any) -> None:
    parser = verbs.add_parser("verify", help="read every record; the exit status is 1 where one is damaged")
    parser.add_argument("paths", nargs="+", help="part files, or directories of them")
    parser.add_argument("--prefix", default="part-", help="of the names of parts in a directory (part-)")
    parser.add_argument(
        "--images", "--pictures", dest="image_features", action="append", default=[], metavar="NAME",
        help="decode this feature's images, too",
    )  # fmt: skip
    parser.add_argument("--workers", type=int, metavar="N", help="threads (one per core)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=_verify)


def _verify(options: Any) -> int:
    from tqdm import tqdm

    paths = inspect.part_files(options.paths, options.prefix)
    total = sum(os.path.getsize(p) for p in paths if os.path.isfile(p))
    with tqdm(total=total, unit="B", unit_scale=True, desc="verifying", disable=options.quiet, leave=False) as bar:
        errors = inspect.verify(paths, image_features=options.image_features, workers=options.workers, progress=bar.update)
    for error in errors:
        print(in_a_shell(error) + "\n")
    print(f"{len(paths)} parts: {f'{len(errors)} errors' if errors else 'no errors'}")
    return 1 if errors else 0


def _add_sample(verbs: Any) -> None:
    parser = verbs.add_parser("sample", help="make small data sets to try things with")
    about = [f"{kind}: {(make.__doc__ or '').splitlines()[0]}" for kind, make in samples.KINDS.items()]
    parser.add_argument("kind", choices=sorted(samples.KINDS), help="; ".join(about))
    parser.add_argument("target", help="directory")
    parser.add_argument("--count", type=int, default=64, metavar="N", help="number of samples (64)")
    parser.add_argument("--parts", type=int, default=2, metavar="N", help="number of part files (2)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random numbers (0)")
    parser.set_defaults(run=_sample)


def _sample(options: Any) -> int:
    if options.count < 1:
        raise DataError("--count must be at least 1")
    samples.KINDS[options.kind](options.target, options.count, options.parts, options.seed)
    print(f"{options.count} samples: {options.target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
