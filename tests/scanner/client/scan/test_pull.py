"""Every pull model through the client and real sockets: page-ahead, lost responses, release, states, restarts."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

import scanner
import transport
from scanner.client.scan.pull import PagesAhead
from scanner.server.config import ScannerConfig
from scanner.server.server import Server, open_server
from tests.support.client import SCHEMA, open_client, open_table, rows
from tests.support.faults import FaultyStream
from tests.support.nightly import everyday

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

ROWS = 3_000
MODES = ["session", "token", "cursor", "asof"]
SMALL = ScannerConfig(block_rows_max=200)

every_mode = pytest.mark.parametrize("mode", MODES)


class NoDelay(Random):
    """A generator that lets every attempt follow at once."""

    def uniform(self, a: float, b: float) -> float:
        """The lower end."""
        return a


class CutStream(FaultyStream):
    """A connection that is lost once it has received so many octets."""

    def __init__(self, inner: trio.abc.HalfCloseableStream, receives: int) -> None:
        super().__init__(inner)
        self._left = receives

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Read on, up to the cut."""
        if self._left <= 0:
            await self.inner.aclose()
            return b""
        octets = await super().receive_some(min(max_bytes or self._left, self._left))
        self._left -= len(octets)
        return octets


@asynccontextmanager
async def cut_client(server: Server, cuts: Iterator[int], retries: int = 50) -> AsyncIterator[scanner.Client]:
    """A client whose connections are lost after so many octets, one after the other; those after the last never are."""

    async def dial() -> trio.abc.Stream:
        stream = await trio.open_tcp_stream("127.0.0.1", server.port)
        receives = next(cuts, None)
        return stream if receives is None else CutStream(stream, receives)

    async with scanner.connect("127.0.0.1:1", dial=dial, rng=NoDelay(), retries=retries) as client:
        yield client


def kept(server: Server) -> tuple[int, int, int]:
    """What the server keeps for pull models."""
    now = server.statistics()
    return now.sessions_open, now.page_snapshots_kept, now.iterators_open


@every_mode
@pytest.mark.parametrize("depth", [0, 1, 3])
async def test_pull_delivers_what_push_delivers(tmp_path: Path, mode: str, depth: int) -> None:
    """Rows, digest and offsets of a table scan are those of push, at every page-ahead; one request a page, no more."""
    async with open_table(tmp_path, ROWS, config=SMALL) as (table, server):
        scan = table.new_scan().with_page_bytes(5_000).with_page_depth(depth)
        async with scan.execute() as pushed:
            expected = [row async for batch in pushed for row in batch.to_pylist()]
        async with scan.with_mode(mode).execute() as pulled:
            pages = [batch.to_pylist() async for batch in pulled]
        assert kept(server) == (0, 0, 0)

    found, wanted = pulled.statistics(), pushed.statistics()
    assert sorted(map(repr, expected)) == sorted(repr(row) for page in pages for row in page)
    assert (found.rows, found.digest) == (wanted.rows, wanted.digest)
    assert [each.log_offset for each in found.buckets] == [each.log_offset for each in wanted.buckets]
    assert {each.states for each in (*found.buckets, *wanted.buckets)} == {1}
    assert {each.reason for each in found.buckets} == {"EXHAUSTED"}
    assert (found.requests, found.resumes) == (len(pages), 0)


@every_mode
@pytest.mark.parametrize(("depth", "requests"), [(0, 1), (1, 2), (4, 5)])
async def test_page_depth_bounds_what_is_asked_for(
    tmp_path: Path, mode: str, depth: int, requests: int
) -> None:
    """With nothing consumed, depth + 1 pages are asked for, and no more."""
    async with open_table(tmp_path, ROWS, buckets=1, config=SMALL) as (table, _):
        scan = table.new_scan().with_mode(mode).with_page_bytes(1_000).with_page_depth(depth)
        async with scan.execute() as batches:
            await anext(batches)
            with trio.fail_after(100):
                while batches.statistics().requests < requests:
                    await trio.lowlevel.checkpoint()
            for _ in range(100):
                await trio.lowlevel.checkpoint()
            assert batches.statistics().requests == requests


@every_mode
async def test_leaving_early_releases(tmp_path: Path, mode: str) -> None:
    """One release per bucket, by the models that keep something; when the block is left it has been done."""
    async with open_table(tmp_path, ROWS, config=SMALL) as (table, server):
        scan = table.new_scan().with_mode(mode).with_page_bytes(1_000).with_page_depth(0)
        async with scan.execute() as batches:
            seen = set()
            async for batch in batches:
                seen.add(batch.num_rows)
                if min(each.rows for each in batches.statistics().buckets):
                    break
            await trio.testing.wait_all_tasks_blocked()
            requests = batches.statistics().requests
        assert kept(server)[:2] == (0, 0)
        assert batches.statistics().requests - requests == (3 if mode in ("session", "token") else 0)


async def test_what_token_keeps_is_listed(tmp_path: Path) -> None:
    """Whoever administers the server sees what a scan by token pins between two pages, and whose it is."""
    async with open_client(tmp_path, SMALL) as (client, _):
        table = await client.create_table("items", SCHEMA, ["k"], 1)
        await table.write(rows(ROWS))
        scan = table.new_scan().with_mode("token").with_page_bytes(1_000).with_page_depth(0)
        async with scan.execute() as batches:
            await anext(batches)
            (kept_one,) = await client.list_snapshots()
        assert (kept_one.holder, kept_one.principal) == ("page", "anonymous")
        assert (kept_one.scan.table, kept_one.scan.log_offset) == ("items", ROWS)
        assert await client.list_snapshots() == []


@every_mode
async def test_table_limit_leaves_nothing_behind(tmp_path: Path, mode: str) -> None:
    """Exactly so many rows come out; the buckets that had more to give let go at the server."""
    async with open_table(tmp_path, ROWS, config=SMALL) as (table, server):
        found = await table.new_scan().with_mode(mode).with_page_bytes(1_000).limit(100).to_arrow()
        assert found.num_rows == 100
        assert kept(server)[:2] == (0, 0)


async def test_a_token_that_is_replaced_behind_the_first_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call that opened a session ends with a refusal: its page is here, and the next goes by the newer token."""
    receive, of_client = transport.Stream.receive, list[transport.Stream]()

    async def refused_at_the_end(stream: transport.Stream, **options: Any) -> Any:
        answer = await receive(stream, **options)
        if not isinstance(stream, transport.ServerStream):
            of_client.append(stream)
            if answer is None and stream is of_client[0]:  # The server has ended the call.
                raise transport.CallFailed(transport.StatusCode.UNAUTHENTICATED)
        return answer

    async with open_table(tmp_path, ROWS, buckets=1, config=SMALL) as (table, server):
        tokens = (f"weir_{number}" for number in itertools.count())
        async with scanner.connect(f"127.0.0.1:{server.port}", token=lambda: next(tokens)) as client:
            monkeypatch.setattr(transport.Stream, "receive", refused_at_the_end)
            scan = client.scan(table.new_scan().plan).with_mode("session").with_page_bytes(5_000)
            assert (await scan.to_arrow()).num_rows == ROWS


@every_mode
async def test_cancelling_the_first_page_leaks_nothing(tmp_path: Path, mode: str) -> None:
    """Wherever the opening of a scan is cancelled, the server keeps nothing of it."""
    async with open_table(tmp_path, ROWS, buckets=1, config=SMALL) as (table, server):
        scan = table.new_scan().with_mode(mode).with_page_bytes(1_000)
        arrived, steps = False, 0
        while not arrived:
            steps += 1
            with trio.CancelScope() as scope:
                async with scan.execute() as batches, trio.open_nursery() as nursery:

                    async def cancel_after_steps(steps: int, scope: trio.CancelScope) -> None:
                        for _ in range(steps):
                            await trio.lowlevel.checkpoint()
                        scope.cancel()

                    nursery.start_soon(cancel_after_steps, steps, scope)
                    await anext(batches)
                    arrived = True
                    nursery.cancel_scope.cancel()
            with trio.fail_after(100):
                while kept(server) != (0, 0, 0):
                    await trio.lowlevel.checkpoint()
    assert steps > 3


@every_mode
@pytest.mark.parametrize("seed", range(everyday(2, nightly=20)))
async def test_lost_responses_are_asked_for_again(tmp_path: Path, mode: str, seed: int) -> None:
    """However often the connection is lost, at whatever octet, nothing is lost or repeated."""
    rng = Random(seed)
    # The last pages are left in peace: a session is over when its last page is made, whether it arrives or not.
    cuts = [rng.randrange(200, 6_000) for _ in range(12)]
    async with open_table(tmp_path, ROWS, buckets=2, config=SMALL) as (table, server):
        async with table.new_scan().execute() as pushed:
            keys = sorted([key async for batch in pushed for key in batch["k"].to_pylist()])
        async with cut_client(server, iter(cuts)) as client:
            scan = (await client.table("items")).new_scan().with_mode(mode).with_page_bytes(4_000)
            async with scan.execute() as batches:
                found = sorted([key async for batch in batches for key in batch["k"].to_pylist()])

    assert found == keys
    assert batches.statistics().digest == pushed.statistics().digest
    assert batches.statistics().resumes > 0


@every_mode
async def test_without_retries_a_lost_connection_is_the_end(tmp_path: Path, mode: str) -> None:
    """The failure is typed, comes at once, and stays."""
    async with open_table(tmp_path, ROWS, buckets=1, config=SMALL) as (_, server):
        async with cut_client(server, iter([8_000]), retries=0) as client:
            scan = (await client.table("items")).new_scan().with_mode(mode).with_page_bytes(4_000)
            async with scan.execute() as batches:
                for _ in range(2):
                    with pytest.raises(scanner.ServerUnavailable):
                        while True:
                            await anext(batches)
    assert batches.statistics().resumes == 0


@pytest.mark.parametrize("mode", ["session", "token"])
async def test_refused_by_a_cap_after_retries(tmp_path: Path, mode: str) -> None:
    """A first page that the cap refuses is asked for again three times, then the refusal surfaces."""
    config = ScannerConfig(page_snapshots_per_bucket_max=1, sessions_per_bucket_max=1)
    async with open_table(tmp_path, ROWS, buckets=1, config=config) as (table, server):
        scan = table.new_scan().with_mode(mode).with_page_bytes(1_000)
        async with scan.execute() as first:
            await anext(first)
            async with scan.execute() as second:
                with pytest.raises(scanner.TooManyScans):
                    await anext(second)
            assert second.statistics().requests == 4
            assert sum(kept(server)[:2]) == 1
        assert (await scan.to_arrow()).num_rows == ROWS


@pytest.mark.parametrize(
    ("mode", "isolated"), [("session", True), ("token", True), ("asof", True), ("cursor", False)]
)
async def test_isolation_under_a_writer(tmp_path: Path, mode: str, isolated: bool) -> None:
    """Every row is replaced and some are added between two pages: an isolated scan shows none of it, a cursor does."""
    async with open_table(tmp_path, ROWS, buckets=1, config=SMALL) as (table, _):
        scan = table.new_scan().with_mode(mode).with_page_bytes(2_000).with_page_depth(0)
        async with scan.execute() as batches:
            found = [(await anext(batches)).to_pylist()]
            await table.write(rows(ROWS + 100, width=10))
            found += [batch.to_pylist() async for batch in batches]
        (bucket,) = batches.statistics().buckets

    before = rows(ROWS).to_pylist()
    after = rows(ROWS + 100, width=10).to_pylist()
    got = [row for page in found for row in page]
    if isolated:
        assert got == before
        assert (bucket.log_offset, bucket.states) == (ROWS, 1)
    else:
        assert got == before[: len(found[0])] + after[len(found[0]) :]
        assert (bucket.log_offset, bucket.states) == (ROWS, 2)


async def test_past_state_by_pages(tmp_path: Path) -> None:
    """`as_of` goes with asof as with push; the other pull models refuse it, in one line that says what to do."""
    async with open_table(tmp_path, ROWS, buckets=2, config=SMALL) as (table, _):
        offsets = {each.bucket: each.end_offset for each in await table.offsets()}
        await table.write(rows(ROWS, width=5))
        scan = table.new_scan().as_of(offsets).with_page_bytes(5_000)
        pushed, pulled = [await scan.with_mode(mode).to_arrow() for mode in ("push", "asof")]
        for mode in ("session", "token", "cursor"):
            with pytest.raises(scanner.ArgumentInvalid, match=f"mode {mode} reads what is there now"):
                await scan.with_mode(mode).to_arrow()

    assert pulled.sort_by("k").to_pylist() == rows(ROWS).to_pylist()
    assert pulled.sort_by("k").equals(pushed.sort_by("k"))


@pytest.mark.parametrize(
    ("mode", "failure"),
    [
        ("session", scanner.SessionUnknown),
        ("token", scanner.SnapshotLost),
        ("cursor", None),
        ("asof", None),
    ],
)
async def test_restart_between_pages(
    tmp_path: Path, kept_port: int, mode: str, failure: type[scanner.ScannerError] | None
) -> None:
    """What the server kept is gone, and that is terminal; what is all in the token goes on."""
    async with trio.open_nursery() as nursery:
        first, second = Host(tmp_path), Host(tmp_path)
        await nursery.start(first.run, kept_port)
        async with scanner.connect(f"127.0.0.1:{kept_port}", rng=NoDelay()) as client:
            table = await client.create_table("items", SCHEMA, ["k"], 1)
            await table.write(rows(ROWS))
            scan = table.new_scan().with_mode(mode).with_page_bytes(2_000).with_page_depth(0)
            async with scan.execute() as batches:
                found = (await anext(batches))["k"].to_pylist()
                first.leave.set()
                await first.left.wait()
                await nursery.start(second.run, kept_port)
                if failure is not None:
                    with pytest.raises(failure):
                        await anext(batches)
                else:
                    found += [key async for batch in batches for key in batch["k"].to_pylist()]
                    assert found == list(range(ROWS))
            digest = batches.statistics().digest
            async with table.new_scan().execute() as pushed:
                async for _ in pushed:
                    pass
        second.leave.set()
    assert digest == (None if failure else pushed.statistics().digest)


class Host:
    """A server in a task of its own, so that it can end before the block that uses it."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self.leave, self.left = trio.Event(), trio.Event()

    async def run(self, port: int, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until it is told to leave."""
        async with open_server(self._data, port=port, config=SMALL):
            task_status.started()
            await self.leave.wait()
        self.left.set()


async def test_a_page_is_consumed_with_the_last_of_its_batches(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Buckets take turns: the batches of two answers come in any order, and make room when their answer is through."""
    pages = PagesAhead(0)
    first, second = pages.add(3), pages.add(1)
    room = trio.Event()

    async def wait() -> None:
        await pages.wait_room()
        room.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        for consumed in (first, second, first):
            consumed()
            await trio.testing.wait_all_tasks_blocked()
            assert not room.is_set()
        first()
        await room.wait()
