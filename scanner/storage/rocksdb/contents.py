"""Reads every row and every change of a bucket's database, or of a checkpoint of one, and says what is not whole.

What is not readable ends only the part of the reading that needs it: of a bucket whose log has a hole the rows are
still looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from rocksdict import ReadOptions

from scanner.data.digest import DIGEST_EMPTY
from scanner.data.keys import KeyCodec, buckets_of
from scanner.data.row_block import RowBlock
from scanner.data.rows import RowCodec
from scanner.errors import DataCorrupted, ScannerError
from scanner.storage.lineage import Lineage
from scanner.storage.rocksdb.agreement import Agreement, among, hashes_of
from scanner.storage.rocksdb.changelog import (
    EMPTY_RANGE,
    LogChunk,
    LogRange,
    decode_chunk,
    log_key,
)
from scanner.storage.rocksdb.database import Database, rocksdb_errors
from scanner.storage.rocksdb.log import read_lineage, require_log_range
from scanner.storage.rocksdb.unfinished import unfinished_range

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from scanner.storage.rocksdb.agreement import Hashes
    from scanner.storage.rocksdb.catalog import TableEntry

_RECORDS_AT_ONCE: Final = 4096
_BYTES_AT_ONCE: Final = 4 * 1024 * 1024
_ESTIMATED_KEYS: Final = "rocksdb.estimate-num-keys"

OnRead = Callable[[Path, float, int], None]
"""Called with the directory of a database, the share of it that was read, and the rows and changes read so far."""


def _silent(*_: object) -> None:
    pass


@dataclass(slots=True)
class Reader:
    """Reads rows and changes of one table's databases.

    Args:
        entry: Of the table.
        on_read: Called with the progress.
    """

    entry: TableEntry
    on_read: OnRead = _silent
    keys: KeyCodec = field(init=False)
    rows_codec: RowCodec = field(init=False)
    _directory: Path = field(init=False, default=Path())
    _records: int = field(init=False, default=0)
    _pass: _Pass = field(init=False)

    def __post_init__(self) -> None:
        self.keys = KeyCodec(self.entry.description)
        older = dict(enumerate(self.entry.older_schemas))
        self.rows_codec = RowCodec(self.entry.description.schema, self.entry.schema_id, older)
        self._pass = _Pass(1)

    def begin(self, directory: Path) -> None:
        """Begin with a database, whose directory this is."""
        self._directory, self._records, self._pass = directory, 0, _Pass(1)

    def begin_pass(
        self, database: Database, log_range: LogRange, part: Callable[[], tuple[float, float]]
    ) -> None:
        """Begin to read all of a database.

        Args:
            database: It.
            log_range: Of its changelog.
            part: Which share of the work this pass is, as it stands: where it begins and where it ends, 0.0 to 1.0.
        """
        with rocksdb_errors(database.path):
            rows = database.kv.property_int_value(_ESTIMATED_KEYS) or 0
        self._pass = _Pass(max(1, rows + log_range.end - log_range.start), part)

    def _count(self, records: int) -> None:
        self._records += records
        self.on_read(self._directory, self._pass.add(records), self._records)

    def keys_of(self, rows: RowBlock) -> pa.BinaryArray:
        """Keys of stored rows; DataCorrupted: some row is not one of this table."""
        return self.keys.encode_array(rows.decode(self.rows_codec, self.keys.schema.names))

    def name_of(self, key: bytes) -> str:
        """A key, for people."""
        try:
            return repr(self.keys.decode(key))
        except ScannerError:
            return key.hex()

    def stored(self, database: Database) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Keys and rows as they are stored, some at a time.

        Raises:
            DataCorrupted, StoreFailed: A read failed; the rows before it were given.
        """
        for keys, rows in _pairs(database, database.kv, b"", b""):
            self._count(len(rows))
            yield keys, rows

    def chunks(self, database: Database, log_range: LogRange) -> Iterator[list[LogChunk]]:
        """The chunks that exist of the log's range, some at a time.

        Raises:
            DataCorrupted, StoreFailed: One cannot be read; those before it were given.
        """
        start = log_key(log_range.start, log_range.start_ordinal)
        some: list[LogChunk] = []
        count = size = 0
        failure = None
        try:
            for key, value in _each(_pairs(database, database.log, start, log_key(log_range.end))):
                with _named(database.path):
                    chunk = decode_chunk(key, value)
                some.append(chunk)
                count, size = count + len(chunk), size + chunk.rows.nbytes
                if count >= _RECORDS_AT_ONCE or size >= _BYTES_AT_ONCE:
                    self._count(count)
                    yield some
                    some, count, size = [], 0, 0
        except ScannerError as error:
            failure = error
        if some:
            self._count(count)
            yield some
        if failure is not None:
            raise failure

    def changes(
        self, database: Database, log_range: LogRange, suspected: Hashes | None
    ) -> Iterator[tuple[int, int, bytes, bytes]]:
        """Offset, kind, key and row of each change of a key whose hash is suspected; None: of all."""
        for chunks in self.chunks(database, log_range):
            kinds, rows = joined(chunks)
            keys = self.keys_of(rows).to_pylist()
            for index in np.flatnonzero(among(hashes_of(keys), suspected)).tolist():
                yield chunks[0].offset + index, int(kinds[index]), keys[index], rows.row(index)

    def pairs(self, database: Database, suspected: Hashes | None) -> Iterator[tuple[bytes, bytes]]:
        """Key and row of each row whose key's hash is suspected; None: of all."""
        for keys, rows in self.stored(database):
            for index in np.flatnonzero(among(hashes_of(keys), suspected)).tolist():
                yield keys[index], rows[index]


def _each(pieces: Iterator[tuple[list[bytes], list[bytes]]]) -> Iterator[tuple[bytes, bytes]]:
    for keys, values in pieces:
        yield from zip(keys, values, strict=True)


def joined(chunks: list[LogChunk]) -> tuple[NDArray[np.uint8], RowBlock]:
    """Kinds and rows of adjacent chunks."""
    return np.concatenate([chunk.kinds for chunk in chunks]), RowBlock.concat(
        [chunk.rows for chunk in chunks]
    )


class _Pass:
    """How far a pass over a database is."""

    def __init__(self, expected: int, part: Callable[[], tuple[float, float]] = lambda: (0.0, 1.0)) -> None:
        self._expected = expected
        """Records, about."""
        self._part = part
        self._records = 0

    def add(self, records: int) -> float:
        """Count records; returns the share of the work that is done."""
        self._records += records
        start, end = self._part()
        return start + (end - start) * min(1.0, self._records / self._expected)


@dataclass(slots=True)
class Contents:
    """What a database holds, and what is wrong with it."""

    is_known: bool = False
    """Whether range and lineage could be read; else they are empty."""
    log_range: LogRange = EMPTY_RANGE
    lineage: Lineage = field(default_factory=Lineage)
    sequence: int = 0
    """RocksDB's number of the newest change, in rows, log or meta."""
    rows: int = 0
    changes: int = 0
    digest: int = DIGEST_EMPTY
    """CRC-32C over the rows in key order, as of a scan."""
    problems: list[str] = field(default_factory=list)
    """In one line each; none: rows and log are whole, each by itself."""
    unfinished: int = 0
    """Changes of a transaction that was being applied; they are in `log_range`, and the next open undoes them."""


def read_contents(
    database: Database, reader: Reader, index: int, agreement: Agreement | None = None
) -> Contents:
    """Read all rows and all changes of a database.

    Args:
        database: Of the bucket or of a checkpoint.
        reader: Of the table.
        index: Of the bucket.
        agreement: Given both in its first pass, as long as there are no problems.
    """
    contents = Contents()
    try:
        with _named(database.path):
            contents.log_range = require_log_range(database)
            contents.lineage = read_lineage(database)
            contents.sequence = database.rocks.latest_sequence_number()
            _require_begun(contents)
            reached = unfinished_range(database)
            if reached is not None:
                contents.unfinished = reached.end - contents.log_range.end
                contents.log_range = reached
    except ScannerError as error:
        contents.problems.append(error.message)
    else:
        contents.is_known = True
        if agreement is not None:
            agreement.begin(complete=contents.log_range.start == 0)
            reader.begin_pass(database, contents.log_range, lambda: agreement.part)
        else:
            reader.begin_pass(database, contents.log_range, lambda: (0.0, 1.0))
        _read_log(database, reader, index, contents, agreement)
    _read_rows(database, reader, index, contents, None if contents.problems else agreement)
    return contents


def _require_begun(contents: Contents) -> None:
    histories, end = contents.lineage.histories, contents.log_range.end
    if end and not histories:
        raise DataCorrupted(f"its log ends at {end}, and its lineage is empty")
    if not contents.lineage.fits(end):
        raise DataCorrupted(
            f"its log ends at {end}, before its newest history begins, at {histories[-1].start}"
        )


def _read_rows(
    database: Database, reader: Reader, index: int, contents: Contents, agreement: Agreement | None
) -> None:
    buckets = reader.entry.description.buckets
    other_keys, elsewhere = _Some(reader), _Some(reader)
    try:
        for keys, rows in reader.stored(database):
            contents.rows += len(rows)
            block = RowBlock.join(rows)
            with _named(database.path):
                proper = reader.keys_of(block).to_pylist()
            contents.digest = block.digest(contents.digest)
            if proper != keys:
                other_keys.add([key for key, own in zip(keys, proper, strict=True) if key != own])
            stray = np.flatnonzero(buckets_of(pa.array(keys, pa.binary()), buckets) != index)
            elsewhere.add([keys[place] for place in stray.tolist()])
            if agreement is not None:
                agreement.add_rows(hashes_of(keys), hashes_of(rows))
    except ScannerError as error:
        contents.problems.append(f"rows cannot be read: {error.message}")
    if other_keys.count:
        contents.problems.append(f"{other_keys} of another key are stored under the key of this one")
    if elsewhere.count:
        contents.problems.append(f"{elsewhere} belong into another bucket")


class _Some:
    """Counts rows, and remembers the first one."""

    def __init__(self, reader: Reader) -> None:
        self.count = 0
        self._reader = reader
        self._first = b""

    def add(self, keys: list[bytes]) -> None:
        if keys and not self.count:
            self._first = keys[0]
        self.count += len(keys)

    def __str__(self) -> str:
        return f"{self.count} rows (the first one: {self._reader.name_of(self._first)})"


def _read_log(
    database: Database, reader: Reader, index: int, contents: Contents, agreement: Agreement | None
) -> None:
    """Look at every chunk: nothing is missing, entries follow each other, each is whole."""
    log_range, problems = contents.log_range, contents.problems
    at, ordinal = log_range.start, log_range.start_ordinal
    entry = None
    missing = 0
    try:
        for chunks in reader.chunks(database, log_range):
            kinds, rows = joined(chunks)
            keys = _keys_in_bucket(reader, rows, index)
            for chunk in chunks:
                contents.changes += len(chunk)
                if (chunk.offset, chunk.ordinal) != (at, ordinal):
                    missing += max(1, chunk.offset - at)
                    if len(problems) < 1:
                        problems.append(
                            f"the changelog has a hole at offset {at}: offset {chunk.offset} follows"
                        )
                elif (entry is None or at == entry.end) != (chunk.offset == chunk.entry.start) or (
                    entry is not None and at < entry.end and chunk.entry != entry
                ):
                    problems.append(f"the changelog's entry at offset {at} does not follow the one before")
                elif (
                    entry is not None
                    and chunk.entry != entry
                    and chunk.entry.timestamp_us <= entry.timestamp_us
                ):
                    problems.append(f"the commit time at offset {at} is not above the one before")
                if keys is None:
                    with _named(database.path):
                        _require_in_bucket(reader, chunk, index)
                at, ordinal, entry = chunk.end, chunk.ordinal + 1, chunk.entry
            if agreement is not None and keys is not None and not problems:
                agreement.add_changes(kinds, hashes_of(keys.to_pylist()), hashes_of(rows.to_list()))
    except ScannerError as error:
        problems.append(f"the changelog cannot be read from offset {at} on: {error.message}")
        return
    if (at, ordinal) != (log_range.end, log_range.end_ordinal):
        missing += abs(log_range.end - at)
        problems.append(f"the changelog ends at offset {at}, and should end at {log_range.end}")
    elif entry is not None and entry.end != at:
        problems.append(f"the changelog's last entry is cut off at offset {at}")
    if missing:
        problems.append(f"{missing} changes are missing in the changelog")
    _require_nothing_outside(database, contents)


def _keys_in_bucket(reader: Reader, rows: RowBlock, index: int) -> pa.BinaryArray | None:
    """The keys of rows; None: some cannot be read, or belong into another bucket."""
    try:
        keys = reader.keys_of(rows)
    except ScannerError:
        return None
    return keys if (buckets_of(keys, reader.entry.description.buckets) == index).all() else None


def _require_in_bucket(reader: Reader, chunk: LogChunk, index: int) -> None:
    """See that the rows of a chunk can be read, and are of this bucket."""
    if (buckets_of(reader.keys_of(chunk.rows), reader.entry.description.buckets) != index).any():
        raise DataCorrupted(f"some of the changes from offset {chunk.offset} on belong into another bucket")


def _require_nothing_outside(database: Database, contents: Contents) -> None:
    """Look for changes behind the log's end, which the next commit would take for its own."""
    try:
        behind = next(_pairs(database, database.log, log_key(contents.log_range.end), b""), None)
    except ScannerError as error:
        contents.problems.append(f"behind the changelog's end something cannot be read: {error.message}")
        return
    if behind is not None:
        contents.problems.append("there are changes behind the changelog's end")


def _pairs(
    database: Database, family: object, start: bytes, end: bytes
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Keys and values of a column family, in order, some at a time, until the end is proven.

    Raises:
        DataCorrupted, StoreFailed: A read failed; what was read before was given.
    """
    options = ReadOptions()
    options.set_verify_checksums(True)
    options.fill_cache(False)  # type: ignore[call-arg]  # Its stub has no argument.
    if end:
        options.set_iterate_upper_bound(end)
    with rocksdb_errors(database.path):
        iterator = family.iter(options)  # type: ignore[attr-defined]
        iterator.seek(start) if start else iterator.seek_to_first()
    is_valid, key_of, value_of, advance = iterator.valid, iterator.key, iterator.value, iterator.next
    try:
        ended = False
        while not ended:
            keys: list[bytes] = []
            values: list[bytes] = []
            size, failure = 0, None
            try:
                with rocksdb_errors(database.path):
                    while len(keys) < _RECORDS_AT_ONCE and size < _BYTES_AT_ONCE and not ended:
                        if is_valid():
                            value = value_of()
                            keys.append(key_of())
                            values.append(value)
                            size += len(value)
                            advance()
                        else:
                            ended = True
                            iterator.status()
            except ScannerError as error:
                failure = error
            if keys:
                yield keys, values
            if failure is not None:
                raise failure
    finally:
        # An error is kept, its traceback keeps this frame, and the frame would keep the database open.
        del iterator, is_valid, key_of, value_of, advance


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Let an error of a codec say which database it is about."""
    try:
        yield
    except DataCorrupted as error:
        message = error.message
        raise DataCorrupted(message if str(path) in message else f"{path}: {message}") from error
