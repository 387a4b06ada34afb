"""Judgements over the history of a run, each by its name. They know the model and what consumers saw, and no code.

docs/simulation.md lists what each of them holds a run to.

What short calls are held to is in `bench.simulation.visitors`.

`cursor` has a snapshot for each page, so it is not held to be isolated: its rows must have existed while it ran, and
those that did not change meanwhile must be there. What tails are held to is in `bench.simulation.tail_validators`, what
a reader group is held to in `bench.simulation.group_validators`, and transactions in
`bench.simulation.transaction_validators`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bench.simulation.tail_validators import judge_tail
from bench.simulation.transaction_validators import judge_versions
from scanner import ScanMode
from scanner.data.digest import checksum
from scanner.data.keys import KeyCodec

if TYPE_CHECKING:
    from bench.simulation.history import History, ScanRecord, WriteRecord
    from bench.simulation.model import Model, ModelRow
    from bench.simulation.tables import Key, Row
    from bench.simulation.visitors import Lookup
    from scanner.data.keys import KeyRange

ROW_MESSAGE_OVERHEAD_BYTES: Final = 2_500
"""At most what a batch of one row is longer than its stored row: fields, token with the key, Arrow's envelope."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that must not be."""

    validator: str
    who: str
    detail: str

    def __str__(self) -> str:
        return f"{self.validator}: {self.who}: {self.detail}"


def judge(history: History, model: Model, models: Mapping[int, Model] | None = None) -> list[Violation]:
    """All violations of a run.

    Args:
        history: Of it.
        model: Of its table.
        models: By id, of all tables; None: there is one.
    """
    scans = _Scans(model)
    found = [found for scan in history.scans if scan.task.tail is None for found in scans.judge(scan)]
    found += [
        Violation(name, scan.who, f"{detail} ({_describe(scan)})")
        for scan in history.scans
        if scan.task.tail is not None
        for name, detail in (*judge_tail(scan, model), *scans.judge_course(scan))
    ]
    history.counts["torn cursors"] += scans.torn_cursors
    return [
        *found,
        *(found for write in history.writes for found in _durable(write, model)),
        *_once(model),
        *(found for lookup in history.lookups for found in _told_for_ever(lookup, models or {})),
        *_group(history, model),
        *(Violation("transacted", who, detail) for who, detail in judge_versions(history, model)),
        *(
            Violation("released", "server", f"{count} {what} left")
            for what, count in history.left.items()
            if count
        ),
        *(Violation("foreseen", "log", message) for message in history.logged),
        *(Violation("live", who, "did not come to an end") for who in history.stuck),
    ]


def _group(history: History, model: Model) -> Iterator[Violation]:
    """What is wrong with the reader group, if there is one."""
    group, failed = history.group, history.group_failed
    for each in failed:
        if not each.excused:
            yield Violation("justified", each.who, f"{type(each.error).__name__}: {each.error}")
    yield from (Violation(*each) for each in history.found)
    if not (group.written or group.delivered):
        return
    # Where a reader has failed for a reason the group ends where it stood; else it reads everything.
    ends = {
        bucket: (group.position(bucket) or 0) if failed else model.end(bucket)
        for bucket in range(model.rows.description.buckets)
    }
    yield from (Violation(name, "group", detail) for name, detail in group.violations(ends))


def _durable(write: WriteRecord, model: Model) -> Iterator[Violation]:
    ranged = {bucket for bucket, _, _ in write.ranges}
    for key, row in write.rows.items():
        if model.bucket_of(key) in ranged:
            continue
        if not model.may_have_changed_nothing(key, row, write.began_s, write.ended_s):
            yield Violation("durable", write.who, f"{key} was not changed, acknowledged was {row}")
    for bucket, _, end in write.ranges:
        state = {row.key: row.cells for row in model.state(bucket, end)}
        for key, row in write.rows.items():
            if model.bucket_of(key) == bucket and state.get(key) != row:
                found = f"bucket {bucket} has {state.get(key)} at {end}, acknowledged was {row}"
                yield Violation("durable", write.who, found)


def _told_for_ever(lookup: Lookup, models: Mapping[int, Model]) -> Iterator[Violation]:
    """What was told of a time holds for ever: nothing that is committed later is before it."""
    model = models.get(lookup.table_id)
    wanted = 0 if model is None else model.offset_at(lookup.bucket, lookup.time_us)
    if lookup.at_offset != max(wanted, lookup.start_offset):
        where = f"table {lookup.table_id}, bucket {lookup.bucket}"
        found = f"{where}: {lookup.time_us} was said to be at {lookup.at_offset}, and is at {wanted}"
        yield Violation("reliable", lookup.who, found)


def _once(model: Model) -> Iterator[Violation]:
    """Every row has a tag of its own: it is written once, however often its request was sent."""
    for bucket in range(model.rows.description.buckets):
        written = Counter(
            row for commit in model.commits(bucket) for _, row in commit.mutations if row is not None
        )
        for row, times in written.items():
            if times > 1:
                yield Violation("once", "writers", f"bucket {bucket} has written {row!r} {times} times")


class _Scans:
    """Judges scans.

    Args:
        model: Of the run.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._keys = KeyCodec(model.rows.description)
        self.torn_cursors = 0
        """Scans of model `cursor` that showed no single state: what it cannot promise, and here is seen not to."""

    def judge(self, scan: ScanRecord) -> Iterator[Violation]:
        """All that is wrong with one scan."""
        for name, detail in (*self._judge_rows(scan), *self.judge_course(scan)):
            yield Violation(name, scan.who, f"{detail} ({_describe(scan)})")

    def judge_course(self, scan: ScanRecord) -> Iterator[tuple[str, str]]:
        """What is wrong with how a scan went, whatever its rows are."""
        yield from scan.found
        yield from self._bounded(scan)
        yield from self._skipped(scan)
        if scan.error is not None and not scan.excused:
            yield "justified", f"{type(scan.error).__name__}: {scan.error}"

    def _judge_rows(self, scan: ScanRecord) -> Iterator[tuple[str, str]]:
        parts = self._parts(scan)
        if parts is None:
            yield "isolated", "a row is of no bucket: nobody wrote such a key or tag"
            return
        total = 0
        for bucket, told in scan.buckets.items():
            rows = parts.pop(bucket, [])
            if told.log_offset is None:
                if rows or (scan.ended and scan.task.row_limit is None):
                    yield "isolated", f"bucket {bucket} was scanned, and at no log offset"
                continue
            if scan.task.mode is ScanMode.CURSOR:
                yield from self._cursor(scan, bucket, rows)
                continue
            if scan.promised.get(bucket, told.log_offset) != told.log_offset:
                yield "isolated", f"bucket {bucket} was promised as of {scan.promised[bucket]}"
            if told.log_offset not in self._model.offsets(bucket):
                yield "isolated", f"bucket {bucket}: log offset {told.log_offset} is inside a commit"
                continue
            total += len(self._expected(scan, bucket, told.log_offset))
            yield from self._bucket(scan, bucket, told.log_offset, rows)
        if parts:
            yield "isolated", f"rows of buckets {sorted(parts)}, which were not scanned"
        limit = scan.task.row_limit
        if not scan.ended or limit is None or scan.task.mode is ScanMode.CURSOR:
            return
        # At the limit a scan is over, whatever buckets have not said yet what they have.
        if len(scan.rows) > limit or (len(scan.rows) < limit and len(scan.rows) != total):
            yield "complete", f"{len(scan.rows)} rows, asked for {limit} of {total}"

    def _parts(self, scan: ScanRecord) -> dict[int, list[Row]] | None:
        """The rows of each bucket, in order of arrival; None if one has none."""
        if len(scan.buckets) == 1:
            return {next(iter(scan.buckets)): scan.rows}
        parts: dict[int, list[Row]] = {}
        identify = self._identifier(scan)
        for row in scan.rows:
            key = identify(row)
            if key is None:
                return None
            bucket = self._model.bucket_of(key)
            if bucket is None:
                return None
            parts.setdefault(bucket, []).append(row)
        return parts

    def _identifier(self, scan: ScanRecord) -> Callable[[Row], Key | None]:
        """Tells a delivered row's key, from its key columns or its tag."""
        columns = scan.columns(self._model.rows)
        names = self._model.rows.key_columns
        if set(names) <= set(columns):
            at = [columns.index(name) for name in names]
            return lambda row: tuple(row[position] for position in at)
        tag = columns.index("tag")
        return lambda row: self._model.key_of_tag(row[tag])

    def _expected(self, scan: ScanRecord, bucket: int, offset: int) -> list[ModelRow]:
        task = scan.task
        return self._model.matching(bucket, offset, task.filter, task.start, task.end)

    def _bucket(
        self, scan: ScanRecord, bucket: int, offset: int, rows: list[Row]
    ) -> Iterator[tuple[str, str]]:
        expected = self._expected(scan, bucket, offset)
        wanted = self._projected(scan, expected)
        where = f"bucket {bucket} as of {offset}"
        wrong = False
        if rows != wanted[: len(rows)]:
            wrong = True
            yield from self._differences(scan, wanted, rows, where)
        elif scan.ended and scan.task.row_limit is None and len(rows) < len(wanted):
            wrong = True
            yield "complete", f"{where}: {len(rows)} of {len(wanted)} rows, and the end"
        if wrong and scan.resumes:
            yield "resumable", f"{where}: after {scan.resumes} resumes the rows are not those of the model"
        if not wrong:
            yield from self._digest(scan, bucket, offset, expected, rows, where)

    def _projected(self, scan: ScanRecord, expected: list[ModelRow]) -> list[Row]:
        at = [self._model.rows.schema.get_field_index(name) for name in scan.columns(self._model.rows)]
        return [tuple(row.cells[position] for position in at) for row in expected]

    def _differences(
        self, scan: ScanRecord, wanted: list[Row], rows: list[Row], where: str
    ) -> Iterator[tuple[str, str]]:
        place = {row: at for at, row in enumerate(wanted)}
        foreign = [row for row in rows if row not in place]
        if foreign:
            yield "isolated", f"{where}: {len(foreign)} rows are not of this state, the first {foreign[0]}"
        keys = Counter(map(self._identifier(scan), rows))
        twice = [key for key, count in keys.items() if count > 1]
        if twice:
            yield "unique", f"{where}: {len(twice)} rows came twice, the first {twice[0]}"
        places = [place[row] for row in rows if row in place]
        if any(later < earlier for earlier, later in itertools.pairwise(places)):
            yield "ordered", f"{where}: rows are out of order"
        until = len(wanted) if scan.ended and scan.task.row_limit is None else max(places, default=-1) + 1
        missing = set(range(until)) - set(places)
        if missing:
            yield (
                "complete",
                f"{where}: {len(missing)} of {until} rows are missing, the first {wanted[min(missing)]}",
            )

    def _digest(
        self,
        scan: ScanRecord,
        bucket: int,
        offset: int,
        expected: list[ModelRow],
        rows: list[Row],
        where: str,
    ) -> Iterator[tuple[str, str]]:
        told = scan.buckets[bucket]
        if told.digest is None:
            return
        if told.reason == "LIMIT":
            # The scan of this bucket ended at the limit, of which a table scan may deliver a part.
            limit = scan.task.row_limit or 0
            last = expected[limit - 1].key if limit else None
        else:
            last = None
        covered = [
            row
            for row in self._model.in_range(bucket, offset, scan.task.start, scan.task.end)
            if self._is_in(row, told.key_range)
        ]
        if told.reason == "LIMIT":
            covered = [] if last is None else [row for row in covered if row.key <= last]
        digest = checksum(b"".join(row.stored for row in covered))
        if digest != told.digest:
            yield "resumable", f"{where}: digest {told.digest:#x}, must be {digest:#x} ({told.reason})"

    def _skipped(self, scan: ScanRecord) -> Iterator[tuple[str, str]]:
        """Rows of buckets that were left out: no row that they ever had may match."""
        task = scan.task
        for bucket in scan.skipped:
            matching = [
                row
                for row in self._model.ever(bucket)
                if self._model.is_between(row, task.start, task.end) and self._model.fulfils(row, task.filter)
            ]
            if matching:
                yield "complete", f"bucket {bucket} was skipped, and has had {matching[0]}"

    def _is_in(self, row: ModelRow, key_range: KeyRange) -> bool:
        key = self._keys.encode(row.key)
        return key_range.start <= key and (not key_range.end or key < key_range.end)

    def _bounded(self, scan: ScanRecord) -> Iterator[tuple[str, str]]:
        if not scan.overrun_bytes:
            return
        states = [self._model.ever(bucket) for bucket in scan.buckets]
        longest = max((len(row.stored) for rows in states for row in rows), default=0)
        if scan.overrun_bytes > longest + ROW_MESSAGE_OVERHEAD_BYTES:
            yield "bounded", f"{scan.overrun_bytes} bytes past the credit; the longest row has {longest}"

    def _cursor(self, scan: ScanRecord, bucket: int, rows: list[Row]) -> Iterator[tuple[str, str]]:
        first, last = self._model.offsets_between(bucket, scan.opened_at_s, scan.closed_at_s)
        states = [
            self._projected(scan, self._expected(scan, bucket, offset))
            for offset in self._model.offsets(bucket)
            if first <= offset <= last
        ]
        where = f"bucket {bucket} from {first} to {last}"
        if scan.ended and scan.task.row_limit is None and rows not in states:
            self.torn_cursors += 1
        existed = {row for state in states for row in state}
        foreign = [row for row in rows if row not in existed]
        if foreign:
            yield "isolated", f"{where}: {len(foreign)} rows never existed meanwhile, the first {foreign[0]}"
        identify = self._identifier(scan)
        keys = [identify(row) for row in rows]
        if len(set(keys)) < len(keys):
            yield "unique", f"{where}: {len(keys) - len(set(keys))} rows came twice"
        if any(later < earlier for earlier, later in itertools.pairwise(keys)):  # type: ignore[operator]
            yield "ordered", f"{where}: rows are out of order"
        if scan.ended and scan.task.row_limit is None:
            missing = set.intersection(*map(set, states)) - set(rows)
            if missing:
                yield "complete", f"{where}: {len(missing)} rows that did not change are missing"


def _describe(scan: ScanRecord) -> str:
    task = scan.task
    offsets: Mapping[int, int | None] = {bucket: told.log_offset for bucket, told in scan.buckets.items()}
    state = "ended" if scan.ended else "left" if scan.left else "failed"
    mode = task.mode.value if task.tail is None or task.mode.of_changes else task.tail.source.value
    return (
        f"{task.client.value} {mode}, {state}, offsets {offsets}, {len(scan.rows)} rows,"
        f" {scan.resumes} resumes"
    )
