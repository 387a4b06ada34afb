"""Tails in a process of their own: opened, fed by a writer elsewhere, and asked what came when.

All processes of a machine share its monotonic clock, so the time at which a change is in a consumer's hand can be
compared with that at which the writer had its acknowledgement.
"""

from __future__ import annotations

import functools
import gc
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import trio

import scanner
import transport
from bench.harness.idle import raise_descriptor_limit
from bench.harness.links import Link
from bench.harness.processes import Worker, running_worker
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.wire import methods

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from numpy.typing import NDArray

_OPENING_AT_ONCE: Final = 20
_LOOK_S: Final = 0.01
_ALL: Final = 1 << 62
_BUCKET_BYTES: Final = 1 << 20
"""Of one bucket in an answer to a fetch, as Kafka's consumers ask for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tails:
    """Tails of one kind."""

    table: str
    mode: str
    """`push`, `fetch`; or `raw`: push, whose batches are not read, for very many."""
    count: int
    connections: int
    round_trip_s: float = 0.0
    pause_s: float = 0.0
    """Of a slow consumer, after each batch."""
    credit_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class Received:
    """What came to all tails, in no order."""

    ids: NDArray[np.int64]
    """Of the changes."""
    at: NDArray[np.float64]
    """When each was in the consumer's hand, seconds of the monotonic clock."""
    requests: int
    """That the tails made, their first ones included."""


@contextmanager
def tail_process(endpoint: str) -> Iterator[Worker[tuple[object, ...], Any]]:
    """Run a client process for a block.

    `("open", Tails)` returns when all of them wait for commits, `("wait", rows)` when each tail that does not pause has
    had so many rows, `("take",)` answers with what came since the last time as `Received`, and `("close",)` closes all
    tails.
    """
    with running_worker(_run, endpoint) as worker:
        yield worker


def _run(endpoint: str, commands: Connection) -> None:
    raise_descriptor_limit()
    # With its first array of Python objects pyarrow imports pandas: not while tails are timed.
    pa.array(["loaded"])
    # What the libraries are made of is not looked at again: a full collection stops every tail for 70 ms, and falls
    # into the same rounds of each run.
    gc.collect()
    gc.freeze()
    trio.run(_Client(endpoint).run, commands)


class _Client:
    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._ids: list[NDArray[np.int64]] = []
        self._at: list[NDArray[np.float64]] = []
        self._rows: list[int] = []
        """Of each tail that does not pause."""
        self._running: list[Any] = []

    async def run(self, commands: Connection) -> None:
        """Do what the bench asks for, until it is gone."""
        receive = functools.partial(trio.to_thread.run_sync, commands.recv, abandon_on_cancel=True)
        async with trio.open_nursery() as nursery:
            tails: trio.Nursery | None = None
            async with AsyncExitStack() as stack:
                while True:
                    try:
                        command, *arguments = await receive()
                    except EOFError:
                        nursery.cancel_scope.cancel()
                        return
                    if command == "open":
                        if tails is None:
                            tails = await stack.enter_async_context(trio.open_nursery())
                        commands.send(await self._open(tails, *arguments))
                    elif command == "wait":
                        commands.send(await self._wait(*arguments))
                    elif command == "take":
                        commands.send(self._take())
                    elif tails is not None:
                        tails.cancel_scope.cancel()
                        await stack.aclose()
                        tails = None
                        self._rows.clear()
                        self._running.clear()
                        commands.send(self._take())

    async def _open(self, nursery: trio.Nursery, tails: Tails) -> float:
        """Open tails; seconds that it took."""
        began = time.monotonic()
        slots = trio.CapacityLimiter(_OPENING_AT_ONCE)

        async def connect(count: int) -> None:
            async with slots:
                await nursery.start(self._connect, tails, count)

        async with trio.open_nursery() as opening:
            for number in range(tails.connections):
                share = (
                    tails.count * (number + 1) // tails.connections
                    - tails.count * number // tails.connections
                )
                opening.start_soon(connect, share)
        return time.monotonic() - began

    async def _connect(self, tails: Tails, count: int, *, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            link = Link(self._endpoint, nursery, tails.round_trip_s)
            if tails.mode == "raw":
                host, _, port = self._endpoint.rpartition(":")
                async with transport.connect(host, int(port)) as raw:
                    for _ in range(count):
                        await nursery.start(self._tail_raw, raw, tails)
                    task_status.started()
                    await trio.sleep_forever()
            async with scanner.connect(self._endpoint, dial=link.dial) as client:
                table = await client.table(tails.table)
                for _ in range(count):
                    await nursery.start(self._tail, table, tails)
                task_status.started()
                await trio.sleep_forever()

    async def _tail(self, table: scanner.Table, tails: Tails, *, task_status: trio.TaskStatus[None]) -> None:
        scan = table.new_scan().with_source("log").start_at("latest").with_mode(tails.mode)
        scan = scan.with_page_bytes(_BUCKET_BYTES)
        async with scan.with_credit(tails.credit_bytes).execute() as batches:
            # What a tail knows of itself wakes nobody.
            while batches.statistics().buckets[0].log_offset is None:  # noqa: ASYNC110
                await trio.sleep(_LOOK_S)
            self._running.append(batches)
            tail = self._begin(pauses=tails.pause_s > 0)
            task_status.started()
            async for batch in batches:
                self._received(tail, batch.column(0).to_numpy())
                if tails.pause_s:
                    await trio.sleep(tails.pause_s)

    async def _tail_raw(
        self, client: transport.Client, tails: Tails, *, task_status: trio.TaskStatus[None]
    ) -> None:
        opening = pb.ScanOpen(
            source=pb.SCAN_SOURCE_LOG,
            query=pb.ScanQuery(table=tails.table),
            log_start=pb.LogStart(latest=True),
        )
        async with client.open_stream(methods.SCAN) as stream:
            await stream.send(pb.ScanRequest(open=opening).SerializeToString())
            await stream.send(pb.ScanRequest(demand=pb.Demand(bytes_limit=_ALL)).SerializeToString())
            await stream.receive()
            tail = self._begin(pauses=False)
            task_status.started()
            while (message := await stream.receive()) is not None:
                batch = pb.ScanResponse.FromString(bytes(message)).batch
                self._received(tail, np.full(batch.row_count, -1, np.int64))

    def _begin(self, *, pauses: bool) -> int | None:
        """Number of a fresh tail; None: nobody waits for it."""
        if pauses:
            return None
        self._rows.append(0)
        return len(self._rows) - 1

    def _received(self, tail: int | None, ids: NDArray[np.int64]) -> None:
        if tail is None or not len(ids):
            return
        self._ids.append(ids)
        self._at.append(np.full(len(ids), time.monotonic()))
        self._rows[tail] += len(ids)

    async def _wait(self, rows: int) -> bool:
        # An event would be looked at for each change of each tail, and those are timed.
        while min(self._rows) < rows:  # noqa: ASYNC110
            await trio.sleep(_LOOK_S)
        return True

    def _take(self) -> Received:
        empty = np.empty(0)
        received = Received(
            np.concatenate([empty.astype(np.int64), *self._ids]),
            np.concatenate([empty, *self._at]),
            sum(batches.statistics().requests for batches in self._running),
        )
        self._ids, self._at = [], []
        return received
