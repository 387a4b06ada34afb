"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from scanner.cli.app import fail, names

_F = TypeVar("_F", bound=Callable[..., Any])

json_lines_option = click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
bucket_option = click.option("--bucket", type=click.IntRange(0), metavar="N", help="Only of this bucket.")


def _require_columns(_context: object, _option: object, given: tuple[str, ...]) -> tuple[str, ...]:
    if given and not names(given):
        fail("--columns needs at least one column")
    return given


columns_option = click.option(
    "--columns",
    "-c",
    multiple=True,
    callback=_require_columns,
    metavar="A,B",
    help="Only these, in this order.",
)


def retries_option(what: str) -> Callable[[_F], _F]:
    """`--retries`, of a command that runs a scan; `what` it is called in the help."""
    # Here: it comes with trio, which commands without a server do not wait for.
    from scanner.client.retries import RETRIES_DEFAULT, RETRIES_MAX

    return click.option(
        "--retries",
        type=click.IntRange(0, RETRIES_MAX),
        default=RETRIES_DEFAULT,
        show_default=True,
        metavar="N",
        help=f"Attempts in a row to resume after a cut that may make no progress. 0: a cut ends the {what}.",
    )


def data_option(help_text: str, *, exists: bool = False) -> Callable[[_F], _F]:
    """`--data`, the data directory of a server; `exists`: it has to be there."""
    return click.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False, exists=exists),
        default=Path("weir-data"),
        show_default=True,
        metavar="DIR",
        help=help_text,
    )
