"""Source SNAPSHOT by push: over real sockets and RocksDB, resumed, parked, and without its checkpoint."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

import scanner
from scanner.client.scan.push import BucketReceiver
from scanner.client.scan.push_receiver import PushReceiver
from scanner.errors import ServerUnavailable, StoreFailed
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.config import ScannerConfig
from scanner.server.retention.checkpoints import BucketCheckpoints
from scanner.server.scan.tokens import MODEL_PUSH, TokenState
from scanner.storage.memory.store import MemoryStore
from scanner.storage.rocksdb.bucket import RocksBucket
from scanner.storage.rocksdb.store import RocksStore
from scanner.wire.queries import ScanQuery
from tests.support.client import open_client
from tests.support.maintenance import open_maintenance
from tests.support.open_files import open_files
from tests.support.scans import SCAN, description, failure, filled_store, sample, serving

if TYPE_CHECKING:
    import pyarrow as pa

    from scanner.server.tables.snapshots import SnapshotHold
    from scanner.storage.interface import Checkpoint

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

ROWS = 2000
QUERY = pb.ScanQuery(table="items")


@asynccontextmanager
async def items(
    store: Path | MemoryStore, linger_s: float = 10
) -> AsyncIterator[tuple[scanner.Client, scanner.Table]]:
    """A server and table `items` of two buckets with rows in it."""
    config = ScannerConfig(
        block_rows_max=200,
        batch_rows_max=500,
        checkpoint_interval_s=0,
        park_after_s=0.05,
        snapshot_linger_s=linger_s,
    )
    async with open_client(store, config=config) as (client, _):
        table = await client.create_table("items", description().schema, ["id"], 2)
        await table.write(sample(range(ROWS)))
        yield client, table


def ids(table: pa.Table) -> list[int]:
    """The ids, ascending."""
    found: list[int] = sorted(table["id"].to_pylist())
    return found


async def test_the_newest_checkpoint_is_scanned(tmp_path: Path) -> None:
    """Rows, projection, filter and limit are those of the checkpoint, and the offset is its."""
    async with items(tmp_path) as (client, table):
        made = await client.checkpoint("items")
        await table.write(sample(range(ROWS, ROWS + 50)))
        await table.delete([(1,), (2,)])
        snapshot = table.new_scan().with_source("snapshot")
        assert ids(await snapshot.to_arrow()) == list(range(ROWS))
        async with snapshot.bucket(1).execute() as batches:
            _ = [batch async for batch in batches]
        assert [each.log_offset for each in batches.statistics().buckets] == [made[1].log_offset]
        some = await snapshot.select("id").where(scanner.col("id") < 5).to_arrow()
        assert (ids(some), some.column_names) == ([0, 1, 2, 3, 4], ["id"])
        assert (await snapshot.limit(7).to_arrow()).num_rows == 7
        assert ids(await table.new_scan().to_arrow())[:2] == [0, 3]


async def test_the_digest_is_that_of_the_live_scan_of_the_state(tmp_path: Path) -> None:
    """A checkpoint, a live scan at that moment and one as of its offset later are the same rows in the same order."""
    async with items(tmp_path) as (client, table):
        (made,) = await client.checkpoint("items", 0)
        scan = table.new_scan().bucket(0)
        digests = []
        for each in (scan, scan.with_source("snapshot"), scan.as_of(made.log_offset)):
            async with each.execute() as batches:
                rows = sum([batch.num_rows async for batch in batches])
            digests.append((batches.statistics().digest, rows))
            await table.delete([(number,) for number in range(0, 500, len(digests))])
        assert len(set(digests)) == 1


async def test_a_scan_that_is_cut_again_and_again(tmp_path: Path) -> None:
    """Resumed after each batch it gives the same rows, from the checkpoint, and from the log when that is gone."""
    async with items(tmp_path) as (client, table):
        await client.checkpoint("items")
        snapshot = table.new_scan().with_source("snapshot").resume_every_batches(1)
        assert ids(await snapshot.to_arrow()) == list(range(ROWS))
        found = []
        async with snapshot.execute() as batches:
            async for batch in batches:
                found += batch["id"].to_pylist()
                if len(found) < ROWS:  # Other states take the place of the one that is being scanned.
                    await table.write(sample([ROWS + len(found)]))
                    await client.checkpoint("items")
        assert sorted(found) == list(range(ROWS))
        assert batches.statistics().resumes > 2


@pytest.mark.parametrize("kept", [True, False])
async def test_a_scan_that_is_cut_before_its_first_row(
    kept: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It began, and its user can know the state: it shows that one, or says that it is gone, and no newer one."""
    cuts: list[int] = []
    started, receive_stream = PushReceiver._started, BucketReceiver._receive_stream

    def started_and_cut(self: PushReceiver, message: pb.ScanStarted) -> None:
        started(self, message)
        if not cuts:
            cuts.append(message.log_offset)
            raise ServerUnavailable("cut by the test")

    async def receive_later(self: BucketReceiver) -> None:
        if cuts:
            for more in range(2):  # As many are kept.
                await table.write(sample(range(ROWS, ROWS + 50 + more)))
                await client.checkpoint("items", 0)
            if not kept:
                await client.compact_log("items", before=datetime.datetime.now(datetime.UTC))
        await receive_stream(self)

    monkeypatch.setattr(PushReceiver, "_started", started_and_cut)
    monkeypatch.setattr(BucketReceiver, "_receive_stream", receive_later)
    async with items(tmp_path, linger_s=0) as (client, table):
        await client.checkpoint("items", 0)
        async with table.new_scan().bucket(0).with_source("snapshot").execute() as batches:
            if kept:
                assert max([max(batch["id"].to_pylist()) async for batch in batches]) < ROWS
            else:
                with pytest.raises(scanner.SnapshotLost):
                    await anext(batches)
        (statistics,) = batches.statistics().buckets
        assert [statistics.log_offset] == cuts


async def test_a_scan_leaves_no_file_open(tmp_path: Path) -> None:
    """Run to its end, limited, or left half-way: what it opened of the checkpoint is closed."""
    async with items(tmp_path, linger_s=0) as (client, table):
        await client.acquire_lease("items", lease_id="nightly")
        assert sees_open_files(tmp_path / "checkpoints")
        for scan in (
            table.new_scan().with_source("snapshot"),
            table.new_scan().with_lease("nightly"),
            table.new_scan().with_lease("nightly").limit(3),
            table.new_scan().with_lease("nightly").with_credit(2_000),
        ):
            async with scan.execute() as batches:
                await anext(batches)
                if scan.plan.credit_bytes != 2_000:
                    _ = [batch async for batch in batches]
            with trio.fail_after(100):
                while open_files(tmp_path / "checkpoints"):
                    await trio.lowlevel.checkpoint()


def sees_open_files(directory: Path) -> bool:
    """Whether `open_files` would find one."""
    with next(directory.glob("*/*/*/CURRENT")).open():
        return len(open_files(directory)) == 1


async def test_a_stalled_scan_lets_go_of_the_checkpoint(tmp_path: Path) -> None:
    """Parked it holds nothing; with credit it goes on from the checkpoint, or what replaces it."""
    async with items(tmp_path) as (client, table):
        await client.checkpoint("items", 0)
        scan = table.new_scan().bucket(0).with_source("snapshot").with_credit(10_000)
        async with scan.execute() as batches:
            found = (await anext(batches))["id"].to_pylist()
            while any(not stream.scan.parked for stream in await client.list_streams() if stream.scan):
                pass  # Each look is a call, which lets time pass.
            assert [each for each in await client.list_snapshots() if each.holder == "stream"] == []
            for number in range(3):
                await table.write(sample(range(ROWS + 10 * number, ROWS + 10 * number + 10)))
                await client.checkpoint("items", 0)
            async for batch in batches:
                found += batch["id"].to_pylist()
        state = await table.new_scan().bucket(0).to_arrow()
        assert sorted(found) == [each for each in ids(state) if each < ROWS]


async def test_a_checkpoint_is_scanned_after_a_failed_write(tmp_path: Path) -> None:
    """Also one that is older than the log, by the first who uses the bucket: storage is opened anew for that scan."""
    async with open_client(tmp_path, config=ScannerConfig(disk_check_interval_s=1000)) as (client, server):
        table = await client.create_table("items", description().schema, ["id"], 1)
        await table.write(sample(range(10)))
        await client.checkpoint("items")
        await table.write(sample(range(10, 20)))
        await client.compact_log("items", before=20, bucket=0)
        ((_, _, bucket),) = server._services.catalog.open_buckets()
        assert isinstance(bucket.storage, RocksBucket)
        bucket.storage._lifetime.fail(StoreFailed("the disk refused the sync"))
        assert ids(await table.new_scan().with_source("snapshot").to_arrow()) == list(range(10))


@pytest.mark.parametrize("parked", [False, True])
async def test_a_write_that_fails_while_a_checkpoint_is_opened(
    parked: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The scan shows the checkpoint, which is there, also where it is older than the log; or goes on with it."""
    store = RocksStore.open(tmp_path)
    store.create_table(description())
    async with open_maintenance(store, ScannerConfig(block_rows_max=10)) as kept:
        await kept.write(range(40))
        await (await kept.checkpoints()).create()
        await kept.write(range(100, 110))
        bucket = await kept.bucket()
        bucket.storage.truncate_log(50)
        opened = await kept.snapshots.open(ScanQuery(table="items"), "anna") if parked else None
        open_checkpoint, failures = BucketCheckpoints.open, [StoreFailed("the disk refused the sync")]

        async def open_and_fail(checkpoints: BucketCheckpoints, checkpoint: Checkpoint) -> SnapshotHold:
            hold = await open_checkpoint(checkpoints, checkpoint)
            if failures:
                assert isinstance(bucket.storage, RocksBucket)
                bucket.storage._lifetime.fail(failures.pop())
            return hold

        monkeypatch.setattr(BucketCheckpoints, "open", open_and_fail)
        if opened is None:
            opened = await kept.snapshots.open(ScanQuery(table="items"), "anna")
        else:
            opened.scan.source.step()
            opened.scan.park()
            await kept.snapshots.reopen(opened)
        assert await kept.scan(opened) == list(range(40))
        assert not failures
    store.close()


async def test_what_makes_no_sense_is_refused() -> None:
    """No checkpoint, no lease, a lease for another source, an offset for a snapshot: typed, with what to do."""
    async with serving(filled_store(10)) as (_, client):

        async def refused(**opening: object) -> scanner.ScannerError:
            async def scan() -> None:
                opened = pb.ScanOpen(query=QUERY, **opening)  # type: ignore[arg-type]
                async with client.open_stream(SCAN) as stream:
                    await stream.send(pb.ScanRequest(open=opened).SerializeToString())
                    await stream.receive()

            return await failure(scan)

        lost = await refused(source=pb.SCAN_SOURCE_SNAPSHOT)
        assert isinstance(lost, scanner.SnapshotLost)
        assert "weir checkpoint items" in lost.message
        unknown = await refused(source=pb.SCAN_SOURCE_SNAPSHOT, lease_id="nobody's")
        assert isinstance(unknown, scanner.LeaseNotFound)
        for opening in (
            {"source": pb.SCAN_SOURCE_LIVE_KV, "lease_id": "x"},
            {"source": pb.SCAN_SOURCE_LOG, "lease_id": "x"},
            {"source": pb.SCAN_SOURCE_SNAPSHOT, "as_of": 3},
        ):
            assert isinstance(await refused(**opening), scanner.ArgumentInvalid)


@pytest.mark.parametrize("resumed", [False, True])
async def test_a_table_that_is_replaced_while_its_checkpoint_opens(
    resumed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that gets the name meanwhile is not scanned in the place of the one that was asked for."""
    store = MemoryStore()
    store.create_table(description())
    async with open_maintenance(store) as kept:
        await kept.write(range(40))
        await (await kept.checkpoints()).create()
        query = ScanQuery(table="items")
        begun = await kept.snapshots.open(query, "anna")
        state = TokenState(
            table_id=begun.table.table_id,
            bucket=0,
            source=pb.SCAN_SOURCE_SNAPSHOT,
            model=MODEL_PUSH,
            log_offset=begun.log_offset,
            position=begun.scan.source.position,
        )
        begun.scan.close()
        open_checkpoint = BucketCheckpoints.open

        async def open_slowly(checkpoints: BucketCheckpoints, checkpoint: Checkpoint) -> SnapshotHold:
            hold = await open_checkpoint(checkpoints, checkpoint)
            await kept.catalog.drop("items")
            await kept.catalog.create(description())
            await kept.write(range(1000, 1100))
            return hold

        monkeypatch.setattr(BucketCheckpoints, "open", open_slowly)
        with pytest.raises(scanner.TableNotFound, match="was dropped"):
            if resumed:
                await kept.snapshots.resume(query, "anna", state)
            else:
                await kept.snapshots.open(query, "anna")
        assert list(kept.catalog.open_scans()) == []


async def test_a_checkpoint_older_than_the_log() -> None:
    """It can be scanned for as long as it is there, and pins no log; resumed without it the state is lost."""
    store = MemoryStore(clock=lambda: 1)
    store.create_table(description())
    config = ScannerConfig(log_retention_s=0.001, block_rows_max=10)
    async with open_maintenance(store, config) as kept:
        await kept.write(range(40))
        checkpoints = await kept.checkpoints()
        await checkpoints.create()
        await kept.write(range(100, 110))
        await kept.maintenance.retention.sweep()
        bucket = await kept.bucket()
        assert bucket.storage.log_start == 50
        opened = await kept.snapshots.open(ScanQuery(table="items"), "anna")
        assert len(bucket.pins) == 0
        opened.scan.source.step()
        opened.scan.park()
        await kept.snapshots.reopen(opened)
        assert await kept.scan(opened, close=False) == list(range(40))
        opened.scan.park()
        for number in range(2):
            await kept.write([200 + number])
            await checkpoints.create()
        with pytest.raises(scanner.SnapshotLost) as lost:
            await kept.snapshots.reopen(opened)
        assert lost.value.oldest_offset == 50
        opened.scan.close()
