"""What the scanned bucket must be at every log offset, rows and digest, told by its only writer."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import trio

from bench.harness.ledger import SCHEMA, rows
from bench.harness.oracle import BucketHistory, Commit, Violation
from scanner.data.digest import checksum
from scanner.data.table import TableDescription

if TYPE_CHECKING:
    import scanner
    from scanner.data.rows import RowCodec

TABLE: Final = "cut"
DESCRIPTION: Final = TableDescription(TABLE, SCHEMA, ("id",), 1)
_FOLD_COMMITS: Final = 200
_WRITE_KEYS: Final = 12
_DELETE_CHANCE: Final = 0.3


@dataclass(frozen=True, slots=True)
class Verdict:
    """A complete scan, judged."""

    violations: tuple[Violation, ...]
    in_order: bool
    """Whether the rows came in key order."""
    digest_equal: bool
    """Whether the scan's digest is that of an uninterrupted pass over the state."""

    def count(self, kind: str) -> int:
        """Violations of one kind."""
        return sum(violation.kind == kind for violation in self.violations)


class Truth:
    """The states of the bucket, and the writer that makes them.

    Args:
        codec: Of the table's rows; makes the bytes that a digest is over.
        keys: The keys 0, 1, 2, ... that there are to begin with.
        offset: The log offset with which they are all there.
        rng: Choose what is written.
    """

    def __init__(self, codec: RowCodec, keys: int, offset: int, rng: random.Random) -> None:
        self._codec = codec
        self._keys = keys
        self._rng = rng
        self._version = 0
        self._writing = trio.Lock()
        self._history = BucketHistory(rows(list(range(keys)), 0), offset, ("id",))
        self._expected: tuple[int, int] = (-1, 0)

    @property
    def changes(self) -> int:
        """Log offset up to which everything is known."""
        return self._history.end_offset

    async def write(self, table: scanner.Table) -> None:
        """Update, insert or delete some rows, all over the key space, and wait until that is durable."""
        async with self._writing:
            chosen = self._rng.sample(range(self._keys + self._keys // 4), _WRITE_KEYS)
            if self._rng.random() < _DELETE_CHANCE:
                result = await table.delete([(key,) for key in chosen])
                changes: dict[tuple[object, ...], tuple[object, ...] | None] = {
                    (key,): None for key in chosen
                }
            else:
                self._version += 1
                written = rows(chosen, self._version)
                result = await table.write(written)
                cells = zip(*(column.to_pylist() for column in written.columns), strict=True)
                changes = {(key,): row for key, row in zip(chosen, cells, strict=True)}
            for _, start, end in result.ranges:
                if end > start:
                    self._history.record(Commit(start, end, changes))

    def forget(self) -> None:
        """No scan runs: forget the states before this one, if they are many."""
        if len(self._history.commits) > _FOLD_COMMITS:
            self._history = self._history.since(self._history.end_offset)

    def digest(self, offset: int) -> int:
        """The digest of every scan as of an offset."""
        if self._expected[0] != offset:
            state = self._history.state(offset).sort_by("id").combine_chunks()
            stored = [row for batch in state.to_batches() for row in self._codec.encode_batch(batch)]
            self._expected = (offset, checksum(b"".join(stored)))
        return self._expected[1]

    def judge_changes(self, start: int, end: int | None, scanned: pa.Table, digest: int | None) -> Verdict:
        """Judge a complete scan of changes, up to where the log ended when it was opened.

        Args:
            start: The log offset at which the changes begin; what is in front of them is the state as of it.
            end: Its position at the end; None: it has told none.
            scanned: What came, in that order.
            digest: Of the snapshot in front of the changes; None: there is none.
        """
        found: list[Violation] = []
        if end is None:
            return Verdict((Violation("torn", "a scan of changes ended without a position"),), True, True)
        offsets = [offset for offset in scanned.column("_log_offset").to_pylist() if offset is not None]
        counts = Counter(offsets)
        found += [
            Violation("repeated", f"the change at {at} came {n} times") for at, n in counts.items() if n > 1
        ]
        found += [Violation("missing", f"the change at {at}") for at in range(start, end) if at not in counts]
        found += [Violation("extra", f"a change at {at}") for at in counts if not start <= at < end]
        folded: dict[object, dict[str, object]] = {}
        for row in scanned.to_pylist():
            kind = row.pop("_change_type")
            if kind in ("delete", "update_preimage"):
                folded.pop(row["id"], None)
            else:
                folded[row["id"]] = row
        found += self._history.violations(end, pa.Table.from_pylist(list(folded.values()), schema=SCHEMA))
        return Verdict(
            violations=tuple(found),
            in_order=all(left < right for left, right in itertools.pairwise(offsets)),
            digest_equal=digest is None or digest == self.digest(start),
        )

    def judge(self, offset: int, scanned: pa.Table, digest: int | None) -> Verdict:
        """Judge a complete scan by the state at the offset that it claims."""
        ids = scanned.column("id").to_pylist()
        return Verdict(
            violations=tuple(self._history.violations(offset, scanned)),
            in_order=all(left < right for left, right in itertools.pairwise(ids)),
            digest_equal=digest == self.digest(offset),
        )
