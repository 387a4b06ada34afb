"""A scan that is cancelled at any moment, as seen by the scheduler, leaves nothing at the server."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

import pytest
import trio

from scanner.server.config import ScannerConfig
from tests.support.cancelling import CancelAtStep
from tests.support.nightly import everyday
from tests.support.open_files import open_files, open_sockets
from tests.support.scans import filled_store, mutations, open_scan, released, sample, serving

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    import transport
    from scanner.server.server import Server

pytestmark = pytest.mark.socket

ROWS = 300
ALL = 1 << 40
CONFIG = ScannerConfig(
    block_rows_max=64,
    block_bytes_max=8192,
    heartbeat_interval_s=0.05,
    park_after_s=0.001,
    snapshot_linger_s=0,
    overlay_bytes_max=3000,
)
"""Parks at once, spills at once, and keeps no snapshot for later."""
STRIDE = everyday(19, nightly=7)
"""Moments from one cancellation to the next, to begin with."""


async def scan_as_of(_server: Server, client: transport.Client, token: bytes) -> None:
    """Continue a scan whose state has passed: the overlay is built, spilled and merged."""
    async with open_scan(client, credit=ALL, resume_token=token, batch_rows_max=50) as scan:
        await scan.receive_all()


async def park_and_go_on(server: Server, client: transport.Client, token: bytes) -> None:
    """Continue it, stall until it is parked, and take the rest."""
    async with open_scan(client, credit=1000, resume_token=token, batch_rows_max=50) as scan:
        while not server.statistics().scans_parked:
            await trio.lowlevel.checkpoint()
        await scan.demand(ALL)
        await scan.receive_all()


@pytest.mark.parametrize("act", [scan_as_of, park_and_go_on], ids=lambda act: act.__name__)
async def test_cancelled_at_any_moment(
    act: Callable[[Server, transport.Client, bytes], Awaitable[None]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever it was at: no scan, snapshot, pin, iterator or temporary file is left."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = filled_store(ROWS)
    async with serving(store, CONFIG) as (server, client):
        async with open_scan(client, credit=1500) as begun:
            while not begun.batches:
                await begun.receive()
        for number in range(0, ROWS, 3):
            store.bucket("items", 0).commit([mutations(store, "items", sample([number]))])
        await released(server)
        steps, finished = 1, False
        while not finished:
            with CancelAtStep(steps) as cancelling:
                await act(server, client, begun.tokens[0])
            finished = not cancelling.scope.cancelled_caught
            await released(server)
            assert server.statistics().snapshots_open == 0, steps
            assert all(not bucket.pins for _, _, bucket in server._services.catalog.open_buckets()), steps
            assert store.bucket("items", 0).open_iterators == 0, steps
            assert open_files(tmp_path) == [], steps
            assert open_sockets(server.port) == 3, steps  # one listens
            # Waiting for the park takes steps without number; a server bears so many resets and no more.
            steps += STRIDE if steps < 100 * STRIDE else 20 * STRIDE
        assert steps > 140
