"""The trio shell of one connection: a reader task, a writer task, and callers that never touch the socket.

Rules:

1. The reader awaits nothing but the socket. So PINGs, resets and window updates are seen however slow consumers are.
2. Only the writer writes. Callers change the core synchronously, wake the writer and wait for *capacity*; so cancelling
   a caller can never cut a frame.
3. Whoever made the core do something calls `pump`: it passes the core's events on and wakes the writer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio

from transport.errors import ConnectionLost, TransportError
from transport.protocol.events import (
    RequestReceived,
    StreamClosed,
    StreamReadable,
    StreamsAvailable,
    StreamWritable,
)

if TYPE_CHECKING:
    from transport.byte_streams import ByteStream
    from transport.protocol.calls import RequestHead
    from transport.protocol.connection import ConnectionCore
    from transport.protocol.stream import StreamCore

_GOODBYE_S: Final = 2.0
"""Time for the last frames, and for the peer to read them before the socket goes."""


class Driver:
    """Moves bytes between one `ConnectionCore` and its socket.

    Args:
        core: The connection's state.
        byte_stream: Owned; closed when `run` ends.
        on_request: Called in the reader task for each call that a peer opens.
        peer: Whom we talk to, for people.
    """

    def __init__(
        self,
        core: ConnectionCore,
        byte_stream: ByteStream,
        *,
        on_request: Callable[[StreamCore, RequestHead], None] | None = None,
        peer: str = "",
    ) -> None:
        self.core = core
        self.peer = peer
        self.bytes_received = 0
        self.bytes_sent = 0
        self._bytes = byte_stream
        self._on_request = on_request
        self._writer_wake: trio.Event | None = None
        self._openers = trio.lowlevel.ParkingLot()
        self._finish_when_idle = False
        self._read_ended = trio.Event()

    async def run(self) -> None:
        """Serve the connection until it ends, for whatever reason; then the socket is closed.

        Raises nothing but Cancelled: how it ended is in `core.failure`, and in every stream of it.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read)
                await self._write()
                nursery.cancel_scope.cancel()
        finally:
            self.core.lost(ConnectionLost("connection closed"))
            self.pump()
            with trio.CancelScope(shield=True):
                await self._bytes.aclose()

    def pump(self) -> None:
        """Pass events of the core on to those they concern, and wake the writer if there is something to write."""
        for event in self.core.events():
            if isinstance(event, StreamReadable):
                event.stream.owner.wake_receiver()
            elif isinstance(event, StreamWritable):
                event.stream.owner.wake_sender()
            elif isinstance(event, StreamClosed):
                if event.stream.owner is not None:
                    event.stream.owner.closed()
            elif isinstance(event, StreamsAvailable):
                self._openers.unpark_all()
            elif isinstance(event, RequestReceived):
                assert self._on_request is not None
                self._on_request(event.stream, event.head)
        if self._writer_wake is not None and (self.core.sendable or self._over):
            self._writer_wake.set()
            self._writer_wake = None

    def finish(self) -> None:
        """Refuse new streams; `run` ends when the running ones have."""
        self._finish_when_idle = True
        self.core.drain()
        self.pump()

    async def wait_openable(self) -> None:
        """Wait until the peer takes one more stream.

        Raises:
            TransportError: It never will: the connection is closing or gone.
        """
        while not self.core.can_open:
            if self.core.failure is not None:
                raise ConnectionLost(str(self.core.failure)) from self.core.failure
            if self.core.closing:
                return
            await self._openers.park()

    @property
    def _over(self) -> bool:
        return self.core.failure is not None or (self._finish_when_idle and not self.core.streams)

    async def _read(self) -> None:
        """Read until the peer has closed; after a failure only to leave nothing unread (see `_say_goodbye`)."""
        core, scratch = self.core, [memoryview(bytearray(4096))]
        try:
            while True:
                size = await self._bytes.receive_into(core.buffers() if core.failure is None else scratch)
                if not size:
                    core.lost(ConnectionLost("connection closed by the peer"))
                    return
                self.bytes_received += size
                core.bytes_received(size, trio.current_time())
                self.pump()
        except ConnectionLost as error:
            core.lost(error)
        finally:
            self._read_ended.set()
            self.pump()

    async def _write(self) -> None:
        core, size_max = self.core, self.core.config.write_bytes_max
        while True:
            buffers = core.data_to_send(size_max)
            self.pump()
            if buffers:
                if core.failure is not None:
                    break
                try:
                    await self._bytes.send(buffers)
                except ConnectionLost as error:
                    core.lost(error)
                    self.pump()
                    return
                self.bytes_sent += sum(map(len, buffers))
            elif self._over:
                break
            else:
                await self._wait_writable()
        await self._say_goodbye(buffers)

    async def _wait_writable(self) -> None:
        """Sleep until there is something to write, or time demands something."""
        wake = self._writer_wake = trio.Event()
        with trio.move_on_at(self.core.next_deadline()) as scope:
            await wake.wait()
        self._writer_wake = None
        if scope.cancelled_caught:
            self.core.handle_deadline(trio.current_time())
            self.pump()

    async def _say_goodbye(self, last: list[bytes | bytearray | memoryview]) -> None:
        """Write the last frames, and let the peer read them: a close with unread input would destroy them."""
        with trio.move_on_after(_GOODBYE_S), contextlib.suppress(TransportError):
            if last:
                await self._bytes.send(last)
            await self._bytes.send_end()
            await self._read_ended.wait()
