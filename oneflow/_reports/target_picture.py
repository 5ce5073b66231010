"""A plan as a picture in HTML: when each device computes and waits, and what its memory holds."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from .._base import page
from .placement import size_text

_WIDTH, _ROW, _LEFT, _MOST = 760, 22, 70, 64
_MEMORY = (("parameters", "#4878a8"), ("optimizer_state", "#8fb4d8"), ("other_state", "#b8b8b8"), ("inputs", "#a0c878"),
           ("activations", "#e8a33d"), ("temporary", "#d0694f"))  # fmt: skip
_PASSES = (("backward", "#d0694f"), ("update", "#6aa84f"), ("", "#4878a8"))
_PASS_NAMES = ("backward pass (of a last stage: both passes)", "update", "forward pass, and what is one step")


def picture(plan: Any) -> str:
    """The page's body; ``plan`` is a TargetPlan, which imports this file."""
    rows = [
        (
            r.name,
            r.op,
            r.phase,
            f"{r.seconds * 1e6:.1f}",
            f"{r.share:.1%}",
            f"{r.flops:.3g}",
            size_text(r.bytes),
            r.bound,
            r.source,
        )
        for r in plan.parts[:40]
    ]
    header = ("name", "op", "pass", "us", "share", "FLOP", "bytes", "bound by", "your line")
    return (
        f"<h3>{escape(plan.title)}</h3><p>{'<br>'.join(map(escape, plan._summary()[1:]))}</p>"
        f"<h4>devices and stages, over {plan.seconds * 1e3:.3g} ms</h4>{_legend(_PASS_NAMES, _PASSES)}{_timeline(plan)}"
        f"<h4>memory per device</h4>{_memory_legend()}{_memory(plan)}<h4>ops by time</h4>{page.table(header, rows, {3, 4, 5, 6})}"
    )


def _frame(height: int, inside: list[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 10}" height="{height}" '
        f'font-family="sans-serif" font-size="11">{"".join(inside)}</svg>'
    )


def _bar(x: float, y: int, width: float, color: str, title: str) -> str:
    return (
        f'<rect x="{_LEFT + x:.1f}" y="{y}" width="{max(width, 0.3):.1f}" height="{_ROW - 5}" fill="{color}" stroke="white" '
        f'stroke-width="0.4"><title>{escape(title)}</title></rect>'
    )


def _label(y: int, text: str) -> str:
    return f'<text x="0" y="{y + 13}">{escape(text)}</text>'


def _timeline(plan: Any) -> str:
    devices, inside = [row.device for row in plan.devices[:_MOST]], []
    scale = _WIDTH / plan.seconds if plan.seconds else 0.0
    for i, device in enumerate(devices):
        inside.append(_label(i * _ROW, device))
        machine, _, index = device.partition(":")
        for span in plan.timeline.spans:
            if (int(machine), int(index)) in span.devices:
                color = next(c for word, c in _PASSES if word in span.name)
                title = f"{span.name}: {span.begin * 1e6:.1f} to {span.end * 1e6:.1f} us"
                inside.append(_bar(span.begin * scale, i * _ROW, (span.end - span.begin) * scale, color, title))
    return _frame(len(devices) * _ROW, inside) + _more(plan)


def _memory(plan: Any) -> str:
    inside = []
    shown = plan.devices[:_MOST]
    most = max([row.memory for row in shown] + [row.total for row in shown])
    for i, row in enumerate(shown):
        inside.append(_label(i * _ROW, row.device))
        x = 0.0
        for what, color in _MEMORY:
            size = _of(row, what)
            if size:
                inside.append(_bar(x, i * _ROW, size / most * _WIDTH, color, f"{what.replace('_', ' ')}: {size_text(size)}"))
                x += size / most * _WIDTH
        limit = _LEFT + row.memory / most * _WIDTH
        inside.append(f'<line x1="{limit:.1f}" x2="{limit:.1f}" y1="{i * _ROW}" y2="{(i + 1) * _ROW - 4}" stroke="black"/>')
    return _frame(len(shown) * _ROW, inside) + _more(plan)


def _of(row: Any, what: str) -> int:
    size: int = getattr(row, what)
    return size


def _more(plan: Any) -> str:
    hidden = len(plan.devices) - _MOST
    return f"<p>and {hidden} devices more</p>" if hidden > 0 else ""


def _legend(names: Sequence[str], colors: Sequence[tuple[str, str]], more: str = "") -> str:
    items = [f'<span style="color:{color}">&#9632;</span> {name}' for name, (_, color) in zip(names, colors, strict=True)]
    return f"<p>{' '.join(items)}{more}</p>"


def _memory_legend() -> str:
    return _legend([what.replace("_", " ") for what, _ in _MEMORY], _MEMORY, "; the line is the device's memory")
