"""Counters of one connection's control frames, for its statistics. Only ever grow."""

from __future__ import annotations


class FrameCounts:
    """Frames sent and received since the connection began."""

    __slots__ = ("goaways_received", "goaways_sent", "pings_received", "pings_sent")

    def __init__(self) -> None:
        self.goaways_received = 0
        self.goaways_sent = 0
        self.pings_received = 0
        """Acknowledgements of ours included."""
        self.pings_sent = 0
        """Ours; not the acknowledgements of the peer's."""
