"""Writes an image: blocks one after another into a file beside it, and its name once all of it is durable.

What was written goes to the disk a few MiB at a time. Left to the end it would be one long sync, and the commits of
buckets on the same disk would wait for it.

This module knows no buckets and no codec. Everything here blocks on the disk; meant for a worker thread.
"""

from __future__ import annotations

import os
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Final

from scanner.data.digest import checksum
from scanner.errors import DiskFull, StoreFailed
from scanner.storage.images.format import BlockPlace, ImageHeader, encode_end, row_table
from scanner.storage.images.removal import UNFINISHED
from scanner.storage.images.statistics import block_statistics, encode_statistics
from scanner.storage.rocksdb.files import FILE_MODE, disk_errors, sync_directory

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    import pyarrow as pa

    from scanner.data.row_block import RowBlock

_SYNC_BYTES: Final = 8 * 1024 * 1024


class ImageWriter:
    """One image that is being written.

    Args:
        path: What it is to be called; its directory exists.
        header: What it is of.
        bytes_max: Longer it must not get.

    Raises:
        StoreFailed: The disk refused.
    """

    def __init__(self, path: Path, header: ImageHeader, bytes_max: int) -> None:
        self._path = path
        self._unfinished = path.with_name(path.name + UNFINISHED)
        self.bytes_max = bytes_max
        """May change at any time."""
        self._schema = header.schema
        self._places: list[BlockPlace] = []
        self._statistics: list[pa.RecordBatch] = []
        with disk_errors(self._unfinished):
            self._unfinished.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._file = os.fdopen(os.open(self._unfinished, flags, FILE_MODE), "wb")
        self.size_bytes = 0
        """Written so far."""
        self._synced_bytes = 0
        try:
            self._write(header.encode())
        except BaseException:
            self.abort()
            raise

    def add(self, rows: pa.RecordBatch, stored: RowBlock, last_key: bytes) -> None:
        """Write a block.

        Args:
            rows: At least one, with all columns; those behind what was added before, in key order.
            stored: The same rows as they are stored.
            last_key: Encoded key of the last of them.

        Raises:
            DiskFull: The image would get longer than it may.
            StoreFailed: The disk refused.
        """
        payload = rows.serialize()
        numbers = row_table(stored)
        table = numbers.tobytes()
        stored_crc32c, stored_bytes = (int(each[-1]) for each in numbers)
        place = BlockPlace(
            self.size_bytes,
            payload.size,
            checksum(payload),
            rows.num_rows,
            checksum(table),
            stored.row_bytes_max,
            stored_bytes,
            stored_crc32c,
            last_key,
        )
        if self.size_bytes + place.size_bytes > self.bytes_max:
            raise DiskFull(
                f"an image would take more than the {max(0, self.bytes_max)} bytes that it may: all images together"
                " take image_disk_bytes_max, and one half of the free disk"
            )
        self._write(payload)
        self._write(table)
        self._places.append(place)
        self._statistics.append(block_statistics(rows))
        if self.size_bytes - self._synced_bytes >= _SYNC_BYTES:
            self._sync()

    def finish(self, naming: AbstractContextManager[object] | None = None) -> None:
        """Write the index, and give the file its name; it is durable then, and so is its name if the disk lets us.

        Args:
            naming: Held while the name changes its file.

        Raises:
            StoreFailed: The disk refused; what had the name has it still.
        """
        statistics = encode_statistics(self._statistics, self._schema)
        self._write(encode_end(self._places, statistics, self.size_bytes))
        self._sync()
        with disk_errors(self._path):
            self._file.close()
            with naming or nullcontext():
                self._unfinished.replace(self._path)
        with suppress(OSError):  # It is there. Whichever file has the name after a crash is whole.
            sync_directory(self._path.parent)

    def abort(self) -> None:
        """Remove what is not finished, as far as the disk lets us. Idempotent; without effect after `finish`."""
        with suppress(OSError, StoreFailed):
            self._file.close()
        with suppress(OSError):
            self._unfinished.unlink(missing_ok=True)

    def _sync(self) -> None:
        with disk_errors(self._unfinished):
            self._file.flush()
            os.fsync(self._file.fileno())
        self._synced_bytes = self.size_bytes

    def _write(self, data: bytes | pa.Buffer) -> None:
        with disk_errors(self._unfinished):
            self._file.write(data)
        self.size_bytes += len(data)
