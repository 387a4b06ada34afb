"""A server's counters since its start: what has ended is kept here, what runs is added on demand.

Invariant: every counter of `ServerTotals` only grows, however streams and connections come and go.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from transport.errors import ErrorCode
from transport.protocol.abuse import Cost
from transport.protocol.stalls import StallReason, StallTimes
from transport.statistics import ServerTotals

if TYPE_CHECKING:
    from transport.driver import Driver
    from transport.stream import Stream

_TURNED_AWAY: Final = "connections"
REFUSAL_KINDS: Final = (
    *(each.name.lower() for each in (*Cost, *ErrorCode) if each is not ErrorCode.NO_ERROR),
    _TURNED_AWAY,
)
"""What `ServerTotals.refusals` counts."""


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
        self, drivers: Iterable[Driver], streams: Iterable[Stream], *, turned_away: int
    ) -> ServerTotals:
        """What has ended, and these that run."""
        so_far = copy.copy(self)
        so_far._refusals = self._refusals.copy()
        if turned_away:
            so_far._refusals[_TURNED_AWAY] = turned_away
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
