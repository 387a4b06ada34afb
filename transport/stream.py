"""A call as its two ends see it: messages out, messages in, credit, and how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio

from transport.errors import CallFailed, ErrorCode, StatusCode
from transport.protocol.credit import SendCredit
from transport.protocol.stream import END, NOTHING, Buffer, StreamCore

if TYPE_CHECKING:
    from transport.driver import Driver
    from transport.protocol.calls import Metadata, RequestHead


class StreamCredit(SendCredit):
    """A sender's credit that can be waited for."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        super().__init__()
        self._waiting = trio.lowlevel.ParkingLot()

    def raise_limit(self, limit: int) -> bool:
        """See `SendCredit`; wakes who waits for credit."""
        raised = super().raise_limit(limit)
        if raised:
            self._waiting.unpark_all()
        return raised

    def remove_limit(self) -> None:
        """See `SendCredit`; wakes who waits for credit."""
        super().remove_limit()
        self._waiting.unpark_all()

    async def wait(self) -> None:
        """Wait until `sent < limit`; returns at once, without a checkpoint, if it is so."""
        while self.available <= 0:
            await self._waiting.park()


class Stream:
    """One end of a call. Made by `Client.open_stream`, or given to a handler.

    One task may send and one may receive at a time; a second one gets trio.BusyResourceError.
    """

    def __init__(self, driver: Driver, core: StreamCore) -> None:
        self._driver = driver
        self._core = core
        core.owner = self
        self._receiver: trio.Event | None = None
        self._sender: trio.Event | None = None
        self.credit = StreamCredit()
        """The application credit of messages that this end sends; used by `send_counted` alone."""
        self.messages_sent = 0
        self.messages_received = 0
        self.bytes_sent = 0
        """Octets of messages queued, prefixes excluded."""
        self.bytes_received = 0

    @property
    def stream_id(self) -> int:
        """The HTTP/2 stream's number on its connection."""
        return self._core.stream_id

    @property
    def peer(self) -> str:
        """The other end, as HOST:PORT."""
        return self._driver.peer

    @property
    def buffered_bytes(self) -> int:
        """Octets received that were not taken by `receive`."""
        return self._core.buffered_bytes

    @property
    def unsent_bytes(self) -> int:
        """Octets queued that were not handed to the socket."""
        return self._core.outgoing_bytes

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
        core = self._core
        if core.outgoing_bytes >= self._driver.core.config.send_buffer_bytes:
            await self._wait_room()
        size = self._driver.core.send_message(core, parts)
        self._driver.pump()
        self.messages_sent += 1
        self.bytes_sent += size
        return size

    async def send_counted(self, *parts: Buffer) -> int:
        """Send one message and claim its size from `credit`; does not wait for credit. Otherwise as `send`."""
        size = await self.send(*parts)
        self.credit.claim(size)
        return size

    async def wait_credit(self) -> None:
        """Wait until the consumer's limit is above what was sent; at once if it is."""
        await self.credit.wait()

    async def send_end(self) -> None:
        """Half-close: no more messages from this end. Those sent before still go out. Does not wait."""
        self._driver.core.end_stream(self._core)
        self._driver.pump()

    async def receive(self) -> Any:
        """Take the next message.

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
        message = self._take()
        while message is NOTHING:
            if self._receiver is not None:
                raise trio.BusyResourceError("another task is receiving from this stream")
            self._receiver = trio.Event()
            self._driver.core.expect_message(self._core)
            self._driver.pump()
            try:
                await self._receiver.wait()
            finally:
                self._receiver = None
                self._core.expecting = False
            message = self._take()
        return None if message is END else message

    def receive_nowait(self) -> Any:
        """As `receive`, but never waits.

        Raises:
            trio.WouldBlock: Nothing is there, and the call goes on.
        """
        message = self._take()
        if message is NOTHING:
            raise trio.WouldBlock
        return None if message is END else message

    def reset(self, code: ErrorCode = ErrorCode.CANCEL) -> None:
        """End the call at once, if it is not over; what is queued or unread is dropped."""
        self._driver.core.reset(self._core, code)
        self._driver.pump()

    def _take(self) -> Any:
        core = self._core
        message: Any = core.next_message()
        if message is not NOTHING and message is not END:
            self._driver.core.credit(core)
            self.messages_received += 1
            self.bytes_received += len(message)
            if self._driver.core.outbound.pending:
                self._driver.pump()
        return message

    async def _wait_room(self) -> None:
        core, bound = self._core, self._driver.core.config.send_buffer_bytes
        if self._sender is not None:
            raise trio.BusyResourceError("another task is sending on this stream")
        while core.outgoing_bytes >= bound and core.failure is None:
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

    def wake_sender(self) -> None:
        """There is room in the send buffer, or never will be."""
        if self._sender is not None:
            self._sender.set()

    def closed(self) -> None:
        """The stream is over in both directions."""


class ServerStream(Stream):
    """The server's end of a call, as its handler gets it."""

    def __init__(self, driver: Driver, core: StreamCore, head: RequestHead) -> None:
        super().__init__(driver, core)
        self.head = head
        self.handler_scope = trio.CancelScope()
        """Cancelled when the call is over while its handler runs."""

    @property
    def path(self) -> str:
        """/package.Service/Method."""
        return self.head.path

    @property
    def metadata(self) -> Metadata:
        """The client's custom fields."""
        return self.head.metadata

    def end_call(self, status: StatusCode = StatusCode.OK, message: str = "", details: bytes = b"") -> None:
        """Send the final status after what is queued. Done for a handler when it returns or raises."""
        self._driver.core.end_call(self._core, status, message, details)
        self._driver.pump()

    def fail(self, failure: CallFailed) -> None:
        """`end_call` with the status of an exception."""
        self.end_call(failure.status, failure.message, failure.details)

    def closed(self) -> None:
        """Stop the handler, unless the call ended by its own status."""
        if not self._core.end_requested:
            self.handler_scope.cancel()
