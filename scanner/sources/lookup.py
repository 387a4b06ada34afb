"""Rows of some keys of one bucket as of one log offset: what a point read of the live table or of a past state finds.

As of now a row is read by its key. As of an offset S that has passed, the first change of a key in [S, E), E being
what the reader shows, tells what the key had at S (`scanner.sources.past`), and a key without a change there has
what it has at E. So the changes are walked until every key has been met or E is reached, and only what they tell of
the keys that were asked for is kept.

Invariants:

1. All rows are those of the state as of S, as they were stored.
2. What changes give takes `past_bytes_max` and a row at most; a piece of rows `_PIECE_BYTES` and a row at most.
3. A piece is a few milliseconds of work, where the disk has its blocks in memory.

This module knows no transport, no task and no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from scanner.errors import DataCorrupted, OffsetOutOfRange, SnapshotLost
from scanner.sources.past import first_values

if TYPE_CHECKING:
    from scanner.storage.interface import Bucket, BucketReader, ChangeBlock

_PIECE_KEYS: Final = 256
_PIECE_BYTES: Final = 1024 * 1024
_WALK_CHANGES: Final = 2048
_WALK_BYTES: Final = 1024 * 1024


class PastTooLarge(Exception):
    """The rows that the keys had take more memory than they may."""


class Lookup:
    """One point read of several keys of one bucket.

    Args:
        bucket: Its changes are walked.
        reader: Of the bucket, made between two commits; closed by its opener.
        keys: Encoded, in the order in which their rows are wanted; ascending is quickest.
        log_offset: S: the changes with a smaller offset are shown, and no other; at most that of `reader`.
        past_bytes_max: Stored bytes of rows that changes may tell of, above 0; a single row may be larger.
    """

    def __init__(
        self,
        bucket: Bucket,
        reader: BucketReader,
        keys: Sequence[bytes],
        log_offset: int,
        past_bytes_max: int,
    ) -> None:
        self._bucket = bucket
        self._reader = reader
        self._keys = keys
        self._log_offset = log_offset
        self._past_bytes_max = past_bytes_max
        self._past: dict[bytes, bytes | None] = {}
        """What keys had at S, as far as a change tells."""

    def pieces(self) -> Iterator[list[bytes | None]]:
        """Do the work, piece by piece.

        Yields:
            The rows of the next keys, None for a key that has none; an empty list after a piece of walking.

        Raises:
            SnapshotLost: The log no longer holds the changes since S.
            PastTooLarge: See `past_bytes_max`; never of a single key.
            DataCorrupted, StoreFailed, StoreClosed: A read failed.
        """
        for _ in self._walk():
            yield []
        piece, size = list[bytes | None](), 0
        for key in self._keys:
            row = self._past[key] if key in self._past else self._reader.get(key)
            piece.append(row)
            size += len(row or b"")
            if len(piece) >= _PIECE_KEYS or size >= _PIECE_BYTES:
                yield piece
                piece, size = [], 0
        yield piece

    def _walk(self) -> Iterator[None]:
        """Learn what the keys had at S from the changes since."""
        wanted, size = set(self._keys), 0
        start, end = self._log_offset, self._reader.log_offset
        while start < end and wanted:
            changes = self._read_changes(start, end)
            for key, row in zip(*first_values(changes, first=start == self._log_offset), strict=True):
                if key in wanted:
                    wanted.remove(key)
                    self._past[key] = row
                    size += len(row or b"")
            if size > self._past_bytes_max and len(self._past) > 1:
                raise PastTooLarge
            start += len(changes)
            yield

    def _read_changes(self, start: int, end: int) -> ChangeBlock:
        try:
            return self._bucket.read_change_block(start, min(end, start + _WALK_CHANGES), _WALK_BYTES)
        except (OffsetOutOfRange, DataCorrupted) as error:
            # Changes that are dropped while they are read look like a damaged log.
            if self._bucket.log_start > start:
                raise lost(self._bucket, self._log_offset) from error
            raise


def lost(bucket: Bucket, log_offset: int) -> SnapshotLost:
    """The error for rows as of an offset that the log no longer reaches back to."""
    oldest = bucket.log_start
    return SnapshotLost(
        f"the log starts at {oldest}, so rows as of {log_offset} can no longer be rebuilt;"
        f" read as of now, or as of {oldest} or later",
        oldest_offset=oldest,
    )
