"""Scans and the life of their connection: a stalled one is kept, a vanished one released, a drain ends them typed."""

from __future__ import annotations

import socket

import pytest
import trio
import trio.testing

import transport
from scanner.client.connection import open_connection
from scanner.client.endpoints import connect_by_tcp
from scanner.errors import Draining
from scanner.server.server import open_server
from scanner.wire.statuses import from_call_failed
from tests.support.names import TwoAddresses
from tests.support.scans import SMALL, filled_store, open_scan, released, stored_digest
from transport import CallFailed, TransportConfig

pytestmark = pytest.mark.socket

ROWS = 3_000
HEARTBEATS = 8
LIVELY = TransportConfig(ping_interval_s=0.02, ping_timeout_s=20)
"""Asks for life so often that a test sees it many times."""


async def test_a_stalled_scan_is_kept_and_completes() -> None:
    """A consumer without credit left answers keepalives as long as it likes; then its scan ends with every row."""
    store = filled_store(ROWS)
    with trio.fail_after(100):
        async with (
            open_server(store, config=SMALL, transport_config=LIVELY) as server,
            transport.connect(server.host, server.port, config=LIVELY) as client,
            open_scan(client, credit=1) as scan,
        ):
            while len(scan.heartbeats) < HEARTBEATS or not scan.batches:
                await scan.receive()
            assert len(scan.batches) == 1
            assert server.statistics().iterators_open == 1
            await scan.demand(1 << 40)
            await scan.receive_all()
            assert scan.end is not None
            assert (scan.rows, scan.end.digest) == (ROWS, stored_digest(store, range(ROWS)))
            await released(server)


async def test_a_host_whose_first_address_says_nothing_is_reached_by_the_second(
    mock_clock: trio.testing.MockClock,
) -> None:
    """A retry begins with the other one: the one of a stopped server would take the connection each time."""
    trio.socket.set_custom_hostname_resolver(TwoAddresses())

    async def let_time_pass(listener: socket.socket) -> None:
        await trio.lowlevel.wait_readable(listener)
        await trio.testing.wait_all_tasks_blocked()  # The client is connected, and waits for the first word.
        mock_clock.jump(TransportConfig().handshake_timeout_s)
        while True:  # The retry waits for up to a tenth of a second.
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(0.1)

    async with (
        open_server(filled_store(ROWS), config=SMALL, host=TwoAddresses.SECOND) as server,
        trio.open_nursery() as nursery,
    ):
        with socket.create_server((TwoAddresses.FIRST, server.port)) as stopped:
            nursery.start_soon(let_time_pass, stopped)
            connect = connect_by_tcp("two.example", server.port)
            async with open_connection(connect, "two.example") as connection:
                await connection.call("/grpc.health.v1.Health/Check", b"")
                assert connection.connects == 2
            nursery.cancel_scope.cancel()


async def test_a_silent_consumer_is_released_with_its_iterator(mock_clock: trio.testing.MockClock) -> None:
    """A client that dies without a word holds an iterator no longer than the PING's interval and timeout."""
    config = TransportConfig()
    left, right = trio.testing.memory_stream_pair()
    async with open_server(filled_store(ROWS), config=SMALL) as server:
        near = await trio.open_tcp_stream(server.host, server.port)
        async with near, trio.open_nursery() as path:
            path.start_soon(_copy, right, near)
            path.start_soon(_copy, near, right)
            async with transport.connect_stream(left) as client, open_scan(client, credit=1) as scan:
                while not scan.batches:
                    await scan.receive()
                assert server.statistics().iterators_open == 1
                path.cancel_scope.cancel()  # from here on nothing passes, and the socket stays open
                # The PING goes out, its time passes, and once more: the system has taken it.
                for _ in range(3):
                    mock_clock.jump(config.ping_interval_s + config.ping_timeout_s)
                    await trio.testing.wait_all_tasks_blocked()
                await released(server)


async def _copy(source: trio.abc.ReceiveStream, sink: trio.abc.SendStream) -> None:
    while data := await source.receive_some(1 << 16):
        await sink.send_all(data)


async def test_a_scan_that_outlasts_a_drain_ends_with_draining() -> None:
    """At the drain timeout a running scan ends typed and retriable, after the batches that were sent before."""
    with trio.fail_after(100):
        async with (
            open_server(filled_store(ROWS), config=SMALL) as server,
            transport.connect(server.host, server.port) as client,
            open_scan(client, credit=2_000) as scan,
        ):
            while not scan.batches:
                await scan.receive()
            assert not await server.drain(0.05)
            with pytest.raises(CallFailed) as caught:
                await scan.receive_all()
            error = from_call_failed(caught.value)
            assert type(error) is Draining
            assert error.retriable
            assert 0 < scan.rows < ROWS
            await released(server)
