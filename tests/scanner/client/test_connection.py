"""The connection that outlives its TCP connections, on a virtual clock."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import pytest
import trio
import trio.testing

import scanner
import scanner.sync
import transport
from scanner.client.connection import LINKS_MAX, Connection, Lasting, open_connection
from scanner.client.endpoints import connect_by_tcp
from scanner.client.retries import RetryPolicy
from scanner.client.table import Table
from scanner.data.table import TableDescription
from scanner.errors import ArgumentInvalid, ScannerError, ServerUnavailable
from tests.support import wire
from tests.support.groups import pass_time
from tests.support.hosts import MemoryHost, connected_to, memory_host, settle
from tests.support.push_messages import SCHEMA
from transport import Handler, ServerStream, TransportConfig, TransportError
from transport.byte_streams import StreamBytes
from transport.protocol.liveness import Acknowledged

ECHO = "/test.Test/Echo"
WAIT = "/test.Test/Wait"
HEALTH = "/grpc.health.v1.Health/Check"
PATIENT = TransportConfig().answer_timeout_s


async def echo(stream: ServerStream) -> None:
    await stream.send(bytes(await stream.receive()))


class Waiting:
    """Calls that end when they are told to."""

    def __init__(self) -> None:
        self.go_on = trio.Event()

    async def __call__(self, stream: ServerStream) -> None:
        await self.go_on.wait()
        await stream.send(b"done")


async def outcome_of(act: Callable[[], Awaitable[object]], outcomes: list[object]) -> None:
    """Do something and note what came of it."""
    try:
        outcomes.append(await act())
    except (ScannerError, TransportError, trio.ClosedResourceError) as error:
        outcomes.append(error)


async def test_calls_share_one_connection(autojump_clock: trio.testing.MockClock) -> None:
    """As long as it lives, one TCP connection serves every call."""
    async with memory_host({ECHO: echo}) as host, connected_to(host) as connection:
        for _ in range(3):
            assert await connection.call(ECHO, b"hello") == b"hello"
        assert connection.connects == len(host.dialled_at) == 1


@pytest.mark.parametrize("send", [pickle.dumps, copy.deepcopy])
async def test_what_a_client_has_made_stays_in_its_process(send: Callable[[object], object]) -> None:
    """The error says what can be sent instead; trio's tasks are not half copied, which leaves tracebacks behind."""
    async with memory_host({}) as host, connected_to(host) as connection:
        for made in (connection, Table(connection, TableDescription("t", SCHEMA, ("k",), 1), 0)):
            with pytest.raises(TypeError, match=r"send a scan's plan .* run client\.scan\(plan\)"):
                send(made)


async def test_a_lost_connection_is_made_again_for_the_next_call(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The call that was cut fails, once; the next one finds a new connection."""
    async with memory_host({ECHO: echo, WAIT: Waiting()}) as host, connected_to(host) as connection:
        outcomes: list[object] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outcome_of, partial(connection.call, WAIT, b""), outcomes)
            await trio.testing.wait_all_tasks_blocked()
            host.cut()
        assert isinstance(outcomes[0], TransportError)
        assert connection.connects == 1
        assert await connection.call(ECHO, b"again") == b"again"
        assert connection.connects == 2


async def test_a_connection_without_stream_ids_is_replaced(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A connection has 2^30 calls. The next call makes another one, and those that run go on."""
    waiting = Waiting()
    async with memory_host({ECHO: echo, WAIT: waiting}) as host, connected_to(host) as connection:
        outcomes: list[object] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outcome_of, partial(connection.call, WAIT, b""), outcomes)
            await trio.testing.wait_all_tasks_blocked()
            async with connection.client() as client:
                client._driver.core.table.highest_outbound = 2**31 - 3
            assert await connection.call(ECHO, b"the last") == b"the last"
            assert connection.connects == 1
            assert await connection.call(ECHO, b"the first") == b"the first"
            assert connection.connects == 2
            waiting.go_on.set()
        assert outcomes == [b"done"]


async def test_the_first_connection_is_tried_once(autojump_clock: trio.testing.MockClock) -> None:
    """Who connects to nobody learns it at once, however many retries there may be."""
    async with memory_host({}) as host:
        host.refusals = 1
        with pytest.raises(ServerUnavailable, match="no weir server answers at memory:1: nobody answers"):
            async with connected_to(host, retries=100):
                pass
        assert host.dialled_at == [0.0]


async def test_connecting_again_is_patient(autojump_clock: trio.testing.MockClock) -> None:
    """A call waits for a server that is away, in growing delays, until it is back."""
    async with memory_host({ECHO: echo}) as host, connected_to(host) as connection:
        host.vanish(refusals=4)
        await trio.testing.wait_all_tasks_blocked()
        assert await connection.call(ECHO, b"hello") == b"hello"
        assert len(host.dialled_at) == 6
        waits = [
            later - earlier for earlier, later in zip(host.dialled_at[1:], host.dialled_at[2:], strict=False)
        ]
        assert all(wait <= 0.1 * 2**index for index, wait in enumerate(waits))


async def test_patience_ends(autojump_clock: trio.testing.MockClock) -> None:
    """After as many attempts as were allowed the last error surfaces; with none allowed, the first."""
    async with memory_host({}) as host:
        for retries, dials in ((3, 4), (0, 1)):
            host.refusals, host.dialled_at = 0, []
            async with connected_to(host, retries) as connection:
                host.vanish()
                await trio.testing.wait_all_tasks_blocked()
                says = "after 4 attempts" if retries else "no weir server answers"
                with pytest.raises(ServerUnavailable, match=says):
                    await connection.call(ECHO, b"hello")
            assert len(host.dialled_at) == 1 + dials


async def test_a_call_may_be_more_patient_than_its_connection(autojump_clock: trio.testing.MockClock) -> None:
    """As the commit of a reader that was told so."""
    async with memory_host({}) as host, connected_to(host, retries=1) as connection:
        host.vanish()
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(ServerUnavailable, match="after 4 attempts"):
            await connection.call(ECHO, b"hello", retries=3)


@pytest.mark.parametrize(("words", "says"), [(b"", "says nothing"), (b"\0\0\0", "has not begun to speak")])
async def test_a_peer_that_is_stopped_is_told_from_one_of_another_kind(
    autojump_clock: trio.testing.MockClock, words: bytes, says: str
) -> None:
    """The system takes connections for a server that is stopped, and nothing comes on them."""
    client_end, server_end = trio.testing.memory_stream_pair()

    async def dial() -> trio.abc.Stream:
        await server_end.send_all(words)
        return client_end

    connect = connect_by_tcp("memory", 1, dial=dial)
    async with open_connection(connect, "memory:1", policy=RetryPolicy(retries=0)) as connection:
        with pytest.raises(ServerUnavailable, match=says):
            await connection.call(ECHO, b"hello")


async def test_one_attempt_serves_all_who_wait(autojump_clock: trio.testing.MockClock) -> None:
    """Tasks that need a connection at the same time share the attempt to make it, and its failure."""
    async with memory_host({ECHO: echo}) as host, connected_to(host, retries=0) as connection:
        for refusals in (1, 0):
            host.vanish(refusals)
            await trio.testing.wait_all_tasks_blocked()
            host.open, host.dialled_at = trio.Event(), []
            outcomes: list[object] = []
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(outcome_of, partial(connection.call, ECHO, b"x"), outcomes)
                await trio.testing.wait_all_tasks_blocked()
                host.open.set()
            assert len(host.dialled_at) == 1
            if not refusals:
                assert outcomes == [b"x"] * 5
            else:
                assert [type(each) for each in outcomes] == [ServerUnavailable] * 5
                assert len(set(map(id, outcomes))) == 5


async def test_a_cancelled_attempt_is_taken_over(autojump_clock: trio.testing.MockClock) -> None:
    """If the task that connects is cancelled, another one that waits connects instead."""
    async with memory_host({ECHO: echo}) as host, connected_to(host, retries=0) as connection:
        host.cut()
        await trio.testing.wait_all_tasks_blocked()
        host.open = trio.Event()
        outcomes: list[object] = []
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(1) as first:
                nursery.start_soon(outcome_of, partial(_later_call, connection), outcomes)
                await connection.call(ECHO, b"first")
            assert first.cancelled_caught
            host.open.set()
        assert outcomes == [b"second"]


async def _later_call(connection: Connection) -> object:
    await trio.testing.wait_all_tasks_blocked()
    return await connection.call(ECHO, b"second")


async def test_a_draining_server_finishes_what_runs(autojump_clock: trio.testing.MockClock) -> None:
    """Calls on a connection that takes no new ones go on there, beside new calls on a new connection."""
    waiting = Waiting()
    async with memory_host({ECHO: echo, WAIT: waiting}) as host, connected_to(host) as connection:
        old = host.server
        outcomes: list[object] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outcome_of, partial(connection.call, WAIT, b""), outcomes)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(old.drain, 1000)
            await trio.testing.wait_all_tasks_blocked()
            host.server = type(old)({ECHO: echo}, host._config)
            assert await connection.call(ECHO, b"new") == b"new"
            assert connection.connects == 2
            waiting.go_on.set()
        assert outcomes == [b"done"]


async def lasting_call(connection: Connection, lasting: Lasting = Lasting.FOR_EVER) -> None:
    """One that nobody ends."""
    async with connection.client(lasting=lasting) as client, client.open_stream(WAIT) as stream:
        await stream.receive()


@pytest.mark.parametrize(
    ("lasting", "allowed", "calls", "connections"),
    [
        (Lasting.FOR_EVER, 8, 4, 1),
        (Lasting.FOR_EVER, 8, 5, 2),
        (Lasting.FOR_EVER, 8, 29, 5),
        (Lasting.FOR_EVER, 1, 3, 4),
        (Lasting.AS_ITS_USER_WANTS, 8, 6, 1),
        (Lasting.AS_ITS_USER_WANTS, 8, 7, 2),
        (Lasting.AS_ITS_USER_WANTS, 1, 3, 4),
    ],
)
async def test_calls_that_do_not_end_leave_room_for_others(
    autojump_clock: trio.testing.MockClock, lasting: Lasting, allowed: int, calls: int, connections: int
) -> None:
    """On the connection in use a part of what the server allows; what is more has further ones, which end with it."""
    config = TransportConfig(streams_max=allowed)
    async with memory_host({ECHO: echo, WAIT: Waiting()}, config) as host, connected_to(host) as connection:
        async with trio.open_nursery() as nursery:
            for _ in range(calls):
                nursery.start_soon(lasting_call, connection, lasting)
            await settle()
            assert connection.connects == len(host.dialled_at) == connections
            assert await connection.call(ECHO, b"hello") == b"hello"
            nursery.cancel_scope.cancel()
        await settle()
        assert len(connection._links) == 1
        assert await connection.call(ECHO, b"again") == b"again"
        assert connection.connects == connections


async def test_lasting_calls_end_where_they_would_need_too_many_connections(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """An error that says what to do, and not a wait for ever; those that end as their user wants stand in line."""
    config = TransportConfig(streams_max=1)
    async with memory_host({WAIT: Waiting()}, config) as host, connected_to(host) as connection:
        async with trio.open_nursery() as nursery:
            for _ in range(LINKS_MAX - 1):
                nursery.start_soon(lasting_call, connection)
            await settle()
            with pytest.raises(ArgumentInvalid, match="a connection 1 at once, and 64 connections are full"):
                await lasting_call(connection)
            for _ in range(3):
                nursery.start_soon(lasting_call, connection, Lasting.AS_ITS_USER_WANTS)
            await settle()
            assert connection.connects == LINKS_MAX
            nursery.cancel_scope.cancel()


async def test_a_limit_that_is_lowered_under_lasting_calls_leaves_room_for_others(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short call has a further connection then; on the other one it would wait for an end that may never come."""
    async with memory_host({ECHO: echo, WAIT: Waiting()}) as host, connected_to(host) as connection:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lasting_call, connection)
            await settle()
            assert await connection.call(ECHO, b"hello") == b"hello"
            assert connection.connects == 1
            monkeypatch.setattr(transport.Client, "calls_max", 1)
            assert await connection.call(ECHO, b"hello") == b"hello"
            assert connection.connects == 2
            nursery.cancel_scope.cancel()


async def test_a_limit_of_none_is_waited_for(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that takes no calls for a while gets no further connections for them."""
    monkeypatch.setattr(transport.Client, "calls_max", 0)
    async with memory_host({WAIT: Waiting()}) as host, connected_to(host) as connection:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(lasting_call, connection)
            await settle()
            assert connection.connects == 1
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
async def test_what_a_server_says_that_takes_no_calls_is_told(
    autojump_clock: trio.testing.MockClock, closed: bool
) -> None:
    """One that turns connections away speaks HTTP/2, also when it has hung up before a call is made."""
    ours, theirs = trio.testing.memory_stream_pair()

    async def dial() -> trio.abc.Stream:
        return ours

    connect = connect_by_tcp("memory", 1, dial=dial)
    async with open_connection(connect, "memory:1", policy=RetryPolicy(retries=0)) as connection:
        await theirs.send_all(wire.settings() + wire.goaway(0, 11, b"too many connections"))
        if closed:
            await theirs.send_eof()
        with pytest.raises(
            ServerUnavailable, match="takes no new calls: it said ENHANCE_YOUR_CALM too many connections"
        ):
            await connection.call(ECHO, b"")


@pytest.mark.parametrize("retries", [0, 1])
async def test_a_call_that_a_goaway_has_overtaken_is_made_again(
    autojump_clock: trio.testing.MockClock, retries: int
) -> None:
    """It was not processed: the server, or a proxy as after each thousand calls, had said goodbye just before."""
    (ours, theirs), (second, at_server) = (trio.testing.memory_stream_pair() for _ in range(2))
    streams = iter((ours, second))
    connect = connect_by_tcp("memory", 1, dial=lambda: _next_of(streams))
    answers: list[object] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(transport.Server({ECHO: echo}, TransportConfig()).handle_connection, at_server)
        async with open_connection(connect, "memory:1", policy=RetryPolicy(retries=retries)) as connection:
            await theirs.send_all(wire.settings())
            async with trio.open_nursery() as calling:
                calling.start_soon(outcome_of, partial(connection.call, ECHO, b"once"), answers)
                await settle()
                await theirs.send_all(wire.goaway(0))
        nursery.cancel_scope.cancel()
    if retries:
        assert answers == [b"once"]
    else:
        (answer,) = answers
        assert isinstance(answer, ServerUnavailable)
        assert "refused: the peer went away before it processed the call" in str(answer)


async def _next_of(streams: Iterator[trio.abc.Stream]) -> trio.abc.Stream:
    return next(streams)


async def test_a_left_client_says_so(autojump_clock: trio.testing.MockClock) -> None:
    """Leaving the block ends calls that run; later ones are a mistake of the caller's, told as such."""
    async with memory_host({ECHO: echo, WAIT: Waiting()}) as host:
        outcomes: list[object] = []
        async with trio.open_nursery() as nursery:
            async with connected_to(host) as connection:
                nursery.start_soon(outcome_of, partial(connection.call, WAIT, b""), outcomes)
                await trio.testing.wait_all_tasks_blocked()
        assert isinstance(outcomes[0], TransportError)
        with pytest.raises(trio.ClosedResourceError, match="connect again"):
            await connection.call(ECHO, b"late")


async def test_leaving_while_it_connects(autojump_clock: trio.testing.MockClock) -> None:
    """A connection that comes after its block was left is closed, and whoever waited for it is told."""
    async with memory_host({ECHO: echo}) as host:
        outcomes: list[object] = []
        async with trio.open_nursery() as nursery:
            async with connected_to(host) as connection:
                host.cut()
                await trio.testing.wait_all_tasks_blocked()
                host.open = trio.Event()
                nursery.start_soon(outcome_of, partial(connection.call, ECHO, b""), outcomes)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(_open_later, host)
        assert isinstance(outcomes[0], TransportError | trio.ClosedResourceError)


async def _open_later(host: MemoryHost) -> None:
    await trio.testing.wait_all_tasks_blocked()
    host.open.set()


async def test_cancellation_ends_the_wait_for_a_connection(autojump_clock: trio.testing.MockClock) -> None:
    """Who is cancelled between two attempts to connect waits no longer."""
    async with memory_host({}) as host, connected_to(host, retries=1_000) as connection:
        host.vanish()
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(50) as scope:
            await connection.call(ECHO, b"hello")
        assert scope.cancelled_caught
        assert trio.current_time() == 50


async def test_a_cancelled_client_has_its_connection_until_its_block_is_left(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """What blocks have to say to the server then, such as that a lease is to be dropped, arrives."""
    async with memory_host({ECHO: echo}) as host:
        answers = []
        with trio.CancelScope() as scope:
            async with connected_to(host) as connection:
                try:
                    scope.cancel()
                    await trio.sleep_forever()
                finally:
                    with trio.move_on_after(1, shield=True):
                        answers.append(await connection.call(ECHO, b"bye"))
        assert answers == [b"bye"]
        assert len(host.dialled_at) == 1
        assert trio.current_time() == host.dialled_at[0]


async def test_errors_of_the_block_leave_bare(autojump_clock: trio.testing.MockClock) -> None:
    """An exception of the block passes through as itself."""
    async with memory_host({}) as host:
        with pytest.raises(KeyError):
            async with connected_to(host):
                raise KeyError
        connect = connect_by_tcp("memory", 1, dial=host.dial)
        with pytest.raises(KeyError):
            async with open_connection(connect, "memory:1", policy=RetryPolicy()):
                raise KeyError


@pytest.mark.parametrize("retries", [-1, 2**32, 1.5, "8", True, None])
async def test_senseless_retries_are_refused(retries: int) -> None:
    """The number of retries is a whole number, 0 or more."""
    with pytest.raises(ArgumentInvalid, match="retries must be"):
        async with scanner.connect("127.0.0.1:1", retries=retries):
            pass
    with pytest.raises(ArgumentInvalid, match="retries must be"):
        scanner.sync.connect("127.0.0.1:1", retries=retries)


async def test_a_server_that_is_gone_behind_a_proxy_is_given_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """What answers PINGs takes calls, and nobody says a word on them. The next connection has to prove itself."""
    back = Waiting()
    async with memory_host({ECHO: echo, WAIT: Waiting(), HEALTH: back}) as host:
        async with connected_to(host, retries=2) as connection:
            with pytest.raises(
                TransportError, match="the server behind it is gone: it has said nothing for 60 s"
            ):
                await connection.call(WAIT, b"")
            assert PATIENT <= trio.current_time() <= 1.5 * PATIENT + 1
            with pytest.raises(ServerUnavailable, match="the server behind it has not answered for 10 s"):
                await connection.call(ECHO, b"")
            assert len(host.dialled_at) == 4
            back.go_on.set()
            assert await connection.call(ECHO, b"hello") == b"hello"


@pytest.mark.parametrize("allowed", [1, 8])
async def test_a_call_lasts_as_long_as_its_server_is_there(
    autojump_clock: trio.testing.MockClock, allowed: int
) -> None:
    """Asked by another call, or by another connection where this one takes no more: it answers."""
    handlers: dict[str, Handler] = {WAIT: Waiting(), **transport.Health([]).handlers()}
    async with memory_host(handlers, TransportConfig(streams_max=allowed)) as host:
        async with connected_to(host) as connection:
            with trio.move_on_after(3_600) as an_hour:
                await connection.call(WAIT, b"")
        assert an_hour.cancelled_caught
        assert (len(host.dialled_at) > 1) is (allowed == 1)


async def test_whoever_has_all_the_calls_of_a_connection_asks_by_another(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Nobody answers there either, and the calls end. Where nobody even listens, they go on: that is no proxy."""
    for listens in (True, False):
        handlers = {WAIT: Waiting(), HEALTH: Waiting()}
        async with memory_host(handlers, TransportConfig(streams_max=1)) as host:
            async with connected_to(host) as connection:
                if not listens:
                    host.refusals = 1_000
                with trio.move_on_after(3_600) as an_hour, pytest.raises(TransportError, match="is gone"):
                    await connection.call(WAIT, b"")
                assert an_hour.cancelled_caught is not listens


async def test_a_server_that_still_takes_octets_is_there(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a slow line the question stands behind what was written before it."""
    monkeypatch.setattr(
        StreamBytes, "acknowledged", lambda _: Acknowledged(int(min(trio.current_time(), 600)), more=True)
    )
    async with memory_host({WAIT: Waiting(), HEALTH: Waiting()}) as host, connected_to(host) as connection:
        with pytest.raises(TransportError, match="the server behind it is gone"):
            await connection.call(WAIT, b"")
    assert 600 <= trio.current_time() <= 600 + PATIENT


async def test_rows_that_still_go_out_are_no_silence(autojump_clock: trio.testing.MockClock) -> None:
    """A server that takes a request slowly has not answered the question yet: it waits in the same line."""

    async def slow(stream: ServerStream) -> None:
        for _ in range(100):
            await stream.receive()
            await pass_time(PATIENT / 3)
        await stream.send(b"done")

    config = TransportConfig(stream_window_bytes=1_000)
    async with memory_host({WAIT: slow, HEALTH: Waiting()}, config) as host, connected_to(host) as connection:
        async with connection.open_stream(WAIT) as stream:
            for _ in range(100):
                await stream.send(bytes(1_000))
            assert await stream.receive() == b"done"
