"""A data directory that is not the one that a scan began with: restored, forked, or short of its newest commits.

Every row says which history wrote it. Whatever the model, a scan then ends with an error, or with all the rows of one
history; never with rows of two. So do leases, and reads as of an offset that name their history.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
import trio

import scanner
from scanner.errors import ScannerError, SnapshotLost, TableNotFound
from scanner.server.config import ScannerConfig
from scanner.server.server import open_server
from scanner.storage.lineage import Lineage
from scanner.storage.rocksdb import data_directory
from scanner.storage.rocksdb.store import RocksStore
from tests.support.living import copy_living

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

ROWS = 3000
SCHEMA = pa.schema([("id", pa.int64()), ("written_by", pa.string()), ("text", pa.string())])
CONFIG = ScannerConfig(batch_bytes=10_000, heartbeat_interval_s=0.05)
MODES = ["push", "session", "token", "cursor", "asof"]


def _rows(written_by: str, start: int = 0, count: int = ROWS) -> pa.RecordBatch:
    ids = range(start, start + count)
    return pa.record_batch(
        [pa.array(ids, pa.int64()), pa.array([written_by] * count), pa.array(["x" * 100] * count)],
        schema=SCHEMA,
    )


@asynccontextmanager
async def _served(data: Path, port: int = 0) -> AsyncIterator[int]:
    with trio.fail_after(100):
        async with open_server(data, port=port, config=CONFIG) as server:
            yield server.port


async def _write(data: Path, written_by: str, start: int = 0, count: int = ROWS) -> None:
    """Write to a directory that nobody serves."""
    async with _served(data) as port, scanner.connect(f"127.0.0.1:{port}") as client:
        table = await client.table("items")
        await table.write(_rows(written_by, start, count))


async def _create(data: Path) -> None:
    async with _served(data) as port, scanner.connect(f"127.0.0.1:{port}") as client:
        table = await client.create_table("items", SCHEMA, ["id"], 1)
        await table.write(_rows("first"))


def _as_killed(data: Path) -> Path:
    """A copy of what a server that is killed now leaves, while it writes nothing."""
    return copy_living(data, data.with_name("killed"))


def _replace(data: Path, copy: Path) -> None:
    shutil.rmtree(data)
    shutil.copytree(copy, data)


async def restored(data: Path, backup: Path, _killed: Path) -> None:
    """The backup is put back, and written on."""
    _replace(data, backup)
    await _write(data, "restored", 0, ROWS // 2)


async def forked(data: Path, backup: Path, _killed: Path) -> None:
    """The backup is put back and written on, until its log is longer than the other one's was."""
    _replace(data, backup)
    for _ in range(3):
        await _write(data, "forked")


async def lost(data: Path, _backup: Path, killed: Path) -> None:
    """The write-ahead log of a killed server lost what was written last; then others write."""
    _replace(data, killed)
    _tear_log(data)
    await _write(data, "after the loss", 0, ROWS // 2)


def _tear_log(data: Path) -> None:
    (bucket,) = data.glob("tables/*/0000")
    wal = max((path for path in bucket.glob("*.log") if path.stat().st_size), key=lambda path: int(path.stem))
    with wal.open("r+b") as file:
        file.truncate(wal.stat().st_size - 1)


Happening = Callable[[Path, Path, Path], Awaitable[None]]
HAPPENINGS = pytest.mark.parametrize(
    "happens", [restored, forked, lost], ids=lambda happens: str(happens.__name__)
)


def judge(ids: list[int], written_by: list[str]) -> None:
    """All the rows of one history, each once."""
    assert sorted(ids) == list(range(ROWS)), "rows are missing or repeated"
    assert len(set(written_by)) == 1, f"rows of {sorted(set(written_by))} in one scan"


async def scan_through(tmp_path: Path, port: int, mode: str, happens: Happening) -> None:
    """Begin a scan, let something happen to the directory while its server is away, and go on; judge what comes."""
    data, backup = tmp_path / "data", tmp_path / "backup"
    await _create(data)
    shutil.copytree(data, backup)
    client_up = scanner.connect(f"127.0.0.1:{port}", rng=Random(1))
    ids: list[int] = []
    written_by: list[str] = []

    def take(batch: pa.RecordBatch) -> None:
        ids.extend(batch["id"].to_pylist())
        written_by.extend(batch["written_by"].to_pylist())

    async with trio.open_nursery() as nursery:
        stop = await nursery.start(_serve_until, data, port)
        async with client_up as client:
            table = await client.table("items")
            await table.write(_rows("second"))
            scan = (
                table.new_scan()
                .with_mode(mode)
                .with_credit(20_000)
                .with_page_bytes(20_000)
                .with_page_depth(0)
            )
            async with scan.execute() as batches:
                take(await anext(batches))
                killed = _as_killed(data)
                await stop()
                await happens(data, backup, killed)
                stop = await nursery.start(_serve_until, data, port)
                async for batch in batches:
                    take(batch)
        await stop()
    judge(ids, written_by)


async def _serve_until(
    data: Path, port: int, *, task_status: trio.TaskStatus[Callable[[], Awaitable[None]]]
) -> None:
    stopping, stopped = trio.Event(), trio.Event()

    async def stop() -> None:
        stopping.set()
        await stopped.wait()

    async with _served(data, port):
        task_status.started(stop)
        await stopping.wait()
    stopped.set()


@HAPPENINGS
@pytest.mark.parametrize("mode", MODES)
async def test_a_scan_never_mixes_two_histories(
    tmp_path: Path, kept_port: int, mode: str, happens: Happening
) -> None:
    """It fails, typed, in every model; `judge` would have to agree with whatever else it did."""
    with pytest.raises(BaseExceptionGroup) as caught:
        await scan_through(tmp_path, kept_port, mode, happens)
    error: BaseException = caught.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, ScannerError)
    if mode in ("push", "cursor", "asof"):
        assert isinstance(error, SnapshotLost)
        assert "another history" in str(error)


@pytest.mark.parametrize("mode", ["push", "cursor"])
async def test_without_histories_the_scan_mixes(
    tmp_path: Path, kept_port: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broken server takes any token of the table for its own: `judge` sees what comes of it."""
    monkeypatch.setattr(Lineage, "require", lambda *_: None)
    monkeypatch.setattr("scanner.storage.lineage.Lineage.history_of", lambda *_: bytes(16))
    with pytest.raises(AssertionError, match=r"rows of \['forked', 'second'\] in one scan"):
        await scan_through(tmp_path, kept_port, mode, forked)


@HAPPENINGS
async def test_leases_and_past_states_of_another_history_are_refused(
    tmp_path: Path, happens: Happening
) -> None:
    """A lease of what is lost ends; `as_of` with its history is SNAPSHOT_LOST, whatever the log's length is now."""
    data, backup = tmp_path / "data", tmp_path / "backup"
    await _create(data)
    async with _served(data):
        pass
    shutil.copytree(data, backup)
    async with _served(data) as port, scanner.connect(f"127.0.0.1:{port}") as client:
        table = await client.table("items")
        await table.write(_rows("second"))
        target = scanner.LeaseTarget(table="items", state="log")
        lease = await client.acquire_lease(target, lease_id="report", ttl_s=3600)
        (leased,) = lease.buckets
        documents = tmp_path / "documents"
        shutil.copytree(data / "documents", documents)
        killed = _as_killed(data)
    await happens(data, backup, killed)
    # The worst case: what names the states is newer than what is restored.
    shutil.copytree(documents, data / "documents", dirs_exist_ok=True)
    async with _served(data) as port, scanner.connect(f"127.0.0.1:{port}") as client:
        table = await client.table("items")
        assert await client.leases.list(None) == []
        for mode in ("push", "asof"):
            scan = table.new_scan().with_mode(mode).as_of({0: leased.log_offset}, {0: leased.history})
            with pytest.raises(SnapshotLost, match="another history"):
                async with scan.execute() as batches:
                    async for _ in batches:
                        pass


async def put_back(data: Path, backup: Path, _killed: Path) -> None:
    """The backup is put back, and nothing is written."""
    _replace(data, backup)


async def across(data: Path, backup: Path, _killed: Path) -> None:
    """The backup is put back, and a commit of its own lies across the end that the other log had."""
    _replace(data, backup)
    await _write(data, "across", ROWS, 1)
    await _write(data, "across")


@pytest.mark.parametrize("source", ["log", "hybrid"])
@pytest.mark.parametrize("happens", [put_back, across], ids=lambda happens: str(happens.__name__))
async def test_a_stop_of_another_history_is_refused(
    tmp_path: Path, kept_port: int, source: str, happens: Happening
) -> None:
    """What was delivered is of both histories, the stop is not: no wait for it, and no change behind it."""
    data, backup = tmp_path / "data", tmp_path / "backup"
    await _create(data)
    shutil.copytree(data, backup)
    with pytest.raises(BaseExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            stop = await nursery.start(_serve_until, data, kept_port)
            async with scanner.connect(f"127.0.0.1:{kept_port}", rng=Random(1)) as client:
                table = await client.table("items")
                scan = table.new_scan().with_source(source).with_credit(20_000)
                if source == "hybrid":
                    scan = scan.as_of(ROWS)
                await table.write(_rows("second"))
                async with scan.stop_at("end").execute() as batches:
                    await anext(batches)
                    killed = _as_killed(data)
                    await stop()
                    await happens(data, backup, killed)
                    await nursery.start(_serve_until, data, kept_port)
                    with trio.fail_after(100):
                        async for _ in batches:
                            pass
    error: BaseException = caught.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, SnapshotLost)
    assert f"ends at {3 * ROWS} of another history" in str(error)


async def test_a_restart_harms_nothing(tmp_path: Path) -> None:
    """The same directory, opened again any number of times, with commits between: tokens and past states go on."""
    data = tmp_path / "data"
    await _create(data)
    with RocksStore.open(data) as store:
        bucket = store.bucket("items", 0)
        offset, history = bucket.log_end, bucket.lineage.history_of(bucket.log_end)
    for number in range(3):
        await _write(data, f"later {number}", 0, 10)
        async with _served(data) as port, scanner.connect(f"127.0.0.1:{port}") as client:
            scan = (await client.table("items")).new_scan().as_of({0: offset}, {0: history})
            async with scan.execute() as batches:
                rows = [row async for batch in batches for row in batch["written_by"].to_pylist()]
            assert rows == ["first"] * ROWS
            (bucket_statistics,) = batches.statistics().buckets
            assert bucket_statistics.history == history


async def test_a_later_history_holds_the_states_before_it(tmp_path: Path) -> None:
    """The history of now names an older offset, too: what lies before it is its own past."""
    data = tmp_path / "data"
    await _create(data)
    await _write(data, "later")
    async with _served(data) as port, scanner.connect(f"127.0.0.1:{port}") as client:
        table = await client.table("items")
        now = await table.get([(1,)])
        assert now.log_offsets == {0: 3 * ROWS}
        for mode in ("push", "asof"):
            scan = table.new_scan().with_mode(mode).as_of(ROWS, now.histories)
            rows = (await scan.to_arrow())["written_by"].to_pylist()
            assert rows == ["first"] * ROWS
        then = await table.get([(1,)], as_of=ROWS, histories=now.histories)
        assert then.rows["written_by"].to_pylist() == ["first"]
        assert then.histories != now.histories


async def test_a_directory_made_anew_has_other_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table is not taken for one that another directory had at this address: here it has more buckets."""
    monkeypatch.setattr(data_directory, "FIRST_TABLE_ID_END", 1 << 30)
    async with _served(tmp_path / "first") as port, scanner.connect(f"127.0.0.1:{port}") as client:
        table = await client.create_table("items", SCHEMA, ["id"], 1)
    async with _served(tmp_path / "second", port) as port, scanner.connect(f"127.0.0.1:{port}") as client:
        anew = await client.create_table("items", SCHEMA, ["id"], 2)
        await anew.write(_rows("second"))
        with pytest.raises(TableNotFound, match="created anew; look it up again"):
            await client.scan(table.new_scan().plan).to_arrow()
