"""How much of the changelogs there is behind some positions, as a client asks it: what `Table.measure_log` returns."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scanner.client.arguments import UINT32_MAX, UINT64_MAX, bucket_number, require_kind, whole
from scanner.client.calls import call_unary
from scanner.errors import DataCorrupted, TableNotFound
from scanner.proto.weir.v1 import tables_pb2 as pb
from scanner.wire import methods

if TYPE_CHECKING:
    from scanner.client.connection import Connection

NO_HISTORY: Final = bytes(16)
"""Of offset 0, which is the same in every history: nothing is in front of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredLog:
    """The changelog of one bucket, [start_offset, end_offset), and the commits behind a position in it."""

    bucket: int
    """Its number."""
    start_offset: int
    """The oldest offset still available."""
    end_offset: int
    """What the next change will have."""
    commit_ends: tuple[int, ...]
    """Of each commit, in order, one past the offset of its last change; the first one begins at the position."""
    commit_bytes: tuple[int, ...]
    """Of each, the stored bytes of its rows, those before and after a change."""
    commit_timestamps_us: tuple[int, ...]
    """Of each, its time in microseconds since 1970 UTC; ascending."""
    history_starts: tuple[int, ...]
    """Where the histories of the bucket begin that `history_of` tells, ascending."""
    histories: tuple[bytes, ...]
    """They themselves, 16 octets each."""

    def history_of(self, offset: int) -> bytes:
        """The history of the bucket that an offset is of, by which a restored copy is told from it.

        Args:
            offset: From the position to `end_offset`.
        """
        index = bisect_left(self.history_starts, offset)
        return self.histories[index - 1] if index else NO_HISTORY


async def measure_log(
    connection: Connection,
    table: str,
    table_id: int,
    positions: Mapping[int, int],
    histories: Mapping[int, bytes],
    commits_max: int,
    rows_max: int | None,
    bytes_max: int | None,
) -> list[MeasuredLog]:
    """See `scanner.Table.measure_log`."""
    require_kind("positions", positions, Mapping)
    offsets = {bucket_number(table, bucket): offset for bucket, offset in positions.items()}
    request = pb.MeasureLogRequest(
        table=table,
        table_id=table_id,
        positions=[
            pb.MeasurePosition(
                bucket=bucket,
                offset=whole(offset, f"the position of bucket {bucket}", 0, UINT64_MAX),
                history=histories.get(bucket, b""),
                commits_max=whole(commits_max, "commits_max", 0, UINT32_MAX),
                rows_max=None if rows_max is None else whole(rows_max, "rows_max", 1, UINT64_MAX),
                bytes_max=None if bytes_max is None else whole(bytes_max, "bytes_max", 1, UINT64_MAX),
            )
            for bucket, offset in sorted(offsets.items())
        ],
    )
    reply = await call_unary(connection, methods.MEASURE_LOG, request, pb.MeasureLogResponse)
    if reply.table_id != table_id:
        raise TableNotFound(f"table {table!r} was dropped and created anew since: its changes are others")
    measured = [each.bucket for each in reply.logs]
    if measured != sorted(offsets):
        raise DataCorrupted(f"{table}: buckets {sorted(offsets)} were to be measured, and {measured} were")
    return [
        MeasuredLog(
            bucket=each.bucket,
            start_offset=each.start_offset,
            end_offset=each.end_offset,
            commit_ends=tuple(each.commit_ends),
            commit_bytes=tuple(each.commit_bytes),
            commit_timestamps_us=tuple(each.commit_timestamps_us),
            history_starts=tuple(history.start_offset for history in each.histories),
            histories=tuple(history.history for history in each.histories),
        )
        for each in reply.logs
    ]
