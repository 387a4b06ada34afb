"""Is the credit exact from end to end, through proxies that buffer, for weir's client and for a stock one?

One bucket of rows from nothing to 38 KB is scanned directly and through nginx, nghttpx and Envoy: by weir's client, by
grpcio with Demand messages, and by grpcio in window-only mode. Each consumer reads a while, stands still until the
server has nothing more to send, and reads on to the end. Kept are the furthest past the credit, at the server (counted
as it sends) and at the client (against the limit that it has granted), and how far ahead of the stalled consumer the
server was: what lies in sockets, proxies and libraries.

Expected: past the credit by one row's message at most, whatever is in between, since the server counts what it sends
and a proxy can only delay a grant. In window-only mode each hop adds its window: grpcio's grows with the speed at which
it was read before, and the bytes go on coming while nobody reads.
"""

from __future__ import annotations

import os
import queue
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pyarrow as pa
import trio
from rich.table import Table

import scanner
from bench.harness.bars import Bar, write_json
from bench.harness.errors import BenchFailed
from bench.harness.proxies import DIRECT, PROXIES, open_proxy
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.server import Server, open_server
from scanner.storage.memory.store import MemoryStore
from scanner.wire import methods

if TYPE_CHECKING:
    from rich.console import Console

TABLE = "blobs"
ROWS = 6_000
ROW_BYTES_STEP = 400
SIZES = 97
CREDIT_BYTES = 256 * 1024
STALL_AFTER_BYTES = 24 * 1024 * 1024
"""Read before the consumer stands still: grpcio's window has grown by then."""
PROTOCOL_BYTES = 64 * 1024
"""Sent and no part of what was read: prefixes, headers of frames and calls, what a batch has beside its Arrow bytes."""
QUIET_S, POLL_S = 0.5, 0.05
"""A server that has sent nothing for this long has nothing to send."""
WEIR, STOCK, WINDOW_ONLY = "weir", "grpcio, Demand", "grpcio, window-only"
CLIENTS = (WEIR, STOCK, WINDOW_ONLY)
PATHS = (DIRECT, *PROXIES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One scan."""

    path: str
    client: str
    rows: int
    digest: int
    overrun_server_bytes: int
    """The furthest past the credit, as the server counted it."""
    overrun_client_bytes: int
    """The same against what the client had granted."""
    ahead_bytes: int
    """Sent by the server and not read by the application while that stood still."""


Stall = Callable[[int], Awaitable[None]]
"""Called once, with the message bytes that the application has read; returns when the server has gone quiet."""


@dataclass(slots=True)
class Reading:
    """What a client has seen."""

    rows: int = 0
    digest: int = 0
    read_bytes: int = 0
    overrun_bytes: int = 0


# ---------------------------------------------------------------------- the clients


async def read_with_weir(endpoint: str, stall: Stall) -> Reading:
    """Scan with weir's own client."""
    async with scanner.connect(endpoint) as client:
        scan = (await client.table(TABLE)).new_scan().with_credit(CREDIT_BYTES)
        async with scan.execute() as batches:
            read_bytes = 0
            async for batch in batches:
                size = pa.ipc.get_record_batch_size(batch)
                read_bytes += size
                if read_bytes >= STALL_AFTER_BYTES > read_bytes - size:
                    await stall(read_bytes)
        statistics = batches.statistics()
    assert statistics.digest is not None
    (bucket,) = statistics.buckets
    assert bucket.digest is not None
    return Reading(statistics.rows, bucket.digest, statistics.bytes_received, statistics.overrun_bytes)


@dataclass(slots=True)
class StockScan:
    """A scan by grpcio and the .proto files: a Demand for each batch, or none at all."""

    credit_bytes: int | None
    reading: Reading = field(default_factory=Reading)
    _limits: queue.SimpleQueue[int | None] = field(default_factory=queue.SimpleQueue)

    def read(self, endpoint: str, stall: Callable[[int], None]) -> Reading:
        """Scan, blocking."""
        reading, limit = self.reading, self.credit_bytes
        self._limits.put(limit)
        options = [("grpc.max_receive_message_length", -1)]
        with grpc.insecure_channel(endpoint, options=options) as channel:
            call = channel.stream_stream(
                methods.SCAN,
                request_serializer=pb.ScanRequest.SerializeToString,
                response_deserializer=pb.ScanResponse.FromString,
            )(self._requests())
            for response in call:
                kind = response.WhichOneof("response")
                if kind == "end":
                    reading.rows, reading.digest = response.end.rows, response.end.digest
                    self._limits.put(None)
                elif kind == "batch":
                    size = response.ByteSize()
                    reading.read_bytes += size
                    if reading.read_bytes >= STALL_AFTER_BYTES > reading.read_bytes - size:
                        stall(reading.read_bytes)
                    if limit is not None and self.credit_bytes is not None:
                        reading.overrun_bytes = max(reading.overrun_bytes, reading.read_bytes - limit)
                        limit = reading.read_bytes + self.credit_bytes
                        self._limits.put(limit)
            if call.code() is not grpc.StatusCode.OK:
                raise BenchFailed(f"the scan ended with {call.code()}: {call.details()}")
        return reading

    def _requests(self) -> Iterator[pb.ScanRequest]:
        query = pb.ScanQuery(table=TABLE)
        yield pb.ScanRequest(open=pb.ScanOpen(source=pb.SCAN_SOURCE_LIVE_KV, query=query))
        while (limit := self._limits.get()) is not None:
            yield pb.ScanRequest(demand=pb.Demand(bytes_limit=limit))


async def read_with_grpcio(endpoint: str, credit_bytes: int | None, stall: Stall) -> Reading:
    """Scan with grpcio in a thread."""

    def stall_here(read_bytes: int) -> None:
        trio.from_thread.run(stall, read_bytes)

    return await trio.to_thread.run_sync(StockScan(credit_bytes).read, endpoint, stall_here)


# ---------------------------------------------------------------------- the measurement


async def scan_once(store: MemoryStore, path: str, client: str) -> Measured:
    """One scan of a fresh server, through a fresh proxy."""
    ahead = [0]
    with tempfile.TemporaryDirectory(prefix="weir-credit-") as directory:
        async with open_server(store) as server:

            async def stall(read_bytes: int) -> None:
                ahead[0] = await _sent_until_quiet(server) - read_bytes

            upstream = f"{server.host}:{server.port}"
            with open_proxy(path, upstream, Path(directory)) as endpoint:
                if client == WEIR:
                    reading = await read_with_weir(endpoint, stall)
                else:
                    credit = CREDIT_BYTES if client == STOCK else None
                    reading = await read_with_grpcio(endpoint, credit, stall)
                await _wait_released(server)
            overrun = server.statistics().overrun_bytes
    return Measured(
        path=path,
        client=client,
        rows=reading.rows,
        digest=reading.digest,
        overrun_server_bytes=overrun,
        overrun_client_bytes=reading.overrun_bytes,
        ahead_bytes=ahead[0],
    )


async def _sent_until_quiet(server: Server) -> int:
    sent, quiet_s = -1, 0.0
    while quiet_s < QUIET_S:
        now = server.statistics().transport.bytes_sent
        quiet_s = quiet_s + POLL_S if now == sent else 0.0
        sent = now
        await trio.sleep(POLL_S)
    return sent


async def _wait_released(server: Server) -> None:
    with trio.fail_after(10):
        while server.statistics().push_scans_open:  # noqa: ASYNC110  (the client's end comes from outside)
            await trio.sleep(POLL_S)


async def fill(store: MemoryStore) -> int:
    """Write the table; returns the length of the longest message that carries one row."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("blob", pa.binary())])
    noise = os.urandom(SIZES * ROW_BYTES_STEP)
    async with open_server(store) as server, scanner.connect(f"{server.host}:{server.port}") as client:
        table = await client.create_table(TABLE, schema, primary_key=["id"], buckets=1)
        for start in range(0, ROWS, 500):
            ids = range(start, start + 500)
            blobs = [noise[: id_ * 7919 % SIZES * ROW_BYTES_STEP] for id_ in ids]
            await table.write(pa.table({"id": list(ids), "blob": blobs}, schema))
        longest = before = rows = 0
        async with table.new_scan().with_credit(1).execute() as batches:
            async for batch in batches:
                now = batches.statistics().bytes_received
                rows, longest, before = rows + batch.num_rows, max(longest, now - before), now
    if rows != ROWS:
        raise BenchFailed(f"a scan of {ROWS} rows found {rows}")
    return longest


def bars(measured: list[Measured], row_bytes: int) -> list[Bar]:
    """What must be so."""
    found = []
    for each in measured:
        name = f"{each.client}, {each.path}"
        if each.client != WINDOW_ONLY:
            for where, overrun in (
                ("server", each.overrun_server_bytes),
                ("client", each.overrun_client_bytes),
            ):
                bar = f"<= {row_bytes}, one row's message"
                found.append(
                    Bar(f"bytes past the credit at the {where}: {name}", overrun, bar, overrun <= row_bytes)
                )
            ahead_max = CREDIT_BYTES + row_bytes + PROTOCOL_BYTES
            bar = f"<= {ahead_max}, the credit, one row's message and the frames"
            ok = each.ahead_bytes <= ahead_max
            found.append(Bar(f"bytes ahead of a stalled reader: {name}", each.ahead_bytes, bar, ok))
    outcomes = {(each.rows, each.digest) for each in measured}
    found.append(
        Bar("different outcomes", len(outcomes), "1", len(outcomes) == 1 and measured[0].rows == ROWS)
    )
    return found


def run(output: Path | None, console: Console) -> list[Bar]:
    """Measure, write the JSON, and print."""
    measured, row_bytes = trio.run(_measure_all, console)
    table = Table(title=f"credit of {CREDIT_BYTES} bytes; one row's message is {row_bytes} at most; in bytes")
    for heading in ("client", "path", "past it, server", "past it, client", "ahead of a stalled reader"):
        table.add_column(heading, justify="left" if heading in {"client", "path"} else "right")
    for each in measured:
        past = (each.overrun_server_bytes, each.overrun_client_bytes)
        shown = ("-", "-") if each.client == WINDOW_ONLY else tuple(f"{size:,}" for size in past)
        table.add_row(each.client, each.path, *shown, f"{each.ahead_bytes:,}")
    found = bars(measured, row_bytes)
    write_json(output, found, measured=measured, credit_bytes=CREDIT_BYTES, row_message_bytes=row_bytes)
    console.print(table)
    return found


async def _measure_all(console: Console) -> tuple[list[Measured], int]:
    store = MemoryStore()
    console.print(f"writing {ROWS} rows", style="dim")
    row_bytes = await fill(store)
    measured = []
    for client in CLIENTS:
        for path in PATHS:
            console.print(f"{client}, {path}", style="dim")
            measured.append(await scan_once(store, path, client))
    return measured, row_bytes
