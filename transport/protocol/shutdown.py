"""How a connection ends: GOAWAY both ways, drain, close and failure (RFC 9113 section 6.8).

Invariants:

1. The first failure counts; after it no stream is open.
2. A drain is in two phases: a GOAWAY that refuses nothing yet, a PING, and once that is acknowledged a
   GOAWAY with the true last stream id. So no call that was on its way is lost: it is taken.
3. Streams that run when a GOAWAY comes, or goes, run to their ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from transport.errors import (
    AnswerCut,
    ConnectionLost,
    ErrorCode,
    StatusCode,
    StreamUnprocessed,
    TransportError,
    error_code_name,
)
from transport.protocol import frames
from transport.protocol.events import ConnectionFailed, GoawayReceived

if TYPE_CHECKING:
    from transport.protocol.counts import FrameCounts
    from transport.protocol.events import EventQueue
    from transport.protocol.outbound import Outbound
    from transport.protocol.stream_table import StreamTable

_GRACE_PING: Final = b"weir-bye"


class Shutdown:
    """The end of one connection.

    Args:
        client: Which end this is.
        outbound: Sends GOAWAYs, PINGs and resets.
        table: Of the streams that end with the connection.
        events: Tell of the peer's GOAWAY and of the failure.
        counts: Of control frames.
    """

    def __init__(
        self,
        *,
        client: bool,
        outbound: Outbound,
        table: StreamTable,
        events: EventQueue,
        counts: FrameCounts,
    ) -> None:
        self._client = client
        self._outbound = outbound
        self._table = table
        self._events = events
        self._counts = counts
        self.failure: TransportError | None = None
        """Why the connection is over; None while it is not."""
        self.peer_goaway = ""
        """What the peer's GOAWAY said, if there was one."""
        self.peer_failed = False
        """The peer's GOAWAY had an error code: it is about to close. One without ends nothing that the peer opens."""
        self.draining = False
        """`drain` was called."""
        self._grace_over = False  # the GOAWAY with the true last stream id is out
        self._refused = False  # at a client: the server takes no new streams

    @property
    def closing(self) -> bool:
        """Whether new streams are refused: the connection failed, a drain's last GOAWAY is out, or no id is left.

        At a client any GOAWAY refuses them. A client's refuses only what a server would open (RFC 9113 section 6.8),
        which is nothing.
        """
        return self.failure is not None or self._refused or self._grace_over or self._table.ids_used_up

    @property
    def drained(self) -> bool:
        """Whether a `drain` is complete: the peer knows which of its calls were taken, and these have ended."""
        return self.draining and self._grace_over and not self._table.open

    def drain(self) -> None:
        """At a server: take no new streams once the peer knows, and let the others finish. Does nothing twice."""
        if self.draining or self.failure is not None:
            return
        self.draining = True
        self._outbound.goaway(frames.STREAM_ID_MAX, ErrorCode.NO_ERROR)
        self._outbound.ping(_GRACE_PING)

    def ping_acknowledged(self, payload: bytes) -> None:
        """The peer has answered a PING; if it was the drain's, the peer knows of the first GOAWAY."""
        if payload == _GRACE_PING and self.draining and not self._grace_over:
            self._grace_over = True
            self._outbound.goaway(self._table.highest_inbound, ErrorCode.NO_ERROR)

    def goaway_received(self, last_stream_id: int, code: int, debug: bytes) -> None:
        """Take the peer's GOAWAY: our newer streams were not processed, the others go on, and so do the peer's own."""
        self._refused = self._client
        self.peer_failed = code != ErrorCode.NO_ERROR
        self._counts.goaways_received += 1
        self._events.add(GoawayReceived(last_stream_id))
        self.peer_goaway = f"{error_code_name(code)} {debug[:200].decode('utf-8', 'replace')}".rstrip()
        if self._client:
            said = f"(it said {self.peer_goaway})"
            for stream in [s for s in self._table.open.values() if s.stream_id > last_stream_id]:
                failure: TransportError = StreamUnprocessed(
                    f"the peer went away before it processed the call {said}"
                )
                if stream.headers_received:  # It has begun to answer: the call may have been done.
                    failure = AnswerCut(
                        StatusCode.INTERNAL, f"the peer went away in the middle of the answer {said}"
                    )
                self._table.close(stream, failure, reset_by_us=True)

    def close(self, message: str = "closed") -> None:
        """End the connection at once; every stream fails. Resets of those that run and a GOAWAY are left to send."""
        if self.failure is None:
            self._outbound.cut_short()
            self._fail(ConnectionLost(message), ErrorCode.NO_ERROR)

    def fail(self, error: TransportError, code: ErrorCode | None) -> None:
        """End the connection: streams fail with ConnectionLost, and only a GOAWAY with `code` is left to send."""
        if self.failure is None:
            self._outbound.queue.discard()
            self._fail(error, code)

    def lost(self, error: TransportError) -> None:
        """The socket is gone: every stream fails, and nothing is left to send."""
        if self.failure is None:
            if self.peer_goaway:
                error = ConnectionLost(f"{error} (the peer had said {self.peer_goaway})")
            self._fail(error, None)
        self._outbound.queue.discard()

    def _fail(self, error: TransportError, code: ErrorCode | None) -> None:
        self.failure = error
        if code is not None:
            self._outbound.goaway(self._table.highest_inbound, code, str(error).encode()[:200])
        for stream in list(self._table.open.values()):
            lost = ConnectionLost(str(error))
            lost.__cause__ = error
            self._table.close(stream, lost, reset_by_us=False)
        self._events.add(ConnectionFailed(error))
