"""A scan that goes on after its server was killed, started again, and written to 200 000 times."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import trio

import scanner
from bench.cutting.setting import open_killed_server
from bench.cutting.stream import Cut, CutStream, Direction
from tests.support.conformance import Scanned, read

if TYPE_CHECKING:
    from bench.cutting.setting import KilledServer

pytestmark = [pytest.mark.socket, pytest.mark.rocks, pytest.mark.slow]

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("version", pa.int64())])
ROWS = 100_000
CHANGES = 200_000
CUT_AFTER_OCTETS = 700_000


def versions(version: int, first: int = 0, step: int = 1) -> pa.Table:
    """Rows of one version."""
    ids = range(first, first + ROWS * step, step)
    return pa.table({"id": ids, "version": [version] * len(ids)}, schema=SCHEMA)


class Line:
    """Connections to the server: the first is cut, the next waits until it may be made."""

    def __init__(self, server: KilledServer) -> None:
        self._server = server
        self.streams: list[CutStream] = []
        self.cut = trio.Event()
        self.may_go_on = trio.Event()

    async def dial(self) -> CutStream:
        """Connect."""
        if self.streams:
            self.cut.set()
            await self.may_go_on.wait()
        cut = None if self.streams else Cut(Direction.DOWN, octets=CUT_AFTER_OCTETS)
        self.streams.append(CutStream(await self._server.dial(), cut))
        return self.streams[-1]


async def test_killed_restarted_and_200_000_changes_later(tmp_path: Path) -> None:
    """The scan equals the uninterrupted one, rows and digest, though the server has nothing left of it but the log."""
    async with open_killed_server(tmp_path / "data") as server:
        async with scanner.connect(server.endpoint) as client:
            table = await client.create_table("items", SCHEMA, ["id"], 1)
            await table.write(versions(1))
            uninterrupted = await read(table.new_scan())
        path = Line(server)
        found: list[Scanned] = []

        async def scan() -> None:
            async with scanner.connect(server.endpoint, dial=path.dial) as client:
                table = await client.table("items")
                found.append(await read(table.new_scan().with_credit(200_000)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(scan)
            await path.cut.wait()
            await server.kill_and_restart()
            changes = await _change_everything(server)
            path.may_go_on.set()

    (resumed,) = found
    assert changes >= CHANGES
    assert path.streams[0].struck
    assert resumed.statistics.resumes == 1
    assert resumed.log_offset == uninterrupted.log_offset == ROWS
    assert resumed.statistics.digest == uninterrupted.statistics.digest
    assert pa.Table.from_batches(resumed.batches).equals(pa.Table.from_batches(uninterrupted.batches))


async def _change_everything(server: KilledServer) -> int:
    """Update half of the rows, delete some, insert between and behind them; how many changes that was."""
    async with scanner.connect(server.endpoint) as client:
        table = await client.table("items")
        await table.write(versions(2, step=2))
        await table.delete([(key,) for key in range(0, ROWS, 3)])
        await table.write(versions(3, first=-ROWS // 4).slice(0, ROWS // 2 + 20_000))
        assert (await client.list_snapshots("items")) == []
        return (await table.offsets())[0].end_offset - ROWS
