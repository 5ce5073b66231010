"""How an error about data reads: the rule broken, then file, record, byte offset, feature, what was found, a way out."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import RecordError


@dataclass(frozen=True, slots=True)
class Where:
    """A record's place: its file, its number in that file from 0, the offset of its length prefix in bytes."""

    file: str
    record: int
    offset: int


def fault(
    error: type[RecordError],
    rule: str,
    where: Where | None = None,
    *,
    feature: str | None = None,
    expected: str = "",
    found: str = "",
    hint: str = "",
) -> RecordError:
    """The exception, to be raised. It carries its place as attributes, too."""
    rows: list[tuple[str, object]] = []
    if where is not None:
        rows += [("file", where.file), ("record", f"{where.record}, at byte {where.offset}")]
    rows += [("feature", repr(feature))] if feature is not None else []
    rows += [(label, text) for label, text in (("expected", expected), ("found", found), ("try", hint)) if text]
    made = error("\n".join([rule, *(f"  {label:<9}  {text}" for label, text in rows)]))
    if where is not None:
        made.file, made.record, made.offset = where.file, where.record, where.offset
    made.feature = feature
    return made
