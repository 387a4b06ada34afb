"""Every limit of the server, in one frozen record that is made once and passed down.

Relations between limits are checked where it is made, so a server with limits that contradict each
other does not start.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, kw_only=True, slots=True)
class ScannerConfig:
    """Limits and intervals of one server.

    Raises:
        ValueError: A limit is out of its range, or two of them contradict each other; the message
            names them.
    """

    block_rows_max: int = 8192
    """Rows read and decoded in one go, above 0. It bounds the time for which one scan holds the
    event loop (a few milliseconds) and, with `block_bytes_max`, the memory of a scan."""

    block_bytes_max: int = MIB
    """Stored bytes read and decoded in one go, above 0; one row larger than that is still read."""

    batch_bytes: int = MIB
    """Arrow payload of one batch of a push scan, in bytes, where the client does not say."""

    batch_bytes_max: int = 8 * MIB
    """The largest payload a client may ask for; more is clamped. One row may be larger."""

    batch_rows_max: int = 65_536
    """Rows of one batch, also where the client does not say; more is clamped."""

    heartbeat_interval_s: float = 5.0
    """The longest silence on a push scan, 0.001 to 3600 s, as far as the peer's window lets anything out."""

    scans_max: int = 1024
    """Push scans open at once on this server; the next is refused with TOO_MANY_SCANS."""

    filter_predicates_max: int = 64
    """Predicates in one filter; more is an ARGUMENT_INVALID."""

    filter_literals_max: int = 10_000
    """Literals in one filter; more is an ARGUMENT_INVALID."""

    session_ttl_s: float = 600.0
    """Idle time after which a session is reclaimed, above 0."""

    session_sweep_interval_s: float = 30.0
    """How often idle sessions are looked for; a session lives at most one sweep longer than its TTL."""

    sessions_per_bucket_max: int = 8
    """Sessions open at once on one bucket; the next is refused with TOO_MANY_SCANS."""

    sessions_max: int = 200
    """Sessions open at once on this server; the next is refused with TOO_MANY_SCANS."""

    session_page_bytes_max: int = 10_000_000
    """The largest page of a session, in bytes of Arrow payload; more is clamped. One row may be larger.
    A session keeps its last page for a repetition, so sessions hold up to sessions_max times this."""

    session_page_time_max_s: float = 10.0
    """Time after which a page is sent as it is, so that a filter that drops everything does not outlast the
    patience of clients and proxies; it may have no rows and still not be the last."""

    sessions_expired_max: int = 10_000
    """Ids of reclaimed sessions that are remembered, to tell "expired" from "unknown"; the oldest go first."""

    write_requests_in_flight_max: int = 8
    """Requests of one Write stream that may be decoded and wait for their response; one more is being decoded."""

    write_slice_rows_max: int = 2048
    """Rows of a write encoded in one go; it bounds the time for which one write holds the event loop."""

    write_queue_requests_max: int = 256
    """Writes that may wait for the commit of one bucket; further ones wait to get in, give or take one a stream."""

    commit_rows_max: int = 65_536
    """Rows after which no further queued write joins a group commit; a single larger write is one commit."""

    write_rows_max: int = 1_000_000
    """Rows in one WriteRequest; more is an ARGUMENT_INVALID."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) <= 0:
                raise ValueError(f"{field.name} must be above 0, but is {getattr(self, field.name)}")
        if not 0.001 <= self.heartbeat_interval_s <= 3600:
            raise ValueError(
                f"heartbeat_interval_s must be from 0.001 to 3600, but is {self.heartbeat_interval_s}"
            )
        # What the client gets by default has to be something that it may ask for.
        self._check_order("batch_bytes", "batch_bytes_max")
        # A session takes a slot of its bucket and one of the server: the first cap could never be reached.
        self._check_order("sessions_per_bucket_max", "sessions_max")
        # A session found idle a whole TTL late would make the TTL meaningless.
        self._check_order("session_sweep_interval_s", "session_ttl_s")
        # One block has to fit into what the pages and batches are cut from.
        self._check_order("block_rows_max", "batch_rows_max")

    def _check_order(self, smaller: str, larger: str) -> None:
        if getattr(self, smaller) > getattr(self, larger):
            raise ValueError(
                f"{smaller} ({getattr(self, smaller)}) must be no more than {larger} ({getattr(self, larger)})"
            )
