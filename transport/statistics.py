"""What can be asked of a running stream and server, as frozen records, and the tally of what has ended.

A tally and what runs add up: every counter of `ServerTotals` only grows, however streams and connections come and go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from transport.protocol.stalls import StallReason, StallTimes

if TYPE_CHECKING:
    from transport.driver import Driver
    from transport.stream import Stream


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
    """Octets received that nobody has taken."""
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


def count_stalled(streams: Iterable[Stream]) -> dict[str, int]:
    """How many streams each reason holds up now, by label."""
    counts = Counter(stream.stall for stream in streams)
    return {reason.label: counts[reason] for reason in StallReason}


class Tally:
    """Counts what has ended, and adds what runs."""

    def __init__(self) -> None:
        self._connections = 0
        self._streams = 0
        self._messages_sent = self._messages_received = 0
        self._bytes_sent = self._bytes_received = 0
        self._goaways_sent = self._goaways_received = 0
        self._pings_sent = self._pings_received = 0
        self._stalls = StallTimes()
        self._refusals: Counter[str] = Counter()

    def stream_ended(self, stream: Stream) -> None:
        """Take the counters of a stream that is over; once."""
        self._streams += 1
        self._messages_sent += stream.messages_sent
        self._messages_received += stream.messages_received
        self._stalls += stream.stalls()

    def connection_ended(self, driver: Driver) -> None:
        """Take the counters of a connection that is over; once."""
        counts = driver.core.counts
        self._connections += 1
        self._bytes_sent += driver.bytes_sent
        self._bytes_received += driver.bytes_received
        self._goaways_sent += counts.goaways_sent
        self._goaways_received += counts.goaways_received
        self._pings_sent += counts.pings_sent
        self._pings_received += counts.pings_received
        if kind := driver.core.refusal:
            self._refusals[kind] += 1

    def totals(
        self, drivers: Iterable[Driver], streams: Iterable[Stream], *, turned_away: int = 0
    ) -> ServerTotals:
        """What has ended, and these that run."""
        so_far = Tally()
        so_far.__dict__.update(self.__dict__)
        so_far._refusals = self._refusals.copy()
        if turned_away:
            so_far._refusals["connections"] = turned_away
        for stream in streams:
            so_far.stream_ended(stream)
        for driver in drivers:
            so_far.connection_ended(driver)
        return ServerTotals(
            connections=so_far._connections,
            streams=so_far._streams,
            messages_sent=so_far._messages_sent,
            messages_received=so_far._messages_received,
            bytes_sent=so_far._bytes_sent,
            bytes_received=so_far._bytes_received,
            stalls=so_far._stalls,
            goaways_sent=so_far._goaways_sent,
            goaways_received=so_far._goaways_received,
            pings_sent=so_far._pings_sent,
            pings_received=so_far._pings_received,
            refusals=dict(so_far._refusals),
        )
