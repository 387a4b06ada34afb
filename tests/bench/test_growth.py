"""What the bench of growth calls good, and that it looks at every row."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from bench.harness.bars import failures
from bench.questions.growth import Grown, bars, measure

if TYPE_CHECKING:
    from pathlib import Path

SMALL = Grown(
    rows=10,
    load_s=2.0,
    scan_s=1.0,
    image_s=4.0,
    image_scan_s=0.5,
    start_s=1.0,
    cut_s=2.0,
    memory_bytes=100,
    disk_bytes=1000,
    wrong=0,
)
LARGE = replace(
    SMALL,
    rows=100,
    load_s=25.0,
    scan_s=12.0,
    image_s=40.0,
    image_scan_s=5.0,
    memory_bytes=140,
    disk_bytes=10_000,
)


def test_what_takes_longer_for_each_row_is_bad() -> None:
    """Each time by itself, and the memory whatever the rows are."""
    assert failures(bars(SMALL, LARGE)) == []
    for slower in (
        replace(LARGE, load_s=31.0),
        replace(LARGE, scan_s=16.0),
        replace(LARGE, image_s=61.0),
        replace(LARGE, image_scan_s=8.0),
    ):
        assert len(failures(bars(SMALL, slower))) == 1
    assert len(failures(bars(SMALL, replace(LARGE, memory_bytes=151)))) == 1
    assert len(failures(bars(SMALL, replace(LARGE, wrong=1)))) == 1


@pytest.mark.parametrize("count", [5000])
def test_every_row_is_looked_at(tmp_path: Path, count: int) -> None:
    """From the row store, from images, and behind a server that was killed."""
    found = measure(tmp_path, count)
    assert (found.rows, found.wrong) == (count, 0)
    assert found.memory_bytes > found.disk_bytes > 0
