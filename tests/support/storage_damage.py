"""Damage for storage tests: flipped bytes in real files, records removed behind the store's back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import rocksdict

from scanner.storage.rocksdb.changelog import offset_of_key


def file_with(directory: Path, needle: bytes) -> tuple[Path, int]:
    """The largest table file of bucket 0 that holds some bytes, and where: the rows' file; changes are compressed."""
    for path in sorted(directory.glob("tables/*/0000/*.sst"), key=lambda path: -path.stat().st_size):
        at = path.read_bytes().find(needle)
        if at >= 0:
            return path, at
    raise AssertionError(f"no file holds {needle!r}")


def flip(path: Path, at: int) -> None:
    """Invert one byte; a second time restores it."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0xFF]))


@contextmanager
def raw_database(directory: Path) -> Iterator[rocksdict.Rdict]:
    """Bucket 0 of the only table, opened past the store, which must be closed."""
    (path,) = directory.glob("tables/*/0000")
    families = {name: rocksdict.Options(raw_mode=True) for name in ("kv", "log", "meta")}
    raw = rocksdict.Rdict(str(path), rocksdict.Options(raw_mode=True), families)
    try:
        yield raw
    finally:
        raw.close()


def delete_change(directory: Path, offset: int) -> None:
    """Remove the chunk of the log that begins at an offset."""
    with raw_database(directory) as raw:
        log = raw.get_column_family("log")
        log.delete(chunk_key(log, offset))
        log.flush()


def chunk_key(log: rocksdict.Rdict, offset: int) -> bytes:
    """The key of the chunk of the log that begins at an offset."""
    keys = [key for key in log.keys() if isinstance(key, bytes)]  # noqa: SIM118
    (found,) = [key for key in keys if offset_of_key(key) == offset]
    return found


def delete_chunk(directory: Path, number: int) -> None:
    """Remove one chunk of the log, counted from its beginning."""
    with raw_database(directory) as raw:
        log = raw.get_column_family("log")
        log.delete(list(log.keys())[number])
        log.flush()
