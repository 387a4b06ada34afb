"""`MeasureLog` of `weir.v1.Tables`: how much of the changelogs there is behind some positions, without the rows.

Who plans reads of a bounded size (a micro-batch of Spark) asks this first: a commit is read whole or not at all, so a
bound can only be met at the end of one.

Invariants:

1. Range and histories of a bucket are of one moment, and the commits lie in that range, adjacent from the position on.
2. A call walks a bounded part of the changelogs, whatever is asked for; the first position gets a commit at least.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scanner.data.table import BUCKETS_MAX
from scanner.errors import ArgumentInvalid, OffsetOutOfRange
from scanner.proto.weir.v1 import tables_pb2 as pb
from scanner.server.auth.access import Right, authorize
from scanner.server.fairness import pass_turn, pass_turn_among
from scanner.server.log.bounds import require_entry_end, said_of_bucket
from scanner.server.scan.resumes import require_history
from scanner.wire.queries import meant_table_id, parse_request

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from scanner.server.tables.catalog import Catalog, ServedTable
    from scanner.storage.interface import Bucket, EntrySize
    from transport import ServerStream

COMMITS_MAX: Final = 65_536
"""That one call measures: its answer stays below the 4 MiB that gRPC libraries take."""
WALK_BYTES_MAX: Final = 256 * 1024 * 1024
"""Stored rows of what one call measures; what is read for that are the chunks, packed."""
_STEP_ENTRIES: Final = 1024
_STEP_BYTES: Final = 4 * 1024 * 1024
"""Of a piece, after which the others have their turn."""
_UNBOUNDED: Final = 1 << 63


@dataclass(slots=True)
class _Budget:
    """What a call may still measure."""

    commits: int
    walk_bytes: int

    @property
    def spent(self) -> bool:
        return self.commits <= 0 or self.walk_bytes <= 0


class MeasureService:
    """Serves `MeasureLog`.

    Args:
        catalog: Table catalog.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    async def measure(self, request: Buffer, stream: ServerStream) -> bytes:
        """Answer with the range and the histories of each bucket that is named, and with the commits behind a position.

        Raises:
            TableNotFound, BucketNotFound: There is nothing to measure.
            ArgumentInvalid: A bucket is named twice, or more than a table has, or a position is inside a commit, or its
                history is none.
            OffsetOutOfRange: A position is past the end of the changelog.
            SnapshotLost: A position is of another history of the bucket.
            DataCorrupted: The changelog is damaged there.
        """
        message = parse_request(pb.MeasureLogRequest, request)
        authorize(stream, Right.DESCRIBE, message.table)
        if len(message.positions) > BUCKETS_MAX:
            raise ArgumentInvalid(
                f"a table has {BUCKETS_MAX} buckets at most, and {len(message.positions)} are to be measured"
            )
        buckets = [position.bucket for position in message.positions]
        if len(set(buckets)) < len(buckets):
            raise ArgumentInvalid("a bucket is measured from one position at a time")
        for position in message.positions:
            require_history(position.history)
        table = await self._catalog.table(message.table, meant_table_id(message))
        budget = _Budget(COMMITS_MAX, WALK_BYTES_MAX)
        logs = []
        for number, position in enumerate(message.positions):
            logs.append(await self._measure_bucket(table, position, budget))
            await pass_turn_among(number)
        return pb.MeasureLogResponse(logs=logs, table_id=table.table_id).SerializeToString()

    async def _measure_bucket(
        self, table: ServedTable, position: pb.MeasurePosition, budget: _Budget
    ) -> pb.MeasuredLog:
        bucket = await self._catalog.bucket(table, position.bucket)
        async with bucket.beside_commits():
            storage = bucket.storage
            end = storage.log_end
            with said_of_bucket(position.bucket):
                _require_position(storage, position)
            measured = pb.MeasuredLog(
                bucket=position.bucket,
                start_offset=storage.log_start,
                end_offset=end,
                histories=_histories(storage, position.offset, end),
            )
        walk = _Walk(position, end)
        if position.offset < measured.start_offset:
            return measured
        while not (walk.done or budget.spent):
            async with bucket.beside_commits():
                with said_of_bucket(position.bucket):
                    sizes = bucket.storage.measure_entries(
                        walk.at, min(_STEP_ENTRIES, walk.commits_left, budget.commits), walk.step_bytes
                    )
            walk.take(sizes, measured)
            budget.commits -= len(sizes)
            budget.walk_bytes -= sum(each.row_bytes for each in sizes)
            await pass_turn()
        return measured


class _Walk:
    """Where the measuring of a bucket is, and when it is done."""

    def __init__(self, position: pb.MeasurePosition, end: int) -> None:
        self.at = position.offset
        self.commits_left = position.commits_max
        self._end = end
        self._start = position.offset
        self._rows_max = position.rows_max if position.HasField("rows_max") else _UNBOUNDED
        self._bytes_left = position.bytes_max if position.HasField("bytes_max") else _UNBOUNDED

    @property
    def done(self) -> bool:
        """Whether the end of the changelog or a bound is reached."""
        rows = self.at - self._start
        return (
            self.at >= self._end or self.commits_left <= 0 or rows >= self._rows_max or self._bytes_left <= 0
        )

    @property
    def step_bytes(self) -> int:
        """Stored bytes of the next piece."""
        return min(_STEP_BYTES, self._bytes_left)

    def take(self, sizes: list[EntrySize], measured: pb.MeasuredLog) -> None:
        """Note the next entries, as far as they are wanted."""
        for each in sizes:
            if self.done:
                return
            measured.commit_ends.append(each.end)
            measured.commit_bytes.append(each.row_bytes)
            measured.commit_timestamps_us.append(each.timestamp_us)
            self.at = each.end
            self.commits_left -= 1
            self._bytes_left -= each.row_bytes


def _require_position(storage: Bucket, position: pb.MeasurePosition) -> None:
    """Refuse a position that cannot be one of this bucket."""
    offset, end = position.offset, storage.log_end
    if position.history:
        storage.lineage.require(position.history, offset, end, "the position")
    if offset > end:
        raise OffsetOutOfRange(
            f"the position {offset} is past the end of the changelog, {end}", oldest_offset=storage.log_start
        )
    if offset >= storage.log_start:
        require_entry_end(storage, offset, "the position")


def _histories(storage: Bucket, start: int, end: int) -> list[pb.LogHistory]:
    """Those that the offsets of [start, end] are of."""
    histories = storage.lineage.histories
    ends = [each.start for each in histories[1:]] + [end]
    return [
        pb.LogHistory(history=each.history_id, start_offset=each.start)
        for each, history_end in zip(histories, ends, strict=False)
        if each.start < end and history_end >= start
    ]
