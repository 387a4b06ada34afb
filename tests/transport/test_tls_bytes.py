"""TLS under the driver: what goes onto the wire, and records that come in pieces, in halves, or not at all."""

from __future__ import annotations

import hmac
import math
import random
import re
import socket
import ssl
import struct
import subprocess
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest
import trio
import trio.testing
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

import transport
from bench.harness.proxies import tool
from tests.support import wire
from tests.support.certificates import ca_file, client_tls, issue, server_files, server_tls
from tests.transport.test_sockets import much
from transport import ConnectionLost, TransportConfig, certificate_refused
from transport.byte_streams import keep_short
from transport.driver import Driver
from transport.protocol.connection import ConnectionCore
from transport.tls_bytes import TlsBytes

if TYPE_CHECKING:
    from transport.protocol.stream import Buffer

pytestmark = pytest.mark.socket

DEADLOCK_S = 60.0
"""What no step takes, however slow the machine is."""
KIB, MIB = 1 << 10, 1 << 20
RECORD_HEADER_BYTES = 5


class Peer:
    """A TLS server on a socket, whose ciphertext a test sees and delivers as it likes."""

    def __init__(self, stream: trio.SocketStream, context: ssl.SSLContext) -> None:
        self.stream = stream
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_side=True)
        self.ciphertext = bytearray()
        """All that has come since the handshake."""

    async def shake_hands(self) -> None:
        """Both ends do it at once."""
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self.stream.send_all(self.outgoing.read())
                self.incoming.write(await self.stream.receive_some())
        await self.stream.send_all(self.outgoing.read())

    async def receive(self, size: int) -> bytes:
        """Octets that the other end has sent."""
        found = b""
        while len(found) < size:
            try:
                found += self.tls.read(size - len(found))
            except ssl.SSLWantReadError:
                data = await self.stream.receive_some()
                assert data
                self.ciphertext += data
                self.incoming.write(data)
        return found

    def records(self) -> list[int]:
        """Lengths of the records that have come, as they were on the wire."""
        lengths, at = [], 0
        while at < len(self.ciphertext):
            lengths.append(int.from_bytes(self.ciphertext[at + 3 : at + RECORD_HEADER_BYTES], "big"))
            at += RECORD_HEADER_BYTES + lengths[-1]
        return lengths


def server_context(directory: Path) -> ssl.SSLContext:
    """TLS of a peer, whose secrets are written down."""
    made = server_files(directory)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    context.set_alpn_protocols(["h2"])
    context.keylog_filename = str(directory / "secrets")
    return context


@asynccontextmanager
async def strangers(directory: Path, context: ssl.SSLContext) -> AsyncIterator[tuple[TlsBytes, Peer]]:
    """A client's `TlsBytes` and its peer, before the handshake."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    ours = await trio.open_tcp_stream(*listeners[0].socket.getsockname())
    keep_short(ours.socket, 4 * KIB)
    peer = Peer(await listeners[0].accept(), context)
    await listeners[0].aclose()
    mine = TlsBytes(ours, client_tls(directory), DEADLOCK_S, server_hostname="127.0.0.1")
    try:
        yield mine, peer
    finally:
        await trio.aclose_forcefully(peer.stream)
        mine.close()


@asynccontextmanager
async def pair(directory: Path) -> AsyncIterator[tuple[TlsBytes, Peer]]:
    """A client's `TlsBytes` and its peer, after the handshake."""
    async with strangers(directory, server_context(directory)) as (mine, peer):
        with trio.fail_after(DEADLOCK_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(mine.handshake)
                nursery.start_soon(peer.shake_hands)
            yield mine, peer


async def receive(connection: TlsBytes, size: int, room_bytes: int = 64 * KIB) -> bytes:
    """Octets out of a connection, as the driver reads them."""
    room = memoryview(bytearray(room_bytes))
    found = b""
    while len(found) < size:
        length = await connection.receive_into([room[: room_bytes // 3], room[room_bytes // 3 :]])
        assert length
        found += room[:length]
    return found


@pytest.mark.parametrize("seed", range(6))
async def test_any_buffers_arrive_in_order(seed: int, tmp_path: Path) -> None:
    """Buffers of every length, none and megabytes among them, in one write: the same octets, no record for a header."""
    dice = random.Random(seed)
    lengths = [0, 1, 9, 14, 16 * KIB - 1, 16 * KIB, 16 * KIB + 1, 64 * KIB, 64 * KIB - 9, 80 * KIB, MIB, 5]
    buffers: list[Buffer] = [dice.randbytes(dice.choice(lengths)) for _ in range(dice.randrange(1, 40))]
    expected = b"".join(buffers)
    async with pair(tmp_path) as (mine, peer), trio.open_nursery() as nursery:
        nursery.start_soon(mine.send, buffers)
        assert await peer.receive(len(expected)) == expected
    # A record is full, or ends what was joined before a long buffer or as much as one encryption takes.
    assert len(peer.records()) <= len(expected) / (16 * KIB) * 5 / 4 + 2


async def test_what_is_written_at_once_stays_in_front_of_what_follows(tmp_path: Path) -> None:
    """Short octets go out at once; what the socket does not take, and what is long, goes with the next write."""
    short, long = b"short", random.Random(1).randbytes(MIB)
    async with pair(tmp_path) as (mine, peer), trio.open_nursery() as nursery:
        assert mine.send_nowait([short, short])
        assert await peer.receive(2 * len(short)) == 2 * short
        assert not mine.send_nowait([short, long])
        nursery.start_soon(mine.send, [])
        assert await peer.receive(len(short + long)) == short + long
        sent = 0
        while mine.send_nowait([long[: 32 * KIB]]):  # until the socket is full
            sent += 32 * KIB
        last: list[Buffer] = [short]
        nursery.start_soon(mine.send, last)
        received = await peer.receive(sent + 32 * KIB + len(short))
        assert received == long[: 32 * KIB] * (sent // (32 * KIB) + 1) + short


async def test_a_long_message_and_its_header_fill_their_records(tmp_path: Path) -> None:
    """1 MiB behind a frame header and a prefix are 64 full records and one of what is left."""
    async with pair(tmp_path) as (mine, peer), trio.open_nursery() as nursery:
        buffers: list[Buffer] = [bytes(14), bytes(MIB)]
        nursery.start_soon(mine.send, buffers)
        await peer.receive(MIB + 14)
    of_its_own = 1 + 16  # a record's inner type, and the tag of AES-GCM and of ChaCha20-Poly1305
    assert peer.records() == [16 * KIB + of_its_own] * 64 + [14 + of_its_own]


async def test_what_waits_for_a_peer_that_does_not_read_is_bounded(tmp_path: Path) -> None:
    """Of 64 MiB that the peer does not read, one batch is encrypted; the write tells that it waits."""
    message: list[Buffer] = [memoryview(bytes(64 * MIB))]
    async with pair(tmp_path) as (mine, _), trio.open_nursery() as nursery:
        tracemalloc.start()
        try:
            nursery.start_soon(mine.send, message)
            while mine.waiting_since == math.inf:
                await trio.lowlevel.checkpoint()
            assert tracemalloc.get_traced_memory()[1] < MIB
        finally:
            tracemalloc.stop()
        nursery.cancel_scope.cancel()


async def test_records_that_come_octet_by_octet(tmp_path: Path) -> None:
    """Segments of one octet, and records of one octet, are read as if they had come whole."""
    async with pair(tmp_path) as (mine, peer), trio.open_nursery() as nursery:
        expected = bytes(range(200))

        async def trickle() -> None:
            for at in range(100):
                peer.tls.write(expected[at : at + 1])
            peer.tls.write(expected[100:])
            ciphertext = peer.outgoing.read()
            for at in range(300):
                await peer.stream.send_all(ciphertext[at : at + 1])
                await trio.testing.wait_all_tasks_blocked()
            await peer.stream.send_all(ciphertext[300:])

        nursery.start_soon(trickle)
        assert await receive(mine, len(expected)) == expected


@pytest.mark.parametrize("room_bytes", [3, 1_000, 64 * KIB, 2 * MIB])
async def test_rooms_of_any_size_are_filled(room_bytes: int, tmp_path: Path) -> None:
    """What does not fit into the reader's memory is kept for its next read; nothing is lost or turned round."""
    size = 2 * MIB if room_bytes > 3 else 20_000
    expected = random.Random(room_bytes).randbytes(size)
    async with pair(tmp_path) as (mine, peer), trio.open_nursery() as nursery:
        peer.tls.write(expected)
        nursery.start_soon(peer.stream.send_all, peer.outgoing.read())
        assert await receive(mine, size, room_bytes) == expected


async def test_a_damaged_record_ends_the_connection_behind_what_was_whole(tmp_path: Path) -> None:
    """Octets before a record that was changed on the way are delivered; then the connection is lost, not ended."""
    async with pair(tmp_path) as (mine, peer):
        peer.tls.write(b"whole")
        peer.tls.write(b"damaged")
        ciphertext = bytearray(peer.outgoing.read())
        ciphertext[-1] ^= 1
        await peer.stream.send_all(ciphertext)
        assert await receive(mine, 5) == b"whole"
        with pytest.raises(ConnectionLost, match=r"bad record mac|record layer failure"):
            await mine.receive_into([memoryview(bytearray(100))])


# ------------------------------------------------------------------ records without data


class Sealer:
    """Makes records of TLS 1.3 as a peer of `pair` would, from its secret: `ssl` cannot ask OpenSSL to change a key."""

    SUITE = "TLS_AES_256_GCM_SHA384"
    TICKETS = 2  # of a server, right after the handshake

    def __init__(self, directory: Path) -> None:
        lines = (directory / "secrets").read_text().splitlines()
        (secret,) = (line.split()[2] for line in lines if line.startswith("SERVER_TRAFFIC_SECRET_0 "))
        self._secret = bytes.fromhex(secret)
        self._sent = self.TICKETS

    def data(self, octets: bytes) -> bytes:
        """A record of application data."""
        return self._record(octets + b"\x17")

    def key_update(self) -> bytes:
        """A record that changes the key of those behind it."""
        record = self._record(b"\x18\0\0\1\0" + b"\x16")
        self._secret, self._sent = self._expand(b"traffic upd", 48), 0
        return record

    def _record(self, inner: bytes) -> bytes:
        nonce = int.from_bytes(self._expand(b"iv", 12), "big") ^ self._sent
        header = b"\x17\3\3" + (len(inner) + 16).to_bytes(2, "big")
        self._sent += 1
        sealed = AESGCM(self._expand(b"key", 32)).encrypt(nonce.to_bytes(12, "big"), inner, header)
        return header + sealed

    def _expand(self, label: bytes, size: int) -> bytes:
        info = size.to_bytes(2, "big") + bytes([6 + len(label)]) + b"tls13 " + label + b"\0"
        return hmac.digest(self._secret, info + b"\1", "sha384")[:size]


async def test_a_peer_that_only_changes_its_keys_is_cut_off(tmp_path: Path) -> None:
    """Key updates cost much and bring nothing, and no budget of HTTP/2 sees them: the connection ends after some."""
    async with pair(tmp_path) as (mine, peer), trio.open_nursery() as nursery:
        assert peer.tls.cipher() == (Sealer.SUITE, "TLSv1.3", 256)
        sealer = Sealer(tmp_path)
        nursery.start_soon(peer.stream.send_all, b"".join(sealer.key_update() for _ in range(300)))
        with (
            pytest.raises(ConnectionLost, match="too many TLS records without data"),
            trio.fail_after(DEADLOCK_S),
        ):
            await receive(mine, 1)


@pytest.mark.parametrize("step", [7, 64 * KIB])
async def test_a_peer_that_changes_its_keys_now_and_then_is_served(step: int, tmp_path: Path) -> None:
    """Records with data pay for key updates among them, however they are cut up on the way."""
    async with pair(tmp_path) as (mine, peer), trio.open_nursery() as nursery:
        sealer = Sealer(tmp_path)
        pieces = [b"".join(sealer.key_update() for _ in range(190))]
        for _ in range(300):
            pieces += [sealer.data(b"abc") for _ in range(20)]
            pieces.append(sealer.key_update())
        octets = b"".join(pieces)

        async def send() -> None:
            for at in range(0, len(octets), step):
                await peer.stream.send_all(octets[at : at + step])

        nursery.start_soon(send)
        assert await receive(mine, 300 * 20 * 3) == b"abc" * 300 * 20


# ------------------------------------------------------------------ cuts


@asynccontextmanager
async def cut_after(port: int, size: int) -> AsyncIterator[int]:
    """A relay that closes both sockets after so many octets of the server's, in the middle of a record or not."""

    async def relay(client: trio.SocketStream) -> None:
        async with await trio.open_tcp_stream("127.0.0.1", port) as server, trio.open_nursery() as nursery:

            async def up() -> None:
                async for data in client:
                    await server.send_all(data)

            nursery.start_soon(up)
            left = size
            while left and (data := await server.receive_some(min(left, 64 * KIB))):
                await client.send_all(data)
                left -= len(data)
            nursery.cancel_scope.cancel()
        await client.send_eof()  # an orderly end of TCP, without TLS's
        async for _ in client:
            pass

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, relay, listeners)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("size", [5_000, 50_000, 99_999, 100_000, 3_000_001])
async def test_a_cut_without_close_notify_is_not_the_end_of_data(size: int, tmp_path: Path) -> None:
    """Whoever cuts TCP in order, where TLS has not said goodbye, makes a lost connection and no short stream."""
    async with (
        transport.serve({"/much": much}, ssl_context=server_tls(tmp_path)) as server,
        cut_after(server.port, size) as port,
        transport.connect("127.0.0.1", port, ssl_context=client_tls(tmp_path)) as client,
        client.open_stream("/much") as stream,
    ):
        with pytest.raises(ConnectionLost), trio.fail_after(DEADLOCK_S):
            await stream.send(b"1000 10000")
            while True:
                assert await stream.receive() is not None


async def test_an_alert_is_read_although_the_first_write_fails(tmp_path: Path) -> None:
    """A peer that refuses the client, and is gone before that says its first words, is heard all the same."""
    context = server_context(tmp_path)
    context.load_verify_locations(ca_file(tmp_path))
    context.verify_mode = ssl.CERT_REQUIRED

    async def refuse(peer: Peer) -> None:
        with pytest.raises(ssl.SSLError):
            await peer.shake_hands()
        await peer.stream.send_all(peer.outgoing.read())
        await peer.stream.send_eof()
        peer.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await trio.aclose_forcefully(peer.stream)

    for _ in range(20):  # which task of several has its turn first is at random
        async with strangers(tmp_path, context) as (mine, peer):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(refuse, peer)
                await mine.handshake()
            core = ConnectionCore(TransportConfig(), client=True, now=trio.current_time())
            await Driver(core, mine).run()
        assert core.shutdown.failure is not None
        assert certificate_refused(core.shutdown.failure)


# ------------------------------------------------------------------ OpenSSL's own tools


@dataclass(frozen=True, slots=True)
class Tool:
    """A process, by its pipes."""

    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]


@contextmanager
def openssl(*arguments: str | Path) -> Iterator[Tool]:
    """One of OpenSSL's tools, until the end of the block."""
    with subprocess.Popen(
        [tool("openssl"), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            yield Tool(process.stdin, process.stdout, process.stderr)
        finally:
            process.kill()


async def read_until(pipe: IO[bytes], expected: bytes) -> bytes:
    """All that a tool prints up to a text."""
    found = b""
    while expected not in found:
        data = await trio.to_thread.run_sync(pipe.read, 1 << 16)
        assert data, found
        found += data
    return found


async def test_key_updates(tmp_path: Path) -> None:
    """A peer that changes its key, and asks us to change ours, again and again, is understood and answered."""
    async with transport.serve({"/much": much}, ssl_context=server_tls(tmp_path)) as server:
        arguments = ("s_client", "-connect", f"{server.host}:{server.port}", "-alpn", "h2", "-tls1_3")
        with openssl(*arguments, "-CAfile", ca_file(tmp_path)) as peer, trio.fail_after(DEADLOCK_S):
            peer.stdin.write(wire.CLIENT_HELLO)
            await read_until(peer.stdout, wire.settings(ack=True))  # a command is read by itself
            for number in range(5):
                peer.stdin.write(b"K\n" if number % 2 else b"k\n")
                await read_until(peer.stderr, b"KEYUPDATE")
                ping = b"%08d" % number
                peer.stdin.write(wire.frame(wire.PING, 0, ping))
                await read_until(peer.stdout, wire.frame(wire.PING, 0, ping, wire.ACK))


class Relay:
    """Passes on what a client sends, and of what the server sends after the handshake as much as a test says."""

    def __init__(self) -> None:
        self.held = bytearray()
        self.let_all_through = trio.Event()
        self.holding = False
        self.client: trio.SocketStream
        self.came = trio.Event()

    async def run(self, client: trio.SocketStream, server: trio.SocketStream) -> None:
        """Until the server closes."""
        self.client = client
        async with client, server, trio.open_nursery() as nursery:
            nursery.start_soon(self.pass_up, client, server)
            async for data in server:
                self.held += data
                if self.holding:
                    self.came.set()
                    await self.let_all_through.wait()
                await self.pass_down(len(self.held))
            nursery.cancel_scope.cancel()

    async def pass_up(self, client: trio.SocketStream, server: trio.SocketStream) -> None:
        """The first of it is the ClientHello; with what follows the client has finished its handshake."""
        await server.send_all(await client.receive_some())
        async for data in client:
            self.holding = True
            await server.send_all(data)

    async def pass_down(self, size: int) -> None:
        """Pass octets on to the client, and let it read them."""
        part, self.held = bytes(self.held[:size]), self.held[size:]
        await self.client.send_all(part)
        await trio.testing.wait_all_tasks_blocked()

    async def let_one_record_through(self) -> None:
        """The first that the server has sent after the handshake."""
        await self.came.wait()
        assert len(self.held) > 512
        await self.pass_down(RECORD_HEADER_BYTES + int.from_bytes(self.held[3:RECORD_HEADER_BYTES], "big"))


async def test_a_write_waits_for_the_rest_of_a_handshake_message(tmp_path: Path) -> None:
    """Between two records of one session ticket OpenSSL cannot write: the writer waits, and nothing is lost."""
    # A ticket has the client's certificate in it, so that it is longer than a record of 512 octets.
    made, own = server_files(tmp_path), issue("test", *(f"client-{at}.example" for at in range(30)))
    arguments = ("-accept", "127.0.0.1:0", "-cert", made.certificate, "-key", made.key, "-alpn", "h2")
    verify = ("-Verify", "1", "-CAfile", ca_file(tmp_path), "-max_send_frag", "512", "-num_tickets", "1")
    with openssl("s_server", *arguments, *verify) as peer, trio.fail_after(DEADLOCK_S):
        said = b""
        while (found := re.search(rb"ACCEPT 127.0.0.1:([0-9]+)\n", said)) is None:
            said += await read_until(peer.stdout, b"\n")
        relay = Relay()
        async with trio.open_nursery() as nursery:
            # What a socket of TCP was given may be late at its peer, that of a pair is there at once.
            ours, theirs = (
                trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in socket.socketpair()
            )
            nursery.start_soon(relay.run, theirs, await trio.open_tcp_stream("127.0.0.1", int(found[1])))
            mine = TlsBytes(ours, client_tls(tmp_path, own), DEADLOCK_S, server_hostname="127.0.0.1")
            await mine.handshake()
            room, sent = memoryview(bytearray(100)), trio.Event()

            async def send() -> None:
                assert not mine.send_nowait([b"said while "])
                await mine.send([b"a ticket was half here\n"])
                sent.set()

            async def read() -> None:
                await mine.receive_into([room])

            async with trio.open_nursery() as talk:
                talk.start_soon(read)
                await relay.let_one_record_through()
                talk.start_soon(send)
                await trio.testing.wait_all_tasks_blocked()
                assert not sent.is_set()
                relay.let_all_through.set()
                await read_until(peer.stdout, b"said while a ticket was half here")
                peer.stdin.write(b"heard\n")
            assert bytes(room[:6]) == b"heard\n"
            await mine.aclose()
            nursery.cancel_scope.cancel()
