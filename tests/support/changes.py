"""The changelog of a bucket, a change at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from scanner.storage.interface import Change, ChangeKind

if TYPE_CHECKING:
    from scanner.storage.interface import Bucket, ChangeBlock

_BLOCK_BYTES: Final = 256 * 1024


def read_changes(bucket: Bucket, start: int, end: int) -> Iterator[Change]:
    """The changes of [start, end), in offset order; raises as `read_change_block`, at once for the first ones."""
    return _each(bucket, bucket.read_change_block(start, end, _BLOCK_BYTES), end)


def _each(bucket: Bucket, block: ChangeBlock, end: int) -> Iterator[Change]:
    while len(block):
        yield from map(
            Change._make,
            zip(
                range(block.offset, block.end),
                map(ChangeKind, block.kinds.tolist()),
                block.timestamps_us.tolist(),
                block.keys_of(block.rows),
                block.rows,
                strict=True,
            ),
        )
        block = bucket.read_change_block(block.end, end, _BLOCK_BYTES)
