"""A peer made of a socket and raw frames: sends what it is told, and notes what comes back.

It reads while it writes, as a real client does, unless it is told not to read. What it notes is little, so that an
attack of a million frames costs it nothing but the sending.
"""

from __future__ import annotations

import collections
import socket
import struct
import time
from collections.abc import Callable
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from typing import Final, Self

import hpack

from tests.support import wire

READ_BYTES: Final = 1 << 18
PATIENCE_S: Final = 90.0
"""The longest that a peer waits for the server to do what it must."""


class Ended(Exception):
    """The server has ended the connection."""


class RawPeer:
    """One connection to the server under attack.

    Args:
        endpoint: HOST:PORT.
        hello: What is sent first.
        reads: Whether what comes is read while this peer sends; else it stays in the kernel's buffers.
        receive_buffer_bytes: Of the socket; None: the kernel's choice.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        hello: bytes = wire.CLIENT_HELLO,
        reads: bool = True,
        receive_buffer_bytes: int | None = None,
    ) -> None:
        host, port = endpoint.rsplit(":", 1)
        self._socket = socket.socket()
        if receive_buffer_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self._socket.settimeout(PATIENCE_S)
        self._socket.connect((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._selector = DefaultSelector()
        self._selector.register(self._socket, EVENT_READ)
        self._received = bytearray()
        self._decoder = hpack.Decoder()
        self.reads = reads
        self.sent_bytes = 0
        self.next_stream_id = 1
        self.counts: collections.Counter[int] = collections.Counter()
        """Frames received, by kind."""
        self.data_sizes: collections.Counter[int] = collections.Counter()
        """DATA frames received, by length."""
        self.body: dict[int, bytearray] | None = None
        """Octets of DATA by stream, once somebody has put a dictionary here."""
        self.resets: list[tuple[int, int]] = []
        """Stream and code of each RST_STREAM received, NO_ERROR excluded."""
        self.status: dict[int, int] = {}
        """gRPC status by stream."""
        self.goaway: wire.Frame | None = None
        self.ended = False
        self.send(hello)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave without a word."""
        self._selector.close()
        self._socket.close()

    @property
    def code(self) -> int | None:
        """The error code of the server's GOAWAY."""
        return None if self.goaway is None else self.goaway.code

    def streams(self, count: int = 1) -> list[int]:
        """The ids of the next streams."""
        first = self.next_stream_id
        self.next_stream_id += 2 * count
        return list(range(first, self.next_stream_id, 2))

    def send(self, octets: bytes) -> None:
        """Send all of it.

        Raises:
            Ended: The server has ended the connection, or takes nothing any more.
        """
        view = memoryview(octets)
        self._selector.modify(self._socket, EVENT_WRITE | (EVENT_READ if self.reads else 0))
        deadline = time.monotonic() + PATIENCE_S
        while view:
            if self.ended or time.monotonic() > deadline:
                raise Ended
            for _key, events in self._selector.select(1.0):
                if events & EVENT_READ:
                    self._read()
                if events & EVENT_WRITE:
                    view = view[self._write(view) :]

    def wait(self, condition: Callable[[RawPeer], object], timeout_s: float = PATIENCE_S) -> bool:
        """Read until `condition` holds or the connection ends; says whether it came to hold."""
        self._selector.modify(self._socket, EVENT_READ)
        deadline = time.monotonic() + timeout_s
        while not condition(self):
            left = deadline - time.monotonic()
            if self.ended or left <= 0:
                return bool(condition(self))
            if self._selector.select(left):
                self._read()
        return True

    def wait_ended(self, timeout_s: float = PATIENCE_S) -> bool:
        """Read until the server has ended the connection."""
        return self.wait(lambda peer: peer.ended, timeout_s)

    def wait_answer(self) -> None:
        """Ask the server to answer a PING, and wait for it: everything sent before has been taken.

        Raises:
            Ended: It has ended the connection.
        """
        answers = self.counts[wire.PING]
        self.send(wire.ping())
        if not self.wait(lambda peer: peer.counts[wire.PING] > answers):
            raise Ended

    def _write(self, view: memoryview) -> int:
        try:
            size = self._socket.send(view)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._read_rest()
            self.ended = True
            raise Ended from error
        self.sent_bytes += size
        return size

    def _read_rest(self) -> None:
        """What the server said before it closed."""
        while not self.ended and self.reads:
            try:
                self._take(self._socket.recv(READ_BYTES))
            except OSError:
                return

    def _read(self) -> None:
        try:
            self._take(self._socket.recv(READ_BYTES))
        except BlockingIOError:
            pass
        except OSError:
            self.ended = True

    def _take(self, octets: bytes) -> None:
        if not octets:
            self.ended = True
        self._received += octets
        at, buffer = 0, self._received
        while len(buffer) - at >= 9:
            high, low, kind, flags, stream_id = struct.unpack_from(">HBBBL", buffer, at)
            end = at + 9 + (high << 8 | low)
            if end > len(buffer):
                break
            self._note(wire.Frame(kind, flags, stream_id & 0x7FFFFFFF, bytes(buffer[at + 9 : end])))
            at = end
        del buffer[:at]

    def _note(self, frame: wire.Frame) -> None:
        self.counts[frame.kind] += 1
        if frame.kind == wire.DATA:
            self.data_sizes[len(frame.payload)] += 1
            if self.body is not None:
                self.body.setdefault(frame.stream_id, bytearray()).extend(frame.payload)
        elif frame.kind == wire.GOAWAY:
            self.goaway = frame
        elif frame.kind == wire.RST_STREAM and frame.code:
            self.resets.append((frame.stream_id, frame.code))
        elif frame.kind == wire.HEADERS:
            for name, value in self._decoder.decode(frame.payload, raw=True):
                if name == b"grpc-status":
                    self.status[frame.stream_id] = int(value)
