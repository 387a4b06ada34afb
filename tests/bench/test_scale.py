"""The scale and neighbours benches, made small: their figures are complete and their bars follow from them."""

from __future__ import annotations

import pytest

from bench.questions import neighbours, scale

pytestmark = pytest.mark.socket


@pytest.mark.slow
def test_idle_streams_are_measured() -> None:
    """Forty idle calls on four connections, and on forty: each costs something, and a message reaches all."""
    for connections in (4, 40):
        case = scale.measure_idle(40, connections, idle_s=0.2)
        assert (case.streams, case.connections) == (40, connections)
        assert case.resident_bytes > 0
        assert 0 < case.tell_first_s <= case.tell_median_s <= case.tell_last_s


def test_curve_is_measured() -> None:
    """The n-th call's price is there for each n, for this transport and for h2 alone."""
    curve = scale.measure_curve((1, 60))
    assert [point.n for point in curve] == [1, 60]
    assert all(point.open_us > 0 and point.h2_us > 0 for point in curve)


def test_bars_of_scale_follow_from_the_figures() -> None:
    """Memory counts for shared connections only; a call that grows dearer misses its bar."""
    figures = {"open_s": 1.0, "resident_bytes": 1, "idle_cpu": 0.0, "tell_first_s": 0.1, "tell_median_s": 0.1,
               "tell_last_s": 0.1}  # fmt: skip
    shared = scale.Idle(streams=1_000, connections=10, bytes_each=9_000, **figures)  # type: ignore[arg-type]
    alone = scale.Idle(streams=1_000, connections=1_000, bytes_each=90_000, **figures)  # type: ignore[arg-type]
    curve = [scale.Point(n=1, open_us=100, h2_us=1), scale.Point(n=9, open_us=500, h2_us=1)]
    memory, growth = scale.bars([shared, alone], curve)
    assert (memory.value, memory.ok) == (9_000, True)
    assert (growth.value, growth.ok) == (5.0, False)


@pytest.mark.slow
def test_neighbours_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of neighbour has its rounds; the stalled one was given its window and no more."""
    monkeypatch.setattr(neighbours, "FAST", 3)
    measured = {row.neighbour: row for row in neighbours.measure(1)}
    assert set(measured) == set(neighbours.NEIGHBOURS)
    assert measured[neighbours.ALONE].neighbour_bytes == 0
    assert 0 < measured[neighbours.STALLED].neighbour_bytes <= 8 * (1 << 20) + 2 * neighbours.MESSAGE_BYTES
    assert {bar.name for bar in neighbours.bars(list(measured.values()))} == {
        "speed of 3 streams beside a stalled one / alone", "speed of 3 streams beside a slow one / alone",
    }  # fmt: skip
