"""What a bucket remembers of a reader group: who may read it for the group, by epoch, and from where on.

Invariants:

1. A state is written in a commit of the bucket, and is durable when that is.
2. The epochs of a group ascend. The writer of states sees to it, and the store brings back the last one written.
3. A position is an entry's end, with the history that it is of (`scanner.storage.lineage`): a restored copy tells it
   from one of its own.
4. With an epoch stays the newest history that its reader can have read. A reader reads by an epoch only while the
   server runs that gave it, so that is what this server has begun; an epoch of an earlier one keeps what it has.

The encodings of what `meta` holds are here, too. This module knows no RocksDB.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from scanner.errors import DataCorrupted
from scanner.storage.lineage import HISTORY_BYTES, NO_HISTORY

_FORMAT: Final = 2
_STATE: Final = struct.Struct(f">BQ?Q{HISTORY_BYTES}s{HISTORY_BYTES}s")
"""Format, epoch, whether there is a position, position, its history, the epoch's history."""
_STATE_1: Final = struct.Struct(f">BQ?Q{HISTORY_BYTES}s")
"""The same of format 1, which had no history of the epoch."""
_SEPARATOR: Final = b"\n"
"""Of names in the list of groups; no name has one."""


FORGOTTEN: Final = "~"
"""Under this name, which no group can have, stays the highest epoch of the groups that were deleted."""


class GroupState(NamedTuple):
    """One reader group in one bucket."""

    epoch: int
    """Of the newest assignment, 0 to 2^64 - 1."""
    position: int | None = None
    """Where the group's reading goes on, an entry's end; None: none was stored."""
    history: bytes = NO_HISTORY
    """The history of the bucket that the position is of."""
    epoch_history: bytes = NO_HISTORY
    """The newest history that a reader can have read by the epoch. The bucket's own business: `GivenEpochs` sets it."""


class GivenEpochs:
    """The epochs that a bucket was told to remember since it is served: their readers read what it writes.

    One commit at a time asks it.
    """

    def __init__(self) -> None:
        self._epochs: dict[str, int] = {}

    def with_histories(
        self,
        before: Mapping[str, GroupState],
        changed: Mapping[str, GroupState | None],
        newest: bytes,
        *,
        begun: bool,
    ) -> dict[str, GroupState | None]:
        """What a commit has to write of groups so that each epoch has its history.

        Args:
            before: What is durable.
            changed: What is to become of groups, by name; None: it is forgotten.
            newest: The newest history of the bucket, with the commit.
            begun: The commit begins it: readers go on into it by the epochs that they were given before.
        """
        if len(self._epochs) > len(before):
            # Names of groups come and go, and those that are gone would stay for as long as the bucket is served.
            self._epochs = {name: epoch for name, epoch in self._epochs.items() if name in before}
        after = dict(changed)
        if begun:
            given = {name: state for name, state in before.items() if self._epochs.get(name) == state.epoch}
            after = {**given, **changed}
        for name, state in after.items():
            if state is not None:
                history = self._history(name, state.epoch, before.get(name), newest)
                after[name] = state._replace(epoch_history=history)
        return after

    def _history(self, name: str, epoch: int, before: GroupState | None, newest: bytes) -> bytes:
        if before is None or before.epoch != epoch:
            # Should the commit fail, the state keeps an older epoch, which does not count as given here.
            self._epochs[name] = epoch
        elif self._epochs.get(name) != epoch:
            return before.epoch_history  # An earlier server gave it: nobody reads by it any more.
        return newest


def encode_group_state(state: GroupState) -> bytes:
    """The value that `meta` holds, big-endian."""
    positioned = state.position is not None
    return _STATE.pack(
        _FORMAT, state.epoch, positioned, state.position or 0, state.history, state.epoch_history
    )


def decode_group_state(name: str, value: bytes | None) -> GroupState:
    """Read what `meta` holds.

    Args:
        name: Of the group, which the list of groups names.
        value: Its state; None: there is none.

    Raises:
        DataCorrupted: It is no state of a format that is known.
    """
    value = value or b""
    form = value[0] if value else _FORMAT
    if form not in (1, _FORMAT):
        raise DataCorrupted(f"the state of reader group {name} is of format {form}, not {_FORMAT} or 1")
    try:
        if form == 1:
            _, epoch, positioned, position, history = _STATE_1.unpack(value)
            # Of the epoch's history nothing is known. That of the position is one of this copy, and ends where the copy
            # parted from what the epoch's reader read, or before: at worst, changes that it has read come again.
            epoch_history = history
        else:
            _, epoch, positioned, position, history, epoch_history = _STATE.unpack(value)
    except struct.error as error:
        raise DataCorrupted(f"the state of reader group {name} is missing or damaged: {error}") from error
    return GroupState(epoch, position if positioned else None, history, epoch_history)


def encode_group_names(names: Sequence[str]) -> bytes:
    """The list of groups that `meta` holds."""
    return _SEPARATOR.join(name.encode() for name in sorted(names))


def decode_group_names(value: bytes | None) -> list[str]:
    """Read the list of groups; None: there never was one.

    Raises:
        DataCorrupted: It is none.
    """
    try:
        return [name.decode() for name in value.split(_SEPARATOR)] if value else []
    except UnicodeDecodeError as error:
        raise DataCorrupted(f"the list of reader groups is damaged: {error}") from error
