"""What a scan did, as frozen records. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from scanner.client.html import html_table
from scanner.data.keys import ALL_KEYS, KeyRange
from scanner.proto.weir.v1 import scanner_pb2 as pb
from transport import StallTimes

if TYPE_CHECKING:
    from scanner.client.scan.resume_position import BucketPosition

_PREFIX: Final = "READ_SOURCE_"
_READ_SOURCES: Final = {
    number: name.removeprefix(_PREFIX).lower() for name, number in pb.ReadSource.items() if number
}


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketStatistics:
    """One bucket's part of a table scan."""

    bucket: int
    log_offset: int | None
    """The scan shows the bucket as of this offset; None until the server has said it."""
    rows: int
    """Rows handed to the consumer."""
    digest: int | None
    """CRC-32C over the stored rows scanned, in key order; None unless the scan of the bucket came to its end."""
    reason: str | None
    """Why it ended: `EXHAUSTED`, `LIMIT`, `STOP_OFFSET` or `DRAINED`; None if it has not ended."""
    server_stalls: StallTimes | None = None
    """Where the server's time on the bucket's calls went, as it told at their end; None if it has told nothing."""
    resumes: int = 0
    """How often the scan of the bucket was cut and went on."""
    states: int = 0
    """States that the rows came from, as far as they have arrived: 1, or more where each page has its own (cursor)."""
    history: bytes = b""
    """The history of the bucket that `log_offset` is of: it tells a restored copy's states from these."""
    stored_bytes: int | None = None
    """Length of the rows that the digest covers."""
    key_range: KeyRange = ALL_KEYS
    """What was scanned: the key range asked for, less what cannot match the conditions on the key."""
    read_sources: tuple[str, ...] = ()
    """What the server read the state from, by what it said of each call, and behind each park, each once: `now` (the
    stored rows), `snapshot` (those of an open snapshot), `as_of` (with the changes since undone), `image`. The rows
    are the same. Pages name an image alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanStatistics:
    """A table scan, until now or as a whole."""

    rows: int
    """Rows handed to the consumer."""
    digest: int | None
    """Of the digests of all buckets scanned, in their order; None unless each of them came to its end."""
    buckets: tuple[BucketStatistics, ...]
    """Those that were scanned, ascending by bucket."""
    buckets_skipped: tuple[int, ...] = ()
    """Those that were not, since no key that matches the conditions belongs to them; ascending."""
    bytes_received: int
    """Message bytes of the batches or pages that arrived."""
    requests: int
    """Calls made to the server: one per bucket by push, one per page by pull, releases and repetitions included."""
    credit_messages: int
    """Grants of credit sent along on the calls (push)."""
    first_batch_s: float | None
    """From the start of the scan to the first rows that arrived, seconds; None if none did."""
    overrun_bytes: int
    """The furthest that a server went past the credit of its bucket, bytes."""
    resumes: int = 0
    """How often scans of buckets were cut and went on."""
    held_bytes_max: int
    """The most message bytes that waited for the consumer or were in its hands at once."""
    stalls: StallTimes = field(default_factory=StallTimes)
    """Where the scan's time went, as seen from here: CONSUMER while rows waited to be asked for, PEER while they were
    waited for (the server's account tells why), RUNNING otherwise. Adds up to the scan's time."""
    server_stalls: StallTimes = field(default_factory=StallTimes)
    """Where the server's time went, added up over the calls that have ended."""

    def _repr_html_(self) -> str:
        """What a notebook shows: the sums, and a line for each bucket."""
        digest = "no digest yet" if self.digest is None else f"digest {self.digest:08x}"
        resumes = "1 resume" if self.resumes == 1 else f"{self.resumes} resumes"
        caption = f"{self.rows:,} rows, {self.bytes_received:,} bytes, {self.requests:,} requests, {resumes}, {digest}"
        rows = [
            (each.bucket, each.rows, each.log_offset, _hexadecimal(each.digest), each.reason or "not ended")
            for each in self.buckets
        ]
        return html_table(caption, ("bucket", "rows", "log offset", "digest", "end"), rows)


def _hexadecimal(digest: int | None) -> str | None:
    return None if digest is None else f"{digest:08x}"


@dataclass(kw_only=True, slots=True)
class BucketProgress:
    """The counters of one bucket's scan while it runs; written by its receiver and by the hand-out."""

    bucket: int
    key_range: KeyRange = ALL_KEYS
    log_offset: int | None = None
    history: bytes = b""
    begun: BucketPosition | None = None
    """Where the bucket stands as long as nothing of it was handed out; None: it begins when the scan goes on."""
    rows: int = 0
    digest: int | None = None
    stored_bytes: int | None = None
    reason: str | None = None
    bytes_received: int = 0
    requests: int = 0
    credit_messages: int = 0
    overrun_bytes: int = 0
    resumes: int = 0
    states: int = 0
    schema_outdated: bool = False
    server_stalls: StallTimes | None = None
    read_sources: tuple[str, ...] = ()

    def add_read_source(self, read_source: int) -> None:
        """Take what the server says that a call is read from; nothing, if it does not say, or it has no name here."""
        name = _READ_SOURCES.get(read_source)
        if name is not None and name not in self.read_sources:
            self.read_sources += (name,)

    def add_server_stalls(self, stalls: StallTimes) -> None:
        """Take the server's account of a call that has ended."""
        self.server_stalls = stalls if self.server_stalls is None else self.server_stalls + stalls

    def freeze(self) -> BucketStatistics:
        """What is published of it."""
        return BucketStatistics(
            bucket=self.bucket,
            log_offset=self.log_offset,
            history=self.history,
            rows=self.rows,
            digest=self.digest,
            stored_bytes=self.stored_bytes,
            key_range=self.key_range,
            reason=self.reason,
            server_stalls=self.server_stalls,
            resumes=self.resumes,
            read_sources=self.read_sources,
            states=max(self.states, int(self.log_offset is not None)),
        )
