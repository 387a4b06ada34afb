"""A client of raw frames on a real socket, and what it may expect of a server: the parts that cases are made of.

A case is a row of steps after the handshake: octets are sent, an expectation reads frames until it is met. An
expectation that meets the end of the connection, or a frame that makes it impossible, fails the case.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Final, Self

import hpack

from tests.support import wire
from tests.support.wire import Frame
from transport.errors import ErrorCode, error_code_name

Step = bytes | Callable[["Peer"], None]
Case = tuple[Step, ...]
Cases = dict[str, Case]

WINDOW_BYTES: Final = 65_535
_READ_BYTES: Final = 64 * 1024
_ALIVE: Final = b"alive?!!"


class Peer:
    """One connection.

    Args:
        connection: A connected socket, TLS or not; owned. Its timeout is the peer's patience.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._received = bytearray()
        self._decoder = hpack.Decoder()
        self.settings: dict[int, int] = {}
        """The server's, after the handshake."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def run(self, case: Case) -> None:
        """Do the steps one after another."""
        for step in case:
            if isinstance(step, bytes):
                self.send(step)
            else:
                step(self)

    def send(self, octets: bytes) -> None:
        """Send; a server that has ended the connection meanwhile is found out by what is read."""
        try:
            self._socket.sendall(octets)
        except (BrokenPipeError, ConnectionResetError):
            return

    def handshake(self) -> None:
        """Exchange SETTINGS: the server's come first of all it says, and ours are acknowledged."""
        self.send(wire.PREFACE + wire.settings((wire.INITIAL_WINDOW_SIZE, WINDOW_BYTES)))
        first = self.frame()
        assert first is not None, "ended in the handshake"
        assert first.kind == wire.SETTINGS, first
        assert not first.flags & wire.ACK
        self.settings = dict(struct.iter_unpack(">HL", first.payload))
        self.send(wire.settings(ack=True))
        acknowledged(self)

    def frame(self) -> Frame | None:
        """The next frame; None: the connection was closed properly.

        Raises:
            OSError: It was reset, or nothing came for too long.
        """
        if not self._fill(9):
            assert not self._received, "the last frame is cut"
            return None
        high, low, kind, flags, stream_id = struct.unpack_from(">HBBBL", self._received)
        end = 9 + (high << 8 | low)
        assert self._fill(end), "the last frame is cut"
        payload = bytes(self._received[9:end])
        del self._received[:end]
        return Frame(kind, flags, stream_id & 0x7FFFFFFF, payload)

    def read_to_end(self) -> None:
        """Drop all that comes until the connection was closed properly; it need not be frames."""
        while self._fill(len(self._received) + 1):
            self._received.clear()

    def expect(self, *kinds: int) -> Frame:
        """The next frame of one of `kinds`; others are skipped."""
        skipped: list[Frame] = []
        while True:
            found = self.frame()
            assert found is not None, f"ended after {skipped}"
            if found.kind in kinds:
                return found
            skipped.append(found)

    def fields(self, found: Frame) -> dict[str, str]:
        """The fields of a whole header block."""
        assert found.flags & wire.END_HEADERS
        return {
            bytes(n).decode(): bytes(v).decode() for n, v in self._decoder.decode(found.payload, raw=True)
        }

    def _fill(self, size: int) -> bool:
        while len(self._received) < size:
            more = self._socket.recv(_READ_BYTES)
            if not more:
                return False
            self._received += more
        return True


def answered(peer: Peer) -> None:
    """A whole answer comes on stream 1: HEADERS with a status, DATA as announced, an end; no reset, no GOAWAY."""
    head = peer.expect(wire.HEADERS, wire.RST_STREAM, wire.GOAWAY)
    assert (head.kind, head.stream_id) == (wire.HEADERS, 1), head
    fields = peer.fields(head)
    assert fields[":status"].isdigit()
    body, last = b"", head
    while not last.flags & wire.END_STREAM:
        last = peer.expect(wire.DATA, wire.HEADERS, wire.RST_STREAM, wire.GOAWAY)
        assert last.stream_id == 1
        assert last.kind in {wire.DATA, wire.HEADERS}, last
        body += last.payload if last.kind == wire.DATA else b""
    if body:
        assert fields["content-length"] == str(len(body))


def acknowledged(peer: Peer) -> None:
    """Our SETTINGS are acknowledged."""
    while not peer.expect(wire.SETTINGS).flags & wire.ACK:
        pass


def pong() -> Step:
    """The next PING is the acknowledgement of ours."""

    def step(peer: Peer) -> None:
        found = peer.expect(wire.PING, wire.GOAWAY)
        assert found.kind == wire.PING, found
        assert found.flags & wire.ACK
        assert found.payload == b"12345678"

    return step


def alive(peer: Peer) -> None:
    """The connection serves on, and has said nothing of an error.

    A reset without an error is none: a server may send it after an answer that needs no more of the request.
    """
    peer.send(wire.ping(_ALIVE))
    found = peer.expect(wire.PING, wire.RST_STREAM, wire.GOAWAY)
    while found.kind == wire.RST_STREAM and found.code == ErrorCode.NO_ERROR:
        found = peer.expect(wire.PING, wire.RST_STREAM, wire.GOAWAY)
    assert (found.kind, found.payload) == (wire.PING, _ALIVE), found


def closed(peer: Peer) -> None:
    """The connection comes to a proper end, whatever is said before."""
    while peer.frame() is not None:
        pass


def connection_error(*codes: ErrorCode) -> Step:
    """A GOAWAY says one of `codes`, and the connection is closed properly."""

    def step(peer: Peer) -> None:
        assert peer.expect(wire.GOAWAY).code in codes
        closed(peer)

    return step


def stream_error(*codes: ErrorCode) -> Step:
    """Stream 1 is reset with one of `codes`, and nothing else suffers; or the connection ends with one of them."""

    def step(peer: Peer) -> None:
        found = peer.expect(wire.RST_STREAM, wire.GOAWAY)
        assert found.code in codes, error_code_name(found.code)
        if found.kind == wire.GOAWAY:
            closed(peer)
        else:
            assert found.stream_id == 1
            alive(peer)

    return step


def reset(code: ErrorCode) -> Step:
    """A stream is reset with `code`, and the connection lives."""

    def step(peer: Peer) -> None:
        found = peer.expect(wire.RST_STREAM, wire.GOAWAY)
        assert (found.kind, found.code) == (wire.RST_STREAM, code), found
        alive(peer)

    return step


def data_of(size: int) -> Step:
    """The next DATA has `size` octets."""

    def step(peer: Peer) -> None:
        found = peer.expect(wire.DATA, wire.RST_STREAM, wire.GOAWAY)
        assert found.kind == wire.DATA, found
        assert len(found.payload) == size

    return step
