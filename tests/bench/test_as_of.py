"""The as-of bench, made small: its figures are complete, and its bars follow from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bench.questions.as_of import MIB, Measured, Pass, bars, figures, measure, prepare


def test_a_small_bucket_is_measured(tmp_path: Path) -> None:
    """Loaded, changed, scanned live, as of then and in pieces: every bar holds, and it spilled."""
    prepared = prepare(tmp_path / "data", 3_000, 6_000)
    measured = measure(tmp_path / "data", prepared, 200_000)

    assert prepared.rows == prepared.log_offset == 3_000
    assert prepared.changes >= 6_000
    assert [bar.name for bar in bars(measured) if not bar.ok] == []
    assert measured.as_of.entries > 2_500
    assert measured.as_of.spilled_bytes > 0
    assert measured.as_of.build_step_ms > 0
    assert all(figure > 0 for figure in figures(measured).values())


def test_what_misses_a_bar_is_said(tmp_path: Path) -> None:
    """Another digest, a row less, an octet of memory too much: each is told by name."""
    prepared = prepare(tmp_path / "data", 10, 10)
    good = Pass(rows=10, digest=prepared.digest, overlay_bytes=MIB, resident_growth_bytes=MIB)
    measured = Measured(prepared=prepared, bytes_max=MIB, live=good, as_of=good, cut=good)
    assert all(bar.ok for bar in bars(measured))
    for change, name in (
        ({"rows": 9}, "rows and digest"),
        ({"digest": prepared.digest ^ 1}, "rows and digest"),
        ({"overlay_bytes": MIB + 1}, "bytes of the overlay"),
        ({"resident_growth_bytes": 500 * MIB}, "bytes that resident memory grew by"),
    ):
        bad = replace(good, **change)
        missed = [bar.name for bar in bars(replace(measured, cut=bad)) if not bar.ok]
        assert missed == [f"as-of scan cut three times: {name}"]
