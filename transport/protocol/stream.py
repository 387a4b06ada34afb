"""One stream's two queues: messages received and not consumed, octets to send and not framed.

The stream counts; `outbound` and `receive_windows` decide what goes on the wire. Nothing here waits: a shell that finds
`next_message` empty calls `ReceiveWindows.expect_message` and gets an event.

Invariants (numbers as in `flow_control`): F2, every exit discards what was not consumed, and the connection's credit
was given at receipt (F5), so no exit can lose it. F4, the stream's credit follows consumption: a message counts when it
is taken, and the parts of one that is still arriving count while a task waits for it (else a message longer than the
window could never arrive).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from transport.errors import CallFailed, LocalProtocolError, TransportError
from transport.protocol.flow_control import ReceiveWindow, SendWindow
from transport.protocol.memory import MESSAGE_OVERHEAD_BYTES, ReceiveMemory
from transport.protocol.messages import PREFIX_BYTES, MessageAssembler, message_prefix
from transport.protocol.stalls import StallAccount, StallTimes, WindowClock
from transport.protocol.state import SENDABLE, TRANSITIONS, StreamInput, StreamState

if TYPE_CHECKING:
    from transport.protocol.calls import Headers, RequestUnsupported

Buffer = bytes | bytearray | memoryview
_JOIN_BYTES_MAX: Final = 16 * 1024
"""Messages up to this size are joined with their prefix: a copy costs less than an entry of a vectored write."""
_BUFFER_BYTES_MEAN_MIN: Final = 2 * 1024
"""A frame made of smaller buffers, on average, is joined: a vectored write takes few entries (IOV_MAX is 1 024)."""
_MESSAGE_BYTES_END: Final = 2**32
_ALLOCATE_BYTES_MIN: Final = 32 * 1024


class EndOfMessages:
    """Type of `END`."""


class NoMessage:
    """Type of `NOTHING`."""


END: Final = EndOfMessages()
"""The peer has ended its messages."""
NOTHING: Final = NoMessage()
"""No message yet."""


class StreamCore:
    """The state of one stream. Made by `StreamTable` alone."""

    __slots__ = (
        "_consumed_at",
        "_credited",
        "assembler",
        "body_bytes",
        "body_bytes_announced",
        "end_requested",
        "expecting",
        "failure",
        "headers_received",
        "headers_sent",
        "inbox",
        "outgoing",
        "outgoing_bytes",
        "owner",
        "peer_stalls",
        "receive_window",
        "refusal",
        "remote_ended",
        "scheduled",
        "send_window",
        "sender_waiting",
        "stalls",
        "state",
        "status",
        "status_received",
        "stream_id",
        "trailers_to_send",
    )

    def __init__(
        self,
        stream_id: int,
        *,
        send_window_bytes: int,
        receive_window_bytes: int,
        message_bytes_max: int,
        allocate: Callable[[int], Any],
        trusted_bytes: int,
        receive_memory: ReceiveMemory | None,
        now: float,
        connection_clock: WindowClock,
    ) -> None:
        self.stream_id = stream_id
        self.state = StreamState.OPEN
        self.owner: Any = None
        """The shell's own object for this stream."""
        self.stalls = StallAccount(now, connection_clock, window_shut=send_window_bytes <= 0)
        """Where this end's time on the stream goes."""
        self.peer_stalls: StallTimes | None = None
        """At a client: the server's account, from its trailers."""
        # Receiving.
        self.inbox: deque[Any] = deque()
        self.assembler = MessageAssembler(
            message_bytes_max, allocate, _ALLOCATE_BYTES_MIN, trusted_bytes, self.inbox, receive_memory
        )
        self.receive_window = ReceiveWindow(receive_window_bytes)
        self.expecting = False
        """A task waits for a message: it gets one event, and parts of the message are consumed as they arrive."""
        self.headers_received = False
        self.refusal: RequestUnsupported | None = None
        """At a server: the request is no call, this is the answer, and what its body says does not matter."""
        self.body_bytes = 0
        """Octets of DATA received, padding excluded."""
        self.body_bytes_announced: int | None = None
        self._consumed_at = 0
        self._credited = 0
        self.remote_ended = False
        """The peer has sent its end: after the last message comes `END` or the peer's status, whatever else happens."""
        # Sending.
        self.outgoing: deque[Buffer] = deque()
        self.outgoing_bytes = 0
        self.send_window = SendWindow(send_window_bytes)
        self.scheduled = False
        self.sender_waiting = False
        """A task waits for room in the send buffer: it gets one event."""
        self.headers_sent = False
        self.end_requested = False
        """Our end follows the octets of `outgoing`."""
        self.trailers_to_send: Headers | None = None
        # The end.
        self.failure: TransportError | None = None
        """Why the stream ended before its time; then nothing more is sent, and it is raised after the last message."""
        self.status: CallFailed | None = None
        """The peer's final status, if it is not OK."""
        self.status_received = False

    # ------------------------------------------------------------------ receiving

    def receive_untrusted(self, data: memoryview) -> None:
        """Take payload octets of DATA.

        Raises:
            MessageRefused: A message that cannot be taken.
        """
        self.body_bytes += len(data)
        if self.refusal is None:
            self.assembler.feed_untrusted(data)
        else:
            self._consumed_at = self.body_bytes

    def received_into_target_untrusted(self, size: int) -> None:
        """Count payload octets that went straight into the message being assembled.

        Raises:
            MessageRefused: There is no memory for the rest of the message.
        """
        self.body_bytes += size
        self.assembler.filled_untrusted(size)

    def next_message(self) -> Any | EndOfMessages | NoMessage:
        """The oldest message; `END` after the last one; `NOTHING` if none is complete.

        Taking a message consumes it: `ReceiveWindows.credit` announces what is due.

        Raises:
            TransportError: The stream failed, and every message before the failure was taken. Again on every call.
        """
        if self.inbox:
            message = self.inbox.popleft()
            self._consumed_at += PREFIX_BYTES + len(message)
            if self.assembler.memory is not None:
                self.assembler.memory.give_back(MESSAGE_OVERHEAD_BYTES + len(message))
            return message
        if self.remote_ended:
            if self.status is not None:
                raise self.status.with_traceback(None)  # else each call would make the traceback longer
            return END
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        return NOTHING

    def creditable(self) -> int:
        """Octets consumed and not yet credited to the window; counts them as credited."""
        upto = self.body_bytes if self.expecting and not self.inbox else self._consumed_at
        size = upto - self._credited
        if size <= 0:
            return 0
        self._credited = upto
        return size

    @property
    def buffered_bytes(self) -> int:
        """Octets received that no consumer has taken."""
        return self.body_bytes - self._consumed_at

    def discard_received(self) -> None:
        """Drop what was not consumed; the connection's credit was given at receipt."""
        if self.inbox:
            self.remote_ended = False  # the peer's end may only be reported after all of its messages
        self.inbox.clear()

    def release_memory(self) -> None:
        """The stream is over: what is left of it does not count for the connection any more."""
        memory, self.assembler.memory = self.assembler.memory, None
        if memory is not None:
            waiting = sum(MESSAGE_OVERHEAD_BYTES + len(message) for message in self.inbox)
            memory.give_back(waiting + self.assembler.memory_bytes)

    # ------------------------------------------------------------------ sending

    def queue_message(self, parts: Sequence[Buffer]) -> int:
        """Queue one message, made of `parts`; nothing is copied above 16 KiB.

        Returns:
            Octets of the message, without its prefix.

        Raises:
            LocalProtocolError: Our end was sent before, the stream is closed, or the message is of 4 GiB or more;
                nothing has changed.
            TransportError: The stream has failed.
            TypeError: A part is not a contiguous buffer; nothing has changed.
        """
        self.check_sendable()
        octets = [part if type(part) is bytes else memoryview(part).cast("B") for part in parts]
        size = sum(map(len, octets))
        if size >= _MESSAGE_BYTES_END:
            raise LocalProtocolError(
                f"message of {size} octets, gRPC ends at 4 GiB", stream_id=self.stream_id
            )
        prefix = message_prefix(size)
        if size <= _JOIN_BYTES_MAX:
            self.outgoing.append(b"".join((prefix, *octets)))
        else:
            self.outgoing.append(prefix)
            self.outgoing.extend(part for part in octets if len(part))
        self.outgoing_bytes += PREFIX_BYTES + size
        return size

    def queue_octets(self, octets: bytes) -> None:
        """Queue the body of an answer that is not gRPC's: no message, no prefix."""
        self.outgoing.append(octets)
        self.outgoing_bytes += len(octets)

    def check_sendable(self) -> None:
        """Raise unless messages can be sent; see `queue_message`."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        if self.end_requested or self.state not in SENDABLE:
            raise LocalProtocolError("the end of this stream was sent before", stream_id=self.stream_id)

    def take_outgoing(self, size: int) -> list[Buffer]:
        """The next `size` octets to send, as the buffers that hold them; `size` must be there."""
        taken: list[Buffer] = []
        outgoing, left = self.outgoing, size
        self.outgoing_bytes -= size
        while left:
            buffer = outgoing[0]
            if len(buffer) <= left:
                taken.append(outgoing.popleft())
                left -= len(buffer)
            else:
                view = memoryview(buffer)
                taken.append(view[:left])
                outgoing[0] = view[left:]
                left = 0
        if len(taken) > 2 and size < len(taken) * _BUFFER_BYTES_MEAN_MIN:
            return [b"".join(taken)]
        return taken

    def discard_outgoing(self) -> None:
        """Drop what was not framed."""
        self.outgoing.clear()
        self.outgoing_bytes = 0

    # ------------------------------------------------------------------ life

    def advance(self, what: StreamInput) -> None:
        """Move to the next state, if the table has one."""
        self.state = TRANSITIONS[self.state].get(what, self.state)
