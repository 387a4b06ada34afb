"""Several writers that change one table at once, and a ledger that knows what the table is at every log offset.

Each writer owns the keys that leave its own remainder, so no two ever write the same key and what a key holds follows
from one writer's order alone. Acknowledgements come in any order; a bucket's history takes them in the order of the
log, and complains of a gap or an overlap (`bench.harness.oracle`).

A history that only grows makes every judgement dearer. So scans tell the ledger when they begin and end, and what no
running scan can be judged by any more is folded into the base.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import trio

from bench.harness.errors import BenchFailed
from bench.harness.oracle import BucketHistory, Commit, Violation

if TYPE_CHECKING:
    import scanner

TABLE = "stress"
BUCKETS = 4
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("version", pa.int64()),
        pa.field("text", pa.string()),
    ]
)
FOLD_COMMITS = 100
"""Commits of a bucket that are kept before they are folded, if no scan needs them."""
KNOWN_TIMEOUT_S = 300.0


def rows(ids: list[int], version: int) -> pa.Table:
    """Rows as the writer of this version makes them; about 100 bytes each, some texts null."""
    text = [
        None if (key + version) % 11 == 0 else f"{key}:{version}:" + "x" * ((key + version) % 160)
        for key in ids
    ]
    columns = [
        pa.array(ids, pa.int64()),
        pa.array([version] * len(ids), pa.int64()),
        pa.array(text, pa.string()),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


class Ledger:
    """What each bucket holds at every log offset that a running scan may show.

    Args:
        parts: The rows of each bucket, and the log offset at which it holds them.
    """

    def __init__(self, parts: Mapping[int, tuple[pa.Table, int]]) -> None:
        self._histories = {
            bucket: BucketHistory(base, offset, ("id",)) for bucket, (base, offset) in parts.items()
        }
        self._early: dict[int, dict[int, Commit]] = {bucket: {} for bucket in parts}
        self._floors: Counter[tuple[int, int]] = Counter()
        self._grown = trio.Event()
        keys = sum(base.num_rows for base, _ in parts.values())
        self.bucket_of = np.full(keys, -1)
        """Bucket of each key; the keys are 0, 1, 2, ..."""
        for bucket, (base, _) in parts.items():
            self.bucket_of[base.column("id").to_numpy()] = bucket
        self.commits = 0
        """Acknowledged so far."""

    def record(
        self, bucket: int, start: int, end: int, changes: Mapping[int, tuple[object, ...] | None]
    ) -> None:
        """Take an acknowledged write's part in one bucket.

        Raises:
            BenchFailed: It overlaps another one.
        """
        early, history = self._early[bucket], self._histories[bucket]
        early[start] = Commit(start, end, {(key,): row for key, row in changes.items()})
        while (commit := early.pop(history.end_offset, None)) is not None:
            history.record(commit)
            self.commits += 1
        self._grown.set()
        self._grown = trio.Event()

    @contextmanager
    def scanning(self) -> Iterator[None]:
        """Keep what is needed to judge a scan that is opened in the block."""
        floors = [(bucket, history.end_offset) for bucket, history in self._histories.items()]
        self._floors.update(floors)
        try:
            yield
        finally:
            self._floors.subtract(floors)
            self._floors += Counter()  # drops zeros
            self._fold()

    async def violations(
        self, offsets: Mapping[int, int], scanned: pa.Table, *, is_limited: bool = False
    ) -> list[Violation]:
        """Judge a complete scan.

        Args:
            offsets: The log offset that the scan claims for each bucket that it read.
            scanned: All its rows.
            is_limited: It has a limit: of each bucket the first rows came, or none.

        Raises:
            BenchFailed: A commit that the scan claims to show was not acknowledged in time.
        """
        await self._wait_known(offsets)
        buckets = self.bucket_of[scanned.column("id").to_numpy()]
        found = []
        for bucket, offset in offsets.items():
            part = scanned.filter(pa.array(buckets == bucket))
            found += self._histories[bucket].violations(offset, part, is_beginning=is_limited)
        foreign = int(np.count_nonzero(~np.isin(buckets, list(offsets))))
        if foreign:
            found.append(Violation("extra", f"{foreign} rows of buckets that were not scanned"))
        return found

    async def _wait_known(self, offsets: Mapping[int, int]) -> None:
        with trio.move_on_after(KNOWN_TIMEOUT_S):
            while any(self._histories[bucket].end_offset < offset for bucket, offset in offsets.items()):
                await self._grown.wait()
            return
        raise BenchFailed(f"a scan shows log offsets {dict(offsets)}, and nobody was told of such commits")

    def _fold(self) -> None:
        for bucket, history in self._histories.items():
            if len(history.commits) < FOLD_COMMITS:
                continue
            floors = [offset for (of, offset), count in self._floors.items() if of == bucket and count > 0]
            self._histories[bucket] = history.since(min([history.end_offset, *floors]))


class Writer:
    """Updates, deletes and brings back its own keys, in writes of random sizes.

    Args:
        ledger: Told of everything that was acknowledged.
        number: Of this writer, from 0.
        writers: How many there are.
        rng: Of this writer alone.
    """

    def __init__(self, ledger: Ledger, number: int, writers: int, rng: random.Random) -> None:
        self._ledger = ledger
        self._keys = list(range(number, len(ledger.bucket_of), writers))
        self._rng = rng
        self._version = 0

    async def run(self, table: scanner.Table, ending: trio.Event) -> None:
        """Write until told to end; the write that runs then is finished."""
        while not ending.is_set():
            keys = self._rng.sample(self._keys, self._rng.choice((1, 10, 100, 300)))
            if self._rng.random() < 0.25:
                result = await table.delete([(key,) for key in keys])
                changes: dict[int, tuple[object, ...] | None] = dict.fromkeys(keys)
            else:
                self._version += 1
                written = rows(keys, self._version)
                result = await table.write(written)
                cells = zip(*(column.to_pylist() for column in written.columns), strict=True)
                changes = dict(zip(keys, cells, strict=True))
            for bucket, start, end in result.ranges:
                mine = {key: row for key, row in changes.items() if self._ledger.bucket_of[key] == bucket}
                if end > start:
                    self._ledger.record(bucket, start, end, mine)
            await trio.sleep(self._rng.uniform(0, 0.1))
