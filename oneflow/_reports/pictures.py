"""Diagrams as SVG, HTML, Graphviz and Mermaid text; each file stands alone."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from .diagram import INPUT, RESULT, Box, Diagram
from .layered import lay_out

_COLOURS = ("#d6e6fb", "#fde3c8", "#d9f0d3", "#f6d5e5", "#e3daf5", "#fff2b3", "#d0f0ee", "#eadfd3")
_EDGES = ("#3b6fb5", "#c77a1f", "#4b8f3a", "#b0447c", "#6b51a8", "#a38a00", "#2b8c86", "#86694a")
_PALE, _GREY = "#f4f4f4", "#777777"
_MARGIN, _LINE, _LETTER, _SMALL = 24.0, 17.0, 7.2, 6.2
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"


def _colours(diagram: Diagram) -> Mapping[str, tuple[str, str]]:
    """The fill and the edge of boxes, by place."""
    n = len(_COLOURS)
    return {place: (_COLOURS[i % n], _EDGES[i % n]) for i, place in enumerate(diagram.places)}


def _fill(box: Box, colours: Mapping[str, tuple[str, str]]) -> tuple[str, str]:
    return (_PALE, _GREY) if box.kind in (INPUT, RESULT) else colours[box.place]


def _size(box: Box) -> tuple[float, float]:
    width = max(len(box.title) * _LETTER * 1.06, *(len(line) * _SMALL for line in box.lines), 40.0) + 24
    return width, 16 + _LINE * (1 + len(box.lines))


def svg(diagram: Diagram) -> str:
    """An SVG picture: boxes in the order of computation from the top, coloured by device, shapes on the arrows."""
    boxes = {i: box for i, box in enumerate(diagram.boxes)}
    number = {id(box): i for i, box in boxes.items()}
    colours = _colours(diagram)
    merged: dict[tuple[int, int], list[str]] = {}
    for arrow in diagram.arrows:
        merged.setdefault((number[id(arrow.source)], number[id(arrow.target)]), []).append(arrow.label)
    layout = lay_out({i: _size(box) for i, box in boxes.items()}, list(merged))
    top = _MARGIN + 34
    width = max(layout.width, len(diagram.title) * 10.0, 260.0) + 2 * _MARGIN + 60
    left = (width - layout.width) / 2
    legend = [] if len(diagram.places) < 2 else diagram.places
    height = layout.height + top + _MARGIN + 22 * len(legend)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="{escape(_FONT)}" font-size="13">',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{_GREY}"/></marker></defs>',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>',
        f'<text x="{_MARGIN}" y="{_MARGIN + 6}" font-size="16" font-weight="600">{escape(diagram.title)}</text>',
    ]
    labels = []
    named: set[tuple[int, tuple[str, ...]]] = set()  # a value that goes to several boxes is labelled once
    for ((source, _), labelled), route in zip(merged.items(), layout.routes, strict=True):
        points = [(x + left, y + top) for x, y in route]
        out.append(f'<path d="{_curve(points)}" fill="none" stroke="{_GREY}" stroke-width="1.2" marker-end="url(#tip)"/>')
        if (source, tuple(labelled)) in named:
            continue
        alone = not any(other == source for other, _ in named)
        named.add((source, tuple(labelled)))
        (x, y), (x2, y2) = points[:2]
        if not alone:  # further on, towards its own target
            x, y = x * 0.4 + x2 * 0.6, y * 0.45 + y2 * 0.55
        text = labelled[0] if len(labelled) == 1 else f"{labelled[0]} and {len(labelled) - 1} more"
        at = f'x="{x + 6:.1f}" y="{y + 14:.1f}" font-size="10.5"'
        labels.append(  # twice: the first one clears the lines below it
            f'<text {at} stroke="white" stroke-width="3" fill="white">{escape(text)}</text>'
            f'<text {at} fill="#333"><title>{escape(chr(10).join(labelled))}</title>{escape(text)}</text>'
        )
    for i, box in boxes.items():
        x, y = layout.centres[i]
        out.append(_drawn(box, x + left, y + top, _fill(box, colours)))
    out += labels
    for i, place in enumerate(legend):
        y = layout.height + top + 22 * i + 14
        fill, edge = colours[place]
        out.append(
            f'<rect x="{_MARGIN}" y="{y}" width="16" height="14" fill="{fill}" stroke="{edge}"/>'
            f'<text x="{_MARGIN + 24}" y="{y + 11.5}" font-size="12">{escape(place)}</text>'
        )
    return "\n".join([*out, "</svg>", ""])


def _drawn(box: Box, x: float, y: float, colours: tuple[str, str]) -> str:
    width, height = _size(box)
    fill, edge = colours
    round_by = height / 2 if box.kind in (INPUT, RESULT) else 5
    parts = [
        f"<g><title>{escape(box.tip or box.title)}</title>",
        f'<rect x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{round_by:.1f}" '
        f'fill="{fill}" stroke="{edge}"/>',
        f'<text x="{x:.1f}" y="{y - height / 2 + 21:.1f}" text-anchor="middle" font-weight="600">{escape(box.title)}</text>',
    ]
    for i, line in enumerate(box.lines):
        parts.append(
            f'<text x="{x:.1f}" y="{y - height / 2 + 21 + _LINE * (i + 1):.1f}" text-anchor="middle" font-size="11" '
            f'fill="#444">{escape(line)}</text>'
        )
    return "".join([*parts, "</g>"])


def _curve(points: list[tuple[float, float]]) -> str:
    x, y = points[0]
    path = [f"M{x:.1f},{y:.1f}"]
    for i, (x2, y2) in enumerate(points[1:]):
        if i % 2 == 0:  # between two layers
            middle = (y + y2) / 2
            path.append(f"C{x:.1f},{middle:.1f} {x2:.1f},{middle:.1f} {x2:.1f},{y2:.1f}")
        else:  # past the boxes of a layer
            path.append(f"L{x2:.1f},{y2:.1f}")
        x, y = x2, y2
    return " ".join(path)


def html(diagram: Diagram, table: str) -> str:
    """A page with the picture and a table below it; boxes show their ops when the mouse is over them."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(diagram.title)}</title>\n'
        f"<style>body{{font-family:{_FONT};margin:1rem;color:#222}} .picture{{overflow:auto}} table{{border-collapse:collapse;"
        "font-size:13px} td,th{padding:2px 10px 2px 0;white-space:nowrap;border-bottom:1px solid #ddd}</style></head>\n"
        f'<body><div class="picture">{svg(diagram)}</div>\n{table}\n</body></html>\n'
    )


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def dot(diagram: Diagram) -> str:
    """The diagram for Graphviz."""
    colours = _colours(diagram)
    number = {id(box): i for i, box in enumerate(diagram.boxes)}
    out = [
        f"digraph {_quoted(diagram.title)} {{",
        f"  label={_quoted(diagram.title)}; labelloc=t; rankdir=TB;",
        '  node [shape=box, style="filled,rounded", fontname="sans-serif"];',
        '  edge [fontname="sans-serif", fontsize=10];',
    ]
    for i, box in enumerate(diagram.boxes):
        fill, edge = _fill(box, colours)
        shape = ", shape=ellipse" if box.kind in (INPUT, RESULT) else ""
        label = _quoted("\n".join([box.title, *box.lines]))
        out.append(f'  n{i} [label={label}, fillcolor="{fill}", color="{edge}"{shape}];')
    out += [f"  n{number[id(a.source)]} -> n{number[id(a.target)]} [label={_quoted(a.label)}];" for a in diagram.arrows]
    return "\n".join([*out, "}", ""])


def _entities(text: str) -> str:
    """Text for a Mermaid label in quotes."""
    return text.replace("#", "#35;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;").replace("\n", "<br/>")


def mermaid(diagram: Diagram) -> str:
    """The diagram for Mermaid, as in a code block of a Markdown page."""
    colours = _colours(diagram)
    number = {id(box): i for i, box in enumerate(diagram.boxes)}
    places = {place: f"place{i}" for i, place in enumerate(diagram.places)}
    out = ["flowchart TD", f"  %% {diagram.title}"]
    for i, box in enumerate(diagram.boxes):
        label = "<br/>".join(map(_entities, (box.title, *box.lines)))
        opens, closes = ("([", "])") if box.kind in (INPUT, RESULT) else ("[", "]")
        style = "" if box.kind in (INPUT, RESULT) else f":::{places[box.place]}"
        out.append(f'  n{i}{opens}"{label}"{closes}{style}')
    out += [f'  n{number[id(a.source)]} -->|"{_entities(a.label)}"| n{number[id(a.target)]}' for a in diagram.arrows]
    out += [f"  classDef {name} fill:{colours[place][0]},stroke:{colours[place][1]}" for place, name in places.items()]
    return "\n".join([*out, ""])
