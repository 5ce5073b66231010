"""The messages between the processes of a run, as one table: what each kind holds, checked before anything uses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import wire
from .wire import ProtocolError

Message = dict[str, Any]

MAX_TEXT = 10_000  # characters of a reason, a call's name or a tag
MAX_RECENT = 256  # calls in one heartbeat
_MAX_NUMBER = 1 << 53
ENDS = ("finished", "failed", "lost")  # "lost": it gives up because another one is lost

_Check = Callable[[Any, int], bool]  # of a value, in a run of so many processes


def _rank(value: Any, count: int) -> bool:
    return type(value) is int and 0 <= value < count


def _number(value: Any, count: int) -> bool:
    return type(value) is int and 0 <= value <= _MAX_NUMBER


def _text(value: Any, count: int) -> bool:
    return type(value) is str and len(value) <= MAX_TEXT


def _recent(value: Any, count: int) -> bool:
    pairs = type(value) is list and len(value) <= MAX_RECENT and all(type(p) is list and len(p) == 2 for p in value)
    return pairs and all(_number(number, count) and _text(call, count) for number, call in value)


def _ranks(value: Any, count: int) -> bool:
    return type(value) is list and len(value) <= count and all(_rank(v, count) for v in value)


def _anything(value: Any, count: int) -> bool:
    return True  # its size and depth are bounded by the line's


def _end(value: Any, count: int) -> bool:
    return value in ENDS


# What a process sends; the hub relays it to all, once it has joined. "from" is its number.
FROM_MEMBERS: dict[str, dict[str, _Check]] = {
    "join": {"from": _number, "count": _number},
    "beat": {"from": _rank, "calls": _number, "returned": _number, "busy": _text, "doing": _text, "recent": _recent},
    "gather": {"from": _rank, "number": _number, "tag": _text, "value": _anything},
    "end": {"from": _rank, "how": _end, "why": _text, "calls": _number},
}
# What the hub itself says.
FROM_HUB: dict[str, dict[str, _Check]] = {
    "go": {"coordinator": _text},
    "refused": {"why": _text},
    "missing": {"ranks": _ranks, "strangers": _number},
    "gone": {"from": _rank},
}
_ALL = {**FROM_MEMBERS, **FROM_HUB}


def encode(kind: str, **fields: Any) -> bytes:
    """A message as a line; reasons and names that are too long are cut."""
    checks = _ALL[kind]
    assert fields.keys() == checks.keys()
    cut = {name: value[:MAX_TEXT] if checks[name] is _text else value for name, value in fields.items()}
    return wire.encode({"kind": kind, **cut})


def decode(line: bytes, count: int, known: dict[str, dict[str, _Check]]) -> Message:
    """The message of a line, in a run of ``count`` processes.

    Raises:
      ProtocolError: it is not one of those that are ``known``, or a field is missing, unknown, or has another type or range.
    """
    message = wire.decode(line)
    kind = message.get("kind") if type(message) is dict else None
    checks = known.get(kind) if type(kind) is str else None
    if checks is None:
        raise ProtocolError("a message is of no kind that is known here")
    if message.keys() != {"kind", *checks}:
        raise ProtocolError(f"a {kind!r} message has other fields than {', '.join(checks)}")
    for name, check in checks.items():
        if not check(message[name], count):
            raise ProtocolError(f"{name!r} of a {kind!r} message is out of range")
    return message
