"""A server in memory that can be killed, and readers of its groups that keep records: for tests on a virtual clock."""

from __future__ import annotations

import random
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

import scanner
import transport
from bench.simulation.group_validators import Delivered, GroupHistory, Stored
from bench.simulation.network import Connection, Network
from bench.simulation.pipes import Line
from scanner.proto.weir.v1 import groups_pb2 as pb
from scanner.proto.weir.v1 import scanner_pb2
from scanner.server.clock import WallClock
from scanner.server.config import ScannerConfig
from scanner.server.server import Server, open_server
from scanner.storage.memory.store import MemoryDisk, MemoryStore
from scanner.wire import methods
from scanner.wire.statuses import from_call_failed
from tests.support.scans import SCHEMA, description, open_scan, sample

if TYPE_CHECKING:
    from scanner.client.scan.group_scan import GroupBatches
    from scanner.errors import ScannerError

GROUP = "billing"
CONFIG = ScannerConfig(heartbeat_interval_s=0.5, group_session_timeout_s=6, group_handover_s=4)
ALL = 1 << 40
WALL_S = 1_700_000_000.0


@dataclass
class GroupWorld:
    """A table of some buckets, its server, and what the readers of one group have recorded."""

    buckets: int
    config: ScannerConfig
    nursery: trio.Nursery
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    history: GroupHistory = field(default_factory=GroupHistory)
    network: Network = field(default_factory=lambda: Network(lambda _connection, _fault: None))
    streams_max: int = 1000
    """Calls that a connection may have open."""
    clock_stands: bool = False
    """Whether the clock of the next server tells the time of zero, always."""
    server: Server = field(init=False)
    """The one that runs, or ran last."""
    _scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    _ended: trio.Event = field(default_factory=trio.Event)
    _next_id: int = 0

    async def start(self) -> None:
        """Serve what is on the disk."""
        self._scope, self._ended = trio.CancelScope(), trio.Event()
        self.server = await self.nursery.start(self._serve)

    async def _serve(self, *, task_status: trio.TaskStatus[Server]) -> None:
        clock = _StandingClock() if self.clock_stands else WallClock(lambda: WALL_S + trio.current_time())
        try:
            with self._scope:
                async with open_server(
                    MemoryStore(disk=self.disk),
                    listener=self.network.listen(),
                    config=self.config,
                    transport_config=transport.TransportConfig(streams_max=self.streams_max),
                    clock=clock,
                ) as server:
                    task_status.started(server)
                    await trio.sleep_forever()
        finally:
            self._ended.set()

    async def kill(self) -> None:
        """End the server from one moment to the next."""
        self.network.reset_all()
        self._scope.cancel()
        await self._ended.wait()

    @asynccontextmanager
    async def client(self, name: str = "client", latency_s: float = 0.0) -> AsyncIterator[scanner.Client]:
        """A client of its own connection, and how far from the server it is."""

        async def dial() -> trio.abc.Stream:
            return await self.network.dial(name, Line(latency_s=latency_s))

        async with scanner.connect("127.0.0.1", dial=dial, rng=random.Random(1), retries=30) as client:
            yield client

    @asynccontextmanager
    async def raw(self, name: str = "raw") -> AsyncIterator[transport.Client]:
        """A connection for calls by hand."""
        async with transport.connect_stream(await self.network.dial(name, Line())) as client:
            yield client

    def connections(self, name: str) -> list[Connection]:
        """Those that somebody has made, oldest first."""
        return [each for each in self.network._connections if each.name == name]

    def log_ends(self) -> dict[int, int]:
        """Where the log of each bucket ends."""
        return {index: each.log_end for index, each in enumerate(self.disk.tables["items"].buckets)}

    async def write(self, table: scanner.Table, rows: int) -> None:
        """Write fresh rows, a commit in most buckets."""
        self.history.ends.append((trio.current_time(), self.log_ends()))
        await table.write(sample(range(self._next_id, self._next_id + rows)))
        self._next_id += rows

    def stored(self) -> dict[int, int | None]:
        """The positions on the disk."""
        buckets = self.disk.tables["items"].buckets
        return {
            index: each.group_states[GROUP].position if GROUP in each.group_states else None
            for index, each in enumerate(buckets)
        }

    async def wait_read(self) -> None:
        """Wait until everything was read and stored, and the readers know."""

        def known() -> bool:
            ends = {bucket: end for bucket, end in self.log_ends().items() if end}
            told = {(each.bucket, each.position) for each in self.history.stored if each.accepted}
            return self.stored() == self.log_ends() and ends.items() <= told

        await until(known)

    def violations(self) -> list[tuple[str, str]]:
        """What the records are against: names of rules, and what is wrong."""
        return self.history.violations(self.log_ends())

    async def read(self, batches: GroupBatches, reader: str) -> None:
        """Read and commit until it is cancelled, and record it."""
        async for batch in batches:
            bucket, epoch = batches.bucket, batches.epoch
            assert bucket is not None
            assert epoch is not None
            offsets = batch["_log_offset"].to_pylist()
            end = offsets[-1] + 1
            self.history.delivered.append(
                Delivered(trio.current_time(), reader, bucket, epoch, offsets[0], end)
            )
            began_at, position = trio.current_time(), batches.positions.get(bucket)
            accepted: bool | None = None
            try:
                lost = await batches.commit()
                accepted = bucket not in lost
            finally:
                if position is not None:  # A reader that is cancelled before the answer does not know.
                    stored = Stored(began_at, reader, bucket, epoch, position, accepted)
                    self.history.stored.append(stored)

    async def run_reader(
        self, name: str, *, task_status: trio.TaskStatus[GroupBatches] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """A reader with a client of its own, until it is cancelled. It has started when it has a bucket."""
        async with self.client(name) as client:
            scan = (await client.table("items")).new_scan().with_source("log").in_group(GROUP, member=name)
            async with scan.execute() as batches, trio.open_nursery() as nursery:
                nursery.start_soon(self.read, batches, name)
                await until(lambda: bool(batches.assigned))
                task_status.started(batches)

    async def run_rude_reader(
        self, name: str, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """A reader that takes all buckets and gives none back: it reads and commits by the first epochs that it got."""
        async with self.raw(name) as client, trio.open_nursery() as nursery:
            async with client.open_stream(methods.JOIN) as stream:
                await stream.send(join_request(name))
                assigned: list[pb.AssignedBucket] = []
                while len(assigned) < self.buckets:
                    response = pb.JoinResponse.FromString(bytes(await stream.receive()))
                    assigned = list(response.assignment.buckets)
                for each in assigned:
                    nursery.start_soon(self._read_rudely, client, name, each)
                task_status.started()
                while True:
                    await stream.send(pb.JoinRequest(alive=pb.Alive()).SerializeToString())
                    await trio.sleep(1)

    async def _read_rudely(self, client: transport.Client, name: str, at: pb.AssignedBucket) -> None:
        try:
            async with open_scan(
                client,
                query=scanner_pb2.ScanQuery(table="items", bucket=at.bucket),
                source=scanner_pb2.SCAN_SOURCE_LOG,
                log_start=scanner_pb2.LogStart(offset=at.position),
                credit=ALL,
                group=GROUP,
                group_epoch=at.epoch,
            ) as scan:
                while await scan.receive() is not None:
                    if len(scan.changes) and scan.changes[-1].end != at.position:
                        now, changes = trio.current_time(), scan.changes[-1]
                        self.history.delivered.append(
                            Delivered(now, name, at.bucket, at.epoch, changes.start, changes.end)
                        )
                        at.position = changes.end
        except transport.CallFailed:
            return

    async def run_rudely(self) -> None:
        """A reader that gives nothing back, one that joins, more changes, positions of before; then one more reader.

        Ends when all is read, or after a while.
        """
        async with self.client() as client, self.raw() as raw, trio.open_nursery() as readers:
            table = await client.table("items")
            await self.write(table, 40)
            await readers.start(self.run_rude_reader, "rude")
            await until(lambda: len(self.history.delivered) >= self.buckets)
            old = list(self.history.delivered)
            await readers.start(self.run_reader, "polite")
            await self.write(table, 40)
            await trio.sleep(1)
            given = {each.bucket for each in self.history.delivered if each.reader == "polite"}
            for each in old:
                if each.bucket in given:
                    await self.commit_rudely(raw, "rude", each)
            await self.write(table, 40)
            await trio.sleep(1)
            readers.cancel_scope.cancel()
        async with trio.open_nursery() as readers:
            await readers.start(self.run_reader, "last")
            with trio.move_on_after(60):
                await self.wait_read()
            readers.cancel_scope.cancel()

    async def commit_rudely(self, client: transport.Client, name: str, at: Delivered) -> None:
        """Store the end of what somebody got some time ago."""
        began_at = trio.current_time()
        refused = await commit(client, at.bucket, at.epoch, at.end)
        self.history.stored.append(Stored(began_at, name, at.bucket, at.epoch, at.end, refused is None))


async def until(condition: Callable[[], bool] | Callable[[], Awaitable[bool]]) -> None:
    """Wait until something holds that nobody announces; on a virtual clock."""
    while True:
        holds = condition()
        if holds if isinstance(holds, bool) else await holds:
            return
        await trio.sleep(0.1)


class _StandingClock(WallClock):
    def now_ms(self) -> int:
        return 0


async def pass_time(seconds: float) -> None:
    """Let so much of the virtual time pass: whatever can happen meanwhile does."""
    await trio.sleep(seconds)


@asynccontextmanager
async def group_world(
    buckets: int = 4, config: ScannerConfig = CONFIG, streams_max: int = 1000
) -> AsyncIterator[GroupWorld]:
    """A running server with the empty table `items`. Leaving ends it, and what was started in its nursery."""
    async with trio.open_nursery() as nursery:
        world = GroupWorld(buckets, config, nursery, streams_max=streams_max)
        await world.start()
        async with world.client() as client:
            table = description(buckets=buckets)
            await client.create_table(table.name, SCHEMA, table.primary_key, buckets)
        yield world
        nursery.cancel_scope.cancel()


def join_request(
    member: str, *, group: str = GROUP, table: str = "items", instance: bytes | None = None
) -> bytes:
    """The first message of a membership."""
    own = secrets.token_bytes(16) if instance is None else instance
    return pb.JoinRequest(
        join=pb.Join(table=table, group=group, member=member, instance=own)
    ).SerializeToString()


async def commit(
    client: transport.Client,
    bucket: int,
    epoch: int,
    position: int,
    *,
    group: str = GROUP,
    table: str = "items",
    table_id: int | None = None,
    forward_only: bool = False,
) -> pb.PositionRefused | None:
    """Store a position by hand; what was said if it was refused.

    Raises:
        ScannerError: The call failed.
    """
    at = pb.BucketPosition(bucket=bucket, epoch=epoch, position=position, forward_only=forward_only)
    request = pb.CommitPositionsRequest(table=table, group=group, positions=[at], table_id=table_id)
    try:
        answer = await client.call(methods.GROUPS + "CommitPositions", request.SerializeToString())
    except transport.CallFailed as failed:
        raise from_call_failed(failed) from failed
    response = pb.CommitPositionsResponse.FromString(bytes(answer))
    return response.refused[0] if response.refused else None


async def refusal(client: transport.Client, *messages: bytes) -> ScannerError:
    """How a membership by hand fails."""
    async with client.open_stream(methods.JOIN) as stream:
        try:
            for message in messages:
                await stream.send(message)
            while await stream.receive() is not None:
                pass
        except transport.CallFailed as failed:
            return from_call_failed(failed)
    raise AssertionError("the membership ended well")
