"""OneFlow's checkpoint layout: the names of its files, and opening them with suspicion. Knows no session.

The layout:
    <path>/<variable>/out     the elements, row-major, little-endian, no header
    <path>/<variable>/meta    shape and dtype (absent in checkpoints of OneFlow 0.1 and 0.2)
    <path>/oneflow-jax.json   what that layout has no place for, and the digests of all files; OneFlow ignores it
    <path>/snapshot_done      empty, written last
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from io import FileIO
from typing import NoReturn

from .._base import check
from .._base.dtype import dtype as Dtype
from .._base.files import TO_NOWHERE, leads_straight, open_regular, read_all, why_outside
from .._base.refuse import refuse
from ..errors import ArgumentError, CheckpointError, OneFlowError

OUT, META, DONE, EXTRA = "out", "meta", "snapshot_done", "oneflow-jax.json"

LARGEST_META = 1 << 20
LARGEST_EXTRA = 1 << 28  # positions of readers take 25 bytes per record of a shuffle buffer


def complain(kind: type[OneFlowError], rule: str, hint: str = "", **found: str) -> NoReturn:
    """Raises ``kind`` with rows of facts: ``complain(CheckpointError, "...", "try this", file=path, found="...")``."""
    refuse(kind, rule, found=[(label.replace("_", " "), text) for label, text in found.items()], hint=hint)


def describe(shape: Sequence[int], element: Dtype) -> str:
    """``float32[8, 128]``."""
    return f"{element.name}[{', '.join(map(str, shape))}]"


def as_path(path: str | os.PathLike[str]) -> str:
    """The path as text. Raises ArgumentError for anything but a non-empty str or os.PathLike of str."""
    text, problem = check.path(path)
    if problem:
        complain(ArgumentError, f"a checkpoint's path {problem}")
    return text


def check_name(name: object) -> str:
    """A variable's name, which is to become a directory's. Raises CheckpointError where it cannot."""
    if not isinstance(name, str) or not name:
        rule = "is not a non-empty str"
    elif "/" in name or "\0" in name or os.sep in name or name in (".", ".."):
        rule = 'contains "/", or is "." or ".."'
    elif name in (DONE, EXTRA):
        rule = "is the name of a file that every checkpoint has"
    elif not _encodes(name):
        rule = "is longer than the 255 bytes of a file's name, or has no encoding"
    else:
        return name
    rule = f"variable {name!r} cannot be saved: its name is that of a directory, and {rule}"
    complain(CheckpointError, rule[:600], "give it another name")


def _encodes(name: str) -> bool:
    try:
        return len(os.fsencode(name)) <= 255
    except UnicodeEncodeError:
        return False


def open_inside(root: str, path: str, what: str) -> FileIO:
    """Opens a regular file inside ``root``. Links that lead outside, pipes and devices are refused, never waited for."""
    real = path
    if not leads_straight(path, root):
        real = os.path.realpath(path)
        if why := why_outside(path, root, "the checkpoint"):
            hint, expected = "put a copy of the file in its place", f"a file below {os.path.realpath(root)}"
            _complain_of_opening(root, path, what, why, hint, file=path, expected=expected, found=real)
    try:
        return open_regular(real, follow_symlinks=False)
    except OSError as error:
        why = TO_NOWHERE if os.path.islink(path) and not os.path.exists(path) else error.strerror or str(error)
        _complain_of_opening(root, path, what, why, file=path)


def _complain_of_opening(root: str, path: str, what: str, why: str, hint: str = "", **facts: str) -> NoReturn:
    complain(CheckpointError, f"{what}: {os.path.relpath(path, root)!r} cannot be opened: {why}", hint, **facts)


def read_inside(root: str, path: str, what: str, largest: int) -> bytes:
    """The content of a file inside ``root`` of at most ``largest`` bytes."""
    try:
        with open_inside(root, path, what) as file:
            return read_all(file, largest)
    except OSError as error:
        complain(CheckpointError, f"{what}: {os.path.relpath(path, root)!r} cannot be understood: {error.strerror}", file=path)
