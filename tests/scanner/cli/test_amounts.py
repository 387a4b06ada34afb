"""Times and sizes as options take them."""

from __future__ import annotations

import math

import click
import pytest

from scanner.cli.amounts import Bytes, Seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("0.5", 0.5), ("90s", 90), ("1.5m", 90), ("12h", 43200), ("7d", 604800), ("inf", math.inf)],
)
def test_times(text: str, seconds: float) -> None:
    """Seconds, or what a unit makes of a number."""
    assert Seconds(0).convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "d", "nan", "nand", "7 days", "7D", "1h30m", "-1s", "11d"])
def test_what_is_no_time(text: str) -> None:
    """Other units, none of a number, and what is out of range."""
    with pytest.raises(click.BadParameter):
        Seconds(0, 10 * 86400).convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("65536", 65536),
        ("64K", 65536),
        ("64KiB", 65536),
        ("512M", 1 << 29),
        ("10G", 10 << 30),
        ("1T", 1 << 40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    """Bytes, or what a binary unit makes of a number."""
    assert Bytes(0).convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "G", "10GB", "10g", "1.5G", "10 G", "-1", "1_000", "٣", "2T"])
def test_what_is_no_size(text: str) -> None:
    """A unit that could mean two sizes, none of a number, fractions, and what is out of range."""
    with pytest.raises(click.BadParameter):
        Bytes(0, 1 << 40).convert(text, None, None)


def test_values_that_are_numbers_already() -> None:
    """Defaults are."""
    assert Seconds(0).convert(7.5, None, None) == 7.5
    assert Bytes(0).convert(7, None, None) == 7
