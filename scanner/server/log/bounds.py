"""Where a scan of a changelog begins and where it ends: bookmarks, which are ends of entries.

Invariants:

1. A scan begins and ends at the end of an entry, or where a resume token says.
2. A bound that is not there is an error that names the range, never another bound.

This module knows no stream and no token.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scanner.errors import ArgumentInvalid, OffsetOutOfRange, SnapshotLost

if TYPE_CHECKING:
    from scanner.proto.weir.v1 import scanner_pb2 as pb
    from scanner.storage.interface import Bucket

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@contextmanager
def said_of_bucket(bucket: int) -> Iterator[None]:
    """Have a bound that the block refuses name its bucket: many are scanned at a time, each with an end of its own."""
    try:
        yield
    except (ArgumentInvalid, OffsetOutOfRange) as error:
        raise error.of_bucket(bucket) from error


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a scan ends."""

    offset: int | None = None
    """An entry's end; None: nowhere."""
    at_end: bool = False
    """Where the log ends when the scan is opened."""

    def require(self, offset: int | None) -> None:
        """Check that a scan that is resumed ends where it was to end; a stop that is left away is right, too.

        Args:
            offset: Where its token says that it ends; None: nowhere.

        Raises:
            ArgumentInvalid: It ends elsewhere.
        """
        if self.offset is not None and self.offset != offset:
            raise ArgumentInvalid(
                f"the resume token is of a scan that ends at {'no offset' if offset is None else offset}, not at"
                f" {self.offset}; leave stop_offset away"
            )

    def resolve(self, storage: Bucket, start: int) -> int | None:
        """The offset at which the scan ends; None: it does not.

        Args:
            storage: The bucket, between two commits.
            start: Where the scan begins.

        Raises:
            OffsetOutOfRange: The log has no such offset, or not yet.
            ArgumentInvalid: It is inside a commit, or before the start.
        """
        if self.offset is None:
            return storage.log_end if self.at_end else None
        require_entry_end(storage, self.offset, "the stop offset")
        if self.offset < start:
            raise ArgumentInvalid(f"the stop offset {self.offset} is before {start}, where the scan begins")
        return min(self.offset, storage.log_end) if self.at_end else self.offset


def start_offset(storage: Bucket, start: pb.LogStart, now_us: int) -> int:
    """The offset at which a scan of the changelog begins.

    Args:
        storage: The bucket, between two commits.
        start: What was asked for; unset: the earliest entry.
        now_us: Microseconds since 1970 UTC.

    Raises:
        OffsetOutOfRange: The log has no such offset, not any more, or not yet.
        ArgumentInvalid: It is inside a commit, the time is in the future, or a flag is set to false.
    """
    match start.WhichOneof("start"):
        case "earliest" | "latest" as name if not getattr(start, name):
            raise ArgumentInvalid(
                f"log_start.{name} is false, which says nothing; set it to true, or another field"
            )
        case "latest":
            return storage.log_end
        case "offset":
            require_entry_end(storage, start.offset, "the start offset")
            return start.offset
        case "timestamp_us":
            return _offset_at(storage, start.timestamp_us, now_us)
        case _:
            return storage.log_start


def require_entry_end(storage: Bucket, offset: int, what: str) -> None:
    """Check that a scan can begin or end at an offset.

    Args:
        storage: The bucket, between two commits.
        offset: From the peer.
        what: What the offset is, for the message.

    Raises:
        OffsetOutOfRange: It is not in the log.
        ArgumentInvalid: It is inside a commit.
    """
    require_in_log(storage, offset, what)
    if last_entry_end(storage, offset) != offset:
        entry = storage.entry_at(offset)
        raise ArgumentInvalid(
            f"{what} {offset} is inside the commit [{entry.start}, {entry.end}); take {entry.start} or {entry.end},"
            " unless a scan told it: then that log was another one, as before a restore"
        )


def require_stop_kept(storage: Bucket, stop_offset: int | None) -> None:
    """Check that a log has the end of a scan that goes on: it was an entry's end when the scan was opened.

    Args:
        storage: The bucket, between two commits.
        stop_offset: Where the scan's token says that it ends; None: nowhere.

    Raises:
        SnapshotLost: It is past the end of the log, or inside a commit: the log is another one.
    """
    if stop_offset is None:
        return
    if stop_offset > storage.log_end or last_entry_end(storage, stop_offset) != stop_offset:
        raise SnapshotLost(
            f"the resume token is of a scan that ends at {stop_offset} of another history of this bucket: its data"
            " directory was restored from a copy, or lost its newest commits; begin anew, with what there is now"
        )


def require_in_log(storage: Bucket, offset: int, what: str) -> None:
    """Check that a log has an offset, or ends there.

    Args:
        storage: The bucket, between two commits.
        offset: From the peer.
        what: What the offset is, for the message.

    Raises:
        OffsetOutOfRange: It is not in the log.
    """
    if not storage.log_start <= offset <= storage.log_end:
        raise OffsetOutOfRange(
            f"{what} {offset} is not in the changelog, which has [{storage.log_start}, {storage.log_end})",
            oldest_offset=storage.log_start,
        )


def last_entry_end(storage: Bucket, offset: int) -> int:
    """The last entry end at or before an offset of the log. One point read.

    Args:
        storage: The bucket, between two commits.
        offset: In [log_start, log_end].
    """
    inside = storage.log_start < offset < storage.log_end
    return storage.entry_at(offset).start if inside else offset


def _offset_at(storage: Bucket, timestamp_us: int, now_us: int) -> int:
    """The first entry committed at or after a time; the end of the log if there is none yet."""
    offset = storage.offset_at(timestamp_us)
    if offset == storage.log_end and timestamp_us > now_us:
        raise ArgumentInvalid(
            f"{shown_time(timestamp_us)} is in the future: the server's clock says {shown_time(now_us)}"
        )
    return offset


def keeps_since(storage: Bucket, offset: int, timestamp_us: int) -> bool:
    """Whether a changelog still has everything that was committed at or after a time; False also if nothing tells.

    Args:
        storage: The bucket.
        offset: Where the first commit at or after the time is.
        timestamp_us: The time.
    """
    start, truncated_us = storage.log_start, storage.truncated_commit_us
    # A commit that is kept and older, or none at all that is as young, or none that was cut.
    if start == 0 or start < offset or storage.newest_commit_us < timestamp_us:
        return True
    return truncated_us is not None and truncated_us < timestamp_us


def shown_time(timestamp_us: int) -> str:
    """A time as people read it; what no `datetime` has, as the number that it is."""
    try:
        return (_EPOCH + datetime.timedelta(microseconds=timestamp_us)).isoformat()
    except OverflowError:
        return f"{timestamp_us} us since 1970"
