"""Client and server shells over memory: calls, cancellation, stalled consumers, bounds, misuse."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

import hpack
import pytest
import trio
import trio.testing

from tests.support import wire
from tests.support.configs import TINY
from tests.support.faults import memory_pair, memory_server
from transport import (
    AnswerCut,
    CallFailed,
    Client,
    ConnectionLost,
    ServerStream,
    StatusCode,
    Stream,
    TransportConfig,
    TransportError,
    unary,
)


async def echo(stream: ServerStream) -> None:
    """Send back what comes."""
    while (message := await stream.receive()) is not None:
        await stream.send(message)


async def check_echo(client: Client, *, size: int = 3_000) -> None:
    """One call that needs every part of a connection to work."""
    message = bytes(at % 250 for at in range(size))
    async with client.open_stream("/echo") as stream:
        await stream.send(message)
        await stream.send_end()
        assert bytes(await stream.receive()) == message
        assert await stream.receive() is None


@pytest.mark.parametrize("config", [TransportConfig(), TINY], ids=["default", "tiny"])
@pytest.mark.parametrize("reads", [1, 100, 1 << 20])
async def test_echo(config: TransportConfig, reads: int) -> None:
    """Messages of all sizes come back, however the server's reads are cut."""
    async with memory_pair({"/echo": echo}, config, server_reads=reads) as (client, *_):
        for size in (0, 1, 5, 995, 996, 5_000):
            await check_echo(client, size=size)


async def test_unary_call() -> None:
    """A unary call returns the reply; failures are CallFailed with status, message and details."""

    async def reply(request: bytes, stream: ServerStream) -> bytes:
        if not request:
            raise CallFailed(StatusCode.INVALID_ARGUMENT, "empty", b"details")
        return bytes(request)[::-1] + stream.path.encode()

    async def twice(stream: ServerStream) -> None:
        await stream.send(b"1")
        await stream.send(b"2")

    async def silent(stream: ServerStream) -> None:
        await stream.receive()

    handlers = {"/reply": unary(reply), "/twice": twice, "/silent": silent}
    async with memory_pair(handlers) as (client, *_):
        assert await client.call("/reply", b"abc") == b"cba/reply"
        with pytest.raises(CallFailed, match="INVALID_ARGUMENT: empty") as caught:
            await client.call("/reply", b"")
        assert caught.value.details == b"details"
        for path, text in (
            ("/twice", "more than once"),
            ("/none", "no method"),
        ):
            with pytest.raises(CallFailed, match=text):
                await client.call(path, b"x")
        with pytest.raises(AnswerCut, match="without a reply"):
            await client.call("/silent", b"x")


async def test_unary_handler_without_request() -> None:
    """A unary method that gets no request says so."""

    async def reply(_request: bytes, _stream: ServerStream) -> bytes:
        return b""

    async with memory_pair({"/reply": unary(reply)}) as (client, *_):
        async with client.open_stream("/reply") as stream:
            await stream.send_end()
            with pytest.raises(CallFailed, match=r"UNIMPLEMENTED: .* none came"):
                await stream.receive()


async def test_unary_handler_with_two_requests() -> None:
    """Of two requests that are there neither is handled, nor the first of one and a half; an open end is no request."""
    handled = []

    async def reply(request: bytes, _stream: ServerStream) -> bytes:
        handled.append(bytes(request))
        return b"done"

    async with memory_pair({"/reply": unary(reply)}) as (client, *_):
        for second, text in ((b"2", r"UNIMPLEMENTED: .* more came"), (b"", "the middle of a message")):
            async with client.open_stream("/reply") as stream:
                stream.send_at_once(b"1")
                if second:
                    stream.send_at_once(second)
                else:
                    stream._core.queue_octets(b"\0\0")
                await stream.send_end()
                with pytest.raises(CallFailed, match=text):
                    await stream.receive()
        async with client.open_stream("/reply") as stream:
            stream.send_at_once(b"3")
            assert await stream.receive() == b"done"
    assert handled == [b"3"]


async def test_handler_that_fails_hurts_only_its_call(caplog: pytest.LogCaptureFixture) -> None:
    """An exception in a handler becomes INTERNAL, without its text; the connection and the server go on."""

    async def fail(_stream: ServerStream) -> None:
        raise RuntimeError("secret")

    async def fail_in_nursery(_stream: ServerStream) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise CallFailed(StatusCode.NOT_FOUND, "inside a group")

    async def misuse(stream: ServerStream) -> None:
        await stream.send_end()

    async def surrogate(_stream: ServerStream) -> None:
        raise CallFailed(StatusCode.ABORTED, "bad name \udcff")

    async def lost_upstream(_stream: ServerStream) -> None:
        raise ConnectionLost("another server")

    handlers = {"/fail": fail, "/group": fail_in_nursery, "/misuse": misuse, "/surrogate": surrogate,
                "/upstream": lost_upstream, "/echo": echo}  # fmt: skip
    async with memory_pair(handlers) as (client, server, *_):
        for path in ("/fail", "/misuse", "/upstream"):
            with pytest.raises(CallFailed) as caught:
                await client.call(path, b"")
            assert caught.value.status is StatusCode.INTERNAL
            assert "secret" not in str(caught.value)
        with pytest.raises(CallFailed, match="NOT_FOUND: inside a group"):
            await client.call("/group", b"")
        with pytest.raises(CallFailed, match=r"ABORTED: bad name \?"):
            await client.call("/surrogate", b"")
        await check_echo(client)
        assert server.statistics().streams == 0
    assert "secret" in caplog.text
    assert "another server" in caplog.text


@pytest.mark.parametrize("why", ["reset", "disconnect", "deadline"])
async def test_handler_is_cancelled_with_its_call(why: str, autojump_clock: trio.testing.MockClock) -> None:
    """A reset, a lost connection and a deadline cancel the handler; what it raises meanwhile harms nobody."""
    ended: list[str] = []

    async def wait(stream: ServerStream) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                await stream.send(b"started")
                await trio.sleep_forever()
        finally:
            ended.append("cancelled")
            raise ValueError("while it was being cancelled")

    async with memory_pair({"/wait": wait, "/echo": echo}) as (client, _, ours, _theirs):
        with trio.move_on_after(5):
            timeout_s = 1.0 if why == "deadline" else None
            with pytest.raises(CallFailed) if why == "deadline" else trio.CancelScope():
                async with client.open_stream("/wait", timeout_s=timeout_s) as stream:
                    assert await stream.receive() == b"started"
                    if why == "disconnect":
                        await ours.inner.aclose()
                    elif why == "deadline":
                        await stream.receive()
        await trio.testing.wait_all_tasks_blocked()
        assert ended == ["cancelled"]
        if why != "disconnect":
            await check_echo(client)


async def test_deadline_ends_the_call(autojump_clock: trio.testing.MockClock) -> None:
    """A call past its deadline is DEADLINE_EXCEEDED at the client, and over at the server."""

    async def slow(_stream: ServerStream) -> None:
        await trio.sleep_forever()

    async with memory_pair({"/slow": slow}) as (client, server, *_):
        start = trio.current_time()
        with pytest.raises(CallFailed, match="DEADLINE_EXCEEDED"):
            await client.call("/slow", b"", timeout_s=2.0)
        assert trio.current_time() - start == pytest.approx(2.0)
        await trio.testing.wait_all_tasks_blocked()
        assert server.statistics().streams == 0


async def test_what_is_left_of_a_deadline_may_be_less_than_nothing() -> None:
    """Then the call is past its deadline from the beginning, and its connection goes on."""
    async with memory_pair({"/echo": echo}) as (client, *_):
        with pytest.raises(CallFailed, match="DEADLINE_EXCEEDED"):
            await client.call("/echo", b"", timeout_s=-0.5)
        with pytest.raises(CallFailed, match="DEADLINE_EXCEEDED"):
            async with client.open_stream("/echo", timeout_s=-0.5) as stream:
                await stream.receive()
        await check_echo(client)


async def test_a_call_without_time_does_not_begin() -> None:
    """A handler that waits for nothing would do its work, and answer in time."""
    begun: list[str] = []

    async def at_once(stream: ServerStream) -> None:
        begun.append(stream.path)

    async with memory_server({"/test.Test/Method": at_once}) as memory:
        peer = memory.peer
        await peer.send(wire.PREFACE, wire.settings())
        for stream_id, timeout in ((1, "0S"), (3, "1n"), (5, "0H")):
            await peer.send(wire.headers(stream_id, [*wire.REQUEST, ("grpc-timeout", timeout)], end=True))
        found = await peer.settle()
        assert begun == []
        decoder = hpack.Decoder()
        answers = [
            list(decoder.decode(answer.payload, raw=True)) for answer in wire.only(found, wire.HEADERS)
        ]
        assert [(b"grpc-status", b"4") in fields for fields in answers] == [True] * 3
        await peer.send(wire.headers(7, [*wire.REQUEST, ("grpc-timeout", "1H")], end=True))
        await peer.settle()
        assert begun == ["/test.Test/Method"]
        assert memory.server.statistics().streams == 0
        assert memory.server.statistics().totals.streams == 4


async def test_a_call_without_time_that_is_reset_at_once_counts() -> None:
    """Its reset comes with it, and is told behind it."""
    async with memory_server({"/test.Test/Method": echo}) as memory:
        late = wire.headers(1, [*wire.REQUEST, ("grpc-timeout", "0S")])
        await memory.peer.send(wire.PREFACE, wire.settings(), late + wire.reset(1))
        await memory.peer.settle()
        assert memory.server.statistics().streams == 0
        assert memory.server.statistics().totals.streams == 1


async def test_stalled_consumer_stops_nothing_else() -> None:
    """A handler that does not read stops neither another call nor the answers to PINGs."""

    async def stall(_stream: ServerStream) -> None:
        await trio.sleep_forever()

    async with memory_pair({"/stall": stall, "/echo": echo}, TINY) as (client, server, *_):
        async with client.open_stream("/stall") as stream, trio.open_nursery() as nursery:

            async def push() -> None:
                while True:
                    await stream.send(bytes(500))

            nursery.start_soon(push)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(100):
                await check_echo(client)
            assert server.statistics().buffered_bytes == TINY.stream_window_bytes
            core = stream._driver.core
            core.outbound.queue.control(core._control.ping(b"are you?"))
            stream._driver.pump()
            before = client.statistics().bytes_received
            await trio.testing.wait_all_tasks_blocked()
            assert client.statistics().bytes_received - before >= 17
            nursery.cancel_scope.cancel()


async def test_send_buffer_is_bounded() -> None:
    """A server cannot queue more for a shut window than the send buffer and one message."""
    queued = []

    async def flood(stream: ServerStream) -> None:
        while True:
            await stream.send(bytes(700))
            queued.append(stream.unsent_bytes)

    config = TransportConfig(send_buffer_bytes=10_000)
    client_config = TransportConfig(stream_window_bytes=50)
    async with memory_pair({"/flood": flood}, config, client_config=client_config) as (client, server, *_):
        async with client.open_stream("/flood") as stream:
            await trio.testing.wait_all_tasks_blocked()
            assert 10_000 <= server.statistics().unsent_bytes <= 10_000 + 705
            count = len(queued)
            assert len(await stream.receive()) == 700
            await trio.testing.wait_all_tasks_blocked()
            assert len(queued) > count
        await trio.testing.wait_all_tasks_blocked()
        assert server.statistics().unsent_bytes == 0


async def test_who_does_not_wait_is_bounded_by_the_same_buffer() -> None:
    """What `send_nowait` refuses was not sent; with room again it is taken."""
    sent = []

    async def flood(stream: ServerStream) -> None:
        for _ in range(2):
            with contextlib.suppress(trio.WouldBlock):
                while True:
                    sent.append(stream.send_nowait(bytes(700)))
            await stream.wait_writable()

    config = TransportConfig(send_buffer_bytes=10_000)
    client_config = TransportConfig(stream_window_bytes=50)
    async with memory_pair({"/flood": flood}, config, client_config=client_config) as (client, server, *_):
        async with client.open_stream("/flood") as stream:
            await trio.testing.wait_all_tasks_blocked()
            assert 10_000 <= server.statistics().unsent_bytes <= 10_000 + 705
            first = len(sent)
            received = []
            while (message := await stream.receive()) is not None:
                received.append(len(message))
        assert received == sent == [700] * len(sent)
        assert len(sent) > first


async def test_what_is_sent_at_once_passes_a_full_buffer() -> None:
    """A small message goes behind what waits, in order, although there is no room; a call that is over refuses it."""

    async def fill(stream: ServerStream) -> None:
        with contextlib.suppress(trio.WouldBlock):
            while True:
                stream.send_nowait(bytes(700))
        stream.send_at_once(b"la", b"st")

    config = TransportConfig(send_buffer_bytes=10_000)
    client_config = TransportConfig(stream_window_bytes=50)
    async with memory_pair({"/fill": fill}, config, client_config=client_config) as (client, *_):
        async with client.open_stream("/fill") as stream:
            received = []
            while (message := await stream.receive()) is not None:
                received.append(bytes(message))
        assert received[-1] == b"last"
        assert set(received[:-1]) == {bytes(700)}
        with pytest.raises(TransportError):
            stream.send_at_once(b"more")


Sweep = Callable[[Stream], Awaitable[object]]


async def send_much(stream: Stream) -> None:
    for _ in range(6):
        await stream.send(bytes(2_500))


async def receive_all(stream: Stream) -> None:
    await stream.send(bytes(2_500))
    await stream.send_end()
    while await stream.receive() is not None:
        pass


async def wait_for_credit(stream: Stream) -> None:
    await stream.wait_credit()


@pytest.mark.parametrize("what", [send_much, receive_all, wait_for_credit])
async def test_cancellation_sweep(what: Sweep) -> None:
    """Cancelled at its k-th wait, a call of ours leaves the connection and the other streams intact."""
    async with memory_pair({"/echo": echo}, TINY, lockstep=True) as (client, server, *_):
        for turns in range(80):
            async with client.open_stream("/echo") as stream, trio.open_nursery() as nursery:
                done = False

                async def run(stream: Stream = stream) -> None:
                    nonlocal done
                    await what(stream)
                    done = True

                nursery.start_soon(run)
                for _ in range(turns):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            await check_echo(client)
            if done:
                break
        assert done is (what is receive_all)  # The others wait for what nobody does.
        await trio.testing.wait_all_tasks_blocked()
        assert server.statistics().streams == 0
        core = client._driver.core
        assert core.windows.connection.outstanding == 0
        assert core.shutdown.failure is None


async def test_cancelled_receive_loses_nothing() -> None:
    """A message that arrives as its receiver is cancelled goes to the next one."""
    go = trio.Event()

    async def late(stream: ServerStream) -> None:
        await go.wait()
        await stream.send(b"kept")

    async with memory_pair({"/late": late}) as (client, *_):
        async with client.open_stream("/late") as stream:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(stream.receive)
                    await trio.testing.wait_all_tasks_blocked()
                    go.set()
                    scope.cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert await stream.receive() == b"kept"
