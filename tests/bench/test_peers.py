"""What `python -m bench peers` concludes from its measurements."""

from __future__ import annotations

from bench.peers.rows import SCHEMA, WIDTHS, pieces
from bench.peers.serving import Ticket
from bench.questions.peers import Called, Scanned, judge


def test_the_rounds_are_compared_one_by_one() -> None:
    """A round in which everything was slow counts like the others."""
    scans = [
        Scanned(width="86 B", buckets=1, way=way, rows_per_s=rates)
        for way, rates in {
            "push": [2.0, 1.0, 4.0],
            "flight storage": [2.0, 1.0, 4.0],
            "grpcio storage": [4.0, 2.0, 8.0],
        }.items()
    ]
    found = {bar.name: (bar.value, bar.ok) for bar in judge(scans, [])}
    assert found == {
        "push over flight storage, 86 B, 1 buckets": (1.0, True),
        "push over grpcio storage, 86 B, 1 buckets": (0.5, False),
    }


def test_calls_have_a_bar_for_each_peer() -> None:
    """The synchronous grpcio at par, the asynchronous one at four fifths."""
    called = [
        Called(way=way, in_flight=1, calls_per_s=[rate])
        for way, rate in (("weir", 90.0), ("grpcio", 100.0), ("grpc.aio", 100.0))
    ]
    found = {bar.name: bar.ok for bar in judge([], called)}
    assert found == {"calls over grpcio, 1 in flight": False, "calls over grpc.aio, 1 in flight": True}


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
