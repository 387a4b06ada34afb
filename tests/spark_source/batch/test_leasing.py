"""Every attempt of a task reads the state that the driver leased when it planned, lease or no lease, or fails."""

from __future__ import annotations

import datetime
import functools
import logging
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from scanner import LeaseTarget
from scanner.client.leases import Leases
from scanner.errors import (
    LeaseNotFound,
    OffsetOutOfRange,
    ServerUnavailable,
    SnapshotLost,
    TableNotFound,
    TooManyScans,
)
from scanner.server.config import ScannerConfig
from scanner.sync import Client, connect
from spark_source import SourceOptionError, WeirDataSource, connection
from spark_source.batch.leasing import TaskLease
from spark_source.batch.reader import BucketReader
from spark_source.batch.statistics import BucketReport
from spark_source.connection import AWAY
from spark_source.options import AS_OF_MODES
from spark_source.schema import STATISTICS_COLUMN
from tests.support.pickling import sent_to_worker
from tests.support.server import RunningServer, running_server

if TYPE_CHECKING:
    from scanner import LeaseInfo, ScannerError
    from scanner.server.server import Server
    from spark_source.batch.partitions import BucketPartition

pytestmark = [pytest.mark.rocks, pytest.mark.socket]

TABLE = "orders"
ROWS = 2_000
TTL_S = 600.0


@dataclass(slots=True)
class Clock:
    """Monotonic seconds that pass when they are told to."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with room for three leases, which cuts its changelogs when it is told to."""
    config = ScannerConfig(leases_max=3, leases_per_principal_max=3, retention_interval_s=3600.0)
    with running_server(tmp_path_factory.mktemp("weir"), config) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    """A client of it; there are a table of two buckets and no lease."""
    with connect(server.endpoint) as client:
        make_table(client)
        yield client
        for lease in client.list_leases():
            client.leases.drop(lease.lease_id)
        client.drop_table(TABLE)


def make_table(client: Client) -> None:
    """A table of two buckets, with rows."""
    rows = pa.table({"k": range(ROWS), "s": [f"{row:0100d}" for row in range(ROWS)]})
    client.create_table(TABLE, rows.schema, primary_key=["k"], buckets=2).write(rows)


def change(client: Client) -> None:
    """Change every row, take half of them away, and add others."""
    table = client.table(TABLE)
    table.write(pa.table({"k": range(ROWS + 100), "s": ["changed"] * (ROWS + 100)}))
    table.delete([(key,) for key in range(0, ROWS, 2)])


def open_reader(server: RunningServer, **options: str) -> BucketReader:
    """A reader as Spark makes it, having crossed a pickle."""
    source = WeirDataSource({"endpoint": server.endpoint, "table": TABLE, "statistics": "true"} | options)
    reader = source.reader(source.schema())
    assert isinstance(reader, BucketReader)
    return sent_to_worker(reader)


def attempt(reader: BucketReader, partition: BucketPartition) -> tuple[dict[int, str], BucketReport]:
    """The rows by key, and the report, of one attempt at a task."""
    *batches, last = sent_to_worker(reader).read(sent_to_worker(partition))
    rows = {row["k"]: row["s"] for batch in batches for row in batch.to_pylist()}
    return rows, BucketReport.from_json(last.column(STATISTICS_COLUMN)[0].as_py())


@pytest.mark.parametrize("mode", AS_OF_MODES)
def test_every_attempt_reads_what_was_planned(server: RunningServer, client: Client, mode: str) -> None:
    """Whatever is written between planning, attempt and attempt, the rows and the digest are those of the planning."""
    reader = open_reader(server, mode=mode, pageBytes="32k")
    partitions = reader.partitions()
    ends = {each.bucket: each.end_offset for each in client.table(TABLE).offsets()}
    expected = client.table(TABLE).new_scan().to_arrow()
    first = [attempt(reader, partition) for partition in partitions]
    change(client)
    again = [attempt(reader, partition) for partition in partitions]
    assert [rows for rows, _ in again] == [rows for rows, _ in first]
    assert [report.digest for _, report in again] == [report.digest for _, report in first]
    assert {report.bucket: report.log_offset for _, report in again} == ends
    assert sum(report.rows for _, report in again) == expected.num_rows


def test_the_lease_keeps_the_changelog(server: RunningServer, client: Client) -> None:
    """What retention would have cut stays for the tasks that have not begun."""
    (first, _), kept = open_reader(server).partitions(), client.list_leases()[0]
    assert (first.lease_id, kept.ttl_s) == (kept.lease_id, TTL_S)
    assert [each.log_offset for each in kept.buckets] == [
        each.end_offset for each in client.table(TABLE).offsets()
    ]
    assert {each.checkpoint_id for each in kept.buckets} == {None}


@pytest.mark.parametrize("mode", AS_OF_MODES)
def test_a_lease_that_has_ended(server: RunningServer, client: Client, mode: str) -> None:
    """A task that begins after its lease has ended reads what was planned, for as long as the changelog has it."""
    reader = open_reader(server, mode=mode)
    partition, _ = reader.partitions()
    assert partition.lease_id is not None
    first, _ = attempt(reader, partition)
    client.leases.drop(partition.lease_id)
    change(client)
    assert attempt(reader, partition)[0] == first
    server.ask(lambda running: cut_log(running, partition.bucket))
    with pytest.raises(
        SnapshotLost, match=r"Spark planned to read is no longer kept: .*; load the DataFrame again"
    ):
        attempt(reader, partition)


def cut_log(server: Server, bucket: int) -> None:
    """Take a bucket's changelog away, as retention does."""
    for _, index, served in server._services.catalog.open_buckets():
        if index == bucket:
            served.storage.truncate_log(served.storage.log_end)


@pytest.mark.parametrize("mode", AS_OF_MODES)
def test_a_table_that_was_created_anew(server: RunningServer, client: Client, mode: str) -> None:
    """A table of the same name and columns is another table: its rows are not taken for those that were planned."""
    reader = open_reader(server, mode=mode)
    partition, _ = reader.partitions()
    client.drop_table(TABLE)
    make_table(client)
    with pytest.raises(TableNotFound, match=r"created anew.*; load the DataFrame again"):
        attempt(reader, partition)


@pytest.mark.parametrize("state", ["leased", "asOf", "asOfTimestamp"])
def test_a_restored_copy(tmp_path: Path, kept_port: int, state: str) -> None:
    """A copy of the data directory that was written on has other states at the same offsets, and they are not read."""
    original, copy = tmp_path / "original", tmp_path / "copy"
    with running_server(original, port=kept_port) as server, connect(server.endpoint) as client:
        make_table(client)
    shutil.copytree(original, copy)
    with running_server(original, port=kept_port) as server, connect(server.endpoint) as client:
        change(client)
        ends = ",".join(f"{each.bucket}:{each.end_offset}" for each in client.table(TABLE).offsets())
        now = datetime.datetime.now(datetime.UTC).isoformat()
        options = {
            "leased": {},
            "asOf": {"asOf": ends},
            "asOfTimestamp": {"asOfTimestamp": now, "leaseTtl": "0"},
        }
        reader = open_reader(server, **options[state])
        partitions = reader.partitions()
    with running_server(copy, port=kept_port) as server, connect(server.endpoint) as client:
        for _ in range(3):
            client.table(TABLE).write(pa.table({"k": range(ROWS), "s": ["of the copy"] * ROWS}))
        for partition in partitions:
            with pytest.raises(SnapshotLost, match="another history of this bucket"):
                attempt(reader, partition)


def test_without_a_lease_tasks_read_what_is_there(server: RunningServer, client: Client) -> None:
    """With `leaseTtl` 0 nothing is leased, and an attempt reads what is there when it begins."""
    reader = open_reader(server, leaseTtl="0")
    partition, _ = reader.partitions()
    assert client.list_leases() == []
    change(client)
    rows, _ = attempt(reader, partition)
    assert set(rows.values()) == {"changed"}


def test_no_room_for_a_lease(server: RunningServer, client: Client) -> None:
    """The planning fails and says what to do, since without a lease two plans of one load would differ."""
    for _ in range(3):
        client.acquire_lease(TABLE)
    reader = open_reader(server)
    with pytest.raises(TooManyScans, match=r"no room for another lease: .*; let leases end sooner"):
        reader.partitions()
    assert len(open_reader(server, leaseTtl="0").partitions()) == 2


def test_no_room_for_the_leases_of_changes(server: RunningServer, client: Client) -> None:
    """What a read of changes is told to do is what it can: it takes neither `asOf` nor `leaseId`."""
    for _ in range(3):
        client.acquire_lease(TABLE)
    source = WeirDataSource({"endpoint": server.endpoint, "table": TABLE, "readChanges": "true"})
    with pytest.raises(TooManyScans, match=r"with a smaller leaseTtl, or take none, leaseTtl 0"):
        source.reader(source.schema()).partitions()


def test_a_load_that_is_planned_twice(server: RunningServer, client: Client) -> None:
    """Copies of one reader plan one state under one lease, whatever is written in between; another load does not."""
    reader, other = open_reader(server), open_reader(server)
    copy = sent_to_worker(reader)
    planned = reader.partitions()
    change(client)
    again = copy.partitions()
    assert again == planned
    assert len(client.list_leases()) == 1
    assert [attempt(copy, each)[0] for each in again] == [attempt(reader, each)[0] for each in planned]
    assert [each.plan.as_of for each in other.partitions()] != [each.plan.as_of for each in planned]


def test_a_load_that_is_planned_again_when_its_lease_has_ended(server: RunningServer, client: Client) -> None:
    """Nothing knows its state any more, and the present one is another: it is refused; a new load reads that."""
    reader, other = open_reader(server), open_reader(server)
    copy = sent_to_worker(reader)
    (partition, _) = reader.partitions()
    assert partition.lease_id is not None
    client.leases.drop(partition.lease_id)
    change(client)
    with pytest.raises(
        SnapshotLost, match=r"nothing keeps the state .*' has ended; .*; load the DataFrame again"
    ):
        copy.partitions()
    assert len(other.partitions()) == 2
    client.drop_table(TABLE)
    make_table(client)
    with pytest.raises(TableNotFound, match="created anew since it was loaded; load the DataFrame again"):
        sent_to_worker(other).partitions()


@pytest.mark.parametrize("error", AWAY)
def test_the_server_goes_away_while_a_load_is_planned(
    server: RunningServer, client: Client, monkeypatch: pytest.MonkeyPatch, error: type[ScannerError]
) -> None:
    """The planning is done once more, and reads the state that was leased; a server that is of no use is an error."""
    acquired: list[LeaseInfo] = []
    acquire = Leases.acquire

    async def lose_the_answer(leases: Leases, *args: Any, **options: Any) -> object:
        info, *_ = await acquire(leases, *args, **options)
        assert info is not None
        acquired.append(info)
        change(client)
        raise error("going down")

    reader = open_reader(server)
    monkeypatch.setattr(Leases, "acquire", lose_the_answer)
    partitions = reader.partitions()
    assert len(acquired) == 1
    assert [each.plan.as_of for each in partitions] == [each.log_offset for each in acquired[0].buckets]
    other = open_reader(server, leaseTtl="60")
    monkeypatch.setattr(Leases, "renew", _raise_always(error))
    monkeypatch.setattr(connection, "_PAUSE_S_MAX", 0.0)
    with pytest.raises(error, match="going down"):
        other.partitions()


def _raise_always(error: type[ScannerError]) -> Callable[..., Awaitable[object]]:
    async def fail(*args: Any, **options: Any) -> object:
        raise error("going down")

    return fail


def test_a_load_that_is_planned_again_when_a_bucket_was_released(
    server: RunningServer, client: Client
) -> None:
    """The bucket would be read as it is now, and the others as they were planned: it is refused."""
    for options in ({}, {"readChanges": "true", "statistics": "false"}):
        source = WeirDataSource({"endpoint": server.endpoint, "table": TABLE} | options)
        reader = sent_to_worker(source.reader(source.schema()))
        assert len(list(reader.partitions())) == 2
        for lease in client.list_leases():
            client.leases.release(lease.lease_id, TABLE, [1])
        change(client)
        with pytest.raises(
            SnapshotLost, match=r"has nothing of table 'orders', bucket 1; load the DataFrame"
        ):
            sent_to_worker(reader).partitions()


def test_loads_that_are_planned_at_once(server: RunningServer, client: Client) -> None:
    """Of copies that plan at the same moment, beside a writer, one leases and the others read what it has leased."""
    reader = open_reader(server)
    stop = threading.Event()

    def write() -> None:
        table = client.table(TABLE)
        while not stop.is_set():
            table.write(pa.table({"k": range(50), "s": ["changed"] * 50}))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with ThreadPoolExecutor(4) as planners:
            plans = list(
                planners.map(lambda copy: copy.partitions(), [sent_to_worker(reader) for _ in range(4)])
            )
    finally:
        stop.set()
        writer.join()
    assert all(plan == plans[0] for plan in plans)
    assert len(client.list_leases()) == 1


@pytest.mark.parametrize("mode", AS_OF_MODES)
def test_a_lease_of_the_users(server: RunningServer, client: Client, mode: str) -> None:
    """Many loads read what one lease keeps; none is taken, and the user's is renewed for its own time."""
    lease = client.acquire_lease(LeaseTarget(TABLE, state="log"), lease_id="night", ttl_s=1234)
    before = {row["k"]: row["s"] for row in client.table(TABLE).new_scan().to_arrow().to_pylist()}
    change(client)
    for _ in range(2):
        reader = open_reader(server, mode=mode, leaseId="night")
        rows: dict[int, str] = {}
        for partition in reader.partitions():
            assert (partition.lease_id, partition.lease_ttl_s) == ("night", 1234)
            rows |= attempt(reader, partition)[0]
        assert rows == before
    assert [each.lease_id for each in client.list_leases()] == [lease.id]


def test_no_lease_of_that_id(server: RunningServer, client: Client) -> None:
    """A lease that is not there is not made: the planning fails."""
    with pytest.raises(LeaseNotFound, match="night"):
        open_reader(server, leaseId="night").partitions()
    assert client.list_leases() == []


def test_a_lease_of_something_else(server: RunningServer, client: Client) -> None:
    """A lease that does not keep every bucket is refused with those that it lacks."""
    client.acquire_lease(LeaseTarget(TABLE, (0,), state="log"), lease_id="half")
    with pytest.raises(
        SourceOptionError, match=r"option 'leaseId' cannot be 'half': .*'orders', bucket 1; acquire"
    ):
        open_reader(server, leaseId="half").partitions()


@pytest.mark.parametrize("ttl", ["600", "0"])
def test_as_of_an_instant(server: RunningServer, client: Client, ttl: str) -> None:
    """What was committed before it is read, by every plan of the load, and nothing that was committed from it on."""
    before = {row["k"]: row["s"] for row in client.table(TABLE).new_scan().to_arrow().to_pylist()}
    ends = [each.end_offset for each in client.table(TABLE).offsets()]
    first = client.table(TABLE).new_scan().with_source("log").stop_at("end").to_arrow()
    instant = max(first["_commit_timestamp"].to_pylist()) + datetime.timedelta(microseconds=1)
    change(client)
    changes = client.table(TABLE).new_scan().with_source("log").start_at(dict(enumerate(ends))).stop_at("end")
    assert min(changes.to_arrow()["_commit_timestamp"].to_pylist()) >= instant
    reader = open_reader(server, asOfTimestamp=instant.isoformat(), leaseTtl=ttl)
    partitions = reader.partitions()
    assert [each.plan.as_of for each in partitions] == ends
    assert len(client.list_leases()) == (ttl != "0")
    rows: dict[int, str] = {}
    for partition in partitions:
        rows |= attempt(reader, partition)[0]
    assert rows == before
    change(client)
    assert sent_to_worker(reader).partitions() == partitions


def test_an_instant_to_come(server: RunningServer, client: Client) -> None:
    """A time at which commits can still come is no state."""
    with pytest.raises(SourceOptionError, match=r"option 'asOfTimestamp' cannot be .*future"):
        open_reader(server, asOfTimestamp="2999-01-01T00:00Z").partitions()


def test_an_instant_before_the_changelog(server: RunningServer, client: Client) -> None:
    """A time of which the changelog knows nothing any more is refused, with what it still knows."""
    change(client)
    for bucket in range(2):
        server.ask(functools.partial(cut_log, bucket=bucket))
    with pytest.raises(OffsetOutOfRange, match=r"what was before is gone: .*use a later asOfTimestamp"):
        open_reader(server, asOfTimestamp="2013-07-01T12:30Z").partitions()


def test_a_state_of_the_users_choice_is_the_users_to_keep(server: RunningServer, client: Client) -> None:
    """With `asOf` no lease is taken."""
    first, second = open_reader(server, asOf="0:1,1:2").partitions()
    assert (first.plan.as_of, second.plan.as_of, first.lease_id) == (1, 2, None)
    assert client.list_leases() == []


def test_tasks_renew_the_lease(
    client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three times in its time to live; a renewal that fails fails no task, whose scan keeps what it needs itself."""
    clock = Clock()
    lease = client.acquire_lease(TABLE, ttl_s=TTL_S)
    task = TaskLease(client, (lease.id,), TTL_S, clock)
    task.begin()
    monkeypatch.setattr(Leases, "renew", _raise_always(ServerUnavailable))
    with caplog.at_level(logging.WARNING, "weir.spark"):
        clock.now += TTL_S / 3 - 1
        task.renew_if_due()
        assert caplog.text == ""
        clock.now += 1
        task.renew_if_due()
        assert caplog.text.count("was not renewed") == 1
        task.renew_if_due()
        assert caplog.text.count("was not renewed") == 1
    lease.drop()


def test_a_lease_that_ends_while_a_task_reads(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """It does not come back, so it is warned of once, and asked for no more; the others are still renewed."""
    clock = Clock()
    ended, kept = (client.acquire_lease(TABLE, ttl_s=TTL_S) for _ in range(2))
    task = TaskLease(client, (ended.id, kept.id), TTL_S, clock)
    task.begin()
    ended.drop()
    with caplog.at_level(logging.WARNING, "weir.spark"):
        for _ in range(3):
            clock.now += TTL_S / 3
            task.renew_if_due()
        assert caplog.text.count("has ended while a task read") == 1
        kept.drop()
        clock.now += TTL_S / 3
        task.renew_if_due()
        assert caplog.messages[-1].startswith(f"lease {kept.id} has ended")
