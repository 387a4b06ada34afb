"""What a stream and a server report of themselves: frozen records, units in their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from transport.protocol.stalls import StallReason, StallTimes


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamStatistics:
    """One end of a call, now."""

    connection_id: int
    """Number of the connection at its server, from 1; 0 at a client."""
    stream_id: int
    """Number of the HTTP/2 stream on its connection."""
    peer: str
    """The other end, HOST:PORT."""
    path: str
    """/package.Service/Method; empty at a client."""
    age_s: float
    """Since it was opened, or its whole life if it is over."""
    messages_sent: int
    messages_received: int
    bytes_sent: int
    """Octets of messages queued, prefixes excluded."""
    bytes_received: int
    """Octets of messages taken."""
    unsent_bytes: int
    """Octets queued that were not handed to the socket."""
    buffered_bytes: int
    """Octets received and not taken yet."""
    credit_limit: int | None
    """Octets of counted messages that the consumer allows, in all; None: no limit but the windows."""
    credit_sent: int
    """Octets of counted messages sent."""
    send_window: int
    """Octets that the peer lets us send on this stream now; may be negative."""
    connection_send_window: int
    """Octets that the peer lets us send on its connection now."""
    receive_window: int
    """Octets that we let the peer send on this stream now."""
    stall: StallReason
    """What holds the stream up now."""
    stalls: StallTimes
    """Where its time went; adds up to `age_s`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerTotals:
    """A server since its start: what runs and what has ended."""

    connections: int = 0
    streams: int = 0
    """Calls that were answered or are being answered."""
    messages_sent: int = 0
    messages_received: int = 0
    bytes_sent: int = 0
    """Octets to the sockets."""
    bytes_received: int = 0
    """Octets from them."""
    stalls: StallTimes = field(default_factory=StallTimes)
    """Of all streams, added up."""
    goaways_sent: int = 0
    goaways_received: int = 0
    pings_sent: int = 0
    pings_received: int = 0
    refusals: Mapping[str, int] = field(default_factory=dict)
    """Connections that were ended for breaking a rule or a budget, by kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerStatistics:
    """A server, now."""

    connections: int
    streams: int
    """Calls that are running."""
    unsent_bytes: int
    """Octets of messages that wait for the peers' windows and sockets."""
    buffered_bytes: int
    """Octets received that no handler has taken."""
    bytes_received: int
    """Octets from the sockets of present connections."""
    bytes_sent: int
    """Octets to them."""
    credit_bytes: int
    """Octets that consumers allow beyond what was sent, over the streams with a limit."""
    stalled: Mapping[str, int]
    """Streams by what holds them up now (the labels of `StallReason`), RUNNING included."""
    totals: ServerTotals
    """Counters since the start of the server."""
