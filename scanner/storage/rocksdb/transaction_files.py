"""The stages and decisions of one table, as files in its directory.

    tables/000007/transactions/of-<name>/decision.json       the newest decision of a transaction name
    tables/000007/transactions/of-<name>/<stage>.stage       version, part, attempt, sequence, time, session
    tables/000007/transactions/of-<name>/<stage>.stage~      one that is being written, or was interrupted

A stage is written under its other name, synced and renamed; the rename is the moment at which it is there. What is in
it is in `scanner.storage.transactions`. They go with the table's directory when it is dropped, and no backup has them.

This module knows no RocksDB.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scanner.errors import DataCorrupted
from scanner.storage.rocksdb.data_directory import entries_of
from scanner.storage.rocksdb.files import (
    FILE_MODE,
    disk_errors,
    make_directories,
    read_sealed,
    sync_directory,
    write_sealed,
)
from scanner.storage.transactions import StageKey, StoredStage

if TYPE_CHECKING:
    from scanner.storage.rocksdb.files import DirectoryHandle
    from scanner.storage.rocksdb.space import DiskSpace

TRANSACTIONS_NAME: Final = "transactions"
_DECISION_NAME: Final = "decision.json"
_PREFIX: Final = "of-"
"""Of a name's directory: a name may be `.` or `..`."""
_STAGE: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)\.(\d+)\.(\d+)\.([0-9a-f]{32})\.stage")


class RocksTransactionFiles:
    """See `scanner.storage.transactions.TransactionFiles`.

    Args:
        table: Directory of the table.
        table_id: Of the table.
        place: The data directory; nothing is written once it was moved.
        space: Of its disk; stages leave its reserve alone.
    """

    def __init__(self, table: Path, table_id: int, place: DirectoryHandle, space: DiskSpace) -> None:
        self._table = table
        self._path = table / TRANSACTIONS_NAME
        self.table_id = table_id
        self._place = place
        self._space = space
        self._emptying = threading.Lock()
        """Held while a name's directory is removed, and until one has something in it."""

    @property
    def used(self) -> bool:
        """See `TransactionFiles.used`."""
        return self._path.is_dir()

    def stages(self) -> list[StoredStage]:
        """See `TransactionFiles.stages`."""
        found = []
        for path, key in stage_paths(self._path):
            with disk_errors(path):
                if path.name.endswith("~"):
                    path.unlink()
                    self._settle_removal(key.name)
                else:
                    found.append(StoredStage(key, path.stat().st_size))
        return found

    def open_sink(self, key: StageKey) -> RocksStageSink:
        """See `TransactionFiles.open_sink`."""
        self._place.require_in_place()
        self._space.require_room()
        path = self._path_of(key)
        with self._emptying:
            make_directories(path.parent, self._table)
            return RocksStageSink(path, self._space)

    def open_source(self, key: StageKey) -> RocksStageSource:
        """See `TransactionFiles.open_source`."""
        return RocksStageSource(self._path_of(key))

    def drop_stages(self, keys: Sequence[StageKey]) -> None:
        """See `TransactionFiles.drop_stages`."""
        self._place.require_in_place()
        for key in keys:
            path = self._path_of(key)
            with disk_errors(path):
                path.unlink(missing_ok=True)
        for name in {key.name for key in keys}:
            self._settle_removal(name)

    def decisions(self) -> dict[str, bytes]:
        """See `TransactionFiles.decisions`."""
        found = {}
        for name, path in decision_paths(self._path):
            content = read_sealed(path)
            if content is not None:
                found[name] = content
        return found

    def write_decision(self, name: str, content: bytes) -> None:
        """See `TransactionFiles.write_decision`."""
        self._place.require_in_place()
        path = self._directory_of(name) / _DECISION_NAME
        make_directories(path.parent, self._table)
        with self._space.in_need():
            write_sealed(path, content)

    def drop_decision(self, name: str) -> None:
        """See `TransactionFiles.drop_decision`."""
        self._place.require_in_place()
        path = self._directory_of(name) / _DECISION_NAME
        with disk_errors(path):
            path.unlink(missing_ok=True)
        self._settle_removal(name)

    def require_room(self, wanted_bytes: int) -> None:
        """See `TransactionFiles.require_room`."""
        self._place.require_in_place()
        self._space.require_room(wanted_bytes)

    def _directory_of(self, name: str) -> Path:
        return self._path / f"{_PREFIX}{name}"

    def _path_of(self, key: StageKey) -> Path:
        return self._directory_of(key.name) / _file_name(key)

    def _settle_removal(self, name: str) -> None:
        """Make it durable that something of a name was removed, and remove its directory if that was all.

        Stages that came back after a loss of power would be published with what is staged in their place.
        """
        changed = directory = self._directory_of(name)
        with self._emptying, disk_errors(directory):
            try:
                directory.rmdir()
            except FileNotFoundError:
                changed = directory.parent  # The last call may not have got any further.
            except OSError:
                pass  # Something is in it still.
            else:
                changed = directory.parent
            with suppress(FileNotFoundError):
                sync_directory(changed)


class RocksStageSink:
    """See `scanner.storage.transactions.StageSink`."""

    def __init__(self, path: Path, space: DiskSpace) -> None:
        self._fresh = path.with_name(f"{path.name}~")
        self._space = space
        self._size = 0
        with disk_errors(self._fresh):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._descriptor: int | None = os.open(self._fresh, flags, FILE_MODE)

    def append(self, frames: Sequence[bytes]) -> None:
        """See `StageSink.append`."""
        assert self._descriptor is not None
        size = sum(map(len, frames))
        self._space.require_room(size)
        with disk_errors(self._fresh):
            for frame in frames:
                rest = memoryview(frame)
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
        self._size += size

    def sync(self) -> None:
        """See `StageSink.sync`."""
        assert self._descriptor is not None
        with disk_errors(self._fresh):
            os.fsync(self._descriptor)

    def open_source(self) -> RocksStageSource:
        """See `StageSink.open_source`."""
        return RocksStageSource(self._fresh)

    def finish(self, key: StageKey) -> int:
        """See `StageSink.finish`."""
        self.sync()
        with disk_errors(self._fresh):
            self._close()
            finished = self._fresh.replace(self._fresh.with_name(_file_name(key)))
            try:
                sync_directory(finished.parent)
            except OSError:
                # Its writer stages it again: found at the next start, it would count twice.
                with suppress(OSError):
                    finished.unlink()
                raise
        return self._size

    def discard(self) -> None:
        """See `StageSink.discard`."""
        self._close()
        with suppress(OSError):
            self._fresh.unlink()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class RocksStageSource:
    """See `scanner.storage.transactions.StageSource`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with disk_errors(path):
            try:
                self._descriptor: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError as error:
                raise DataCorrupted(f"{path} is gone, and it was staged") from error
            self.size = os.fstat(self._descriptor).st_size
            """See `StageSource.size`."""

    def read(self, offset: int, size: int) -> bytes:
        """See `StageSource.read`."""
        assert self._descriptor is not None
        with disk_errors(self._path):
            return os.pread(self._descriptor, size, offset)

    def close(self) -> None:
        """See `StageSource.close`."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def stage_paths(directory: Path) -> Iterator[tuple[Path, StageKey]]:
    """The files of stages in a table's directory of transactions; those that were not finished end with `~`.

    Raises:
        StoreFailed: The disk refused.
    """
    for name, parent in _names(directory).items():
        for path in entries_of(parent):
            key = _key_of(name, path.name.removesuffix("~"))
            if key is not None:
                yield path, key


def decision_paths(directory: Path) -> Iterator[tuple[str, Path]]:
    """Transaction names, and where the decision of each is, if it has one.

    Raises:
        StoreFailed: The disk refused.
    """
    for name, parent in _names(directory).items():
        yield name, parent / _DECISION_NAME


def _names(directory: Path) -> dict[str, Path]:
    return {
        path.name.removeprefix(_PREFIX): path
        for path in entries_of(directory)
        if path.name.startswith(_PREFIX) and path.is_dir()
    }


def _file_name(key: StageKey) -> str:
    numbers = ".".join(map(str, key[1:6]))
    return f"{numbers}.{key.session.hex()}.stage"


def _key_of(name: str, file_name: str) -> StageKey | None:
    """The stage that a file is; None: it is none."""
    found = _STAGE.fullmatch(file_name)
    if found is None:
        return None
    version, part, attempt, sequence, staged_ms = map(int, found.groups()[:5])
    return StageKey(name, version, part, attempt, sequence, staged_ms, bytes.fromhex(found[6]))
