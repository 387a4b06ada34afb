"""A data directory made by a seeded history, through the real server, with copies of it from some moments.

Three stretches, each a server of its own: tables with one schema and with others, writes, updates, deletes, columns
added, a table dropped, checkpoints, leases and images. Between the first two the changelog is cut in front and what is
in memory is written to files, so that there are SST files beside write-ahead logs. A copy is taken when nobody writes:
of a server that runs, as after `kill -9`, or of one that was stopped.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import trio

from bench.faulting.reading import read_bucket, serving, take_tokens, write_rows
from bench.faulting.truth import Built, Key, Mark, TableTruth, Truth
from bench.harness.errors import BenchFailed
from scanner import LeaseTarget
from scanner.server.scan.token_keys import rotate_token_keys
from scanner.storage.rocksdb.data_directory import begin
from scanner.storage.rocksdb.store import RocksStore

if TYPE_CHECKING:
    import scanner
    from scanner.server.server import Server

NOW: Final = "now"
OLDER: Final = "older"
LEASE_S: Final = 86_400.0
_KEYS: Final = 60
_LOAD: Final = 25
_TOKENS: Final = 2
_IMAGED: Final = ("orders", "names")
"""Tables with images. The first one's are made again, with a column more; those of the other stay as they were."""
_NUMBERS = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("text", pa.string()), ("number", pa.int64())]
)
_NAMES = pa.schema([pa.field("name", pa.string(), nullable=False), ("text", pa.string())])


def build(seed: str, place: Path) -> Built:
    """Make the data directory and its copies.

    Args:
        seed: Chooses what is written.
        place: An empty directory: `now`, `older-0`, `older-1` come into it.
    """
    return _Builder(random.Random(seed), place).build()


class _Builder:
    def __init__(self, rng: random.Random, place: Path) -> None:
        self._rng = rng
        self._place = place
        self._data = place / "data"
        self._truth = Truth()
        self._older_ends: list[dict[tuple[int, int], int]] = []

    def build(self) -> Built:
        begin(self._data, first_table_id=0)
        trio.run(self._first)
        self._cut_and_flush()
        self._copy(f"{OLDER}-0")
        trio.run(self._second)
        killed = self._rng.random() < 0.5
        trio.run(self._third, killed)
        if not killed:
            shutil.copytree(self._data, self._place / NOW)
        shutil.rmtree(self._data)
        return Built(self._truth, self._older_ends)

    async def _first(self) -> None:
        async with serving(self._data) as (_, client):
            await self._create(client, "orders", _NUMBERS, "id", 2)
            await self._create(client, "parcels", _NUMBERS, "id", 2)
            await self._create(client, "names", _NAMES, "name", 1)
            await self._create(client, "gone", _NUMBERS, "id", 1)
            await self._write(client, 6)

    async def _second(self) -> None:
        async with serving(self._data) as (server, client):
            await client.drop_table("gone")
            self._truth.dropped["gone"] = self._truth.tables.pop("gone")
            await self._create(client, "late", _NUMBERS, "id", 1)
            await self._lease(client, "early", "new")
            await self._write(client, 3)
            await self._mark(client)
            await self._take_tokens(server)
            for name in _IMAGED:
                await client.make_images(name)
            self._copy(f"{OLDER}-1")
            await self._write(client, 3)
            await (await client.table("orders")).add_column(pa.field("extra", pa.string()))
            await self._write(client, 2)
        with RocksStore.open(self._data) as store:
            rotate_token_keys(store)

    async def _third(self, killed: bool) -> None:
        async with serving(self._data) as (server, client):
            await self._write(client, 3)
            await self._lease(client, "log", "log")
            await self._lease(client, "newest", "new")
            await client.make_images(_IMAGED[0])
            await self._mark(client)
            await self._take_tokens(server)
            await self._write(client, 4)
            await self._mark(client)
            if killed:
                shutil.copytree(self._data, self._place / NOW)

    async def _create(
        self, client: scanner.Client, name: str, schema: pa.Schema, key: str, buckets: int
    ) -> None:
        table = await client.create_table(name, schema, [key], buckets)
        truth = TableTruth(name, key, buckets, table.table_id)
        keys: list[Key] = [f"n{number:03d}" if key == "name" else number for number in range(_KEYS)]
        rows = [{key: each, "text": f"{name} {each} first"} for each in keys]
        await write_rows(table, rows)
        for bucket in range(buckets):
            found = (await read_bucket(table, key, bucket, "push")).rows
            truth.home.update(dict.fromkeys(found, bucket))
        if sorted(truth.home, key=str) != sorted(keys, key=str):
            raise BenchFailed(f"table {name!r} lacks keys before any fault")
        truth.write(rows)
        gone = self._rng.sample(keys, _KEYS - _LOAD)
        await table.delete([(each,) for each in gone])
        truth.delete(gone)
        self._truth.tables[name] = truth

    async def _write(self, client: scanner.Client, times: int) -> None:
        for truth in self._truth.tables.values():
            table = await client.table(truth.name)
            for _ in range(times):
                keys: Sequence[Key] = self._rng.sample(sorted(truth.home, key=str), self._rng.randint(1, 12))
                if self._rng.random() < 0.3:
                    await table.delete([(each,) for each in keys])
                    truth.delete(keys)
                else:
                    rows = [self._row(table.schema, truth.key, each) for each in keys]
                    await write_rows(table, rows)
                    truth.write(rows)
            ends = [each.end_offset for each in await table.offsets()]
            if ends != truth.ends:
                raise BenchFailed(f"table {truth.name!r} ends at {ends}, the oracle at {truth.ends}")

    def _row(self, schema: pa.Schema, key: str, value: Key) -> dict[str, object]:
        rng, row = self._rng, {key: value}
        for field in schema:
            if field.name != key and rng.random() < 0.8:
                number = rng.getrandbits(48)
                row[field.name] = (
                    number if pa.types.is_integer(field.type) else f"{number:012x}" * rng.randint(1, 9)
                )
        return row

    async def _mark(self, client: scanner.Client) -> None:
        for truth in self._truth.tables.values():
            table = await client.table(truth.name)
            for bucket in range(truth.buckets):
                found = await read_bucket(table, truth.key, bucket, "push")
                if (found.rows, found.offset) != (truth.newest(bucket), truth.ends[bucket]):
                    raise BenchFailed(f"table {truth.name!r} is not what the oracle says, before any fault")
                assert found.offset is not None
                self._truth.marks.append(
                    Mark(
                        table=truth.name,
                        bucket=bucket,
                        offset=found.offset,
                        history=found.history,
                        rows=found.rows,
                    )
                )

    async def _lease(self, client: scanner.Client, lease_id: str, state: str) -> None:
        targets = [LeaseTarget(name, state=state) for name in self._truth.tables]
        info, _, _ = await client.leases.acquire(lease_id, targets, LEASE_S, partial=False)
        assert info is not None
        self._truth.leases[lease_id] = [
            Mark(
                table=each.table,
                bucket=each.bucket,
                offset=each.log_offset,
                history=each.history,
                rows=self._truth.tables[each.table].states[each.bucket][each.log_offset],
            )
            for each in info.buckets
        ]

    async def _take_tokens(self, server: Server) -> None:
        for truth in self._truth.tables.values():
            for bucket in range(truth.buckets):
                taken = await take_tokens(server, truth.name, bucket)
                self._truth.tokens += self._rng.sample(taken, min(_TOKENS, len(taken)))

    def _cut_and_flush(self) -> None:
        with RocksStore.open(self._data) as store:
            for truth in self._truth.tables.values():
                for index in range(truth.buckets):
                    bucket = store.bucket(truth.name, index)
                    if self._rng.random() < 0.5:
                        bucket.truncate_log(self._rng.randrange(truth.ends[index]))
                    if self._rng.random() < 0.7:
                        bucket.flush()
                    if self._rng.random() < 0.3:
                        bucket.compact()

    def _copy(self, name: str) -> None:
        shutil.copytree(self._data, self._place / name)
        self._older_ends.append(
            {
                (truth.table_id, bucket): truth.ends[bucket]
                for truth in self._truth.tables.values()
                for bucket in range(truth.buckets)
            }
        )
