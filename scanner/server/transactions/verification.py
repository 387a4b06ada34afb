"""What is seen to before a version is decided: every chosen stage is whole, and no key is in two parts.

Keys are compared by 64 bits of a hash first, and those that agree there octet by octet. Memory is bounded: where there
are more keys than `keys_max`, they are divided by their hashes, and the stages are read once for each piece of that.

Blocking, in steps of a few milliseconds. This module knows no tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Final

import numpy as np

from scanner.errors import PartsConflict
from scanner.storage.interface import Mutations
from scanner.storage.stage_frames import FramePlaces, find_frames, in_pieces, read_frame, read_mutations
from scanner.storage.transactions import StageKey, TransactionFiles

KEYS_MAX: Final = 4_000_000
"""Keys that are compared at once: some 100 MB."""
_HASH_END: Final = 1 << 64
_MASK: Final = _HASH_END - 1

Chosen = Mapping[int, Sequence[StageKey]]
"""By part, the stages of the attempt that is to count, in order."""


class Verification:
    """Reads the stages that are to be published.

    Args:
        files: Of the table.
        chosen: The stages.
        describe_key: A key as people write it.
        keys_max: Keys that are kept in memory, >= 1.
    """

    def __init__(
        self,
        files: TransactionFiles,
        chosen: Chosen,
        describe_key: Callable[[bytes], str],
        keys_max: int = KEYS_MAX,
    ) -> None:
        self._files = files
        self._chosen = chosen
        self._describe_key = describe_key
        self._keys_max = keys_max
        self.buckets: set[int] = set()
        """Those that have something to apply."""
        self.rows: Counter[int] = Counter()
        """By part, the rows and keys of its stages."""
        self.passes = 0
        """How often the stages were read."""

    def steps(self) -> Iterator[None]:
        """Verify; when this ends, all is well.

        Raises:
            DataCorrupted: A stage is damaged.
            PartsConflict: Two parts touch one key.
            StoreFailed: The disk refused.
        """
        start = 0
        while start < _HASH_END:
            piece = _Hashes(start, self._keys_max)
            for part, bucket, mutations in self._read():
                self.buckets.add(bucket)
                if not self.passes:
                    self.rows[part] += len(mutations)
                if len(self._chosen) > 1:
                    piece.add(part, mutations)
                yield
            self.passes += 1
            yield from self._compare(piece.common())
            start = piece.end

    def _read(self) -> Iterator[tuple[int, int, Mutations]]:
        for part, keys in self._chosen.items():
            for key in keys:
                source = self._files.open_source(key)
                try:
                    for bucket, mutations in read_mutations(source, self._files.table_id, key):
                        yield part, bucket, mutations
                finally:
                    source.close()

    def _compare(self, suspected: frozenset[int]) -> Iterator[None]:
        """See that keys whose hashes are in two parts are not the same."""
        if not suspected:
            return
        part_of: dict[bytes, int] = {}
        for part, _, mutations in self._read():
            for key in mutations.keys.to_pylist():
                if hash(key) & _MASK in suspected and part_of.setdefault(key, part) != part:
                    first, second = sorted((part, part_of[key]))
                    raise PartsConflict(
                        f"parts {first} and {second} both write the key {self._describe_key(key)}; nothing was"
                        " decided: let one part write all rows of a key"
                    )
            yield
        self.passes += 1


class _Hashes:
    """Hashes of keys from `start` to `end`, which comes down when there are too many, and the part of each."""

    def __init__(self, start: int, keys_max: int) -> None:
        self._start = start
        self.end = _HASH_END
        self._keys_max = keys_max
        self._hashes: list[np.ndarray[tuple[int], np.dtype[np.uint64]]] = []
        self._parts: list[np.ndarray[tuple[int], np.dtype[np.uint32]]] = []
        self._count = 0

    def add(self, part: int, mutations: Mutations) -> None:
        keys = mutations.keys.to_pylist()
        hashes = np.fromiter((hash(key) & _MASK for key in keys), np.uint64, len(keys))
        hashes = np.unique(self._inside(hashes))
        self._hashes.append(hashes)
        self._parts.append(np.full(len(hashes), part, np.uint32))
        self._count += len(hashes)
        while self._count > self._keys_max and self.end - self._start > 1:
            self._halve()

    def common(self) -> frozenset[int]:
        """Those that are in two parts."""
        if not self._hashes:
            return frozenset()
        hashes, parts = np.concatenate(self._hashes), np.concatenate(self._parts)
        order = np.argsort(hashes, kind="stable")
        hashes, parts = hashes[order], parts[order]
        twice = (hashes[1:] == hashes[:-1]) & (parts[1:] != parts[:-1])
        return frozenset(hashes[1:][twice].tolist())

    def _inside(
        self, hashes: np.ndarray[tuple[int], np.dtype[np.uint64]]
    ) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        return hashes[(hashes >= np.uint64(self._start)) & (hashes <= np.uint64(self.end - 1))]

    def _halve(self) -> None:
        self.end = (self._start + self.end) // 2
        kept = [hashes <= np.uint64(self.end - 1) for hashes in self._hashes]
        self._hashes = [hashes[inside] for hashes, inside in zip(self._hashes, kept, strict=True)]
        self._parts = [parts[inside] for parts, inside in zip(self._parts, kept, strict=True)]
        self._count = sum(map(len, self._hashes))


class ChosenStages:
    """The stages of a version, as they are read for one bucket after the other. Any thread may.

    Each is walked through by the buckets that begin at once: by every bucket, that would take time that is quadratic in
    their number.

    Args:
        files: Of the table.
        keys: The stages that were chosen, in order.
    """

    def __init__(self, files: TransactionFiles, keys: Sequence[StageKey]) -> None:
        self._files = files
        self.keys = keys
        self._places: dict[StageKey, FramePlaces] = {}

    def read(self, bucket: int) -> Iterator[Mutations]:
        """What a bucket has of them, in order, a frame at a time.

        Raises:
            DataCorrupted: A stage is damaged, or gone.
            StoreFailed: The disk refused.
        """
        for key in self.keys:
            source = self._files.open_source(key)
            try:
                places = self._places.get(key)
                if places is None:
                    places = self._places[key] = find_frames(source, self._files.table_id, key)
                for at in places.of(bucket):
                    yield read_frame(source, at, bucket, key)
            finally:
                source.close()


def share_pieces(
    stages: ChosenStages, bucket: int, bytes_max: int, rows_max: int
) -> Generator[Mutations, None, None]:
    """What a bucket has to apply, in order, a piece at a time.

    Args:
        stages: Of the version.
        bucket: The bucket.
        bytes_max: Octets of keys and rows in one piece, about.
        rows_max: Mutations in one piece, about.

    Raises:
        DataCorrupted: A stage is damaged, or gone.
        StoreFailed: The disk refused.
    """
    piece: list[Mutations] = []
    size = count = 0
    for mutations in stages.read(bucket):
        for part in in_pieces(mutations, bytes_max):
            piece.append(part)
            size, count = size + part.octets, count + len(part)
            if size >= bytes_max or count >= rows_max:
                yield Mutations.concat(piece)
                piece, size, count = [], 0, 0
    if piece:
        yield Mutations.concat(piece)
