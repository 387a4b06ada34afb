"""What is installed of weir: its version, and the extras; where one is missing, a single line says what to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

DISTRIBUTION: Final = "weirstream"
EXTRA_OF: Final = {
    "click": "cli",
    "cryptography": "server",
    "duckdb": "sql",
    "pandas": "pandas",
    "polars": "polars",
    "prometheus_client": "server",
    "pyspark": "spark",
    "rich": "cli",
    "rocksdict": "server",
}
"""By the name that is imported."""


@cache
def installed_version() -> str:
    """The version of weir that this Python has installed; `unknown` where it runs from a directory of sources."""
    from importlib.metadata import PackageNotFoundError, version  # It brings 24 modules with it.

    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"


class ExtraMissing(ModuleNotFoundError):
    """A library that weir can do without is not installed, and this cannot be done without it."""


@contextmanager
def extras_needed(what: str) -> Iterator[None]:
    """Import what an extra brings.

    Args:
        what: Needs it: the beginning of the message.

    Raises:
        ExtraMissing: It is not installed; the message names the extra.
    """
    try:
        yield
    except ExtraMissing:
        raise
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in EXTRA_OF:
            raise
        message = f"{what} needs {library}, which is not installed: pip install '{DISTRIBUTION}[{EXTRA_OF[library]}]'"
        raise ExtraMissing(message, name=error.name) from None
