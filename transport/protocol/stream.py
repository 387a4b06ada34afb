"""One stream's two queues: messages received and not consumed, octets to send and not framed.

The stream counts; `connection` decides what goes on the wire. Nothing here waits: a shell that finds `next_message`
empty calls `expect_message` and is told by an event.

Invariants (numbers as in `flow_control`): F2, every exit discards what was not consumed, and the connection's credit
was given at receipt (F5), so no exit can lose it. F4, the stream's credit follows consumption: a message counts when it
is taken, and the parts of one that is still arriving count while somebody waits for it (else a message longer than the
window could never arrive).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from transport.errors import CallFailed, LocalProtocolError, TransportError
from transport.protocol.flow_control import ReceiveWindow, SendWindow
from transport.protocol.messages import PREFIX_BYTES, MessageAssembler, message_prefix
from transport.protocol.state import SENDABLE, TRANSITIONS, StreamInput, StreamState

if TYPE_CHECKING:
    from transport.protocol.calls import Headers

Buffer = bytes | bytearray | memoryview
_JOIN_BYTES_MAX: Final = 16 * 1024
"""Messages up to this size are joined with their prefix: a copy costs less than an entry of a vectored write."""


class EndOfMessages:
    """Type of `END`."""


class NoMessage:
    """Type of `NOTHING`."""


END: Final = EndOfMessages()
"""The peer has ended its messages."""
NOTHING: Final = NoMessage()
"""No message yet."""


class StreamCore:
    """The state of one stream of a `ConnectionCore`, which alone makes them."""

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
        "receive_window",
        "remote_ended",
        "scheduled",
        "send_window",
        "sender_waiting",
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
        allocate_bytes_min: int,
    ) -> None:
        self.stream_id = stream_id
        self.state = StreamState.OPEN
        self.owner: Any = None
        """The shell's own object for this stream."""
        # Receiving.
        self.inbox: deque[Any] = deque()
        self.assembler = MessageAssembler(message_bytes_max, allocate, allocate_bytes_min, self.inbox)
        self.receive_window = ReceiveWindow(receive_window_bytes)
        self.expecting = False
        """Somebody waits for a message: it is told of one, and parts of one count as consumed when they arrive."""
        self.headers_received = False
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
        """Somebody waits for room in the send buffer, and is told of it."""
        self.headers_sent = False
        self.end_requested = False
        """Our end follows the octets of `outgoing`."""
        self.trailers_to_send: Headers | None = None
        # The end.
        self.failure: TransportError | None = None
        """Why the stream ended before its time; then nothing more is sent, and it is told after the last message."""
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
        self.assembler.feed_untrusted(data)

    def received_into_target(self, size: int) -> None:
        """Count payload octets that went straight into the message being assembled."""
        self.body_bytes += size
        self.assembler.filled(size)

    def next_message(self) -> Any | EndOfMessages | NoMessage:
        """The oldest message; `END` after the last one; `NOTHING` if none is complete.

        Taking a message consumes it: `connection.credit` announces what is due.

        Raises:
            TransportError: The stream failed, and every message before the failure was taken. Again on every call.
        """
        if self.inbox:
            message = self.inbox.popleft()
            self._consumed_at += PREFIX_BYTES + len(message)
            return message
        if self.remote_ended:
            if self.status is not None:
                raise self.status
            return END
        if self.failure is not None:
            raise self.failure
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
        self.inbox.clear()

    # ------------------------------------------------------------------ sending

    def queue_message(self, parts: Sequence[Buffer]) -> int:
        """Queue one message, made of `parts`; nothing is copied above 16 KiB.

        Returns:
            Octets of the message, without its prefix.

        Raises:
            LocalProtocolError: Our end was sent before, or the stream is closed; nothing has changed.
            TransportError: The stream has failed.
        """
        self.check_sendable()
        size = 0
        for part in parts:
            size += len(part)
        prefix = message_prefix(size)
        if size <= _JOIN_BYTES_MAX:
            self.outgoing.append(b"".join((prefix, *parts)))
        else:
            self.outgoing.append(prefix)
            self.outgoing.extend(memoryview(part).cast("B") for part in parts if len(part))
        self.outgoing_bytes += PREFIX_BYTES + size
        return size

    def check_sendable(self) -> None:
        """Raise unless messages can be sent; see `queue_message`."""
        if self.failure is not None:
            raise self.failure
        if self.end_requested or self.state not in SENDABLE:
            raise LocalProtocolError("the end of this stream was sent before", stream_id=self.stream_id)

    def take_outgoing(self, size: int) -> list[Buffer]:
        """The next `size` octets to send, as the buffers that hold them; `size` must be there."""
        taken: list[Buffer] = []
        outgoing = self.outgoing
        self.outgoing_bytes -= size
        while size:
            chunk = outgoing[0]
            if len(chunk) <= size:
                taken.append(outgoing.popleft())
                size -= len(chunk)
            else:
                view = memoryview(chunk)
                taken.append(view[:size])
                outgoing[0] = view[size:]
                size = 0
        return taken

    def discard_outgoing(self) -> None:
        """Drop what was not framed."""
        self.outgoing.clear()
        self.outgoing_bytes = 0

    # ------------------------------------------------------------------ life

    def advance(self, what: StreamInput) -> bool:
        """Move to the next state; False, and no change, if the table has none."""
        following = TRANSITIONS[self.state].get(what)
        if following is None:
            return False
        self.state = following
        return True
