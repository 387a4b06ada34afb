"""An open scan as the stream sees it that it is pushed into.

The stream decides when: it steps the scan while there is credit, takes a message when rows are pending, and asks for
the token behind whatever it sends. The scan decides what: it holds the rows, makes their messages and makes the
tokens. `scanner.server.scan.kv_scan` is the one over the rows of a bucket.

Every call returns within a few milliseconds, and none of them waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol

from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.tables.open_scan import OpenScan, SourceT

if TYPE_CHECKING:
    from scanner.server.scan.tokens import TokenMint
    from scanner.server.tables.bucket import ServedBucket
    from scanner.server.tables.catalog import ServedTable
    from scanner.sources.interface import EndReason
    from scanner.wire.batches import Parts
    from scanner.wire.queries import ScanQuery


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchLimits:
    """What a batch may be at most."""

    payload_bytes_max: int
    """Arrow payload, above 0; a single row may be larger."""
    rows_max: int
    """Above 0."""


class PushedScan(Protocol):
    """One scan of one bucket."""

    @property
    def scan(self) -> OpenScan[Any]:
        """What its bucket knows of it: it is parked, reopened, ended and closed there. The same one all its life."""

    @property
    def rows(self) -> int:
        """Rows that the whole scan has delivered, those before a resume included."""

    @property
    def pending(self) -> bool:
        """Whether `take` has rows to make a message of."""

    @property
    def waiting(self) -> bool:
        """Whether nothing is left to read until the next commit; never so for a scan of a state."""

    @property
    def endless(self) -> bool:
        """Whether it goes on until somebody ends it: a tail without a stop. A snapshot before one has an end."""

    @property
    def steps_take_long(self) -> bool:
        """Whether a step reads and decodes rows, which takes milliseconds, so that they are taken in turns."""

    @property
    def end(self) -> EndReason | None:
        """Why nothing more will come; None as long as something may, and while it is parked."""

    def on_commit(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called when a commit may have ended `waiting`; it does not wait.

        Returns:
            Ends that; idempotent.
        """

    def notice(self) -> pb.ScanResponse | None:
        """A message that is due before anything else, and costs no credit; once. None: none is."""

    def step(self, bytes_max: int) -> None:
        """Read and decode some more; what passes is added to what can be taken.

        Args:
            bytes_max: Stored bytes to read at most, above 0; one row may be larger.

        Raises:
            ScannerError: Storage failed.
        """

    def take(self, message_bytes_max: int, limits: BatchLimits) -> Parts:
        """Make the next message of the rows that are pending, with the token that continues the scan after it.

        Args:
            message_bytes_max: Length of the message; one of a single row may be longer.
            limits: Of its batch.
        """

    def whole_bytes(self, limits: BatchLimits) -> int:
        """Length of the next message, about, if its rows are encoded already; 0: it may as well be cut anywhere."""

    def token(self) -> bytes:
        """Continues the scan behind what was taken; where nothing is left to take, behind what was read."""

    def started(self) -> pb.ScanStarted:
        """The first message, with the token in front of the first row; the stream adds its heartbeat interval."""

    def heartbeat(self) -> pb.Heartbeat:
        """How far the scan is, with its token; the stream adds its state."""

    def ended(self, reason: EndReason) -> pb.ScanEnd:
        """The last message."""


@dataclass(slots=True)
class SourceScan(Generic[SourceT]):
    """What the scans that read one source all their life have in common. Made by their openers."""

    scan: OpenScan[SourceT]
    """To be closed by the one that opened it."""
    bucket: ServedBucket
    table: ServedTable
    query: ScanQuery
    """With its columns."""
    mint: TokenMint = field(repr=False)
    """Makes its tokens."""
    history: bytes
    """The history of the bucket that its state or its position is of."""

    @property
    def rows(self) -> int:
        """See `PushedScan`."""
        return self.scan.source.rows

    @property
    def pending(self) -> bool:
        """See `PushedScan`."""
        return self.scan.source.pending_bytes > 0

    @property
    def end(self) -> EndReason | None:
        """See `PushedScan`."""
        return None if self.scan.parked else self.scan.source.end

    def scanned(self) -> pb.ScannedBucket:
        """Which bucket it reads."""
        return pb.ScannedBucket(table_id=self.table.table_id, bucket=self.query.bucket)
