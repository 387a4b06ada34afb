"""Resuming at the server: every message's token continues exactly, and nobody else's token does anything."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

import transport
from scanner.errors import (
    ArgumentInvalid,
    Draining,
    ResumeTokenInvalid,
    ScanIncomplete,
    SnapshotLost,
    StoreClosed,
)
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.auth.principals import Credentials, make_token, token_sha256
from scanner.server.config import ScannerConfig
from scanner.server.server import open_server
from scanner.wire.batches import RowBatch
from tests.support.scans import (
    SMALL,
    RawScan,
    failure,
    filled_store,
    mutations,
    open_scan,
    released,
    sample,
    serving,
    stored_digest,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from scanner.storage.memory.store import MemoryStore

pytestmark = pytest.mark.socket

ROWS = 600
ALL = 1 << 40
EVEN = pb.Predicate(column="sold", operator=pb.Predicate.OPERATOR_EQUAL, literals=[pb.Literal(boolean=True)])
QUERIES = {
    "everything": pb.ScanQuery(table="items"),
    "filter, columns and limit": pb.ScanQuery(
        table="items", columns=["price", "id"], filter=[EVEN], row_limit=170
    ),
    "range": pb.ScanQuery(
        table="items",
        range=pb.KeyRange(start=b"\x80" + (100).to_bytes(7, "big"), end=b"\x80" + (300).to_bytes(7, "big")),
    ),
}


@dataclass(frozen=True)
class Cut:
    """A place where a scan may be cut: behind a message, each of which carries a token."""

    token: bytes
    rows: int
    """Rows received up to it."""


async def record(scan: RawScan) -> list[Cut]:
    """Receive a scan to its end, and note every token."""
    cuts = []
    while (response := await scan.receive()) is not None:
        if isinstance(response, RowBatch):
            cuts.append(Cut(response.resume_token, scan.rows))
        elif response.HasField("started"):
            cuts.append(Cut(response.started.resume_token, scan.rows))
        elif response.HasField("heartbeat"):
            cuts.append(Cut(response.heartbeat.resume_token, scan.rows))
        elif response.HasField("end"):
            cuts.append(Cut(response.end.resume_token, scan.rows))
    return cuts


async def first_batch(scan: RawScan) -> None:
    """Receive up to the first batch."""
    while not scan.batches:
        await scan.receive()


def change_everything(store: MemoryStore) -> None:
    """Writes all over the table, and behind its end."""
    store.bucket("items", 0).commit([mutations(store, "items", sample(range(1, ROWS + 50, 2)))])


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
async def test_every_message_is_a_place_to_continue(query: pb.ScanQuery) -> None:
    """From the token of the start, and of each batch, heartbeat and end the rest comes: rows, total and digest."""
    store = filled_store(ROWS)
    async with serving(store, ScannerConfig(block_rows_max=64, heartbeat_interval_s=0.001)) as (_, client):
        async with open_scan(client, query=query, credit=ALL, batch_rows_max=17) as whole:
            cuts = await record(whole)
        change_everything(store)
        assert whole.end is not None
        table = whole.table()
        assert len(cuts) > 10
        for cut in cuts:
            async with open_scan(client, query=query, window_only=True, resume_token=cut.token) as rest:
                await rest.receive_all()
            assert rest.row_ordinal == cut.rows
            assert rest.table().equals(table.slice(cut.rows))
            assert rest.log_offset == ROWS
            assert rest.end is not None
            assert (rest.end.reason, rest.end.rows) == (whole.end.reason, whole.end.rows)
            assert rest.end.digest == whole.end.digest


async def test_a_scan_resumed_after_every_batch_is_the_scan() -> None:
    """A chain of resumes, each from the first batch of the one before, under writes: one exact scan."""
    store = filled_store(ROWS)
    rows: list[int] = []
    token = b""
    async with serving(store) as (server, client):
        while True:
            async with open_scan(client, credit=ALL, batch_rows_max=50, resume_token=token) as scan:
                while not scan.batches and scan.end is None:
                    await scan.receive()
            if scan.end is not None:
                break
            rows += scan.table().column("id").to_pylist()
            token = scan.tokens[0]
            changed = sample(range(len(rows) // 2, ROWS, 5))
            store.bucket("items", 0).commit([mutations(store, "items", changed)])
            await released(server)
        read_sources = server.statistics().activity.scans_resumed

    assert rows == list(range(ROWS))
    assert scan.end.digest == stored_digest(store, range(ROWS))
    assert set(read_sources) <= {"snapshot", "as_of"}


@pytest.mark.parametrize(("linger_s", "read_source"), [(0, "as_of"), (10, "snapshot")])
async def test_read_sources_are_counted(linger_s: float, read_source: str) -> None:
    """A resume soon after a cut finds the snapshot, unless lingering is off; then the state is rebuilt."""
    store = filled_store(ROWS)
    config = ScannerConfig(block_rows_max=64, snapshot_linger_s=linger_s)
    async with serving(store, config) as (server, client):
        async with open_scan(client, credit=4000) as scan:
            await first_batch(scan)
        await released(server)
        change_everything(store)
        async with open_scan(client, window_only=True, resume_token=scan.tokens[0]) as rest:
            await rest.receive_all()
        counted = server.statistics().activity.scans_resumed

    assert counted == {read_source: 1}
    assert rest.rows == ROWS - scan.batches[0].num_rows


async def test_a_lost_state_names_what_is_left() -> None:
    """When the log is cut past the scan's offset a resume is SNAPSHOT_LOST with the oldest offset, never other rows."""
    store = filled_store(ROWS)
    async with serving(store, ScannerConfig(snapshot_linger_s=0)) as (server, client):
        async with open_scan(client, credit=3000) as scan:
            await first_batch(scan)
        await released(server)
        change_everything(store)
        bucket = store.bucket("items", 0)
        bucket.truncate_log(bucket.log_end)
        async with open_scan(client, resume_token=scan.tokens[0], credit=ALL) as lost:
            error = await failure(lost.receive_all)

    assert isinstance(error, SnapshotLost)
    assert error.message.startswith("bucket 0: the log starts at ")
    assert error.oldest_offset == bucket.log_end
    assert not error.retriable
    assert lost.batches == []


async def test_tampered_tokens_are_refused() -> None:
    """Every octet counts: one bit changed, one octet less or more, and the token is invalid."""
    async with serving(filled_store(ROWS)) as (_, client):
        async with open_scan(client, credit=3000) as scan:
            await first_batch(scan)
        cut = scan.tokens[0]
        bad = [cut[:-1], cut + b"\0", b"x"]
        bad += [bytes([*cut[:at], cut[at] ^ 1, *cut[at + 1 :]]) for at in range(0, len(cut), 7)]
        for each in bad:
            async with open_scan(client, resume_token=each) as refused:
                error = await failure(refused.receive_all)
            assert isinstance(error, ResumeTokenInvalid)


async def test_a_replaced_stream_hands_over() -> None:
    """The newer stream of the same id goes on where the older one's newest token says; that one ends typed."""
    store = filled_store(ROWS)
    async with serving(store) as (_, client):
        async with open_scan(client, stream_id=b"mine", credit=3000) as old:
            await old.receive_credit(3000)
            token = old.heartbeats[-1].resume_token
            async with open_scan(client, stream_id=b"mine", credit=ALL, resume_token=token) as new:
                await new.receive_all()
                error = await failure(old.receive_all)

    assert isinstance(error, ScanIncomplete)
    assert "replaced" in error.message
    assert error.resume_token == old.tokens[-1]
    assert error.metadata["rows"] == str(old.rows)
    assert new.row_ordinal == old.rows
    assert new.end is not None
    assert new.end.digest == stored_digest(store, range(ROWS))


async def test_a_replacement_needs_no_room() -> None:
    """At the cap, a client that comes back for its own stream is let in."""
    async with serving(filled_store(ROWS), ScannerConfig(scans_max=1)) as (_, client):
        async with open_scan(client, stream_id=b"mine") as old:
            await old.receive()
            async with open_scan(client, stream_id=b"mine", credit=ALL) as new:
                await new.receive_all()
                await failure(old.receive_all)
    assert new.rows == ROWS


async def test_a_drained_scan_goes_on_elsewhere() -> None:
    """A drain that the client asked for ends with a token behind the last row."""
    store = filled_store(ROWS)
    async with serving(store) as (_, client):
        async with open_scan(client, credit=5000) as scan:
            while not scan.heartbeats:
                await scan.receive()
            await scan.drain()
            await scan.receive_all()
        assert scan.end is not None
        change_everything(store)
        async with open_scan(client, credit=ALL, resume_token=scan.end.resume_token) as rest:
            await rest.receive_all()

    assert rest.row_ordinal == scan.rows
    assert scan.rows + rest.rows == ROWS
    assert rest.end is not None
    assert rest.end.digest == stored_digest(store, range(ROWS))


async def test_a_server_that_goes_down_hands_out_tokens() -> None:
    """What still runs when a drain's time is over ends with DRAINING, and goes on with its token at the next server."""
    store = filled_store(ROWS)
    async with open_server(store, config=SMALL) as server:
        async with transport.connect(server.host, server.port) as client:
            async with open_scan(client, credit=3000) as scan:
                while not scan.heartbeats:
                    await scan.receive()
                assert not await server.drain(0)
                error = await failure(scan.receive_all)
    assert isinstance(error, Draining)
    assert error.resume_token is not None
    assert error.metadata["rows"] == str(scan.rows)
    change_everything(store)
    async with serving(store) as (again, client):
        async with open_scan(client, credit=ALL, resume_token=error.resume_token) as rest:
            await rest.receive_all()
        assert again.statistics().activity.scans_resumed == {"as_of": 1}
        await released(again)
        assert again.statistics().activity.scan_rows == rest.rows
    assert rest.row_ordinal == scan.rows
    assert rest.end is not None
    assert rest.end.digest == stored_digest(store, range(ROWS))


async def test_a_store_that_closes_under_a_scan_leaves_it_a_token() -> None:
    """STORE_CLOSED can be tried again: where the store is opened next the scan goes on."""
    store = filled_store(ROWS)
    async with serving(store) as (_, client):
        async with open_scan(client, credit=3000) as scan:
            await scan.receive_credit(3000)
            store.bucket("items", 0).close()
            await scan.demand(ALL)
            error = await failure(scan.receive_all)
    assert isinstance(error, StoreClosed)
    assert error.resume_token == scan.tokens[-1]
    assert error.metadata["rows"] == str(scan.rows)


async def test_errors_that_end_the_scan_for_good_carry_no_token() -> None:
    """There is nothing to continue after a rule was broken."""
    async with serving(filled_store(ROWS)) as (_, client):
        async with open_scan(client, credit=3000) as scan:
            await first_batch(scan)
            await scan.stream.send(b"\xff\xff\xff")
            error = await failure(scan.receive_all)
    assert isinstance(error, ArgumentInvalid)
    assert error.resume_token is None


async def test_tokens_belong_to_a_principal() -> None:
    """Who may read the table as well, but did not open the scan, cannot continue it."""
    ann, bob = make_token(), make_token()
    credentials = Credentials.parse(
        "".join(
            f'[principals.{name}]\ntoken_sha256 = ["{token_sha256(token)}"]\nread = ["*"]\n'
            for name, token in (("ann", ann), ("bob", bob))
        )
    )
    async with open_server(filled_store(ROWS), config=SMALL, credentials=credentials) as server:

        @asynccontextmanager
        async def connected(token: str) -> AsyncIterator[transport.Client]:
            metadata = [("authorization", f"Bearer {token}")]
            async with transport.connect(server.host, server.port, metadata=metadata) as client:
                yield client

        async with connected(ann) as client, open_scan(client, credit=3000) as scan:
            await first_batch(scan)
            async with open_scan(client, credit=ALL, resume_token=scan.tokens[0]) as rest:
                await rest.receive_all()
        async with connected(bob) as client, open_scan(client, resume_token=scan.tokens[0]) as other:
            error = await failure(other.receive_all)

    assert rest.end is not None
    assert isinstance(error, ResumeTokenInvalid)
