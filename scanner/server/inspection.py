"""Looks at a whole data directory that no server has open, and says what is wrong, what is lost and what to do.

Nothing in the directory is changed: no lock file is written, no mode corrected, no database recovered. What an earlier
finding makes unreadable ends only what depends on it.
"""

from __future__ import annotations

import json
import resource
import shlex
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from scanner.errors import ArgumentInvalid, DataCorrupted, ScannerError
from scanner.server.retention.lease_registry import LEASES_DOCUMENT, LeasedState, LeaseRegistry
from scanner.server.scan.token_keys import TOKEN_KEYS_DOCUMENT, TokenKeys
from scanner.server.tables.commit_floor import FLOOR_DOCUMENT
from scanner.server.transactions.inspection import transaction_findings
from scanner.storage.rocksdb.backup_manifest import MANIFEST_NAME
from scanner.storage.rocksdb.bucket_inspection import BucketInspection, InspectedBucket
from scanner.storage.rocksdb.catalog import (
    CATALOG_NAME,
    CatalogFile,
    TableEntry,
    load_catalog,
    load_table_entry,
)
from scanner.storage.rocksdb.checkpoints import checkpoint_name, list_checkpoints
from scanner.storage.rocksdb.config import StorageConfig
from scanner.storage.rocksdb.contents import Reader
from scanner.storage.rocksdb.data_directory import (
    CHECKPOINTS_NAME,
    FORMAT_NAME,
    IMAGES_NAME,
    LOCK_NAME,
    LOST_AND_FOUND_NAME,
    TABLES_NAME,
    bucket_name,
    checkpoints_directory,
    entries_of,
    hold_still,
    require_format,
    require_whole,
    table_directory,
)
from scanner.storage.rocksdb.database import RocksResources
from scanner.storage.rocksdb.documents import DOCUMENTS_NAME, read_document
from scanner.storage.rocksdb.files import disk_errors, is_directory
from scanner.storage.rocksdb.findings import Counts, Finding, Severity
from scanner.storage.rocksdb.folding import KEYS_MAX
from scanner.storage.rocksdb.space import BALLAST_NAME
from scanner.storage.rocksdb.table_directories import (
    TABLE_IDS_DOCUMENT,
    found_in,
    next_free_id,
    place_of,
    strays,
)
from scanner.storage.rocksdb.transaction_files import TRANSACTIONS_NAME

_BUCKET_DESCRIPTORS: Final = 9
"""That an open bucket needs beside its table files."""
_SERVER_DESCRIPTORS: Final = 64
"""For the server itself and some connections."""
_FREE_BYTES_MIN: Final = 256 * 1024 * 1024
_OURS: Final = frozenset(
    {
        BALLAST_NAME,
        FORMAT_NAME,
        LOCK_NAME,
        CATALOG_NAME,
        TABLES_NAME,
        CHECKPOINTS_NAME,
        IMAGES_NAME,
        DOCUMENTS_NAME,
    }
)

OnProgress = Callable[[str, int, int, int], None]
"""Called with what is inspected, how many octets of all databases' files are behind it, of how many, and the rows and
changes that were read of it."""


def _silent(*_: object) -> None:
    pass


class Inspection:
    """Inspects one data directory.

    Args:
        path: The data directory.
        now_ms: Milliseconds since 1970 UTC: leases that are over by then do not count.
        on_progress: Called with the progress.
        keys_max: Keys of a bucket that are compared at once; see `scanner.storage.rocksdb.folding`.
    """

    def __init__(
        self, path: Path, *, now_ms: int, on_progress: OnProgress = _silent, keys_max: int = KEYS_MAX
    ) -> None:
        self._path = Path(path).absolute()
        self._now_ms = now_ms
        self._on_progress = on_progress
        self._keys_max = keys_max
        self._buckets: dict[tuple[int, int], InspectedBucket] = {}
        self._places: dict[Path, tuple[int, int]] = {}
        """Of each database, the octets of those that are inspected before, and its own."""
        self._octets = 0
        """Of all of them."""
        self.counts = Counts()
        """Of what was looked at so far."""

    def findings(self) -> Iterator[Finding]:
        """Inspect, and yield what is found, in the order in which it is found.

        Raises:
            ArgumentInvalid: This is no data directory, but a backup or something else.
            StoreLocked: A server has it open.
            StoreFailed: A backup is being restored into it, or that was interrupted; or the disk refused.
            TooManyFiles, DiskFull: This process may open no more files, or has no room for temporary ones.
        """
        path = self._path
        require_whole(path)
        present = {entry.name for entry in entries_of(path)}
        if not present & {FORMAT_NAME, CATALOG_NAME} and MANIFEST_NAME in present:
            raise ArgumentInvalid(
                f"{path} is a backup; weir restore verifies it, and makes a data directory of it"
            )
        if not present & {FORMAT_NAME, CATALOG_NAME, TABLES_NAME}:
            raise ArgumentInvalid(f"{path} is no data directory of weir")
        with hold_still(path):
            yield from self._format()
            catalog, found = self._catalog()
            yield from found
            yield from self._documents()
            yield from self._strays(catalog, present)
            yield from self._access()
            yield from self._resources(catalog)
            self._measure(catalog)
            for name in sorted(catalog.tables):
                yield from self._table(catalog.tables[name])
            yield from self._leases(catalog)

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self._path)) if path != self._path else "."

    def _format(self) -> Iterator[Finding]:
        try:
            require_format(self._path)
        except ScannerError as error:
            lost = "no server opens the directory; the tables are not touched by it"
            yield Finding(Severity.ERROR, FORMAT_NAME, error.message, lost)

    def _catalog(self) -> tuple[CatalogFile, list[Finding]]:
        """The catalog, or what the tables' own directories make of it."""
        problem = f"{self._path / CATALOG_NAME} is gone"
        try:
            catalog = load_catalog(self._path)
            if catalog is not None:
                return catalog, []
        except ScannerError as error:
            problem = error.message
        found = [
            Finding(
                Severity.ERROR,
                CATALOG_NAME,
                problem,
                "no server opens the directory; the tables say themselves what they hold, and are looked at below",
                f"make it anew with: weir adopt --data {shlex.quote(str(self._path))} --rebuild",
            )
        ]
        catalog = CatalogFile()
        for directory in entries_of(self._path / TABLES_NAME):
            if not (directory.name.isdigit() and is_directory(directory)):
                continue
            try:
                entry = load_table_entry(directory)
            except ScannerError:
                continue  # It is a stray then, and said to be one with the reason.
            if entry is not None and entry.description.name not in catalog.tables:
                catalog = catalog.with_table(entry)
        return catalog, found

    def _documents(self) -> Iterator[Finding]:
        paths = entries_of(self._path / DOCUMENTS_NAME)
        for path in (each for each in paths if not each.name.endswith("~")):  # These were not finished.
            try:
                self._read_document(path.name)
            except ScannerError as error:
                if path.name not in _DOCUMENTS:
                    yield Finding(Severity.NOTE, self._name(path), "it is no document of weir")
                    continue
                yield Finding(Severity.ERROR, self._name(path), error.message, *_DOCUMENTS[path.name])
            self.counts.documents += 1

    def _read_document(self, name: str) -> None:
        content = read_document(self._path, name)
        if content is None:
            return
        if name == LEASES_DOCUMENT:
            LeaseRegistry.from_document(content, self._now_ms)
        elif name == TOKEN_KEYS_DOCUMENT:
            TokenKeys.from_document(content)
        elif name == TABLE_IDS_DOCUMENT:
            try:
                int(json.loads(content)["next"])
            except (ValueError, KeyError, TypeError) as error:
                raise DataCorrupted(f"there is something else in it ({error!r})") from error

    def _strays(self, catalog: CatalogFile, present: set[str]) -> Iterator[Finding]:
        for path, what in strays(self._path, catalog):
            yield Finding(Severity.WARNING, self._name(path), what)
        for name in sorted(present - _OURS):
            if not name.endswith("~") and not name.startswith((f"{CATALOG_NAME}.", f"{FORMAT_NAME}.")):
                yield Finding(Severity.NOTE, name, "it is nothing that this version of weir knows")

    def _access(self) -> Iterator[Finding]:
        """Who else than the server's user may look at rows, and what that user may not."""
        # It is root's, and may be open: both are as they should be.
        not_ours = self._path / LOST_AND_FOUND_NAME
        with disk_errors(self._path):
            root = self._path.stat()
            within = (path for path in self._path.rglob("*") if not path.is_relative_to(not_ours))
            paths = [self._path, *within]
            modes = [path.lstat() for path in paths]
        exposed = [
            path
            for path, mode in zip(paths, modes, strict=True)
            if mode.st_mode & 0o077 and not stat.S_ISLNK(mode.st_mode)
        ]
        if exposed:
            is_open = bool(root.st_mode & 0o077)
            yield Finding(
                Severity.WARNING if is_open else Severity.NOTE,
                self._name(exposed[0]),
                f"{len(exposed)} files and directories are open to others than their user"
                + ("" if is_open else "; the data directory above them is not"),
                "rows and secrets may have been read by others" if is_open else "",
                f"chmod -R go= {shlex.quote(str(self._path))}; the next start does it for what is weir's; where it has"
                " no effect, mount the file system for that user alone (umask=077)"
                if is_open
                else "",
            )
        others = [path for path, mode in zip(paths, modes, strict=True) if mode.st_uid != root.st_uid]
        if others:
            yield Finding(
                Severity.WARNING,
                self._name(others[0]),
                f"{len(others)} files and directories belong to another user than the data directory",
                advice=f"let all of it belong to the server's user: chown -R USER {shlex.quote(str(self._path))}",
            )

    def _resources(self, catalog: CatalogFile) -> Iterator[Finding]:
        """What the machine has left for this directory."""
        config = StorageConfig()
        needed, largest = _SERVER_DESCRIPTORS, 0
        for entry in catalog.tables.values():
            directory = place_of(self._path, entry.table_id)
            if not is_directory(directory):
                continue
            for index in range(entry.description.buckets):
                files = [path for path in entries_of(directory / bucket_name(index)) if path.is_file()]
                tables = sum(path.suffix == ".sst" for path in files)
                needed += _BUCKET_DESCRIPTORS + min(tables, config.bucket_files_open_max)
                largest = max(largest, sum(path.stat().st_size for path in files))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if needed > soft != resource.RLIM_INFINITY:
            yield Finding(
                Severity.WARNING,
                ".",
                f"a server that uses all buckets needs some {needed} file descriptors, and may have {soft} here"
                f" (at most {hard})",
                advice=f"start the server after: ulimit -n {needed}",
            )
        with disk_errors(self._path):
            free = shutil.disk_usage(self._path).free
        wanted = max(_FREE_BYTES_MIN, largest)
        if free < wanted:
            yield Finding(
                Severity.WARNING,
                ".",
                f"{free // 2**20} MiB are free on the disk, and a compaction may take {wanted // 2**20}",
                advice="make room: drop leases that are not needed (weir leases drop), or shorten --log-retention",
            )

    def _measure(self, catalog: CatalogFile) -> None:
        """Find out how much there is to read, and in which order."""
        for _, entry in sorted(catalog.tables.items()):
            place = place_of(self._path, entry.table_id)
            if not is_directory(place):
                continue
            for index in range(entry.description.buckets):
                name = bucket_name(index)
                checkpoints = checkpoints_directory(self._path, entry.table_id) / name
                for directory in (
                    place / name,
                    *(checkpoints / checkpoint_name(each) for each in list_checkpoints(checkpoints)),
                ):
                    with disk_errors(directory):
                        octets = sum(path.lstat().st_size for path in entries_of(directory))
                    self._places[directory] = self._octets, octets
                    self._octets += octets

    def _on_read(self, directory: Path, share: float, records: int) -> None:
        before, octets = self._places[directory]
        self._on_progress(self._name(directory), before + int(share * octets), self._octets, records)

    def _table(self, entry: TableEntry) -> Iterator[Finding]:
        self.counts.tables += 1
        directory = place_of(self._path, entry.table_id)
        name = entry.description.name
        try:
            entry = found_in(directory, entry)
        except ScannerError as error:
            lost = f"table {name!r} is not served; its rows are checked all the same, if they exist"
            yield Finding(Severity.ERROR, self._name(directory), error.message, lost)
        if not is_directory(directory):
            return
        resources = RocksResources(StorageConfig())
        checkpoints = checkpoints_directory(self._path, entry.table_id)
        for index in range(entry.description.buckets):
            bucket = directory / bucket_name(index)
            reader = Reader(entry, self._on_read)
            inspection = BucketInspection(
                reader,
                index,
                bucket,
                checkpoints / bucket_name(index),
                self._path,
                resources,
                self._keys_max,
            )
            yield from inspection.findings(self.counts)
            self._buckets[entry.table_id, index] = inspection.result
        yield from transaction_findings(directory / TRANSACTIONS_NAME, entry.table_id, self._name)
        known = {bucket_name(index) for index in range(entry.description.buckets)} | {
            "table.json",
            "table.json~",
            TRANSACTIONS_NAME,
        }
        for parent in (directory, checkpoints):
            for each in entries_of(parent):
                if each.name not in known:
                    problem = f"table {name!r} has nothing of this name; it is left as it is"
                    yield Finding(Severity.NOTE, self._name(each), problem)

    def _leases(self, catalog: CatalogFile) -> Iterator[Finding]:
        try:
            content = read_document(self._path, LEASES_DOCUMENT)
            leases = LeaseRegistry.from_document(content, self._now_ms).leases(self._now_ms)
        except ScannerError:
            return  # Reported with the documents.
        names: Mapping[int, str] = {
            entry.table_id: entry.description.name for entry in catalog.tables.values()
        }
        where = f"{DOCUMENTS_NAME}/{LEASES_DOCUMENT}"
        for lease in leases:
            for state in lease.sorted_states():
                who = f"lease {lease.key.lease_id!r} of {lease.key.principal!r}"
                at = f"{state.table}[{state.bucket}] as of offset {state.log_offset}"
                problem = self._missing_state(state, names)
                if state.table_id not in names and self._was_dropped(state.table_id, catalog):
                    problem = f"{who} keeps {at}, and that table was dropped; the next start forgets this"
                    yield Finding(Severity.NOTE, where, problem)
                elif problem is not None:
                    yield Finding(
                        Severity.ERROR,
                        where,
                        f"{who} keeps {at}, and {problem}",
                        "scans with this lease fail",
                        "drop the lease (weir leases drop), and acquire it again",
                    )

    def _was_dropped(self, table_id: int, catalog: CatalogFile) -> bool:
        """Whether a server dropped a table that the catalog does not name: it was there, and nothing of it is.

        The leases on it are forgotten right after that, unless the server is killed in between.
        """
        try:
            was_there = table_id < next_free_id(self._path, catalog)
        except DataCorrupted:
            return False  # Reported with the documents.
        return was_there and not table_directory(self._path, table_id).exists()

    def _missing_state(self, state: LeasedState, names: Mapping[int, str]) -> str | None:
        """Why a state that a lease keeps cannot be read; None: it can."""
        if state.table_id not in names:
            return "there is no such table"
        bucket = self._buckets.get((state.table_id, state.bucket))
        if bucket is None or bucket.log_range is None:
            return "the bucket cannot be read"
        log_range = bucket.log_range
        if not bucket.lineage.holds(state.history, state.log_offset) or state.log_offset > log_range.end:
            return "that is of another history of the bucket"
        if state.log_offset < log_range.start:
            return f"the changelog begins at {log_range.start}"
        if state.checkpoint_id is not None and state.checkpoint_id not in {
            each.checkpoint_id for each in bucket.checkpoints
        }:
            return f"there is no sound checkpoint {state.checkpoint_id}"
        return None


_DOCUMENTS: Final = {
    LEASES_DOCUMENT: (
        "the leases; no server opens the directory",
        "restore it from a copy, or remove it: then there are no leases",
    ),
    TOKEN_KEYS_DOCUMENT: (
        "the keys of resume tokens; no server opens the directory",
        "restore it from a copy, or remove it: then resume tokens that were made are refused",
    ),
    TABLE_IDS_DOCUMENT: (
        "no table can be created",
        "remove it: table ids then go on above those of the catalog and of every directory",
    ),
    FLOOR_DOCUMENT: (
        "what was told of commit times; no server opens the directory",
        "restore it from a copy, or remove it: if the clock is behind, commits then get times of which tails were told"
        " that they have passed",
    ),
}
"""What is lost with a damaged document, and what to do."""
