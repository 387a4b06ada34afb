"""TLS over real sockets: who is let in, what a refused peer is told, certificates that change under a server."""

from __future__ import annotations

import functools
import logging
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
import trio
import trio.testing

import transport
from tests.support import wire
from tests.support.certificates import (
    ca_file,
    client_tls,
    files,
    issue,
    server_files,
    server_tls,
)
from tests.support.names import TwoAddresses
from tests.support.open_files import open_sockets
from tests.transport.test_shell import check_echo, echo
from tests.transport.test_sockets import much
from transport import (
    ConnectionLost,
    ServerStream,
    TransportConfig,
    TransportError,
    certificate_refused,
)

pytestmark = pytest.mark.socket


async def names(stream: ServerStream) -> None:
    """Answer with the names in the client's certificate."""
    certificate = stream.peer_certificate
    await stream.send("\n".join(certificate.names if certificate else ["nobody"]).encode())


DEADLOCK_S = 60.0
"""What no step takes, however slow the machine is."""
HANDLERS = {"/echo": echo, "/much": much, "/names": names}


@asynccontextmanager
async def connected(
    tls: transport.ServerTls | ssl.SSLContext, context: ssl.SSLContext | None, **config: float
) -> AsyncIterator[transport.Client]:
    """A server with TLS, and a client of it."""
    async with (
        transport.serve(HANDLERS, ssl_context=tls, config=TransportConfig(**config)) as server,  # type: ignore[arg-type]
        transport.connect(server.host, server.port, ssl_context=context) as client,
    ):
        yield client


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
async def test_calls_over_tls(version: ssl.TLSVersion, tmp_path: Path) -> None:
    """Calls of all sizes, many at once, in both versions of TLS."""
    context = client_tls(tmp_path)
    context.minimum_version = context.maximum_version = version
    async with connected(server_tls(tmp_path), context) as client, trio.open_nursery() as nursery:
        for size in (0, 1, 5, 1_000, 16_384, 70_000, 3_000_000, 10) * 2:
            nursery.start_soon(functools.partial(check_echo, client, size=size))


@pytest.mark.parametrize(("count", "size"), [(5_000, 1), (1_000, 4_096), (30, 1 << 20), (1, 30 << 20)])
async def test_streams_of_every_grain(count: int, size: int, tmp_path: Path) -> None:
    """Very many tiny messages, and one that is longer than every window, arrive whole through TLS."""
    async with (
        connected(server_tls(tmp_path), client_tls(tmp_path)) as client,
        client.open_stream("/much") as stream,
    ):
        await stream.send(b"%d %d" % (count, size))
        received = [len(await stream.receive()) for _ in range(count)]
        assert received == [size] * count
        assert await stream.receive() is None


async def test_long_messages_are_decrypted_into_the_allocated_objects(tmp_path: Path) -> None:
    """Through TLS, too, a long message is the object that `allocate` made."""
    made: list[bytearray] = []

    def allocate(size: int) -> bytearray:
        made.append(bytearray(size))
        return made[-1]

    async with (
        transport.serve(HANDLERS, ssl_context=server_tls(tmp_path)) as server,
        transport.connect(
            server.host, server.port, ssl_context=client_tls(tmp_path), allocate=allocate
        ) as client,
        client.open_stream("/echo") as stream,
    ):
        message = os.urandom(2_000_000)
        await stream.send(message)
        received = await stream.receive()
        assert received is made[-1]
        assert received == message


async def test_server_of_another_ca(tmp_path: Path) -> None:
    """A client does not talk to a server whose certificate is not of its CA, and says why in one line."""
    async with transport.serve(HANDLERS, ssl_context=server_tls(tmp_path)) as server:
        with pytest.raises(ConnectionLost, match="certificate cannot be trusted") as caught:
            async with transport.connect(
                server.host, server.port, ssl_context=client_tls(tmp_path, ca="other")
            ):
                pass
        assert "\n" not in str(caught.value)
        async with transport.connect(server.host, server.port, ssl_context=client_tls(tmp_path)) as client:
            await check_echo(client)


@pytest.mark.parametrize(("days_left", "what"), [(-1, "has expired"), (101, "is not yet valid.*")])
async def test_server_certificate_at_another_time(days_left: int, what: str, tmp_path: Path) -> None:
    """Where the time of a certificate decides, the error says what the time is here: the clock may be wrong."""
    made = files(tmp_path, "then", issue("test", "127.0.0.1", days_left=days_left))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    clock = rf"{what} \(this machine's clock says \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC\)$"
    with pytest.raises(ConnectionLost, match=clock):
        async with connected(context, client_tls(tmp_path)):
            pass


async def test_server_of_another_name(tmp_path: Path) -> None:
    """A client does not talk to a server whose certificate names another host."""
    elsewhere = files(tmp_path, "elsewhere", issue("test", "elsewhere.example"))
    tls = transport.ServerTls(elsewhere.certificate, elsewhere.key)
    with pytest.raises(ConnectionLost, match=r"not valid for '127\.0\.0\.1'"):
        async with connected(tls, client_tls(tmp_path)):
            pass


class _Loopback(trio.abc.HostnameResolver):
    """Finds every name on this machine."""

    async def getaddrinfo(self, host: object, port: object, *_: object, **__: object) -> list[Any]:
        """The loopback interface, whoever is looked for."""
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))]

    async def getnameinfo(self, sockaddr: object, flags: int) -> NoReturn:
        """Nobody asks."""
        raise NotImplementedError


async def test_server_by_its_absolute_name(tmp_path: Path) -> None:
    """A name with the dot that ends it in DNS is the one in the certificate, which has none."""
    trio.socket.set_custom_hostname_resolver(_Loopback())
    made = files(tmp_path, "absolute", issue("test", "absolute.example"))
    async with transport.serve(
        HANDLERS, ssl_context=transport.ServerTls(made.certificate, made.key)
    ) as server:
        for name in ("absolute.example.", "absolute.example"):
            async with transport.connect(name, server.port, ssl_context=client_tls(tmp_path)) as client:
                await check_echo(client)


async def say_nothing(stopped: trio.SocketListener, clock: trio.testing.MockClock) -> None:
    """Take a connection, as a stopped server does, and answer no handshake until the client gives up."""
    async with await stopped.accept() as taken:
        assert await taken.receive_some()
        clock.jump(TransportConfig().handshake_timeout_s)
        while await taken.receive_some():
            pass


async def test_another_address_has_its_turn_where_the_first_says_nothing(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """Also when nothing was connected before: a stopped server takes connections, and none shakes hands."""
    trio.socket.set_custom_hostname_resolver(TwoAddresses())
    made = files(tmp_path, "two", issue("test", "two.example"))
    tls = transport.ServerTls(made.certificate, made.key)
    async with (
        transport.serve(HANDLERS, host=TwoAddresses.SECOND, ssl_context=tls) as server,
        trio.open_nursery() as nursery,
    ):
        (stopped,) = await trio.open_tcp_listeners(server.port, host=TwoAddresses.FIRST)

        async def connect() -> None:
            silent: set[str] = set()
            async with transport.connect(
                "two.example", server.port, ssl_context=client_tls(tmp_path), silent=silent
            ) as client:
                await check_echo(client)
            assert silent == {TwoAddresses.FIRST}

        async with stopped:
            nursery.start_soon(connect)
            await say_nothing(stopped, mock_clock)


async def test_each_address_that_takes_the_connection_has_its_turn(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """The error says of how many nothing came; whoever tries again knows which they are."""
    trio.socket.set_custom_hostname_resolver(TwoAddresses())
    (first,) = await trio.open_tcp_listeners(0, host=TwoAddresses.FIRST)
    port = first.socket.getsockname()[1]
    (second,) = await trio.open_tcp_listeners(port, host=TwoAddresses.SECOND)
    silent: set[str] = set()

    async def connect() -> None:
        with pytest.raises(ConnectionLost, match="no answer within 10 s from each of 2 addresses"):
            async with transport.connect(
                "two.example", port, ssl_context=client_tls(tmp_path), silent=silent
            ):
                pass

    async with trio.open_nursery() as nursery, first, second:
        nursery.start_soon(connect)
        for stopped in (first, second):
            await say_nothing(stopped, mock_clock)
    assert silent == {TwoAddresses.FIRST, TwoAddresses.SECOND}


async def test_nobody_waits_twice_for_a_name_of_which_one_address_is_there(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    """As localhost, whose other address refuses connections: a silent one is not tried a second time."""
    trio.socket.set_custom_hostname_resolver(TwoAddresses())
    (stopped,) = await trio.open_tcp_listeners(0, host=TwoAddresses.FIRST)
    port = stopped.socket.getsockname()[1]
    failures: list[TransportError] = []

    async def connect() -> None:
        try:
            async with transport.connect("two.example", port, ssl_context=client_tls(tmp_path)):
                pass
        except TransportError as error:
            failures.append(error)

    async with trio.open_nursery() as nursery, stopped:
        nursery.start_soon(connect)
        await say_nothing(stopped, mock_clock)
    assert "no answer within 10 s" in str(failures[0])


@pytest.mark.parametrize("kind", ["none", "other CA", "expired"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
async def test_client_certificate_refused(kind: str, version: ssl.TLSVersion, tmp_path: Path) -> None:
    """Without a certificate of the right CA that is not expired a client is refused, and told that this is why."""
    issued = {
        "none": None,
        "other CA": issue("other", "client.example"),
        "expired": issue("test", "client.example", days_left=-1),
    }[kind]
    context = client_tls(tmp_path, issued)
    context.maximum_version = version
    async with transport.serve(HANDLERS, ssl_context=server_tls(tmp_path, client_ca="test")) as server:
        with pytest.raises(ConnectionLost) as caught:
            # In TLS 1.3 the client's part of the handshake is over before the server has seen the certificate.
            async with transport.connect(server.host, server.port, ssl_context=context) as client:
                await client.call("/echo", b"")
        assert certificate_refused(caught.value)
        good = client_tls(tmp_path, issue("test", "client.example"))
        async with transport.connect(server.host, server.port, ssl_context=good) as client:
            await check_echo(client)


def _greet(
    host: str, port: int, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> tuple[ssl.SSLSession | None, bool | None, bytes]:
    """Shake hands, and return the session, whether it was one of before, and the first octet of the server."""
    with (
        socket.create_connection((host, port), timeout=100) as raw,
        context.wrap_socket(raw, server_hostname=host, session=session) as connection,
    ):
        greeting = connection.recv(1)
        return connection.session, connection.session_reused, greeting


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
async def test_no_session_outlives_the_certificate_of_its_client(
    version: ssl.TLSVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody resumes a session whose certificate has expired since; who has another one shows it, and is let in."""
    context = client_tls(tmp_path, issue("test", "client.example", days_left=5))
    context.maximum_version = version
    async with transport.serve(HANDLERS, ssl_context=server_tls(tmp_path, client_ca="test")) as server:
        greet = functools.partial(_greet, server.host, server.port, context)
        session, reused, greeting = await trio.to_thread.run_sync(greet)
        assert (reused, bool(greeting)) == (False, True)
        # OpenSSL has a clock of its own, by which the certificate is valid whenever it is shown.
        after = time.time() + 6 * 86_400
        monkeypatch.setattr(time, "time", lambda: after)
        _, reused, greeting = await trio.to_thread.run_sync(greet, session)
        assert (reused, bool(greeting)) in {(True, False), (False, True)}
        _, reused, greeting = await trio.to_thread.run_sync(greet, session)
        assert (reused, bool(greeting)) == (False, True)


async def test_certificate_names_reach_the_handler(tmp_path: Path) -> None:
    """A handler sees the names of the verified certificate with their kinds, alternative names first."""
    issued = issue("test", "b.example", "10.1.2.3", "someone@example.com", common_name="loader")
    async with connected(server_tls(tmp_path, client_ca="test"), client_tls(tmp_path, issued)) as client:
        answer = bytes(await client.call("/names", b"")).decode().split("\n")
    assert answer == ["dns:b.example", "ip:10.1.2.3", "email:someone@example.com", "cn:loader"]


async def test_optional_client_certificate(tmp_path: Path) -> None:
    """Where certificates are optional, a client without one is let in as nobody, and one of another CA is not."""
    tls = server_tls(tmp_path, client_ca="test", required=False)
    async with connected(tls, client_tls(tmp_path)) as client:
        assert bytes(await client.call("/names", b"")) == b"nobody"
    with pytest.raises(ConnectionLost):
        async with connected(tls, client_tls(tmp_path, issue("other", "a.example"))) as client:
            await client.call("/names", b"")


def _plain_client(tmp_path: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(ca_file(tmp_path))
    return context


def _converse(host: str, port: int, context: ssl.SSLContext | None, request: bytes) -> bytes:
    """Say something, and return all that is answered."""
    with socket.create_connection((host, port), timeout=100) as raw:
        connection = raw if context is None else context.wrap_socket(raw, server_hostname=host)
        with connection:
            connection.sendall(request)
            answer = b""
            while data := connection.recv(65_536):
                answer += data
            return answer


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
async def test_tls_1_1_is_refused(tmp_path: Path) -> None:
    """A client that offers nothing newer than TLS 1.1 is refused by an alert that names the version."""
    old = _plain_client(tmp_path)
    old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    old.set_alpn_protocols(["h2"])
    async with transport.serve(HANDLERS, ssl_context=server_tls(tmp_path)) as server:
        with pytest.raises(ssl.SSLError) as caught:
            await trio.to_thread.run_sync(_converse, server.host, server.port, old, b"")
        assert caught.value.reason == "TLSV1_ALERT_PROTOCOL_VERSION"
        async with transport.connect(server.host, server.port, ssl_context=client_tls(tmp_path)) as client:
            await check_echo(client)


@pytest.mark.parametrize("alpn", [[], ["http/1.1"]], ids=["none", "http/1.1"])
async def test_client_without_h2_is_told(alpn: list[str], tmp_path: Path) -> None:
    """A TLS client that does not offer h2, most likely one of HTTP/1.1, is told in its language what is spoken."""
    context = _plain_client(tmp_path)
    if alpn:
        context.set_alpn_protocols(alpn)
    async with transport.serve(HANDLERS, ssl_context=server_tls(tmp_path)) as server:
        request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
        answer = await trio.to_thread.run_sync(_converse, server.host, server.port, context, request)
        assert answer.startswith(b"HTTP/1.1 505 ")
        assert b'ALPN "h2"' in answer
        async with transport.connect(server.host, server.port, ssl_context=client_tls(tmp_path)) as client:
            await check_echo(client)


async def test_server_without_h2_is_refused(tmp_path: Path) -> None:
    """A client does not go on with a TLS server that does not negotiate h2."""
    made = server_files(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)

    async def other(stream: trio.SSLStream[trio.SocketStream]) -> None:
        async with stream:
            await stream.do_handshake()
            await stream.receive_some()

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_ssl_over_tcp_listeners(
            0, context, host="127.0.0.1", https_compatible=True
        )
        nursery.start_soon(trio.serve_listeners, other, listeners)
        listener = listeners[0].transport_listener
        assert isinstance(listener, trio.SocketListener)
        host, port = listener.socket.getsockname()
        with pytest.raises(
            ConnectionLost, match="does not speak HTTP/2, or ssl_context lacks set_alpn_protocols"
        ):
            async with transport.connect(host, port, ssl_context=client_tls(tmp_path)):
                pass
        nursery.cancel_scope.cancel()


async def test_a_server_of_other_ciphers_wants_no_certificate(tmp_path: Path) -> None:
    """One that takes none of our ciphers answers with the alert by which others ask for a certificate; that is told."""
    made = server_files(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE+AES+SHA256:ECDHE+AES+SHA384:!AESGCM:!AESCCM")  # CBC
    context.set_alpn_protocols(["h2"])
    async with transport.serve(HANDLERS, ssl_context=context) as server:
        with pytest.raises(ConnectionLost, match="no version and no cipher of TLS") as caught:
            async with transport.connect(server.host, server.port, ssl_context=client_tls(tmp_path)):
                pass
        assert not certificate_refused(caught.value)


async def test_plaintext_client_on_a_tls_port(tmp_path: Path) -> None:
    """A client that forgot TLS fails with what was wrong, whatever it speaks; the server serves the next one."""
    async with transport.serve(HANDLERS, ssl_context=server_tls(tmp_path)) as server:
        with pytest.raises(ConnectionLost, match="the peer answers in TLS"):
            async with transport.connect(server.host, server.port) as client:
                await client.call("/echo", b"")
        answer = await trio.to_thread.run_sync(
            _converse, server.host, server.port, None, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
        )
        assert answer.startswith(b"HTTP/1.1 400 ")
        async with transport.connect(server.host, server.port, ssl_context=client_tls(tmp_path)) as client:
            await check_echo(client)


async def test_our_plaintext_client_on_a_tls_port(tmp_path: Path) -> None:
    """A client without TLS learns from the alert that the server speaks TLS; who hangs up says nothing of the kind."""

    async def hang_up(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some(100)

    async with (
        transport.serve(HANDLERS, ssl_context=server_tls(tmp_path)) as server,
        trio.open_nursery() as nursery,
    ):
        listeners = await nursery.start(functools.partial(trio.serve_tcp, hang_up, 0, host="127.0.0.1"))
        for port, expected in ((server.port, True), (listeners[0].socket.getsockname()[1], False)):
            async with transport.connect(server.host, port) as client:
                with pytest.raises(ConnectionLost) as caught:
                    await client.call("/echo", b"")
                assert transport.caused_by(caught.value, transport.TlsExpected) is expected
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"<!DOCTYPE HTML>",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\0\0\0\4\0\0\0\0\0",
        b"\0HTTP/1.1",
        b"HTTP/1",
    ],
)
async def test_our_client_at_a_port_that_speaks_something_else(answer: bytes) -> None:
    """Text instead of a first frame is told apart from an end of the connection, and from HTTP/2."""

    async def speak(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some(100)
            await stream.send_all(answer)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(functools.partial(trio.serve_tcp, speak, 0, host="127.0.0.1"))
        async with transport.connect(*listeners[0].socket.getsockname()) as client:
            with pytest.raises(ConnectionLost) as caught:
                await client.call("/echo", b"")
            assert transport.caused_by(caught.value, transport.NotHttp2) is (
                answer[:1] > b"\0" and len(answer) > 8
            )
        nursery.cancel_scope.cancel()


async def test_tls_client_on_a_plaintext_port(tmp_path: Path) -> None:
    """A client that expects TLS where there is none says so."""
    async with transport.serve(HANDLERS) as server:
        with pytest.raises(ConnectionLost, match=r"does not speak TLS|closed the connection"):
            async with transport.connect(server.host, server.port, ssl_context=client_tls(tmp_path)):
                pass


async def test_peer_that_never_shakes_hands(tmp_path: Path) -> None:
    """A peer that says nothing on a TLS port is let go after the handshake timeout."""
    config = TransportConfig(handshake_timeout_s=0.05)
    async with transport.serve(HANDLERS, ssl_context=server_tls(tmp_path), config=config) as server:
        async with await trio.open_tcp_stream(server.host, server.port) as raw:
            with trio.fail_after(100):
                assert await raw.receive_some() == b""


async def test_new_certificate_while_a_stream_runs(tmp_path: Path) -> None:
    """After the files change, new connections get the new certificate, and a stream that runs goes on undisturbed."""
    made = server_files(tmp_path)
    tls = transport.ServerTls(made.certificate, made.key)
    async with transport.serve(HANDLERS, ssl_context=tls) as server:
        where = (server.host, server.port)
        async with (
            transport.connect(*where, ssl_context=client_tls(tmp_path)) as client,
            client.open_stream("/much") as stream,
        ):
            await stream.send(b"2000 10000")
            assert len(await stream.receive()) == 10_000
            made.replace(issue("next", "127.0.0.1"))
            async with transport.connect(*where, ssl_context=client_tls(tmp_path, ca="next")) as later:
                await check_echo(later)
            with pytest.raises(ConnectionLost, match="cannot be trusted"):
                async with transport.connect(*where, ssl_context=client_tls(tmp_path)):
                    pass
            for _ in range(1_999):
                assert len(await stream.receive()) == 10_000
            assert await stream.receive() is None


async def test_broken_certificate_keeps_the_old_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Files that do not fit together change nothing and cost one line of the log, until they fit."""
    made = server_files(tmp_path)
    tls = transport.ServerTls(made.certificate, made.key)
    renewed = issue("next", "127.0.0.1")
    async with transport.serve(HANDLERS, ssl_context=tls) as server:
        made.replace(renewed, key_too=False)
        for _ in range(3):
            async with transport.connect(
                server.host, server.port, ssl_context=client_tls(tmp_path)
            ) as client:
                await check_echo(client)
        assert [record.levelno for record in caplog.records if "not reloaded" in record.message] == [
            logging.ERROR
        ]
        made.replace(renewed)
        async with transport.connect(
            server.host, server.port, ssl_context=client_tls(tmp_path, ca="next")
        ) as client:
            await check_echo(client)
    assert renewed.private_key_pem.bytes().decode().splitlines()[1] not in caplog.text


async def test_handshake_failures_leave_nothing(tmp_path: Path) -> None:
    """Connections that never got through their handshake leave no descriptor and no connection behind."""
    async with transport.serve(HANDLERS, ssl_context=server_tls(tmp_path, client_ca="test")) as server:
        for _ in range(3):
            for _ in range(5):
                with pytest.raises(ConnectionLost):
                    async with transport.connect(
                        server.host, server.port, ssl_context=client_tls(tmp_path)
                    ) as client:
                        await client.call("/echo", b"")
            with trio.fail_after(100):
                while server.statistics().connections:
                    await trio.testing.wait_all_tasks_blocked(0.01)
            assert open_sockets(server.port) == 1


async def test_peer_that_never_reads(tmp_path: Path) -> None:
    """A TLS socket that takes nothing for the send timeout ends its connection and the handler, as a plain one does."""
    stopped = trio.Event()

    async def flood(stream: ServerStream) -> None:
        try:
            while True:
                await stream.send(bytes(1 << 16))
        finally:
            stopped.set()

    config = TransportConfig(send_timeout_s=0.2, ping_interval_s=0, near_send_buffer_bytes=4_096)
    wide = wire.settings((wire.INITIAL_WINDOW_SIZE, 2**31 - 1)) + wire.window_update(0, 2**30)
    handlers = {"/test.Test/Method": flood}
    async with transport.serve(handlers, ssl_context=server_tls(tmp_path), config=config) as server:
        peer = await trio.open_ssl_over_tcp_stream(
            server.host, server.port, ssl_context=client_tls(tmp_path), https_compatible=True
        )
        peer.transport_stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        await peer.send_all(wire.CLIENT_HELLO + wide + wire.headers(1))
        with trio.fail_after(DEADLOCK_S):
            await stopped.wait()
        await trio.aclose_forcefully(peer)
