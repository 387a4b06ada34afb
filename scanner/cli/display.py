"""Tables for people: as many columns as fit on the terminal, the rest named under them, in a pager if it is long."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Final

import click
from rich.cells import cell_len, set_cell_size

from scanner.cli.app import is_terminal, note
from scanner.escapes import escaped

_CELL_WIDTH: Final = 32
"""Characters of a cell, where not all columns fit."""
_GAP: Final = "  "
_PLAIN: Final = str.maketrans({"─": "-", "…": "~"})
"""Our own signs, for a terminal or a file in an encoding that lacks them."""
_NAMES_LINES_MAX: Final = 3
"""Lines that name the columns which are not shown."""
_AND_SO_ON: Final = " ..."
_HINT: Final = "'| cat' shows all"


def print_table(
    columns: Mapping[str, Sequence[object]], file: IO[str] | None = None, *, hint: str = _HINT
) -> None:
    """Print columns of equal length side by side, numbers to the right.

    On a terminal the first columns that fit are shown, and the others are named; elsewhere nothing is cut.

    Args:
        columns: By heading.
        file: By default standard output.
        hint: What shows the columns that do not fit.
    """
    out = sys.stdout if file is None else file
    width = shutil.get_terminal_size().columns if is_terminal(out) else None
    page("".join(f"{line}\n" for line in table_lines(columns, width, hint)), out)


def print_records(records: Sequence[Mapping[str, object]], *, as_json: bool, none: str = "") -> None:
    """Print records with the same fields: as JSON, one on a line, or as a table.

    Args:
        records: By field.
        as_json: If not, a table.
        none: Said instead of a table without rows.
    """
    if as_json:
        for each in records:
            click.echo(json.dumps(each))
    elif records:
        print_table({name.replace("_", " "): [each[name] for each in records] for name in records[0]})
    else:
        note(none)


def print_vertically(columns: Mapping[str, Sequence[object]], file: IO[str]) -> None:
    """Print each row, of columns by heading, as a block with a line for each column; nothing is cut."""
    names = [escaped(name) for name in columns]
    width = max(map(cell_len, names), default=0)
    lines = []
    for number, row in enumerate(zip(*columns.values(), strict=True), 1):
        lines.append(f"── row {number} ──")
        lines += [
            f"{set_cell_size(name, width)}{_GAP}{_cell(value)}".rstrip()
            for name, value in zip(names, row, strict=True)
        ]
    page("".join(f"{line}\n" for line in lines), file)


def page(text: str, file: IO[str]) -> None:
    """Write text, through the user's pager if a terminal has fewer lines."""
    try:
        text.encode(getattr(file, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = text.translate(_PLAIN)
    shown = is_terminal(file) and file.fileno() == sys.stdout.fileno() and is_terminal(sys.stdin)
    if shown and text.count("\n") >= shutil.get_terminal_size().lines:
        with suppress(ValueError):  # PAGER is no words, and so as good as one that is not there.
            click.echo_via_pager(text.removesuffix("\n"))  # It adds one.
            return
    file.write(text)
    file.flush()


def table_lines(columns: Mapping[str, Sequence[object]], width: int | None, hint: str = _HINT) -> list[str]:
    """The lines of a table.

    Args:
        columns: By heading; of equal length.
        width: Of the terminal, in characters; None: as wide as it gets.
        hint: What shows the columns that do not fit.
    """
    names = list(columns)
    cells = [[escaped(name), *map(_cell, values)] for name, values in columns.items()]
    widths = [max(map(cell_len, column)) for column in cells]
    shown = len(names)
    if width is not None and _total(widths) > width:
        natural, widths = widths, [min(each, _CELL_WIDTH) for each in widths]
        shown = max(1, sum(_total(widths[: count + 1]) <= width for count in range(len(widths))))
        room = width - _total(widths[:shown])
        for index in range(shown):
            more = max(min(room, natural[index] - widths[index]), width * (room < 0) - widths[index])
            widths[index] += more
            room -= more
    right = [
        all(value is None or isinstance(value, int | float) for value in values)
        for values in columns.values()
    ]
    rows = [
        _GAP.join(
            _fitted(column[row], size, to_the_right=numeric)
            for column, size, numeric in zip(cells[:shown], widths[:shown], right[:shown], strict=True)
        ).rstrip()
        for row in range(len(cells[0]) if cells else 0)
    ]
    lines = [*rows[:1], "─" * _total(widths[:shown]), *rows[1:]]
    return lines if shown == len(names) else [*lines, "", *_names_of_the_rest(names[shown:], width, hint)]


def _names_of_the_rest(names: Sequence[str], width: int | None, hint: str) -> list[str]:
    columns = "1 column does" if len(names) == 1 else f"{len(names)} columns do"
    text = f"{columns} not fit ({hint}): " + ", ".join(map(escaped, names))
    room = max(width or 80, len(_AND_SO_ON))  # Of fewer columns a terminal makes more lines.
    return textwrap.wrap(text, room, max_lines=_NAMES_LINES_MAX, placeholder=_AND_SO_ON)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * max(0, len(widths) - 1)


def _fitted(cell: str, width: int, *, to_the_right: bool) -> str:
    size = cell_len(cell)
    if size > width:
        return set_cell_size(cell, width - 1) + "…"
    blanks = " " * (width - size)
    return blanks + cell if to_the_right else cell + blanks


def _cell(value: object) -> str:
    return "" if value is None else escaped(value)
