"""The comparison of the models, made small: it runs, and what it says follows from what it measured."""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from rich.console import Console

from bench.harness.links import Link
from bench.questions.continuation import stalled
from bench.questions.continuation.comparison import Measured, Scale, bars, run
from bench.questions.continuation.crossover import Crossover, Step
from bench.questions.continuation.cuts import CutCost, Loss
from bench.questions.continuation.isolating import Isolation
from bench.questions.continuation.scanning import MIB, MODELS, Cost, Way, median_of
from bench.questions.continuation.speed import Cell, Speed, Tables, cells, is_judged
from bench.questions.continuation.stalled import Course, Sample, Stalled

TINY = Scale(
    tables=Tables(small=500, medium=1_000, large=12_000, huge=12_000),
    rounds=1,
    judged_rounds=1,
    cells=5,
    cut_every_bytes=(900_000.0,),
    cut_rounds=1,
    loss_rounds=1,
    stall=Course(rows=20_000, seconds=0.4, park_after_s=0.05, rows_per_s=2_000.0),
    crossover_rows=4_000,
    crossover_page_bytes=16 * 1024,
    crossover_ratios=(0.0, 1.0),
    crossover_rounds=1,
    flights=2_000,
    isolation_rounds=1,
    broken=("push",),
    judges_speed=False,
)


@pytest.mark.slow
@pytest.mark.socket
@pytest.mark.rocks
@pytest.mark.timeout(600)
def test_the_comparison_runs(tmp_path: Path) -> None:
    """Every question is asked of real servers; JSON, tables and pictures are there, and no scan is wrong."""
    said = io.StringIO()
    found = run(tmp_path / "c.json", tmp_path / "plots", Console(file=said, width=160), scale=TINY)
    # A cursor over one page per bucket sees one state, so its bar says nothing here.
    assert [bar.name for bar in found if not bar.ok and "cursor" not in bar.name] == []
    document = json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))
    assert [each["cell"]["way"]["model"] for each in document["speeds"]] == list(MODELS)
    assert {each["model"] for each in document["isolation"]} == set(MODELS)
    assert document["losses"][0]["had_rows"] > 0
    assert document["crossover"]["steps"][1]["changes"] > 4_000
    assert len(list((tmp_path / "plots").glob("*.png"))) == 4
    assert "Killed servers" in said.getvalue()


class _Slow:
    """A server that parks a scan later than it was to; it is its own writer, and a client of it, too."""

    written = iterators = 0

    def __init__(self) -> None:
        self.looks = 0

    @property
    def parked(self) -> int:
        return int(self.looks >= 3)

    def held(self) -> _Slow:
        self.looks += 1
        return self

    async def list_snapshots(self) -> list[str]:
        return [] if self.parked else ["pinned"]

    def table_file_bytes(self) -> int:
        return 0

    resident_bytes = table_file_bytes

    def set_rate(self, rows_per_s: float) -> None:
        """It writes nothing."""

    def stop(self) -> None:
        """Nor does this do anything."""


async def test_a_stall_lasts_until_the_scan_is_parked(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """However slow the machine is; without a scan to park it lasts as long as it is to."""

    @contextlib.asynccontextmanager
    async def open_client(endpoint: str, way: Way) -> AsyncIterator[tuple[Any, None]]:
        yield server, None

    monkeypatch.setattr(stalled, "open_client", open_client)
    course = replace(TINY.stall, seconds=0.0)
    for model, looks in (("push", 3), ("session", 1)):
        server: Any = _Slow()
        server.endpoint = "of no use"
        samples, _ = await stalled._watch(server, model, course, server)
        assert (len(samples), samples[-1].parked, samples[-1].snapshots) == (
            looks,
            looks // 3,
            1 - looks // 3,
        )


@pytest.mark.socket
async def test_a_line_delays_and_breaks() -> None:
    """An octet and its answer take the round trip at least; a line breaks within its bounds, and is made again."""
    payload = bytes(100_000)

    async def echo(stream: trio.SocketStream) -> None:
        async for data in stream:
            await stream.send_all(data)

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    endpoint = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, echo, listeners)
        link = Link(endpoint, nursery, 0.03, 200_000, Random(1))
        line = await link.dial()
        started, came = time.perf_counter(), 0
        await line.send_all(b"x")
        assert await line.receive_some() == b"x"
        assert time.perf_counter() - started >= 0.03
        with pytest.raises(trio.BrokenResourceError):
            while True:
                await line.send_all(payload)
                came += len(await line.receive_some())
        assert came <= 300_000
        assert (link.cuts, link.recoveries_s) == (1, [])
        line = await link.dial()
        await line.send_all(payload)
        while link.lost_at is not None:
            await line.receive_some()
        assert len(link.recoveries_s) == 1
        await line.aclose()
        nursery.cancel_scope.cancel()


def test_every_cell_is_there_once() -> None:
    """No cell is measured twice, each model is in it, and the bars' cells are judged."""
    found = cells()
    assert len(set(found)) == len(found)
    assert {cell.way.model for cell in found} == set(MODELS)
    assert {cell.way.model for cell in found if is_judged(cell)} == {"push", "session"}


def test_a_crossover_is_read_off_between_two_steps() -> None:
    """Where a rebuilt page takes so many pinned ones is on the line through the steps around it."""

    def step(changes: int, rebuilt_ms: float) -> Step:
        return Step(
            changes=changes, ratio=0, pinned_page_ms=10, rebuilt_page_ms=rebuilt_ms, pinned_scan_s=1,
            rebuilt_scan_s=1, rebuilt_first_row_ms=1, live_scan_s=1,
        )  # fmt: skip

    found = Crossover(rows=1, page_bytes=1, steps=[step(0, 10), step(1_000, 30)])
    assert found.first_above(2.0) == 500
    assert found.first_above(1.0) == 0
    assert found.first_above(4.0) is None


def good() -> Measured:
    """A measurement that meets every bar."""

    def speed(model: str, seconds: float, round_trip_s: float) -> Speed:
        median = median_of([Cost(seconds=seconds, first_row_s=0.1, rows=100, message_bytes=1000)])
        return Speed(cell=Cell(table="huge", way=Way(model=model, round_trip_s=round_trip_s)), median=median)

    sample = Sample(
        at_s=1, snapshots=0, iterators=0, parked=1, table_file_bytes=1, resident_bytes=1, written=1
    )
    return Measured(
        speeds=[speed("push", 1.0, 0.0), speed("push", 1.05, 0.05), speed("session", 5.0, 0.05)],
        cuts=[
            CutCost(
                model="push", every_bytes=MIB, scans=1, cuts=1, seconds=1, recovery_ms=1, again_mb_per_cut=0,
                restarts=0, rows_again=0, lost=0, repeated=0, requests=1,
            )
        ],
        losses=[
            Loss(
                model="push", rows=100, had_rows=50, rows_again=0, down_s=1, back_s=1, read_source="as_of", lost=0,
                repeated=0,
            )
        ],
        stalls=[
            Stalled(
                model="push", seconds=1, park_after_s=0.1, samples=[sample], written=1, kept_bytes=0, rest_s=1,
                rows=100, lost=0, repeated=0, read_sources={},
            )
        ],
        crossover=Crossover(rows=1, page_bytes=1, steps=[]),
        isolation=[
            Isolation(
                model=model, scans=1, rows=1, commits_meanwhile_min=1, violations=int(model == "cursor"),
                scans_violated=0,
            )
            for model in MODELS
        ],
    )  # fmt: skip


def test_what_misses_a_bar_is_said() -> None:
    """A row lost, read again or of another state, a snapshot pinned, a ratio too low: each is told by name."""
    scale = replace(TINY, judges_speed=True)
    whole = good()
    assert [bar.name for bar in bars(whole, scale) if not bar.ok] == []
    pinned = replace(whole.stalls[0].samples[0], snapshots=1)
    for bad, name in (
        (replace(whole, cuts=[replace(whole.cuts[0], lost=1)]), "rows lost or repeated over cut lines"),
        (replace(whole, losses=[replace(whole.losses[0], rows_again=1)]), "rows that a push consumer read again"),
        (
            replace(whole, stalls=[replace(whole.stalls[0], samples=[pinned])]),
            "snapshots and iterators while a push scan is parked",
        ),
        (
            replace(whole, isolation=[replace(whole.isolation[0], violations=1), *whole.isolation[1:]]),
            "isolation violations, push",
        ),
        (replace(whole, speeds=[*whole.speeds[:2], replace(whole.speeds[1], cell=whole.speeds[2].cell)]),
         "push over session at 50 ms"),
    ):  # fmt: skip
        assert [bar.name for bar in bars(bad, scale) if not bar.ok] == [name]
