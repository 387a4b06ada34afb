"""What a bucket remembers of a reader group: who may read it for the group, by epoch, and from where on.

Invariants:

1. A state is written in a commit of the bucket, and is durable when that is.
2. The epochs of a group ascend. The writer of states sees to it, and the store brings back the last one written.
3. A position is an entry's end, with the history that it is of (`scanner.storage.lineage`): a restored copy tells it
   from one of its own.

The encodings of what `meta` holds are here, too. This module knows no RocksDB.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from scanner.errors import DataCorrupted
from scanner.storage.lineage import HISTORY_BYTES, NO_HISTORY

_FORMAT: Final = 1
_STATE: Final = struct.Struct(f">BQ?Q{HISTORY_BYTES}s")
"""Format, epoch, whether there is a position, position, history."""
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


def encode_group_state(state: GroupState) -> bytes:
    """The value that `meta` holds, big-endian."""
    return _STATE.pack(_FORMAT, state.epoch, state.position is not None, state.position or 0, state.history)


def decode_group_state(name: str, value: bytes | None) -> GroupState:
    """Read what `meta` holds.

    Args:
        name: Of the group, which the list of groups names.
        value: Its state; None: there is none.

    Raises:
        DataCorrupted: It is no state of this format.
    """
    try:
        form, epoch, positioned, position, history = _STATE.unpack(value or b"")
    except struct.error as error:
        raise DataCorrupted(f"the state of reader group {name} is missing or damaged: {error}") from error
    if form != _FORMAT:
        raise DataCorrupted(f"the state of reader group {name} is of format {form}, not {_FORMAT}")
    return GroupState(epoch, position if positioned else None, history)


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
