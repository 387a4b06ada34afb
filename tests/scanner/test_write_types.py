"""Writes of every Arrow type into every stored type: each value is read back as it was, or all of them are refused."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
import trio

import scanner
import transport
from scanner.client.failures import as_scanner_error
from scanner.errors import KeyInvalid, ScannerError, SchemaMismatch
from scanner.server.server import open_server
from scanner.storage.memory.store import MemoryStore
from tests.support.exact_values import exact_values, has_exactly, kind_of
from tests.support.scans import write, write_request

ZONES = (None, "UTC", "Europe/Berlin", "+02:00")
TIMESTAMPS = [pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in ZONES]
STORED = [
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.decimal128(5, 2),
    pa.decimal128(5, -2),
    pa.decimal128(38, 0),
    pa.decimal128(38, 37),
    pa.date32(),
    *TIMESTAMPS[::3],
    pa.string(),
    pa.binary(),
]
WIDE = [pa.decimal32(9, 2), pa.decimal64(18, 3), pa.decimal128(38, 10), pa.decimal256(76, 5)]
DICTIONARIES = [
    pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.int64(), pa.large_string()),
    pa.dictionary(pa.int16(), pa.float64()),
    pa.dictionary(pa.int32(), pa.timestamp("ns", "UTC")),
    pa.dictionary(pa.uint8(), pa.decimal128(9, 3)),
]
OTHERS = [
    pa.time32("s"),
    pa.time64("ns"),
    pa.duration("us"),
    pa.list_(pa.int64()),
    pa.struct([("a", pa.int64())]),
    pa.month_day_nano_interval(),
    pa.run_end_encoded(pa.int32(), pa.int64()),
    pa.uuid(),
]
"""Types of no kind that is stored."""
GIVEN = list(
    dict.fromkeys(
        [
            *STORED,
            pa.uint8(),
            pa.uint16(),
            pa.uint32(),
            pa.uint64(),
            pa.float16(),
            *WIDE,
            pa.date64(),
            *TIMESTAMPS,
            pa.large_string(),
            pa.string_view(),
            pa.large_binary(),
            pa.binary_view(),
            pa.binary(4),
            *DICTIONARIES,
        ]
    )
)
FLOATS = [0.0, -0.0, 1.5, -2.0, 0.1, 16777217.0, 1e300, -1e39, 5e-324, 2.0**-149, 3.4028234663852886e38]
FLOATS += [float("nan"), float("inf"), float("-inf"), 65504.0, 1 / 3]
WHOLES = [
    0,
    1,
    -1,
    5,
    100,
    127,
    128,
    -128,
    -129,
    32767,
    1 << 24,
    (1 << 31) - 1,
    -(1 << 31),
    1 << 53,
    86_400_000,
]
WHOLES += [1000, 1500, 10**9, 1_500_000_000, 86_400_000 * 365, (1 << 62) + 1]


def column(data_type: pa.DataType, count: int, rng: random.Random) -> pa.Array:
    """Cells of any type but `OTHERS`: extremes, round numbers and nulls."""
    if pa.types.is_dictionary(data_type):
        values = column(data_type.value_type, 4, rng)
        indices = pa.array([rng.choice([0, 1, 2, 3, None]) for _ in range(count)], data_type.index_type)
        return pa.DictionaryArray.from_arrays(indices, values)
    cell = cell_of(data_type, rng)
    cells = [cell() if rng.random() < 0.85 else None for _ in range(count)]
    if pa.types.is_temporal(data_type):
        return pa.array(cells, pa.int32() if data_type.bit_width == 32 else pa.int64()).view(data_type)
    if pa.types.is_decimal(data_type):
        return decimals([cell if isinstance(cell, int) else None for cell in cells], data_type)
    return pa.array(cells, data_type)


def cell_of(data_type: pa.DataType, rng: random.Random) -> Callable[[], object]:
    """What draws one cell, as it is stored."""
    types = pa.types
    if types.is_boolean(data_type):
        return lambda: rng.random() < 0.5
    if types.is_floating(data_type):
        exact = {16: 65504.0, 32: 3.4028234663852886e38, 64: 1e308}[data_type.bit_width]
        return lambda: rng.choice([each for each in FLOATS if each != each or abs(each) <= exact])
    if types.is_decimal(data_type):
        top = 10**data_type.precision - 1
        return lambda: rng.choice(
            [0, 1, -1, top, -top, *(each for each in (100, 1005, 1000, -15000) if each <= top)]
        )
    if types.is_fixed_size_binary(data_type):
        return lambda: rng.randbytes(4)
    if kind_of(data_type) == "string":
        return lambda: rng.choice(["", "ä", "1", "true", "2013-01-01", "x" * 40])
    if kind_of(data_type) == "binary":
        return lambda: rng.choice([b"", b"\x00\xff", b"1", b"y" * 40])
    low, high = bounds(data_type)
    wholes = [each for each in (*WHOLES, low, high) if low <= each <= high]
    if types.is_date64(data_type):
        wholes = [each for each in wholes if each % 86_400_000 == 0]
    return lambda: rng.choice(wholes)


def bounds(data_type: pa.DataType) -> tuple[int, int]:
    """The smallest and the largest whole number that a cell of a type holds."""
    bits = data_type.bit_width
    signed = not pa.types.is_unsigned_integer(data_type)
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)


def decimals(unscaled: list[int | None], data_type: pa.DataType) -> pa.Array:
    """Decimals of any width, from how they are stored."""
    width = data_type.bit_width // 8
    stored = b"".join((each or 0).to_bytes(width, "little", signed=True) for each in unscaled)
    valid = sum((each is not None) << index for index, each in enumerate(unscaled))
    validity = pa.py_buffer(valid.to_bytes(len(unscaled) // 8 + 1, "little"))
    return pa.Array.from_buffers(data_type, len(unscaled), [validity, pa.py_buffer(stored)])


@asynccontextmanager
async def serving(store: MemoryStore | Path) -> AsyncIterator[tuple[scanner.Client, transport.Client]]:
    """A server, with a client of it and a connection to it that checks nothing by itself."""
    async with open_server(store) as server:
        async with (
            scanner.connect(f"127.0.0.1:{server.port}") as client,
            transport.connect("127.0.0.1", server.port) as raw,
        ):
            yield client, raw


@dataclass
class Written:
    """What one table of keys and one other column must hold."""

    table: scanner.Table
    raw: transport.Client
    cells: dict[int, object] = field(default_factory=dict)
    keys: int = 0
    stored: int = 0
    refused: int = 0

    async def write(self, given: pa.Array, *, by_client: bool) -> None:
        """Write a column, which must be taken if each of its values is one of the table's type, and else refused."""
        keys = range(self.keys, self.keys + len(given))
        self.keys += len(given)
        batch = pa.record_batch({"k": pa.array(keys, pa.int64()), "v": given})
        stored_type = self.table.schema.field("v").type
        values = exact_values(given)
        fits = kind_of(given.type) == kind_of(stored_type) and all(
            value is None or has_exactly(stored_type, value) for value in values
        )
        refusal = await self._refusal(batch, by_client)
        if refusal is not None and "negative scales not supported" in refusal:
            fits = False  # Arrow has no such cast.
        assert (refusal is None) == fits, f"{given.type} as {stored_type}: {refusal or 'taken'}: {given}"
        if refusal is None:
            self.stored += 1
            self.cells.update(zip(keys, values, strict=True))
        else:
            self.refused += 1

    async def _refusal(self, batch: pa.RecordBatch, by_client: bool) -> str | None:
        if by_client:
            try:
                await self.table.write(batch)
            except SchemaMismatch as error:
                return error.message
            return None
        try:
            await write(self.raw, write_request(batch, table=self.table.name))
        except transport.CallFailed as error:
            return refused_as(error, SchemaMismatch)
        return None

    async def check(self) -> None:
        """Read everything back."""
        found = (await self.table.new_scan().to_arrow()).combine_chunks()
        keys, cells = found.column("k").to_pylist(), exact_values(found.column("v").combine_chunks())
        assert dict(zip(keys, cells, strict=True)) == self.cells


def refused_as(error: transport.CallFailed, kind: type[ScannerError]) -> str:
    """The message of a call that failed for one reason, and for no other."""
    found = as_scanner_error(error, "the write")
    assert type(found) is kind, found
    return found.message


async def try_all(store: MemoryStore | Path, stored: pa.DataType, rounds: int, seed: int) -> Written:
    """Write columns of every type into a column of one type, and read back what was taken."""
    rng = random.Random(f"{seed} {stored}")
    schema = pa.schema([("k", pa.int64()), ("v", stored)])
    async with serving(store) as (client, raw):
        written = Written(await client.create_table("t", schema, ["k"], 1), raw)
        for given in GIVEN:
            for number in range(rounds):
                await written.write(column(given, rng.randint(1, 4), rng), by_client=number % 2 == 0)
        await written.check()
    return written


@pytest.mark.socket
@pytest.mark.parametrize("stored", STORED, ids=str)
async def test_every_type_is_stored_exactly_or_refused(stored: pa.DataType) -> None:
    """Random columns of every type: what is stored is what was given, and only what cannot be is refused."""
    with trio.fail_after(100):
        written = await try_all(MemoryStore(), stored, 4, seed=8)
    assert written.stored >= 4
    assert written.refused >= 100


@pytest.mark.socket
@pytest.mark.rocks
async def test_every_type_is_stored_exactly_on_the_disk(tmp_path: Path) -> None:
    """The same on RocksDB, once for each type."""
    with trio.fail_after(100):
        for index, stored in enumerate(STORED):
            await try_all(tmp_path / str(index), stored, 1, seed=9)


@pytest.mark.socket
@pytest.mark.parametrize("given", OTHERS, ids=str)
async def test_other_kinds_are_refused(given: pa.DataType) -> None:
    """Types of which no kind is stored are refused for every column, with one line that says so."""
    values = pa.nulls(2, given)
    async with serving(MemoryStore()) as (client, _):
        for index, stored in enumerate((pa.int64(), pa.string(), pa.timestamp("us"))):
            schema = pa.schema([("k", pa.int64()), ("v", stored)])
            table = await client.create_table(f"t{index}", schema, ["k"], 1)
            with pytest.raises(SchemaMismatch, match=r"column 'v' is .* cannot be stored as"):
                await table.write(pa.record_batch({"k": [1, 2], "v": values}))


@pytest.mark.socket
async def test_a_column_of_nulls_has_every_type() -> None:
    """What Python knows nothing of, a list of None, is a column of nulls."""
    async with serving(MemoryStore()) as (client, _):
        schema = pa.schema([("k", pa.int64()), ("v", pa.timestamp("s", "UTC"))])
        table = await client.create_table("t", schema, ["k"], 1)
        await table.write(pa.table({"k": [1, 2], "v": [None, None]}))
        assert (await table.new_scan().to_arrow()).column("v").null_count == 2


@pytest.mark.socket
async def test_keys_are_not_merged() -> None:
    """Two keys that differ stay two: what would make them one is refused, and says which row it is."""
    async with serving(MemoryStore()) as (client, _):
        schema = pa.schema([("k", pa.float32()), ("v", pa.int64())])
        table = await client.create_table("t", schema, ["k"], 1)
        keys = pa.array([16777216.0, 0.5, 16777217.0], pa.float64())
        with pytest.raises(SchemaMismatch, match=r"'k' is double .* as float: row 2 holds 16777217\.0"):
            await table.write(pa.table({"k": keys, "v": [1, 2, 3]}))
        assert (await table.new_scan().to_arrow()).num_rows == 0
        await table.write(pa.table({"k": keys.slice(0, 2), "v": [1, 2]}))
        assert (await table.new_scan().to_arrow()).num_rows == 2


@pytest.mark.socket
@pytest.mark.parametrize(
    ("column", "wrong", "error", "says"),
    [
        ("v", pa.array([128]), SchemaMismatch, "row 100000 holds 128, which is no int8"),
        ("text", pa.array([b"\xff"]).view(pa.string()), SchemaMismatch, "'text' is not valid Arrow data"),
        ("k", pa.array([None], pa.int64()), KeyInvalid, "null in row 100000; give every row a key"),
    ],
    ids=["range", "UTF-8", "key"],
)
async def test_nothing_is_sent_of_a_table_that_has_one_wrong_value(
    column: str, wrong: pa.Array, error: type[ScannerError], says: str
) -> None:
    """What does not fit is found before the first of many requests goes out, and numbered from the first."""
    async with serving(MemoryStore()) as (client, _):
        schema = pa.schema([("k", pa.int64()), ("v", pa.int8()), ("text", pa.string())])
        table = await client.create_table("t", schema, ["k"], 1)
        rows = {
            "k": pa.array(range(100_001)),
            "v": pa.nulls(100_001, pa.int8()),
            "text": pa.nulls(100_001, pa.string()),
        }
        rows[column] = pa.chunked_array([rows[column].slice(0, 100_000).cast(wrong.type), wrong])
        with pytest.raises(error, match=says):
            await table.write(pa.table(rows))
        with pytest.raises(error, match=says):
            await table.transaction("load", 1).stage(pa.table(rows), part=0, attempt=0)
        assert (await table.new_scan().to_arrow()).num_rows == 0
