"""Random histories of a bucket, and the obvious way to tell what it held at any offset: the oracle of as-of scans."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hypothesis import strategies as st

from scanner.data.digest import checksum
from scanner.data.keys import ALL_KEYS, KeyRange
from scanner.data.position import START, Position
from scanner.sources.as_of import AsOfScan
from scanner.sources.kv import KvSource
from scanner.sources.overlay import OverlayLimits
from scanner.sources.past import SharedPast
from scanner.storage.interface import Bucket, BucketScan, Change, ChangeKind
from scanner.storage.memory.store import MemoryStore
from scanner.wire.queries import ScanQuery
from tests.support.changes import read_changes
from tests.support.storage_tables import ITEMS, delete, item_key, put

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from scanner.data.filters import Predicate
    from scanner.storage.interface import Store

Commit = Sequence[tuple[int, str | None]]
"""Upserts (id, text) and deletes (id, None), in order."""

IDS = 12
"""Ids of `histories` are 0 to 11: few, so that keys are written again and again."""

EVERYTHING = 1 << 30

TINY = OverlayLimits(bytes_max=1)
"""Everything goes to disk, one change at a time."""
LIMITS = st.sampled_from([TINY, OverlayLimits(bytes_max=3000), OverlayLimits()])


def histories() -> SearchStrategy[list[list[tuple[int, str | None]]]]:
    """A few commits of inserts, updates, deletes and inserts again."""
    write = st.tuples(st.integers(0, IDS - 1), st.none() | st.text("abc", max_size=6))
    return st.lists(st.lists(write, min_size=1, max_size=12), max_size=6)


def key_ranges() -> SearchStrategy[KeyRange]:
    """Open, half-open and crossed ranges over the ids of `histories`, and beyond them."""
    bound = st.none() | st.integers(-2, IDS + 2)
    return st.builds(
        lambda start, end: KeyRange(
            b"" if start is None else item_key(start), b"" if end is None else item_key(end)
        ),
        bound,
        bound,
    )


def random_history(seed: int, *, commits: int, writes: int, ids: int) -> list[list[tuple[int, str | None]]]:
    """A history of any size: a third of the writes are deletes, rows have 0 to 40 letters."""
    rng = random.Random(seed)
    return [
        [
            (rng.randrange(ids), None if rng.random() < 0.33 else "x" * rng.randrange(40))
            for _ in range(writes)
        ]
        for _ in range(commits)
    ]


def commit(bucket: Bucket, history: Iterable[Commit]) -> None:
    """Write a history, a commit each."""
    for writes in history:
        bucket.commit([[delete(number) if text is None else put(number, text) for number, text in writes]])


def changes_of(bucket: Bucket) -> list[Change]:
    """The whole log."""
    return list(read_changes(bucket, bucket.log_start, bucket.log_end))


def rows_as_of(changes: Iterable[Change], log_offset: int, key_range: KeyRange = ALL_KEYS) -> list[bytes]:
    """Fold the changes below an offset: `-U` and `-D` take a row away, `+I` and `+U` put one."""
    rows: dict[bytes, bytes] = {}
    for change in changes:
        if change.offset >= log_offset:
            break
        if change.kind in (ChangeKind.INSERT, ChangeKind.UPDATE_AFTER):
            rows[change.key] = change.row
        else:
            assert rows.pop(change.key) == change.row
    start, end = key_range
    return [rows[key] for key in sorted(rows) if start <= key and (not end or key < end)]


def digest_of(rows: Iterable[bytes]) -> int:
    """The digest of a scan of these rows."""
    return checksum(b"".join(rows))


def as_of(
    bucket: Bucket,
    log_offset: int,
    key_range: KeyRange = ALL_KEYS,
    limits: OverlayLimits | None = None,
    shared: SharedPast | None = None,
) -> AsOfScan:
    """A scan as of an offset."""
    live = bucket.open_snapshot().scan(key_range)
    return AsOfScan(live, shared or SharedPast(bucket, log_offset, limits or OverlayLimits()), key_range)


def read_all(scan: BucketScan, rows_max: int = 1000, bytes_max: int = EVERYTHING) -> list[bytes]:
    """Read a scan to its proven end, and look whether it keeps to its bounds."""
    rows: list[bytes] = []
    while True:
        read = scan.read(rows_max, bytes_max)
        assert len(read.rows) <= rows_max
        assert len(read.rows) <= 1 or sum(map(len, read.rows)) <= bytes_max
        rows += read.rows
        if not read.rows and not read.unfinished:
            assert scan.read(rows_max, bytes_max).rows == []
            return rows


def memory_store() -> MemoryStore:
    """A store in memory with an empty table `items`."""
    store = MemoryStore()
    store.create_table(ITEMS)
    return store


def source_of(
    store: Store,
    log_offset: int,
    *,
    key_range: KeyRange = ALL_KEYS,
    limits: OverlayLimits | None = None,
    row_limit: int | None = None,
    predicates: Sequence[Predicate] = (),
    position: Position = START,
    block_rows_max: int = 100,
) -> KvSource:
    """A source over an as-of scan, as the service makes it."""
    return KvSource(
        as_of(store.bucket("items", 0), log_offset, position.remaining(key_range), limits),
        ITEMS,
        store.row_codec("items"),
        ScanQuery(table="items", range=key_range, row_limit=row_limit, predicates=tuple(predicates)),
        position=position,
        block_rows_max=block_rows_max,
        block_bytes_max=EVERYTHING,
    )


class Delivered(NamedTuple):
    """What a scan delivered."""

    items: list[tuple[int, str | None]]
    ordinals: list[int]
    """Of every row."""
    position: Position


def drive(source: KvSource, *, batches_max: int = EVERYTHING, rows_max: int = EVERYTHING) -> Delivered:
    """Step and take as a push scan does, up to some batches or the end, and close."""
    items: list[tuple[int, str | None]] = []
    ordinals: list[int] = []
    while source.end is None and batches_max:
        batch = source.take(EVERYTHING, rows_max)
        if batch is None:
            source.step()
            continue
        ordinals += range(batch.row_ordinal, batch.row_ordinal + batch.rows.num_rows)
        items += zip(*(batch.rows.column(name).to_pylist() for name in ("id", "text")), strict=True)
        batches_max -= 1
    source.close()
    return Delivered(items, ordinals, source.position)
