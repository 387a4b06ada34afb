"""The trio shell of one connection: reader, writer and timekeeper tasks, and callers that never wait for the socket.

Rules:

1. The reader awaits nothing but the socket. So PINGs, resets and window updates are seen however slow consumers are.
2. Only the writer waits for the socket to take something. Callers change the core synchronously, wake the writer and
   wait for *capacity*; so cancelling a caller can never cut a frame. The only call of a connection writes what the
   socket takes at once (`write_now`), and leaves the rest to the writer.
3. Each call into the core is followed by `pump`, which passes its events on and wakes the writer.
4. The timekeeper awaits nothing but the next deadline, the core's or that of a write which makes no progress. So time
   is kept while a write takes long, and while there is always more to write; and no wait has a timer of its own,
   but that of callers in line for a call, which is long.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio

from transport.errors import ConnectionLost, TransportError
from transport.fairness import ROUNDS_TO_READ, CallStarts, TurnDebt, give_rounds
from transport.protocol.events import (
    CallGivenUp,
    ConnectionFailed,
    GoawayReceived,
    RequestReceived,
    ResetLate,
    StreamClosed,
    StreamReadable,
    StreamsAvailable,
    StreamWritable,
)

if TYPE_CHECKING:
    from transport.byte_streams import ByteStream
    from transport.protocol.calls import RequestHead
    from transport.protocol.connection import ConnectionCore
    from transport.protocol.liveness import Acknowledged
    from transport.protocol.stream import Buffer, StreamCore
    from transport.tls import PeerCertificate

_GOODBYE_S: Final = 2.0
"""Time for the last frames, and for the peer to read them before the socket goes."""
_LEFT_OVER_S: Final = 1.0
_UNREAD_BYTES: Final = 4096
"""Octets that are read at a time, to be dropped, from a peer of a connection that has failed."""
_UNREAD_BYTES_MAX: Final = 1 << 20
"""Octets dropped at most. A peer that goes on sending after that is not reading, and may lose our last frames."""

_LINE_STANDS_S: Final = 30.0
"""After so long without an end of any call, those who wait for one are told why."""

_log = logging.getLogger("weir.transport")


class _Opener:
    """A task that waits for the peer to accept one more stream."""

    __slots__ = ("turn",)

    def __init__(self) -> None:
        self.turn = trio.Event()
        """Set when it should look again."""


class Driver:
    """Moves bytes between one `ConnectionCore` and its socket.

    Args:
        core: The connection's state.
        byte_stream: Owned; closed when `run` ends.
        on_request: Called in the reader task for each call that a peer opens.
        peer: The other end as HOST:PORT, for messages.
        peer_certificate: The peer's verified certificate, if it has one.
        connection_id: Number of the connection, for messages and statistics.
        on_late_reset: Called when the peer resets a call that had ended, with the number of its stream.
        on_failure: Called once, with why the connection is over.
    """

    def __init__(
        self,
        core: ConnectionCore,
        byte_stream: ByteStream,
        *,
        on_request: Callable[[StreamCore, RequestHead], None] | None = None,
        peer: str = "",
        peer_certificate: PeerCertificate | None = None,
        connection_id: int = 0,
        on_late_reset: Callable[[int], None] | None = None,
        on_failure: Callable[[TransportError], None] | None = None,
    ) -> None:
        self.core = core
        self.peer = peer
        self.peer_certificate = peer_certificate
        self.connection_id = connection_id
        self.bytes_received = 0
        self.bytes_sent = 0
        self._bytes = byte_stream
        self._on_request = on_request
        self._on_late_reset = on_late_reset
        self._on_failure = on_failure
        self._writer_wake: trio.Event | None = None
        self._writer_idle = False
        """Whether the writer waits for something to write, or is about to find that there is something."""
        self._unsent = False
        """Whether the byte stream keeps octets that only the writer can bring out."""
        self._time_wake: trio.Event | None = None
        self._time_wakes_at = math.inf
        self._writing: trio.CancelScope | None = None
        self._sending = False
        self._left_over = trio.Event()
        self._openers: deque[_Opener] = deque()
        self._line_told = False
        self.call_starts = CallStarts(core.config.streams_max)
        """At a server: the order in which its calls begin."""
        self._read_ended = trio.Event()
        self._turn_debt = TurnDebt()

    async def run(self) -> None:
        """Serve the connection until it ends, for whatever reason; then the socket is closed.

        Raises nothing but Cancelled: how it ended is in `core.shutdown.failure`, and in every stream of it.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read)
                nursery.start_soon(self._keep_time)
                await self._write()
                nursery.cancel_scope.cancel()
        finally:
            self._lose("connection closed")
            self.pump()
            with trio.CancelScope(shield=True):
                await self._bytes.aclose()

    def pump(self) -> None:
        """Pass events of the core on to those they concern, and wake the writer if there is something to write."""
        for event in self.core.events.take():
            if isinstance(event, StreamReadable):
                event.stream.owner.wake_receiver()
            elif isinstance(event, RequestReceived):
                assert self._on_request is not None
                self._on_request(event.stream, event.head)
            elif isinstance(event, StreamWritable):
                event.stream.owner.wake_sender()
            elif isinstance(event, StreamClosed):
                if event.stream.owner is not None:
                    event.stream.owner.closed()
                if not self.core.table.left:
                    self._left_over.set()
            elif isinstance(event, CallGivenUp):
                if event.stream.owner is not None:
                    event.stream.owner.given_up()
            elif isinstance(event, ResetLate):
                if self._on_late_reset is not None:
                    self._on_late_reset(event.stream_id)
            elif isinstance(event, StreamsAvailable):
                self._call_opener()
            elif isinstance(event, GoawayReceived | ConnectionFailed):
                for opener in self._openers:
                    opener.turn.set()
                if isinstance(event, ConnectionFailed) and self._on_failure is not None:
                    self._on_failure(event.error)
        if self._writer_wake is not None and (self.core.outbound.queue.pending or self._unsent or self._over):
            self._writer_wake.set()
            self._writer_wake = None
        if self._writing is not None and self.core.shutdown.failure is not None:
            # A peer that does not read must not hold a connection that is over.
            self._writing.deadline = min(self._writing.deadline, trio.current_time() + _GOODBYE_S)

    def write_now(self) -> None:
        """As `pump`, but writes in the caller's task if the connection has one call at most, and its writer is idle.

        Waking the writer takes a round of the event loop, and a lone call waits for it: a sixth of what 100 octets
        take, both ends together. With more calls the writer is better: it makes one write of what all say in a round.
        """
        core = self.core
        alone = self._writer_idle and not self._unsent and len(core.streams) - core.table.left <= 1
        if alone and core.outbound.queue.pending and core.shutdown.failure is None:
            self.tell_time()
            try:
                buffers = core.data_to_send(core.config.write_bytes_max)
                self._unsent = not self._bytes.send_nowait(buffers)
                self.bytes_sent += sum(map(len, buffers))
            except MemoryError as error:
                self._lose_for_memory(error, "is sent")
            self._check_deadline()
        self.pump()

    def leave(self, stream: StreamCore) -> None:
        """Half-close a client's call, which then ends without anybody. With what comes next it is one write."""
        self.tell_time()
        self.core.outbound.leave(stream)
        self._check_deadline()
        self.pump()

    async def wait_left(self) -> None:
        """Wait until the calls that were left are over, a second at most: closing the connection would reset them."""
        with trio.move_on_after(_LEFT_OVER_S):
            while self.core.table.left:
                self._left_over = trio.Event()
                await self._left_over.wait()

    def acknowledged(self) -> Acknowledged:
        """What the peer's system says of what was written."""
        return self._bytes.acknowledged()

    def tell_time(self) -> None:
        """Tell the core the time, before a call that its time accounts depend on."""
        self.core.clock.now = trio.current_time()

    def close(self) -> None:
        """End the connection now; its last frames are left to send."""
        self.tell_time()
        self.core.shutdown.close()
        self.pump()

    def _lose(self, why: ConnectionLost | str) -> None:
        """The socket is gone, as of now: nothing may have told the core the time since the peer fell silent."""
        self.tell_time()
        self.core.lost(ConnectionLost(why) if isinstance(why, str) else why)

    def _lose_for_memory(self, error: MemoryError, what: str) -> None:
        """End the connection: octets of it have no memory here, and what follows them would mean something else."""
        if not self.core.client:  # A client tells by its calls.
            _log.error("no memory for what %s %s; the connection is ended (%s)", self.peer, what, error)
        self._lose(f"this process has no memory for what the peer {what}")

    def finish(self) -> None:
        """Take no new streams once the peer knows; `run` ends when those that were taken have ended."""
        self.core.shutdown.drain()
        self.pump()

    async def wait_openable(self) -> None:
        """Wait, first come first served, until the peer accepts one more stream; open it before the next checkpoint.

        It returns when the connection is closing, too; then no stream can be opened.

        Raises:
            ConnectionLost: The connection is gone.

        Cancellation:
            The next task in line has its turn.
        """
        core = self.core
        if not core.can_open or self._openers:
            await self._wait_turn()
        if core.shutdown.failure is not None:
            raise ConnectionLost(str(core.shutdown.failure)) from core.shutdown.failure

    async def _wait_turn(self) -> None:
        core, mine = self.core, _Opener()
        self._openers.append(mine)
        try:
            while not core.shutdown.closing and not (core.can_open and self._openers[0] is mine):
                mine.turn = trio.Event()
                with trio.move_on_after(_LINE_STANDS_S) as patience:
                    await mine.turn.wait()
                if patience.cancelled_caught and self._openers[0] is mine:
                    self._tell_of_line()
        finally:
            self._openers.remove(mine)
            self._call_opener()  # it looks after this one has opened its stream

    def _tell_of_line(self) -> None:
        """Say once that no call ends for which others wait: they may wait for ever, and rightly."""
        if not self._line_told:
            self._line_told = True
            _log.warning(
                "calls to %s wait, since it allows %d at once on a connection, and none has ended for %g s",
                self.peer,
                self.core.peer_streams_max,
                _LINE_STANDS_S,
            )

    def _call_opener(self) -> None:
        if self._openers:
            self._openers[0].turn.set()

    @property
    def _over(self) -> bool:
        core = self.core
        if core.shutdown.failure is not None or core.shutdown.drained:
            return True
        return not core.client and core.shutdown.peer_failed and not core.streams

    async def _read(self) -> None:
        """Read until the peer has closed; after a failure only to leave nothing unread (see `_say_goodbye`)."""
        core, shutdown, dropped = self.core, self.core.shutdown, 0
        try:
            while dropped < _UNREAD_BYTES_MAX:
                buffers = (
                    core.buffers() if shutdown.failure is None else [memoryview(bytearray(_UNREAD_BYTES))]
                )
                size = await self._bytes.receive_into(buffers)
                if not size:
                    self._lose("connection closed by the peer")
                    return
                self.bytes_received += size
                if shutdown.failure is not None:
                    dropped += size
                await self._take(size)
                self._check_deadline()
        except ConnectionLost as error:
            self._lose(error)
        except MemoryError as error:  # pyarrow's, too.
            self._lose_for_memory(error, "sends")
        finally:
            self._read_ended.set()
            self.pump()

    async def _take(self, size: int) -> None:
        """Hand octets to the core, a turn at a time; see `fairness`."""
        core = self.core
        while True:
            started = trio.current_time()
            core.bytes_received(size, started)
            self.pump()
            await self._turn_debt.pay_for(trio.current_time() - started)
            if not core.unread:
                return
            await trio.lowlevel.checkpoint()
            size = 0

    async def _write(self) -> None:
        scope = self._writing = trio.CancelScope()
        last: list[Buffer] | None = None
        with scope:
            try:
                last = await self._write_all()
            except MemoryError as error:
                self._lose_for_memory(error, "is sent")
        self._writing = None
        if last is None:  # The connection did not survive it.
            return
        # A peer that is cut off for the work that it made comes back at once.
        await self._turn_debt.pay_again()
        await self._say_goodbye(last)

    async def _write_all(self) -> list[Buffer] | None:
        """Write until the connection is over; returns its last frames, or None if it was lost."""
        core, size_max = self.core, self.core.config.write_bytes_max
        while True:
            self.tell_time()
            buffers = core.data_to_send(size_max)
            self.pump()
            self._check_deadline()
            if buffers or self._unsent:
                if core.shutdown.failure is not None:
                    return buffers
                self._unsent = False
                try:
                    await self._send(buffers)
                except ConnectionLost as error:
                    # What the peer said before it left, such as a GOAWAY, may not have been read yet.
                    await give_rounds(ROUNDS_TO_READ)
                    self._lose(error)
                    self.pump()
                    return None
                self.bytes_sent += sum(map(len, buffers))
                if core.outbound.queue.pending:  # Else it waits anyway.
                    await trio.lowlevel.checkpoint()
            elif self._over:
                return buffers
            else:
                await self._wait_writable()

    async def _send(self, buffers: list[Buffer]) -> None:
        """Write, with the timekeeper's eye on it. The core knows the time."""
        self._sending = True
        if self.core.clock.now + self.core.config.send_timeout_s < self._time_wakes_at:
            self._wake_timekeeper()
        try:
            await self._bytes.send(buffers)
        finally:
            self._sending = False

    async def _wait_writable(self) -> None:
        """Sleep until there is something to write."""
        wake = self._writer_wake = trio.Event()
        self._writer_idle = True
        try:
            await wake.wait()
        finally:
            self._writer_idle = False

    async def _keep_time(self) -> None:
        """Do what time demands."""
        core = self.core
        while core.shutdown.failure is None:
            wake = self._time_wake = trio.Event()
            self._time_wakes_at = min(core.next_deadline(), self._send_deadline(trio.current_time()))
            with trio.move_on_at(self._time_wakes_at) as scope:
                await wake.wait()
            self._time_wake = None
            if scope.cancelled_caught:
                # If the loop was held up, the answer that is overdue has come, and the socket takes what it had no room
                # for; those who read and write learn of it in the same round as this one.
                await give_rounds(ROUNDS_TO_READ)
                now = trio.current_time()
                if self._send_deadline(now) <= now:
                    self._end_writing()
                else:
                    core.handle_deadline(now, self.acknowledged())
                self.pump()

    def _send_deadline(self, now: float) -> float:
        """When a write that takes until then without any progress is one too long; infinity: nothing is written."""
        if not self._sending:
            return math.inf
        # A write that is not waiting at this moment begins to wait now at the earliest.
        return min(now, self._bytes.waiting_since) + self.core.config.send_timeout_s

    def _end_writing(self) -> None:
        """The peer takes nothing: the connection is over, and the writer waits no longer."""
        self._lose(f"the peer took no data for {self.core.config.send_timeout_s:g} s")
        assert self._writing is not None
        self._writing.cancel()

    def _check_deadline(self) -> None:
        """Wake the timekeeper if it would sleep past the core's next deadline."""
        if self._time_wake is not None and self.core.next_deadline() < self._time_wakes_at:
            self._wake_timekeeper()

    def _wake_timekeeper(self) -> None:
        if self._time_wake is not None:
            self._time_wake.set()
            self._time_wake = None

    async def _say_goodbye(self, last: list[Buffer]) -> None:
        """Write the last frames, and let the peer read them: a close with unread input would destroy them."""
        with trio.move_on_after(_GOODBYE_S), contextlib.suppress(TransportError):
            if last:
                await self._bytes.send(last)
                self.bytes_sent += sum(map(len, last))
            await self._bytes.send_end()
            if self.core.client or not self.core.shutdown.peer_failed:  # a client that failed reads no more
                await self._read_ended.wait()
