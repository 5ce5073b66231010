"""The numbers that a training has logged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .._base.extras import need
from .._base.frames import shows_user_frames
from .._base.refuse import closest, refuse, shown
from ..errors import ArgumentError

Row = dict[str, Any]


class History:
    """The numbers of a training, as rows. ``history["val_loss"]`` is the list of a number's values.

    Attributes:
      rows: one for each epoch and for each validation in the midst of one: ``epoch``, ``step`` (the last one before it), means
        over the epoch, results of the validation that took place there.
      steps: one for each ``log_every_n_steps``-th step: ``epoch``, ``step``, and the numbers of its batch. A run that goes on
        begins a new list; loggers have the earlier ones.

    Example:
      >>> history = flow.trainer.History()
      >>> history.rows.append({"epoch": 0, "step": 99, "loss": 0.5})
      >>> assert history["loss"] == [0.5]
    """

    def __init__(self, rows: Sequence[Row] = ()):
        if not isinstance(rows, (list, tuple)) or not all(isinstance(row, Mapping) for row in rows):
            refuse(ArgumentError, f"History takes a list of dictionaries, got {shown(rows)}")
        self.rows: list[Row] = [dict(row) for row in rows]
        self.steps: list[Row] = []

    @shows_user_frames
    def __getitem__(self, name: str) -> list[Any]:
        if not isinstance(name, str):
            refuse(ArgumentError, f"a history is asked for a name, a str, got {shown(name)}", hint="history.rows[i]")
        values = [row[name] for row in self.rows if name in row]
        if not values:
            known = list(dict.fromkeys(key for row in self.rows for key in row))
            near = closest(name, known, count=3)
            refuse(ArgumentError, f"no row of the history has {name!r}", found=[("it has", ", ".join(known) or "no rows")],
                   hint=f"did you mean {' or '.join(map(repr, near))}?" if near else "")  # fmt: skip
        return values

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @shows_user_frames
    def to_pandas(self, which: str = "rows") -> Any:
        """The rows as a pandas DataFrame.

        Args:
          which: ``"rows"`` or ``"steps"``.
        Raises:
          ArgumentError: neither of them.
          MissingExtraError: pandas is not installed.
        """
        pandas = need("pandas", "History.to_pandas")
        return pandas.DataFrame(self._of(which))

    @shows_user_frames
    def plot(self, *names: str, which: str = "rows", ax: Any = None) -> Any:
        """Draws numbers over steps with matplotlib.

        Args:
          names: of the numbers; none: all.
          which: ``"rows"`` or ``"steps"``.
          ax: the axes to draw into; None: those of a new figure.
        Returns: the axes.
        Raises:
          ArgumentError: nothing has been logged under a name.
          MissingExtraError: matplotlib is not installed.
        """
        pyplot = need("matplotlib.pyplot", "History.plot")
        rows = self._of(which)
        known = dict.fromkeys(n for row in rows for n, v in row.items() if isinstance(v, float))
        for name in names:
            if name not in known:
                refuse(ArgumentError, f"nothing was logged as {name!r}", found=[("logged", ", ".join(known))])
        axes = ax if ax is not None else pyplot.subplots()[1]
        for name in names or known:
            points = [(row["step"], row[name]) for row in rows if name in row]
            axes.plot([x for x, _ in points], [y for _, y in points], label=name, marker="." if len(points) < 50 else None)
        axes.set_xlabel("step")
        axes.legend()
        return axes

    def _of(self, which: str) -> list[Row]:
        if which not in ("rows", "steps"):
            refuse(ArgumentError, f'which must be "rows" or "steps", got {shown(which)}')
        return self.rows if which == "rows" else self.steps

    def __repr__(self) -> str:
        last = (
            ", ".join(f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={v}" for k, v in self.rows[-1].items())
            if self.rows
            else ""
        )
        return f"<History of {len(self.rows)} rows{': ' + last if last else ''}>"
