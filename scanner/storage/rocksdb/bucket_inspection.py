"""Inspects one bucket and its checkpoints: what is wrong with each by itself, and with one beside the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scanner.errors import DiskFull, ScannerError, TooManyFiles
from scanner.storage.lineage import Lineage
from scanner.storage.rocksdb.agreement import Agreement, hashes_of
from scanner.storage.rocksdb.checkpoints import checkpoint_name as name_of_checkpoint
from scanner.storage.rocksdb.checkpoints import list_checkpoints, require_itself
from scanner.storage.rocksdb.contents import Contents, Reader, joined, read_contents
from scanner.storage.rocksdb.durable_end import NAME as DURABLE_END_NAME
from scanner.storage.rocksdb.durable_end import read_durable_end
from scanner.storage.rocksdb.findings import Counts, Finding, Severity
from scanner.storage.rocksdb.folding import CONTRADICTIONS_MAX, Disagreements, compare
from scanner.storage.rocksdb.torn_manifest import torn_manifest
from scanner.storage.rocksdb.untouched import open_untouched

if TYPE_CHECKING:
    from scanner.storage.records import Checkpoint
    from scanner.storage.rocksdb.changelog import LogRange
    from scanner.storage.rocksdb.database import Database, RocksResources

_PROVEN_KEYS: Final = 8
"""Keys of an `Agreement` for each one of a comparison octet by octet: they take as much memory."""
_RESTORE: Final = "restore a backup (weir restore), or drop the table"


@dataclass(slots=True)
class InspectedBucket:
    """What the inspection found of a bucket, to be compared with other findings."""

    log_range: LogRange | None = None
    """None: it is not known."""
    lineage: Lineage = field(default_factory=Lineage)
    checkpoints: list[Checkpoint] = field(default_factory=list)


class BucketInspection:
    """Inspects one bucket and its checkpoints.

    Args:
        reader: Of its table.
        index: Of the bucket.
        directory: Of its database.
        checkpoints: Of its checkpoints; it may not exist.
        root: The data directory, for names.
        resources: Of the inspection.
        keys_max: Keys that are compared at once.
    """

    def __init__(
        self,
        reader: Reader,
        index: int,
        directory: Path,
        checkpoints: Path,
        root: Path,
        resources: RocksResources,
        keys_max: int,
    ) -> None:
        self._reader = reader
        self._index = index
        self._directory = directory
        self._checkpoints = checkpoints
        self._root = root
        self._resources = resources
        self._keys_max = keys_max
        self.result = InspectedBucket()

    def findings(self, counts: Counts) -> Iterator[Finding]:
        """Inspect, and yield what is found; `result` says more afterwards.

        Args:
            counts: Added to.

        Raises:
            TooManyFiles, DiskFull: This process may open no more files, or has no room for temporary ones; so of the
                bucket, or of a checkpoint, nothing is known.
        """
        where = str(self._directory.relative_to(self._root))
        counts.buckets += 1
        self._reader.begin(self._directory)
        try:
            # What a server refuses to open; RocksDB alone may open it as an older state.
            identity = self._reader.entry.bucket_identity(self._index)
            whole = torn_manifest(self._directory, identity, self._resources)
            with open_untouched(self._directory, self._resources, manifest_bytes=whole) as database:
                agreement = Agreement(_PROVEN_KEYS * self._keys_max, self._keys_max)
                contents = read_contents(database, self._reader, self._index, agreement)
                problems = [
                    _without(problem, database.path, self._directory) for problem in contents.problems
                ]
                disagreements = None if problems else self._compare(database, contents.log_range, agreement)
        except (TooManyFiles, DiskFull):
            raise
        except ScannerError as error:
            problem = _without(error.message, self._directory, self._directory)
            yield Finding(Severity.ERROR, where, problem, "every row and change of the bucket", _RESTORE)
        else:
            yield from self._found(where, contents, problems, disagreements, counts)
        yield from self._inspect_checkpoints(counts)

    def _found(
        self,
        where: str,
        contents: Contents,
        problems: list[str],
        disagreements: Disagreements | None,
        counts: Counts,
    ) -> Iterator[Finding]:
        counts.rows += contents.rows
        counts.changes += contents.changes
        if contents.is_known:
            self.result.log_range, self.result.lineage = contents.log_range, contents.lineage
        if contents.unfinished:
            yield Finding(
                Severity.WARNING,
                where,
                f"a transaction was being applied when the server ended: {contents.unfinished} changes of it are there",
                advice="nothing: the next start undoes them, and applies the transaction",
            )
        for problem in problems:
            yield Finding(Severity.ERROR, where, problem, "the rows and changes that this is about", _RESTORE)
        if disagreements:
            yield self._disagreement(where, contents.log_range, disagreements)
        if contents.is_known:
            yield from self._lost(where, contents)

    def _compare(self, database: Database, log_range: LogRange, agreement: Agreement) -> Disagreements | None:
        """Compare rows and changelog, of which the agreement had one pass; None: they agree."""
        reader = self._reader
        agreement.finish()
        while not agreement.has_ended:
            agreement.begin(complete=log_range.start == 0)
            reader.begin_pass(database, log_range, lambda: agreement.part)
            for chunks in reader.chunks(database, log_range):
                kinds, block = joined(chunks)
                keys = hashes_of(reader.keys_of(block).to_pylist())
                agreement.add_changes(kinds, keys, hashes_of(block.to_list()))
            for stored, rows in reader.stored(database):
                agreement.add_rows(hashes_of(stored), hashes_of(rows))
            agreement.finish()
        suspected = agreement.suspected
        if suspected is not None and not len(suspected):
            return None
        # As long again, about.
        reader.begin_pass(database, log_range, lambda: (0.5, 1.0))
        return compare(
            log_range.start,
            lambda: reader.changes(database, log_range, suspected),
            lambda: reader.pairs(database, suspected),
            self._keys_max,
        )

    def _disagreement(self, where: str, log_range: LogRange, found: Disagreements) -> Finding:
        parts = [
            f"{count} {what}"
            for count, what in (
                (found.missing, "keys lack the row that the changelog leaves them with"),
                (found.other, "keys have another row than the changelog leaves them with"),
                (found.unexplained, "keys have a row that the changelog does not explain"),
            )
            if count
        ]
        if parts:
            assert found.first_key is not None
            parts[-1] += f" (the first one: {self._reader.name_of(found.first_key)})"
        if found.contradictions:
            at_least = "at least " if len(found.contradictions) == CONTRADICTIONS_MAX else ""
            parts.append(
                f"{at_least}{len(found.contradictions)} changes do not follow from those before them (the first one: at"
                f" offset {min(found.contradictions)})"
            )
        span = f"[{log_range.start}, {log_range.end})"
        problem = f"rows and changelog {span} disagree: {'; '.join(parts)}"
        return Finding(Severity.ERROR, where, problem, "it is unknown which of the two is right", _RESTORE)

    def _lost(self, where: str, contents: Contents) -> Iterator[Finding]:
        """What was acknowledged and is not there, as far as is known."""
        end, lineage = contents.log_range.end, contents.lineage
        known = read_durable_end(self._directory, self._reader.entry.bucket_identity(self._index))
        path = self._directory / DURABLE_END_NAME
        if known is not None and known.end > end:
            yield Finding(
                Severity.ERROR,
                where,
                f"the changelog ends at offset {end}, and was durable up to {known.end}, or this is an older copy",
                f"{known.end - end} acknowledged changes",
                "restore a newer copy, if there is one; the next write records the loss, and goes on without them",
            )
        elif known is not None and not known.is_reached(end, contents.sequence):
            yield Finding(
                Severity.ERROR,
                where,
                "the newest commits, which changed no row, are not there, or this is an older copy",
                "what the bucket was told last of reader groups, transactions and writers",
                "restore a newer copy, if there is one; the next write goes on without them",
            )
        elif known is None and path.exists():
            yield Finding(
                Severity.WARNING,
                str(path.relative_to(self._root)),
                "the file is damaged, or of another bucket",
                "whether acknowledged changes were lost is not known",
                "nothing: the next commit writes it anew",
            )
        if lineage.lost_changes:
            begun = next(each for each in lineage.histories if each.lost_end > each.start)
            yield Finding(
                Severity.WARNING,
                where,
                f"the lineage records that changes were lost, first at offset {begun.start}",
                f"{lineage.lost_changes} acknowledged changes",
            )

    def _inspect_checkpoints(self, counts: Counts) -> Iterator[Finding]:
        for checkpoint in list_checkpoints(self._checkpoints):
            directory = self._checkpoints / name_of_checkpoint(checkpoint)
            where = str(directory.relative_to(self._root))
            counts.checkpoints += 1
            self._reader.begin(directory)
            advice = "remove this directory while no server runs: the bucket itself does not need it"
            try:
                with open_untouched(directory, self._resources) as database:
                    require_itself(database, checkpoint)
                    contents = read_contents(database, self._reader, self._index)
                    problems = [_without(each, database.path, directory) for each in contents.problems]
            except (TooManyFiles, DiskFull):
                raise
            except ScannerError as error:
                problems = [_without(error.message, directory, directory)]
            else:
                counts.rows += contents.rows
                counts.changes += contents.changes
            for problem in problems:
                lost = f"the state as of {checkpoint.log_offset}, as far as the changelog does not lead there"
                yield Finding(Severity.ERROR, where, problem, lost, advice)
            if problems:
                continue
            log_range = self.result.log_range
            if log_range is not None and not (
                checkpoint.log_offset <= log_range.end
                and self.result.lineage.holds(checkpoint.history, checkpoint.log_offset)
            ):
                problem = f"it is as of offset {checkpoint.log_offset} of another history of the bucket, and not used"
                yield Finding(Severity.WARNING, where, problem, advice=advice)
            else:
                self.result.checkpoints.append(checkpoint)


def _without(message: str, links: Path, directory: Path) -> str:
    """A message about a database, without the directory that it was opened in: the finding names its own."""
    return message.replace(str(links), str(directory)).replace(f"{directory}: ", "")
