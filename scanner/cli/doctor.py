"""`weir doctor`."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from scanner.cli.app import CommandUnreadable, example, is_terminal, takes_colour
from scanner.cli.units import counted
from scanner.errors import ScannerError
from scanner.escapes import escaped
from scanner.server.inspection import Inspection
from scanner.storage.rocksdb.findings import Counts, Finding, Severity

if TYPE_CHECKING:
    from scanner.server.inspection import OnProgress

_COLOURS: Final = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "blue"}
_UPDATE_S: Final = 0.1
_SPEED_OVER_S: Final = 100.0


@click.command(
    "doctor",
    epilog=example("weir doctor ./data", "weir doctor ./data --json"),
)
@click.argument("data", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option(
    "--json", "as_json", is_flag=True, help="A JSON object for each finding, and one for the summary."
)
@click.pass_context
def doctor(context: click.Context, data: Path, as_json: bool) -> None:
    """Look at a data directory that no server has open: what is wrong, what is lost, what to do.

    Every row, change, checkpoint and document in DATA is read, and rows are compared with the changelog; nothing is
    changed. A finding is an error, a warning or a note. The exit code is 0 if there are no errors, 1 if there are, 2 if
    DATA could not be looked at.
    """
    severities = dict.fromkeys(Severity, 0)
    with _progress() as (bar, on_progress):
        inspection = Inspection(data, now_ms=time.time_ns() // 1_000_000, on_progress=on_progress)
        try:
            for finding in inspection.findings():
                severities[finding.severity] += 1
                # Above the bar, where there is one.
                with _hidden(bar):
                    _print(finding, as_json)
        except ScannerError as error:
            raise CommandUnreadable(error.message) from error
    _print_summary(inspection.counts, severities, as_json)
    context.exit(1 if severities[Severity.ERROR] else 0)


def _print(finding: Finding, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({**dataclasses.asdict(finding), "severity": finding.severity.value}))
        return
    word = finding.severity.value
    shown = click.style(word, _COLOURS[finding.severity]) if takes_colour(sys.stdout) else word
    parts = [f"{finding.where}: {finding.problem}"]
    if finding.lost:
        parts.append(f"lost: {finding.lost}")
    if finding.advice:
        parts.append(f"do: {finding.advice}")
    click.echo(f"{shown} {escaped('; '.join(parts))}")


def _print_summary(counts: Counts, severities: dict[Severity, int], as_json: bool) -> None:
    found = {f"{severity.value}s": number for severity, number in severities.items()}
    if as_json:
        click.echo(json.dumps({"summary": {**dataclasses.asdict(counts), **found}}))
        return
    told = [
        ", ".join(counted(number, what.removesuffix("s")) for what, number in each.items())
        for each in (found, dataclasses.asdict(counts))
    ]
    click.echo(" in ".join(told))


def _layout() -> tuple[ProgressColumn, ...]:
    # Of a checkpoint's path no more than table and bucket: the whole leaves no room for how far it is.
    place = Column(no_wrap=True, overflow="ellipsis", max_width=len("checkpoints/0000000000/0000/"))
    return (
        TextColumn("{task.description}", table_column=place),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[records]} rows and changes"),
        TimeRemainingColumn(),
    )


@contextmanager
def _progress() -> Iterator[tuple[Progress, OnProgress]]:
    """A bar on a terminal, else nothing."""
    console = Console(stderr=True)
    with Progress(
        *_layout(),
        console=console,
        transient=True,
        disable=not is_terminal(),
        speed_estimate_period=_SPEED_OVER_S,
    ) as bar:
        task = bar.add_task("looking", total=None, records=0, visible=False)
        shown = 0.0

        def on_progress(what: str, octets: int, total: int, records: int) -> None:
            nonlocal shown
            now = bar.get_time()
            # It takes the speed from a thousand updates.
            if now - shown >= _UPDATE_S:
                shown = now
                bar.update(
                    task, description=what, completed=octets, total=total, records=records, visible=True
                )

        yield bar, on_progress


@contextmanager
def _hidden(bar: Progress) -> Iterator[None]:
    """Take the bar off the terminal for the length of a block: standard output may be the same one."""
    if bar.disable:
        yield
        return
    bar.stop()
    try:
        yield
    finally:
        bar.start()
