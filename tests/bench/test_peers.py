"""What `python -m bench peers` concludes from its measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from bench.harness.spread import as_document, exponent
from bench.peers import calls, cold, crowding, far, growth, scans, unary
from bench.peers.crowding import Crowded
from bench.peers.crowds import CrowdCost, Run
from bench.peers.report import sheets
from bench.peers.rows import SCHEMA, WIDTHS, pieces
from bench.peers.scans import Scanned
from bench.peers.serving import Ticket
from bench.peers.unary import Called
from bench.questions.peers import PARTS, Scale, run

if TYPE_CHECKING:
    from bench.harness.sheet import Sheet


def test_the_rounds_are_compared_one_by_one() -> None:
    """A round in which everything was slow counts like the others."""
    found = {
        bar.name: (bar.value, bar.ok)
        for bar in scans.judge(
            [
                Scanned(width="86 B", buckets=4, way=way, rows_per_s=rates)
                for way, rates in {
                    "push trio": [2.0, 1.0, 4.0],
                    "push trio, image": [3.0, 1.5, 6.0],
                    "flight storage": [2.0, 1.0, 4.0],
                    "grpcio storage": [4.0, 2.0, 8.0],
                    "flight memory": [2.0, 1.0, 4.0],
                    "grpcio memory": [3.0, 1.5, 6.0],
                }.items()
            ]
        )
    }
    assert found == {
        "push trio over flight storage, 86 B, 4 buckets": (1.0, True),
        "push trio over grpcio storage, 86 B, 4 buckets": (0.5, False),
        "push trio, image over flight memory, 86 B, 4 buckets": (1.5, True),
        "push trio, image over grpcio memory, 86 B, 4 buckets": (1.0, False),
    }


def test_the_own_part_is_what_the_server_does_beside_iterating_and_decoding() -> None:
    """By rounds, of narrow rows in one bucket."""
    mine = Scanned(width="86 B", buckets=1, way="push", server_us_per_row=[0.35, 0.40, 0.36])
    local = Scanned(width="86 B", buckets=1, way="local", server_us_per_row=[0.30, 0.30, 0.30])
    assert [(bar.value, bar.ok) for bar in scans.judge([mine, local])] == [(60, True)]


def test_an_image_is_judged_by_what_it_spares_the_server() -> None:
    """By the ratio of the server's CPU, round by round, and by the octets that were not encoded again."""
    push = Scanned(width="86 B", buckets=1, way="push", server_us_per_row=[0.4, 0.8])
    image = Scanned(
        width="86 B", buckets=1, way="push, image", server_us_per_row=[0.04, 0.08], reused_share=0.8
    )
    assert [(bar.value, bar.ok) for bar in scans.judge([push, image])] == [(0.1, True), (0.8, False)]


def test_rounds_are_kept_with_their_least_and_most() -> None:
    """The JSON has them beside the median; what was not measured has none."""
    document = as_document(Scanned(width="86 B", buckets=1, way="push", rows_per_s=[3.0, 1.0, 8.0]))
    assert document["rows_per_s"] == {"median": 3.0, "min": 1.0, "max": 8.0, "rounds": [3.0, 1.0, 8.0]}
    assert document["disk_read_mb"] == {}
    assert exponent({2.0: [1.0]}) is None


def test_calls_have_a_bar_for_each_peer() -> None:
    """The synchronous grpcio at par, the asynchronous ones at four fifths."""
    called = [
        Called(way=way, in_flight=1, calls_per_s=[rate])
        for way, rate in (("weir", 90.0), ("grpcio", 100.0), ("grpc.aio", 100.0), ("grpclib", 120.0))
    ]
    found = {bar.name: bar.ok for bar in unary.judge(called)}
    assert found == {
        "calls over grpcio, 1 in flight": False,
        "calls over grpc.aio, 1 in flight": True,
        "calls over grpclib, 1 in flight": False,
    }


def test_a_crowd_is_judged_by_its_slowest_first_batches_and_by_what_it_reads_in_all() -> None:
    """Of the most scans, alone and beside a writer; against the best number of scans."""
    crowds = []
    for count, first_s, seconds in ((1, 0.01, 1.0), (64, 0.3, 128.0)):
        crowded = Crowded(way="push", scans=count, row_limit=0, writing=False)
        runs = [Run(rows=100, first_batch_s=first_s, seconds=seconds)] * count
        crowded.add(CrowdCost(runs=runs, seconds=seconds, cpu_s=0.1, least_share=1.0), 0.1)
        crowds.append(crowded)
    assert [(bar.value, bar.ok) for bar in crowding.judge(crowds)] == [(300.0, False), (0.5, False)]


def test_distance_is_judged_by_itself_and_by_the_session() -> None:
    """Push at 50 ms loses little to itself, and a session's round trips cost it a page each."""
    found = [
        far.Far(mode=mode, round_trip_s=line, bytes_per_s=limit, rows=9, rows_per_s=[rate])
        for (mode, line, limit), rate in zip(far.CASES, (9.0, 7.0, 5.0, 1.0, 1.0, 0.9), strict=True)
    ]
    assert [(bar.value, bar.ok) for bar in far.judge(found)] == [(0.9, False), (7.0, True)]


def test_growth_is_the_power_of_the_size() -> None:
    """Time that grows with the square of the rows has exponent 2, and is too much."""
    tables = [
        growth.Grown(by="rows", rows=rows, width="86", buckets=1, seconds=[(rows / 1e4) ** 2])
        for rows in (10**4, 10**5, 10**6)
    ]
    assert growth.exponents(tables) == {"rows": 2.0}
    assert [bar.ok for bar in growth.judge(tables)] == [False]
    assert {each.size for each in growth.cases(10**6) if each.by == "rows"} == {10**4, 10**5, 10**6}


def test_rows_are_made_without_chance() -> None:
    """Every piece has the schema, and together they have each id once."""
    made = list(pieces(WIDTHS["86"], 100_001))
    assert [piece.num_rows for piece in made] == [100_000, 1]
    assert all(piece.schema == SCHEMA for piece in made)
    assert made[1].column("id").to_pylist() == [100_000]


def test_a_ticket_arrives_as_it_was_sent() -> None:
    """Its octets say all of it."""
    ticket = Ticket(table="rows", bucket=3, origin="memory", batch_bytes=65536)
    assert Ticket.from_bytes(ticket.to_bytes()) == ticket


def _scale(*parts: str) -> Scale:
    """Little of everything."""
    return Scale(
        parts=parts, rows=9000, widths=("86",), buckets=(1,), crowds=(2,), crowd_rows=8192, far_rows=0,
        rounds=1, call_count=0,
    )  # fmt: skip


def test_what_was_measured_is_drawn(tmp_path: Path) -> None:
    """A picture for each part that has one, and none for what was not measured."""
    from bench.peers.plots import draw  # It takes a second to load, in every process of tests.

    scanned = [
        Scanned(width="86 B", buckets=1, way=way, rows_per_s=[1e6, 2e6]) for way in ("push", "parquet")
    ]
    tables = growth.cases(10**5)
    for each in tables:
        each.seconds = [1.0, 2.0]
    document = {
        "scans": [as_document(each) for each in scanned],
        "growth": {"tables": [as_document(each) for each in tables], "exponents": growth.exponents(tables)},
    }
    drawn = draw(document, tmp_path / "plots")
    assert [path.name for path in drawn] == ["peers-scans.png", "peers-growth.png"]
    assert all(path.stat().st_size for path in drawn)


@pytest.mark.slow
@pytest.mark.rocks
@pytest.mark.socket
def test_a_part_that_fails_costs_the_others_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a missed bar; the next one is measured and kept: here cold scans, by a way of each server and of none."""
    ways = ("push, image", "flight storage", "grpcio storage", "parquet", "duckdb")
    assert set(ways) < set(cold.WAYS)
    monkeypatch.setattr(cold, "WAYS", ways)
    with (tmp_path / "out").open("w") as out:
        bars = run(
            tmp_path / "peers.json", None, Console(file=out, width=80), scale=_scale("no part", "cold")
        )
    document = json.loads((tmp_path / "peers.json").read_text())
    assert [(bar.name, bar.value, bar.ok) for bar in bars] == [
        ("no part was measured", "KeyError: 'no part'", False)
    ]
    assert [bar["ok"] for bar in document["bars"]] == [False]
    assert "no part" not in document
    assert tuple(each["way"] for each in document["cold"]) == ways
    assert all(each["client_resident_bytes"] > 0 for each in document["cold"])


@pytest.mark.slow
@pytest.mark.rocks
@pytest.mark.socket
def test_crowds_and_scans_through_tls_are_measured_and_shown(tmp_path: Path) -> None:
    """Two scans at once, alone and beside a writer; every way through TLS; in tables that fit eighty columns."""
    with (tmp_path / "out").open("w") as out:
        console = Console(file=out, width=1000)
        run(tmp_path / "peers.json", None, console, scale=_scale("concurrent", "tls"))
        document = json.loads((tmp_path / "peers.json").read_text())
        shown = [sheet for part in PARTS for sheet in sheets(document, part)]
        assert [len(sheet.rows) for sheet in shown] == [9, 4, 1]
    crowds = document["concurrent"]["crowds"]
    assert [(each["way"], each["writing"]) for each in crowds if each["writing"]] == [("push", True)]
    assert all(0 <= each["least_share"]["median"] <= 1 for each in crowds)
    (image,) = (each for each in document["tls"] if each["way"] == "push, image")
    assert image["tls"]
    assert image["reused_share"] > 0
    lines = (tmp_path / "out").read_text().splitlines()
    assert max(len(line.rstrip()) for line in lines if line.startswith(("│", "┃"))) <= 80
    assert all(len(line.split("|")) == len(sheet.headings) + 2 for sheet in shown for line in _lines(sheet))


@pytest.mark.slow
@pytest.mark.socket
def test_calls_are_measured_by_every_way() -> None:
    """Each server echoes to its client, one call at a time and a hundred at once, and costs both of them something."""
    found = unary.measure(100, 1, str)
    assert [(each.way, each.in_flight) for each in found] == [
        (way, in_flight) for in_flight in unary.IN_FLIGHT for way in calls.SERVERS
    ]
    for each in found:
        assert min(*each.calls_per_s, *each.server_us_per_call, *each.client_us_per_call) > 0


def _lines(sheet: Sheet) -> list[str]:
    """Of its table in Markdown."""
    return [line for line in sheet.markdown().splitlines() if line.startswith("|")]
