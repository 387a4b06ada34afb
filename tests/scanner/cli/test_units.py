"""Sizes and times in narrow columns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.cli.units import short_bytes, short_seconds, utc_time


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.0K"),
        (1500, "1.5K"),
        (-264, "-264"),
        (-655_360, "-640K"),
        (8 << 20, "8.0M"),
        (64 << 20, "64M"),
        (1023 << 20, "1.0G"),
        (None, "any"),
        (2**63 - 1, "any"),
    ],
)
def test_sizes(count: int | None, text: str) -> None:
    """Two digits at least, a binary unit, and a word for no limit."""
    assert short_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0s"),
        (9.94, "9.9s"),
        (12.4, "12s"),
        (99.4, "99s"),
        (101, "1.7m"),
        (10_000, "2.8h"),
        (2_000_000, "23d"),
    ],
)
def test_times(seconds: float, text: str) -> None:
    """One unit, whichever leaves two digits."""
    assert short_seconds(seconds) == text


@given(st.integers(-(2**50), 2**50), st.floats(0, 86400 * 999))
def test_columns_stay_narrow(count: int, seconds: float) -> None:
    """Whatever is shown fits."""
    assert len(short_bytes(count)) <= 6
    assert len(short_seconds(seconds)) <= 4


def test_instants() -> None:
    """In UTC, whatever the zone of the machine."""
    assert utc_time(1_372_681_800.999) == "2013-07-01 12:30:00 UTC"
