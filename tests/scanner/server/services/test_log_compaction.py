"""`CompactLog` over real sockets: what goes, what is pinned and by whom, and what is refused."""

from __future__ import annotations

import datetime
import logging
import random
import re
import threading
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest
import trio

import scanner
from scanner.errors import (
    ArgumentInvalid,
    BucketNotFound,
    DataCorrupted,
    OffsetOutOfRange,
    PermissionDenied,
    ScannerError,
    StoreFailed,
    TableNotFound,
)
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.auth.principals import Credentials, make_token, token_sha256
from scanner.server.server import open_server
from scanner.storage.memory.store import MemoryStore
from scanner.storage.rocksdb.bucket import RocksBucket
from scanner.storage.rocksdb.config import StorageConfig
from scanner.storage.rocksdb.log import cut_files
from tests.support.client import open_client
from tests.support.scans import (
    create_table,
    description,
    filled_store,
    open_scan,
    sample,
    serving,
    write,
    write_request,
)

pytestmark = pytest.mark.socket

_SMALL_BUFFERS = StorageConfig(bucket_write_buffer_bytes=64 * 1024, write_buffers_bytes=1024 * 1024)


async def test_what_goes_and_what_stays(caplog: pytest.LogCaptureFixture) -> None:
    """By time, by offset, and by retention, which lets nothing go that is young; a tail keeps what it has not read."""
    async with (
        serving(MemoryStore()) as (server, client),
        scanner.connect(f"127.0.0.1:{server.port}") as admin,
    ):
        await create_table(client, description())
        for start in (0, 10, 20):
            await write(client, write_request(sample(range(start, start + 10))))
        ((_, _, bucket),) = server._services.catalog.open_buckets()
        second = bucket.storage.entry_at(10).timestamp_us
        (done,) = await admin.compact_log("items")
        assert (done.bucket, done.start_offset, done.end_offset, done.changes_dropped) == (0, 0, 30, 0)
        async with open_scan(
            client, source=pb.SCAN_SOURCE_LOG, log_start=pb.LogStart(offset=10), credit=1, batch_rows_max=1
        ) as scan:
            await scan.receive()
            await scan.receive()  # It is inside a commit, which is kept whole.
            (done,) = await admin.compact_log("items", before=20, bucket=0)
            assert (done.start_offset, done.changes_dropped, done.changes_pinned) == (10, 10, 10)
            assert [(pin.what, pin.principal, pin.offset) for pin in done.pins] == [
                ("scan of the changelog", "anonymous", 11)
            ]
        while bucket.pins:
            await scan_ended(admin)
        with caplog.at_level(logging.INFO, "weir.audit"):
            (done,) = await admin.compact_log("items", before=_time(second + 1))
        assert (done.start_offset, done.changes_dropped, done.changes_pinned, done.pins) == (20, 10, 0, ())
        assert "event=log_compacted principal=anonymous" in caplog.text
        assert "table=items buckets=1 dropped=10" in caplog.text


@pytest.mark.rocks
async def test_the_disk_of_what_goes_is_given_back_before_the_answer(tmp_path: Path) -> None:
    """Though nothing is written any more."""
    draw = random.Random(1)
    async with open_client(tmp_path, storage_config=_SMALL_BUFFERS) as (admin, server):
        table = await admin.create_table("items", sample([]).schema, ["id"], buckets=1)
        for number in range(40):
            names = pa.array([draw.randbytes(1000).hex() for _ in range(100)])
            rows = sample(range(100 * number, 100 * number + 100))
            await table.write(rows.set_column(1, "name", names))
        ((_, _, bucket),) = server._services.catalog.open_buckets()
        assert isinstance(bucket.storage, RocksBucket)
        await admin.compact_log("items", before=4000, bucket=0)
        with bucket.storage._lifetime.using() as database:
            assert cut_files(database, bucket.storage._state.log_range) == []


@pytest.mark.rocks
async def test_a_table_that_is_dropped_while_disk_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Is not found, and nothing is wrong with the disk."""
    about_to_free, dropped = trio.Event(), threading.Event()
    free = RocksBucket.free_log

    def free_later(bucket: RocksBucket) -> bool:
        trio.from_thread.run_sync(about_to_free.set)
        dropped.wait()
        return free(bucket)

    monkeypatch.setattr(RocksBucket, "free_log", free_later)
    async with open_client(tmp_path) as (admin, _):
        await admin.create_table("items", sample([]).schema, ["id"], buckets=1)

        async def compact() -> None:
            with pytest.raises(TableNotFound, match="was dropped"):
                await admin.compact_log("items")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(compact)
            await about_to_free.wait()
            await admin.drop_table("items")
            dropped.set()
    assert [each.message for each in caplog.records if each.levelno >= logging.ERROR] == []


async def scan_ended(admin: scanner.Client) -> None:
    """A round trip, in which the server may see that a stream has gone."""
    await admin.list_streams()


def _time(timestamp_us: int) -> datetime.datetime:
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return epoch + datetime.timedelta(microseconds=timestamp_us)


async def test_what_is_refused() -> None:
    """Typed, and nothing goes."""
    tomorrow = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    wrong: list[tuple[dict[str, object], type[ScannerError]]] = [
        ({"before": 1}, ArgumentInvalid),
        ({"before": -1, "bucket": 0}, ArgumentInvalid),
        ({"before": 4, "bucket": 0}, OffsetOutOfRange),
        ({"before": tomorrow}, ArgumentInvalid),
        ({"bucket": 1}, BucketNotFound),
        ({"bucket": -1}, BucketNotFound),
        ({"bucket": 0.0}, BucketNotFound),
        ({"before": 2.0, "bucket": 0}, ArgumentInvalid),
        ({"before": True, "bucket": 0}, ArgumentInvalid),
    ]
    store = filled_store(3)
    async with serving(store) as (server, _), scanner.connect(f"127.0.0.1:{server.port}") as admin:
        for arguments, error in wrong:
            with pytest.raises(error):
                await admin.compact_log("items", **arguments)  # type: ignore[arg-type]
        with pytest.raises(TableNotFound):
            await admin.compact_log("other")
    assert store.bucket("items", 0).log_start == 0


async def test_it_needs_the_right_to_administer() -> None:
    """Reading and writing a table are not enough to drop its history."""
    token = make_token()
    rights = f'[principals.anna]\ntoken_sha256 = ["{token_sha256(token)}"]\nread = ["*"]\nwrite = ["*"]\n'
    async with (
        open_server(filled_store(3), credentials=Credentials.parse(rights)) as server,
        scanner.connect(f"127.0.0.1:{server.port}", token=token, insecure_token=True) as client,
    ):
        with pytest.raises(PermissionDenied):
            await client.compact_log("items")


async def test_what_was_done_beside_a_failure_is_audited(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An act on several buckets that fails at one leaves its line for the others; one that did nothing, none.

    Checkpoints end at the failure, changelogs are cut behind it, too.
    """
    store = MemoryStore()
    caplog.set_level(logging.INFO, "weir.audit")

    def refuse(*_: object) -> None:
        raise StoreFailed("of the test")

    async with (
        serving(store) as (server, client),
        scanner.connect(f"127.0.0.1:{server.port}") as admin,
    ):
        await create_table(client, description(buckets=2))
        make = store.create_checkpoint
        for failing in (1, 0):
            await write(client, write_request(sample(range(100))))
            with monkeypatch.context() as patch:
                patch.setattr(store.bucket("items", failing), "truncate_log", refuse)
                patch.setattr(
                    store,
                    "create_checkpoint",
                    lambda name, index, at=failing: refuse() if index == at else make(name, index),
                )
                with pytest.raises(StoreFailed):
                    await admin.checkpoint("items")
                with pytest.raises(StoreFailed):
                    await admin.compact_log("items", before=datetime.datetime.now(datetime.UTC))
    audited = server.statistics().activity.audited
    assert (audited["checkpoint_made"], audited["log_compacted"]) == (1, 2)
    assert caplog.text.count("buckets=1") == 3


@pytest.mark.parametrize(
    ("step", "became"),
    [("truncate_log", "is not cut"), ("free_log", "is cut, and what is cut still takes disk")],
)
async def test_the_error_says_what_became_of_the_changelog(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str, became: str
) -> None:
    """A file that is damaged may keep it from being cut, or its disk from being given back alone."""
    store = MemoryStore()

    def refuse(*_: object) -> NoReturn:
        raise DataCorrupted("a file of the test is damaged")

    async with (
        serving(store) as (server, client),
        scanner.connect(f"127.0.0.1:{server.port}") as admin,
    ):
        await create_table(client, description())
        await write(client, write_request(sample(range(100))))
        bucket = store.bucket("items", 0)
        monkeypatch.setattr(bucket, step, refuse)
        said = f"the changelog of items[0] {became}: a file of the test is damaged"
        with pytest.raises(DataCorrupted, match=re.escape(said)):
            await admin.compact_log("items", before=datetime.datetime.now(datetime.UTC))
        assert bucket.log_start == (0 if step == "truncate_log" else 100)
    assert said in caplog.text
