"""Make a golden data directory: `python -m tests.scanner.storage.golden.make` writes `format-<N>.tar.gz` beside it.

To be run once for each format that is released, by the version that releases it; what it wrote is never changed. Each
archive holds the directory `data` and `expected.json`: per table the rows, and the changes as (kind, row).
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa

from scanner.data.table import TableDescription
from scanner.server.scan.token_keys import load_token_keys
from scanner.storage.interface import Bucket, Mutation, Store
from scanner.storage.rocksdb.envelope import FORMAT
from scanner.storage.rocksdb.store import RocksStore
from tests.support.changes import read_changes
from tests.support.storage_tables import SYMBOLS

HERE = Path(__file__).parent
TABLE = TableDescription(
    name="items",
    schema=pa.schema([("id", pa.int64()), ("text", pa.string()), ("price", pa.float64())]),
    primary_key=("id",),
    buckets=2,
)


def make(data: Path) -> dict[str, Any]:
    """Make the directory with this version, and return what is expected of it."""
    with RocksStore.open(data) as store:
        load_token_keys(store)
        store.create_table(TABLE)
        store.create_table(TableDescription("dropped", TABLE.schema, TABLE.primary_key, 1))
        store.drop_table("dropped")()
        bucket = store.bucket("items", 0)
        bucket.commit([_puts(store, range(100)), _puts(store, range(50, 60), "changed")])
        store.create_checkpoint("items", 0)
        bucket.commit([_deletes(store, range(90, 100))])
        store.add_column("items", pa.field("more", pa.decimal128(20, 3)))
        bucket.commit([_puts(store, range(85, 95), "after the column")])
        store.create_checkpoint("items", 0)
        bucket.flush()
        bucket.commit([_puts(store, range(200, 210), "in the write-ahead log")])
        return contents(store)


def contents(store: Store) -> dict[str, Any]:
    """What a store holds: rows, changes, and the rows of every checkpoint, as JSON has it."""
    found: dict[str, Any] = {}
    for table in store.tables():
        codec = store.row_codec(table.name)
        for index in range(table.buckets):
            bucket = store.bucket(table.name, index)
            changes = list(read_changes(bucket, 0, bucket.log_end))
            states = {}
            for checkpoint in store.checkpoints(table.name, index):
                snapshot = store.open_checkpoint(table.name, index, checkpoint.checkpoint_id)
                states[str(checkpoint.log_offset)] = _plain(codec.decode(_rows(snapshot.scan())))
                snapshot.close()
            found[f"{table.name}[{index}]"] = {
                "rows": _plain(codec.decode(_rows(bucket.open_snapshot().scan()))),
                "kinds": [SYMBOLS[change.kind] for change in changes],
                "changes": _plain(codec.decode([change.row for change in changes])),
                "checkpoints": states,
            }
    return found


def fold(bucket: Bucket) -> list[bytes]:
    """The rows that the changelog gives, in key order."""
    rows: dict[bytes, bytes] = {}
    for change in read_changes(bucket, 0, bucket.log_end):
        if SYMBOLS[change.kind][0] == "-":
            assert rows.pop(change.key) == change.row
        else:
            assert change.key not in rows
            rows[change.key] = change.row
    return [rows[key] for key in sorted(rows)]


def rows_of(bucket: Bucket) -> list[bytes]:
    """The stored rows of a bucket, in key order."""
    return _rows(bucket.open_snapshot().scan())


def _rows(scan: Any) -> list[bytes]:
    rows: list[bytes] = []
    while read := scan.read(1000, 1 << 20):
        rows += read.rows
    scan.close()
    return rows


def _plain(batch: pa.RecordBatch) -> Any:
    return json.loads(json.dumps(batch.to_pylist(), default=str))


def _puts(store: Store, ids: range, text: str = "new") -> list[Mutation]:
    schema = store.table("items").schema
    batch = pa.RecordBatch.from_pylist(
        [{"id": i, "text": f"{text} {i}", "price": i / 8} for i in ids], schema
    )
    keys = store.key_codec("items").encode_batch(batch)
    return list(map(Mutation, keys, store.row_codec("items").encode_batch(batch)))


def _deletes(store: Store, ids: range) -> list[Mutation]:
    return [Mutation(store.key_codec("items").encode([i]), None) for i in ids]


def main() -> None:
    """Write the archive of this version's format.

    Raises:
        SystemExit: It is there already.
    """
    archive = HERE / f"format-{FORMAT}.tar.gz"
    if archive.exists():
        sys.exit(f"{archive} is there; a golden directory is never made again")
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "expected.json").write_text(json.dumps(make(Path(scratch) / "data"), indent=1))
        with tarfile.open(archive, "w:gz") as file:
            for name in ("expected.json", "data"):
                file.add(Path(scratch) / name, name)
    print(archive)


if __name__ == "__main__":
    main()
