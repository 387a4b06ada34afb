"""Which rows of a bucket go when a transaction overwrites its table: those that its share does not name.

Memory is bounded: of each key of the share 16 octets of a hash are kept, of `keys_max` keys at most. Where there are
more, the keys are divided by their checksums, and share and rows are read once for each part.

Blocking. This module knows no tasks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from scanner.data.digest import checksum
from scanner.storage.interface import Mutation

if TYPE_CHECKING:
    from scanner.storage.interface import Bucket, BucketSnapshot

KEYS_MAX: Final = 1_000_000
"""Keys of a share that are kept at once: some 100 MB."""
_END: Final = 1 << 32
"""Above every checksum."""
_READ_BYTES: Final = 1024 * 1024


def deletions(
    bucket: Bucket,
    share: Callable[[], Iterator[Sequence[Mutation]]],
    rows_max: int,
    keys_max: int = KEYS_MAX,
) -> Iterator[list[Mutation]]:
    """Deletes of the rows that a share does not name, as the bucket is when this begins.

    Args:
        bucket: Whose rows they are. It may be written while this runs.
        share: Reads the share, each time from its start.
        rows_max: Deletes at once.
        keys_max: Keys that are kept in memory, >= 1.

    Yields:
        Those of the rows that were just read, none perhaps: who takes them can stop in between.

    Raises:
        DataCorrupted: The share, or a row, cannot be read.
        StoreFailed, StoreClosed: The disk refused, or the bucket was closed.
    """
    snapshot = bucket.open_snapshot()
    try:
        start = 0
        while start < _END:
            named, end = _named(share(), start, keys_max)
            yield from _unnamed(snapshot, named, start, end, rows_max)
            start = end
    finally:
        snapshot.close()


def _named(share: Iterator[Sequence[Mutation]], start: int, keys_max: int) -> tuple[set[bytes], int]:
    """Hashes of the keys whose checksums are in [start, end), and that end: it comes down when there are too many."""
    end = _END
    found: dict[bytes, int] = {}
    for piece in share:
        for key, _ in piece:
            place = checksum(key)
            if start <= place < end:
                found[_hash(key)] = place
        while len(found) > keys_max and end - start > 1:
            end = (start + end) // 2
            found = {hashed: place for hashed, place in found.items() if place < end}
    return set(found), end


def _unnamed(
    snapshot: BucketSnapshot, named: set[bytes], start: int, end: int, rows_max: int
) -> Iterator[list[Mutation]]:
    scan = snapshot.scan()
    try:
        while read := scan.read(rows_max, _READ_BYTES):
            yield [
                Mutation(key, None)
                for key in read.keys_of(read.rows)
                if start <= checksum(key) < end and _hash(key) not in named
            ]
    finally:
        scan.close()


def _hash(key: bytes) -> bytes:
    return hashlib.blake2b(key, digest_size=16).digest()
