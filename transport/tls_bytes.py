"""TLS on a socket for the driver: it reads into given memory, and closes with an alert that the peer can read.

Not trio's SSLStream, for two reasons. It drops the alert when a handshake fails, so that the peer sees a closed
connection instead of the reason. And it makes a copy of what it reads, which here is decrypted to where it belongs.

Not `ssl.SSLSocket`: OpenSSL would read and write the socket a record at a time. Through memory, one call moves many
records, which costs less although it copies them once more.

The reader never writes: what TLS sends by itself (the answer to a key update) goes out with the next write.
"""

from __future__ import annotations

import contextlib
import itertools
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import trio

from transport.byte_streams import SocketBytes
from transport.errors import ConnectionLost, NoCommonTls
from transport.tls import ALPN, HANDSHAKE_FAILURE, PeerCertificate, certificate_expired, tls_failure

if TYPE_CHECKING:
    from transport.protocol.liveness import Acknowledged
    from transport.protocol.stream import Buffer

_RECORD_BYTES: Final = 16 * 1024
"""Plaintext of the longest record (RFC 8446 section 5.1)."""
_PIECE_BYTES: Final = 4 * _RECORD_BYTES
"""Octets that are encrypted in one go. What comes out of a `MemoryBIO` is fresh memory: from 128 KiB on it would come
from `mmap`, and its page faults cost more than the encryption."""
_BATCH_BYTES: Final = 4 * _PIECE_BYTES
"""Octets that are encrypted before they are sent in one call; the peer decrypts them while the next are encrypted."""
_READ_BYTES: Final = 256 * 1024
"""Octets that a client takes from its socket in one read."""
_SERVER_READ_BYTES: Final = 64 * 1024
"""The same at a server. OpenSSL keeps that much memory for a connection from then on, and a server has thousands."""
_RECORD_HEADER_BYTES: Final = 5
_EMPTY_RECORDS_MAX: Final = 200
"""Records without data that a peer may send at once: key updates, session tickets, warnings. A record of 27 octets that
changes the key costs as much as the decryption of 16 KiB."""
_RECORDS_PAY: Final = 16
"""So many records with data pay for one without."""
_GOODBYE_S: Final = 2.0
_NOT_TLS: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n"
    b"This port speaks TLS: a plaintext request was sent to it.\n"
)
_ALERT: Final = bytes([21, 3, 3, 0, 2, 2, 70])
"""A record with a fatal `protocol_version` alert (RFC 8446 section 6): OpenSSL sends none to a peer that does not speak
TLS."""
_PLAINTEXT_ANSWERS: Final = {"HTTP_REQUEST": _NOT_TLS, "WRONG_VERSION_NUMBER": _ALERT}
"""The answer to a peer that does not speak TLS, by OpenSSL's reason."""
_NOT_HTTP_2: Final = (
    b"HTTP/1.1 505 HTTP Version Not Supported\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n"
    b'This is a gRPC server: it speaks HTTP/2, negotiated by ALPN "h2".\n'
)

_kept: Final = trio.lowlevel.RunVar[memoryview]("memory for a read")


class _Records:
    """Counts the records of a peer that bring no data, which nothing above TLS can see."""

    __slots__ = ("_begun", "_header", "_left")

    def __init__(self) -> None:
        self._header = bytearray()
        """The first octets of a header whose others have not come."""
        self._left = 0
        """Octets of the last record that have not come."""
        self._begun = 0
        """Records that have begun and were not paid for by data, times `_RECORDS_PAY`."""

    def read(self, ciphertext: memoryview) -> None:
        """Count the records that begin in the next octets."""
        at, size, header = self._left, len(ciphertext), self._header
        while at < size:
            if not header and at + _RECORD_HEADER_BYTES <= size:
                at += _RECORD_HEADER_BYTES + (ciphertext[at + 3] << 8 | ciphertext[at + 4])
                self._begun += _RECORDS_PAY
                continue
            part = ciphertext[at : at + _RECORD_HEADER_BYTES - len(header)]
            header += part
            at += len(part)
            if len(header) == _RECORD_HEADER_BYTES:
                at += header[3] << 8 | header[4]
                header.clear()
                self._begun += _RECORDS_PAY
        self._left = at - size

    def data_came(self, times: int) -> None:
        """Say how many records, or parts of one, were data."""
        self._begun -= (_RECORDS_PAY + 1) * times

    def begin_again(self) -> None:
        """Forget what was counted: it was the handshake."""
        self._begun = 0

    def too_many_empty(self) -> bool:
        """Whether the peer sends more records without data than it may; to be asked when all of them are decrypted."""
        self._begun = max(0, self._begun)
        return self._begun > _EMPTY_RECORDS_MAX * _RECORDS_PAY


class TlsBytes:
    """A TLS connection; use it after `handshake`. Raises only ConnectionLost, which has OpenSSL's error as a cause.

    Args:
        stream: Owned from now on.
        context: Of this end.
        send_timeout_s: Longest wait for the rest of a handshake message.
        server_hostname: At a client: whose certificate the server must have. None: this end is the server.
    """

    def __init__(
        self,
        stream: trio.SocketStream,
        context: ssl.SSLContext,
        send_timeout_s: float,
        server_hostname: str | None = None,
    ) -> None:
        self._send_timeout_s = send_timeout_s
        self._server_side = server_hostname is None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=self._server_side, server_hostname=server_hostname
        )
        self._bytes = SocketBytes(stream)
        self._room = _shared_room()[: _SERVER_READ_BYTES if self._server_side else _READ_BYTES]
        self._failure: ssl.SSLError | None = None
        """Why nothing more can be decrypted."""
        self._records = _Records()
        self._more: trio.Event | None = None
        """Set when more was read, if the writer waits for that."""
        self._unsent: list[Buffer] = []
        """What `send_nowait` has not encrypted."""
        self._ended = False
        """Nothing more is sent, and what arrives is dropped."""

    @property
    def waiting_since(self) -> float:
        """See `ByteStream`."""
        return self._bytes.waiting_since

    async def handshake(self) -> PeerCertificate | None:
        """Do the TLS handshake, certificates and ALPN included.

        Returns:
            The peer's certificate, if one was required.

        Raises:
            ConnectionLost: It failed, and the peer got the reason; `close` is to be called.

        Cancellation:
            `close` is to be called.
        """
        while True:
            try:
                self._object.do_handshake()
                break
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._fill():
                    raise ConnectionLost("the peer closed the connection during the TLS handshake") from None
            except ssl.SSLError as error:
                await self._refuse(_PLAINTEXT_ANSWERS.get(error.reason, b"") if self._server_side else b"")
                no_server_hello = self._object.cipher() is None
                if error.reason == HANDSHAKE_FAILURE and no_server_hello:
                    raise NoCommonTls("the peer takes no version and no cipher of TLS that we do") from error
                raise ConnectionLost(tls_failure(error)) from error
        self._records.begin_again()
        await self._flush()
        fields = self._object.getpeercert()
        if self._object.session_reused and certificate_expired(fields):
            # Over TLS 1.2. Without a close_notify OpenSSL forgets the session: the next handshake is a whole one.
            raise ConnectionLost("the certificate cannot be trusted: it has expired since its session began")
        if self._object.selected_alpn_protocol() != ALPN:
            if self._server_side:
                self._object.write(_NOT_HTTP_2)
            await self._refuse()
            # OpenSSL does not tell what our context offers: it may be one that the user has made.
            hint = "" if self._server_side else f', or ssl_context lacks set_alpn_protocols(["{ALPN}"])'
            raise ConnectionLost(f'ALPN "{ALPN}" was not negotiated: the peer does not speak HTTP/2{hint}')
        return PeerCertificate.of(fields)

    async def receive_into(self, buffers: Sequence[memoryview]) -> int:
        """See `ByteStream`."""
        while True:
            if self._ended:
                while await self._fill():
                    pass
                return 0
            size = self._decrypt_into(buffers)
            if size is not None:
                return size
            if not await self._fill():
                return 0  # HTTP/2 frames its own end: without close_notify nothing is lost

    async def send(self, buffers: list[Buffer]) -> None:
        """See `ByteStream`.

        A batch at a time: the peer decrypts one while the next is encrypted.
        """
        outgoing = self._outgoing
        buffers, self._unsent = [*self._unsent, *buffers], []
        batch: list[Buffer] = []
        size = 0
        for piece in _pieces(buffers):
            await self._encrypt(piece)
            if outgoing.pending >= _PIECE_BYTES:
                batch.append(outgoing.read())
                size += len(batch[-1])
                if size >= _BATCH_BYTES:
                    await self._bytes.send(batch)
                    batch, size = [], 0
        batch.append(outgoing.read())
        await self._bytes.send(batch)

    def send_nowait(self, buffers: list[Buffer]) -> bool:
        """See `ByteStream`; more than one piece is left to `send`, which writes one while it encrypts the next."""
        pieces = list(itertools.islice(_pieces(buffers), 2))
        with contextlib.suppress(ConnectionLost):  # The next `send` raises it.
            if len(pieces) == 1 and self._encrypt_nowait(pieces[0]):
                return self._bytes.send_nowait([self._outgoing.read()])
        self._unsent = buffers
        return False

    def acknowledged(self) -> Acknowledged:
        """See `ByteStream`."""
        return self._bytes.acknowledged()

    async def send_end(self) -> None:
        """See `ByteStream`."""
        self._say_close()
        await self._flush()
        await self._bytes.send_end()

    async def aclose(self) -> None:
        """See `ByteStream`."""
        try:
            if not self._ended:
                with trio.move_on_after(_GOODBYE_S), contextlib.suppress(ConnectionLost):
                    self._say_close()
                    await self._flush()
        finally:
            self.close()

    def close(self) -> None:
        """Close the socket now, without a word."""
        self._bytes.close()

    async def _encrypt(self, piece: Buffer) -> None:
        """Encrypt it for the socket. Waits only if the peer has sent half of a handshake message, for the rest."""
        while not self._encrypt_nowait(piece):
            more = self._more = trio.Event()
            with trio.move_on_after(self._send_timeout_s):
                await more.wait()
            if not more.is_set():
                raise ConnectionLost("the peer does not finish a TLS handshake message")

    def _encrypt_nowait(self, piece: Buffer) -> bool:
        """Encrypt it; False: the peer has sent half of a handshake message, and the same piece is to be tried again."""
        try:
            self._object.write(piece)
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise ConnectionLost(f"connection lost: {tls_failure(error)}") from error
        return True

    def _decrypt_into(self, buffers: Sequence[memoryview]) -> int | None:
        """Decrypt what was read; None: nothing yet, read more. 0: the peer has closed."""
        # Typed as if it made bytes, which it does only without a buffer.
        read: Callable[[int, memoryview], Any] = self._object.read
        done, records, wants_more = 0, 0, False
        try:
            for room in buffers if self._failure is None else ():
                while room:
                    size: int = read(_RECORD_BYTES, room)
                    if not size:
                        return done
                    room = room[size:]
                    done += size
                    records += 1
        except ssl.SSLWantReadError:
            wants_more = True
        except ssl.SSLZeroReturnError:
            return done
        except ssl.SSLError as error:
            self._failure = error
        self._records.data_came(records)
        if wants_more:
            if self._records.too_many_empty():
                raise ConnectionLost("the peer sends too many TLS records without data")
            return done or None
        if self._failure is not None and not done:  # what was whole is delivered first
            raise ConnectionLost(f"connection lost: {tls_failure(self._failure)}") from self._failure
        return done

    async def _fill(self) -> bool:
        """Read from the socket; False: the peer has closed it."""
        size = await self._bytes.receive_into([self._room])
        if size and not self._ended:
            self._records.read(self._room[:size])
            self._incoming.write(self._room[:size])
        if self._more is not None:
            self._more.set()
        return bool(size)

    async def _flush(self) -> None:
        await self._bytes.send([self._outgoing.read()])

    def _say_close(self) -> None:
        """Queue our close_notify."""
        self._ended = True
        with contextlib.suppress(ssl.SSLError, ValueError):  # the peer's own is not waited for
            self._object.unwrap()

    async def _refuse(self, plaintext: bytes = b"") -> None:
        """Send the alert, and let the peer read it: a close with unread input would discard it."""
        with trio.move_on_after(_GOODBYE_S), contextlib.suppress(ConnectionLost):
            if plaintext:
                await self._bytes.send([plaintext])
            await self.send_end()
            while await self._fill():
                pass


def _pieces(buffers: Sequence[Buffer]) -> Iterator[Buffer]:
    """The same octets in pieces worth an encryption.

    Whole records come out of long buffers without a copy. What is shorter than a record, such as a frame's header, is
    joined with what follows: it is not worth a record of its own.
    """
    parts: list[memoryview] = []
    size = 0
    for buffer in buffers:
        view = memoryview(buffer)
        if parts and len(view) >= _RECORD_BYTES:
            whole = -size % _RECORD_BYTES
            parts.append(view[:whole])
            yield b"".join(parts)
            view, parts, size = view[whole:], [], 0
        while len(view) >= _RECORD_BYTES:
            whole = min(len(view) - len(view) % _RECORD_BYTES, _PIECE_BYTES)
            yield view[:whole]
            view = view[whole:]
        if view:
            parts.append(view)
            size += len(view)
        if size >= _PIECE_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)


def _shared_room() -> memoryview:
    """Memory for one read of any connection of this event loop: used up before another task runs."""
    try:
        return _kept.get()
    except LookupError:
        made = memoryview(bytearray(_READ_BYTES))
        _kept.set(made)
        return made
