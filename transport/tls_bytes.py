"""TLS on a socket for the driver: it reads into given memory, and closes with an alert that the peer can read.

Not trio's SSLStream, for two reasons. It drops the alert when a handshake fails, so that the peer sees a closed
connection instead of the reason. And it makes a copy of what it reads, which here is decrypted to where it belongs.

The reader never writes: what TLS sends by itself (the answer to a key update) goes out with the next write.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, cast

import trio

from transport.errors import ConnectionLost
from transport.tls import ALPN, PeerCertificate, tls_failure

if TYPE_CHECKING:
    from transport.protocol.stream import Buffer

_READ_BYTES: Final = 64 * 1024
_RECORD_BYTES_MAX: Final = 16 * 1024
_PIECE_BYTES: Final = 8 * _RECORD_BYTES_MAX
"""Octets that are encrypted and sent in one go."""
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


class TlsBytes:
    """A TLS connection; use it after `handshake`. Raises only ConnectionLost, which has OpenSSL's error as a cause.

    Args:
        stream: Owned from now on.
        context: Of this end.
        send_timeout_s: Longest wait for the socket to take anything at all.
        server_hostname: At a client: whose certificate the server must have. None: this end is the server.
    """

    def __init__(
        self,
        stream: trio.SocketStream,
        context: ssl.SSLContext,
        send_timeout_s: float,
        server_hostname: str | None = None,
    ) -> None:
        self._stream = stream
        self._send_timeout_s = send_timeout_s
        self._server_side = server_hostname is None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=self._server_side, server_hostname=server_hostname
        )
        self._ended = False
        """Nothing more is sent, and what arrives is dropped."""

    async def handshake(self) -> PeerCertificate | None:
        """Do the TLS handshake, certificates and ALPN included.

        Returns:
            The peer's certificate, if one was required.

        Raises:
            ConnectionLost: It failed, and the peer got the reason; close the connection.

        Cancellation:
            The connection is to be closed.
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
                raise ConnectionLost(tls_failure(error)) from error
        await self._flush()
        if self._object.selected_alpn_protocol() != ALPN:
            if self._server_side:
                self._object.write(_NOT_HTTP_2)
            await self._refuse()
            raise ConnectionLost(f'the peer does not speak HTTP/2: ALPN "{ALPN}" was not negotiated')
        return PeerCertificate.of(self._object.getpeercert())

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

        A piece at a time: what is sent of a long message is decrypted at the peer while the next piece is encrypted.
        """
        for piece in _pieces(buffers):
            try:
                self._object.write(piece)
            except ssl.SSLError as error:
                raise ConnectionLost(f"connection lost: {tls_failure(error)}") from error
            await self._flush()

    async def send_end(self) -> None:
        """See `ByteStream`."""
        self._say_close()
        await self._flush()
        with _lost():
            await self._stream.send_eof()

    async def aclose(self) -> None:
        """See `ByteStream`."""
        try:
            if not self._ended:
                with trio.move_on_after(_GOODBYE_S), contextlib.suppress(ConnectionLost):
                    self._say_close()
                    await self._flush()
        finally:
            await trio.aclose_forcefully(self._stream)

    def _decrypt_into(self, buffers: Sequence[memoryview]) -> int | None:
        """Decrypt what was read; None: nothing yet, read more. 0: the peer has closed."""
        done = 0
        for buffer in buffers:
            filled = 0
            while filled < len(buffer):
                try:
                    size = self._read_record(buffer[filled:])
                except ssl.SSLWantReadError:
                    return done or None
                except ssl.SSLZeroReturnError:
                    return done
                except ssl.SSLError as error:
                    if done:
                        return done  # it fails again when there is nothing before it
                    raise ConnectionLost(f"connection lost: {tls_failure(error)}") from error
                if not size:
                    return done
                filled += size
                done += size
        return done

    def _read_record(self, buffer: memoryview) -> int:
        # The stubs say that this makes bytes, which it does only without a buffer.
        return cast("int", self._object.read(min(len(buffer), _RECORD_BYTES_MAX), buffer))

    async def _fill(self) -> bool:
        """Read from the socket; False: the peer has closed it."""
        with _lost():
            data = await self._stream.socket.recv(_READ_BYTES)
        if data and not self._ended:
            self._incoming.write(data)
        return bool(data)

    async def _flush(self) -> None:
        left = memoryview(self._outgoing.read())
        while left:
            with trio.move_on_after(self._send_timeout_s) as scope, _lost():
                done = await self._stream.socket.send(left)
            if scope.cancelled_caught:
                raise ConnectionLost(f"the peer took no data for {self._send_timeout_s:g} s")
            left = left[done:]

    def _say_close(self) -> None:
        """Queue our close_notify."""
        self._ended = True
        with contextlib.suppress(ssl.SSLError, ValueError):  # the peer's own is not waited for
            self._object.unwrap()

    async def _refuse(self, plaintext: bytes = b"") -> None:
        """Send the alert, and let the peer read it: a close with unread input would discard it."""
        with trio.move_on_after(_GOODBYE_S), contextlib.suppress(ConnectionLost):
            if plaintext:
                with _lost():
                    await self._stream.send_all(plaintext)
            await self.send_end()
            while await self._fill():
                pass


def _pieces(buffers: Sequence[Buffer]) -> Iterator[Buffer]:
    """The same octets in pieces worth an encryption: frame headers are not worth a record of their own."""
    parts: list[memoryview] = []
    room = _PIECE_BYTES
    for buffer in buffers:
        view = memoryview(buffer)
        while len(view) >= room:
            parts.append(view[:room])
            yield b"".join(parts)
            view, parts, room = view[room:], [], _PIECE_BYTES
        if view:
            parts.append(view)
            room -= len(view)
    if parts:
        yield b"".join(parts)


@contextlib.contextmanager
def _lost() -> Iterator[None]:
    try:
        yield
    except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
        cause = error if error.__cause__ is None else error.__cause__
        raise ConnectionLost(f"connection lost: {str(cause) or type(cause).__name__}") from error
