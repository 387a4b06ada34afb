"""What every bench has in its JSON: bars with what was measured, and the machine it was measured on."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import psutil

from bench.harness.errors import BenchFailed


@dataclass(frozen=True, slots=True)
class Bar:
    """One thing that must be so."""

    name: str
    value: object
    """What was measured."""
    bar: str
    """What it must be."""
    ok: bool


def at_least(name: str, value: float, least: float) -> Bar:
    """A bar for what must not be smaller; it is shown rounded, and judged as it is."""
    return Bar(name, round(value, 3), f">= {least}", value >= least)


def at_most(name: str, value: float, most: float) -> Bar:
    """A bar for what must not be larger; it is shown rounded, and judged as it is."""
    return Bar(name, round(value, 3), f"<= {most}", value <= most)


def none_of(name: str, count: int) -> Bar:
    """A bar for what must not happen."""
    return Bar(name, count, "= 0", count == 0)


def some_of(name: str, count: int) -> Bar:
    """A bar for what must happen."""
    return Bar(name, count, "> 0", count > 0)


def failures(bars: Sequence[Bar]) -> list[str]:
    """One line per bar that is missed."""
    return [f"{bar.name}: {bar.value}, must be {bar.bar}" for bar in bars if not bar.ok]


def machine() -> dict[str, object]:
    """What the numbers were measured on."""
    return {
        "system": f"{platform.system()} {platform.release()}",
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
    }


def _options() -> dict[str, object]:
    """What the command that runs was given, or has by default; not where it writes."""
    context = click.get_current_context(silent=True)
    given = {} if context is None else context.params
    return {name: value for name, value in given.items() if name != "plots" and not isinstance(value, Path)}


def write_json(output: Path | None, bars: list[Bar], **measured: object) -> list[Bar]:
    """Write the JSON of a bench, with the options that it ran with; returns its bars.

    Args:
        output: Where; None: nowhere.
        bars: What had to be so.
        measured: The rest, by name; dataclasses become objects.
    """
    write_document(output, {"bars": bars, **measured, "options": _options(), "machine": machine()})
    return bars


def write_document(output: Path | None, document: Mapping[str, object]) -> None:
    """Write a JSON whole or not at all: a run that is ended here leaves what was there before.

    Raises:
        BenchFailed: It cannot be written.
    """
    if output is None:
        return
    text = json.dumps(document, indent=1, default=asdict) + "\n"
    beside = output.with_name(f"{output.name}.{os.getpid()}.part")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8")
        beside.replace(output)
    except OSError as error:
        raise BenchFailed(f"the measurements are not in {output}: {error}") from error
    finally:
        beside.unlink(missing_ok=True)
