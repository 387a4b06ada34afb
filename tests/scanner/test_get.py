"""Point reads by the clients against a real server: what they find is what scans show, however it is asked for."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import scanner
import scanner.sync
from scanner.config import ScannerConfig
from scanner.server import open_server
from scanner.storage.memory import MemoryStore
from tests.support.client import SCHEMA, open_client, open_table, rows
from tests.support.server import running_server

pytestmark = [pytest.mark.socket, pytest.mark.rocks]


async def test_rows_come_in_the_order_of_their_keys(tmp_path: Path) -> None:
    """Found rows, in the order asked for, twice where asked twice; the others are named as missing."""
    async with open_table(tmp_path, 50) as (table, server):
        result = await table.get([(7,), (99,), (3,), (7,), (-1,)])
        assert result.rows.equals(rows(50).take([7, 3, 7]).cast(result.rows.schema))
        assert result.found == (True, False, True, True, False)
        assert result.missing.column("k").to_pylist() == [99, -1]
        one = await table.get(pa.record_batch({"k": pa.array([4], pa.int8())}), columns=["number", "k"])
        assert one.rows.to_pydict() == {"number": [2.0], "k": [4]}
        none = await table.get([])
        assert (none.rows.num_rows, none.found, none.rows.schema) == (0, (), one.rows.schema or SCHEMA) or (
            none.rows.num_rows == 0 and none.rows.schema.names == SCHEMA.names
        )
        assert server.statistics().iterators_open == 0


async def test_a_get_as_of_an_offset_shows_that_state(tmp_path: Path) -> None:
    """What was replaced, deleted or added since is undone for the keys asked for, and the answer says of what it is."""
    async with open_table(tmp_path, 20, buckets=2) as (table, _):
        before = await table.get([(k,) for k in range(22)])
        await table.write(rows(3, first=5, width=40))
        await table.delete([(9,)])
        await table.write(rows(2, first=20))
        await table.write(rows(1, first=5, width=60))
        now = await table.get([(k,) for k in range(22)])
        again = await table.get(
            [(k,) for k in range(22)], as_of=before.log_offsets, histories=before.histories
        )
    assert again.rows.equals(before.rows)
    assert (again.log_offsets, again.histories) == (before.log_offsets, before.histories)
    assert (before.rows.num_rows, now.rows.num_rows) == (20, 21)
    assert now.rows.column("text").to_pylist()[5] == f"{5:060}"


async def test_states_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    """An offset that is not there yet, one that the log has lost, one of a bucket left out: errors, never other rows."""
    async with open_table(tmp_path, 100, buckets=2) as (table, server):
        await table.write(rows(100, width=30))
        ends = {each.bucket: each.end_offset for each in await table.offsets()}
        keys = [(k,) for k in range(100)]
        with pytest.raises(scanner.OffsetOutOfRange, match="there is no state as of"):
            await table.get(keys, as_of={bucket: end + 1 for bucket, end in ends.items()})
        with pytest.raises(scanner.ArgumentInvalid, match="as_of says nothing of bucket 1"):
            await table.get(keys, as_of={0: 0})
        with pytest.raises(scanner.ArgumentInvalid, match="0..1"):
            await table.get(keys, as_of={2: 0})
        with pytest.raises(scanner.ArgumentInvalid, match="histories goes with as_of"):
            await table.get(keys, histories={0: b"x" * 16})
        with pytest.raises(scanner.SnapshotLost):
            await table.get(keys, as_of=ends, histories=dict.fromkeys(ends, b"x" * 16))
        for _, _, bucket, _ in ():
            del bucket
        assert (await table.get(keys, as_of=0)).rows.num_rows == 0


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        ([("x",)], scanner.KeyInvalid),
        ([(None,)], scanner.KeyInvalid),
        ([(1, 2)], scanner.KeyInvalid),
        ([{"other": 1}], scanner.KeyInvalid),
        ([(1.5,)], scanner.KeyInvalid),
        ([(2**63,)], scanner.KeyInvalid),
        (pa.table({"k": ["1"]}), scanner.SchemaMismatch),
        (pa.table({"k": [1.0]}), scanner.SchemaMismatch),
        (pa.table({"k": [1], "x": [1]}), scanner.SchemaMismatch),
        (pa.table({"k": pa.array([1, None])}), scanner.KeyInvalid),
    ],
)
async def test_keys_are_exact_or_refused(
    tmp_path: Path, keys: scanner.client_table.Keys, error: type[scanner.ScannerError]
) -> None:
    """Nothing is rounded or parsed into a key that is there."""
    async with open_table(tmp_path, 5) as (table, _):
        with pytest.raises(error):
            await table.get(keys)


async def test_many_keys_are_asked_for_in_parts_of_one_state(tmp_path: Path) -> None:
    """Keys and rows beyond what one call takes come all the same, each bucket as of one offset while it is written."""
    config = ScannerConfig(get_keys_max=100, get_bytes_max=20_000)
    async with open_table(tmp_path, 3000, width=1000, config=config) as (table, _):
        written = trio.Event()

        async def write_on() -> None:
            for turn in range(30):
                await table.write(rows(3000, width=1001 + turn))
                written.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_on)
            await written.wait()
            result = await table.get([(k,) for k in range(3100)])
            nursery.cancel_scope.cancel()
        scanned = await table.new_scan().as_of(result.log_offsets, result.histories).to_arrow()
    assert result.found == (True,) * 3000 + (False,) * 100
    assert result.rows.equals(scanned.sort_by("k").combine_chunks())
