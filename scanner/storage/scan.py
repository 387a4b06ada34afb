"""One scan of a bucket: reads bounded by rows and bytes, over whichever reader it was given.

The end is reported once it is proven (`scanner.storage.readers`); anything else is an error, never a short
scan. An error is kept: every further read raises it again.

RocksDB is let go of at the first chance: at the proven end, at an error, at close.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from scanner.errors import ScannerError, StoreClosed
from scanner.storage.interface import KeysOf, Rows

if TYPE_CHECKING:
    from scanner.storage.readers import RowReader

_PIECE_ROWS = 1024
"""Rows fetched at once: bounds what is read past `bytes_max` when rows suddenly get larger."""
_PIECE_GROWTH = 4
"""A piece has at most so many times the rows of the one before. The first has one: rows may have megabytes."""


class RocksScan:
    """See `scanner.storage.interface.BucketScan`.

    Args:
        reader: Where the rows come from; closed with the scan.
        path: Directory of the bucket, for messages.
        log_offset: What the rows are as of.
        keys_of: Keys of stored rows.
        on_close: Called once with the scan when it has let go of RocksDB.
    """

    def __init__(
        self,
        reader: RowReader,
        path: Path,
        log_offset: int,
        keys_of: KeysOf,
        on_close: Callable[[RocksScan], None],
    ) -> None:
        self._reader: RowReader | None = reader
        self._path = path
        self._log_offset = log_offset
        self._keys_of = keys_of
        self._on_close = on_close
        self._ahead: list[bytes] = []
        self._last_row: bytes | None = None
        self._row_bytes = 256
        """Estimate of the next rows' size, from the ones before."""
        self._piece_rows = 1
        self._error: ScannerError | None = None

    @property
    def log_offset(self) -> int:
        """The scan shows the changes with a smaller offset, and no other."""
        return self._log_offset

    @property
    def iterators(self) -> int:
        """RocksDB iterators that this scan alone holds."""
        return 0 if self._reader is None else self._reader.iterators

    def read(self, rows_max: int, bytes_max: int) -> Rows:
        """See `BucketScan.read`."""
        if self._error is not None:
            raise self._error.with_traceback(None)
        try:
            rows = self._read(rows_max, bytes_max)
            if not rows and self._reader is not None:
                self._reader.prove_end(self._last_row)
                self._release()
        except ScannerError as error:
            self._fail(error)
            raise
        return Rows(rows, self._keys_of)

    def close(self) -> None:
        """See `BucketScan.close`."""
        self._fail(StoreClosed(f"this scan of {self._path} was closed"))

    def _fail(self, error: ScannerError) -> None:
        if self._error is None:
            self._error = error
        self._ahead = []
        self._release()

    def _release(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
            self._on_close(self)

    def _read(self, rows_max: int, bytes_max: int) -> list[bytes]:
        rows: list[bytes] = []
        left = bytes_max
        while len(rows) < rows_max and left > 0:
            chunk = self._next_chunk(min(rows_max - len(rows), left // self._row_bytes + 1, self._piece_rows))
            if not chunk:
                break
            size = sum(map(len, chunk))
            self._row_bytes = max(1, size // len(chunk))
            self._piece_rows = min(_PIECE_ROWS, self._piece_rows * _PIECE_GROWTH)
            if size > left:
                fitting = _fitting(chunk, left)
                # A row larger than the limit goes alone.
                keep = fitting if rows or fitting else 1
                self._ahead = chunk[keep:] + self._ahead
                if size > left + bytes_max:
                    self._piece_rows = 1  # Sizes vary widely.
                chunk, left = chunk[:keep], 0
            else:
                left -= size
            rows += chunk
        if rows:
            self._last_row = rows[-1]
        return rows

    def _next_chunk(self, count: int) -> list[bytes]:
        if self._ahead:
            chunk, self._ahead = self._ahead[:count], self._ahead[count:]
            return chunk
        return [] if self._reader is None else self._reader.next_rows(count)


def _fitting(rows: list[bytes], bytes_max: int) -> int:
    """How many of the first rows take no more than `bytes_max` together."""
    for index, row in enumerate(rows):
        bytes_max -= len(row)
        if bytes_max < 0:
            return index
    return len(rows)
