"""The JSON file of a checkpoint: random state, metadata, digests."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import CheckpointError
from .digests import Digests, is_seal_intact, seal
from .layout import EXTRA, LARGEST_EXTRA, complain, read_inside

_FORMAT = 1
_WITHOUT_DIGESTS = {"format", "random"}  # all that files of the versions without digests can hold
_SEALED = ("digests", "crc32")


@dataclass(frozen=True, slots=True)
class Description:
    """The contents of a checkpoint's JSON file.

    Attributes:
      extra: everything but the digests; empty where there is no such file, as in checkpoints that OneFlow wrote.
      digests: None where there are none.
      exists: whether there is such a file.
    """

    extra: Mapping[str, Any]
    digests: Digests | None
    exists: bool

    @staticmethod
    def read(root: str) -> Description:
        """Reads and verifies it. Raises CheckpointError where it is damaged, or of another version."""
        path = os.path.join(root, EXTRA)
        if not os.path.lexists(path):
            return Description({}, None, False)
        what = f"checkpoint {root!r}"
        data = read_inside(root, path, what, LARGEST_EXTRA)
        hint = f"remove {EXTRA} to load the variables alone, unverified"
        try:
            value = json.loads(data.decode())
        except (ValueError, RecursionError) as error:
            complain(CheckpointError, f"{what}: its {EXTRA} is not JSON: {error}", hint, file=path)
        version = value.get("format") if isinstance(value, dict) else value
        if not isinstance(value, dict) or version != _FORMAT:
            rule = f"{what}: its {EXTRA} has a format that this version does not know"
            complain(CheckpointError, rule, hint, file=path, expected=f"format {_FORMAT}", found=repr(version)[:80])
        if value.keys() <= _WITHOUT_DIGESTS:
            return Description(value, None, True)
        if not is_seal_intact(data):
            complain(CheckpointError, f"{what}: its {EXTRA} is damaged: its own digest does not fit", hint, file=path)
        try:
            digests = Digests.parse(value.get("digests"))
        except ValueError as error:
            complain(CheckpointError, f"{what}: its {EXTRA} is damaged: {error}", hint, file=path)
        return Description({name: item for name, item in value.items() if name not in _SEALED}, digests, True)


def text_of(extra: Mapping[str, Any], digests: Digests) -> bytes:
    """The content of the file. Raises ValueError or TypeError for what is not JSON."""
    return seal({"format": _FORMAT, **extra, "digests": digests.as_json()})
