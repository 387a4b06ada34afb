"""What a connection tells its shell, and the queue of it.

An event names the stream or the connection that changed; everything else is read there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transport.errors import TransportError
    from transport.protocol.calls import RequestHead
    from transport.protocol.stream import StreamCore


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """A peer opened a call; answer it on `stream`."""

    stream: StreamCore
    head: RequestHead


@dataclass(frozen=True, slots=True)
class StreamReadable:
    """A message, the end or the failure of a stream can be taken; before, none could."""

    stream: StreamCore


@dataclass(frozen=True, slots=True)
class StreamWritable:
    """A stream's send buffer has room again, or nothing will ever be sent on it."""

    stream: StreamCore


@dataclass(frozen=True, slots=True)
class StreamClosed:
    """A stream is over in both directions; `stream.failure` is None if both ends were sent."""

    stream: StreamCore


@dataclass(frozen=True, slots=True)
class CallGivenUp:
    """A server has ended a call: it took too long to begin, or a message was refused. Its handler is to stop."""

    stream: StreamCore


@dataclass(frozen=True, slots=True)
class ResetLate:
    """At a server: the peer has reset a call that we had ended, so it may not have taken the answer."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class StreamsAvailable:
    """The peer's limit on our concurrent streams is known, or has room again."""


@dataclass(frozen=True, slots=True)
class GoawayReceived:
    """The peer takes no new streams; those with a higher id than `last_stream_id` were not processed."""

    last_stream_id: int


@dataclass(frozen=True, slots=True)
class ConnectionFailed:
    """The connection is over because of `error`. Send what is left to send (a GOAWAY), then close the socket."""

    error: TransportError


Event = (
    RequestReceived
    | StreamReadable
    | StreamWritable
    | StreamClosed
    | CallGivenUp
    | ResetLate
    | StreamsAvailable
    | GoawayReceived
    | ConnectionFailed
)


class EventQueue:
    """What has happened on one connection since its shell last asked."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[Event] = []

    def add(self, event: Event) -> None:
        """Queue an event."""
        self._waiting.append(event)

    def readable(self, stream: StreamCore) -> None:
        """A message, the end or a failure can be taken: one event, if a task waits for it."""
        if stream.expecting:
            stream.expecting = False
            self._waiting.append(StreamReadable(stream))

    def writable(self, stream: StreamCore) -> None:
        """The send buffer has room, or never will have: one event, if a task waits for it."""
        if stream.sender_waiting:
            stream.sender_waiting = False
            self._waiting.append(StreamWritable(stream))

    def take(self) -> list[Event]:
        """What has happened, in order; handed out once."""
        waiting, self._waiting = self._waiting, []
        return waiting
