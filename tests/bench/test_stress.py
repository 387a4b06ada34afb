"""The stress bench finds nothing wrong in a few seconds, and its parts would find it if there were."""

from __future__ import annotations

import io
import json
import random
import socket
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import trio
import trio.testing
from rich.console import Console

import scanner
from bench.harness.bars import failures
from bench.harness.consumers import Consumer, Findings, Kind
from bench.harness.errors import BenchFailed
from bench.harness.fault_proxy import BREAKING, Fault, open_fault_proxy
from bench.harness.ledger import FOLD_COMMITS, TABLE, Ledger, rows
from bench.questions.stress import _load, run
from scanner.server.server import open_server
from transport import ConnectionLost, ServerStream, connect, serve

KEYS = 40


async def echo(stream: ServerStream) -> None:
    """Send back what comes."""
    while (message := await stream.receive()) is not None:
        await stream.send(message)


@pytest.mark.slow
@pytest.mark.socket
@pytest.mark.rocks
def test_some_seconds_of_stress(tmp_path: Path) -> None:
    """Consumers, writers and faults against a real server: nothing wrong, nothing left, all of it in the JSON."""
    output = tmp_path / "stress.json"
    said = io.StringIO()
    found = run(output, Console(file=said, width=200), seconds=3, seed=7)
    assert failures(found) == [], said.getvalue()
    document = json.loads(output.read_text())
    assert all(bar["ok"] for bar in document["bars"])
    assert document["seed"] == 7
    assert document["held"]["snapshots"] == 0


@pytest.mark.socket
@pytest.mark.parametrize("fault", list(Fault))
async def test_paths_do_to_a_connection_what_they_say(fault: Fault) -> None:
    """What arrives is what was sent; a breaking fault ends the connection and says so, any other does not."""
    message = bytes(range(250)) * 40
    with trio.fail_after(100):
        async with serve({"/echo": echo}) as server:
            target = f"{server.host}:{server.port}"
            async with (
                open_fault_proxy(target, random.Random(1)) as proxy,
                proxy.open_path(fault, 30_000) as path,
            ):
                host, _, port = path.endpoint.rpartition(":")
                lost = False
                async with (
                    connect(host, int(port)) as client,
                    client.open_stream("/echo", timeout_s=50) as stream,
                ):
                    for _ in range(30):
                        try:
                            await stream.send(message)
                            assert await stream.receive() == message
                        except ConnectionLost:
                            lost = True
                            break
                assert lost == path.struck
                assert path.struck == (fault in BREAKING)


@pytest.mark.socket
async def test_a_path_to_a_server_that_is_away_ends_its_connections() -> None:
    """As the server would: a bench that starts it anew goes on."""
    with socket.socket() as taken, trio.fail_after(100):
        taken.bind(("127.0.0.1", 0))  # Nobody listens there.
        async with (
            open_fault_proxy(f"127.0.0.1:{taken.getsockname()[1]}", random.Random(1)) as proxy,
            proxy.open_path(Fault.RESET, 30_000) as path,
        ):
            host, _, port = path.endpoint.rpartition(":")
            async with await trio.open_tcp_stream(host, int(port)) as stream:
                assert await stream.receive_some(1) == b""
            await trio.testing.wait_all_tasks_blocked()  # An error of the path comes behind that.
            assert not path.struck


def small_ledger() -> Ledger:
    """Two buckets: even keys and odd keys, as of offset 100."""
    parts = {bucket: (rows(list(range(bucket, KEYS, 2)), 0), 100) for bucket in (0, 1)}
    return Ledger(parts)


def state(versions: dict[int, int], *, bucket: int) -> pa.Table:
    """The rows of a bucket, with these versions where they are not 0."""
    return pa.concat_tables([rows([key], versions.get(key, 0)) for key in range(bucket, KEYS, 2)])


def written(key: int, version: int) -> dict[int, tuple[object, ...] | None]:
    """What a write of one row changes."""
    return {key: tuple(column[0].as_py() for column in rows([key], version).columns)}


async def test_ledger_takes_acknowledgements_in_any_order() -> None:
    """A scan is judged at its own offset, once all commits before it are known, whichever came first."""
    ledger = small_ledger()
    with ledger.scanning():
        ledger.record(0, 102, 104, written(4, 9))
        ledger.record(0, 100, 102, written(2, 8))
        assert await ledger.violations({0: 100}, state({}, bucket=0)) == []
        assert await ledger.violations({0: 102}, state({2: 8}, bucket=0)) == []
        assert await ledger.violations({0: 104}, state({2: 8, 4: 9}, bucket=0)) == []
        (stale,) = await ledger.violations({0: 104}, state({2: 8}, bucket=0))
        assert stale.kind == "stale"
        (foreign,) = await ledger.violations({1: 100}, pa.concat_tables([state({}, bucket=1), rows([0], 0)]))
        assert foreign.kind == "extra"
    assert ledger.commits == 2


async def test_ledger_judges_beginnings() -> None:
    """Of a scan with a limit each bucket has its first rows, as of its offset: none of later keys or another time."""
    ledger = small_ledger()
    with ledger.scanning():
        ledger.record(0, 100, 102, written(2, 8))
        first = pa.concat_tables([rows([0], 0), rows([2], 8), rows([1], 0)])
        assert await ledger.violations({0: 102, 1: 100}, first, is_limited=True) == []
        stale = await ledger.violations({0: 100, 1: 100}, first, is_limited=True)
        assert [each.kind for each in stale] == ["stale"]
        skipped = await ledger.violations({0: 102}, rows([0, 4], 0), is_limited=True)
        assert sorted(each.kind for each in skipped) == ["extra", "missing"]
        (unscanned,) = await ledger.violations({0: 102}, first, is_limited=True)
        assert unscanned.kind == "extra"


@pytest.mark.socket
@pytest.mark.rocks
@pytest.mark.parametrize(("version", "verified"), [(0, True), (1, False)])
async def test_limited_scans_are_judged_row_by_row(tmp_path: Path, version: int, verified: bool) -> None:
    """Not by their number alone: rows that are not those that were acknowledged, which are of version 0, are found."""
    async with (
        open_server(tmp_path, host="127.0.0.1") as server,
        scanner.connect(f"{server.host}:{server.port}") as client,
        open_fault_proxy(f"{server.host}:{server.port}", random.Random(1)) as proxy,
    ):
        loaded = await _load(client, 600)
        table = await client.table(TABLE)
        ledger = Ledger(
            {
                each.bucket: (
                    rows(np.flatnonzero(loaded.bucket_of == each.bucket).tolist(), version),
                    each.end_offset,
                )
                for each in await table.offsets()
            }
        )
        findings = Findings()
        consumer = Consumer(proxy, ledger, findings, random.Random(1), "", silence=False)
        await consumer._scan(table, Kind.LIMITED)
    assert (findings.verified[Kind.LIMITED] == 1, not findings.wrong) == (verified, verified)


async def test_ledger_keeps_what_a_running_scan_needs() -> None:
    """Old commits are folded away, but not past the beginning of a scan that is still to be judged."""
    ledger = small_ledger()
    with ledger.scanning():
        for at in range(2 * FOLD_COMMITS):
            with ledger.scanning():
                ledger.record(0, 100 + 2 * at, 102 + 2 * at, written(2, at + 1))
        assert await ledger.violations({0: 100}, state({}, bucket=0)) == []
    end = 100 + 4 * FOLD_COMMITS
    assert await ledger.violations({0: end}, state({2: 2 * FOLD_COMMITS}, bucket=0)) == []
    with pytest.raises(BenchFailed, match="outside the known"):
        await ledger.violations({0: 100}, state({}, bucket=0))


async def test_offset_that_nobody_wrote_is_found(autojump_clock: object) -> None:
    """A scan that claims more than was ever acknowledged is an error, after a while."""
    with pytest.raises(BenchFailed, match="nobody was told"):
        await small_ledger().violations({0: 101}, state({}, bucket=0))
