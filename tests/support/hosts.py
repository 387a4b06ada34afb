"""A server that is reached over memory, goes away and comes back; and a scan service that plays what it is told.

Both run on a virtual clock: no socket, no thread.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, TypeAlias

import trio
import trio.testing

from scanner.client.connection import Connection, open_connection
from scanner.client.endpoints import connect_by_tcp
from scanner.client.retries import RetryPolicy
from scanner.client.table import Table
from scanner.data.table import TableDescription
from scanner.errors import ScannerError
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.wire import methods
from scanner.wire.statuses import to_call_failed
from tests.support.push_messages import SCHEMA
from transport import ServerStream, TransportConfig
from transport.server import Handler, Server

if TYPE_CHECKING:
    from scanner.client.scan.scan import Scan
    from scanner.client.scan.statistics import ScanStatistics


class MemoryHost:
    """Where a server may be.

    Args:
        nursery: Runs its connections.
        handlers: By path.
        config: Of its connections.
    """

    def __init__(
        self, nursery: trio.Nursery, handlers: Mapping[str, Handler], config: TransportConfig | None = None
    ) -> None:
        self._nursery = nursery
        self._handlers = handlers
        self._config = config or TransportConfig()
        self._scopes: list[trio.CancelScope] = []
        self.server = Server(handlers, self._config)
        self.dialled_at: list[float] = []
        """When somebody tried to connect."""
        self.open = trio.Event()
        """Attempts to connect wait for it."""
        self.open.set()
        self.refusals = 0
        """How many of the next attempts to connect find nobody."""

    async def dial(self) -> trio.abc.HalfCloseableStream:
        """Connect.

        Raises:
            ConnectionRefusedError: It is not reachable now.
        """
        self.dialled_at.append(trio.current_time())
        await self.open.wait()
        await trio.lowlevel.checkpoint()
        if self.refusals:
            self.refusals -= 1
            raise ConnectionRefusedError("nobody listens")
        ours, theirs = trio.testing.memory_stream_pair()
        self._nursery.start_soon(self._serve, self.server, theirs)
        return ours

    async def _serve(self, server: Server, stream: trio.abc.HalfCloseableStream) -> None:
        with trio.CancelScope() as scope:
            self._scopes.append(scope)
            await server.handle_connection(stream)

    def cut(self) -> None:
        """Let every connection end in the middle of whatever it is at; new ones reach a new server."""
        scopes, self._scopes = self._scopes, []
        for scope in scopes:
            scope.cancel()
        self.server = Server(self._handlers, self._config)

    def vanish(self, refusals: int = sys.maxsize) -> None:
        """Cut, and be unreachable for so many attempts."""
        self.cut()
        self.refusals = refusals


@asynccontextmanager
async def memory_host(
    handlers: Mapping[str, Handler], config: TransportConfig | None = None
) -> AsyncIterator[MemoryHost]:
    """A host for the length of a block."""
    async with trio.open_nursery() as nursery:
        yield MemoryHost(nursery, handlers, config)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def connected_to(host: MemoryHost, retries: int = 8, seed: int = 0) -> AsyncIterator[Connection]:
    """A connection to a host."""
    connect = connect_by_tcp("memory", 1, dial=host.dial)
    policy = RetryPolicy(retries=retries)
    async with open_connection(connect, "memory:1", policy=policy, rng=Random(seed)) as connection:
        await settle()  # the host serves it
        yield connection


Step: TypeAlias = "bytes | ScannerError | Callable[[ServerStream], Awaitable[None]]"
"""Sent; or failed with; or done."""


class Script:
    """A scan service that plays one list of steps for each stream, the first one first.

    After its steps a stream ends with status OK; a stream too many fails with INTERNAL.
    """

    def __init__(self, *streams: Sequence[Step]) -> None:
        self._streams = streams
        self.opens: list[pb.ScanOpen] = []
        """What each stream asked for."""
        self.limits: list[list[int]] = []
        """The limits that each stream was granted."""
        self._opened = trio.Event()

    async def __call__(self, stream: ServerStream) -> None:
        """Serve one stream."""
        request = pb.ScanRequest.FromString(bytes(await stream.receive()))
        steps = self._streams[len(self.opens)]
        self.opens.append(request.open)
        self.limits.append([])
        self._opened.set()
        self._opened = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen, stream, self.limits[-1])
            failure = await self._play(stream, steps)
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise to_call_failed(failure)

    async def wait_opened(self, streams: int) -> None:
        """Wait until so many streams were opened, and everything that follows from it has happened."""
        while len(self.opens) < streams:
            await self._opened.wait()
        await settle()

    async def _listen(self, stream: ServerStream, limits: list[int]) -> None:
        while (message := await stream.receive()) is not None:
            limits.append(pb.ScanRequest.FromString(bytes(message)).demand.bytes_limit)

    async def _play(self, stream: ServerStream, steps: Sequence[Step]) -> ScannerError | None:
        for step in steps:
            if isinstance(step, bytes):
                await stream.send(step)
            elif isinstance(step, ScannerError):
                return step
            else:
                await step(stream)
        return None


async def hang(_stream: ServerStream) -> None:
    """A step: do nothing any more."""
    await trio.sleep_forever()


async def settle(_stream: ServerStream | None = None) -> None:
    """A step: wait until everything sent has arrived, and nobody has anything to do."""
    await trio.testing.wait_all_tasks_blocked()


async def reset(stream: ServerStream) -> None:
    """A step: let everything sent arrive, then reset the stream."""
    await settle()
    stream.reset()


@asynccontextmanager
async def scripted_table(
    script: Script, retries: int = 8, seed: int = 0
) -> AsyncIterator[tuple[Table, MemoryHost]]:
    """A table `t` of one bucket and one column `k`, whose scans are played by a script."""
    with trio.fail_after(100_000):
        async with (
            memory_host({methods.SCAN: script}) as host,
            connected_to(host, retries, seed) as connection,
        ):
            yield Table(connection, TableDescription("t", SCHEMA, ("k",), 1), 0), host


async def read_keys(scan: Scan) -> tuple[list[int], ScanStatistics]:
    """All keys of a scan, and what it did."""
    async with scan.execute() as batches:
        keys = [key async for batch in batches for key in batch["k"].to_pylist()]
    return keys, batches.statistics()
