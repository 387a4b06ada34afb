"""The tail bench, made small: its figures are complete and its bars follow from them."""

from __future__ import annotations

import dataclasses
import io
import json
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from bench.questions import tail

if TYPE_CHECKING:
    from pathlib import Path

TINY = tail.Scale(
    tails=(3,),
    readers=(2,),
    round_trips_s=(0.0,),
    seconds=0.1,
    rows=1_100,
    idle_tails=20,
    idle_connections=2,
    idle_s=0.1,
    slow_rounds=1,
)
LATENCY = tail.Latency(
    mode="push",
    tails=100,
    round_trip_ms=0.0,
    commits_per_s=20.0,
    samples=1,
    p50_ms=1.0,
    p99_ms=2.0,
    p99_9_ms=3.0,
    max_ms=3.0,
    requests_per_s=0.0,
    server_cpu=0.1,
    encoded_per_row=1.0,
)
IDLE = tail.Idle(
    tails=10_000,
    connections=100,
    open_s=1.0,
    bytes_each=20_000,
    cpu=0.01,
    requests=0,
    first_s=0.1,
    median_s=0.5,
    last_s=1.0,
)


@pytest.mark.socket
@pytest.mark.rocks
@pytest.mark.slow
def test_every_part_is_measured(tmp_path: Path) -> None:
    """Two modes of each, no change left out at any tail, and a picture; idle tails make no request."""
    said = io.StringIO()
    tail.run(tmp_path / "t.json", tmp_path / "plots", Console(file=said, width=160), scale=TINY)
    found = json.loads((tmp_path / "t.json").read_text())
    assert [each["mode"] for each in found["latency"]] == ["push", "fetch"]
    assert [each["samples"] for each in found["latency"]] == [15, 15]
    assert [each["mode"] for each in found["throughput"]] == ["push", "fetch"]
    # Two batches of 500 are written, each change of them is encoded once at least, and no others are counted.
    assert min(each["encoded_per_row"] for each in found["throughput"]) >= 1
    assert found["idle"]["requests"] == 0
    assert found["slow"]["rate_ratio"] > 0
    assert "idle tails" in said.getvalue()
    assert (tmp_path / "plots" / "tail-latency.png").exists()


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({}, []),
        ({"push": {"p99_ms": 9.0}}, ["p99 of 100 tails at 0 ms, push beside long poll"]),
        ({"push": {"encoded_per_row": 2.0}}, ["times that a change is encoded for 100 tails at 0 ms"]),
        ({"idle": {"bytes_each": 30_000}}, ["resident bytes of each of 10000 idle tails"]),
        ({"idle": {"requests": 1}}, ["requests of 10000 idle tails"]),
        ({"idle": {"cpu": 0.06}}, ["CPU of 10000 idle tails"]),
        ({"idle": {"last_s": 2.5}}, ["seconds until a commit has reached the last of 10000 idle tails"]),
        ({"slow": {"p99_ratio": 1.06}}, ["p99 beside a slow tail / without"]),
        ({"slow": {"rate_ratio": 0.94}}, ["rate beside a slow tail / without"]),
    ],
)
def test_bars_follow_from_the_figures(change: dict[str, Any], missed: list[str]) -> None:
    """Each of them can be missed."""
    push = dataclasses.replace(LATENCY, **change.get("push", {}))
    fetch = dataclasses.replace(LATENCY, mode="fetch", p50_ms=1.5, p99_ms=8.0)
    slow = tail.Slow(beside=20, rounds=1, p99_ms=[17.0], p99_ms_without=[17.0], p99_ratio=1.0, rate_ratio=1.0)
    measured = tail.Measured(
        latency=[push, fetch],
        throughput=[],
        idle=dataclasses.replace(IDLE, **change.get("idle", {})),
        slow=dataclasses.replace(slow, **change.get("slow", {})),
    )
    assert [bar.name for bar in tail.bars(measured) if not bar.ok] == missed
