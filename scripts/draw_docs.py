"""Draws docs/images: python scripts/draw_docs.py. Charts are drawn from the tables of docs/benchmarks.md."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]  # this checkout, whether or not it is installed
IMAGES = ROOT / "docs" / "images"
_HOST, _DEVICE, _OURS, _OTHERS, _INK, _FAINT = (
    "#e69f00",
    "#0072b2",
    "#0072b2",
    "#9aa5b1",
    "#1f2933",
    "#cbd2d9",
)  # for all kinds of eyes


class Drawing:
    """An SVG, on a white ground so that it can be read on dark pages, too."""

    def __init__(self, width: int, height: int, title: str):
        self._rows = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"',
            f' role="img" font-family="system-ui, sans-serif" font-size="14"><title>{title}</title>',
            f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
        ]

    def box(self, x: float, y: float, width: float, height: float, color: str, text: str = "") -> None:
        self._rows.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{color}"/>')
        if text:
            self.text(x + width / 2, y + height / 2 + 5, text, "middle", "#ffffff")

    def text(self, x: float, y: float, text: str, anchor: str = "start", color: str = _INK, size: int = 14) -> None:
        self._rows.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{color}" font-size="{size}">{text}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        self._rows.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{_FAINT}"/>')

    def __str__(self) -> str:
        return "\n".join([*self._rows, "</svg>"]) + "\n"


def table(section: str) -> dict[str, float]:
    """The medians of a section of docs/benchmarks.md by contender."""
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    part = text.partition(f"\n### {section}\n")[2].partition("\n| ratio")[0]
    return {name: float(median) for name, median in re.findall(r"^\| ([^|]+?) \| ([\d.]+) \| [\d.]+ \.\. ", part, re.MULTILINE)}


def timeline() -> Drawing:
    """Synchronous and asynchronous calls; the lengths are those of the input-bound loop of docs/benchmarks.md."""
    made = Drawing(720, 268, "Synchronous and asynchronous calls")
    unit, left = 74.0, 96.0
    for top, title, period, first in (
        (44, "synchronous: each call waits", 2 * unit, unit),
        (164, "asynchronous: the program goes on", unit, unit),
    ):
        made.text(16, top - 16, title, size=15)
        made.text(16, top + 21, "program")
        made.text(16, top + 57, "device")
        count = 0
        while left + count * period + first + unit <= 700:
            start = left + count * period
            made.box(start, top, unit - 3, 30, _HOST, f"batch {count}")
            made.box(start + first, top + 36, unit - 3, 30, _DEVICE, f"step {count}")
            count += 1
        made.line(left, top + 74, 700, top + 74)
        made.text(700, top + 92, f"{count} steps", "end")
    return made


def layouts() -> Drawing:
    """What split and broadcast put on two devices."""
    made = Drawing(720, 210, "split and broadcast")
    for left, title, rows in (
        (16, "the Blob", [(0, 4)]), (190, "split(0)", [(0, 2), (2, 4)]), (400, "broadcast()", [(0, 4), (0, 4)]),
    ):  # fmt: skip
        made.text(left, 30, title, size=15)
        for device, (first, last) in enumerate(rows):
            x = left + device * 96
            for row in range(first, last):
                made.box(x, 46 + row * 28, 80, 24, (_OURS, "#009e73", _HOST, "#cc79a7")[row], f"row {row}")
            if len(rows) > 1:
                made.text(x + 40, 178, f"device {device}", "middle")
    made.text(
        16, 200, "Each device holds its part of the rows, or all of them; values and shapes are those of the whole Blob.", size=13
    )
    return made


def speed() -> Drawing:
    """Milliseconds per step beside the peers."""
    made = Drawing(720, 374, "Milliseconds per training step")
    y = 34
    for section, title in (("MLP 784-512-10, batch 100", "MLP 784-512-10"), ("LeNet, batch 100", "LeNet")):
        rows = table(section)
        made.text(16, y, f"{title}, batch 100: milliseconds per training step, 2 CPU cores (shorter is better)", size=15)
        y += 12
        for name, value in rows.items():
            made.text(250, y + 15, name, "end", size=13)
            made.box(258, y, 380 * value / max(rows.values()), 18, _OURS if name.startswith("ours") else _OTHERS)
            made.text(264 + 380 * value / max(rows.values()), y + 14, f"{value:g}", size=13)
            y += 23
        y += 28
    return made


def lenet() -> None:
    """The graph of examples/train_lenet.py."""
    import oneflow as flow
    import oneflow.typing as tp

    sys.path.insert(0, str(ROOT / "examples"))
    from train_lenet import lenet as network

    @flow.global_function(type="predict")
    def lenet(images: tp.Numpy.Placeholder((100, 1, 28, 28))) -> tp.Numpy:
        return network(images)

    flow.plot_model(lenet, IMAGES / "lenet.svg")


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    for draw in (timeline, layouts, speed):
        (IMAGES / f"{draw.__name__}.svg").write_text(str(draw()), encoding="utf-8")
    lenet()


if __name__ == "__main__":
    main()
