"""Transactions of a writer: rows are staged, durable and invisible, and published together, once.

Invariants:

1. A stage counts as a whole or not at all, and once, however often it had to be sent.
2. `publish` decides a version once. Asked again, by whomever, it answers with what was decided.
3. `publish` decides nothing if an attempt has fewer rows on the server than it has acknowledged to the same
   `Transaction`, since its last `abort`.
"""

from __future__ import annotations

import functools
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from google.protobuf.message import Message

from scanner.client.arguments import flag, require_kind, require_text, whole_number
from scanner.client.arrow_input import Rows, read_arrow
from scanner.client.calls import call_unary, require_about
from scanner.client.connection import Connection, Lasting
from scanner.client.failures import as_write_error
from scanner.client.offsets import OffsetRange
from scanner.client.request_rows import conformed
from scanner.client.retries import retried
from scanner.data.table import TableDescription
from scanner.errors import ArgumentInvalid, DataCorrupted, ScannerError, ServerUnavailable
from scanner.proto.weir.v1 import transactions_pb2 as pb
from scanner.wire import methods
from scanner.wire.answers import parse_answer
from scanner.wire.arrow_ipc import encode_stream
from scanner.wire.seals import sealed
from transport import Stream, TransportError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_SESSION_BYTES: Final = 16
_UPSERT: Final = pb.StageRows.OPERATION_UPSERT
_DELETE: Final = pb.StageRows.OPERATION_DELETE
_NUMBER_END: Final = 2**63
_PART_END: Final = 2**32

Operation = Literal["upsert", "delete"]
_Reply = TypeVar("_Reply", bound=Message)


@dataclass(frozen=True, kw_only=True, slots=True)
class Staged:
    """What was staged in one go."""

    rows: int
    """Rows and keys."""
    bytes: int
    """Octets that they take on the server's disk."""
    decided: bool
    """The version was decided before: the rows were not kept, and are not applied again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """What became of a version. Every bucket has applied it."""

    decided: bool
    """This call has decided; else the version was decided before, perhaps by an attempt whose answer was lost."""
    attempts: Mapping[int, int]
    """By part, the attempt that counts."""
    overwrite: bool
    """Whether the rows that no part names were deleted."""
    ranges: tuple[OffsetRange, ...]
    """The changes that the version made, by bucket; none where it changed nothing."""
    previous_unknown: bool = False
    """This call has decided, and the server could not look at its `previous_version`: it knows no version of the name,
    and may have forgotten one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransactionInfo:
    """What a table has of one transaction name."""

    name: str
    decided_version: int | None
    """The newest one that is decided; None: none is."""
    applied: bool
    """Whether every bucket has applied it."""
    stages: int
    """Stages on the server's disk."""
    staged_bytes: int
    """Their octets."""


class Transaction:
    """One version of a transaction; made by `Table.transaction`. Any number of tasks, and of clients, may use it.

    Args:
        connection: Owned by whoever made it.
        table: The table.
        table_id: Its id: rows never go to another table of its name.
        name: Of the transaction.
        version: Of it.
    """

    def __init__(
        self, connection: Connection, table: TableDescription, table_id: int, name: str, version: int
    ) -> None:
        self._connection = connection
        self._table = table
        self._table_id = table_id
        self.name = require_text("the name of a transaction", name)
        """Names the writer: versions of one name are published in ascending order, each once."""
        self.version = _number("version", version, _NUMBER_END)
        """0 to 2^63 - 1."""
        # Rows of a version that was decided before count, too: if a restore loses the decision, they are missing.
        self._counted: Counter[tuple[int, int]] = Counter()
        """By part and attempt, the rows and keys that the server has acknowledged since the last `abort`."""

    async def stage(self, rows: Rows, *, part: int, attempt: int, operation: Operation = "upsert") -> Staged:
        """Stage rows, or keys to delete: durable when this returns, and seen by nobody until they are published.

        A call that was cut off is made again, and counts once. What one attempt stages is applied in the order of the
        calls, and row by row.

        Args:
            rows: All columns by name, or the key columns for deletes.
            part: Which part of the version, 0 to 2^32 - 1. A key belongs into one part.
            attempt: Which attempt at the part, 0 to 2^63 - 1; one of each part is published.
            operation: `upsert` or `delete`.

        Raises:
            SchemaMismatch, KeyInvalid: The rows do not fit the table; nothing was staged. Only where a column was added
                meanwhile, a try whose answer was lost may have staged them: stage the part in a new attempt.
            TypeError: They are no rows; nothing was staged.
            VersionSuperseded: A newer version is decided.
            StageNotFound: The version was aborted meanwhile.
            StagesFull, DiskFull: The server has no room.
            TableNotFound: The table was dropped.
            ScannerError: It failed. If the server could not be reached, the rows may be staged: stage the part in a new
                attempt.

        Waits:
            For the server, and between attempts.

        Cancellation:
            The rows may have been staged.
        """
        if operation not in ("upsert", "delete"):
            raise ArgumentInvalid(f"an operation is upsert or delete, not {operation!r}")
        key = _part_attempt(part, attempt)
        session = secrets.token_bytes(_SESSION_BYTES)
        counted = self._counted  # `abort` replaces it: what is staged meanwhile may be freed or not.
        read = await read_arrow(rows)  # Once: a stream has nothing for a second attempt.

        async def send() -> Staged:
            async with self._open_part(key, session) as writer:
                if operation == "upsert":
                    await writer.upsert(read)
                else:
                    await writer.delete(read)
            return await writer.close()

        # Here and not in `send`, which may be made again behind an answer: the stage counts once.
        staged = await retried(self._connection.attempts(), send)
        counted[key] += staged.rows
        return staged

    @asynccontextmanager
    async def part(self, part: int, attempt: int) -> AsyncIterator[PartWriter]:
        """Stage batch by batch, for the length of a block; leaving the block makes it durable, as a whole.

        If the block raises, nothing of it is staged. If the connection is lost while it is left, all of it may be:
        stage the part in a new attempt.

        Args:
            part: See `stage`.
            attempt: See `stage`.

        Example:
            >>> async with orders.transaction("load", 7).part(0, 0) as writer:
            ...     await writer.upsert(batch)
            >>> (await writer.close()).rows

        Raises:
            ScannerError: See `stage`.

        Cancellation:
            Nothing is staged, unless the block is being left.
        """
        counted, key = self._counted, _part_attempt(part, attempt)

        def count(staged: Staged) -> None:
            counted[key] += staged.rows

        async with self._open_part(key, secrets.token_bytes(_SESSION_BYTES), count) as writer:
            yield writer

    async def publish(
        self,
        attempts: Mapping[int, int],
        *,
        overwrite: bool = False,
        rows: Mapping[int, int] | None = None,
        previous_version: int | None = None,
    ) -> Published:
        """Decide that these attempts count, and wait until every bucket has applied them.

        The server decides once, durably, and completes what is decided, whatever becomes of it and of its clients. So a
        call that was cut off is made again; a version that is decided is answered with what was decided.
        Within a bucket a version is seen whole or not at all; buckets show it one after the other.

        What this object has staged since its last `abort` has to be there; else nothing is decided.

        Args:
            attempts: By part, the attempt that counts. Without parts, `{}`, the version has no rows.
            overwrite: Also delete every row that no part names, of those that a bucket has when it applies the version:
                the table is what was staged then.
            rows: By part, how many rows and keys the attempt has staged at least, over all processes: the sum of
                `Staged.rows`. For parts that others have staged; of its own this object knows.
            previous_version: Decide only if this is the newest version that is decided, for writers that number without
                gaps; None: whichever is.

        Raises:
            ArgumentInvalid: `rows` names a part that `attempts` does not, or what is no number of rows; or
                `previous_version` is not below this one.
            VersionSuperseded: A newer version is decided. This one was before that, perhaps by a call whose answer was
                lost, or never will be.
            VersionGap: The newest is not `previous_version`: what was published between was lost, as in a restore, or
                the table was created anew. Nothing was decided.
            StageNotFound: An attempt has staged nothing, or has fewer rows than were staged, because some have expired,
                were aborted, or were lost in a restore. Nothing was decided: stage the part in a new attempt.
            PartsConflict: Two parts touch one key, which the message names; nothing was decided.
            DataCorrupted: A stage is damaged; nothing was decided.
            DiskFull: The server has no room to apply it.
            TableNotFound: The table was dropped.
            ScannerError: It failed. Where the message says that the version is decided, the server goes on.

        Waits:
            For the server, and between attempts.

        Cancellation:
            The version may be decided; it is applied then all the same.
        """
        request = pb.PublishRequest(
            version=self._key,
            attempts=self._part_attempts(attempts, rows),
            overwrite=flag("overwrite", overwrite),
            previous_version=None if previous_version is None else self._before(previous_version),
        )
        return self._published(request, await self._call(methods.PUBLISH, request, pb.PublishResponse))

    async def abort(self) -> int:
        """Free what is staged of the version. Idempotent. Stage in new attempts afterwards, also if it raises.

        What any process is staging then is not kept: those calls raise StageNotFound. What the network has held up can
        arrive later: in the same attempt it would count.

        Returns:
            Octets that were freed on the server's disk.

        Raises:
            TransactionDecided: The version is decided.
            VersionSuperseded: A newer version is decided.
            ScannerError: Some stages may be left; they expire.

        Waits:
            For the server, and between attempts.

        Cancellation:
            The stages may be freed.
        """
        request = pb.AbortRequest(version=self._key)
        reply = await self._call(methods.ABORT, request, pb.AbortResponse)
        if reply.HasField("version"):
            asked, told = self._key, reply.version
            require_about("Abort", (asked.name, asked.version), (told.name, told.version))
        self._counted = Counter()
        return reply.bytes

    @property
    def _key(self) -> pb.TransactionVersion:
        return pb.TransactionVersion(
            table=self._table.name, table_id=self._table_id, name=self.name, version=self.version
        )

    async def _call(self, path: str, request: Message, reply: type[_Reply]) -> _Reply:
        call = functools.partial(call_unary, self._connection, path, request, reply)
        return await retried(self._connection.attempts(), call)

    def _published(self, request: pb.PublishRequest, reply: pb.PublishResponse) -> Published:
        """What an answer says of this version.

        Raises:
            DataCorrupted: It is another version's, or not what was asked for.
        """
        # A server that is older names no version, and says nothing at all only of one that was decided without parts.
        if reply.version != request.version and (
            reply.HasField("version") or (request.attempts and not reply.ByteSize())
        ):
            raise DataCorrupted(
                f"version {self.version} of transaction {self.name} of {self._table.name} was to be published, and the"
                f" answer is of {reply.version.version} of {reply.version.name!r} of {reply.version.table!r}: nobody"
                " knows whether it is; publish it again"
            )
        asked, published = ({each.part: each.attempt for each in of.attempts} for of in (request, reply))
        if reply.decided and (published, reply.overwrite) != (asked, request.overwrite):
            raise DataCorrupted(
                f"the attempts {_shown(asked, request.overwrite)} of {self.name} {self.version} were to be published,"
                f" and the server says that it has decided {_shown(published, reply.overwrite)} for this request"
            )
        return Published(
            decided=reply.decided,
            overwrite=reply.overwrite,
            attempts=published,
            ranges=tuple(OffsetRange(r.bucket, r.start_offset, r.end_offset) for r in reply.ranges),
            previous_unknown=reply.previous_unknown,
        )

    def _before(self, version: int) -> int:
        number = _number("previous_version", version, _NUMBER_END)
        if number >= self.version:
            raise ArgumentInvalid(f"the version before {self.version} is a smaller one, not {number}")
        return number

    def _part_attempts(
        self, attempts: Mapping[int, int], rows: Mapping[int, int] | None
    ) -> list[pb.PartAttempt]:
        rows = {} if rows is None else rows
        require_kind("attempts", attempts, Mapping)
        require_kind("rows", rows, Mapping)
        numbers = sorted(_part_attempt(part, attempt) for part, attempt in attempts.items())
        # By number, as they are looked up: a scalar of pyarrow is one, too, and equals none.
        rows_min = {
            _number("part", part, _PART_END): _number("number of rows", least, _NUMBER_END)
            for part, least in rows.items()
        }
        unnamed = rows_min.keys() - dict(numbers).keys()
        if unnamed:
            raise ArgumentInvalid(
                f"rows names part {min(unnamed)}, and attempts does not; name an attempt of it"
            )
        return [
            pb.PartAttempt(
                part=part,
                attempt=attempt,
                rows_min=max(rows_min.get(part, 0), self._counted[part, attempt]),
            )
            for part, attempt in numbers
        ]

    @asynccontextmanager
    async def _open_part(
        self,
        key: tuple[int, int],
        session: bytes,
        when_staged: Callable[[Staged], None] | None = None,
    ) -> AsyncIterator[PartWriter]:
        part, attempt = key
        opening = pb.StageOpen(version=self._key, part=part, attempt=attempt, session=session)
        try:
            lasting = Lasting.AS_ITS_USER_WANTS
            async with self._connection.open_stream(methods.STAGE, lasting=lasting) as stream:
                writer = PartWriter(stream, self._table, opening, when_staged)
                yield writer
                await writer.close()
        except TransportError as error:
            raise as_write_error(error, _staging(self._table)) from error


class PartWriter:
    """Stages rows of one part; made by `Transaction.part`. For one task.

    Args:
        stream: A fresh Stage stream.
        table: The table.
        opening: What it begins with.
        when_staged: Called once, when the server has said that it is durable.
    """

    def __init__(
        self,
        stream: Stream,
        table: TableDescription,
        opening: pb.StageOpen,
        when_staged: Callable[[Staged], None] | None = None,
    ) -> None:
        self._stream = stream
        self._table = table
        self._opening: pb.StageOpen | None = opening
        self._session = opening.session
        self._when_staged = when_staged
        self._rows = 0
        self._finished = False
        """Whether the server was told that this is all."""
        self._staged: Staged | None = None

    async def upsert(self, rows: Rows) -> None:
        """Send rows: all columns by name.

        Raises:
            SchemaMismatch, KeyInvalid: They do not fit the table; nothing of them was sent.
            ScannerError: The server failed; nothing is staged.

        Waits:
            While the server does not take more.

        Cancellation:
            Part of the rows may have been sent: leave the block with an exception.
        """
        await self._send(rows, _UPSERT)

    async def delete(self, keys: Rows) -> None:
        """Send keys to delete: the key columns by name. One that is not there when it is published is no error.

        Raises:
            SchemaMismatch, KeyInvalid: They do not fit the table; nothing of them was sent.
            ScannerError: The server failed; nothing is staged.

        Waits:
            While the server does not take more.

        Cancellation:
            See `upsert`.
        """
        await self._send(keys, _DELETE)

    async def close(self) -> Staged:
        """Make durable what was sent, and say what it was. Nothing can be sent afterwards. Idempotent.

        Raises:
            ScannerError: It failed. If the connection was lost, it may be staged: stage the part in a new attempt.

        Waits:
            For the server.

        Cancellation:
            It may be staged; called again, it says so.
        """
        if self._staged is None:
            try:
                if not self._finished:
                    await self._begin()
                    finish = pb.StageRequest(finish=pb.StageFinish(rows=self._rows))
                    await self._stream.send(sealed(finish.SerializeToString()))
                    self._finished = True
                    await self._stream.send_end()
                answer = await self._stream.receive()
            except TransportError as error:
                raise await self._failure(error) from error
            self._staged = self._read(answer)
            if self._when_staged is not None:
                self._when_staged(self._staged)
        return self._staged

    async def _send(self, rows: Rows, operation: pb.StageRows.Operation) -> None:
        if self._finished:
            raise ArgumentInvalid("the part is closed; open another one to stage more")
        rows = await read_arrow(rows)
        conform = self._table.conform_keys if operation == _DELETE else self._table.conform
        pieces = list(conformed(rows, conform))
        try:
            await self._begin()
            for piece in pieces:
                request = pb.StageRequest(
                    rows=pb.StageRows(operation=operation, arrow_stream=encode_stream(piece))
                )
                await self._stream.send(sealed(request.SerializeToString()))
                self._rows += piece.num_rows
        except TransportError as error:
            raise await self._failure(error) from error

    async def _begin(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None:
            await self._stream.send(sealed(pb.StageRequest(open=opening).SerializeToString()))

    def _read(self, answer: Buffer | None) -> Staged:
        if answer is None:
            raise ServerUnavailable("the server ended the stage before it said that it is durable")
        reply = parse_answer(pb.StageResponse, answer, "the answer to a stage")
        if reply.HasField("stage"):
            require_about("Stage", self._session.hex(), reply.stage.session.hex())
        if reply.rows != self._rows:
            raise DataCorrupted(f"{self._rows} rows were sent, and the server has staged {reply.rows}")
        return Staged(rows=reply.rows, bytes=reply.bytes, decided=reply.decided)

    async def _failure(self, error: TransportError) -> ScannerError:
        """Why nothing more can be sent: the status, if the server gave one."""
        try:
            while await self._stream.receive() is not None:
                pass
        except TransportError as reason:
            error = reason
        return as_write_error(error, _staging(self._table))


async def list_transactions(connection: Connection, table: str, table_id: int) -> list[TransactionInfo]:
    """See `scanner.Table.transactions`."""
    request = pb.ListTransactionsRequest(table=table, table_id=table_id)
    path = methods.TRANSACTIONS + "ListTransactions"
    reply = await call_unary(connection, path, request, pb.ListTransactionsResponse)
    if reply.HasField("table_id"):
        require_about("ListTransactions", table_id, reply.table_id)
    return [
        TransactionInfo(
            name=each.name,
            decided_version=each.decided_version if each.HasField("decided_version") else None,
            applied=each.applied,
            stages=each.stages,
            staged_bytes=each.staged_bytes,
        )
        for each in reply.transactions
    ]


def _staging(table: TableDescription) -> str:
    return f"the staging of rows for {table.name}"


def _part_attempt(part: int, attempt: int) -> tuple[int, int]:
    return _number("part", part, _PART_END), _number("attempt", attempt, _NUMBER_END)


def _shown(attempts: Mapping[int, int], overwrite: bool) -> str:
    return f"{attempts}{' (overwrite)' if overwrite else ''}"


def _number(what: str, value: int, end: int) -> int:
    number = whole_number(value)
    if number is None or not 0 <= number < end:
        raise ArgumentInvalid(f"a transaction's {what} is a whole number, 0 to {end - 1}, not {value!r}")
    return number
