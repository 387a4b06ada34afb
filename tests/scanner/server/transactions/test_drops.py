"""Tables that are dropped, or nearly so, while a large share of a transaction is applied to them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio

from scanner.errors import ScannerError, StoreFailed, TableNotFound
from scanner.server.config import ScannerConfig
from scanner.server.tables.bucket import ServedBucket
from scanner.server.transactions import completion
from scanner.server.transactions.overwriting import deletions
from scanner.server.transactions.verification import share_pieces
from scanner.storage.rocksdb.bucket import RocksBucket
from scanner.storage.rocksdb.store import RocksStore
from tests.support.client import open_client
from tests.support.transactions import BEFORE, SCHEMA, changes, contents, rows

if TYPE_CHECKING:
    import scanner
    from scanner.storage.interface import Mutation, Mutations

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

CONFIG = ScannerConfig(transaction_piece_bytes=100)
AFTER = dict.fromkeys(range(50), "x" * 50)


class Pieces:
    """The pieces that storage writes of a share: the second one waits until the table is being dropped."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.written = 0
        self.begun = trio.Event()
        self._dropping = threading.Event()
        self._commit = RocksBucket.commit_prepared
        self._refuse = ServedBucket.refuse
        patch.setattr(RocksBucket, "commit_prepared", lambda *args, **named: self._written(*args, **named))
        patch.setattr(ServedBucket, "refuse", lambda *args: self._refused(*args))

    def _written(self, bucket: RocksBucket, *args: Any, unfinished: bool = False, **named: Any) -> None:
        self.written += unfinished
        if unfinished and self.written == 2:
            trio.from_thread.run_sync(self.begun.set)
            self._dropping.wait()
        self._commit(bucket, *args, unfinished=unfinished, **named)

    def _refused(self, bucket: ServedBucket, reason: ScannerError) -> None:
        self._refuse(bucket, reason)
        self._dropping.set()


async def _staged(client: scanner.Client) -> tuple[scanner.Table, scanner.Transaction]:
    """A table of one bucket with rows, and a version that changes and adds some, in dozens of pieces."""
    table = await client.create_table("t", SCHEMA, ["id"], 1)
    await table.write(rows(BEFORE))
    version = table.transaction("load", 1)
    await version.stage(rows(AFTER), part=0, attempt=0)
    return table, version


async def test_a_drop_ends_a_share_between_two_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It waits for neither the rest of the share nor the undoing of what was written, and nothing has failed."""
    async with open_client(tmp_path, CONFIG) as (client, server), trio.open_nursery() as nursery:
        _, version = await _staged(client)
        pieces = Pieces(monkeypatch)

        async def publish() -> None:
            with pytest.raises(TableNotFound, match="'t' was dropped"):
                await version.publish({0: 0})

        nursery.start_soon(publish)
        await pieces.begun.wait()
        await client.drop_table("t")
        assert pieces.written == 2
        assert server.statistics().activity.commits_failed == 0
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("then", ["read", "write", "publish", "restart"])
async def test_a_share_that_a_drop_has_ended_is_applied_if_the_table_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, then: str, closed: bool
) -> None:
    """What was written of it is undone before anything else is done, whether its files were closed or not."""

    def refuse(*_: object) -> None:
        raise StoreFailed("the disk refused")

    monkeypatch.setattr("scanner.server.transactions.completion._DELAY_S_MIN", 1000)
    if closed:
        monkeypatch.setattr("scanner.storage.rocksdb.store.mark_dropping", refuse)
    else:
        monkeypatch.setattr(RocksStore, "drop_table", refuse)
    expected = dict(BEFORE)
    async with open_client(tmp_path, CONFIG) as (client, _):
        table, version = await _staged(client)
        pieces = Pieces(monkeypatch)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(version.publish, {0: 0})
            await pieces.begun.wait()
            nursery.cancel_scope.cancel()  # Its client would ask again, and the server would not wait.
        with pytest.raises(StoreFailed):
            await client.drop_table("t")
        assert pieces.written == 2
        if then == "write":
            await table.write(rows({60: "new"}))
            expected[60] = "new"
        if then in ("read", "write"):
            assert await contents(table) == expected
        if then != "restart":
            assert not (await version.publish({0: 0})).decided
    async with open_client(tmp_path, CONFIG) as (client, _):
        table = await client.table("t")
        assert not (await table.transaction("load", 1).publish({0: 0})).decided
        assert await contents(table) == {**expected, **AFTER}
        assert len(await changes(table)) == len(expected) + len(BEFORE) + len(AFTER)


async def test_a_drop_ends_the_reading_of_a_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An overwriting version reads all of its share before it writes anything."""
    begun, dropping, read = trio.Event(), threading.Event(), [0]
    pieces, refuse = share_pieces, ServedBucket.refuse

    def read_slowly(*args: Any) -> Iterator[Mutations]:
        for piece in pieces(*args):
            yield piece
            read[0] += 1
            if read[0] == 1:
                trio.from_thread.run_sync(begun.set)
                dropping.wait()

    def refuse_now(bucket: ServedBucket, reason: ScannerError) -> None:
        refuse(bucket, reason)
        dropping.set()

    async with open_client(tmp_path, CONFIG) as (client, _), trio.open_nursery() as nursery:
        _, version = await _staged(client)
        monkeypatch.setattr(completion, "share_pieces", read_slowly)
        monkeypatch.setattr(ServedBucket, "refuse", refuse_now)

        async def publish() -> None:
            with pytest.raises(TableNotFound, match="'t' was dropped"):
                await version.publish({0: 0}, overwrite=True)

        nursery.start_soon(publish)
        await begun.wait()
        await client.drop_table("t")
    assert read == [1]


async def test_rows_that_stay_are_read_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two of them a drop can end an overwriting version that deletes nothing; nothing is written for them."""
    monkeypatch.setattr("scanner.server.transactions.overwriting._READ_BYTES", 1)
    taken, unfinished = list[int](), list[bool]()
    find, commit = deletions, RocksBucket.commit_prepared

    def note_taken(*args: Any) -> Iterator[list[Mutation]]:
        for deletes in find(*args):
            taken.append(len(deletes))
            yield deletes

    def count(*args: Any, **named: Any) -> None:
        unfinished.append(named.get("unfinished", False))
        commit(*args, **named)

    async with open_client(tmp_path) as (client, _):
        _, version = await _staged(client)
        monkeypatch.setattr(completion, "deletions", note_taken)
        monkeypatch.setattr(RocksBucket, "commit_prepared", count)
        await version.publish({0: 0}, overwrite=True)
    assert taken == [0] * len(BEFORE)
    assert unfinished == [True, False]
