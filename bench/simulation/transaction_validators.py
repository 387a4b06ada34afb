"""What transactions of writers are held to, from what their writers saw and what the model was told.

transacted   the rows of a version's chosen attempts are in the log once, those of the others and of an aborted one
never; behind the version a bucket has what it means; no scan that names no offset stands inside it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.simulation.workload import State

if TYPE_CHECKING:
    from bench.simulation.history import History
    from bench.simulation.model import Model
    from bench.simulation.tables import Key, Row


@dataclass(slots=True)
class VersionRecord:
    """One version, as its writer saw it."""

    who: str
    version: int
    attempts: dict[tuple[int, int], dict[Key, Row | None]] = field(default_factory=dict)
    """By part and attempt what was staged, or may have been; None: a delete."""
    chosen: dict[int, int] = field(default_factory=dict)
    """By part; empty: it was aborted."""
    ranges: tuple[tuple[int, int, int], ...] = ()
    """(bucket, start, end) of its changes, as the server told them."""
    began_s: float = 0.0
    """When it was to be published, virtual seconds."""
    ended_s: float = 0.0
    """When that was acknowledged."""

    @property
    def rows(self) -> dict[Key, Row | None]:
        """What the version means."""
        return {key: row for at in self.chosen.items() for key, row in self.attempts[at].items()}


def judge_versions(history: History, model: Model) -> Iterator[tuple[str, str]]:
    """Whoever made a version, and what is wrong with it."""
    if not history.versions:
        return
    buckets = range(model.rows.description.buckets)
    tag = model.rows.schema.get_field_index("tag")
    written = Counter(row.cells[tag] for bucket in buckets for row in model.ever(bucket))
    for record in history.versions:
        for at, rows in record.attempts.items():
            wanted = int(record.chosen.get(at[0]) == at[1])
            wrong = [row for row in rows.values() if row is not None and written[row[tag]] != wanted]
            if wrong:
                times = written[wrong[0][tag]]
                found = f"part {at[0]}, attempt {at[1]}: {len(wrong)} rows are in the log otherwise than {wanted} times"
                yield record.who, f"version {record.version}, {found}, the first {times} times"
        yield from _meant(record, model)
        yield from _entered(record, history)


def _meant(record: VersionRecord, model: Model) -> Iterator[tuple[str, str]]:
    """Behind its range a bucket has what the version means; of a bucket without one it has changed nothing."""
    ranged = {bucket for bucket, _, _ in record.ranges}
    for key, row in record.rows.items():
        if model.bucket_of(key) in ranged:
            continue
        if not model.may_have_changed_nothing(key, row, record.began_s, record.ended_s):
            yield record.who, f"version {record.version}: {key} was not changed, and was to be {row}"
    for bucket, _, end in record.ranges:
        state = {row.key: row.cells for row in model.state(bucket, end)}
        for key, row in record.rows.items():
            if model.bucket_of(key) == bucket and state.get(key) != row:
                yield (
                    record.who,
                    f"version {record.version}: bucket {bucket} has {state.get(key)} at {end}, not {row}",
                )


def _entered(record: VersionRecord, history: History) -> Iterator[tuple[str, str]]:
    """Scans that the server has opened inside a version."""
    ranges = {bucket: range(start + 1, end) for bucket, start, end in record.ranges}
    for scan in history.scans:
        for bucket, told in scan.buckets.items():
            named = scan.task.state is State.PAST or scan.task.tail is not None
            if not named and told.log_offset in ranges.get(bucket, ()):
                yield (
                    scan.who,
                    f"bucket {bucket} is shown as of {told.log_offset}, inside of {ranges[bucket]}",
                )
