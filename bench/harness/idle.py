"""Both ends of very many idle calls: a server process whose calls wait, and a client process that holds them open.

A call opens, is answered once, and then waits for a message that the server sends to all of them at the same moment:
what a tail of a table does while nobody writes. The two processes share the machine's monotonic clock, so a message
carries the time at which it was sent to all.
"""

from __future__ import annotations

import resource
import struct
import time
from typing import TYPE_CHECKING

import trio

import transport
from transport import TransportConfig

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

WAIT_PATH = "/bench.Idle/Wait"
TELL_PATH = "/bench.Idle/Tell"
OPENING_AT_ONCE = 50
"""Connections, or calls of one connection, that are being opened at a time."""
STREAMS_MAX = 20_000
CLOCK = struct.Struct("<d")


def raise_descriptor_limit() -> int:
    """Let this process have as many descriptors as it may; returns how many that is."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def idle_server(ready: Connection) -> None:
    """Serve calls that wait, until the process is ended."""
    raise_descriptor_limit()
    everybody = trio.lowlevel.ParkingLot()
    told_at = 0.0

    async def wait(stream: transport.ServerStream) -> None:
        await stream.receive()
        await stream.send(b"open")
        while True:
            await everybody.park()
            await stream.send(CLOCK.pack(told_at))

    async def tell(_request: transport.Buffer, _stream: transport.ServerStream) -> bytes:
        nonlocal told_at
        told_at = time.monotonic()
        return b"%d" % len(everybody.unpark_all())

    async def main() -> None:
        config = TransportConfig(streams_max=STREAMS_MAX)
        handlers = {WAIT_PATH: wait, TELL_PATH: transport.unary(tell)}
        async with transport.serve(handlers, config=config) as server:
            ready.send(server.port)
            await trio.sleep_forever()

    trio.run(main)


class IdleClient:
    """The client process's part: opens calls, and times what the server tells all of them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._latencies: list[float] = []
        self._heard = trio.Event()
        self._calls = 0

    async def run(self, commands: Connection) -> None:
        """Do what the bench asks for, until it says `close`.

        `("open", connections, streams)` opens that many calls on each of so many new connections and answers with
        the seconds it took; `("tell",)` answers with the seconds after which each call had the message.
        """
        async with transport.connect("127.0.0.1", self._port) as teller, trio.open_nursery() as nursery:
            while True:
                command, *arguments = await trio.to_thread.run_sync(commands.recv, abandon_on_cancel=True)
                started = time.monotonic()
                if command == "open":
                    await self._open(nursery, *arguments)
                    commands.send(time.monotonic() - started)
                elif command == "tell":
                    commands.send(await self._tell(teller))
                else:
                    nursery.cancel_scope.cancel()
                    return

    async def _open(self, nursery: trio.Nursery, connections: int, streams: int) -> None:
        slots = trio.CapacityLimiter(OPENING_AT_ONCE)

        async def connect(*, task_status: trio.TaskStatus[None]) -> None:
            async with transport.connect("127.0.0.1", self._port) as client, trio.open_nursery() as calls:
                for _ in range(streams):
                    await calls.start(self._wait, client)
                task_status.started()

        async def connect_in_turn() -> None:
            async with slots:
                await nursery.start(connect)

        async with trio.open_nursery() as opening:
            for _ in range(connections):
                opening.start_soon(connect_in_turn)

    async def _wait(self, client: transport.Client, *, task_status: trio.TaskStatus[None]) -> None:
        async with client.open_stream(WAIT_PATH) as stream:
            await stream.send(b"wait")
            await stream.receive()
            self._calls += 1
            task_status.started()
            while (message := await stream.receive()) is not None:
                (told_at,) = CLOCK.unpack(message)
                self._latencies.append(time.monotonic() - told_at)
                if len(self._latencies) == self._calls:
                    self._heard.set()

    async def _tell(self, teller: transport.Client) -> list[float]:
        self._latencies, self._heard = [], trio.Event()
        told = int(await teller.call(TELL_PATH, b""))
        assert told == self._calls, f"{told} calls wait at the server, {self._calls} at the client"
        await self._heard.wait()
        return self._latencies


def idle_client(port: int, commands: Connection) -> None:
    """Hold calls open, as told over `commands`."""
    raise_descriptor_limit()
    trio.run(IdleClient(port).run, commands)
