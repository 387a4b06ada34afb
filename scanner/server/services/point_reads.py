"""`Get` of `weir.v1.Tables`: rows by their primary key, any number of keys in one call.

    keys      Arrow -> the key columns' exact values -> encoded keys -> one list per bucket
    states    per bucket, between two commits: what the bucket shows now, and the log offset that is asked for
    rows      per bucket, piece by piece: stored rows (`scanner.sources.lookup`) -> the columns asked for
    answer    in the order of the request: found or not, and the rows

Invariants:

1. The rows of one bucket are of one state, and the answer names it.
2. An answer holds every row that was found, or it is an error. What is too much is never cut off.
3. No call holds the event loop, or a bucket's commits, for longer than a piece of work takes.
4. What a call has open is closed when it ends, however it ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from scanner.data.digest import checksum
from scanner.data.keys import bucket_of
from scanner.errors import ArgumentInvalid, BucketNotFound, OffsetOutOfRange, ScannerError, TooManyScans
from scanner.proto.weir.v1 import tables_pb2 as pb
from scanner.server.auth.access import Right, authorize, principal_of
from scanner.server.fairness import pass_turn
from scanner.server.scan.resumes import require_history
from scanner.server.tables.writes import read_arrow_stream
from scanner.sources.lookup import Lookup, PastTooLarge, lost
from scanner.wire.arrow_ipc import encode_stream, require_unchanged
from scanner.wire.queries import meant_table_id, parse_request
from transport import StallReason

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from scanner.server.config import ScannerConfig
    from scanner.server.tables.bucket import ServedBucket
    from scanner.server.tables.catalog import Catalog, ServedTable
    from scanner.server.tables.log_pins import LogPin
    from scanner.storage.interface import BucketReader
    from transport import ServerStream

GET_TOO_LARGE = "get_too_large"
"""Key of an error's metadata: the request asked for too much at once; ask in parts."""

_AsOf: TypeAlias = Mapping[int, pb.BucketState]


class _OpenedAnew(Exception):
    """Storage was opened anew after a failed write, which closes what reads it."""


@dataclass(slots=True)
class _Opened:
    """One bucket's part of a call."""

    index: int
    bucket: ServedBucket
    reader: BucketReader
    log_offset: int
    """What is asked for; at most what `reader` shows."""
    history: bytes
    storage_openings: int
    """Of the bucket, when `reader` was opened."""
    pin: LogPin | None = None
    """Keeps the changes that have to be walked."""
    ended_by: ScannerError | None = None
    """Why the log was taken from the pin."""

    def end(self, error: ScannerError) -> None:
        """The log is not kept any more."""
        self.ended_by = error

    def require_open(self) -> None:
        """See that storage is not being closed, or opened anew: the event loop would wait for that as it reads.

        Raises:
            _OpenedAnew: It was, or is being, opened anew.
            ScannerError: The log was taken from the pin, or the bucket is retired.
        """
        if self.ended_by is not None:
            raise self.ended_by
        self.bucket.check_served()
        if self.bucket.storage_openings != self.storage_openings:
            raise _OpenedAnew

    def close(self) -> None:
        """Free what is held."""
        self.reader.close()
        self.bucket.point_reads -= 1
        if self.pin is not None:
            self.pin.release()


@dataclass(slots=True)
class _Found:
    """The rows found so far, in the order in which they were looked up."""

    columns: tuple[str, ...]
    bytes_max: int
    keys: int
    """Of the request."""
    batches: list[pa.RecordBatch] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    """Of each row: the number of its key in the request."""
    size: int = 0

    def add(self, rows: pa.RecordBatch, places: Sequence[int]) -> None:
        """Add a piece.

        Raises:
            ArgumentInvalid: It is too much, and not a single row.
        """
        self.batches.append(rows)
        self.places += places
        self.size += rows.nbytes
        if self.size > self.bytes_max and self.keys > 1:
            raise _too_large(self.keys, self.bytes_max)

    def in_order(self) -> pa.RecordBatch:
        """The rows in the order of the request."""
        order = np.argsort(np.array(self.places, np.int64), kind="stable")
        return pa.concat_batches(self.batches).take(pa.array(order))


class GetService:
    """Serves `Get`.

    Args:
        catalog: Table catalog.
        config: Bounds of one call, and of how many there are.
    """

    def __init__(self, catalog: Catalog, config: ScannerConfig) -> None:
        self._catalog = catalog
        self._config = config
        self.running = 0
        """Calls that run."""

    async def get(self, request: Buffer, stream: ServerStream) -> bytes:
        """Answer with the rows of some keys.

        Raises:
            ScannerError: There is no such table, bucket, column or state, the keys are none of the table, or they or
                their rows are too much for one call.
        """
        # What is as long holds more keys than are allowed, or millions of messages, which take seconds to parse.
        octets, octets_max = memoryview(request).nbytes, self._config.unary_request_bytes_max
        if octets > octets_max:
            raise ArgumentInvalid(
                f"a request of {octets} octets is too large; {octets_max} are allowed; ask for fewer keys at once",
                metadata={GET_TOO_LARGE: str(octets)},
            )
        message = parse_request(pb.GetRequest, request)
        authorize(stream, Right.READ, message.table)
        if self.running >= self._config.gets_max:
            raise TooManyScans(
                f"{self.running} point reads run on this server, and no more are allowed; try again later"
            )
        self.running += 1
        try:
            with stream.blocked_on(StallReason.STORAGE):
                while True:
                    with suppress(_OpenedAnew):  # It is read again when it is open.
                        return await self._answer(message, principal_of(stream).name)
        finally:
            self.running -= 1

    async def _answer(self, message: pb.GetRequest, principal: str) -> bytes:
        table = await self._catalog.table(message.table, meant_table_id(message))
        table.description.project(message.columns)  # Refused before anything is read.
        as_of = _states_asked(message, table.description.buckets)
        keys = await self._encode(message, table)
        places = defaultdict[int, list[int]](list)
        for place, key in enumerate(keys):
            places[bucket_of(key, table.description.buckets)].append(place)
        await pass_turn()
        schema = table.schema
        columns = tuple(message.columns) or schema.description.column_names
        found = _Found(columns, self._config.get_bytes_max, len(keys))
        found.add(schema.row_codec.decode([], columns), [])
        states = []
        # One after the other: not all may be open at once.
        for index in sorted(places):
            with closing(await self._open(table, index, as_of.get(index), principal)) as part:
                await self._look_up(part, table, keys, sorted(places[index], key=keys.__getitem__), found)
            states.append(pb.BucketState(bucket=index, log_offset=part.log_offset, history=part.history))
        await pass_turn()
        rows = encode_stream(found.in_order())
        are_found = np.zeros(len(keys), np.bool_)
        are_found[found.places] = True
        return pb.GetResponse(
            found=are_found.tolist(),
            arrow_stream=rows,
            crc32c=checksum(rows),
            states=states,
            table_id=table.table_id,
        ).SerializeToString()

    async def _encode(self, message: pb.GetRequest, table: ServedTable) -> list[bytes]:
        """The keys asked for, encoded."""
        config, schema = self._config, table.schema
        require_unchanged(message.keys, message)
        # More of them than that are refused by their number: the client can ask in parts.
        batch = read_arrow_stream(message.keys, config.write_rows_max, config.write_decoded_bytes_max)
        if batch.num_rows > config.get_keys_max:
            raise ArgumentInvalid(
                f"{batch.num_rows} keys are asked for, and {config.get_keys_max} are allowed; ask in parts",
                metadata={GET_TOO_LARGE: str(batch.num_rows)},
            )
        keys: list[bytes] = []
        conformed = schema.description.conform_keys(batch, config.get_bytes_max)
        for start in range(0, conformed.num_rows, config.write_slice_rows_max):
            keys += schema.key_codec.encode_batch(conformed.slice(start, config.write_slice_rows_max))
            await pass_turn()
        return keys

    async def _open(
        self, table: ServedTable, index: int, asked: pb.BucketState | None, principal: str
    ) -> _Opened:
        bucket = await self._catalog.bucket(table, index)
        async with bucket.between_commits():
            storage = bucket.storage
            log_offset = storage.log_end if asked is None else asked.log_offset
            if asked is not None and asked.history:
                storage.lineage.require(asked.history, log_offset, storage.log_end, "this read")
            if log_offset > storage.log_end:
                raise OffsetOutOfRange(
                    f"the changelog of table {table.description.name!r} is [{storage.log_start}, {storage.log_end}):"
                    f" there is no state as of {log_offset} yet",
                    oldest_offset=storage.log_start,
                ).of_bucket(index)
            if log_offset < storage.log_start:
                raise lost(storage, log_offset).of_bucket(index)
            history = storage.lineage.history_of(log_offset)
            reader = storage.open_reader()
            opened = _Opened(index, bucket, reader, log_offset, history, bucket.storage_openings)
            bucket.point_reads += 1
            if log_offset < opened.reader.log_offset:
                opened.pin = bucket.pins.pin(log_offset, principal, "get", opened.end)
        return opened

    async def _look_up(
        self, part: _Opened, table: ServedTable, keys: Sequence[bytes], places: list[int], found: _Found
    ) -> None:
        """Add what a bucket has of the keys at `places`."""
        wanted = [keys[place] for place in places]
        storage = part.bucket.storage
        lookup = Lookup(storage, part.reader, wanted, part.log_offset, self._config.get_bytes_max)
        pieces, at = lookup.pieces(), 0
        while True:
            part.require_open()
            try:
                piece = next(pieces, None)
            except PastTooLarge:
                raise _too_large(len(keys), self._config.get_bytes_max) from None
            if piece is None:
                return
            stored = [row for row in piece if row is not None]
            if stored:
                members = [place for place, row in zip(places[at:], piece, strict=False) if row is not None]
                found.add(table.schema.row_codec.decode(stored, found.columns), members)
            at += len(piece)
            await pass_turn()


def _states_asked(message: pb.GetRequest, buckets: int) -> _AsOf:
    """What the request reads buckets as of.

    Raises:
        BucketNotFound: It names a bucket that the table has not.
        ArgumentInvalid: It names one twice, or what is no history.
    """
    asked: dict[int, pb.BucketState] = {}
    for state in message.as_of:
        if state.bucket >= buckets:
            raise BucketNotFound(
                f"table {message.table!r} has no bucket {state.bucket}; it has 0 to {buckets - 1}"
            )
        if state.bucket in asked:
            raise ArgumentInvalid(f"as_of says twice what bucket {state.bucket} is read as of; say it once")
        require_history(state.history)
        asked[state.bucket] = state
    return asked


def _too_large(keys: int, bytes_max: int) -> ArgumentInvalid:
    return ArgumentInvalid(
        f"the rows of the {keys} keys take more than {bytes_max} bytes; ask for fewer keys or columns at once",
        metadata={GET_TOO_LARGE: str(keys)},
    )
