"""Point reads of a client: rows by their primary key, any number of keys, in as many calls as that takes.

Invariants:

1. All rows of one bucket are of one state, however many calls read it: those after the first ask for what the first was
   as of. A bucket that cannot show it any more is an error, and so is a table that was replaced in between.
2. Every key is answered, in the order asked for, or nothing is returned. What an answer says is checked: its checksum,
   its numbers, its columns, its states, and its keys, where the columns that were asked for have them.
3. A call that fails for a while is made again, as often as a scan would go on: it reads, and changes nothing.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import trio

from scanner.client.arguments import offsets_by_bucket
from scanner.client.calls import call_unary
from scanner.client.request_rows import REQUEST_ROWS_MAX, conformed
from scanner.client.retries import retried
from scanner.data.keys import KeyCodec, buckets_of
from scanner.errors import ArgumentInvalid, DataCorrupted, KeyInvalid, TableNotFound
from scanner.proto.weir.v1 import tables_pb2 as pb
from scanner.wire import methods
from scanner.wire.arrow_ipc import decode_stream, encode_stream, verify_payload

if TYPE_CHECKING:
    from scanner.client.arrow_input import ArrowRows
    from scanner.client.connection import Connection
    from scanner.data.table import TableDescription

_TOO_LARGE = "get_too_large"
"""Key of the metadata of a refusal: fewer keys at once would do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GetResult:
    """What a point read found."""

    rows: pa.Table
    """The rows that are there, in the order of their keys; a key that was asked for twice has its row twice."""
    found: tuple[bool, ...]
    """For each key, whether there is a row."""
    missing: pa.Table
    """The keys that have none, in their order: the key columns."""
    log_offsets: Mapping[int, int]
    """By bucket, what its rows are as of; of buckets that a key belongs to. `get` and scans take it as `as_of`."""
    histories: Mapping[int, bytes]
    """By bucket, the history that its offset is of."""


class _Collected:
    """The answers so far.

    Args:
        schema: Of the rows.
        codec: Of the keys.
        table_id: Of the table that is meant.
        states: What buckets are to be read as of, where that is given.
    """

    def __init__(
        self, schema: pa.Schema, codec: KeyCodec, table_id: int, states: dict[int, pb.BucketState]
    ) -> None:
        self._schema = schema
        self._codec = codec
        self._has_keys = set(codec.schema.names) <= set(schema.names)
        self._table_id = table_id
        self.states = states
        """And what those are read as of that have been read."""
        self.read: set[int] = set()
        """Buckets that have been read."""
        self.tables = [schema.empty_table()]
        self.found: list[bool] = []

    def add(self, reply: pb.GetResponse, keys: pa.Array, buckets: set[int], *, all_named: bool) -> None:
        """Check an answer and take it.

        Args:
            reply: The answer.
            keys: Those that were asked for, encoded.
            buckets: Those that the keys belong to.
            all_named: Only buckets that are in `states` may be read.

        Raises:
            DataCorrupted: It is not one to that request.
            TableNotFound: It is of another table: the server is older than `GetRequest.table_id`.
            ArgumentInvalid: A bucket was read that is not in `states`.
        """
        verify_payload(reply.arrow_stream, reply.crc32c)
        rows = decode_stream(reply.arrow_stream, self._schema)
        if len(reply.found) != len(keys) or sum(reply.found) != rows.num_rows:
            raise DataCorrupted(
                f"the answer to {len(keys)} keys is of {len(reply.found)}, with {rows.num_rows} rows for"
                f" {sum(reply.found)} of them"
            )
        if reply.table_id != self._table_id:
            raise TableNotFound("the table was dropped and created anew; look it up again")
        if [state.bucket for state in reply.states] != sorted(buckets):
            raise DataCorrupted(
                f"the keys belong to the buckets {sorted(buckets)}, and the answer is of the states of"
                f" {[state.bucket for state in reply.states]}"
            )
        for state in reply.states:
            if all_named and state.bucket not in self.states:
                raise ArgumentInvalid(
                    f"a key belongs to bucket {state.bucket}, which is given no offset; give every bucket that is read"
                    " one"
                )
            asked = self.states.get(state.bucket, state)
            if asked.log_offset != state.log_offset:
                raise DataCorrupted(
                    f"bucket {state.bucket} was read as of {state.log_offset} instead of {asked.log_offset}"
                )
            # The server checks what is asked for first: later histories than the offset's own hold that state, too. An
            # older one, which does not, names none.
            expected = asked.history if state.bucket in self.read else state.history
            if state.history != expected or (asked.history and not state.history):
                raise DataCorrupted(
                    f"bucket {state.bucket} was read as of {state.log_offset} of another history than was asked for"
                )
            self.states[state.bucket] = state
            self.read.add(state.bucket)
        if self._has_keys:
            self._require_keys(rows, keys.filter(pa.array(reply.found, pa.bool_())))
        self.tables.append(rows)
        self.found += reply.found

    def _require_keys(self, rows: pa.Table, keys: pa.Array) -> None:
        """See that the rows of an answer are those of the keys, in their order.

        Raises:
            DataCorrupted: They are not, as those of another answer.
        """
        first = 0
        try:
            for batch in rows.to_batches():
                if not self._codec.encode_array(batch).equals(keys.slice(first, batch.num_rows)):
                    raise DataCorrupted("the rows of an answer have other keys than were asked for")
                first += batch.num_rows
        except KeyInvalid as error:
            raise DataCorrupted(f"a row of an answer has no key: {error}") from error


async def get_rows(
    connection: Connection,
    table: TableDescription,
    table_id: int,
    keys: ArrowRows,
    columns: Sequence[str],
    as_of: int | Mapping[int, int] | None,
    histories: Mapping[int, bytes],
) -> GetResult:
    """Read rows by their keys; see `scanner.Table.get`."""
    schema = table.project(columns)
    pieces = deque(conformed(keys, table.conform_keys))
    wanted = pa.Table.from_batches(pieces, table.key_schema)
    codec = KeyCodec(table)
    collected = _Collected(schema, codec, table_id, _states_asked(table, as_of, histories))
    attempts, rows_max = connection.attempts(), REQUEST_ROWS_MAX
    if not pieces:  # As an empty write does.
        await trio.lowlevel.checkpoint()
    while pieces:
        piece = pieces.popleft()
        if piece.num_rows > rows_max:
            pieces.appendleft(piece.slice(rows_max))
            piece = piece.slice(0, rows_max)
        request = pb.GetRequest(
            table=table.name,
            keys=encode_stream(piece),
            columns=schema.names,
            as_of=collected.states.values(),
            table_id=table_id,
        )
        call = functools.partial(call_unary, connection, methods.GET, request, pb.GetResponse)
        try:
            reply = await retried(attempts, call)
        except ArgumentInvalid as error:
            if _TOO_LARGE not in error.metadata or piece.num_rows == 1:
                raise
            pieces.appendleft(piece)
            rows_max = piece.num_rows // 2
            continue
        attempts.progress()
        encoded = codec.encode_array(piece)
        buckets = set(buckets_of(encoded, table.buckets).tolist())
        collected.add(reply, encoded, buckets, all_named=isinstance(as_of, Mapping))
    absent = pa.array(~np.array(collected.found, np.bool_))
    states = {index: collected.states[index] for index in sorted(collected.read)}
    return GetResult(
        rows=pa.concat_tables(collected.tables),
        found=tuple(collected.found),
        missing=wanted.filter(absent),
        log_offsets={index: state.log_offset for index, state in states.items()},
        histories={index: state.history for index, state in states.items()},
    )


def _states_asked(
    table: TableDescription, as_of: int | Mapping[int, int] | None, histories: Mapping[int, bytes]
) -> dict[int, pb.BucketState]:
    """What the buckets are to be read as of.

    Raises:
        ArgumentInvalid: It makes no sense.
    """
    if as_of is None:
        if histories:
            raise ArgumentInvalid("histories goes with as_of; say what offsets they are of")
        return {}
    offsets = offsets_by_bucket(as_of, table.buckets, "as_of")
    return {
        bucket: pb.BucketState(bucket=bucket, log_offset=offset, history=histories.get(bucket, b""))
        for bucket, offset in offsets.items()
    }
