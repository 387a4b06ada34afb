"""`weir.v1.Transactions`: stages of writers, decisions on them, and what there is.

All but the listing needs the right to write the table.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final

import trio

from scanner.errors import ArgumentInvalid
from scanner.proto.weir.v1 import tables_pb2
from scanner.proto.weir.v1 import transactions_pb2 as pb
from scanner.server.auth.access import Right, audit_call, authorize
from scanner.server.auth.audit import AuditEvent
from scanner.server.tables.write_encoding import encode_routed
from scanner.server.tables.writes import WriteCall, mutations_bytes
from scanner.server.transactions.names import VersionKey
from scanner.server.transactions.stages import Attempt
from scanner.storage.stage_frames import mutation_frames
from scanner.storage.transactions import SESSION_BYTES
from scanner.wire.arrow_ipc import require_unchanged
from scanner.wire.fields import require_few_fields
from scanner.wire.queries import meant_table_id, parse_request
from scanner.wire.seals import sealed_like
from transport import StallReason

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from scanner.server.config import ScannerConfig
    from scanner.server.tables.catalog import Catalog
    from scanner.server.tables.write_memory import WriteMemory
    from scanner.server.transactions.registry import Transactions
    from scanner.server.transactions.stage_writer import StageWriter
    from transport import ServerStream

_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
_NUMBER_END: Final = 2**63
_OPENING_BYTES_MAX: Final = 4096
"""An opening takes some hundred octets, is read before its rights are, and is kept until the stage ends."""
_OPERATIONS: Final[Mapping[int, int]] = {
    pb.StageRows.OPERATION_UPSERT: tables_pb2.WriteRequest.OPERATION_UPSERT,
    pb.StageRows.OPERATION_DELETE: tables_pb2.WriteRequest.OPERATION_DELETE,
}


class TransactionService:
    """Serves the calls of `weir.v1.Transactions`.

    Args:
        transactions: Those of the server.
        catalog: Table catalog.
        config: Bounds.
        memory: Of the writes of the server.
    """

    def __init__(
        self, transactions: Transactions, catalog: Catalog, config: ScannerConfig, memory: WriteMemory
    ) -> None:
        self._transactions = transactions
        self._catalog = catalog
        self._config = config
        self._memory = memory

    def calls(self) -> Mapping[str, Callable[[Buffer, ServerStream], Awaitable[bytes]]]:
        """The unary call of each method."""
        return {"Publish": self.publish, "Abort": self.abort, "ListTransactions": self.list}

    async def stage(self, stream: ServerStream) -> None:
        """Handle one stage.

        Raises:
            ArgumentInvalid: The requests make no sense, or the client sent another number of rows than arrived.
            ScannerError: Nothing was kept.
            TransportError: The stream or the connection is gone; nothing was kept, unless it was complete.
        """
        message = await stream.receive()
        opening = _parsed(message, "open", bytes_max=_OPENING_BYTES_MAX).open
        key = _version_of(opening.version)
        authorize(stream, Right.WRITE, key.table)
        if len(opening.session) != SESSION_BYTES:
            raise ArgumentInvalid(f"a stage's session has {SESSION_BYTES} octets, not {len(opening.session)}")
        attempt = Attempt(opening.part, _number("attempt", opening.attempt))
        async with self._catalog.unless_dropped(key.table, key.table_id):
            rows, size, decided = await self._stage(stream, key, attempt, opening.session)
        response = pb.StageResponse(rows=rows, bytes=size, decided=decided, stage=opening)
        await stream.send(sealed_like(message)(response.SerializeToString()))

    async def publish(self, request: Buffer, stream: ServerStream) -> bytes:
        """Decide a version, and answer when it is applied.

        Raises:
            ArgumentInvalid: A part is named twice, or there are too many; or the version before is none.
            ScannerError: See `Transactions.publish`.
        """
        message = parse_request(pb.PublishRequest, request)
        key = _version_of(message.version)
        authorize(stream, Right.WRITE, key.table)
        parts, parts_max = len(message.attempts), self._config.transaction_parts_max
        if parts > parts_max:
            raise ArgumentInvalid(f"a version of {parts} parts is too large; {parts_max} are allowed")
        attempts = {each.part: _number("attempt", each.attempt) for each in message.attempts}
        if len(attempts) < parts:
            raise ArgumentInvalid("a part has two attempts in one request; name the one that counts")
        rows_min = {each.part: each.rows_min for each in message.attempts}
        previous = message.previous_version if message.HasField("previous_version") else None
        if previous is not None and previous >= key.version:
            raise ArgumentInvalid(f"the version before {key} is a smaller one, not {previous}")
        overwrite = message.overwrite

        def decided() -> None:
            self._audit(
                AuditEvent.TRANSACTION_PUBLISHED, stream, key, parts=len(attempts), overwrite=overwrite
            )

        with stream.blocked_on(StallReason.STORAGE):
            async with self._catalog.unless_dropped(key.table, key.table_id):
                published = await self._transactions.publish(
                    key,
                    attempts,
                    rows_min=rows_min,
                    previous=previous,
                    overwrite=overwrite,
                    when_decided=decided,
                )
        return pb.PublishResponse(
            version=message.version,
            decided=published.decided,
            overwrite=published.overwrite,
            previous_unknown=published.previous_unknown,
            attempts=[
                pb.PartAttempt(part=part, attempt=attempt)
                for part, attempt in sorted(published.attempts.items())
            ],
            ranges=[
                pb.AppliedRange(bucket=index, start_offset=share.start, end_offset=share.end)
                for index, share in sorted(published.shares.items())
                if share.start < share.end
            ],
        ).SerializeToString()

    async def abort(self, request: Buffer, stream: ServerStream) -> bytes:
        """Free the stages of a version.

        Raises:
            ScannerError: See `Transactions.abort`.
        """
        message = parse_request(pb.AbortRequest, request)
        key = _version_of(message.version)
        authorize(stream, Right.WRITE, key.table)
        async with self._catalog.unless_dropped(key.table, key.table_id):
            freed = await self._transactions.abort(key)
        if freed:
            self._audit(AuditEvent.TRANSACTION_ABORTED, stream, key, bytes=freed)
        return pb.AbortResponse(bytes=freed, version=message.version).SerializeToString()

    async def list(self, request: Buffer, stream: ServerStream) -> bytes:
        """Answer with what a table has of transactions.

        Raises:
            TableNotFound: There is no such table.
        """
        message = parse_request(pb.ListTransactionsRequest, request)
        authorize(stream, Right.DESCRIBE, message.table)
        response = pb.ListTransactionsResponse(table_id=meant_table_id(message))
        for each in await self._transactions.names(message.table, meant_table_id(message)):
            decision = each.decision
            response.transactions.add(
                name=each.text,
                decided_version=None if decision is None else decision.version,
                applied=decision is not None and decision.applied,
                stages=sum(1 for _ in each.stages),
                staged_bytes=each.stages.size,
            )
        return response.SerializeToString()

    def _audit(self, event: AuditEvent, stream: ServerStream, key: VersionKey, **fields: object) -> None:
        what = {"table": key.table, "transaction": key.name, "version": key.version}
        audit_call(self._catalog.activity, event, stream, **what, **fields)

    async def _stage(
        self, stream: ServerStream, key: VersionKey, attempt: Attempt, session: bytes
    ) -> tuple[int, int, bool]:
        """Take in a stage, and tell its rows, its octets, and whether the version was decided before."""
        with stream.blocked_on(StallReason.STORAGE):
            writer = await self._transactions.open_stage(key, attempt, session)
        try:
            rows = await self._receive_rows(stream, key, writer)
            with stream.blocked_on(StallReason.STORAGE):
                return rows, *await writer.finish()
        finally:
            with trio.CancelScope(shield=True):
                await writer.leave()

    async def _receive_rows(self, stream: ServerStream, key: VersionKey, writer: StageWriter) -> int:
        """Take in everything up to the finish, behind which the client must end its requests, and count it."""
        rows = 0
        while True:
            request = _parsed(await stream.receive(), "rows", "finish")
            # The right may have been taken away since the stage was opened.
            authorize(stream, Right.WRITE, key.table)
            if request.WhichOneof("request") == "finish":
                if request.finish.rows != rows:
                    raise ArgumentInvalid(
                        f"{request.finish.rows} rows were sent to {key}, and {rows} arrived; nothing was kept"
                    )
                if await stream.receive() is not None:
                    raise ArgumentInvalid(
                        f"a stage of {key} went on behind its finish; nothing was kept; more rows need another stage"
                    )
                return rows
            require_unchanged(request.rows.arrow_stream, request.rows)
            call = WriteCall(key.table, _OPERATIONS.get(request.rows.operation, 0), request.rows.arrow_stream)
            del request
            rows += await self._append(call, stream, writer)

    async def _append(self, call: WriteCall, stream: ServerStream, writer: StageWriter) -> int:
        table = await self._catalog.table(call.table)
        size = min(call.decoded_bytes, self._config.write_decoded_bytes_max)
        with stream.blocked_on(StallReason.STORAGE):
            share = await self._memory.take(size, "")
            try:
                routed = await encode_routed(call, table.schema, self._config)
                share.resize(sum(mutations_bytes(each) for each in routed.values()))
                await writer.append(list(mutation_frames(routed)))
            finally:
                share.release()
        return sum(map(len, routed.values()))


def _parsed(message: Buffer | None, *expected: str, bytes_max: int | None = None) -> pb.StageRequest:
    if message is None:
        raise ArgumentInvalid("a stage ended before its finish; nothing was kept")
    require_few_fields(message, inside=pb.StageRequest.ROWS_FIELD_NUMBER)
    request = parse_request(pb.StageRequest, message, bytes_max)
    kind = request.WhichOneof("request")
    if kind not in expected:
        raise ArgumentInvalid(
            f"a stage is open, rows, finish, in this order; {kind or 'an empty request'} came too early or too late"
        )
    return request


def _version_of(message: pb.TransactionVersion) -> VersionKey:
    if not _NAME.fullmatch(message.name):
        raise ArgumentInvalid(
            f"a transaction's name is 1 to 100 of A-Z, a-z, 0-9, '_', '.', ':' and '-', not {message.name!r}"
        )
    return VersionKey(message.table, message.table_id, message.name, _number("version", message.version))


def _number(what: str, value: int) -> int:
    if value >= _NUMBER_END:
        raise ArgumentInvalid(f"a transaction's {what} is 0 to 2^63 - 1, not {value}")
    return value
