"""Numbers as a table in a file."""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .._base import check
from .._base.files import open_regular
from .._base.refuse import refuse
from .._base.whole_files import replacing
from ..errors import ArgumentError, DataError
from .base import FileLogger, Logger, numbers_of


def refuse_shared_files(loggers: Sequence[Logger]) -> None:
    """Refuses two CSVLoggers of one trainer that would write to the same file."""
    paths = [os.path.realpath(logger.path) for logger in loggers if isinstance(logger, CSVLogger)]
    if twice := next((path for i, path in enumerate(paths) if path in paths[:i]), None):
        refuse(ArgumentError, f"two CSVLoggers of the trainer would write to {twice!r}",
               hint='give one of them another name: CSVLogger(name="...")')  # fmt: skip


class CSVLogger(FileLogger):
    """Writes numbers to ``metrics.csv``: a row for each step that is logged, a column for each name.

    Rows are formatted and written in one go each second. A run that goes on continues the file; rows of steps that it will do
    again are taken out.

    Args:
      save_dir: None: the trainer's ``default_root_dir``.
      name: a directory in it.
      version: of the run; None: the first number that is free.
      flush_seconds: how long rows may wait, >= 0.
    Raises:
      ArgumentError: an argument outside its range.
    Example: >>> flow.Trainer(max_epochs=2, logger=flow.loggers.CSVLogger("./runs"))
    """

    def __init__(
        self,
        save_dir: str | os.PathLike[str] | None = None,
        name: str = "logs",
        version: int | str | None = None,
        flush_seconds: float = 1.0,
    ):
        super().__init__(save_dir, name, version)
        self._flush_seconds = check.checked(self, "flush_seconds", check.number(flush_seconds, low=0))
        self._columns: list[str] = []
        self._waiting: list[dict[str, Any]] = []
        self._next = 0.0

    @property
    def path(self) -> str:
        """The file."""
        return os.path.join(self.log_dir, "metrics.csv")

    def begin(self, resumed: Mapping[str, Any] | None, step: int) -> None:
        """Begins the file, or takes out the rows of steps that will be done again."""
        super().begin(resumed, step)
        self._columns, self._waiting = [], []
        if resumed is not None and os.path.lexists(self.path):
            rows, self._columns = self._read()
            self._write_anew([row for row in rows if row["step"].isdigit() and int(row["step"]) < step], self._columns)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Keeps a row; of values that are not single numbers nothing is written."""
        self._waiting.append({"step": step, **metrics})
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._flush_seconds
            self.save()

    def save(self) -> None:
        """Writes the rows that wait."""
        if not self._waiting:
            return
        rows = [numbers_of(row) for row in self._waiting]
        new = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in self._columns]
        try:
            if new:
                earlier = self._read()[0] if self._columns else []
                self._write_anew([*earlier, *rows], [*self._columns, *new])
            else:
                self._append(rows)
        except OSError as error:
            refuse(
                DataError, f"CSVLogger cannot write its file: {error.strerror or error}", found=[("file", self.path)], cause=error
            )
        self._waiting = []

    def finalize(self, status: str) -> None:
        """Writes the rows that wait."""
        self.save()

    def _read(self) -> tuple[list[dict[str, str]], list[str]]:
        """The rows and columns of the file. Raises DataError where it is not one that a logger wrote."""
        try:
            with io.TextIOWrapper(io.BufferedReader(open_regular(self.path)), encoding="utf-8", newline="") as file:
                reader = csv.DictReader(file)
                rows = [row for row in reader if None not in row and None not in row.values()]  # a kill may cut the last one
                columns = list(reader.fieldnames or [])
        except (OSError, ValueError, csv.Error) as error:
            why = getattr(error, "strerror", None) or str(error)
        else:
            if not columns or "step" in columns:
                return rows, columns
            why = 'it has no column "step"'
        refuse(DataError, f"CSVLogger cannot continue its file: {why}", found=[("file", self.path)],
               hint="move it away, or choose another version")  # fmt: skip

    def _write_anew(self, rows: list[dict[str, Any]], columns: list[str]) -> None:
        """Replaces the file, in one step."""
        os.makedirs(self.log_dir, exist_ok=True)
        with replacing(self.path) as staged, open(staged, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, restval="")
            writer.writeheader()
            writer.writerows(rows)
        self._columns = columns

    def _append(self, rows: list[dict[str, Any]]) -> None:
        """Writes all rows, or none."""
        before = os.path.getsize(self.path)
        try:
            with open(self.path, "a", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, self._columns).writerows(rows)
        except OSError:
            os.truncate(self.path, before)
            raise
