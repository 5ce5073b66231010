"""Placement strings and distributions: parsing and algebra only, no devices."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..errors import ArgumentError
from .refuse import refuse, shown

_DEVICES = re.compile(r"^@?(\d+):(\d+)(?:-(\d+))?$")


@dataclass(frozen=True, slots=True)
class Placement:
    """The devices that an op runs on: a tag, (machine, device) pairs in device order, and how they are arranged.

    ``hierarchy`` has the sizes of the arrangement, which the devices fill row by row: (4,), or (2, 2) for rows and columns.
    """

    tag: str
    devices: tuple[tuple[int, int], ...]
    hierarchy: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.hierarchy:
            object.__setattr__(self, "hierarchy", (len(self.devices),))

    @property
    def parallel_num(self) -> int:
        """The number of devices."""
        return len(self.devices)

    def device_tag(self) -> str:
        """``"cpu"`` or ``"gpu"``."""
        return self.tag

    def device_name(self) -> list[str]:
        """The devices as OneFlow writes them: one ``machine:first-last`` a machine."""
        names = []
        for machine in sorted({m for m, _ in self.devices}):
            ids = [d for m, d in self.devices if m == machine]
            contiguous = ids == list(range(ids[0], ids[-1] + 1))
            names += [f"{machine}:{ids[0]}-{ids[-1]}"] if contiguous else [f"{machine}:{d}-{d}" for d in ids]
        return names

    def __str__(self) -> str:
        arranged = f" as {'x'.join(map(str, self.hierarchy))}" if len(self.hierarchy) > 1 else ""
        return f"{self.tag} {','.join(self.device_name())}{arranged}"


def parse_placement(tag: str, devices: str | Iterable[str], hierarchy: Iterable[int] | None = None) -> Placement:
    """Reads ``"0:0"``, ``"0:0-3"`` or a list of such strings ("machine:first-last", inclusive).

    Raises:
      ArgumentError: the tag is neither "gpu" nor "cpu", a string does not follow the grammar, or the hierarchy is not made
        of as many devices.
    """
    if not isinstance(tag, str) or tag not in ("gpu", "cpu"):
        refuse(ArgumentError, f'a placement\'s device_tag must be "gpu" or "cpu", got {shown(tag)}')
    strings = [devices] if isinstance(devices, str) else devices
    if not isinstance(strings, (list, tuple)) or not strings:
        refuse(ArgumentError, f'a placement\'s devices must be a string like "0:0-3" or a list of them, got {shown(devices)}')
    found: set[tuple[int, int]] = set()
    for text in strings:
        match = _DEVICES.match(text) if isinstance(text, str) else None
        if match is None:
            refuse(
                ArgumentError, f'placement {shown(text)} is not "machine:device" or "machine:first-last", e.g. "0:0" or "0:0-3"'
            )
        machine, first, last = int(match[1]), int(match[2]), int(match[3] or match[2])
        if last < first:
            refuse(ArgumentError, f"placement {shown(text)}: the last device comes before the first")
        found |= {(machine, device) for device in range(first, last + 1)}
    counts = {m: sum(1 for n, _ in found if n == m) for m, _ in found}
    if len(set(counts.values())) != 1:
        refuse(ArgumentError, f"every machine of a placement must give the same number of devices, got {counts}")
    return Placement(tag, tuple(sorted(found)), _hierarchy(hierarchy, len(found)))


def _hierarchy(sizes: Iterable[int] | None, devices: int) -> tuple[int, ...]:
    if sizes is None:
        return (devices,)
    good = isinstance(sizes, (list, tuple)) and all(type(s) is int and s > 0 for s in sizes)
    if not good or math.prod(sizes) != devices:
        refuse(ArgumentError, f"a placement's hierarchy must be ints whose product is its {devices} devices, got {shown(sizes)}")
    return tuple(sizes)


@dataclass(frozen=True, slots=True)
class Distribute:
    """The layout of a logical tensor on its devices: ``split(axis)``, ``broadcast()`` or ``auto()``."""

    kind: str
    axis: int | None = None

    def __repr__(self) -> str:
        return f"split({self.axis})" if self.kind == "split" else f"{self.kind}()"


_SPLITS: dict[int, Distribute] = {}
_BROADCAST = Distribute("broadcast")
_AUTO = Distribute("auto")


def split(axis: int) -> Distribute:
    """Pieces along ``axis`` (>= 0), one per device.

    Example: >>> w = flow.get_variable("w", (8, 4), initializer=flow.ones_initializer(), distribute=flow.distribute.split(0))
    """
    if type(axis) is not int or axis < 0:
        refuse(ArgumentError, f"distribute.split needs an int axis >= 0, got {shown(axis)}")
    return _SPLITS.setdefault(axis, Distribute("split", axis))


def broadcast() -> Distribute:
    """Every device has the whole tensor.

    Example: >>> w = flow.get_variable("w", (8, 4), initializer=flow.ones_initializer(), distribute=flow.distribute.broadcast())
    """
    return _BROADCAST


def auto() -> Distribute:
    """No request: the library chooses.

    Example: >>> w = flow.get_variable("w", (8, 4), initializer=flow.ones_initializer(), distribute=flow.distribute.auto())
    """
    return _AUTO


def assert_is_valid_distribute(distribute: object) -> None:
    """Raises ArgumentError for anything that split, broadcast or auto did not make.

    Example: >>> flow.distribute.assert_is_valid_distribute(flow.distribute.split(0))
    """
    if not isinstance(distribute, Distribute):
        refuse(ArgumentError, f"not a distribution: {shown(distribute)}; use flow.distribute.split(axis), broadcast() or auto()")
