"""Client and server over the loopback interface: what memory cannot show."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import math
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
import trio
import trio.testing

import transport
from tests.support import wire
from tests.support.configs import TINY
from tests.support.names import TwoAddresses
from tests.support.open_files import open_sockets
from tests.transport.test_shell import check_echo, echo
from transport import ConnectionLost, ServerStream, TransportConfig
from transport.byte_streams import SocketBytes, host_port, keep_short

pytestmark = pytest.mark.socket

BIG = TransportConfig(message_bytes_max=256 << 20)
HTTP_1 = {
    "get": b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    "upgrade": b"GET / HTTP/1.1\r\nhost: x\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n"
    b"http2-settings: AAMAAABk\r\n\r\n",
    "post": b"POST /x HTTP/1.0\r\ncontent-length: 3000000\r\n\r\n" + bytes(3_000_000),
}


async def much(stream: ServerStream) -> None:
    """Send what was asked for: count, size."""
    count, size = map(int, bytes(await stream.receive()).split())
    block = bytes(size)
    for _ in range(count):
        await stream.send(block)


@pytest.mark.parametrize("config", [BIG, TINY], ids=["default", "tiny"])
async def test_calls_over_a_socket(config: TransportConfig) -> None:
    """Calls of all sizes, many at once, over one connection."""
    async with (
        transport.serve({"/echo": echo}, config=config) as server,
        transport.connect(server.host, server.port, config=config) as client,
        trio.open_nursery() as nursery,
    ):
        for size in (0, 1, 5, 1_000, 70_000, 3_000, 10) * 3:
            nursery.start_soon(functools.partial(check_echo, client, size=size))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
async def test_what_the_system_of_the_peer_says() -> None:
    """It is counted, and not all is acknowledged as long as the peer's buffer is full."""
    with trio.socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
        await listening.bind(("127.0.0.1", 0))
        listening.listen()
        stream = await trio.open_tcp_stream(*listening.getsockname())
        peer, _ = await listening.accept()
    connection = SocketBytes(stream)
    size = 256 << 10
    octets: list[bytes | bytearray | memoryview] = [bytes(size)]
    async with stream, trio.open_nursery() as nursery:
        nursery.start_soon(connection.send, octets)
        await trio.testing.wait_all_tasks_blocked()
        before = connection.acknowledged()
        assert before.more
        left = size
        while left:
            left -= len(await peer.recv(left))
        with trio.fail_after(100):
            while connection.acknowledged().more:
                await trio.testing.wait_all_tasks_blocked(0.01)
        assert connection.acknowledged().goes_on(before)
    peer.close()


async def test_calls_over_a_unix_socket(tmp_path: Path) -> None:
    """A listener that is given may be of a Unix socket, whose clients have no address."""
    path = tmp_path / "socket"
    listening = trio.socket.socket(socket.AF_UNIX)
    await listening.bind(str(path))
    listening.listen()
    async with (
        transport.serve({"/echo": echo}, listener=trio.SocketListener(listening)),
        transport.connect_stream(await trio.open_unix_socket(path)) as client,
    ):
        await check_echo(client, size=1_000)


@pytest.mark.parametrize(("count", "size"), [(30_000, 1), (2_000, 4_096), (100, 1 << 20), (1, 100 << 20)])
async def test_streams_of_every_grain(count: int, size: int) -> None:
    """Very many tiny messages, and one that is longer than every window, arrive whole."""
    async with (
        transport.serve({"/much": much}, config=BIG) as server,
        transport.connect(server.host, server.port, config=BIG) as client,
        client.open_stream("/much") as stream,
    ):
        await stream.send(b"%d %d" % (count, size))
        sizes = set()
        for _ in range(count):
            sizes.add(len(await stream.receive()))
        assert sizes == {size}
        assert await stream.receive() is None
        statistics = client.statistics()
        assert statistics.bytes_received > count * size


async def test_long_messages_are_the_allocated_objects() -> None:
    """Over a socket too, where the kernel writes into them, long messages are what `allocate` made."""
    made: list[bytearray] = []

    def allocate(size: int) -> bytearray:
        made.append(bytearray(size))
        return made[-1]

    async with (
        transport.serve({"/echo": echo}) as server,
        transport.connect(server.host, server.port, allocate=allocate) as client,
        client.open_stream("/echo") as stream,
    ):
        for size in (32 * 1024, 1 << 20, 5_000_000):
            message = os.urandom(size)
            await stream.send(message[:1_000], memoryview(message)[1_000:])
            received = await stream.receive()
            assert received is made[-1]
            assert received == message


async def test_nobody_there_is_one_line() -> None:
    """Connecting to a closed port, or to a name that does not exist, says so in one line."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(
            ConnectionLost, match=rf"^cannot connect to 127\.0\.0\.1:{port}: Connection refused$"
        ):
            async with transport.connect("127.0.0.1", port):
                pass
    for name in ("name.invalid", "a..b"):  # The second one can be no name at all.
        with pytest.raises(ConnectionLost, match=f"cannot connect to {name}:1: ") as caught:
            async with transport.connect(name, 1):
                pass
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("beyond", [-1, 0, 0x10000, 0x10001])
async def test_no_other_port_than_the_one_asked_for(beyond: int) -> None:
    """The C library takes the lower sixteen bits: a call went to whoever listens there."""
    with pytest.raises(ValueError, match=f"a port is 1 to 65535, not {beyond}"):
        async with transport.connect("127.0.0.1", beyond):
            pass


async def test_the_interface_of_an_address_stays_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no part of what the server, or a proxy, is told; where it is missing, the error says so."""
    open_tcp_stream = trio.open_tcp_stream

    async def open_here(host: str, port: int) -> trio.SocketStream:
        if "%" not in host:
            raise OSError(errno.EINVAL, "Invalid argument")
        return await open_tcp_stream("127.0.0.1", port)

    monkeypatch.setattr(trio, "open_tcp_stream", open_here)
    async with transport.serve({"/echo": echo}) as server:
        async with transport.connect("fe80::1%eth0", server.port) as client:
            assert client.peer == f"[fe80::1%eth0]:{server.port}"
            assert client._authority == f"[fe80::1]:{server.port}"
            await check_echo(client)
        with pytest.raises(ConnectionLost, match=r"needs its interface, as in fe80::1%eth0$"):
            async with transport.connect("fe80::1", server.port):
                pass


class _NoThread(trio.abc.HostnameResolver):
    """Looks names up in a thread, for which the system has no room."""

    async def getaddrinfo(self, *_: object, **__: object) -> NoReturn:
        """As Python says it."""
        raise RuntimeError("can't start new thread")

    async def getnameinfo(self, sockaddr: object, flags: int) -> NoReturn:
        """Nobody asks."""
        raise NotImplementedError


async def test_a_name_that_no_thread_can_look_up() -> None:
    """It is a connection that was not made, with the limit that was met, and no error of Python's."""
    trio.socket.set_custom_hostname_resolver(_NoThread())
    with pytest.raises(ConnectionLost, match="can't start new thread: raise the limit of processes"):
        async with transport.connect("weir.example", 1):
            pass


@pytest.mark.parametrize(
    ("host", "more"),
    [("weir.example", ", or none about its name"), ("192.0.2.1", ""), ("fe80::1%eth0", "")],
)
async def test_nobody_answers(
    host: str, more: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """Of a name it may be whoever looks it up who does not answer, and the server was never asked."""

    async def unanswered(_host: str, _port: int) -> NoReturn:
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(trio, "open_tcp_stream", unanswered)
    with pytest.raises(ConnectionLost) as caught:
        async with transport.connect(host, 1):
            pass
    assert str(caught.value) == f"cannot connect to {host_port(host, 1)}: no answer within 10 s{more}"


async def test_who_said_nothing_is_passed_over_the_next_time(mock_clock: trio.testing.MockClock) -> None:
    """A stopped server takes connections, and is the quickest to; the host's other address may have one that lives."""
    trio.socket.set_custom_hostname_resolver(TwoAddresses())
    silent: set[str] = set()

    async def let_time_pass(listener: socket.socket) -> None:
        await trio.lowlevel.wait_readable(listener)  # The client is connected, and waits.
        mock_clock.autojump_threshold = 0

    async with (
        transport.serve({"/echo": echo}, host=TwoAddresses.SECOND) as server,
        trio.open_nursery() as nursery,
    ):
        with socket.create_server((TwoAddresses.FIRST, server.port)) as stopped:
            nursery.start_soon(let_time_pass, stopped)
            with pytest.raises(ConnectionLost, match="within 10 s"):
                async with transport.connect("two.example", server.port, silent=silent) as client:
                    await client.wait_openable()
            mock_clock.autojump_threshold = math.inf
            for _ in range(2):
                assert silent == {TwoAddresses.FIRST}
                async with transport.connect("two.example", server.port, silent=silent) as client:
                    await check_echo(client)


@pytest.mark.parametrize(
    "silent", [{TwoAddresses.FIRST}, {TwoAddresses.FIRST, TwoAddresses.SECOND}], ids=["one", "both"]
)
async def test_who_said_nothing_has_its_turn_again(silent: set[str]) -> None:
    """Where the host's other address takes no connection, or has said nothing either: it may have come back."""
    trio.socket.set_custom_hostname_resolver(TwoAddresses())
    async with (
        transport.serve({"/echo": echo}, host=TwoAddresses.FIRST) as server,
        transport.connect("two.example", server.port, silent=silent) as client,
    ):
        assert silent == set()
        await check_echo(client)


async def test_port_in_use_is_an_os_error() -> None:
    """Two servers on one port: the second one's caller is told."""
    async with transport.serve({}) as server:
        with pytest.raises(OSError, match="in use"):
            async with transport.serve({}, port=server.port):
                pass


async def test_server_that_is_not_ours() -> None:
    """A listener that speaks something else fails the call with what it did wrong."""

    async def http(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some(100)
            await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with trio.open_nursery() as nursery:
        serve = functools.partial(trio.serve_tcp, http, 0, host="127.0.0.1")
        listeners = await nursery.start(serve)
        async with transport.connect("127.0.0.1", listeners[0].socket.getsockname()[1]) as client:
            with pytest.raises(ConnectionLost):
                await client.call("/x", b"")
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("sent", [b"short", b"", bytes(40_000)], ids=["drained", "nothing", "more left"])
async def test_reading_a_socket_that_was_closed_here(sent: bytes) -> None:
    """Whatever the last read left, a socket that its owner closed is a lost connection, however often it is read."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    stream = await trio.testing.open_stream_to_socket_listener(listeners[0])
    async with listeners[0], await listeners[0].accept() as peer:
        reader = SocketBytes(stream)
        if sent:
            await peer.send_all(sent)
            await reader.receive_into([memoryview(bytearray(32 * 1024))])
        await trio.aclose_forcefully(stream)
        for _ in range(2):
            with pytest.raises(ConnectionLost):
                await reader.receive_into([memoryview(bytearray(32 * 1024))])


async def test_killed_connection_ends_its_handlers_only() -> None:
    """A peer's TCP reset ends the calls of its connection; the server serves the next one."""
    started, ended = trio.Event(), trio.Event()

    async def wait(_stream: ServerStream) -> None:
        started.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async with transport.serve({"/test.Test/Method": wait, "/echo": echo}) as server:
        raw = await trio.open_tcp_stream(server.host, server.port)
        await raw.send_all(wire.CLIENT_HELLO + wire.headers(1))
        with trio.fail_after(100):
            await started.wait()
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            await raw.aclose()
            await ended.wait()
        async with transport.connect(server.host, server.port) as client:
            await check_echo(client)


async def test_leaving_serve_ends_everything() -> None:
    """With the server's block, its calls and connections end, and its port is free."""
    async with trio.open_nursery() as nursery:
        async with transport.serve({"/much": much}) as server:
            host, port = server.host, server.port

            async def call(*, task_status: trio.TaskStatus[None]) -> None:
                async with transport.connect(host, port) as client, client.open_stream("/much") as stream:
                    await stream.send(b"1000000 1000")
                    await stream.receive()
                    task_status.started()
                    with pytest.raises(ConnectionLost):
                        while await stream.receive() is not None:
                            pass

            await nursery.start(call)
            assert server.statistics().connections == 1
        assert server.statistics().connections == 0
    with pytest.raises(ConnectionLost):
        async with transport.connect(host, port):
            pass


async def test_file_descriptors_come_back() -> None:
    """Connections that came and went leave no descriptor behind."""
    async with transport.serve({"/echo": echo}) as server:
        for _ in range(3):
            async with transport.connect(server.host, server.port) as client:
                await check_echo(client)
            with trio.fail_after(100):
                while server.statistics().connections:
                    await trio.testing.wait_all_tasks_blocked(0.01)
            assert open_sockets(server.port) == 1


async def test_write_of_very_many_buffers() -> None:
    """More buffers than one system call takes are written in several."""
    ours, theirs = socket.socketpair()
    left, right = (trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in (ours, theirs))
    async with left, right, trio.open_nursery() as nursery:
        buffers: list[transport.Buffer] = [b"%d," % at for at in range(5_000)]
        nursery.start_soon(SocketBytes(left).send, buffers)
        expected = b"".join(b"%d," % at for at in range(5_000))
        received = b""
        while len(received) < len(expected):
            received += await right.receive_some()
        assert received == expected


async def test_write_that_the_socket_takes_in_parts() -> None:
    """What the socket does not take at once follows as it is read, from where the write stood."""
    ours, theirs = socket.socketpair()
    left, right = (trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in (ours, theirs))
    async with left, right, trio.open_nursery() as nursery:
        buffers: list[transport.Buffer] = [os.urandom(at) for at in (3, 3 << 20, 1, 70_000, 2 << 20)]
        nursery.start_soon(SocketBytes(left).send, list(buffers))
        expected, received = b"".join(buffers), bytearray(6 << 20)
        size, reader = 0, SocketBytes(right)
        while size < len(expected):
            room = memoryview(received)[size:]
            size += await reader.receive_into([room[:1_000], room[1_000:]])
        assert received[:size] == expected


async def test_what_is_written_at_once_stays_in_front_of_what_follows() -> None:
    """What the socket did not take at once goes out with the next write, which may have nothing of its own."""
    ours, theirs = socket.socketpair()
    left, right = (trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in (ours, theirs))
    async with left, right, trio.open_nursery() as nursery:
        writer = SocketBytes(left)
        assert writer.send_nowait([b"begin", b"ning"])
        rest: list[transport.Buffer] = [os.urandom(3 << 20), b"more"]
        end: list[transport.Buffer] = [b"end"]
        assert not writer.send_nowait([*rest])
        nursery.start_soon(writer.send, end)
        expected, received = b"".join([b"beginning", *rest, *end]), b""
        while len(received) < len(expected):
            received += await right.receive_some()
        assert received == expected
        assert not writer.send_nowait([bytes(3 << 20)])
        nursery.start_soon(writer.send, [])
        left_over = 3 << 20
        while left_over:
            left_over -= len(await right.receive_some())


@asynccontextmanager
async def facing_a_socket() -> AsyncIterator[tuple[transport.Client, socket.socket]]:
    """A client that may call, and the other end of its socket, which has read all that came until now."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
    with theirs:
        async with transport.connect_stream(stream) as client:
            theirs.send(wire.settings())
            await client.wait_openable()
            await trio.testing.wait_all_tasks_blocked()
            theirs.recv(65_536)
            yield client, theirs


async def test_a_lone_call_is_written_before_its_task_waits() -> None:
    """With one call on the connection no round of the event loop comes first; with two, one write has what both say."""
    async with facing_a_socket() as (client, theirs), client.open_stream("/test.Test/Method") as one:
        one.send_last(b"the only call")
        assert b"the only call" in theirs.recv(65_536)
        async with client.open_stream("/test.Test/Method") as other:
            other.send_last(b"one of two")
            with pytest.raises(BlockingIOError):
                theirs.recv(65_536)
            await trio.testing.wait_all_tasks_blocked()
            assert b"one of two" in theirs.recv(65_536)


async def test_a_reply_longer_than_the_socket_takes() -> None:
    """The reply of a lone call goes out in parts, whole and in order, and so does that of the next one."""

    async def reply(request: Any, _stream: ServerStream) -> bytes:
        return bytes(request) * 100_000

    async with (
        transport.serve({"/reply": transport.unary(reply)}, config=BIG) as server,
        transport.connect(server.host, server.port, config=BIG) as client,
    ):
        for request in (b"%d" % (1 << 200), b"0123456789", b"x"):
            assert await client.call("/reply", request) == request * 100_000


async def test_a_lone_call_whose_write_fails() -> None:
    """The socket fails in the caller's own task: the writer finds it out, and the connection is lost with the call."""
    async with facing_a_socket() as (client, theirs):
        theirs.shutdown(socket.SHUT_RD)  # The reader is told nothing of it.
        for _ in range(2):
            with pytest.raises(ConnectionLost, match="Broken pipe"):
                await client.call("/test.Test/Method", b"nobody hears it")
        assert not client.alive


async def test_cancelled_before_it_writes_or_reads_anything() -> None:
    """A scope that is cancelled already lets no octet out and takes none, though the socket is ready."""
    ours, theirs = socket.socketpair()
    left, right = (trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in (ours, theirs))
    async with left, right:
        await right.send_all(b"waiting")
        with trio.CancelScope() as scope:
            scope.cancel()
            await SocketBytes(left).send([b"never"])
        with trio.CancelScope() as scope:
            scope.cancel()
            await SocketBytes(left).receive_into([memoryview(bytearray(10))])
        assert await left.receive_some() == b"waiting"
        await left.send_all(b"after")
        assert await right.receive_some() == b"after"


@pytest.mark.parametrize("abandoned", [False, True], ids=["left", "cancelled"])
async def test_a_connection_ends_though_a_forked_process_has_its_socket(abandoned: bool) -> None:
    """A server would keep it, and what its calls hold, until it misses the answers to its PINGs."""
    async with transport.serve({"/echo": echo}, config=TransportConfig(ping_interval_s=0)) as server:
        with trio.fail_after(100), trio.CancelScope() as scope:
            async with transport.connect(server.host, server.port) as client:
                await check_echo(client)
                ours = client._driver._bytes
                assert isinstance(ours, SocketBytes)
                theirs = os.dup(ours._socket.fileno())
                if abandoned:
                    scope.cancel()
        with contextlib.closing(socket.socket(fileno=theirs)), trio.fail_after(100):
            while server.statistics().connections:
                await trio.testing.wait_all_tasks_blocked(0.01)


async def test_a_socket_that_is_closed_is_lost() -> None:
    """Ours closed, also while it is waited for: ConnectionLost, and no other socket of that number is touched."""
    ours, theirs = socket.socketpair()
    left, right = (trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in (ours, theirs))
    async with left, right:
        one = SocketBytes(left)
        with pytest.raises(ConnectionLost):
            async with _closing_soon(left):
                await one.receive_into([memoryview(bytearray(10))])
        assert not one.send_nowait([b"late"])
        for attempt in (one.send([b"late"]), one.receive_into([memoryview(bytearray(10))])):
            with pytest.raises(ConnectionLost):
                await attempt


@asynccontextmanager
async def _closing_soon(stream: trio.SocketStream) -> AsyncIterator[None]:
    """Close the stream once everything else waits."""
    failure: ConnectionLost | None = None

    async def close() -> None:
        await trio.testing.wait_all_tasks_blocked()
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(close)
        try:
            yield
        except ConnectionLost as error:
            failure = error
    if failure is not None:
        raise failure


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells the round trip")
async def test_kernel_buffers_little_for_a_near_peer() -> None:
    """Towards a peer on the same machine the kernel's send buffer is what was asked for; without asking, its own."""
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, lambda stream: stream.receive_some(), 0)
        async with await trio.open_tcp_stream("127.0.0.1", listeners[0].socket.getsockname()[1]) as stream:
            own = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            keep_short(stream.socket, 0)
            assert stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == own
            keep_short(stream.socket, 50_000)
            assert stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * 50_000
        nursery.cancel_scope.cancel()


async def test_only_tcp_is_kept_short() -> None:
    """A socket that has no round trip is left as it is."""
    ours, theirs = socket.socketpair()
    left, right = (trio.socket.from_stdlib_socket(end) for end in (ours, theirs))
    with left, right:
        own = left.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        keep_short(left, 50_000)
        assert left.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == own


async def test_socket_that_takes_nothing() -> None:
    """A write tells since when it makes no progress, and that it waits no more once it does or is ended."""
    ours, theirs = socket.socketpair()
    left, right = (trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in (ours, theirs))
    async with left, right, trio.open_nursery() as nursery:
        mine = SocketBytes(left)
        assert mine.waiting_since == math.inf
        began = trio.current_time()
        buffers: list[transport.Buffer] = [bytes(64 << 20)]
        nursery.start_soon(mine.send, buffers)
        while mine.waiting_since == math.inf:
            await trio.lowlevel.checkpoint()
        stalled = mine.waiting_since
        assert began <= stalled <= trio.current_time()
        while mine.waiting_since == stalled:
            await right.receive_some()
        assert mine.waiting_since > stalled
        nursery.cancel_scope.cancel()
    assert mine.waiting_since == math.inf


def test_authority_of_ipv6() -> None:
    """An IPv6 address is put in brackets."""
    assert host_port("::1", 80) == "[::1]:80"
    assert host_port("localhost", 80) == "localhost:80"


@pytest.mark.parametrize("request_octets", HTTP_1.values(), ids=HTTP_1)
async def test_client_of_http_1_is_told_what_is_spoken(request_octets: bytes) -> None:
    """It gets an answer in its own language and nothing else, however much it sends; others are served."""
    async with transport.serve({"/echo": echo}) as server:
        async with await trio.open_tcp_stream(server.host, server.port) as peer:
            await peer.send_all(request_octets)
            await peer.send_eof()
            answer = b"".join([part async for part in peer])
        assert answer.startswith(b"HTTP/1.1 505 ")
        assert b"HTTP/2" in answer
        async with transport.connect(server.host, server.port) as client:
            await check_echo(client)


@pytest.mark.parametrize(
    ("first", "logged"),
    [
        (b"\x16\x03\x01\x00\xee\x01", ["not an HTTP/2 connection preface, but TLS ("]),
        (
            b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n",
            ["not an HTTP/2 connection preface, but the PROXY protocol ("],
        ),
        (b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0", ["not an HTTP/2 connection preface, but the PROXY protocol ("]),
        (b"SSH-2.0-OpenSSH_9.2\r\n", ["not an HTTP/2 connection preface ("]),
        (wire.PREFACE + wire.ping(), ["first frame"]),
        (b"", []),
    ],
    ids=["tls", "proxy", "proxy2", "ssh", "no settings", "nothing"],
)
async def test_client_of_something_else_is_logged(
    first: bytes, logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The operator is told in one line what it seems to speak. A health check that connects and leaves has none."""
    caplog.set_level(logging.INFO, "weir.transport")
    async with transport.serve({"/echo": echo}) as server:
        async with await trio.open_tcp_stream(server.host, server.port) as peer:
            await peer.send_all(first)
            answer = b"".join([part async for part in peer]) if logged else b""
        await server.drain()
        await trio.testing.wait_all_tasks_blocked()
    lines = [record.getMessage() for record in caplog.records]
    assert [text in line for text, line in zip(logged, lines, strict=True)] == [True] * len(logged)
    assert all(text.removesuffix(" (").encode() in answer for text in logged)


async def test_server_speaks_to_a_silent_client() -> None:
    """A client that waits for the server's SETTINGS gets them."""
    async with (
        transport.serve({"/echo": echo}) as server,
        await trio.open_tcp_stream(server.host, server.port) as peer,
    ):
        first = b""
        while len(first) < 9:
            first += await peer.receive_some()
    assert first[3] == wire.SETTINGS


async def test_a_goaway_is_heard_although_the_write_behind_it_fails() -> None:
    """A peer refuses further calls and leaves: a call that is written later is refused, and not lost."""
    async with facing_a_socket() as (client, theirs), client.open_stream("/test.Test/Method") as call:
        theirs.send(wire.goaway(0))
        theirs.close()
        call.send_last(b"said before the goaway was read")
        with pytest.raises(transport.StreamRefused):
            await call.receive()
