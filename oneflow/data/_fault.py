"""The layout of errors about data: the broken rule, then file, record, byte offset, feature, the value found, a hint."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import RecordError


@dataclass(frozen=True, slots=True)
class Where:
    """The place of a record: its file, its number in that file from 0, the offset of its length prefix in bytes.

    In a file that is one sample, number and offset are -1.
    """

    file: str
    record: int = -1
    offset: int = -1

    def rows(self, feature: str | None = None) -> list[tuple[str, str]]:
        """The rows of an error: labels and texts."""
        rows = [("file", self.file)]
        rows += [("record", f"{self.record}, at byte {self.offset}")] if self.record >= 0 else []
        return rows + ([("feature", repr(feature))] if feature is not None else [])


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
    """The exception, to be raised. Its place is in its attributes, too. ``rule`` may be the text of another error."""
    rule, *more = rule.splitlines() or [""]
    rows = where.rows(feature) if where is not None else [("feature", repr(feature))] if feature is not None else []
    rows += [(label, text) for label, text in (("expected", expected), ("found", found), ("try", hint)) if text]
    hints = [row for row in more if row.startswith("  try  ")]
    more = [row for row in more if row not in hints]
    made = error("\n".join([rule, *more, *(f"  {label:<9}  {text}" for label, text in rows), *hints]))
    if where is not None:
        made.file, made.record, made.offset = where.file, where.record, where.offset
    made.feature = feature
    return made
