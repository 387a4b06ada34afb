"""Transactions of writers as storage keeps them: stages, decisions, and what a bucket has applied.

A *stage* is what one writer has staged in one go: rows and deletes of one part of one version of a transaction, by
bucket. It is written once, as a file of frames (`scanner.storage.stage_frames`) that is whole or absent.

A *decision* is a document per transaction name; what is in it is the server's business.

Pure, but for the protocols. This module knows no files and no RocksDB.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from scanner.errors import DataCorrupted

SESSION_BYTES: Final = 16
_APPLIED: Final = struct.Struct(">BQQQ")
_APPLIED_FORMAT: Final = 1
ALL_KNOWN: Final = "~all-known"
"""Beside the names of transactions, and none of them: a bucket is made with a share of this name, and loses it when it
forgets a name that may be published under again. As long as every bucket of a table has it, a name that none of them
knows was never published under. The buckets that older servers made have none."""


class StageKey(NamedTuple):
    """Names one stage of a table."""

    name: str
    """Of the transaction."""
    version: int
    part: int
    attempt: int
    sequence: int
    """Stages of one attempt are applied in this order."""
    staged_ms: int
    """When it was complete, in milliseconds since 1970 UTC; of one that is being written, when it was begun."""
    session: bytes
    """`SESSION_BYTES` octets that the writer drew: a stage that is sent again is recognised by them."""


class StoredStage(NamedTuple):
    """A stage that is durable."""

    key: StageKey
    size: int
    """Octets on the disk."""


class AppliedShare(NamedTuple):
    """What a bucket remembers of the newest version that it has applied of a transaction name."""

    version: int
    start: int
    """Offset of the first change that the version made in this bucket."""
    end: int
    """One past the last."""


class StageSink(Protocol):
    """A stage that is being written. Used by one task at a time."""

    def append(self, frames: Sequence[bytes]) -> None:
        """Write frames behind those before. Blocks on the disk.

        Raises:
            DiskFull, StoreFailed: The disk refused; `discard` it.
        """

    def sync(self) -> None:
        """Have on the disk what was written, so that `finish` is quick. Blocks on the disk.

        Raises:
            DiskFull, StoreFailed: The disk refused; `discard` it.
        """

    def open_source(self) -> StageSource:
        """Read what was written, until it is finished or discarded.

        Raises:
            StoreFailed: The disk refused.
        """

    def finish(self, key: StageKey) -> int:
        """Make it durable, and return its size in octets. Blocks on the disk.

        Args:
            key: That of the sink, but for the time.

        Raises:
            DiskFull, StoreFailed: The disk refused; it is not there.
        """

    def discard(self) -> None:
        """Remove what was written. Without effect on one that was finished. Idempotent."""


class StageSource(Protocol):
    """A stage that is being read. Used by one task at a time."""

    @property
    def size(self) -> int:
        """Its octets."""

    def read(self, offset: int, size: int) -> bytes:
        """Octets of it; fewer at its end.

        Raises:
            StoreFailed: The disk refused.
        """

    def close(self) -> None:
        """Idempotent."""


class TransactionFiles(Protocol):
    """The stages and decisions of one table."""

    @property
    def table_id(self) -> int:
        """Of the table."""

    @property
    def used(self) -> bool:
        """Whether the table has, or once had, stages or decisions; those that are being written count."""

    def stages(self) -> list[StoredStage]:
        """Every durable stage, in no order. What an interrupted writer left is removed, so: once, at the start.

        Raises:
            StoreFailed: The disk refused.
        """

    def open_sink(self, key: StageKey) -> StageSink:
        """Begin to write a stage.

        Raises:
            DiskFull, StoreFailed: The disk refused.
        """

    def open_source(self, key: StageKey) -> StageSource:
        """Read a stage.

        Raises:
            DataCorrupted: It is gone.
            StoreFailed: The disk refused.
        """

    def drop_stages(self, keys: Sequence[StageKey]) -> None:
        """Remove stages; durable when this returns. Those that are not there are no error.

        Raises:
            StoreFailed: The disk refused.
        """

    def decisions(self) -> dict[str, bytes]:
        """The decision of every name that has one.

        Raises:
            DataCorrupted: One is damaged.
            StoreFailed: The disk refused.
        """

    def write_decision(self, name: str, content: bytes) -> None:
        """Write or replace the decision of a name: atomic, durable when this returns.

        Raises:
            DiskFull, StoreFailed: The disk refused. The one before is there, unless only the last sync failed.
        """

    def drop_decision(self, name: str) -> None:
        """Forget the decision of a name; durable when this returns. Idempotent.

        Raises:
            StoreFailed: The disk refused.
        """

    def require_room(self, wanted_bytes: int) -> None:
        """See that the disk has room.

        Args:
            wanted_bytes: For what is to be written.

        Raises:
            DiskFull: It has not.
        """


def encode_applied(applied: AppliedShare) -> bytes:
    """The value that a bucket's `meta` holds, big-endian."""
    return _APPLIED.pack(_APPLIED_FORMAT, *applied)


def decode_applied(name: str, value: bytes | None) -> AppliedShare:
    """Read what `meta` holds.

    Args:
        name: Of the transaction, which the list of names has.
        value: What it has applied; None: there is nothing.

    Raises:
        DataCorrupted: It is no record of this format.
    """
    try:
        form, *parts = _APPLIED.unpack(value or b"")
    except struct.error as error:
        raise DataCorrupted(
            f"what was applied of transaction {name} is missing or damaged: {error}"
        ) from error
    if form != _APPLIED_FORMAT:
        raise DataCorrupted(
            f"what was applied of transaction {name} is of format {form}, not {_APPLIED_FORMAT}"
        )
    return AppliedShare(*parts)
