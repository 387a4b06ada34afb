"""What `python -m bench peers` concludes from its measurements."""

from __future__ import annotations

from bench.peers import crowding, far, growth, scans, unary
from bench.peers.crowding import Crowded
from bench.peers.crowds import CrowdCost, Run
from bench.peers.rows import SCHEMA, WIDTHS, pieces
from bench.peers.scans import Scanned
from bench.peers.serving import Ticket
from bench.peers.unary import Called


def test_the_rounds_are_compared_one_by_one() -> None:
    """A round in which everything was slow counts like the others."""
    found = {
        bar.name: (bar.value, bar.ok)
        for bar in scans.judge(
            [
                Scanned(width="86 B", buckets=4, way=way, rows_per_s=rates)
                for way, rates in {
                    "push": [2.0, 1.0, 4.0],
                    "push, image": [3.0, 1.5, 6.0],
                    "flight storage": [2.0, 1.0, 4.0],
                    "grpcio storage": [4.0, 2.0, 8.0],
                    "flight memory": [2.0, 1.0, 4.0],
                    "grpcio memory": [3.0, 1.5, 6.0],
                }.items()
            ]
        )
    }
    assert found == {
        "push over flight storage, 86 B, 4 buckets": (1.0, True),
        "push over grpcio storage, 86 B, 4 buckets": (0.5, False),
        "push, image over flight memory, 86 B, 4 buckets": (1.5, True),
        "push, image over grpcio memory, 86 B, 4 buckets": (1.0, False),
    }


def test_the_own_part_is_what_the_server_does_beside_iterating_and_decoding() -> None:
    """By rounds, of narrow rows in one bucket."""
    mine = Scanned(width="86 B", buckets=1, way="push", server_us_per_row=[0.35, 0.40, 0.36])
    local = Scanned(width="86 B", buckets=1, way="local", server_us_per_row=[0.30, 0.30, 0.30])
    assert [(bar.value, bar.ok) for bar in scans.judge([mine, local])] == [(60, True)]


def test_calls_have_a_bar_for_each_peer() -> None:
    """The synchronous grpcio at par, the asynchronous one at four fifths."""
    called = [
        Called(way=way, in_flight=1, calls_per_s=[rate])
        for way, rate in (("weir", 90.0), ("grpcio", 100.0), ("grpc.aio", 100.0))
    ]
    found = {bar.name: bar.ok for bar in unary.judge(called)}
    assert found == {"calls over grpcio, 1 in flight": False, "calls over grpc.aio, 1 in flight": True}


def test_a_crowd_is_judged_by_its_slowest_first_batches_and_by_what_it_reads_in_all() -> None:
    """Of the most scans, alone and beside a writer; against the best number of scans."""
    crowds = []
    for count, first_s, seconds in ((1, 0.01, 1.0), (64, 0.3, 128.0)):
        crowded = Crowded(way="push", scans=count, row_limit=0, writing=False)
        runs = [Run(rows=100, first_batch_s=first_s, seconds=seconds)] * count
        crowded.add(CrowdCost(runs=runs, seconds=seconds, cpu_s=0.1))
        crowds.append(crowded)
    assert [(bar.value, bar.ok) for bar in crowding.judge(crowds)] == [(300.0, False), (0.5, False)]


def test_distance_is_judged_by_itself_and_by_the_session() -> None:
    """Push at 50 ms loses little to itself, and a session's round trips cost it a page each."""
    found = [
        far.Far(mode=mode, round_trip_s=line, bytes_per_s=limit, rows_per_s=[rate])
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
