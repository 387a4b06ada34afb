"""A writer that never stops changing the table, and remembers what it wrote.

It updates, deletes and re-inserts flights, through the public client, each write in flight alone. Every row it writes
is unlike any before (a counter goes into `dep_delay` and `tailnum`), so that a row of another time is seen as such.
What a write must add to each bucket's changelog is known before it is sent: two changes per update, one per insert or
delete; an acknowledgement that says anything else ends the bench.

It is the only writer. The histories are appended to by its thread alone, whole commits at a time.
"""

import random
from collections.abc import Mapping, Sequence

import pyarrow as pa

import scanner.sync
from bench.harness import flights
from bench.harness.background import Background
from bench.harness.errors import BenchFailed
from bench.harness.oracle import BucketHistory, Commit, Key, Row, keys_of

UPDATES_PER_WRITE = 48
DELETES_PER_WRITE = 16
DELETED_ROWS_MAX = 256
"""From here on a write re-inserts as many rows as the last one deleted."""
PROGRESS_TIMEOUT_S = 300.0


class Writer(Background):
    """Writes from the start of the `with` block to its end.

    Args:
        endpoint: HOST:PORT of the server.
        table: Name of the table.
        histories: What is in each bucket; every acknowledged commit is recorded there.
        seed: Chooses the keys.
    """

    def __init__(self, endpoint: str, table: str, histories: Mapping[int, BucketHistory], seed: int) -> None:
        super().__init__(PROGRESS_TIMEOUT_S)
        self._endpoint = endpoint
        self._table = table
        self._histories = histories
        self._random = random.Random(seed)
        self._rows = pa.concat_tables([history.base for history in histories.values()]).combine_chunks()
        self._keys = keys_of(self._rows, flights.PRIMARY_KEY)
        self._buckets = [
            bucket for bucket, history in histories.items() for _ in range(history.base.num_rows)
        ]
        self._deleted: list[int] = []
        self._version = 0

    def wait_past(self, bucket: int, offset: int) -> None:
        """Wait until a commit beyond `offset` of the bucket's log was acknowledged.

        Raises:
            BenchFailed: The writer failed, or nothing came for `PROGRESS_TIMEOUT_S`.
        """
        history = self._histories[bucket]
        if not self.wait_for(lambda: history.end_offset > offset, PROGRESS_TIMEOUT_S):
            raise BenchFailed(f"bucket {bucket}: no write was acknowledged for {PROGRESS_TIMEOUT_S:.0f} s")

    def _run(self) -> None:
        with scanner.sync.connect(self._endpoint) as client:
            table = client.table(self._table)
            while not self.stopping.is_set():
                self._upsert(table)
                self._delete(table)

    def _upsert(self, table: scanner.sync.Table) -> None:
        reinserted: list[int] = []
        if len(self._deleted) >= DELETED_ROWS_MAX:
            reinserted, self._deleted = self._deleted[:DELETES_PER_WRITE], self._deleted[DELETES_PER_WRITE:]
        updated = self._pick_live(UPDATES_PER_WRITE, besides=reinserted)
        rows = self._new_rows([*updated, *reinserted])
        written = list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
        changes = dict(zip([*updated, *reinserted], written, strict=True))
        self._record(
            table.write(rows).ranges, changes, {**dict.fromkeys(updated, 2), **dict.fromkeys(reinserted, 1)}
        )

    def _delete(self, table: scanner.sync.Table) -> None:
        deleted = self._pick_live(DELETES_PER_WRITE)
        keys = self._rows.take(deleted).select(flights.PRIMARY_KEY)
        self._record(table.delete(keys).ranges, dict.fromkeys(deleted), dict.fromkeys(deleted, 1))
        self._deleted += deleted

    def _pick_live(self, count: int, besides: list[int] | None = None) -> list[int]:
        """Positions of rows that exist now, each once, and none of those in `besides`."""
        absent = {*self._deleted, *(besides or ())}
        drawn = self._random.sample(range(len(self._keys)), count + len(absent))
        return [position for position in drawn if position not in absent][:count]

    def _new_rows(self, positions: list[int]) -> pa.Table:
        rows = self._rows.take(positions)
        versions = range(self._version, self._version + len(positions))
        self._version += len(positions)
        tails = [None if version % 7 == 0 else f"V{version}" for version in versions]
        for name, cells in (("dep_delay", list(versions)), ("tailnum", tails)):
            index = rows.schema.get_field_index(name)
            rows = rows.set_column(
                index, rows.schema.field(index), pa.array(cells, rows.schema.field(index).type)
            )
        return rows

    def _record(
        self,
        ranges: Sequence[tuple[int, int, int]],
        changes: Mapping[int, Row | None],
        offsets: Mapping[int, int],
    ) -> None:
        by_bucket: dict[int, dict[Key, Row | None]] = {}
        expected: dict[int, int] = {}
        for position, row in changes.items():
            bucket = self._buckets[position]
            by_bucket.setdefault(bucket, {})[self._keys[position]] = row
            expected[bucket] = expected.get(bucket, 0) + offsets[position]
        acknowledged = {bucket: end - start for bucket, start, end in ranges}
        if acknowledged != expected:
            raise BenchFailed(f"a write added {acknowledged} changes per bucket, must be {expected}")
        with self.changed:
            for bucket, start, end in ranges:
                self._histories[bucket].record(Commit(start, end, by_bucket[bucket]))
            self.changed.notify_all()
