"""Tables in HTML, as notebooks show them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[int] = ()) -> str:
    """A table; the columns at ``right`` are aligned to the right."""
    from html import escape  # with its table of the names of all characters

    def line(cells: Sequence[str], tag: str) -> str:
        aligned = [(f"text-align:{'right' if i in right else 'left'}", escape(cell)) for i, cell in enumerate(cells)]
        return "<tr>" + "".join(f'<{tag} style="{style}">{text}</{tag}>' for style, text in aligned) + "</tr>"

    head = f"<thead>{line(header, 'th')}</thead>" if header else ""
    return f"<table>{head}<tbody>{''.join(line(row, 'td') for row in rows)}</tbody></table>"
