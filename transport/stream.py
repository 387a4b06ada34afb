"""A call as its two ends see it: messages out, messages in, credit, and how it ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import trio

from transport.credit import SendCredit
from transport.driver import Driver
from transport.errors import CallFailed, ErrorCode, MessageRefused, StatusCode
from transport.protocol.calls import Metadata, RequestHead
from transport.protocol.stalls import StallAccount, StallReason, StallTimes
from transport.protocol.state import StreamState
from transport.protocol.stream import END, NOTHING, Buffer, StreamCore
from transport.statistics import StreamStatistics
from transport.tls import PeerCertificate

_PEER: Final = StallReason.PEER


class Stream:
    """One end of a call. Made by `Client.open_stream`, or given to a handler.

    One task may send and one may receive at a time; a second one gets trio.BusyResourceError.
    """

    def __init__(self, driver: Driver, core: StreamCore) -> None:
        self._driver = driver
        self._core = core
        self._outbound = driver.core.outbound
        self._windows = driver.core.windows
        core.owner = self
        self.left = False
        """Whether `leave` was called."""
        self._receiver: trio.Event | None = None
        self._sender: trio.Event | None = None
        self.credit = SendCredit()
        """The application credit of messages that this end sends; used by `send_counted` alone."""
        self.messages_sent = 0
        self.messages_received = 0
        self.bytes_sent = 0
        """Octets of messages queued, prefixes excluded."""
        self.bytes_received = 0
        self.when_closed: Callable[[Stream], None] | None = None
        """Called once, when the call is over in both directions."""

    @property
    def stream_id(self) -> int:
        """The HTTP/2 stream's number on its connection."""
        return self._core.stream_id

    @property
    def peer(self) -> str:
        """The other end, as HOST:PORT."""
        return self._driver.peer

    @property
    def peer_certificate(self) -> PeerCertificate | None:
        """Whom the other end's verified certificate names; None without one."""
        return self._driver.peer_certificate

    @property
    def cut_off(self) -> bool:
        """Whether the call was ended by a reset or with its connection; its answer may not have arrived then."""
        return self._core.failure is not None

    @property
    def over(self) -> bool:
        """Whether the call has ended in both directions."""
        return self._core.state is StreamState.CLOSED

    @property
    def arrived_bytes(self) -> int:
        """Octets received, ever, those of messages that are not complete included."""
        return self._core.body_bytes

    @property
    def buffered_bytes(self) -> int:
        """Octets received that were not taken by `receive`."""
        return self._core.buffered_bytes

    @property
    def unsent_bytes(self) -> int:
        """Octets queued that were not handed to the socket."""
        return self._core.outgoing_bytes

    @property
    def connection_id(self) -> int:
        """Number of the connection at its server, from 1; 0 at a client."""
        return self._driver.connection_id

    @property
    def peer_stalls(self) -> StallTimes | None:
        """At a client: where the server's time on the call went. None before the end, or if it did not tell."""
        return self._core.peer_stalls

    @property
    def stall(self) -> StallReason:
        """What holds the call up now, as seen from this end."""
        return self._core.stalls.reason

    def stalls(self) -> StallTimes:
        """Where this end's time on the call went so far; adds up to the time since it was opened."""
        return self._core.stalls.times(trio.current_time())

    def blocked_on(self, reason: StallReason) -> AbstractContextManager[None]:
        """Book the time of the block as a stall, unless one comes first that matters more (see `StallAccount`).

        Args:
            reason: CREDIT, STORAGE or CONSUMER, which only the application can know.
        """
        return _Blocked(self._core.stalls, reason)

    def statistics(self) -> StreamStatistics:
        """Counters, windows and stalls, now."""
        core, now = self._core, trio.current_time()
        return StreamStatistics(
            connection_id=self.connection_id,
            stream_id=self.stream_id,
            peer=self.peer,
            path=self.path,
            age_s=core.stalls.lifetime_ns(now) / 1e9,
            messages_sent=self.messages_sent,
            messages_received=self.messages_received,
            bytes_sent=self.bytes_sent,
            bytes_received=self.bytes_received,
            unsent_bytes=core.outgoing_bytes,
            buffered_bytes=core.buffered_bytes,
            credit_limit=self.credit.limit,
            credit_sent=self.credit.sent,
            send_window=core.send_window.available,
            connection_send_window=self._outbound.queue.window.available,
            receive_window=core.receive_window.available,
            stall=core.stalls.reason,
            stalls=core.stalls.times(now),
        )

    @property
    def path(self) -> str:
        """/package.Service/Method, where it is known: at a server."""
        return ""

    async def send(self, *parts: Buffer) -> int:
        """Send one message, the concatenation of `parts`.

        Args:
            parts: One-dimensional buffers of octets; kept, uncopied, until they are written: do not change them.

        Returns:
            Octets of the message.

        Raises:
            StreamReset, ConnectionLost: The call is over; the message was not sent.
            LocalProtocolError: Our end was sent before.

        Waits:
            While the send buffer is full (`send_buffer_bytes`): for the peer's windows and the socket. With room it
            returns at once, without a checkpoint.

        Cancellation:
            The message was not sent; the stream is as before.
        """
        core, bound = self._core, self._driver.core.config.send_buffer_bytes
        if self._sender is not None:
            raise trio.BusyResourceError("another task is sending on this stream")
        if core.outgoing_bytes >= bound:
            await self._wait_until(lambda: core.outgoing_bytes < bound)
        return self._queue(parts)

    def send_nowait(self, *parts: Buffer) -> int:
        """As `send`, but never waits.

        Raises:
            trio.WouldBlock: The send buffer is full, or another task waits for room in it.
        """
        if (
            self._sender is not None
            or self._core.outgoing_bytes >= self._driver.core.config.send_buffer_bytes
        ):
            raise trio.WouldBlock
        return self._queue(parts)

    def send_at_once(self, *parts: Buffer) -> int:
        """As `send`, but never waits, nor minds whether the send buffer is full: for messages that are few and small.

        Raises:
            StreamReset, ConnectionLost: The call is over; the message was not sent.
            LocalProtocolError: Our end was sent before.
        """
        return self._queue(parts)

    @property
    def writable(self) -> bool:
        """Whether there is room in the send buffer, and the peer's window is open or nothing waits for it."""
        core = self._core
        waiting = core.outgoing_bytes
        return not waiting or (
            core.send_window.available > 0 and waiting < self._driver.core.config.send_buffer_bytes
        )

    async def wait_writable(self) -> None:
        """Wait until the stream is `writable`, or over: for a sender that makes each message when it can go out.

        `send` alone queues one more message although the peer's window is shut.

        Raises:
            trio.BusyResourceError: Another task is sending.
        """
        if self._sender is not None:
            raise trio.BusyResourceError("another task is sending on this stream")
        await self._wait_until(lambda: self.writable)

    async def send_counted(self, *parts: Buffer) -> None:
        """Send one message and claim its size from `credit`; does not wait for credit. Otherwise as `send`."""
        self.credit.claim(await self.send(*parts))

    async def wait_credit(self) -> None:
        """Wait until the consumer's limit is above what was sent; at once, without a checkpoint, if it is.

        Raises:
            StreamReset, ConnectionLost: The call is over.
            LocalProtocolError: Our end was sent before.
        """
        while self.credit.available <= 0:
            self._core.check_sendable()
            with self.blocked_on(StallReason.CREDIT):
                await self.credit.wait_change()

    async def send_end(self) -> None:
        """Half-close: no more messages from this end. Those sent before still go out. Does not wait."""
        self._outbound.end_stream(self._core)
        self._driver.write_now()

    def leave(self) -> None:
        """At a client: half-close, and do not reset the call when its block is left: nobody waits for its status.

        The call counts at the server until its answer ends, and is reset if that takes longer than ten seconds, or if
        another message comes. The end of the connection waits for it, for a second at most. Does nothing if the call
        is over.
        """
        self.left = True
        self._windows.expect_message(self._core)
        self._driver.leave(self._core)
        self._refuse_more()

    def send_last(self, *parts: Buffer) -> None:
        """Send the last message of this end, and half-close; otherwise as `send_at_once`."""
        self._queue_silently(parts)
        self._outbound.end_stream(self._core)
        self._driver.write_now()

    async def receive(self, *, attributed: bool = True) -> Any:
        """Take the next message.

        Args:
            attributed: Whether waiting here holds the stream up (PEER). False for a task that listens beside the one
                that does the stream's work.

        Returns:
            A buffer of the message's octets: bytes if short, memory of the connection's `allocate` if long. None when
            the peer has ended its messages (for a client: with status OK).

        Raises:
            CallFailed: At a client: the call ended with another status.
            StreamReset, ConnectionLost, RemoteProtocolError: The call was cut off. Again on every call.

        Waits:
            For a message or the end; with one there it returns at once, without a checkpoint.

        Cancellation:
            No effect.
        """
        if self._receiver is not None:
            raise trio.BusyResourceError("another task is receiving from this stream")
        message = self._take()
        while message is NOTHING:
            self._receiver = trio.Event()
            self._windows.expect_message(self._core)
            self._driver.write_now()  # The peer may wait for what was sent before.
            if attributed:
                self._core.stalls.enter(_PEER, trio.current_time())
            try:
                await self._receiver.wait()
            finally:
                came = self._receiver.is_set()
                self._receiver = None
                self._core.expecting = False
                if attributed:
                    # Until the message came: the reader has set the clock. If none came, until now.
                    now = self._driver.core.clock.now if came else trio.current_time()
                    self._core.stalls.leave(_PEER, now)
            message = self._take()
        return None if message is END else message

    def receive_nowait(self) -> Any:
        """As `receive`, but never waits.

        Raises:
            trio.WouldBlock: Nothing is there, and the call goes on.
        """
        message = self._take()
        if message is NOTHING:
            if self._receiver is None:
                # For the windows this is a wait: a message longer than the window arrives while it is polled for.
                self._windows.expect_message(self._core)
                self._core.expecting = False
                self._driver.pump()
            raise trio.WouldBlock
        return None if message is END else message

    def reset(self, code: ErrorCode = ErrorCode.CANCEL) -> None:
        """End the call at once, if it is not over; what is queued or unread is dropped."""
        self._driver.tell_time()
        self._outbound.reset(self._core, code)
        self._driver.pump()

    def _queue(self, parts: tuple[Buffer, ...]) -> int:
        size = self._queue_silently(parts)
        self._driver.pump()
        return size

    def _queue_silently(self, parts: tuple[Buffer, ...]) -> int:
        """Queue a message without waking the writer: something else does before the next checkpoint."""
        size = self._outbound.send_message(self._core, parts)
        self.messages_sent += 1
        self.bytes_sent += size
        return size

    def _take(self) -> Any:
        core = self._core
        message: Any = core.next_message()
        if message is not NOTHING and message is not END:
            self._windows.credit(core)
            self.messages_received += 1
            self.bytes_received += len(message)
            if core.stalls.behind and not core.inbox:
                core.stalls.catch_up(trio.current_time())
            if self._outbound.queue.pending:
                self._driver.pump()
        return message

    async def _wait_until(self, ready: Callable[[], bool]) -> None:
        """Wait for the peer's windows and the socket, until `ready`; or until nothing will ever be sent."""
        core = self._core
        with self.blocked_on(StallReason.SOCKET):
            while core.failure is None and not ready():
                self._sender = trio.Event()
                core.sender_waiting = True
                try:
                    await self._sender.wait()
                finally:
                    self._sender = None
                    core.sender_waiting = False

    # Called by the driver.

    def wake_receiver(self) -> None:
        """A message, the end or a failure is there."""
        if self._receiver is not None:
            self._receiver.set()
        elif self.left:
            self._refuse_more()

    def _refuse_more(self) -> None:
        """Reset a call that was left and has a message: nobody would take it."""
        if self._core.inbox:
            self.reset()

    def wake_sender(self) -> None:
        """There is room in the send buffer, or never will be."""
        if self._sender is not None:
            self._sender.set()

    def closed(self) -> None:
        """The stream is over in both directions."""
        self.credit.wake()
        if self.when_closed is not None:
            self.when_closed(self)


class _Blocked(AbstractContextManager[None]):
    """A block whose time is a stall; a class, since every batch has some and a generator takes twice as long."""

    __slots__ = ("_reason", "_stalls")

    def __init__(self, stalls: StallAccount, reason: StallReason) -> None:
        self._stalls = stalls
        self._reason = reason

    def __enter__(self) -> None:
        self._stalls.enter(self._reason, trio.current_time())

    def __exit__(self, *_: object) -> None:
        self._stalls.leave(self._reason, trio.current_time())


class ServerStream(Stream):
    """The server's end of a call, as its handler gets it."""

    def __init__(self, driver: Driver, core: StreamCore, head: RequestHead) -> None:
        super().__init__(driver, core)
        self.head = head
        self.handler_scope = trio.CancelScope()
        """Cancelled when the call is over while its handler runs."""
        self.caller: Any = None
        """The caller, as the application has authenticated it; the transport does not read this."""

    @property
    def path(self) -> str:
        """/package.Service/Method."""
        return self.head.path

    @property
    def calls_beginning(self) -> bool:
        """Whether further calls of the connection wait for rounds of the event loop to begin (`transport.fairness`)."""
        return self._driver.call_starts.waiting

    @property
    def metadata(self) -> Metadata:
        """The client's custom fields."""
        return self.head.metadata

    def limit_messages(self, bytes_max: int) -> None:
        """Take no longer messages on this call; others have `message_bytes_max`.

        A handler that serves everybody begins with it: else strangers could have us hold what a connection may at most.

        Raises:
            CallFailed: RESOURCE_EXHAUSTED: One is longer that has come, or is coming.
        """
        try:
            self._core.assembler.limit_untrusted(bytes_max)
        except MessageRefused as error:
            raise CallFailed(error.status, error.message) from error

    def handler_ended(self) -> None:
        """Release what only the handler needs: thousands of cut-off calls must not wait for the garbage collector."""
        if self.head.metadata:
            self.head = dataclasses.replace(self.head, metadata=())
        if self.over:  # and the driver knows: no event comes for the owner any more
            self._core.owner = None

    def end_call(self, status: StatusCode = StatusCode.OK, message: str = "", details: bytes = b"") -> None:
        """Send the final status after what is queued. Done for a handler when it returns or raises."""
        self._driver.tell_time()
        self._outbound.end_call(self._core, status, message, details)
        self._driver.write_now()

    def send_last(self, *parts: Buffer) -> None:
        """Send the last message, and status OK."""
        self._queue_silently(parts)
        self.end_call()

    def fail(self, failure: CallFailed) -> None:
        """`end_call` with the status of an exception."""
        self.end_call(failure.status, failure.message, failure.details)

    def stop(self, failure: CallFailed) -> bool:
        """End the call with a status while its handler runs, which is cancelled; what is queued goes out before.

        Returns:
            Whether it was so; False: the call had its status, which only waits to be sent.
        """
        if self._core.end_requested:
            return False
        self.fail(failure)
        self.handler_scope.cancel()
        return True

    def given_up(self) -> None:
        """Called by the driver: the core has ended the call with a status, and the handler is to stop."""
        self.handler_scope.cancel()

    def drop_unsent(self) -> None:
        """Drop what is queued before the status of a call that was stopped, so that the status goes out now."""
        self._outbound.drop_unsent(self._core)
        self._driver.pump()

    def closed(self) -> None:
        """Stop the handler, unless the call ended by its own status."""
        super().closed()
        if not self._core.end_requested:
            self.handler_scope.cancel()
