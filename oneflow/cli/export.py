"""``oneflow export script.py:job FILE``: a job and the weights of a checkpoint as ONNX or StableHLO."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from .. import export
from .._base.command import Parser
from ..errors import ArgumentError
from .scripts import add_target, load_job, parsed, shell_path

_SUFFIXES = (".onnx", ".stablehlo")


def parser() -> Parser:
    """The command line."""
    made = Parser(
        prog="oneflow export", description="Writes a predict job with the weights of a checkpoint to a file that runs "
        "without this library. The script runs as far as its first call of a job.",
        epilog="example: oneflow export train.py:evaluate --weights runs/checkpoints/last --out model.onnx",
    )  # fmt: skip
    made.add_argument(
        "--out", required=True, type=shell_path, metavar="FILE", help="FILE.onnx or FILE.stablehlo; an existing file is replaced"
    )
    weights = made.add_mutually_exclusive_group(required=True)
    weights.add_argument("--weights", type=shell_path, metavar="CHECKPOINT", help="the checkpoint whose values are written")
    weights.add_argument("--untrained", action="store_true", help="write the values that the initializers give")
    made.add_argument("--opset", type=int, metavar="N", help="version of ONNX's operator set (17)")
    add_target(made)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the file. Returns 0."""
    made = parser()
    options = parsed(made, arguments)
    suffix = PurePath(options.out).suffix
    if suffix not in _SUFFIXES:
        made.error(f"--out must end in {' or '.join(_SUFFIXES)}, it is {options.out!r}")
    if options.opset is not None and suffix != ".onnx":
        made.error("--opset is for ONNX; leave it out, or write FILE.onnx")
    job = load_job(options.job, options.arguments)
    if job.train:
        raise ArgumentError(
            f"job {job.name!r} is a train job, and a file holds what a model computes, not how it learns\n"
            "  try        a predict job of the same layers"
        )
    if suffix == ".onnx":
        export.onnx(job, options.out, opset=options.opset, weights=options.weights)
    else:
        export.stablehlo(job, options.out, weights=options.weights)
    print(f"{options.out}: job {job.name!r}")
    return 0
