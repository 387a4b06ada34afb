"""`weir.v1.Tables`: tables, their offsets and their writes.

A write stream is a pipeline: while one request waits for the disk, the next ones are decoded and queued. Its
responses come in the order of its requests, each when its request is durable in every bucket it touches; after
the first request that fails none are sent.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import trio

from scanner.errors import ArgumentInvalid, ScannerError, SchemaMismatch
from scanner.proto.weir.v1 import tables_pb2 as pb
from scanner.proto.weir.v1.scanner_pb2 import LogStart
from scanner.server.auth.access import Right, audit_call, authorize, may
from scanner.server.auth.audit import AuditEvent
from scanner.server.failures import free_frames
from scanner.server.fairness import pass_turn_among
from scanner.server.log.bounds import keeps_since, start_offset
from scanner.server.tables.write_encoding import encode_routed, route_keys
from scanner.server.tables.writes import WriteCall, mutations_bytes
from scanner.tasks import run_with_companion
from scanner.wire.arrow_ipc import decode_schema
from scanner.wire.queries import meant_table_id, parse_request
from scanner.wire.statuses import for_peers
from scanner.wire.tables import description_from_proto, description_to_proto
from transport import StallReason, TransportError

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from scanner.server.config import ScannerConfig
    from scanner.server.tables.catalog import Catalog
    from scanner.server.tables.write_memory import WriteMemory
    from scanner.server.tables.write_queue import PendingWrite
    from scanner.wire.seals import Seal
    from transport import ServerStream

_LIST_PAGE_BYTES: Final = 2 * 1024 * 1024
"""Of one answer to ListTables; a single description may be larger. Stock clients take 4 MiB."""
_ENTRY_BYTES: Final = 6
"""Of an entry of a message beside its own octets, at most."""
_DRAINED_SILENCE_S: Final = 1.0
"""How long a server that drains waits for the next request of a write stream."""


@dataclass(frozen=True, slots=True)
class _Submitted:
    """A request that is queued in all its buckets."""

    writes: tuple[tuple[int, PendingWrite], ...]
    """By bucket, ascending."""
    sequence: int
    """Its number; 0: it has none."""
    seal: Seal
    """Of its answer."""

    async def wait_durable(self) -> dict[int, tuple[int, int]]:
        """Wait until all of it is settled.

        Returns:
            By bucket, the offsets of its changes.

        Raises:
            ScannerError: A bucket has failed; the message says whether others have written their rows.

        Waits:
            For their commits.

        Cancellation:
            No effect on the request.
        """
        durable: dict[int, tuple[int, int]] = {}
        failure: ScannerError | None = None
        for index, write in self.writes:
            try:
                durable[index] = await write.wait_durable()
            except ScannerError as error:
                failure = failure or error
        if failure is None:
            return durable
        if not durable:
            raise failure
        shown = for_peers(failure)
        raise type(shown)(
            f"{shown.message}; of the {len(self.writes)} buckets of this request, {len(durable)} have their rows",
            metadata=shown.metadata,
        ) from failure


_Answer: TypeAlias = _Submitted | Exception


class TablesService:
    """Serves the calls of `weir.v1.Tables`.

    Args:
        catalog: Table catalog.
        config: Bounds of writes.
        now_us: Tells the time by which commits are stamped, microseconds since 1970 UTC.
        memory: Of the writes of the server.
    """

    def __init__(
        self,
        catalog: Catalog,
        config: ScannerConfig,
        now_us: Callable[[], int],
        memory: WriteMemory,
    ) -> None:
        self._catalog = catalog
        self._config = config
        self._now_us = now_us
        self._memory = memory
        self._drained_by: ScannerError | None = None
        self._waits: set[trio.CancelScope] = set()
        """Those for a next request to write."""

    def drain(self, error: ScannerError) -> None:
        """Have each write stream, also those to come, end with an error where its client is silent for a second.

        If it has all its answers: such a writer has nothing to write for the moment, and may be silent for hours.
        """
        if self._drained_by is None:
            self._drained_by = error
            for wait in self._waits:
                wait.cancel()

    @property
    def write_queue_bytes(self) -> int:
        """Octets of writes that are being decoded, or wait for their commits."""
        return self._memory.bytes_taken

    async def create_table(self, request: Buffer, stream: ServerStream) -> bytes:
        """Create a table, and answer with its description as stored.

        Raises:
            ScannerError: No such table can be, or its name is taken.
        """
        message = parse_request(pb.CreateTableRequest, request)
        authorize(stream, Right.MANAGE, message.table.name)
        if message.table.bucket_endpoints:
            raise ArgumentInvalid(
                "bucket_endpoints is not served yet: this server has every bucket; leave it empty"
            )
        description = description_from_proto(message.table)
        table_id = await self._catalog.create(description)
        self._audit(AuditEvent.TABLE_CREATED, stream, description.name)
        return pb.CreateTableResponse(
            table=description_to_proto(description), table_id=table_id
        ).SerializeToString()

    async def add_column(self, request: Buffer, stream: ServerStream) -> bytes:
        """Add a nullable column, and answer with the table as it is now.

        Raises:
            ScannerError: There is no such table, or it cannot have such a column.
        """
        message = parse_request(pb.AddColumnRequest, request)
        authorize(stream, Right.MANAGE, message.table)
        columns = decode_schema(message.arrow_schema)
        if len(columns) != 1:
            raise ArgumentInvalid(f"one column is added at a time, not {len(columns)}")
        description = await self._catalog.add_column(message.table, columns.field(0), meant_table_id(message))
        self._audit(AuditEvent.COLUMN_ADDED, stream, description.name)
        return pb.AddColumnResponse(table=description_to_proto(description)).SerializeToString()

    async def drop_table(self, request: Buffer, stream: ServerStream) -> bytes:
        """Drop a table, and end its scans.

        Raises:
            TableNotFound: There is none of that name, or it is not the one that is meant.
        """
        message = parse_request(pb.DropTableRequest, request)
        authorize(stream, Right.MANAGE, message.table)
        audited = functools.partial(self._audit, AuditEvent.TABLE_DROPPED, stream, message.table)
        await self._catalog.drop(message.table, meant_table_id(message), audited)
        return pb.DropTableResponse(table_id=meant_table_id(message)).SerializeToString()

    async def drop_unwritten(self, request: Buffer, stream: ServerStream) -> bytes:
        """Drop a table to which nobody has ever written, and say whether it was one.

        Raises:
            TableNotFound: There is none of that name, or it is not the one that is meant.
        """
        message = parse_request(pb.DropUnwrittenRequest, request)
        authorize(stream, Right.MANAGE, message.table)
        audited = functools.partial(self._audit, AuditEvent.TABLE_DROPPED, stream, message.table)
        dropped = await self._catalog.drop_unwritten(message.table, meant_table_id(message), audited)
        answer = pb.DropUnwrittenResponse(dropped=dropped, table_id=meant_table_id(message))
        return answer.SerializeToString()

    def _audit(self, event: AuditEvent, stream: ServerStream, table: str) -> None:
        audit_call(self._catalog.activity, event, stream, table=table)

    async def list_tables(self, request: Buffer, stream: ServerStream) -> bytes:
        """Answer with a page of the tables that the caller may know of, by name."""
        message = parse_request(pb.ListTablesRequest, request)
        response, size = pb.ListTablesResponse(), 0
        for each in sorted(await self._catalog.descriptions(), key=lambda table: table.name):
            # The token is the last name of the page before: what is created or dropped meanwhile moves nothing.
            if each.name <= message.page_token or not may(stream, Right.DESCRIBE, each.name):
                continue
            table = description_to_proto(each)
            size += table.ByteSize() + _ENTRY_BYTES
            full = message.page_size and len(response.tables) >= message.page_size
            if response.tables and (full or size > _LIST_PAGE_BYTES):
                response.next_page_token = response.tables[-1].name
                break
            response.tables.append(table)
        return response.SerializeToString()

    async def describe_table(self, request: Buffer, stream: ServerStream) -> bytes:
        """Answer with one table.

        Raises:
            TableNotFound: There is none of that name.
        """
        name = parse_request(pb.DescribeTableRequest, request).table
        authorize(stream, Right.DESCRIBE, name)
        table = await self._catalog.table(name)
        return pb.DescribeTableResponse(
            table=description_to_proto(table.description), table_id=table.table_id
        ).SerializeToString()

    async def list_offsets(self, request: Buffer, stream: ServerStream) -> bytes:
        """Answer with the oldest offset and the log end of every bucket, and where a time is, if one is named.

        Raises:
            TableNotFound: There is none of that name.
            ArgumentInvalid: The time is in the future.
            DataCorrupted: The changelog is damaged where the time is.
        """
        message = parse_request(pb.ListOffsetsRequest, request)
        name = message.table
        authorize(stream, Right.DESCRIBE, name)
        table = await self._catalog.table(name, meant_table_id(message))
        ranges, now_us = [], self._now_us()
        for index in range(table.description.buckets):
            served = await self._catalog.bucket(table, index)
            await served.wait_stamped_before(message.timestamp_us)
            asks_time = message.HasField("timestamp_us")
            # A time is looked up in storage, which may be being opened anew, and whoever reads it waits for that.
            async with served.beside_commits() if asks_time else nullcontext():
                bucket = served.storage
                found = pb.OffsetRange(
                    bucket=index,
                    start_offset=bucket.log_start,
                    end_offset=bucket.log_end,
                    history=bucket.lineage.history_of(bucket.log_end),
                )
                if asks_time:
                    time_us = message.timestamp_us
                    found.at_offset = start_offset(bucket, LogStart(timestamp_us=time_us), now_us)
                    found.at_is_kept = keeps_since(bucket, found.at_offset, time_us)
            ranges.append(found)
            await pass_turn_among(index)
        return pb.ListOffsetsResponse(ranges=ranges, table_id=table.table_id).SerializeToString()

    async def write(self, stream: ServerStream) -> None:
        """Handle one write stream.

        Raises:
            ScannerError: A request failed; the requests before it were answered.
            TransportError: The stream or the connection is gone; what was queued is written all the same.
        """
        sender, receiver = trio.open_memory_channel[_Answer](self._config.write_requests_in_flight_max)
        # Open until both have ended: what is accepted while an error is on its way out must not fail in its place.
        with receiver:
            await run_with_companion(
                functools.partial(self._respond, stream, receiver),
                functools.partial(self._accept, stream, sender),
            )

    async def _accept(self, stream: ServerStream, answers: trio.MemorySendChannel[_Answer]) -> None:
        """Take requests until the client ends them, or one fails. A failure is answered after the requests before it.

        It must not leave here: closing the channel is a checkpoint, at which `_respond`'s end could take its place.
        """
        async with answers:
            while True:
                answer = await self._accept_one(stream)
                if answer is None:
                    return
                # An error of the transport is not of rows, and its frames may be of tasks that still run.
                if isinstance(answer, Exception) and not isinstance(answer, TransportError):
                    free_frames(answer)
                await answers.send(answer)
                if isinstance(answer, Exception):
                    return

    async def _accept_one(self, stream: ServerStream) -> _Answer | None:
        """Take the next request; None: the client has ended them."""
        try:
            message = await self._next_request(stream)
            if message is None:
                return None
            request = WriteCall.parse(message)
            del message
            # A request that waits for memory holds its rows once, and no rows stay here afterwards.
            return await self._submit(request, stream)
        except Exception as error:
            return error

    async def _next_request(self, stream: ServerStream) -> Any:
        while True:
            moved, drained_by = (stream.arrived_bytes, stream.messages_sent), self._drained_by
            silence_s = math.inf if drained_by is None else _DRAINED_SILENCE_S
            with trio.move_on_after(silence_s) as wait:
                self._waits.add(wait)
                try:
                    return await stream.receive()
                finally:
                    self._waits.discard(wait)
            if drained_by is None or stream.messages_sent < stream.messages_received:
                continue  # The drain has begun just now, or the client waits for an answer.
            if (stream.arrived_bytes, stream.messages_sent) == moved:
                # An error of its own: the frames of what others have raised are of tasks that still run.
                raise drained_by.reworded(drained_by.message)

    @staticmethod
    async def _respond(stream: ServerStream, answers: trio.MemoryReceiveChannel[_Answer]) -> None:
        async for answer in answers:
            if isinstance(answer, Exception):
                raise answer
            response = pb.WriteResponse(sequence=answer.sequence)
            with stream.blocked_on(StallReason.STORAGE):
                durable = await answer.wait_durable()
            for index, (start, end) in durable.items():
                if start < end:
                    response.ranges.add(bucket=index, start_offset=start, end_offset=end)
            await stream.send(answer.seal(response.SerializeToString()))

    async def _submit(self, request: WriteCall, stream: ServerStream) -> _Submitted:
        authorize(stream, Right.WRITE, request.table)
        table = await self._catalog.table(request.table, request.table_id)
        size = min(request.decoded_bytes, self._config.write_decoded_bytes_max)
        with stream.blocked_on(StallReason.STORAGE):
            share = await self._memory.take(size, request.table)
        try:
            # One schema for the whole request, though a column may be added meanwhile.
            schema, refusal = table.schema, None
            try:
                routed = await encode_routed(request, schema, self._config)
            except SchemaMismatch as misfit:
                if request.number is None or not schema.row_codec.older_schemas:
                    raise
                # It may come again, and have been applied before a column was added. Without the rows in its frames.
                routed = await route_keys(request, schema, self._config, misfit)
                refusal = misfit.with_traceback(None)
            share.resize(sum(mutations_bytes(each) for each in routed.values()))
            buckets = [(index, await self._catalog.bucket(table, index)) for index in sorted(routed)]
            for _, bucket in buckets:
                await bucket.wait_room()
            share.split(len(buckets))
            # No waiting from here on: the requests of one stream reach every bucket in their order.
            writes = tuple(
                (index, bucket.submit(routed[index], share.part_done, number=request.number, refusal=refusal))
                for index, bucket in buckets
            )
        except BaseException:
            share.release()
            raise
        if not writes:
            share.release()
        submitted = _Submitted(writes, 0 if request.number is None else request.number.sequence, request.seal)
        if refusal is not None:
            await submitted.wait_durable()  # No request behind one that is refused is taken.
        return submitted
