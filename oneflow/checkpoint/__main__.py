"""``oneflow checkpoint``: lists, shows, verifies and compares checkpoints and safetensors files, without starting JAX."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from .._base.command import FOUND, Parser, in_a_shell, status_of
from ..errors import CheckpointError, OneFlowError
from . import inspection
from .format import Checkpoint
from .layout import OUT
from .safetensors import File

_EPILOG = """examples:
  oneflow checkpoint list ./run
  oneflow checkpoint show ./run/snapshot_0000000100
  oneflow checkpoint verify ./run
  oneflow checkpoint diff ./run/snapshot_0000000100 ./run/snapshot_0000000200

exit statuses: 0 good; 1 verify found damage, or diff a difference; 2 an error; 130 interrupted"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Returns 0; 1 where damage or a difference was found; 2 for an error; 130 for Ctrl-C."""
    options = parser().parse_args(arguments)
    return status_of(lambda: int(options.run(options)), expected=(OneFlowError, OSError), text=_with_a_way_out)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = Parser(
        prog="oneflow checkpoint", description="Checkpoints: list, show, verify, compare.", epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    verbs = made.add_subparsers(required=True, metavar="VERB", parser_class=Parser)
    one = "a checkpoint, or a safetensors file"
    either = f"{one}, or a directory of them"
    for run, name, does, paths in (
        (_list, "list", "one line for each checkpoint", either),
        (_show, "show", "what a checkpoint holds", one),
        (_verify, "verify", "read every file and compare it with its digests", either),
    ):
        verb = verbs.add_parser(name, help=does)
        verb.add_argument("paths", nargs="+", metavar="PATH", help=paths)
        verb.set_defaults(run=run)
    compare = verbs.add_parser("diff", help="how two checkpoints differ, bit for bit")
    compare.add_argument("one", metavar="PATH", help=one)
    compare.add_argument("other", metavar="PATH", help="another one, of either kind")
    compare.set_defaults(run=_diff)
    return made


def _list(options: Any) -> int:
    for path in _each(options.paths):
        try:
            stored = inspection.opened(path, unfinished=True)
            extra = inspection.extra_of(stored)
            names = list(stored)
        except CheckpointError as error:
            print(f"{path}  damaged: {_in_one_line(error)}")
            continue
        if isinstance(stored, File):
            print(f"{path}  {len(names)} variables, {_size(sum(map(inspection.size_of, stored.values())))}  safetensors")
            continue
        files = [os.path.join(path, name, OUT) for name in names]
        present = [file for file in files if os.path.isfile(file)]
        size = sum(map(os.path.getsize, present))
        state = "" if stored.is_finished or not stored.description.exists else "  not finished"
        if len(present) < len(files) and not stored.is_single:
            state += f"  {len(files) - len(present)} without a value"
        print(f"{path}  {len(names)} variables, {_size(size)}{_noted(extra)}{state}")
    return 0


def _noted(extra: dict[str, Any]) -> str:
    """The notes of a manager with a checkpoint."""
    noted = extra.get("manager")
    if not isinstance(noted, dict):
        return ""
    parts = [] if noted.get("step") is None else [f"step {noted['step']}"]
    if isinstance(noted.get("metrics"), dict):
        parts += [f"{name}={value:.6g}" for name, value in noted["metrics"].items() if isinstance(value, (int, float))]
    if isinstance(noted.get("time"), (int, float)):
        parts.append(time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(noted["time"])))
    return "".join(f"  {part}" for part in parts)


def _show(options: Any) -> int:
    for path in options.paths:
        stored = inspection.opened(path)
        if isinstance(stored, Checkpoint) and stored.is_single:
            raise CheckpointError(f"{path!r} is one variable of a checkpoint; show {os.path.dirname(os.path.abspath(path))!r}")
        values: list[inspection.Value] = [stored[name] for name in stored]
        width = max((len(value.name) for value in values), default=0)
        for value in values:
            print(f"{value.name:<{width}}  {inspection.described(value):<24}  {_size(inspection.size_of(value))}")
        extra = inspection.extra_of(stored)
        metadata: Any
        if isinstance(stored, File):
            kind, metadata = "safetensors, no digests", _readable(extra)
        else:
            digests, metadata = stored.description.digests, extra.get("metadata")
            kind = "no digests" if digests is None else f"crc32 of each {_size(digests.chunk)}"
        print(f"{path}: {len(values)} variables, {_size(sum(map(inspection.size_of, values)))}, {kind}{_noted(extra)}")
        if metadata:
            print(json.dumps({"metadata": metadata}, indent=1))
    return 0


def _readable(texts: dict[str, str]) -> dict[str, Any]:
    """The metadata of a safetensors file: of texts that are JSON, what they say."""
    return {name: _of_json(text) for name, text in texts.items()}


def _of_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _verify(options: Any) -> int:
    status = 0
    for path in _each(options.paths):
        verdict = inspection.verify(path)
        for error in verdict.errors:
            print(in_a_shell(error))
        if verdict.errors:
            status = FOUND
        found = (
            f"{len(verdict.errors)} damaged" if verdict.errors else "whole" if verdict.has_digests else "sizes fit; no digests"
        )
        print(f"{path}: {verdict.variables} variables, {_size(verdict.bytes)}: {found}")
    return status


def _diff(options: Any) -> int:
    count = 0
    for found in inspection.differences(options.one, options.other):
        print(f"{found.name}: {found.what}")
        count += 1
    print(f"{count} differences" if count else "no differences")
    return FOUND if count else 0


def _each(paths: Sequence[str]) -> list[str]:
    return [found for path in paths for found in inspection.checkpoints_in(path)]


def _in_one_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _with_a_way_out(error: Exception) -> str:
    """The rule that was broken, and what to try, on one line."""
    rule, *rest = str(error).splitlines() or [""]
    hints = [line.removeprefix("  try ").strip() for line in rest if line.startswith("  try ")]
    return f"{rule}; try {hints[0]}" if hints else rule


def _size(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"


if __name__ == "__main__":
    sys.exit(main())
