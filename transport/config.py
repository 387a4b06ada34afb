"""Every bound of the transport, in one frozen record, with the relations between them checked."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral, Real

KIB = 1024
MIB = 1024 * KIB
WINDOW_BYTES_MAX = 2**31 - 1
"""Largest flow-control window, RFC 9113 section 6.9.1."""
FRAME_BYTES_MIN, FRAME_BYTES_MAX = 16 * KIB, 2**24 - 1
"""Range of SETTINGS_MAX_FRAME_SIZE, RFC 9113 section 6.5.2."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransportConfig:
    """Limits of one end of a connection. Sizes are bytes, times are seconds.

    Raises:
        ValueError: A field is out of its range, or two fields contradict each other.
    """

    stream_window_bytes: int = 8 * MIB
    """Receive window of a stream, 1..2^31-1; what one stream can make us hold. The peer waits at the limit."""
    connection_window_bytes: int = 64 * MIB
    """Receive window of the connection, 65 535..2^31-1; credited on receipt, so it bounds bytes in flight."""
    inbound_frame_bytes_max: int = 1 * MIB + 16 * KIB
    """SETTINGS_MAX_FRAME_SIZE that we advertise, 16 KiB..2^24-1. A longer frame ends the connection."""
    control_frame_bytes_max: int = 16 * KIB
    """Longest frame that we take, but for DATA and header fields, 1 KiB..16 MiB. A longer one ends the connection."""
    outbound_frame_bytes_max: int = 1 * MIB + 16 * KIB
    """Longest DATA frame that we send, whatever the peer would take: that of a stream which sends alone. A message of
    1 MiB and what stands in front of it are one frame: a second one of some octets costs either end as much."""
    shared_frame_bytes_max: int = 256 * KIB
    """Longest DATA frame while other streams wait to send as well. Fairness between streams is by this much."""
    message_bytes_max: int = 64 * MIB
    """Longest gRPC message that we take. A longer one ends its stream with RESOURCE_EXHAUSTED."""
    send_buffer_bytes: int = 1 * MIB
    """Bytes of a stream that may wait to be written; `send` waits above it."""
    write_bytes_max: int = 1 * MIB
    """Bytes handed to the socket in one write, give or take one frame."""
    near_send_buffer_bytes: int = 384 * KIB
    """SO_SNDBUF towards a peer that is nearer than half a millisecond; 0: the kernel's own. Octets that wait there
    leave the processor's cache, and wait ahead of every reset and window update. Further peers keep the kernel's
    autotuning."""
    receive_buffer_bytes: int = 256 * KIB
    """Bytes taken from the socket in one read, at most, beside what goes straight into a message."""
    receive_memory_bytes_max: int = 256 * MIB
    """At a server: what the messages that a connection has sent, and no handler has taken, may take of memory, parts of
    messages included. One more ends its stream with UNAVAILABLE: sent again later, it may find room."""
    connections_max: int = 20_000
    """At a server: connections at once, handshakes included. One more gets GOAWAY (ENHANCE_YOUR_CALM) and is closed."""
    streams_max: int = 1_000
    """Concurrent streams that a peer may open; one more is refused with REFUSED_STREAM."""
    header_list_bytes_max: int = 16 * KIB
    """SETTINGS_MAX_HEADER_LIST_SIZE; a longer list fails its call, one of five times as much the connection, in
    one frame or in many."""
    control_backlog_bytes_max: int = 256 * KIB
    """Replies to control frames that may wait to be written; above it the connection ends (ENHANCE_YOUR_CALM)."""
    handshake_timeout_s: float = 10.0
    """From the connection's start to the peer's SETTINGS, its SETTINGS acknowledgement and a complete header block."""
    ping_interval_s: float = 20.0
    """Silence of the peer after which a PING asks whether it is alive. 0: never."""
    ping_timeout_s: float = 10.0
    """Silence after that PING until the peer is given up as dead; once more from then on, as long as what was written
    before the PING is on its way and the peer's system acknowledges it (Linux)."""
    answer_timeout_s: float = 60.0
    """At a client of `scanner`: from the last octet of a call until its server counts as gone, and its connection with
    it, though a proxy answers PINGs. A call may last longer: after half of that time the server is asked whether it is
    there (`grpc.health.v1`), and answers. 0: never."""
    first_message_timeout_s: float = 60.0
    """At a server: from the opening of a call to its first octet of a message, or its end. Later is answered by
    DEADLINE_EXCEEDED. 0: never."""
    idle_timeout_s: float = 3_600.0
    """At a server: a connection without calls for this long is drained and closed, which its client can tell from a
    failure; one that has not gone `handshake_timeout_s` later is cut off. 0: never."""
    send_timeout_s: float = 60.0
    """A write of which the socket takes nothing for this long ends the connection."""
    drain_timeout_s: float = 30.0
    """Time that running streams have to finish when the server drains."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, is_count = getattr(self, field.name), isinstance(field.default, int)
            if isinstance(value, bool) or not isinstance(value, Integral if is_count else Real):
                raise ValueError(
                    f"{field.name} must be a {'whole ' if is_count else ''}number, not {value!r}"
                )
        self._check("stream_window_bytes", 1, WINDOW_BYTES_MAX)
        self._check("connection_window_bytes", 65_535, WINDOW_BYTES_MAX)
        self._check("inbound_frame_bytes_max", FRAME_BYTES_MIN, FRAME_BYTES_MAX)
        self._check("control_frame_bytes_max", KIB, FRAME_BYTES_MAX)
        self._check("outbound_frame_bytes_max", 1, FRAME_BYTES_MAX)
        self._check("message_bytes_max", 1, 2**32 - 1)
        self._check("shared_frame_bytes_max", 1, FRAME_BYTES_MAX)
        self._check("send_buffer_bytes", 1, WINDOW_BYTES_MAX)
        self._check("near_send_buffer_bytes", 0, WINDOW_BYTES_MAX)
        self._check("write_bytes_max", 1, WINDOW_BYTES_MAX)
        self._check("receive_buffer_bytes", KIB, WINDOW_BYTES_MAX)
        self._check("receive_memory_bytes_max", 1, 2**63 - 1)
        self._check("connections_max", 1, 2**31 - 1)
        self._check("streams_max", 1, 2**31 - 1)
        self._check("header_list_bytes_max", KIB, MIB)
        self._check("control_backlog_bytes_max", KIB, WINDOW_BYTES_MAX)
        if self.receive_buffer_bytes <= self.control_frame_bytes_max + 9:
            # A control frame is parsed whole, out of the receive buffer.
            raise ValueError("receive_buffer_bytes must exceed control_frame_bytes_max by a frame header")
        if self.control_frame_bytes_max > self.inbound_frame_bytes_max:
            raise ValueError("control_frame_bytes_max must not exceed inbound_frame_bytes_max")
        if self.receive_memory_bytes_max < self.message_bytes_max:
            raise ValueError("receive_memory_bytes_max must hold one message of message_bytes_max")
        for name in ("handshake_timeout_s", "ping_timeout_s", "send_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive")
        for name in (
            "answer_timeout_s",
            "ping_interval_s",
            "drain_timeout_s",
            "idle_timeout_s",
            "first_message_timeout_s",
        ):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative")

    def _check(self, name: str, low: int, high: int) -> None:
        value = getattr(self, name)
        if not low <= value <= high:
            raise ValueError(f"{name} must be {low}..{high}, not {value}")
