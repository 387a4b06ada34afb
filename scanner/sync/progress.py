"""How far a scan is, shown on a terminal or in a notebook, by rich."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from scanner.extras import extras_needed

if TYPE_CHECKING:
    import pyarrow as pa

    from scanner.sync.scan import Batches


@contextmanager
def rows_shown(total: int | None) -> Iterator[Callable[[int, int], None]]:
    """Show how many rows there are, for the length of a block; nothing where nobody looks.

    On a terminal that is standard error. In a notebook it is a widget, if ipywidgets is installed.

    Args:
        total: Rows at most; None: as many as there are.

    Yields:
        To be told how many rows and octets there are by now.

    Raises:
        ExtraMissing: rich is not installed.
    """
    with extras_needed("progress=True"):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    layout = (
        SpinnerColumn(),
        TextColumn("{task.completed:,.0f} rows  {task.fields[megabytes]:,.1f} MB"),
        BarColumn(),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    unseen = not (console.is_terminal or console.is_jupyter)
    try:
        with Progress(*layout, console=console, transient=True, disable=unseen) as progress:
            task = progress.add_task("scan", total=total, megabytes=0.0)
            yield lambda rows, octets: progress.update(task, completed=rows, megabytes=octets / 1e6)
    except KeyboardInterrupt:
        console.show_cursor()  # rich leaves it hidden where it is interrupted while it begins.
        raise


def with_progress(batches: Batches, total: int | None) -> Iterator[pa.RecordBatch]:
    """The batches, while it is shown how many rows they have; see `rows_shown`."""
    rows = 0
    with rows_shown(total) as tell:
        for batch in batches:
            rows += batch.num_rows
            tell(rows, batches.statistics().bytes_received)
            yield batch
