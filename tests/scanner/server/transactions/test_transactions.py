"""Transactions over a real server: decided once, completed, superseded, refused, expired."""

from __future__ import annotations

import functools
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import psutil
import pyarrow as pa
import pytest
import trio
import trio.testing

import scanner
import transport
from scanner.client.credentials import bearer
from scanner.data.table import TableDescription
from scanner.errors import (
    ArgumentInvalid,
    DataCorrupted,
    KeyInvalid,
    PartsConflict,
    PermissionDenied,
    ScannerError,
    SchemaMismatch,
    StageNotFound,
    StagesFull,
    StoreFailed,
    TableNotFound,
    TooManyTransactions,
    TransactionDecided,
    VersionSuperseded,
)
from scanner.proto.weir.v1 import transactions_pb2 as pb
from scanner.server.auth.access import CredentialsFile
from scanner.server.config import ScannerConfig
from scanner.server.tables.bucket import ServedBucket
from scanner.server.tables.catalog import Catalog, ServedTable
from scanner.server.transactions import completion
from scanner.server.transactions.decisions import Decision
from scanner.server.transactions.names import TransactionName, TransactionTable, VersionKey
from scanner.server.transactions.overwriting import deletions
from scanner.server.transactions.registry import Transactions
from scanner.server.transactions.stages import Attempt
from scanner.storage.interface import Mutation
from scanner.storage.memory.store import MemoryStore
from scanner.storage.memory.transaction_files import MemoryTransactionFiles
from scanner.storage.rocksdb.bucket import RocksBucket
from scanner.storage.rocksdb.files import read_sealed, write_sealed
from scanner.storage.rocksdb.store import RocksStore
from scanner.storage.rocksdb.table_directories import mark_dropping
from scanner.storage.rocksdb.transaction_files import RocksTransactionFiles
from scanner.storage.stage_frames import mutation_frames
from scanner.storage.transactions import ALL_KNOWN, StageKey, StoredStage
from scanner.tasks import RunBlocking, inline
from scanner.wire import methods
from scanner.wire.arrow_ipc import encode_stream
from tests.scanner.server.auth import test_access as access
from tests.support.client import open_client
from tests.support.transactions import (
    BEFORE,
    BUCKETS,
    SCHEMA,
    changes,
    contents,
    keys,
    make_table,
    refuse_shares,
    rows,
)
from transport import CallFailed

if TYPE_CHECKING:
    from scanner.server.server import Server

pytestmark = [pytest.mark.socket]

T = TypeVar("T")


def found_in(directory: Path, pattern: str) -> list[Path]:
    """Files below a directory."""
    return list(directory.rglob(pattern))


@pytest.mark.rocks
async def test_a_table_that_is_dropped_while_its_version_is_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """There is nothing left to apply, and nothing wrong that the log would have to tell."""
    applying, dropped = trio.Event(), threading.Event()
    begin = completion._begin

    def begin_late(*arguments: Any) -> object:
        trio.from_thread.run_sync(applying.set)
        dropped.wait()
        return begin(*arguments)

    monkeypatch.setattr(completion, "_begin", begin_late)
    async with open_client(tmp_path) as (client, _), trio.open_nursery() as nursery:
        table = await client.create_table("t", SCHEMA, ["id"], 1)
        version = table.transaction("load", 1)
        await version.stage(rows(BEFORE), part=0, attempt=0)

        async def publish() -> None:
            with pytest.raises(TableNotFound, match="was dropped"):
                await version.publish({0: 0})

        nursery.start_soon(publish)
        await applying.wait()
        await client.drop_table("t")
        dropped.set()
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_table_that_is_not_dropped_after_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a drop has refused that then fails is not over: the version is applied, before any newer one."""
    applying, dropping, refused = trio.Event(), trio.Event(), trio.Event()
    apply_share = completion.Applier._apply_share

    async def apply_late(*arguments: Any) -> Any:
        applying.set()
        await dropping.wait()
        try:
            return await apply_share(*arguments)
        except TableNotFound:
            refused.set()
            raise

    async def retire(*_: object) -> None:
        dropping.set()
        await refused.wait()
        raise StoreFailed("the disk refused")

    async with open_client(MemoryStore()) as (client, _):
        table = await make_table(client)
        version, newer = table.transaction("load", 1), table.transaction("load", 2)
        await version.stage(rows({50: "new"}), part=0, attempt=0)
        monkeypatch.setattr(completion.Applier, "_apply_share", apply_late)
        monkeypatch.setattr(ServedBucket, "retire", retire)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(version.publish, {0: 0})
            await applying.wait()
            with pytest.raises(StoreFailed):
                await client.drop_table("t")
        await newer.stage(rows({51: "newer"}), part=0, attempt=0)
        await newer.publish({0: 0})
        assert await contents(table) == {**BEFORE, 50: "new", 51: "newer"}


async def test_a_version_of_many_buckets_lets_others_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of another table waits for a bucket, and not for all of them."""
    order, applying, go_on = list[str](), trio.Event(), trio.Event()
    apply_share = completion.Applier._apply_share

    async def apply_late(*arguments: Any) -> Any:
        order.append(arguments[4].name)
        applying.set()
        await go_on.wait()
        return await apply_share(*arguments)

    async with open_client(MemoryStore(), ScannerConfig(transaction_buckets_max=1)) as (client, server):
        large = (await make_table(client, "t")).transaction("large", 1)
        small = (await make_table(client, "u")).transaction("small", 1)
        await large.stage(rows(BEFORE), part=0, attempt=0)
        await small.stage(rows({0: "new"}), part=0, attempt=0)
        monkeypatch.setattr(completion.Applier, "_apply_share", apply_late)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(large.publish, {0: 0})
            await applying.wait()
            nursery.start_soon(small.publish, {0: 0})
            while server.statistics().transactions_unapplied < 2:
                await trio.lowlevel.checkpoint()
            await trio.testing.wait_all_tasks_blocked()
            go_on.set()
    assert order == ["large", "small", "large", "large"]


async def test_no_more_parts_than_a_version_may_have() -> None:
    """Counted as they were sent, before any of them is looked at."""
    async with open_client(MemoryStore(), ScannerConfig(transaction_parts_max=3)) as (client, _):
        version = (await make_table(client)).transaction("load", 1)
        with pytest.raises(ArgumentInvalid, match="4 parts is too large; 3 are allowed"):
            await version.publish(dict.fromkeys(range(4), 0))
        with pytest.raises(StageNotFound):
            await version.publish(dict.fromkeys(range(3), 0))


async def test_rows_are_seen_when_they_are_published() -> None:
    """Not in scans, not in tails, not in offsets before; then all of them, in the order of each part."""
    async with open_client(MemoryStore()) as (client, _):
        table = await make_table(client)
        offsets = await table.offsets()
        version = table.transaction("load", 0)
        async with version.part(0, 0) as writer:
            await writer.upsert(rows({1: "first", 100: "x"}))
            await writer.delete(keys([1, 2]))
            await writer.upsert(rows({2: "again"}))
        assert (await writer.close()).rows == 5
        await version.stage(rows({100: "y"}), part=0, attempt=0)
        assert (await contents(table), await table.offsets()) == (BEFORE, offsets)
        published = await version.publish({0: 0})
        expected = {**BEFORE, 2: "again", 100: "y"}
        del expected[1]
        assert await contents(table) == expected
        assert {bucket: end for bucket, _, end in published.ranges}.items() <= {
            bucket: end for bucket, _, end in await table.offsets()
        }.items()
        assert published.decided


async def test_a_version_is_decided_once() -> None:
    """Whoever publishes it again gets what was decided, whatever he names; what he stages is not kept."""
    async with open_client(MemoryStore()) as (client, _):
        table = await make_table(client)
        version = table.transaction("load", 5)
        await version.stage(rows({50: "a"}), part=0, attempt=0)
        await version.stage(rows({50: "b"}), part=0, attempt=1)
        first = await version.publish({0: 0})
        staged = await version.stage(rows({51: "c"}), part=1, attempt=0)
        assert staged.decided
        second = await version.publish({0: 1, 1: 0})
        assert (second.decided, second.attempts, second.ranges) == (False, {0: 0}, first.ranges)
        assert await contents(table) == {**BEFORE, 50: "a"}
        assert [(each.name, each.stages) for each in await table.transactions()] == [("load", 0)]


@pytest.mark.rocks
@pytest.mark.parametrize("opened", ["open_sink", "open_source"], ids=["a stage", "a decision"])
async def test_a_table_that_is_dropped_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: str
) -> None:
    """Its files are gone before its name is; who misses them is told that it was dropped, and of no damage."""
    reached, moved, missed = threading.Event(), threading.Event(), threading.Event()
    open_file = getattr(RocksTransactionFiles, opened)

    def open_late(files: RocksTransactionFiles, key: StageKey) -> object:
        reached.set()
        moved.wait()
        try:
            return open_file(files, key)
        finally:
            missed.set()

    def mark_slowly(path: Path, table_id: int) -> list[Path]:
        marked = mark_dropping(path, table_id)
        moved.set()
        missed.wait()
        return marked

    async with open_client(tmp_path) as (client, _):
        version = (await make_table(client)).transaction("load", 1)
        await version.stage(rows({1: "new"}), part=0, attempt=0)
        monkeypatch.setattr(RocksTransactionFiles, opened, open_late)
        monkeypatch.setattr("scanner.storage.rocksdb.store.mark_dropping", mark_slowly)

        async def drop() -> None:
            await trio.to_thread.run_sync(reached.wait)
            await client.drop_table("t")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(drop)
            with pytest.raises(TableNotFound, match="'t' was dropped"):
                if opened == "open_sink":
                    await version.stage(rows({2: "new"}), part=1, attempt=0)
                else:
                    await version.publish({0: 0})


async def test_two_publishers_race() -> None:
    """One decides; both are told the same."""
    async with open_client(MemoryStore()) as (client, _):
        table = await make_table(client)
        for number in range(5):
            version = table.transaction("load", number)
            for attempt in range(2):
                await version.stage(rows({50: f"{number}.{attempt}"}), part=0, attempt=attempt)
            answers: list[scanner.Published] = []

            async def publish(
                attempt: int, version: scanner.Transaction = version, answers: list[Any] = answers
            ) -> None:
                answers.append(await version.publish({0: attempt}))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(publish, 0)
                nursery.start_soon(publish, 1)
            assert sorted(each.decided for each in answers) == [False, True]
            assert answers[0].attempts == answers[1].attempts
            assert answers[0].ranges == answers[1].ranges
            assert (await contents(table))[50] == f"{number}.{answers[0].attempts[0]}"


async def test_an_older_version_is_superseded() -> None:
    """It is neither staged nor published nor aborted, and what it had staged is gone; other names are not affected."""
    async with open_client(MemoryStore()) as (client, _):
        table = await make_table(client)
        old, new = table.transaction("load", 1), table.transaction("load", 2)
        await old.stage(rows({50: "old"}), part=0, attempt=0)
        await new.publish({})
        for act in (
            old.stage(rows({50: "old"}), part=0, attempt=1),
            old.publish({0: 0}),
            old.abort(),
        ):
            with pytest.raises(
                VersionSuperseded, match="version 2 is decided; it was published before that, or"
            ):
                await act
        await table.transaction("other", 1).publish({})
        assert [each.stages for each in await table.transactions()] == [0, 0]
        assert await contents(table) == BEFORE


async def test_parts_that_touch_one_key_are_refused() -> None:
    """With the key and the parts; nothing was decided, and another choice can be."""
    async with open_client(MemoryStore()) as (client, _):
        table = await make_table(client)
        version = table.transaction("load", 1)
        await version.stage(rows(dict.fromkeys(range(30), "a")), part=0, attempt=0)
        await version.stage(keys([77, 17]), part=1, attempt=0, operation="delete")
        await version.stage(rows({78: "b", 79: "c"}), part=1, attempt=1)
        with pytest.raises(PartsConflict, match=r"parts 0 and 1 both write the key \(17,\)"):
            await version.publish({0: 0, 1: 0})
        assert await contents(table) == BEFORE
        await version.publish({0: 0, 1: 1})
        assert len(await contents(table)) == 32


async def test_parts_that_touch_a_key_that_python_has_no_value_for_are_refused() -> None:
    """With what is stored of it."""
    far = pa.table({"at": pa.array([10**12], pa.int64()).view(pa.timestamp("s"))})
    async with open_client(MemoryStore()) as (client, _):
        table = await client.create_table("far", far.schema, primary_key=["at"], buckets=1)
        version = table.transaction("load", 1)
        for part in range(2):
            await version.stage(far, part=part, attempt=0)
        with pytest.raises(PartsConflict, match=r"parts 0 and 1 both write the key \(1000000000000,\)"):
            await version.publish({0: 0, 1: 0})


async def test_an_attempt_that_staged_nothing_is_refused() -> None:
    """Nothing is decided; aborting frees what there is, and is refused once it is decided."""
    async with open_client(MemoryStore()) as (client, server):
        table = await make_table(client)
        version = table.transaction("load", 1)
        await version.stage(rows({50: "a"}), part=0, attempt=0)
        for attempts in ({0: 1}, {0: 0, 1: 0}):
            with pytest.raises(StageNotFound, match="nothing was decided"):
                await version.publish(attempts)
        assert await version.abort() > 0
        assert await version.abort() == 0
        assert server.statistics().transaction_stage_bytes == 0
        await version.publish({})
        with pytest.raises(TransactionDecided):
            await version.abort()


async def test_an_abort_of_what_nobody_has_staged_frees_nothing() -> None:
    """It is no error, as any repetition of an abort."""
    async with open_client(MemoryStore()) as (client, _):
        table = await make_table(client)
        assert await table.transaction("load", 1).abort() == 0


@pytest.mark.parametrize("more", [False, True])
async def test_an_abort_ends_the_stages_that_are_being_written(more: bool) -> None:
    """Whoever stages is told, at its next rows or at its end; what it begins later counts, as do other versions."""
    async with open_client(MemoryStore()) as (client, server):
        table = await make_table(client)
        version, other = table.transaction("load", 1), table.transaction("load", 2)
        async with other.part(0, 0) as of_another:
            await of_another.upsert(rows({51: "b"}))
            of_another_bytes = await _staged_bytes_past(server, 0)
            with pytest.raises(StageNotFound, match="aborted while this stage of it was written"):
                async with version.part(0, 0) as writer:
                    await writer.upsert(rows({50: "a"}))
                    await _staged_bytes_past(server, of_another_bytes)
                    assert await version.abort() == 0
                    if more:
                        await writer.upsert(rows({52: "c"}))
        await version.stage(rows({53: "d"}), part=0, attempt=0)
        await version.publish({0: 0})
        await other.publish({0: 0})
        assert await contents(table) == {**BEFORE, 51: "b", 53: "d"}


async def test_an_abort_ends_a_stage_that_is_being_synced() -> None:
    """All of it was sent by then; whoever stages is told all the same, and nothing of it counts."""
    syncing, go_on = trio.Event(), trio.Event()

    async def run_blocking(function: Callable[[], T]) -> T:
        step = function.func if isinstance(function, functools.partial) else function
        if step.__name__ == "sync":
            syncing.set()
            await go_on.wait()
        return await inline(function)

    store, key, refused = new_store(), _key("load", 1), list[StageNotFound]()
    async with trio.open_nursery() as nursery:
        transactions = await load(store, nursery, _Clock(), run_blocking=run_blocking)

        async def stage() -> None:
            with pytest.raises(StageNotFound, match="aborted while this stage of it was written") as raised:
                await stage_row(transactions, store, key)
            refused.append(raised.value)

        nursery.start_soon(stage)
        await syncing.wait()
        await transactions.abort(key)
        go_on.set()
        await trio.testing.wait_all_tasks_blocked()
        assert len(refused) == 1
        assert store.transaction_files("t").stages() == []


async def test_what_is_not_finished_is_not_staged() -> None:
    """A block that raises, rows that do not fit, a part that is closed: nothing of it counts."""
    async with open_client(MemoryStore()) as (client, server):
        table = await make_table(client)
        version = table.transaction("load", 1)
        with pytest.raises(ZeroDivisionError):
            async with version.part(0, 0) as writer:
                await writer.upsert(rows({50: "a"}))
                raise ZeroDivisionError
        with pytest.raises(SchemaMismatch):
            await version.stage(pa.table({"id": [1]}), part=0, attempt=0)
        with pytest.raises(KeyInvalid):
            await version.stage(
                pa.table({"id": pa.array([None], pa.int64()), "text": ["x"]}), part=0, attempt=0
            )
        async with version.part(1, 0) as writer:
            await writer.close()
            with pytest.raises(ArgumentInvalid, match="closed"):
                await writer.upsert(rows({50: "a"}))
        with pytest.raises(StageNotFound):
            await version.publish({0: 0})
        await _wait_settled(server)
        await version.publish({1: 0})
        assert await contents(table) == BEFORE


@pytest.mark.rocks
async def test_a_stage_that_is_given_up_leaves_no_file(tmp_path: Path) -> None:
    """Neither in its directory nor open; what is staged beside it stays."""
    async with open_client(tmp_path) as (client, server):
        version = (await make_table(client)).transaction("load", 1)
        await version.stage(rows({50: "a"}), part=0, attempt=0)
        before = server.statistics().transaction_stage_bytes
        with pytest.raises(ZeroDivisionError):
            async with version.part(0, 0) as writer:
                await writer.upsert(rows({51: "b"}))
                await _staged_bytes_past(server, before)
                raise ZeroDivisionError
    assert len(found_in(tmp_path, "*.stage*")) == 1
    assert not [each for each in psutil.Process().open_files() if ".stage" in each.path]


async def _staged_bytes_past(server: Server, before: int) -> int:
    """What stages take, those that are being written included, once it is more than before."""
    while (taken := server.statistics().transaction_stage_bytes) <= before:
        await trio.lowlevel.checkpoint()
    return taken


async def _wait_settled(server: Server) -> None:
    """Until the server has noticed that a stream was left."""
    while sum(1 for _ in server.running()):
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize(("name", "version"), [("", 1), ("a b", 1), ("x" * 101, 1), ("x", -1), ("x", 2**63)])
async def test_a_name_or_version_that_cannot_be(name: str, version: int) -> None:
    """One line says what may be."""
    async with open_client(MemoryStore()) as (client, _):
        table = await make_table(client)
        with pytest.raises(ArgumentInvalid, match="a transaction's"):
            await table.transaction(name, version).publish({})


async def test_a_table_of_the_same_name_takes_nothing() -> None:
    """Rows that were meant for a table that was dropped go nowhere."""
    async with open_client(MemoryStore()) as (client, _):
        table = await make_table(client)
        version = table.transaction("load", 1)
        await version.stage(rows({50: "a"}), part=0, attempt=0)
        with pytest.raises(TableNotFound):
            async with version.part(1, 0) as writer:
                await writer.upsert(rows({51: "b"}))
                await client.drop_table("t")
        again = await make_table(client)
        for act in (
            version.stage(rows({50: "a"}), part=0, attempt=0),
            version.publish({0: 0}),
            version.abort(),
        ):
            with pytest.raises(TableNotFound, match="has the id 1, and the request means 0"):
                await act
        assert await again.transactions() == []
        assert await contents(again) == BEFORE


async def test_stages_have_a_cap() -> None:
    """What is above it is refused and not kept; aborting makes room."""
    async with open_client(MemoryStore(), ScannerConfig(transaction_stage_bytes_max=4000)) as (
        client,
        server,
    ):
        async with scanner.connect(client.endpoint, retries=0) as impatient:
            table = await make_table(client)
            version = (await impatient.table("t")).transaction("load", 1)
            await version.stage(rows(dict.fromkeys(range(30), "x" * 20)), part=0, attempt=0)
            with pytest.raises(
                StagesFull, match=r"of the 4000 bytes .*, and [1-9]\d+ more do not fit"
            ) as refused:
                await version.stage(rows(dict.fromkeys(range(30), "x" * 100)), part=1, attempt=0)
            assert refused.value.retriable
            await _wait_settled(server)
            assert 0 < server.statistics().transaction_stage_bytes < 4000
            await version.abort()
            await version.stage(rows(dict.fromkeys(range(30), "x" * 20)), part=1, attempt=0)
            await version.publish({1: 0})
            assert len(await contents(table)) == 30


async def test_what_stages_take_is_what_their_names_have() -> None:
    """Counted as they come and go, by an abort, a decision or their time: no piece of a stage walks over all names."""
    clock, store = _Clock(), new_store()
    async with trio.open_nursery() as nursery:
        transactions = await load(store, nursery, clock)

        async def taken() -> list[int]:
            found = [each.stages.size for each in await transactions.names("t")]
            assert sum(found) == transactions.staged_bytes == transactions._tables[0].staged_bytes
            return found

        for name in ("a", "b", "c"):
            for part in range(2):
                await stage_row(transactions, store, _key(name, 1), part=part, number=part)
        assert all(await taken())
        await transactions.abort(_key("a", 1))
        await transactions.publish(_key("b", 1), {0: 0, 1: 0})
        assert [bool(size) for size in await taken()] == [False, False, True]
        again = await load(store, nursery, clock)
        assert again.staged_bytes == transactions.staged_bytes > 0
        clock.hours += 24
        await transactions.sweep()
        assert not any(await taken())


async def test_names_have_a_cap() -> None:
    """The next one is refused; those that are known go on."""
    async with open_client(MemoryStore(), ScannerConfig(transaction_names_max=2)) as (client, _):
        table = await make_table(client)
        for name in "ab":
            await table.transaction(name, 1).publish({})
        with pytest.raises(TooManyTransactions):
            await table.transaction("c", 1).publish({})
        await table.transaction("a", 2).publish({})


class _Clock:
    """Hours that pass when the test says so."""

    def __init__(self) -> None:
        self.hours = 0.0

    def now_ms(self) -> int:
        return round(self.hours * 3_600_000)


def new_store(buckets: int = 2) -> MemoryStore:
    """A store with an empty table."""
    store = MemoryStore()
    store.create_table(TableDescription("t", SCHEMA, ("id",), buckets))
    return store


async def load(
    store: MemoryStore,
    nursery: trio.Nursery,
    clock: _Clock,
    config: ScannerConfig | None = None,
    run_blocking: RunBlocking = inline,
) -> Transactions:
    """The transactions of a server that starts now."""
    config = config or ScannerConfig()
    catalog = Catalog(store, config, nursery, run_blocking)
    return await Transactions(store, catalog, config, nursery, run_blocking, clock.now_ms).load()


async def stage_row(
    transactions: Transactions,
    store: MemoryStore,
    key: VersionKey,
    *,
    part: int = 0,
    attempt: int = 0,
    number: int = 0,
    row: bytes = b"row",
    bucket: int = 0,
    session: bytes = bytes(16),
) -> None:
    """One row, of a session of its own."""
    writer = await transactions.open_stage(key, Attempt(part, attempt), session)
    mutations = [Mutation(store.key_codec("t").encode([number]), row)]
    await writer.append(list(mutation_frames({bucket: mutations})))
    await writer.finish()


async def test_stages_and_names_expire() -> None:
    """A day after the last stage of their version, and 30 days after the last use; not what is used meanwhile."""
    clock, store = _Clock(), new_store()
    async with trio.open_nursery() as nursery:
        transactions = await load(store, nursery, clock)

        async def stage(name: str, version: int, part: int) -> None:
            key = _key(name, version)
            await stage_row(transactions, store, key, part=part, number=part, bucket=part % 2)

        async def known(after_hours: int) -> list[tuple[str, int]]:
            clock.hours += after_hours
            await transactions.sweep()
            return [(each.text, sum(1 for _ in each.stages)) for each in await transactions.names("t")]

        await transactions.publish(_key("done", 1), {})
        assert store.bucket("t", 0).applied_shares.keys() == {
            ALL_KNOWN,
            "done",
        }  # No backup has the decision.
        await stage("load", 1, 0)
        assert await known(20) == [("done", 0), ("load", 1)]
        await stage("load", 1, 1)
        assert await known(23) == [("done", 0), ("load", 2)]
        assert await known(1) == [("done", 0)]
        with pytest.raises(StageNotFound, match="expired"):
            await transactions.publish(_key("load", 1), {0: 0, 1: 0})
        await known(24 * 25)
        await stage("done", 2, 0)
        await transactions.publish(_key("done", 2), {0: 0})
        assert store.bucket("t", 0).applied_shares.keys() == {ALL_KNOWN, "done"}
        assert await known(24 * 30 - 1) == [("done", 0)]
        assert await known(1) == []
        assert store.bucket("t", 0).applied_shares == {}
        assert store.transaction_files("t").decisions() == {}
        assert (await transactions.publish(_key("done", 1), {})).decided


async def test_a_name_that_is_asked_for_is_in_use() -> None:
    """Who publishes again what was decided may do so for 30 days more: a job that stands still is told the same."""
    clock, store = _Clock(), new_store()
    async with trio.open_nursery() as nursery:
        transactions = await load(store, nursery, clock)
        await transactions.publish(_key("load", 1), {})
        for _ in range(3):
            clock.hours += 24 * 29
            await transactions.sweep()
            assert not (await transactions.publish(_key("load", 1), {})).decided
        clock.hours += 24 * 30
        await transactions.sweep()
        assert await transactions.names("t") == []


async def test_a_name_of_which_something_was_staged_before_a_restart_is_in_use() -> None:
    """From when that was staged on, though it was never published and has expired."""
    clock, store = _Clock(), new_store()
    async with trio.open_nursery() as nursery:
        before = await load(store, nursery, clock)
        await before.publish(_key("load", 1), {})
        clock.hours = 24 * 29
        await stage_row(before, store, _key("load", 2))
        transactions = await load(store, nursery, clock)
        clock.hours = 24 * 59 - 1
        await transactions.sweep()
        assert [(each.text, bool(each.stages)) for each in await transactions.names("t")] == [("load", False)]
        clock.hours = 24 * 59
        await transactions.sweep()
        assert await transactions.names("t") == []


async def test_what_is_decided_is_not_forgotten_before_it_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a bucket cannot apply it, also where it has no stages: that it deletes every row is promised."""
    clock, store = _Clock(), new_store()
    async with trio.open_nursery() as nursery:
        transactions = await load(store, nursery, clock)
        with monkeypatch.context() as patch:
            refuse_shares(patch, 0)
            with pytest.raises(StoreFailed, match="is decided"):
                await transactions.publish(_key("load", 1), {}, overwrite=True)
            clock.hours = 24 * 31
            await transactions.sweep()
        assert not (await transactions.publish(_key("load", 1), {}, overwrite=True)).decided
        assert store.bucket("t", 0).applied_shares.keys() == {ALL_KNOWN, "load"}


async def test_a_version_needs_twice_the_room_of_its_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows go into the bucket, and into the changelog; stages that do not count need none."""
    store, wanted = new_store(), list[int]()
    monkeypatch.setattr(MemoryTransactionFiles, "require_room", lambda _, octets: wanted.append(octets))
    async with trio.open_nursery() as nursery:
        transactions = await load(store, nursery, _Clock())
        for part, attempt in ((0, 0), (1, 0), (1, 1)):
            await stage_row(transactions, store, _key("load", 1), part=part, attempt=attempt, number=part)
        (name,) = await transactions.names("t")
        chosen = [each.size for each in name.stages if each.key.attempt == 0]
        await transactions.publish(_key("load", 1), {0: 0, 1: 0})
        assert wanted == [2 * sum(chosen)]


async def test_what_is_decided_in_one_millisecond_has_an_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock neither is first: what the first cannot apply holds up the second, also behind a restart.

    It is enough that both change one bucket.
    """
    clock, store = _Clock(), new_store()
    refuse_shares(monkeypatch, 0)
    async with trio.open_nursery() as nursery:
        transactions = await load(store, nursery, clock)
        await stage_row(transactions, store, _key("a", 1), number=1, bucket=1, session=b"of the second   ")
        for name in ("z", "a"):
            await stage_row(transactions, store, _key(name, 1))
            with pytest.raises(StoreFailed, match="of transaction 'z'"):
                await transactions.publish(_key(name, 1), {0: 0})
        restarted = await load(store, nursery, clock)
        await stage_row(restarted, store, _key("m", 1))
        for name in ("a", "m"):
            with pytest.raises(StoreFailed, match="of transaction 'z'"):
                await restarted.publish(_key(name, 1), {0: 0})
        nursery.cancel_scope.cancel()


async def test_what_a_clock_that_was_ahead_has_stamped_expires() -> None:
    """As if it had been used when the next server started, whose clock is right."""
    ahead, clock, store = _Clock(), _Clock(), new_store(1)
    ahead.hours = 74 * 365 * 24
    config = ScannerConfig(transaction_names_max=2)
    async with trio.open_nursery() as nursery:
        before = await load(store, nursery, ahead, config)
        await before.publish(_key("once:a", 1), {})
        await stage_row(before, store, _key("load", 1))

        transactions = await load(store, nursery, clock, config)
        with pytest.raises(TooManyTransactions):  # Its writer may come again.
            await transactions.publish(_key("once:b", 1), {})
        clock.hours = 1
        await stage_row(transactions, store, _key("load", 1), part=1, number=1)
        await transactions.publish(_key("once:b", 1), {})
        assert [each.text for each in await transactions.names("t")] == ["load", "once:b"]
        clock.hours = 24
        await transactions.sweep()
        assert [(each.text, sum(1 for _ in each.stages)) for each in await transactions.names("t")] == [
            ("load", 2)
        ]
        clock.hours = 25
        await transactions.sweep()
        assert await transactions.names("t") == []


@pytest.mark.parametrize("refused", ["used", "stages"])
async def test_what_could_not_be_read_at_the_start_is_completed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, refused: str
) -> None:
    """Without any client: once storage answers again, and the log tells of both."""
    store = new_store(1)
    decision = Decision(table_id=0, name="load", version=1, attempts={}, buckets=(0,), decided_ms=0, order=1)
    store.transaction_files("t").write_decision("load", decision.to_document())
    stages = MemoryTransactionFiles.stages

    def refuse(_: MemoryTransactionFiles) -> list[StoredStage]:
        raise StoreFailed("the disk refused")

    async with trio.open_nursery() as nursery:
        monkeypatch.setattr(MemoryTransactionFiles, "stages", refuse)
        if refused == "used":
            monkeypatch.setattr(MemoryTransactionFiles, "used", property(refuse))
        transactions = await load(store, nursery, _Clock())
        await transactions.sweep()
        monkeypatch.setattr(MemoryTransactionFiles, "stages", stages)
        await transactions.sweep()
        await trio.testing.wait_all_tasks_blocked()
        assert transactions.unapplied == 0
    assert store.bucket("t", 0).applied_shares.keys() == {ALL_KNOWN, "load"}
    assert [record.message for record in caplog.records] == [
        "the transactions of table 't' cannot be read: the disk refused",
        "the transactions of table 't' can be read now",
    ]


def test_a_decision_of_a_server_that_knew_less_is_read() -> None:
    """Servers of 2026-11-22 wrote neither `overwrite` nor `order` into it, and those until 2026-11-28 no `stages`."""
    decision = Decision(
        table_id=0, name="load", version=1, attempts={2: 3}, buckets=(0,), decided_ms=5, order=0
    )
    document = json.loads(decision.to_document())
    del document["overwrite"], document["order"], document["stages"]
    assert Decision.from_document(json.dumps(document).encode(), 0, "load") == decision


async def test_a_table_with_staged_rows_is_not_unwritten() -> None:
    """No bucket has a row yet, and a version that is decided would be lost with the table."""
    store = new_store(1)
    decision = Decision(table_id=0, name="load", version=1, attempts={}, buckets=(0,), decided_ms=0, order=1)
    store.transaction_files("t").write_decision("load", decision.to_document())
    async with trio.open_nursery() as nursery:
        catalog = Catalog(store, ScannerConfig(), nursery, inline)
        assert not await catalog.drop_unwritten("t")
    assert [each.name for each in store.tables()] == ["t"]


async def test_what_is_staged_while_an_unwritten_table_goes_is_refused() -> None:
    """It would be acknowledged, and go with the table."""
    store, config = new_store(), ScannerConfig()

    async def stage_before_the_drop(function: Callable[[], T]) -> T:
        if isinstance(function, functools.partial) and function.func == store.drop_table:
            writer = await transactions.open_stage(_key("load", 1), Attempt(0, 0), bytes(16))
            mutations = [Mutation(store.key_codec("t").encode([1]), b"row")]
            await writer.append(list(mutation_frames({0: mutations})))
            with pytest.raises(TableNotFound, match="was dropped"):
                await writer.finish()
        return function()

    async with trio.open_nursery() as nursery:
        catalog = Catalog(store, config, nursery, stage_before_the_drop)
        transactions = await Transactions(store, catalog, config, nursery, inline, _Clock().now_ms).load()
        assert await catalog.drop_unwritten("t")


async def test_what_is_staged_before_an_unwritten_table_goes_keeps_it() -> None:
    """It was acknowledged, so whoever looked before that looks again, or leaves no time for it."""
    store, config = new_store(), ScannerConfig()
    staged = list[StoredStage]()

    async def stage_behind(function: Callable[[], T]) -> T:
        result = function()
        if looking and catalog.has("t", 0):
            await stage_row(transactions, store, _key("load", 1))
            staged.extend(store.transaction_files("t").stages())
        return result

    async with trio.open_nursery() as nursery:
        looking = False
        catalog = Catalog(store, config, nursery, stage_behind)
        transactions = await Transactions(store, catalog, config, nursery, inline, _Clock().now_ms).load()
        table = await catalog.table("t")
        for index in range(table.description.buckets):
            await catalog.bucket(table, index)
        looking = True
        dropped = await catalog.drop_unwritten("t")
    assert dropped != bool(staged)


async def test_a_table_that_is_dropped_while_its_transactions_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its stages do not count into what the server may keep for as long as it runs."""
    store, config = new_store(), ScannerConfig()
    async with trio.open_nursery() as nursery:
        catalog = Catalog(store, config, nursery, inline)
        before = await Transactions(store, catalog, config, nursery, inline, _Clock().now_ms).load()
        await (await before.open_stage(_key("load", 1), Attempt(0, 0), bytes(16))).finish()
        read = Transactions._read

        async def read_and_drop(self: Transactions, served: ServedTable) -> TransactionTable:
            found = await read(self, served)
            await catalog.drop("t")
            return found

        monkeypatch.setattr(Transactions, "_read", read_and_drop)
        transactions = await Transactions(store, catalog, config, nursery, inline, _Clock().now_ms).load()
        assert before.staged_bytes == transactions.staged_bytes == 0


async def test_who_gives_up_while_it_is_read_has_nothing_applied_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither the one who was cancelled nor the next completes what the other does, too: in one commit, it would be."""
    store = new_store(1)
    async with trio.open_nursery() as nursery:
        before = await load(store, nursery, _Clock())
        for version in (1, 2):
            await stage_row(before, store, _key("load", version))
    files = store.transaction_files("t")
    decision = Decision(
        table_id=0, name="load", version=2, attempts={0: 0}, buckets=(0,), stages=1, decided_ms=0, order=1
    )
    files.write_decision("load", decision.to_document())
    stages, scope = MemoryTransactionFiles.stages, trio.CancelScope()

    def refuse(_: MemoryTransactionFiles) -> list[StoredStage]:
        raise StoreFailed("the disk refused")

    def cancel_behind(self: MemoryTransactionFiles) -> list[StoredStage]:
        scope.cancel()
        return stages(self)

    reading = trio.Event()

    async def apply_late(function: Callable[[], T]) -> T:
        if isinstance(function, functools.partial) and function.func is completion._begin:
            await reading.wait()
        return await inline(function)

    async with trio.open_nursery() as nursery:
        monkeypatch.setattr(MemoryTransactionFiles, "stages", refuse)
        transactions = await load(store, nursery, _Clock(), run_blocking=apply_late)
        monkeypatch.setattr(MemoryTransactionFiles, "stages", cancel_behind)
        with scope:
            await transactions.names("t")
        assert scope.cancelled_caught
        monkeypatch.setattr(MemoryTransactionFiles, "stages", stages)
        await transactions.names("t")
        await trio.testing.wait_all_tasks_blocked()
        reading.set()
        await trio.testing.wait_all_tasks_blocked()
        assert transactions.unapplied == 0
    assert store.bucket("t", 0).log_end == 1


async def test_a_table_that_is_dropped_while_its_names_are_forgotten(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They went with it, which is no failure, and nothing is logged."""
    clock, store, config = _Clock(), new_store(), ScannerConfig()
    async with trio.open_nursery() as nursery:
        catalog = Catalog(store, config, nursery, inline)
        transactions = await Transactions(store, catalog, config, nursery, inline, clock.now_ms).load()
        for name in ("once:a", "once:b"):
            await transactions.publish(_key(name, 1), {})
        clock.hours += 2
        forgetting = transactions._forgetting
        forget = forgetting._forget

        async def forget_late(name: TransactionName) -> None:
            await catalog.drop("t")
            await forget(name)

        monkeypatch.setattr(forgetting, "_forget", forget_late)
        await transactions.sweep()
    assert caplog.text == ""


async def test_a_name_that_is_used_while_it_is_forgotten_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is published under it then is known, and not decided a second time."""
    clock, store, config = _Clock(), new_store(), ScannerConfig()
    async with trio.open_nursery() as nursery:
        catalog = Catalog(store, config, nursery, inline)
        transactions = await Transactions(store, catalog, config, nursery, inline, clock.now_ms).load()
        await transactions.publish(_key("once:a", 1), {})
        clock.hours += 2
        find, published = catalog.bucket, list[bool]()

        async def publish() -> None:
            published.append((await transactions.publish(_key("once:a", 2), {})).decided)

        async def find_late(table: ServedTable, index: int) -> ServedBucket:
            monkeypatch.setattr(catalog, "bucket", find)
            clock.hours += 1
            nursery.start_soon(publish)
            await trio.testing.wait_all_tasks_blocked()
            return await find(table, index)

        monkeypatch.setattr(catalog, "bucket", find_late)
        await transactions.sweep()
        await trio.testing.wait_all_tasks_blocked()
        assert [each.text for each in await transactions.names("t")] == ["once:a"]
        await publish()
        assert published == [True, False]


async def test_rows_that_expired_are_missed() -> None:
    """Staged further in the same attempt, the version is refused to whoever knows of them."""
    clock, store = _Clock(), new_store()
    async with trio.open_nursery() as nursery:
        transactions = await load(store, nursery, clock)
        for number in range(3):
            session = bytes([number] * 16)
            await stage_row(transactions, store, _key("load", 1), number=number, session=session)
            clock.hours += 24 if number == 1 else 23
            await transactions.sweep()
        with pytest.raises(
            StageNotFound, match="at least 3 rows and keys were staged, and 1 are there: stages have expired"
        ):
            await transactions.publish(_key("load", 1), {0: 0}, rows_min={0: 3})
        assert (await transactions.publish(_key("load", 1), {0: 0}, rows_min={0: 1})).decided


async def test_what_is_staged_for_days_is_kept_from_its_end_on() -> None:
    """Else it would be gone with the next sweep after it was acknowledged, and what the other parts have staged."""
    clock, store = _Clock(), new_store()
    async with trio.open_nursery() as nursery:
        transactions = await load(store, nursery, clock)
        key = _key("load", 1)
        await stage_row(transactions, store, key, part=0, number=0)
        writer = await transactions.open_stage(key, Attempt(1, 0), bytes(16))
        clock.hours += 25
        await transactions.sweep()
        await writer.finish()
        clock.hours += 23.9
        await transactions.sweep()
        assert (await transactions.publish(key, {0: 0, 1: 0})).decided


async def test_names_that_are_used_once() -> None:
    """A name that begins with `once:` goes an hour after its use, or with its stages, a day after them."""
    clock, store = _Clock(), new_store()
    async with trio.open_nursery() as nursery:
        transactions = await load(store, nursery, clock)
        for name in ("once:a", "once:b", "other"):
            await stage_row(transactions, store, _key(name, 0))
        await transactions.publish(_key("once:a", 0), {0: 0})
        await transactions.publish(_key("other", 0), {0: 0})

        async def known(after_hours: int) -> list[str]:
            clock.hours += after_hours
            await transactions.sweep()
            return sorted(each.text for each in await transactions.names("t"))

        assert await known(0) == ["once:a", "once:b", "other"]
        assert await known(1) == ["once:b", "other"]
        assert await known(22) == ["once:b", "other"]
        assert await known(1) == ["other"]
        assert store.bucket("t", 0).applied_shares.keys() == {ALL_KNOWN, "other"}


async def test_names_that_are_over_make_room() -> None:
    """Those that are used once, the oldest first, but not sooner than their writer may ask again; and no others."""
    clock, store = _Clock(), new_store()
    async with trio.open_nursery() as nursery:
        transactions = await load(store, nursery, clock, ScannerConfig(transaction_names_max=4))

        async def save(name: str) -> None:
            await stage_row(transactions, store, _key(name, 0), row=name.encode())
            await transactions.publish(_key(name, 0), {0: 0})

        for name in ("job", "once:0", "once:1"):
            await save(name)
            clock.hours += 0.1
        await (await transactions.open_stage(_key("once:2", 0), Attempt(0, 0), bytes(16))).finish()
        for number in range(3, 9):
            clock.hours += 0.01
            await save(f"once:{number}")
            assert {"job", "once:2"} < {each.text for each in await transactions.names("t")}
        assert store.bucket("t", 0).applied_shares.keys() == {ALL_KNOWN, "job", "once:7", "once:8"}
        with pytest.raises(TooManyTransactions):
            await save("once:9")
        assert not (await transactions.publish(_key("once:8", 0), {})).decided


@pytest.mark.parametrize(("hours", "by"), [(2, "a sweep"), (0.1, "another name")])
async def test_a_name_whose_version_was_applied_just_now_is_in_use(
    monkeypatch: pytest.MonkeyPatch, hours: float, by: str
) -> None:
    """However long that took: who has not got the answer publishes again, and is told that it was decided."""
    clock, store = _Clock(), new_store()
    apply_share = completion.Applier._apply_share

    async def apply_for_long(*arguments: Any) -> Any:
        clock.hours += hours
        return await apply_share(*arguments)

    async with trio.open_nursery() as nursery:
        transactions = await load(store, nursery, clock, ScannerConfig(transaction_names_max=1))
        await stage_row(transactions, store, _key("once:a", 0))
        with monkeypatch.context() as patch:
            patch.setattr(completion.Applier, "_apply_share", apply_for_long)
            await transactions.publish(_key("once:a", 0), {0: 0})
        if by == "a sweep":
            await transactions.sweep()
        else:
            with pytest.raises(TooManyTransactions):
                await stage_row(transactions, store, _key("once:b", 0))
        assert not (await transactions.publish(_key("once:a", 0), {0: 0})).decided


async def test_a_name_that_made_room_during_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is gone, and nothing of one that has its name now goes with it."""
    clock, store = _Clock(), new_store()
    async with trio.open_nursery() as nursery:
        transactions = await load(store, nursery, clock, ScannerConfig(transaction_names_max=2))

        async def publish(name: str) -> bool:
            return (await transactions.publish(_key(name, 0), {}, overwrite=True)).decided

        for name in ("a", "once:b"):
            await publish(name)
        clock.hours += 2
        expire = transactions._expire

        async def expire_slowly(name: TransactionName) -> None:
            if name.text == "a":
                for each in ("once:c", "once:b"):  # Each takes the place of the one before.
                    assert await publish(each)
                    clock.hours += 2
            await expire(name)

        monkeypatch.setattr(transactions, "_expire", expire_slowly)
        await transactions.sweep()
        assert {each.text for each in await transactions.names("t")} == {"a", "once:b"}
        assert not await publish("once:b")


async def test_a_decision_is_told_though_its_publisher_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is decided from the moment on at which it is written: who goes then has published."""
    store, told = new_store(), list[str]()
    async with trio.open_nursery() as nursery:
        transactions = await load(store, nursery, _Clock())
        for attempt in range(2):
            await stage_row(transactions, store, _key("a", 0), attempt=attempt)
        write = MemoryTransactionFiles.write_decision
        with trio.CancelScope() as scope, monkeypatch.context() as patch:

            def write_and_go(*arguments: Any) -> None:
                write(*arguments)
                scope.cancel()

            patch.setattr(MemoryTransactionFiles, "write_decision", write_and_go)
            await transactions.publish(_key("a", 0), {0: 1}, when_decided=lambda: told.append("decided"))
        assert told == ["decided"]
        assert not (await transactions.publish(_key("a", 0), {})).decided


async def test_a_stage_that_ends_while_its_version_is_decided_is_not_kept() -> None:
    """Its writer is told so. It was no part of what was verified, and would go with what the decision leaves over."""
    store, verified, decide = new_store(), trio.Event(), trio.Event()
    ended: list[tuple[int, bool]] = []

    async def run_blocking(function: Callable[[], T]) -> T:
        step = function.func if isinstance(function, functools.partial) else function
        if step.__name__ == "require_room" and not verified.is_set():
            verified.set()
            await decide.wait()
        return function()

    async with trio.open_nursery() as nursery:
        transactions = await load(store, nursery, _Clock(), run_blocking=run_blocking)
        await stage_row(transactions, store, _key("a", 0))
        nursery.start_soon(transactions.publish, _key("a", 0), {0: 0})
        await verified.wait()
        late = await transactions.open_stage(_key("a", 0), Attempt(0, 0), b"late".ljust(16))

        async def finish() -> None:
            ended.append(await late.finish())

        nursery.start_soon(finish)
        await trio.testing.wait_all_tasks_blocked()
        assert not ended
        decide.set()
    assert ended == [(0, True)]


@pytest.mark.rocks
async def test_a_name_of_which_nothing_is_left_is_forgotten(tmp_path: Path) -> None:
    """A writer that failed leaves no name, and no directory."""
    config = ScannerConfig(transaction_name_ttl_s_min=0.001, transaction_sweep_interval_s=0.001)
    async with open_client(tmp_path, config) as (client, _):
        table = await make_table(client)
        with pytest.raises(ZeroDivisionError):
            async with table.transaction("once:a", 0).part(0, 0) as writer:
                await writer.upsert(rows({50: "a"}))
                raise ZeroDivisionError
        version = table.transaction("b", 0)
        await version.stage(rows({50: "a"}), part=0, attempt=0)
        await version.abort()
        while await table.transactions() or found_in(tmp_path, "of-*"):
            await trio.lowlevel.checkpoint()


@pytest.mark.rocks
async def test_directories_that_a_crash_left_empty_go(tmp_path: Path) -> None:
    """A stage that was being written goes at the next start, and with it the directory of its name."""
    async with open_client(tmp_path) as (client, _):
        table = await make_table(client)
        await table.transaction("b", 0).stage(rows({50: "a"}), part=0, attempt=0)
    [stage] = found_in(tmp_path, "*.stage")
    stage.rename(stage.with_name(f"{stage.name}~"))
    async with open_client(tmp_path) as (client, _):
        assert await (await client.table("t")).transactions() == []
        assert found_in(tmp_path, "of-*") == []


def _key(name: str, version: int) -> VersionKey:
    return VersionKey("t", 0, name, version)


@pytest.mark.parametrize("where", ["memory", pytest.param("rocks", marks=pytest.mark.rocks)])
@pytest.mark.parametrize("keys_max", [1_000_000, 2])
async def test_overwriting_leaves_what_was_staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, keys_max: int
) -> None:
    """Every other row is deleted, once, in buckets without a share too; so are keys that were staged as deletes."""
    overwriting = functools.partial(deletions, keys_max=keys_max)
    monkeypatch.setattr("scanner.server.transactions.completion.deletions", overwriting)
    async with open_client(MemoryStore() if where == "memory" else tmp_path) as (client, _):
        table = await make_table(client)
        scanned = table.new_scan()
        version = table.transaction("load", 1)
        await version.stage(rows(dict.fromkeys(range(12, 24), "new")), part=0, attempt=0)
        await version.stage(keys([3, 4]), part=1, attempt=0, operation="delete")
        published = await version.publish({0: 0, 1: 0}, overwrite=True)
        assert published.overwrite
        assert await contents(table) == dict.fromkeys(range(12, 24), "new")
        assert sum(end - start for _, start, end in published.ranges) == 12 + 2 * 8 + 4
        kinds = Counter(kind for kind, _, _ in await changes(table))
        assert kinds == {"insert": 20 + 4, "delete": 12, "update_preimage": 8, "update_postimage": 8}
        again = await version.publish({})
        assert (again.overwrite, again.ranges) == (True, published.ranges)
        await table.transaction("load", 2).publish({}, overwrite=True)
        assert (await scanned.to_arrow()).num_rows == 0


@pytest.mark.rocks
async def test_stages_survive_a_restart(tmp_path: Path) -> None:
    """They are published by the next server, in their order; and what was decided is still known."""
    async with open_client(tmp_path) as (client, _):
        table = await make_table(client)
        version = table.transaction("load", 1)
        for number in range(12):
            await version.stage(rows({50: f"{number}"}), part=0, attempt=0)
    async with open_client(tmp_path) as (client, _):
        table = await client.table("t")
        published = await table.transaction("load", 1).publish({0: 0})
        assert (await contents(table))[50] == "11"
    async with open_client(tmp_path) as (client, _):
        again = await (await client.table("t")).transaction("load", 1).publish({})
        assert (again.decided, again.attempts, again.ranges) == (False, {0: 0}, published.ranges)


@pytest.mark.rocks
async def test_a_damaged_stage_is_found_before_the_decision(tmp_path: Path) -> None:
    """Publishing it fails, nothing is decided, and staged anew it can be."""
    async with open_client(tmp_path) as (client, _):
        table = await make_table(client)
        version = table.transaction("load", 1)
        await version.stage(rows(dict.fromkeys(range(50, 90), "x" * 50)), part=0, attempt=0)
        [stage] = found_in(tmp_path, "*.stage")
        content = bytearray(stage.read_bytes())
        content[len(content) // 2] ^= 1
        stage.write_bytes(content)
        with pytest.raises(DataCorrupted):
            await version.publish({0: 0})
        stage.unlink()
        with pytest.raises(DataCorrupted):
            await version.publish({0: 0})
        assert await contents(table) == BEFORE
        await version.stage(rows({50: "x"}), part=0, attempt=1)
        assert (await version.publish({0: 1})).decided


@pytest.mark.rocks
async def test_a_damaged_decision_is_reported_and_harms_no_other_table(tmp_path: Path) -> None:
    """Transactions of its table are refused, since nobody knows what was decided; its rows and other tables are not."""
    async with open_client(tmp_path) as (client, _):
        await (await make_table(client)).transaction("load", 1).publish({})
        await make_table(client, "other")
    [decision] = found_in(tmp_path, "decision.json")
    decision.write_bytes(decision.read_bytes()[:-3] + b"9}\n")
    async with open_client(tmp_path) as (client, _):
        table = await client.table("t")
        with pytest.raises(DataCorrupted):
            await table.transaction("load", 2).publish({})
        assert await contents(table) == BEFORE
        await (await client.table("other")).transaction("load", 1).publish({})


@pytest.mark.rocks
async def test_a_restored_bucket_that_knows_more_supersedes(tmp_path: Path) -> None:
    """No backup has decisions, so what a bucket has applied itself tells that a version is old."""
    async with open_client(tmp_path) as (client, _):
        table = await make_table(client)
        version = table.transaction("load", 3)
        await version.stage(rows(dict.fromkeys(range(50, 90), "x")), part=0, attempt=0)
        await version.publish({0: 0})
    [decision] = found_in(tmp_path, "decision.json")
    decision.unlink()
    async with open_client(tmp_path) as (client, _):
        table = await client.table("t")
        with pytest.raises(VersionSuperseded, match="has applied version 3"):
            await table.transaction("load", 2).publish({})
        before = await changes(table)
        version = table.transaction("load", 3)
        await version.stage(rows(dict.fromkeys(range(50, 90), "x")), part=0, attempt=1)
        assert (await version.publish({0: 1})).decided
        assert await changes(table) == before


async def test_a_publisher_whose_answer_is_lost_publishes_again() -> None:
    """Cancelled anywhere on the way, the version is decided or not; what he gets next says what happened."""
    async with open_client(MemoryStore()) as (client, _):
        table = await make_table(client)
        for number in range(12):
            version = table.transaction("load", number)
            await version.stage(rows({50: f"{number}"}), part=0, attempt=0)
            async with scanner.connect(client.endpoint) as hasty:
                with trio.CancelScope() as scope:
                    async with trio.open_nursery() as nursery:
                        mine = (await hasty.table("t")).transaction("load", number)
                        publish = functools.partial(
                            mine.publish, previous_version=number - 1 if number else None
                        )
                        nursery.start_soon(publish, {0: 0})
                        for _ in range(5 * number):
                            await trio.lowlevel.checkpoint()
                        scope.cancel()
            published = await version.publish({0: 0}, previous_version=number - 1 if number else None)
            assert published.attempts == {0: 0}
            assert (await contents(table))[50] == f"{number}"
        assert len(await changes(table)) == 20 + 1 + 2 * 11


@pytest.mark.rocks
@pytest.mark.parametrize("aborted", [False, True])
async def test_a_decision_whose_writing_failed_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aborted: bool
) -> None:
    """The last sync failed, so the disk has it: it is not aborted, and publishing again abides by it.

    Before anything is applied it is written once more, since a loss of power could take it back.
    """
    real = RocksTransactionFiles.write_decision
    fail, written = [True], []

    def write(self: RocksTransactionFiles, name: str, content: bytes) -> None:
        real(self, name, content)
        written.append(json.loads(content)["shares"])
        if fail[0]:
            fail[0] = False
            raise StoreFailed("the directory was not synced")

    monkeypatch.setattr(RocksTransactionFiles, "write_decision", write)
    async with open_client(tmp_path) as (client, _):
        table = await make_table(client)
        version = table.transaction("load", 1)
        await version.stage(rows({50: "a"}), part=0, attempt=0)
        await version.stage(rows({50: "b"}), part=0, attempt=1)
        with pytest.raises(StoreFailed):
            await version.publish({0: 0})
        if aborted:
            with pytest.raises(TransactionDecided):
                await version.abort()
        published = await version.publish({0: 1})
        assert (published.decided, published.attempts) == (False, {0: 0})
        assert (await contents(table))[50] == "a"
        assert written[:2] == [None, None]


@pytest.mark.rocks
async def test_a_decision_whose_writing_failed_comes_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who was told of the failure, and writes anew under another name, does not find the older rows over his."""
    real = RocksTransactionFiles.write_decision

    def write(self: RocksTransactionFiles, name: str, content: bytes) -> None:
        known = name in self.decisions()
        real(self, name, content)
        if name == "z" and not known:
            raise StoreFailed("the directory was not synced")

    monkeypatch.setattr(RocksTransactionFiles, "write_decision", write)
    async with open_client(tmp_path) as (client, _):
        table = await make_table(client)
        for name in ("z", "a"):
            await table.transaction(name, 1).stage(rows(dict.fromkeys(range(30), name)), part=0, attempt=0)
        with pytest.raises(StoreFailed):
            await table.transaction("z", 1).publish({0: 0})
        for name in ("a", "z"):
            await table.transaction(name, 1).publish({0: 0})
        assert await contents(table) == dict.fromkeys(range(30), "a")


async def test_what_gets_its_place_first_is_decided_first() -> None:
    """Two names decide at the same time: the second is not durable, and not applied, before the first."""
    verified, decide, writing, write = (trio.Event() for _ in range(4))

    async def run_blocking(function: Callable[[], T]) -> T:
        await trio.lowlevel.checkpoint()
        step = function.func if isinstance(function, functools.partial) else function
        for what, reached, go_on in (("require_room", verified, decide), ("write_decision", writing, write)):
            if step.__name__ == what and not reached.is_set():
                reached.set()
                await go_on.wait()
        return function()

    async with open_client(MemoryStore(), run_blocking=run_blocking) as (client, _):
        table = await make_table(client)
        for name in ("z", "a"):
            await table.transaction(name, 1).stage(rows(dict.fromkeys(range(30), name)), part=0, attempt=0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(table.transaction("a", 1).publish, {0: 0})
            await verified.wait()
            nursery.start_soon(table.transaction("z", 1).publish, {0: 0})
            await writing.wait()
            decide.set()
            await trio.testing.wait_all_tasks_blocked()
            write.set()
        assert await contents(table) == dict.fromkeys(range(30), "a")


async def test_what_fails_while_another_waits_for_its_place_comes_before_it() -> None:
    """The disk may have the decision all the same: found later, it would be laid over what was decided behind it."""
    verified, both_verified = 0, trio.Event()
    order: list[str] = []

    async def run_blocking(function: Callable[[], T]) -> T:
        nonlocal verified
        await trio.lowlevel.checkpoint()
        step = function.func if isinstance(function, functools.partial) else function
        if step.__name__ == "require_room":
            verified += 1
            if verified == 2:
                both_verified.set()
            await both_verified.wait()
        result = function()
        if step.__name__ == "write_decision" and isinstance(function, functools.partial):
            order.append(function.args[0])
            if len(order) == 1:
                raise StoreFailed("the directory was not synced")
        return result

    async with open_client(MemoryStore(), run_blocking=run_blocking) as (client, _):
        table = await make_table(client)
        for name in ("z", "a"):
            await table.transaction(name, 1).stage(rows(dict.fromkeys(range(30), name)), part=0, attempt=0)

        async def publish(name: str) -> None:
            with suppress(StoreFailed):
                await table.transaction(name, 1).publish({0: 0})

        async with trio.open_nursery() as nursery:
            for name in ("z", "a"):
                nursery.start_soon(publish, name)
        first, second = order[0], "a" if order[0] == "z" else "z"
        assert not (await table.transaction(first, 1).publish({0: 0})).decided
        assert await contents(table) == dict.fromkeys(range(30), second)


async def test_rights_are_those_of_writing() -> None:
    """Who may only read can list, and neither stage nor publish nor abort."""
    async with access.serving() as server, access.connected(server, "reader") as reader:
        table = await reader.table("orders")
        version = table.transaction("load", 1)
        assert await table.transactions() == []
        acts = (
            version.stage(access.ROWS, part=0, attempt=0),
            version.publish({}),
            version.abort(),
        )
        for act in acts:
            with pytest.raises(PermissionDenied):
                await act


async def test_a_stage_without_the_right_is_not_finished(tmp_path: Path) -> None:
    """A stage whose writer has lost the right by its last message is refused then, and nothing of it is kept."""
    path = tmp_path / "credentials.toml"
    path.write_text(access.CREDENTIALS)
    credentials = CredentialsFile(path)
    async with access.serving(credentials) as server, access.connected(server, "all_writer") as client:
        table = await client.table("orders")
        version = pb.TransactionVersion(table="orders", table_id=table.table_id, name="load", version=1)
        metadata = [("authorization", bearer(access.TOKENS["writer"]))]
        async with (
            transport.connect(server.host, server.port, metadata=metadata) as connection,
            connection.open_stream(methods.STAGE) as stream,
        ):
            opening = pb.StageOpen(version=version, session=bytes(16))
            await stream.send(pb.StageRequest(open=opening).SerializeToString())
            while not await table.transactions():
                pass  # It has not been opened.
            path.write_text(access.CREDENTIALS.replace('write = ["orders"]', 'write = ["items"]'))
            assert credentials.reload()
            await stream.send(pb.StageRequest(finish=pb.StageFinish()).SerializeToString())
            await stream.send_end()
            with pytest.raises(CallFailed, match="principal writer may not write table 'orders'"):
                await stream.receive()
        assert sum(each.stages for each in await table.transactions()) == 0


@pytest.mark.parametrize("behind", ["rows", "finish"])
async def test_a_stage_that_goes_on_behind_its_finish_is_refused(behind: str) -> None:
    """What is sent behind the finish is not dropped without a word, whatever it is: nothing of the stage is kept."""
    async with open_client(MemoryStore()) as (client, server):
        table = await client.create_table("t", SCHEMA, ["id"], 1)
        version = pb.TransactionVersion(table="t", table_id=table.table_id, name="load", version=1)
        upsert = pb.StageRows(
            operation=pb.StageRows.OPERATION_UPSERT,
            arrow_stream=encode_stream(rows({1: "x"}).to_batches()[0]),
        )
        finish = pb.StageRequest(finish=pb.StageFinish(rows=1))
        async with (
            transport.connect(server.host, server.port) as connection,
            connection.open_stream(methods.STAGE) as stream,
        ):
            for request in (
                pb.StageRequest(open=pb.StageOpen(version=version, session=bytes(16))),
                pb.StageRequest(rows=upsert),
                finish,
                pb.StageRequest(rows=upsert) if behind == "rows" else finish,
            ):
                await stream.send(request.SerializeToString())
            await stream.send_end()
            with pytest.raises(CallFailed, match="went on behind its finish"):
                await stream.receive()
        assert sum(each.stages for each in await table.transactions()) == 0


@pytest.mark.parametrize(
    ("request_", "named"),
    [(pb.StageRequest(), "an empty request"), (pb.StageRequest(finish=pb.StageFinish()), "finish")],
    ids=["empty", "finish"],
)
async def test_a_stage_that_begins_with_something_else_is_refused(
    request_: pb.StageRequest, named: str
) -> None:
    """The error names what came instead of the opening, also where that is nothing this server knows."""
    async with (
        open_client(MemoryStore()) as (_, server),
        transport.connect(server.host, server.port) as connection,
        connection.open_stream(methods.STAGE) as stream,
    ):
        await stream.send(request_.SerializeToString())
        with pytest.raises(CallFailed, match=f"; {named} came too early"):
            await stream.receive()


async def send_stage(
    server: Server, version: pb.TransactionVersion, *pieces: dict[int, str | None]
) -> pb.StageResponse:
    """Stage rows in a session that is always the same, as a client of somebody else's may."""
    requests = [pb.StageRequest(open=pb.StageOpen(version=version, session=bytes(16)))]
    for piece in pieces:
        stream_of_rows = encode_stream(rows(piece).to_batches()[0])
        upsert = pb.StageRows(operation=pb.StageRows.OPERATION_UPSERT, arrow_stream=stream_of_rows)
        requests.append(pb.StageRequest(rows=upsert))
    requests.append(pb.StageRequest(finish=pb.StageFinish(rows=sum(map(len, pieces)))))
    async with (
        transport.connect(server.host, server.port) as connection,
        connection.open_stream(methods.STAGE) as stream,
    ):
        for request in requests:
            await stream.send(request.SerializeToString())
        await stream.send_end()
        answer = await stream.receive()
        assert answer is not None
        return pb.StageResponse.FromString(bytes(answer))


@pytest.mark.rocks
@pytest.mark.parametrize("sessions", [(b"b" * 16, b"a" * 16), (b"a" * 16, b"a" * 16)])
async def test_stages_that_are_opened_in_one_millisecond(
    tmp_path: Path, sessions: tuple[bytes, bytes]
) -> None:
    """They apply in the order of their opens, and one that is sent again while the first is given up is unharmed."""
    config = ScannerConfig()
    async with trio.open_nursery() as nursery:
        with RocksStore.open(tmp_path) as store:
            store.create_table(TableDescription("t", SCHEMA, ("id",), 1))
            catalog = Catalog(store, config, nursery, inline)
            transactions = await Transactions(store, catalog, config, nursery, inline, _Clock().now_ms).load()
            key = store.key_codec("t").encode([1])
            writers = []
            for text, session in zip((b"first", b"second"), sessions, strict=True):
                writer = await transactions.open_stage(_key("load", 1), Attempt(0, 0), session)
                await writer.append(list(mutation_frames({0: [Mutation(key, text)]})))
                writers.append(writer)
            if sessions[0] == sessions[1]:
                await writers.pop(0).leave()
            for writer in reversed(writers):
                await writer.finish()
            await transactions.publish(_key("load", 1), {0: 0})
            with closing(store.bucket("t", 0).open_reader()) as reader:
                assert reader.get(key) == b"second"


@pytest.mark.rocks
async def test_a_session_is_of_one_stage(tmp_path: Path) -> None:
    """The same rows again count once, in whatever pieces; other rows are not dropped without a word."""
    other = "stage of 2 rows is that of one of 3 rows"
    async with open_client(tmp_path) as (client, server):
        table = await client.create_table("t", SCHEMA, ["id"], 2)
        version = pb.TransactionVersion(table="t", table_id=table.table_id, name="load", version=1)
        first = await send_stage(server, version, {1: "x", 2: "y", 3: "z"})
        assert await send_stage(server, version, {1: "x"}, {2: "y", 3: "z"}) == first
        with pytest.raises(CallFailed, match=other):
            await send_stage(server, version, {4: "x", 5: "y"})
        others: tuple[dict[int, str | None], ...] = ({3: None}, {3: "y"}, {4: "z"})
        for third in others:
            with pytest.raises(CallFailed, match="stage of 3 rows is that of one of other rows"):
                await send_stage(server, version, {1: "x", 2: "y"}, third)
    async with open_client(tmp_path) as (client, server):
        with pytest.raises(CallFailed, match=other):
            await send_stage(server, version, {4: "x", 5: "y"})
        table = await client.table("t")
        await table.transaction("load", 1).publish({0: 0})
        assert await contents(table) == {1: "x", 2: "y", 3: "z"}


@pytest.mark.rocks
async def test_a_share_that_replaces_more_than_an_entry_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is small itself, and applied in pieces all the same; tails get it whole."""
    monkeypatch.setattr("scanner.storage.rocksdb.commits.ENTRY_BYTES_MAX", 2000)
    async with open_client(tmp_path) as (client, _):
        table = await client.create_table("t", SCHEMA, ["id"], 1)
        for start in range(0, 40, 4):
            await table.write(rows(dict.fromkeys(range(start, start + 4), "x" * 400)))
        version = table.transaction("load", 1)
        await version.stage(rows(dict.fromkeys(range(40), "y")), part=0, attempt=0)
        [(_, start, end)] = (await version.publish({0: 0})).ranges
        assert (start, end) == (40, 120)
        assert set((await contents(table)).values()) == {"y"}


@pytest.mark.rocks
async def test_a_share_that_fails_half_way_is_undone_and_applied_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publisher is told that it is decided; scans go on as before, and the server completes it by itself."""
    config = ScannerConfig(transaction_piece_bytes=100)
    fail = [True]
    real_commit = RocksBucket.commit_prepared
    pieces = [0]

    def commit(self: RocksBucket, *args: Any, **kwargs: Any) -> None:
        pieces[0] += kwargs.get("unfinished", False)
        if fail[0] and pieces[0] >= 3:
            raise ArgumentInvalid("cannot")
        real_commit(self, *args, **kwargs)

    monkeypatch.setattr(RocksBucket, "commit_prepared", commit)
    async with open_client(tmp_path, config) as (client, server):
        table = await make_table(client)
        version = table.transaction("load", 1)
        await version.stage(rows(dict.fromkeys(range(50), "x" * 50)), part=0, attempt=0)
        with pytest.raises(ScannerError, match="is decided, and the server goes on applying it"):
            await version.publish({0: 0})
        assert len(await contents(table)) < 50
        fail[0] = False
        published = await version.publish({0: 0})
        assert not published.decided
        assert set((await contents(table)).values()) == {"x" * 50}
        assert len(await changes(table)) == 20 + 2 * 20 + 30
        assert server.statistics().transactions_unapplied == 0


@pytest.mark.rocks
@pytest.mark.parametrize(("restarted", "older"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("overwrite", [False, True])
async def test_what_is_decided_first_is_applied_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, restarted: bool, older: bool, overwrite: bool
) -> None:
    """A version that a bucket could not apply is not laid over one that was decided after it, by another name."""
    failing = {"z"}
    real_commit = RocksBucket.commit_prepared

    def commit(self: RocksBucket, *args: Any, **kwargs: Any) -> None:
        applied = {**(args[2] if len(args) > 2 else {}), **kwargs.get("applied", {})}
        if failing & applied.keys() and "01" in self._path.name:
            raise StoreFailed(f"{self._path}: the disk refused")
        real_commit(self, *args, **kwargs)

    async def publish(table: scanner.Table, name: str) -> None:
        await table.transaction(name, 1).publish({0: 0}, overwrite=overwrite)

    monkeypatch.setattr(RocksBucket, "commit_prepared", commit)
    async with AsyncExitStack() as stack:
        client, _ = await stack.enter_async_context(open_client(tmp_path))
        table = await make_table(client)
        for name in ("z", "a"):
            await table.transaction(name, 1).stage(rows(dict.fromkeys(range(30), name)), part=0, attempt=0)
        with pytest.raises(StoreFailed, match="is decided, and the server goes on applying it") as raised:
            await publish(table, "z")
        assert str(tmp_path) not in raised.value.message
        with pytest.raises(StoreFailed, match="version 1 of transaction 'z' of table 't' is decided"):
            await publish(table, "a")
        if restarted:
            await stack.aclose()
            for path in found_in(tmp_path, "decision.json") if older else ():
                decision = json.loads(read_sealed(path) or b"")
                del decision["order"]
                decision["decided_ms"] -= decision["name"] == "z"  # It may have been the same millisecond.
                write_sealed(path, json.dumps(decision).encode())
            client, _ = await stack.enter_async_context(open_client(tmp_path))
            table = await client.table("t")
            with pytest.raises(StoreFailed, match="version 1 of transaction 'z' of table 't' is decided"):
                await publish(table, "a")
        failing.clear()
        for name in ("z", "a"):
            await publish(table, name)
        assert await contents(table) == dict.fromkeys(range(30), "a")


@pytest.mark.rocks
async def test_a_version_whose_stage_is_damaged_holds_up_its_name_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can never be applied, so what other names publish does not wait for it."""
    real_open = RocksTransactionFiles.open_source

    def open_source(self: RocksTransactionFiles, key: StageKey) -> Any:
        if key.name == "z" and "z" in self.decisions():
            raise DataCorrupted("the stage is damaged")
        return real_open(self, key)

    monkeypatch.setattr(RocksTransactionFiles, "open_source", open_source)
    async with open_client(tmp_path) as (client, _):
        table = await make_table(client)
        for name in ("z", "a"):
            await table.transaction(name, 1).stage(rows(dict.fromkeys(range(30), name)), part=0, attempt=0)
        with pytest.raises(DataCorrupted):
            await table.transaction("z", 1).publish({0: 0})
        assert (await table.transaction("a", 1).publish({0: 0})).decided
        assert await contents(table) == dict.fromkeys(range(30), "a")


@pytest.mark.rocks
@pytest.mark.parametrize("older", [False, True])
async def test_a_version_whose_stage_is_gone_is_not_applied_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, older: bool
) -> None:
    """A file system that was repaired after a crash has lost one of them; the other rows alone are not the version."""
    async with AsyncExitStack() as stack:
        client, _ = await stack.enter_async_context(open_client(tmp_path))
        table = await make_table(client)
        version = table.transaction("load", 1)
        for part, text in ((0, "x"), (0, "y"), (1, "z")):
            await version.stage(rows({part: text}), part=part, attempt=0)
            if older:  # What these have decided has no number of stages: each part has one at least.
                break
        with monkeypatch.context() as patch:
            for bucket in range(BUCKETS):
                refuse_shares(patch, bucket)
            with pytest.raises(StoreFailed, match="is decided"):
                await version.publish({0: 0} if older else {0: 0, 1: 0})
            await stack.aclose()
        stages = sorted(found_in(tmp_path, "*.stage"))
        stages[0].unlink()
        if older:
            [path] = found_in(tmp_path, "decision.json")
            decision = json.loads(read_sealed(path) or b"")
            del decision["stages"]
            write_sealed(path, json.dumps(decision).encode())
        client, _ = await stack.enter_async_context(open_client(tmp_path))
        table = await client.table("t")
        with pytest.raises(
            DataCorrupted, match=f"is decided.*stages of it are gone, and {len(stages) - 1} are there"
        ):
            await table.transaction("load", 1).publish({})
        assert await contents(table) == BEFORE
