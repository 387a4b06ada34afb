"""Which histories a bucket's changelog is made of, and so whether a state as of an offset is one of this bucket's.

Nothing in a directory tells a restored copy from the original. So the first commit after each open begins a
*history*: it
writes, in its own atomic batch, a random id and the offset at which the history begins. All histories of a bucket, in
order, are its *lineage*.

Invariants:

1. A state as of S is of the history that wrote the change at S - 1; `history_of` names it. As of 0 it is of none,
   `NO_HISTORY`.
2. What was made of history h as of S (a token, a lease, a checkpoint) is good here iff h is in the lineage and S is at
   most where the next history begins. So a restart harms nothing, and copies that were written on tell each other's
   states apart from the first commit on.
3. A commit that is lost takes the history that it began with it.

Sources: Kafka's leader epochs (KIP-101) and PostgreSQL's timelines solve the same problem for replicas and restored
backups.

This module knows no RocksDB.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from scanner.errors import DataCorrupted, SnapshotLost

HISTORY_BYTES: Final = 16
NO_HISTORY: Final = bytes(HISTORY_BYTES)
"""Of states as of 0, which are the same in every history: empty."""
HISTORIES_MAX: Final = 4096
"""Older ones are forgotten; what was made of them is refused."""

_FORMAT: Final = 2
_HEAD: Final = struct.Struct(">BI")
_HISTORY: Final = struct.Struct(">16sQQ")


class History(NamedTuple):
    """A stretch of the changelog that one opened bucket wrote."""

    history_id: bytes
    """`HISTORY_BYTES` random octets."""
    start: int
    """The offset of its first change."""
    lost_end: int
    """The end that the log was known to have had before, if it was more than `start`: the changes in between were
    acknowledged, and lost. Else `start`."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """The histories of one bucket, oldest first; their starts ascend."""

    histories: tuple[History, ...] = ()

    @property
    def lost_changes(self) -> int:
        """Acknowledged changes that were lost at some open, as far as is known."""
        return sum(history.lost_end - history.start for history in self.histories)

    @property
    def newest(self) -> bytes:
        """The id of the newest history."""
        return self.histories[-1].history_id if self.histories else NO_HISTORY

    def fits(self, log_end: int) -> bool:
        """Whether it may be of a log that ends there: its newest history has begun."""
        return not self.histories or self.histories[-1].start < max(1, log_end)

    def begin(self, history_id: bytes, start: int, durable_end: int) -> Lineage:
        """The lineage with one more history.

        Args:
            history_id: Random.
            start: The log's end now.
            durable_end: The end that it was known to have had; less than `start` where that is not known.
        """
        fresh = History(history_id, start, max(start, durable_end))
        return Lineage((*self.histories[1 - HISTORIES_MAX :], fresh))

    def history_of(self, log_offset: int) -> bytes:
        """The history that the state as of an offset is of."""
        for history in reversed(self.histories):
            if history.start < log_offset:
                return history.history_id
        return NO_HISTORY

    def end_of(self, history_id: bytes, log_end: int) -> int:
        """The last offset as of which a state can be of a history, or of one before it, and of this bucket.

        Args:
            history_id: The history. Of one that is not known, or no longer, that is 0.
            log_end: The end of the bucket's log now, which is that of the newest history.
        """
        ends = (*(history.start for history in self.histories[1:]), log_end)
        for history, end in zip(self.histories, ends, strict=False):
            if history.history_id == history_id:
                return end
        return 0

    def holds(self, history_id: bytes, log_offset: int) -> bool:
        """Whether the state as of an offset that was made of a history is one of this bucket's."""
        if history_id == NO_HISTORY:
            return log_offset == 0 or self._is_unknown_past(log_offset)
        for index, history in enumerate(self.histories):
            if history.history_id == history_id:
                following = self.histories[index + 1 : index + 2]
                return not following or log_offset <= following[0].start
        return False

    def require(self, history_id: bytes, log_offset: int, log_end: int, what: str) -> None:
        """See that something is of this bucket's histories.

        Args:
            history_id: What it was made of.
            log_offset: What it was made as of.
            log_end: The end of the bucket's log now.
            what: Names it, for people: `the resume token`.

        Raises:
            SnapshotLost: It is of another history.
        """
        if log_offset > log_end or not self.holds(history_id, log_offset):
            raise SnapshotLost(
                f"{what} is as of {log_offset} of another history of this bucket: its data directory was restored from"
                " a copy, or lost its newest commits; begin anew, with what there is now"
            )

    def _is_unknown_past(self, log_offset: int) -> bool:
        """Whether no history that is known here reaches back to an offset."""
        return bool(self.histories) and log_offset <= self.histories[0].start


def encode_lineage(lineage: Lineage) -> bytes:
    """The value that `meta` holds: format and count, then id, start and lost end of each history, big-endian."""
    histories = lineage.histories
    return _HEAD.pack(_FORMAT, len(histories)) + b"".join(_HISTORY.pack(*history) for history in histories)


def decode_lineage(value: bytes | None) -> Lineage:
    """Read what `meta` holds; None: no commit was ever made.

    Raises:
        DataCorrupted: it is no lineage of this format.
    """
    if value is None:
        return Lineage()
    try:
        form, count = _HEAD.unpack_from(value)
        if form != _FORMAT or len(value) != _HEAD.size + count * _HISTORY.size:
            raise ValueError(f"format {form}, {count} histories, {len(value)} bytes")
        histories = [History(*parts) for parts in _HISTORY.iter_unpack(value[_HEAD.size :])]
        _require_ascending(histories)
    except (struct.error, ValueError) as error:
        raise DataCorrupted(
            f"the lineage is damaged, or of another format than {_FORMAT}: {error}"
        ) from error
    return Lineage(tuple(histories))


def _require_ascending(histories: Sequence[History]) -> None:
    for before, after in itertools.pairwise(histories):
        if after.start < before.start:
            raise ValueError("its histories do not ascend")
