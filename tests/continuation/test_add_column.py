"""A table that gets a column: who scans goes on with the columns of before, whoever begins then has them all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import scanner
from scanner.errors import ArgumentInvalid, SchemaMismatch
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.storage.rocksdb.store import RocksStore
from tests.support.conformance import ROWS, Items, open_items, read
from tests.support.models import (
    PUSH,
    SESSION_MODEL,
    TOKEN,
    Model,
    every_model,
    every_scan,
    open_wire,
    paged_models,
)
from tests.support.scans import SCHEMA, sample

if TYPE_CHECKING:
    from scanner.storage.interface import Store

COLOUR = pa.field("colour", pa.string())
SIZE = pa.field("size", pa.decimal128(9, 2))


async def add(items: Items, *columns: pa.Field) -> scanner.Table:
    """Add columns, as another client would."""
    table = await items.client.table("items")
    for column in columns:
        await table.add_column(column)
    return table


def red(ids: range) -> pa.RecordBatch:
    """Rows of the sample, and a colour."""
    return sample(ids).append_column(COLOUR, pa.array(["red"] * len(ids)))


@every_scan
async def test_a_scan_that_runs_keeps_its_columns(store: Store, model: Model) -> None:
    """Rows, columns and digest are those of a scan that nothing happened to; rows written since are not in it."""
    async with open_items(store) as items:
        undisturbed = await read(model.scan(items.table))

        async def grow() -> None:
            table = await add(items, COLOUR)
            await table.write(red(range(ROWS - 10, ROWS + 10)))

        found = await read(model.scan(items.table), after=2, happen=grow)
        assert {batch.schema for batch in found.batches} == {SCHEMA}
        if model.isolated:
            assert found.ids == list(range(ROWS))
            assert found.statistics.digest == undisturbed.statistics.digest
            assert found.table == undisturbed.table
        else:
            assert found.ids == list(range(ROWS + 10))

        fresh = await items.client.table("items")
        after = await read(model.scan(fresh))
        assert after.table.column("colour").to_pylist() == [None] * (ROWS - 10) + ["red"] * 20
        if model.isolated and model.mode in ("push", "asof"):
            before = await read(model.scan(fresh).as_of(ROWS))
            assert before.statistics.digest == undisturbed.statistics.digest
            assert before.table.column("colour").to_pylist() == [None] * ROWS
            assert before.table.drop_columns("colour") == undisturbed.table


@paged_models
@pytest.mark.parametrize("columns", [(), ("id", "name")], ids=["all columns", "named columns"])
async def test_a_token_goes_on_with_the_columns_that_it_began_with(
    store: Store, model: Model, columns: tuple[str, ...]
) -> None:
    """Whichever number of columns was added between its pages, and also if it began after the first of them."""
    query = pb.ScanQuery(table="items", columns=columns)
    async with open_items(store) as items:
        async with open_wire(model, items.raw, query) as first:
            await first.open()
            await add(items, COLOUR)
            async with open_wire(model, items.raw, query) as second:
                await second.open()
                await first.next()
                await add(items, SIZE)
                for wire, names in ((first, SCHEMA.names), (second, [*SCHEMA.names, "colour"])):
                    assert wire.schema.names == list(columns or names)
                    await wire.read_all()
                    assert wire.ids == list(range(ROWS))
                    await wire.release()


async def test_a_push_token_goes_on_over_added_columns(store: Store) -> None:
    """A stock client that asks for all columns and resumes gets those that the scan began with."""
    async with open_items(store) as items:
        async with open_wire(PUSH, items.raw) as first:
            await first.open()
            token, seen = first.pages[-1].token, first.ids
        await add(items, COLOUR, SIZE)
        async with open_wire(PUSH, items.raw) as second:
            await second.open(token)
            assert second.schema == SCHEMA
            await second.read_all()
            assert [*seen, *second.ids] == list(range(ROWS))
            later = second.pages[1].token
        async with open_wire(PUSH, items.raw) as third:
            await third.open(later)
            assert third.schema == SCHEMA
        async with open_wire(PUSH, items.raw, pb.ScanQuery(table="items", columns=["id", "colour"])) as other:
            with pytest.raises(Exception, match="another query"):
                await other.open(token)


@pytest.mark.parametrize("model", [SESSION_MODEL, TOKEN], ids=str)
async def test_what_is_kept_between_pages_can_be_given_back(store: Store, model: Model) -> None:
    """A column that was added meanwhile does not keep a client from closing what the server holds for it."""
    async with open_items(store) as items:
        async with open_wire(model, items.raw) as wire:
            await wire.open()
            await add(items, COLOUR)
            await wire.next()
            await wire.release()
        await items.released()


async def test_a_client_that_does_not_know_the_column_is_told(store: Store) -> None:
    """It writes nothing that lacks the column and begins no scan with fewer; asking for the table again is enough."""
    async with open_items(store, 10) as items:
        table = await add(items, COLOUR)
        with pytest.raises(SchemaMismatch, match=r"missing \['colour'\]"):
            await items.table.write(sample(range(3)))
        with pytest.raises(SchemaMismatch, match="ask the client for it again"):
            await read(items.table.new_scan())
        await table.write(red(range(3)))
        fresh = await items.client.table("items")
        assert (await fresh.new_scan().to_arrow()).column("colour").to_pylist() == ["red"] * 3 + [None] * 7


async def test_a_column_that_cannot_be_is_refused(store: Store) -> None:
    """Not nullable, not storable, there already, a change's: nothing changes, whether client or server says so."""
    async with open_items(store, 3) as items:
        for column, error, message in (
            (pa.field("x", pa.int8(), nullable=False), SchemaMismatch, "must be nullable"),
            (pa.field("x", pa.uint8()), SchemaMismatch, "cannot be stored"),
            (pa.field("price", pa.int8()), ArgumentInvalid, "items has a column 'price' already, of type"),
            (
                pa.field("_log_offset", pa.int64()),
                ArgumentInvalid,
                "'_log_offset' cannot be added: every change has",
            ),
        ):
            with pytest.raises(error, match=message):
                await items.table.add_column(column)
        await add(items, COLOUR)
        with pytest.raises(ArgumentInvalid, match="items has a column 'colour' already, of type string"):
            await items.table.add_column(COLOUR)  # This one does not know of it; the server does.
        assert (await items.client.table("items")).schema.names == [*SCHEMA.names, "colour"]


@every_model
async def test_columns_outlive_a_restart(tmp_path: Path, model: Model) -> None:
    """Rows, checkpoints and the past of before and after are read, padded, by the server that comes next."""
    with RocksStore.open(tmp_path) as store:
        async with open_items(store, 100) as items:
            await items.client.checkpoint("items")
            table = await add(items, COLOUR)
            await table.write(red(range(50, 150)))
            await table.add_column(SIZE)
    with RocksStore.open(tmp_path) as store:
        async with open_items(store, there=True) as items:
            found = await read(model.scan(items.table))
            assert found.table.schema.names == [*SCHEMA.names, "colour", "size"]
            assert found.ids == list(range(150))
            assert found.table.column("colour").to_pylist() == [None] * 50 + ["red"] * 100
            assert found.table.column("size").null_count == 150
            if model is PUSH:
                for scan in (
                    items.table.new_scan().as_of(100),
                    items.table.new_scan().with_source(scanner.ScanSource.SNAPSHOT),
                ):
                    past = await read(scan)
                    assert past.table.select(SCHEMA.names).combine_chunks().to_batches() == [
                        sample(range(100))
                    ]
                    assert past.table.column("colour").null_count == 100
