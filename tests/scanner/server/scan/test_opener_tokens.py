"""Tokens at the opener: what they continue, how often, and what they are refused for before storage is asked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import trio

from scanner.data.position import Position
from scanner.errors import ArgumentInvalid, ResumeTokenInvalid, TableNotFound
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.scan.resumes import TokenReader, offset_to_resume
from scanner.server.scan.tokens import MODEL_PUSH
from scanner.server.tables.catalog import Catalog
from scanner.tasks import inline
from scanner.wire.queries import ScanQuery
from tests.support.opening import CONFIG, LIVE, QUERY, ROWS, opening, read, resume
from tests.support.scans import description, stored_digest

if TYPE_CHECKING:
    from scanner.server.scan.kv_scan import KvScan


async def test_a_resume_may_be_repeated() -> None:
    """One token used twice at once gives the same rows twice, and is still good afterwards."""
    async with opening() as at:
        first = await at.opener.open(QUERY, "ann")
        read(first.scan.source, 33)
        cut = first.token()
        first.scan.close()
        at.write(range(20, 60))
        opened: list[KvScan] = []

        async def open_one() -> None:
            opened.append(await resume(at, cut))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_one)
            nursery.start_soon(open_one)
        rows: list[list[int]] = [[], []]
        while any(each.scan.source.end is None for each in opened):
            for each, found in zip(opened, rows, strict=True):
                found += read(each.scan.source, 5)
        assert rows == [list(range(33, ROWS))] * 2
        again = await resume(at, cut)
        assert read(again.scan.source) == list(range(33, ROWS))
        for each in (*opened, again):
            each.scan.close()


async def test_the_row_limit_counts_what_came_before() -> None:
    """A limit of the scan is one of all its parts together, with the filter, range and order of any scan."""
    query = ScanQuery(table="items", columns=("id",), row_limit=100)
    async with opening() as at:
        first = await at.opener.open(query, "ann")
        assert len(read(first.scan.source, 70)) == 70
        second = await resume(at, first.token(), query)
        first.scan.close()
        assert read(second.scan.source) == list(range(70, 100))
        done = await resume(at, second.token(), query)
        second.scan.close()
        assert read(done.scan.source) == []
        assert done.scan.source.digest == stored_digest(at.store, range(100))
        done.scan.close()


NAMED = ScanQuery(table="items", columns=("id", "name"))


async def test_a_token_of_other_columns_is_no_token_of_all_columns() -> None:
    """A scan of all columns goes on in those that the table had when it began, and in no others."""
    async with opening() as at:
        first = await at.opener.open(replace(NAMED, columns=("id",)), "ann")
        read(first.scan.source, 10)
        with pytest.raises(ResumeTokenInvalid):
            await resume(at, first.token(), ScanQuery(table="items"))
        first.scan.close()


async def test_others_have_a_turn_for_each_column_that_was_added() -> None:
    """A token whose query names no columns may be of any that the table had: each is tried, with all literals."""
    turns = 0

    async def run() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with opening() as at, trio.open_nursery() as nursery:
        opened = await at.opener.open(NAMED, "ann")
        cut = opened.token()
        opened.scan.close()
        for number in range(20):
            await at.catalog.add_column("items", pa.field(f"more_{number}", pa.int8()))
        nursery.start_soon(run)
        await trio.lowlevel.checkpoint()
        turns = 0
        with pytest.raises(ResumeTokenInvalid):
            await resume(at, cut, ScanQuery(table="items"))
        nursery.cancel_scope.cancel()
    assert turns >= 20


class Counting(Catalog):
    """Counts how often somebody asks for a table."""

    asked = 0

    async def table(self, name: str, table_id: int | None = None):  # type: ignore[no-untyped-def]  # noqa: ANN201
        self.asked += 1
        return await super().table(name, table_id)


@pytest.mark.parametrize(
    ("query", "principal", "source", "model"),
    [
        (ScanQuery(table="items", columns=("id",)), "ann", LIVE, MODEL_PUSH),
        (replace(NAMED, row_limit=5), "ann", LIVE, MODEL_PUSH),
        (replace(NAMED, bucket=1), "ann", LIVE, MODEL_PUSH),
        (NAMED, "bob", LIVE, MODEL_PUSH),
        (QUERY, "bob", LIVE, MODEL_PUSH),
    ],
    ids=["columns", "limit", "bucket", "principal", "principal, all columns"],
)
async def test_a_token_of_something_else_never_gets_to_storage(
    query: ScanQuery, principal: str, source: int, model: int
) -> None:
    """Another query, bucket or principal is refused by the token alone: not even the catalog is asked.

    It is for a token of ours whose query names no columns: which ones they were only the table knows.
    """
    async with opening() as at:
        opened = await at.opener.open(NAMED, "ann")
        cut = opened.token()
        opened.scan.close()
        async with trio.open_nursery() as nursery:
            catalog = Counting(at.store, CONFIG, nursery, inline)
            reader = TokenReader(catalog, at.tokens)
            with pytest.raises(ResumeTokenInvalid):
                await reader.read(cut, query, principal, source=source, model=model)
            assert catalog.asked == 0
            await reader.read(cut, NAMED, "ann", source=LIVE, model=MODEL_PUSH)
            assert catalog.asked > 0


async def test_a_token_of_another_model_or_source_is_refused() -> None:
    """A page's token is none of a push scan, nor is one of a checkpoint's scan."""
    async with opening() as at:
        for source, model in ((LIVE, pb.PAGE_MODEL_ASOF), (pb.SCAN_SOURCE_SNAPSHOT, MODEL_PUSH)):
            opened = await at.opener.open(QUERY, "ann", source=source, model=model)
            with pytest.raises(ResumeTokenInvalid):
                await resume(at, opened.token())
            opened.scan.close()


async def test_a_token_outlives_no_table() -> None:
    """After a drop the table is not found; one of the same name is another table."""
    async with opening() as at:
        opened = await at.opener.open(QUERY, "ann")
        cut = opened.token()
        opened.scan.close()
        await at.catalog.drop("items")
        with pytest.raises(TableNotFound):
            await resume(at, cut)
        await at.catalog.create(description())
        with pytest.raises(ResumeTokenInvalid, match="dropped"):
            await resume(at, cut)


async def test_as_of_beside_a_token_is_the_same_or_an_error() -> None:
    """A token says what it is as of; asking for something else at the same time makes no sense."""
    async with opening() as at:
        opened = await at.opener.open(QUERY, "ann")
        state = at.tokens.read(opened.token(), QUERY, "ann")
        opened.scan.close()
    assert state.position == Position()
    assert offset_to_resume(state, None) == offset_to_resume(state, ROWS) == ROWS
    with pytest.raises(ArgumentInvalid, match=f"as of {ROWS}, not 3"):
        offset_to_resume(state, 3)
