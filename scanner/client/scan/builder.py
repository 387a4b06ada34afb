"""The builder of a scan's plan, which both clients share.

Pure: no trio, no transport, no clock. Everything that the table's description can refuse is refused here, at the
call that asks for it; what only the server can know (whether it has a source) is left to the server.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, Self, TypeAlias, TypeVar

import pyarrow as pa

from scanner.client.arguments import (
    TEXT_OR_OCTETS,
    UINT32_MAX,
    UINT64_MAX,
    histories_by_bucket,
    is_number,
    is_time,
    offsets_given,
    require_text,
    whole,
    whole_number,
)
from scanner.client.scan.credit import AUTO
from scanner.client.scan.expressions import Condition, column_not_found, parse_where
from scanner.client.scan.key_pruning import ranges_to_read
from scanner.client.scan.plan import EARLIEST, END, LATEST, LogStart, LogStop, ScanMode, ScanPlan, ScanSource
from scanner.client.scan.resume_position import read_position
from scanner.data.changes import CHANGE_COLUMN_NAMES
from scanner.data.filters import Filter, Predicate
from scanner.data.key_ranges import intersection
from scanner.data.keys import KeyCodec, KeyRange, prefix_end
from scanner.data.table import TableDescription
from scanner.errors import ArgumentInvalid, BucketNotFound

MAX_WAIT_S_MAX = 3600.0
_FIRST_KEY: Final = b"\x00"
"""Before every key, or equal to it: no key is empty."""

_E = TypeVar("_E", bound=enum.Enum)

KeyPrefix: TypeAlias = Sequence[object] | Mapping[str, object]
"""Values of the first key columns: in key order, or by name."""


class LeaseLike(Protocol):
    """A lease of either client."""

    @property
    def id(self) -> str:
        """Its id."""


class ScanBuilder:
    """Immutable builder of a `ScanPlan`: every method returns a new scan and leaves this one as it was."""

    def __init__(self, plan: ScanPlan) -> None:
        self._plan = plan

    def __repr__(self) -> str:
        plan = self._plan
        columns = ", ".join(plan.columns) or "all columns"
        return f"<{type(self).__name__} of {plan.table.name}: {plan.source.value} by {plan.mode.value}, {columns}>"

    @property
    def plan(self) -> ScanPlan:
        """What this scan asks for."""
        return self._plan

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches that this scan yields."""
        return self._plan.schema

    @property
    def reads(self) -> dict[int, KeyRange]:
        """What the scan reads: by bucket, ascending, a range of keys. No row outside of it can match `where`.

        Conditions on the first columns of the primary key bound the range, and equality or `in` on all of them leaves
        only the buckets that the keys belong to; scans of changes read every bucket. Where no row can match, it is an
        empty range of one bucket.
        """
        return ranges_to_read(self._plan)

    def _derive(self, plan: ScanPlan) -> Self:
        raise NotImplementedError

    def _replace(self, **changes: object) -> Self:
        return self._derive(dataclasses.replace(self._plan, **changes))  # type: ignore[arg-type]

    def with_table_id(self, table_id: int) -> Self:
        """Read this table alone: if it was dropped and its name given to another, the scan fails with TableNotFound.

        The server looks when it opens each bucket, and again whenever a cut scan goes on.

        Args:
            table_id: As `Table.table_id` tells it, 0 or more.

        Raises:
            ArgumentInvalid: Out of range.
        """
        return self._replace(table_id=whole(table_id, "table id", 0, UINT64_MAX))

    def with_source(self, source: ScanSource | str) -> Self:
        """Read from `source` instead of `LIVE_KV`. A server refuses what it does not have when the scan is opened.

        Raises:
            ArgumentInvalid: No such source.
        """
        member = _member(ScanSource, source, "source")
        lease_id = self._plan.lease_id if member is ScanSource.SNAPSHOT else ""
        return self._replace(source=member, lease_id=lease_id)

    def start_at(self, start: LogStart) -> Self:
        """Where a scan of the changes begins (source LOG).

        Args:
            start: `"earliest"`, the default: with the oldest change that the log has. `"latest"`: with the next commit.
                A `datetime` (without a zone: UTC): with the first commit at or after it. A whole number: at this
                offset, of every bucket; a dict from bucket to offset: each at its own. Offsets are ends of commits, as
                `Batches.positions` and `Table.offsets` tell them.

        Raises:
            ArgumentInvalid: It is none of these, or negative, or of a bucket that the table does not have.
        """
        named = isinstance(start, str) and start in (EARLIEST, LATEST)
        if not (named or is_time(start) or whole_number(start) is not None or isinstance(start, Mapping)):
            raise ArgumentInvalid(
                f"start_at takes {EARLIEST!r}, {LATEST!r}, an offset or a datetime, not {start!r}"
            )
        if isinstance(start, str | datetime.datetime):
            return self._replace(start_at=start)
        return self._replace(start_at=offsets_given(start, self._plan.table.buckets, "start_at"))

    def stop_at(self, stop: LogStop) -> Self:
        """Where a scan of the changes ends (source LOG or HYBRID).

        Args:
            stop: None, the default: nowhere; it waits for the next commit. `"end"`: where each bucket's log ends when
                its scan is opened. A whole number, or a dict from bucket to offset: there, at a commit's end.

        Raises:
            ArgumentInvalid: It is none of these, or negative, or of a bucket that the table does not have.
        """
        if stop is None or (isinstance(stop, str) and stop == END):
            return self._replace(stop_at=stop)
        if isinstance(stop, str) or not (isinstance(stop, Mapping) or whole_number(stop) is not None):
            raise ArgumentInvalid(f"stop_at takes {END!r}, an offset or None, not {stop!r}")
        return self._replace(stop_at=offsets_given(stop, self._plan.table.buckets, "stop_at"))

    def with_whole_commits(self) -> Self:
        """Hand out all changes of a commit in one batch, with those of commits before it perhaps (LOG and HYBRID).

        So every batch of changes leads from the end of one commit to the end of another: an update's two changes are in
        one, and what is applied batch by batch shows states that the table had. What has come of a commit is kept until
        its end is there, beside the credit: up to 64 MiB for each bucket. The rows of a snapshot come as they are.
        """
        return self._replace(whole_commits=True)

    def with_lease(self, lease: str | LeaseLike) -> Self:
        """Read what a lease keeps (source SNAPSHOT): the same rows each time, for as long as the lease lives.

        Args:
            lease: What `acquire_lease` gave, or its id.

        Raises:
            ArgumentInvalid: The id is empty, or no Unicode text.
        """
        if not (isinstance(lease, str) or hasattr(lease, "id")):
            raise ArgumentInvalid(f"with_lease takes a lease or its id, not {lease!r}")
        lease_id = require_text("the id of the lease", lease if isinstance(lease, str) else lease.id)
        if not lease_id:
            raise ArgumentInvalid("the id of a lease is not empty")
        return self._replace(source=ScanSource.SNAPSHOT, lease_id=lease_id)

    def with_mode(self, mode: ScanMode | str) -> Self:
        """Let the rows travel by `"push"` (the default), or in pages that are pulled.

        The pull models are there to compare push with: `"session"` keeps an iterator at the server, `"token"` a
        snapshot; `"asof"` keeps nothing, and rebuilds the state of the first page from the changelog; `"cursor"` keeps
        nothing, and reads each page as of when it is asked for, so that a row which moves meanwhile may come twice
        or not at all. `"fetch"` pulls changes (source LOG) by long poll.

        Raises:
            ArgumentInvalid: No such mode.
        """
        return self._replace(mode=_member(ScanMode, mode, "mode"))

    def select(self, *columns: str) -> Self:
        """Deliver only these columns, in this order. The last call wins; without one, all columns come.

        Those of a change (`_change_type`, `_log_offset`, `_commit_timestamp`) can be named after `with_source` has
        chosen LOG or HYBRID.

        Raises:
            ColumnNotFound: The table has no such column.
            ArgumentInvalid: No column, or one twice.
        """
        if not columns:
            raise ArgumentInvalid("select needs at least one column")
        changes = self._plan.source.has_changes
        for name in columns:
            if not isinstance(name, str):
                raise ArgumentInvalid(f"select takes names, select('a', 'b'), not {name!r}")
            if not (changes and name in CHANGE_COLUMN_NAMES):
                self._require_column(name)
        if len(set(columns)) < len(columns):
            raise ArgumentInvalid(f"a column is selected twice: {', '.join(columns)}")
        return self._replace(columns=tuple(columns))

    def where(self, *conditions: Condition | str) -> Self:
        """Deliver only rows for which all conditions are true, those of earlier calls included.

        The server evaluates them. Nulls are as in SQL: a comparison with a null cell is never true, nor
        is its opposite; only `is_null()` finds it.

        Args:
            conditions: Made with `col(...)`, or text such as `"price > 5 or item is null"`; see `parse_where`.

        Raises:
            ColumnNotFound: The table has no such column.
            ArgumentInvalid: Something that is not a condition, text that cannot be read, or a value that does not fit
                its column.
        """
        added: list[Predicate] = []
        for given in conditions:
            condition = parse_where(given) if isinstance(given, str) else given
            if not isinstance(condition, Condition):
                raise ArgumentInvalid(f"where takes conditions like col('a') > 5, or text, not {condition!r}")
            for predicate in condition.predicates:
                for leaf in predicate.leaves():
                    self._require_column(leaf.column)
                added.append(predicate)
        # Refuses literals that do not fit their columns. Those of earlier calls do, and would be read in each call.
        Filter(added, self._plan.table.schema)
        return self._replace(predicates=(*self._plan.predicates, *added))

    def limit(self, rows: int) -> Self:
        """Stop after exactly `rows` rows, if there are as many; which ones is not defined.

        Args:
            rows: Rows of the whole table scan, >= 0.

        Raises:
            ArgumentInvalid: `rows` is negative or no whole number.
        """
        return self._replace(row_limit=whole(rows, "limit", 0, UINT64_MAX))

    def bucket(self, index: int) -> Self:
        """Scan only this bucket.

        Raises:
            BucketNotFound: The table has fewer buckets.
        """
        buckets = self._plan.table.buckets
        number = whole_number(index)
        if number is None or not 0 <= number < buckets:
            name = self._plan.table.name
            raise BucketNotFound(f"table {name} has buckets 0..{buckets - 1}, not {index!r}")
        return self._replace(bucket=number)

    def key_range(self, start: KeyPrefix | None = None, end: KeyPrefix | None = None) -> Self:
        """Scan only keys from `start` (inclusive) to `end` (exclusive), in primary key order.

        Both may name fewer columns than the key has: a prefix stands before every key that begins with it. The last
        call wins, over `key_prefix` and `within`, too; for what is in both, call `within` after it.

        Args:
            start: Values of the first key columns, as a tuple in key order or a dict; None: from the first key.
            end: Likewise; None: to the last key. An empty one stands before every key.

        Raises:
            ArgumentInvalid: Not a prefix of the primary key.
            KeyInvalid: A value does not fit its column.
        """
        before = self._encoded(end)
        if end is not None and not before:  # Every key begins with a prefix that has no values.
            before = _FIRST_KEY
        return self._replace(key_range=KeyRange(self._encoded(start), before))

    def key_prefix(self, prefix: KeyPrefix) -> Self:
        """Scan only keys that begin with these values. As `key_range`, it replaces a range that was set before.

        Raises:
            ArgumentInvalid: Not a prefix of the primary key.
            KeyInvalid: A value does not fit its column.
        """
        start = self._encoded(prefix)
        return self._replace(key_range=KeyRange(start, prefix_end(start) if start else b""))

    def within(self, key_range: KeyRange) -> Self:
        """Scan only keys of an encoded range, as `Table.split` gives them; of a key range set before, what is in both.

        Raises:
            ArgumentInvalid: It is no `KeyRange`.
        """
        if not (isinstance(key_range, KeyRange) and all(isinstance(each, bytes) for each in key_range)):
            raise ArgumentInvalid(
                f"within takes a range that a split gave, not {key_range!r}; see key_range()"
            )
        return self._replace(key_range=intersection(self._plan.key_range, key_range))

    def with_credit(self, credit_bytes: int | str) -> Self:
        """Let at most this many message bytes wait for the consumer, over all buckets (mode push).

        Args:
            credit_bytes: >= 1, or "auto", the default: it begins with 8 MiB (32 MiB over 8 buckets), grows to
                64 MiB at most while the server waits for credit and the consumer for rows, and shrinks again where
                the consumer does not need it. Each bucket has its share, at least one byte, and a server may go past
                a share by one row's message.

        Raises:
            ArgumentInvalid: Out of range, or another word.
        """
        if isinstance(credit_bytes, str):
            if credit_bytes != AUTO:
                raise ArgumentInvalid(f"credit is a number of bytes or {AUTO!r}, not {credit_bytes!r}")
            return self._replace(credit_bytes=None)
        return self._replace(credit_bytes=whole(credit_bytes, "credit", 1, 2**62))

    def with_page_depth(self, pages: int) -> Self:
        """Fetch up to `pages` pages per bucket ahead of the consumer (all modes but push).

        Args:
            pages: 0: ask for a page when the one before was consumed. 1, the default: ask as soon as one arrives.
                More: keep asking until this many wait. One request of a bucket is under way at a time in any case.

        Raises:
            ArgumentInvalid: Out of range.
        """
        return self._replace(page_depth=whole(pages, "page depth", 0, 1024))

    def with_page_bytes(self, page_bytes: int) -> Self:
        """Ask for pages of this size (all modes but push); the server clamps it to its cap.

        Args:
            page_bytes: >= 1; 4 MiB by default. Mode fetch: of each bucket in one answer.

        Raises:
            ArgumentInvalid: Out of range.
        """
        return self._replace(page_bytes=whole(page_bytes, "page size", 1, UINT32_MAX))

    def with_min_bytes(self, min_bytes: int) -> Self:
        """Have the server wait until it has so many bytes to answer with (mode fetch).

        Args:
            min_bytes: >= 0, over all buckets; 1 by default. 0: it never waits.

        Raises:
            ArgumentInvalid: Out of range.
        """
        return self._replace(min_bytes=whole(min_bytes, "min bytes", 0, UINT64_MAX))

    def with_max_wait(self, seconds: float) -> Self:
        """Have the server wait no longer than this (mode fetch); it clamps it to its bound.

        Args:
            seconds: 0 to 3600; 0.5 by default.

        Raises:
            ArgumentInvalid: Out of range.
        """
        if not (is_number(seconds) and 0 <= seconds <= MAX_WAIT_S_MAX):
            raise ArgumentInvalid(
                f"the wait must be a number of seconds, 0..{MAX_WAIT_S_MAX:g}, not {seconds!r}"
            )
        return self._replace(max_wait_s=float(seconds))

    def as_of(self, offset: int | Mapping[int, int], histories: Mapping[int, bytes] | None = None) -> Self:
        """Read the table as of a log offset in the past, as far as the server's log reaches back (mode push or asof).

        Args:
            offset: Of every bucket; or, as buckets have logs of their own, a dict from bucket to offset. Every change
                before it counts, and none from it on. `Table.offsets` and `BucketStatistics.log_offset` tell some.
            histories: By bucket, the history that its offset is of, as `BucketStatistics.history` and leases tell it. A
                bucket that has another one, because it was restored from a copy, then fails with SNAPSHOT_LOST
                instead of showing another state. None: whichever history a bucket has.

        Raises:
            ArgumentInvalid: Negative or no whole number, an offset of a bucket that the table does not have, or
                histories that are none.
        """
        offsets = offsets_given(offset, self._plan.table.buckets, "as_of")
        return self._replace(
            as_of=offsets, histories=histories_by_bucket(histories, self._plan.table.buckets)
        )

    def resume_at(self, position: str) -> Self:
        """Hand out what another run of this scan has not: the rest, of the same state of each bucket (push or asof).

        The scan is described as before, and rows, digest and limit go on. A bucket that had not begun there begins now.
        How it travels may be another: credit, size and depth of pages, retries. A tail has `start_at` instead.

        Args:
            position: What `Batches.resume_position` gave, of this process or another, by the same principal.

        Raises:
            ArgumentInvalid: It is no text.
            ResumeTokenInvalid: It is no position, was changed, or is of a newer version. Also raised when the scan is
                run, if it is of another scan; SnapshotLost says then that the state is gone.
        """
        read = read_position(position)
        table_id = read.table_id if self._plan.table_id is None else self._plan.table_id
        return self._replace(resume_at=read, table_id=table_id)

    def with_retries(self, retries: int) -> Self:
        """Let a cut scan go on by itself, through up to so many failed attempts in a row; without this, the client's.

        Args:
            retries: Attempts without progress after the first one. 0: errors come at once. Rows are neither lost nor
                repeated, and those of before and after a cut are of one state.

        Raises:
            ArgumentInvalid: Out of range.
        """
        return self._replace(retries=whole(retries, "retries", 0, UINT32_MAX))

    def resume_every_batches(self, batches: int) -> Self:
        """For tests: cut each bucket's stream after every so many batches, and go on (mode push).

        Args:
            batches: >= 1.

        Raises:
            ArgumentInvalid: Out of range.
        """
        return self._replace(resume_every_batches=whole(batches, "batches", 1, UINT32_MAX))

    def _require_column(self, name: str) -> None:
        names = self._plan.table.column_names
        if name not in names:
            raise column_not_found(self._plan.table.name, name, names)

    def _encoded(self, prefix: KeyPrefix | None) -> bytes:
        if prefix is None:
            return b""
        table = self._plan.table
        values = _key_values(table, prefix)
        return KeyCodec(table).encode(values) if values else b""


def _key_values(table: TableDescription, prefix: KeyPrefix) -> Sequence[object]:
    """The values of a key prefix in key order."""
    key = table.primary_key
    if isinstance(prefix, Mapping):
        names = key[: len(prefix)]
        if set(prefix) != set(names):
            raise ArgumentInvalid(
                f"a key range names the first columns of the key ({', '.join(key)}), not {', '.join(map(str, prefix))}"
            )
        return [prefix[name] for name in names]
    if isinstance(prefix, TEXT_OR_OCTETS) or not isinstance(prefix, Sequence):
        raise ArgumentInvalid(f"a key range is a tuple or a dict of key values, not {prefix!r}")
    if len(prefix) > len(key):
        raise ArgumentInvalid(
            f"the columns of the key are {', '.join(key)}, and {len(prefix)} values are given"
        )
    return prefix


def _member(kind: type[_E], value: _E | str, what: str) -> _E:
    if isinstance(value, kind):
        return value
    known = {str(member.value): member for member in kind}
    if not isinstance(value, str) or value.lower() not in known:
        raise ArgumentInvalid(f"unknown {what} {value!r}; known: {', '.join(known)}")
    return known[value.lower()]
