"""An open scan as the stream sees it that it is pushed into.

The stream decides when: it steps the scan while there is credit, takes a message when rows are pending, and asks for
the token behind whatever it sends. The scan decides what: it holds the rows, makes their messages and makes the
tokens. `scanner.server.scan.kv_scan` is the one over the rows of a bucket.

Every call returns within a few milliseconds, and none of them waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from scanner.proto.weir.v1 import scanner_pb2 as pb
    from scanner.server.tables.open_scan import OpenScan
    from scanner.sources.interface import EndReason
    from scanner.wire.batches import Parts


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
