"""What notebooks show of a table and of statistics: small HTML, in which names and values are escaped. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def html_table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of HTML.

    Args:
        caption: Stands above it.
        headings: Of the columns.
        rows: Of as many cells as there are headings. None is an empty cell; numbers stand on the right.
    """
    head = "".join(f"<th>{_text(each)}</th>" for each in headings)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        f'<table><caption style="text-align:left">{_text(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _cell(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'<td style="text-align:right">{value:,}</td>'
    return f"<td>{'' if value is None else _text(value)}</td>"


def _text(value: object) -> str:
    # MathJax, which notebooks load, would read what stands between dollar signs as a formula.
    return escape(str(value)).replace("$", "&#36;")
