"""First pages that may not have arrived: how long what they left waits for its client, and for whom it makes room."""

from __future__ import annotations

import pytest
import trio

from scanner.errors import SessionExpired, TooManyScans
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.config import ScannerConfig
from scanner.wire import methods
from scanner.wire.batches import decode_scan_page, decode_session_page
from tests.scanner.server.pull.test_sessions import claimed, opened, pull, registry
from tests.support import wire
from tests.support.models import PAGE_BYTES, SESSION_MODEL, TOKEN, pull_wire
from tests.support.pages import ROWS
from tests.support.scans import SESSION, filled_store, serving
from transport import Client, ConnectionLost, TransportError, connect_stream


@pytest.mark.parametrize(("grace_s", "lives_s"), [(0.0, 1.0), (10.0, 11.0)])
def test_lost_open_response(grace_s: float, lives_s: float) -> None:
    """A session whose page 0 may not have arrived ends, at once or soon, unless it was continued or goes on."""
    sessions = registry()
    lost, again, running = (opened(sessions, bucket) for bucket in "abc")
    pull(sessions, again, 1)
    claimed(sessions, running, 1)
    for session in (lost, again, running):
        sessions.kept.give_up(session, 1.0, grace_s)
    sessions.abandon(running)

    sessions.kept.sweep(lives_s - 0.1)
    assert len(sessions.kept) == (3 if grace_s else 2)
    sessions.kept.sweep(lives_s)
    assert (len(sessions.kept), lost.resource.closed) == (2, 1)
    sessions.kept.give_up(lost, 2.0, 0.0)


def test_lost_session_makes_room() -> None:
    """At a cap, one that nobody has come back to goes; one that is in use, or of another bucket, does not."""
    sessions = registry()
    lost, other = opened(sessions, "a"), opened(sessions, "a")
    sessions.kept.give_up(lost, 0.0, 10.0)
    opened(sessions, "a")
    assert (lost.resource.closed, other.resource.closed) == (1, 0)

    sessions.kept.give_up(other, 0.0, 10.0)
    claimed(sessions, other, 1)
    with pytest.raises(TooManyScans):
        sessions.kept.reserve("a")
    sessions.abandon(other)
    with pytest.raises(TooManyScans):
        sessions.kept.reserve("a")
    with pytest.raises(SessionExpired, match="or was lost with the connection that had opened it"):
        sessions.claim(other.id, 1, 10.0)


def test_lost_session_makes_room_at_the_server() -> None:
    """Where the server's cap is reached, one of any bucket goes."""
    sessions = registry()
    lost = opened(sessions, "a")
    opened(sessions, "b")
    opened(sessions, "b")
    sessions.kept.give_up(lost, 0.0, 10.0)
    opened(sessions, "c")

    assert lost.resource.closed == 1


@pytest.mark.socket
@pytest.mark.parametrize("model", ["session", "token"])
@pytest.mark.parametrize("linger_s", [0, 10])
@pytest.mark.parametrize("held", [True, False], ids=["held", "unary"])
async def test_connection_lost_behind_the_first_page(model: str, linger_s: float, held: bool) -> None:
    """A client whose connection went after its first page comes back on another and goes on, for a while.

    Whether it held the call open to the end, or half-closed with its request as unary stubs do.
    """
    config = ScannerConfig(block_rows_max=100, snapshot_linger_s=linger_s, sessions_per_bucket_max=1)
    path, request = _open_of(model)
    async with serving(filled_store(ROWS), config) as (server, client):
        socket = await trio.open_tcp_stream(server.host, server.port)
        message = None
        with pytest.raises(TransportError):
            async with connect_stream(socket) as doomed, doomed.open_stream(path) as stream:
                await stream.send(request.SerializeToString())
                if not held:
                    await stream.send_end()
                message = await stream.receive()
                await trio.aclose_forcefully(socket)
                if not held:
                    raise ConnectionLost("as far as it can be told")
                await stream.receive()
        assert message
        while server.statistics().transport.connections > 1:
            await trio.lowlevel.checkpoint()
        assert server.statistics().iterators_open == (1 if linger_s else 0)
        if not linger_s:
            return
        await _go_on(model, client, bytes(message))


@pytest.mark.parametrize("model", ["session", "token"])
async def test_a_confirmed_first_page_outlives_its_connection(model: str) -> None:
    """Who has shown that the first page arrived may take his time, and come back over another connection."""
    config = ScannerConfig(block_rows_max=100, snapshot_linger_s=0)
    async with serving(filled_store(ROWS), config) as (server, client):
        socket = await trio.open_tcp_stream(server.host, server.port)
        async with connect_stream(socket) as first:
            path, request = _open_of(model)
            async with first.open_stream(path) as stream:
                await stream.send(request.SerializeToString())
                message = bytes(await stream.receive())
                await stream.send_end()
                assert await stream.receive() is None
        while server.statistics().transport.connections > 1:
            await trio.lowlevel.checkpoint()
        assert server.statistics().iterators_open == 1
        await _go_on(model, client, message)


async def test_a_reset_that_comes_too_late_gives_the_session_up() -> None:
    """A stub that is cancelled while the answer is on its way leaves nothing for the session's whole life."""
    config = ScannerConfig(block_rows_max=100, snapshot_linger_s=0, sessions_per_bucket_max=1)
    _, request = _open_of("session")
    async with serving(filled_store(ROWS), config) as (server, _):
        socket = await trio.open_tcp_stream(server.host, server.port)
        async with socket:
            await socket.send_all(
                wire.CLIENT_HELLO
                + wire.headers(1, [*wire.REQUEST[:2], (":path", SESSION), *wire.REQUEST[3:]])
                + wire.data(1, wire.message(request.SerializeToString()), end=True)
            )
            while server.statistics().activity.sessions_opened == 0 or server.statistics().transport.streams:
                await trio.lowlevel.checkpoint()
            assert server.statistics().sessions_open == 1
            await socket.send_all(wire.reset(1))
            while server.statistics().sessions_open:
                await trio.lowlevel.checkpoint()
            assert server.statistics().transport.connections == 2


def _open_of(model: str) -> tuple[str, pb.ScanSessionRequest | pb.ScanPageRequest]:
    """The path of a model, and the request of a first page."""
    query = pb.ScanQuery(table="items")
    if model == "session":
        return SESSION, pb.ScanSessionRequest(query=query, batch_size_bytes=PAGE_BYTES)
    return methods.SCAN_PAGE, pb.ScanPageRequest(
        model=pb.PAGE_MODEL_TOKEN, query=query, batch_size_bytes=PAGE_BYTES
    )


async def _go_on(model: str, client: Client, message: bytes) -> None:
    """Take the page after the first one, and leave the rest."""
    if model == "session":
        scan = pull_wire(SESSION_MODEL, client)
        scan.scanner_id = decode_session_page(message).fields.scanner_id
        page = await scan.call(scanner_id=scan.scanner_id, call_seq_id=1)
    else:
        scan = pull_wire(TOKEN, client)
        page = await scan.open(decode_scan_page(message).fields.resume_token)
    await scan.release()
    assert page.ordinal > 0
