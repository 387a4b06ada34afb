"""A table's changelogs as the planner asks the server about them: where places are, and how much there is to read.

Every position that is handed out goes with the history of its bucket, and every one that comes back, from a checkpoint,
is held against it: a table that was restored from a copy is refused (SNAPSHOT_LOST), not read on.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scanner import ArgumentInvalid, OffsetOutOfRange, SnapshotLost
from spark_source.errors import SourceDataLossError, SourceError, SourceOptionError
from spark_source.stream.admission import Admission, Commit, Pending
from spark_source.stream.offsets import Position, Positions
from spark_source.stream.options import COUNT_MAX, EARLIEST, LATEST, AtOffsets, AtTime, Full, Limits, Place

if TYPE_CHECKING:
    from scanner import MeasuredLog
    from scanner.sync import Table

_COMMITS_PER_CALL: Final = 16_384
_logger = logging.getLogger("weir.spark")


@dataclass(frozen=True, slots=True)
class Behind:
    """What there is behind some positions."""

    kept: dict[int, Position]
    """The positions; those whose changes are not kept any more moved to the oldest ones that are."""
    logs: Mapping[int, MeasuredLog]
    """By bucket, the range and the histories of its changelog."""

    @property
    def ends(self) -> dict[int, Position]:
        """Where the logs end."""
        return {bucket: self.position(bucket, log.end_offset) for bucket, log in self.logs.items()}

    @property
    def changes(self) -> int:
        """How many changes there are from the positions on."""
        return sum(self.logs[bucket].end_offset - position.offset for bucket, position in self.kept.items())

    def position(self, bucket: int, offset: int) -> Position:
        """An offset behind the position of a bucket, with its history."""
        kept = self.kept[bucket]
        # What is not read on keeps the history that it had.
        return kept if offset == kept.offset else _position(self.logs[bucket], offset)


class TableLogs:
    """The changelogs of one table.

    Args:
        table: The table.
        fail_on_data_loss: What to do where changes are wanted that are not kept any more: fail, or go on from the
            oldest ones with a warning.
    """

    def __init__(self, table: Table, *, fail_on_data_loss: bool) -> None:
        self._table = table
        self._fail_on_data_loss = fail_on_data_loss

    def ends(self) -> dict[int, Position]:
        """Where the logs end.

        Raises:
            ScannerError: The table is gone, or the server cannot be asked.
        """
        return {bucket: _position(log, log.end_offset) for bucket, log in sorted(self._ranges().items())}

    def start(self, place: Place) -> dict[int, Position]:
        """Where a read that has not begun yet begins: as `place` of option ``startingOffsets``.

        Raises:
            SourceDataLossError: Likewise; or what was committed since the time may not be kept.
        """
        if isinstance(place, AtTime):
            return self._at_time("startingOffsets", place, begins=True)
        return self.place("startingOffsets", place)

    def place(self, option: str, place: Place) -> dict[int, Position]:
        """Where a place is in every bucket; what is kept behind a time is not looked at.

        Args:
            option: The option that names it, for messages.
            place: Where.

        Raises:
            SourceOptionError: An offset is inside a commit, past the end, or of a bucket that is not there; a bucket
                has none; or the time is in the future.
            SourceDataLossError: An offset is not kept any more.
            ScannerError: The server cannot be asked.
        """
        if isinstance(place, Full):
            return self.ends()
        if isinstance(place, AtTime):
            return self._at_time(option, place, begins=False)
        return self._at_offsets(option, place)

    def behind(self, positions: Positions, ends: Mapping[int, int] | None = None) -> Behind:
        """What is behind some positions, after a check that it is kept, and of their histories.

        Args:
            positions: Where a read begins.
            ends: Where it ends, for messages; None: nowhere yet.

        Raises:
            SourceDataLossError: Changes are not kept any more.
            SnapshotLost: A bucket has another history: it was restored from a copy.
            ScannerError: The server cannot be asked.

        Waits:
            For one call.
        """
        logs = self._table.measure_log(
            {bucket: position.offset for bucket, position in positions.items()},
            histories={bucket: position.history for bucket, position in positions.items()},
        )
        return Behind(self._kept(positions, ends or {}, logs), {log.bucket: log for log in logs})

    def admit(self, behind: Behind, until: Mapping[int, int] | None, limits: Limits) -> dict[int, Position]:
        """Where the next micro-batch ends.

        Args:
            behind: What there is behind its start.
            until: By bucket, where it ends at the latest; None: where the logs end.
            limits: How much it may hold.

        Raises:
            ScannerError: The server cannot be asked.

        Waits:
            For as many calls as it takes to measure the commits that are admitted; without a maximum, for none.
        """
        while True:
            self._require_ends(behind, until)
            pending = {}
            for bucket, position in behind.kept.items():
                end = behind.logs[bucket].end_offset if until is None else until[bucket]
                # What a query is to stop at may be behind what is still kept.
                pending[bucket] = Pending(position.offset, max(position.offset, end))
            if limits.unlimited:
                ends = {bucket: each.until for bucket, each in pending.items()}
                return {bucket: behind.position(bucket, offset) for bucket, offset in ends.items()}
            admission = Admission(pending, limits)
            if self._settle(admission):
                return {bucket: behind.position(bucket, offset) for bucket, offset in admission.ends.items()}
            before, behind = behind.kept, self.behind(behind.kept)
            if behind.kept == before:
                bucket, offset = next(iter(admission.short.items()))
                raise SourceError(
                    f"table {self._table.name}, bucket {bucket}: the server measures no commit at offset {offset},"
                    f" though it says that its changelog goes on to {behind.logs[bucket].end_offset}"
                )

    def _settle(self, admission: Admission) -> bool:
        """Measure until the ends are settled; False: they cannot be, since what is to be measured is gone."""
        factor = 1
        while not admission.settle():
            if not self._measure(admission, factor):
                return False
            factor *= 2
        return True

    def _measure(self, admission: Admission, factor: int) -> bool:
        """Measure buckets that are short, a multiple of their part of what may go in; False: retention was faster."""
        short, part = admission.short, admission.part
        try:
            logs = self._table.measure_log(
                short,
                commits_max=_COMMITS_PER_CALL,
                rows_max=_times(part.rows_max, factor),
                bytes_max=_times(part.bytes_max, factor),
            )
        except OffsetOutOfRange:
            return False
        for log in logs:
            if log.start_offset > short[log.bucket]:
                return False
            admission.add(
                log.bucket, map(Commit, log.commit_ends, log.commit_bytes, log.commit_timestamps_us)
            )
        # A call measures only so much: some buckets may have to wait for the next one.
        return any(log.commit_ends for log in logs)

    def _require_ends(self, behind: Behind, until: Mapping[int, int] | None) -> None:
        """See that the logs still reach to where the run of the query is to end."""
        for bucket, offset in (until or {}).items():
            end = behind.logs[bucket].end_offset
            if end < offset:
                raise SnapshotLost(
                    f"table {self._table.name}, bucket {bucket}: the changelog ends at offset {end}, and it ended at"
                    f" {offset} when this run of the query began: the server has lost changes; begin a new query, with"
                    " a checkpoint of its own"
                )

    def _ranges(self) -> dict[int, MeasuredLog]:
        ends = {each.bucket: each.start_offset for each in self._table.offsets()}
        return {log.bucket: log for log in self._table.measure_log(ends)}

    def _positions(self, offsets: Mapping[int, int]) -> dict[int, Position]:
        logs = {log.bucket: log for log in self._table.measure_log(offsets)}
        return {bucket: _position(logs[bucket], offset) for bucket, offset in sorted(offsets.items())}

    def _kept(
        self, positions: Positions, ends: Mapping[int, int], logs: list[MeasuredLog]
    ) -> dict[int, Position]:
        kept = dict(positions)
        for log in logs:
            wanted = positions[log.bucket].offset
            if wanted >= log.start_offset:
                continue
            self._lose(
                SourceDataLossError(
                    self._table.name, log.bucket, wanted, ends.get(log.bucket), log.start_offset
                )
            )
            kept[log.bucket] = _position(log, log.start_offset)
        return kept

    def _lose(self, loss: SourceDataLossError) -> None:
        """Fail for it, or warn of it, as the options say."""
        if self._fail_on_data_loss:
            raise loss
        warn_of_loss(loss)

    def _at_time(self, option: str, place: AtTime, *, begins: bool) -> dict[int, Position]:
        try:
            found = self._table.offsets(at=place.time)
        except ArgumentInvalid as error:
            option, time = option.replace("Offsets", "Timestamp"), place.time.isoformat()
            raise SourceOptionError(
                option, time, f"option {option!r} cannot be {time}: {error.message}"
            ) from None
        for each in found:
            if begins and not each.is_kept:
                self._lose(
                    SourceDataLossError(self._table.name, each.bucket, place.time, None, each.start_offset)
                )
        return self._positions({each.bucket: each.at_offset for each in found})

    def _at_offsets(self, option: str, place: AtOffsets) -> dict[int, Position]:
        ranges = self._ranges()
        named = (
            dict.fromkeys(ranges, place.offsets) if isinstance(place.offsets, int) else dict(place.offsets)
        )
        given = json.dumps(named)
        if named.keys() != ranges.keys():
            raise SourceOptionError(
                option,
                given,
                f"option {option!r} cannot be {given}: table {self._table.name} has the buckets 0 to {len(ranges) - 1},"
                " and each of them needs an offset",
            )
        offsets = {}
        for bucket, offset in sorted(named.items()):
            log = ranges[bucket]
            offsets[bucket] = {LATEST: log.end_offset, EARLIEST: log.start_offset}.get(offset, offset)
        try:
            found = {log.bucket: log for log in self._table.measure_log(offsets)}
        except (ArgumentInvalid, OffsetOutOfRange) as error:
            raise SourceOptionError(
                option, given, f"option {option!r} cannot be {given}: {error.message}"
            ) from None
        positions = {bucket: _position(found[bucket], offset) for bucket, offset in offsets.items()}
        return self._kept(positions, {}, list(found.values()))


def warn_of_loss(loss: SourceDataLossError) -> None:
    """Log which changes a read goes on without."""
    oldest = loss.oldest if loss.end is None else min(loss.oldest, loss.end)
    what = f"[{loss.start}, {oldest})"
    if not isinstance(loss.start, int):
        what = f"since {loss.start.isoformat()}, if there were any before offset {oldest},"
    _logger.warning(
        "table %s, bucket %s: the changes %s are not kept any more and are skipped",
        loss.table,
        loss.bucket,
        what,
    )


def _position(log: MeasuredLog, offset: int) -> Position:
    return Position(offset, log.history_of(offset))


def _times(limit: int | None, factor: int) -> int | None:
    return None if limit is None else min(limit * factor, COUNT_MAX)
