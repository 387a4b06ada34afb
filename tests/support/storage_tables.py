"""A small table for storage tests: its codecs, and mutations by plain values."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from scanner.data.keys import KeyCodec
from scanner.data.rows import RowCodec
from scanner.data.table import TableDescription
from scanner.storage.interface import Bucket, BucketScan, ChangeKind, Mutation
from scanner.storage.rocksdb.store import RocksStore
from tests.support.changes import read_changes

ITEMS = TableDescription(
    name="items",
    schema=pa.schema([("id", pa.int64()), ("text", pa.string())]),
    primary_key=("id",),
    buckets=2,
)
SYMBOLS = dict(zip(ChangeKind, ("+I", "-U", "+U", "-D"), strict=True))
"""Of changes, as people write them."""
_KEYS = KeyCodec(ITEMS)
_ROWS = RowCodec(ITEMS.schema)


def puts(items: Iterable[tuple[int, str | None]]) -> list[Mutation]:
    """Upserts of these rows, in order."""
    pairs = list(items)
    if not pairs:
        return []
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([pair[0] for pair in pairs], pa.int64()),
            pa.array([pair[1] for pair in pairs], pa.string()),
        ],
        schema=ITEMS.schema,
    )
    return list(map(Mutation, _KEYS.encode_batch(batch), _ROWS.encode_batch(batch)))


def put(number: int, text: str | None) -> Mutation:
    """One upsert."""
    return puts([(number, text)])[0]


def delete(number: int) -> Mutation:
    """One delete."""
    return Mutation(item_key(number), None)


def item_key(number: int) -> bytes:
    """The encoded key of an item."""
    return _KEYS.encode([number])


def items_of(rows: list[bytes]) -> list[tuple[int, str | None]]:
    """Stored rows as plain values."""
    batch = _ROWS.decode(rows)
    return list(zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True))


def drain(scan: BucketScan, rows_max: int = 7, bytes_max: int = 1 << 20) -> list[tuple[int, str | None]]:
    """Read a scan to its proven end; no row comes behind those that are said to be the last ones."""
    rows: list[bytes] = []
    last = False
    while read := scan.read(rows_max, bytes_max):
        assert not last
        rows, last = rows + read.rows, read.last
    return items_of(rows)


def contents(bucket: Bucket) -> dict[int, str | None]:
    """What a fresh scan of a bucket gives."""
    snapshot = bucket.open_snapshot()
    try:
        return dict(drain(snapshot.scan(), rows_max=10_000))
    finally:
        snapshot.close()


def changes_of(bucket: Bucket, start: int | None = None) -> list[tuple[str, int, str | None]]:
    """The changelog as (symbol, id, text)."""
    changes = list(read_changes(bucket, bucket.log_start if start is None else start, bucket.log_end))
    items = items_of([change.row for change in changes])
    return [(SYMBOLS[change.kind], *item) for change, item in zip(changes, items, strict=True)]


def replayed(bucket: Bucket, end: int | None = None) -> dict[int, str | None]:
    """Fold the changelog up to an offset; fails where it is not dense or contradicts itself."""
    state: dict[int, str | None] = {}
    changes = list(read_changes(bucket, 0, bucket.log_end if end is None else end))
    items = items_of([change.row for change in changes])
    for expected, (change, (number, text)) in enumerate(zip(changes, items, strict=True)):
        assert change.offset == expected
        assert change.key == item_key(number)
        if change.kind in (ChangeKind.UPDATE_BEFORE, ChangeKind.DELETE):
            assert state.pop(number) == text
        else:
            assert number not in state
            state[number] = text
    return state


def one_bucket(name: str) -> TableDescription:
    """A table of one bucket, like `ITEMS` else."""
    return TableDescription(name, ITEMS.schema, ITEMS.primary_key, 1)


def make_tables(path: Path, *names: str) -> None:
    """Create tables in a data directory, each with one row that is its name."""
    with RocksStore.open(path) as store:
        for name in names:
            store.create_table(one_bucket(name))
            store.bucket(name, 0).commit([[put(1, name)]])


def rows_by_table(path: Path) -> dict[str, dict[int, str | None]]:
    """The rows of every table of a data directory, by name; of bucket 0."""
    with RocksStore.open(path) as store:
        return {each.name: contents(store.bucket(each.name, 0)) for each in store.tables()}


def names_in(directory: Path) -> list[str]:
    """What is in a directory."""
    return sorted(path.name for path in directory.iterdir())
