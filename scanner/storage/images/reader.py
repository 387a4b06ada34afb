"""Reads an image, block by block, and believes nothing that its checksum does not confirm.

The file is read, never mapped: a mapped file that gets shorter kills the process, and its cold pages stop the event
loop. What the page cache holds is read at once; for the rest there is `Image.fetch`, to be run in a thread.

This module knows no scans and no buckets.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from scanner.data.digest import checksum
from scanner.storage.images.format import (
    HEAD_PREFIX_BYTES,
    TAIL_BYTES,
    BlockPlace,
    ImageDamaged,
    decode_header,
    decode_index,
    decode_tail,
    head_body_bytes,
)
from scanner.storage.images.statistics import column_ranges, decode_statistics

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from scanner.data.block_ranges import ColumnRanges
    from scanner.storage.images.format import FileId

_READ_AHEAD: Final = 8
"""Blocks that are asked of the disk together: 16 MiB of a table of one bucket."""
_NOWAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)
_NO_NOWAIT: Final = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""What a file system says that cannot tell whether it would wait."""


@dataclass(frozen=True, slots=True)
class ImageBlock:
    """Some rows of a bucket, as they were read and checked."""

    payload: pa.Buffer
    """Arrow IPC record batch message of all columns of the image."""
    payload_crc32c: int
    crcs: NDArray[np.uint32]
    """Of each row: CRC-32C of the block's stored rows up to and with it."""
    ends: NDArray[np.uint32]
    """Of each row: length of these, in bytes."""
    last_key: bytes
    """Encoded key of the last row."""

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def size_bytes(self) -> int:
        """Memory that it takes."""
        size: int = self.payload.size + self.crcs.nbytes + self.ends.nbytes
        return size


class Image:
    """An open image. Its blocks are numbered from 0, in key order.

    Args:
        path: Its file.

    Raises:
        ImageDamaged: It is none, or not what was written.
        OSError: It cannot be read; FileNotFoundError: there is none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._holds = 0
        self._retired = False
        self.when_closed: Callable[[Image], None] | None = None
        """Called when its file is closed: nobody reads it any more."""
        try:
            status = os.fstat(self._file)
            self.file_id = file_id_of(status)
            """Which file it is, also when another one has its name."""
            self.size_bytes = status.st_size
            """Of the file."""
            self._open()
        except ImageDamaged as error:
            error.file_id = self.file_id
            os.close(self._file)
            raise
        except BaseException:
            os.close(self._file)
            raise

    def _open(self) -> None:
        prefix = self._read(0, HEAD_PREFIX_BYTES)
        head = prefix + self._read(HEAD_PREFIX_BYTES, head_body_bytes(prefix))
        self.header = decode_header(head)
        """What it is of."""
        tail = self._read(max(0, self.size_bytes - TAIL_BYTES), TAIL_BYTES)
        index = self._read(*decode_tail(tail, self.size_bytes))
        self._places, statistics = decode_index(index, tail, len(head))
        try:
            self._statistics = decode_statistics(statistics, self.header.schema)
        except ValueError as error:
            raise ImageDamaged(f"its statistics cannot be read: {error}") from error
        if self._statistics.num_rows != len(self._places):
            raise ImageDamaged("its statistics are not those of its blocks")
        self._last_keys = [place.last_key for place in self._places]
        self.rows = sum(place.rows for place in self._places)
        """In all blocks."""
        self.memory_bytes = len(index) + len(head) + 200 * len(self._places)
        """Estimate of what it takes while it is open and no block is read."""

    def __len__(self) -> int:
        return len(self._places)

    def block_of(self, key: bytes) -> int:
        """Number of the first block whose last key is not before this key; `len(self)`: there is none."""
        return bisect_left(self._last_keys, key)

    def last_key(self, number: int) -> bytes:
        """Encoded key of the last row of a block."""
        return self._last_keys[number]

    def place(self, number: int) -> BlockPlace:
        """What is known of a block without reading it."""
        return self._places[number]

    def ranges(self, field: pa.Field) -> ColumnRanges:
        """What is known of a column of the table, of each block."""
        rows = [place.rows for place in self._places]
        return column_ranges(self._statistics, self.header.schema, rows, field)

    def read_block(self, number: int) -> ImageBlock | None:
        """Read a block, if that needs no waiting for the disk.

        Returns:
            The block; None: `fetch` it first.

        Raises:
            ImageDamaged: It is not what was written, or cannot be read.
        """
        place = self._places[number]
        data = pa.allocate_buffer(place.size_bytes)
        read = self._read_cached(memoryview(data), place.at)
        return None if read is None else self._checked(data, read, place)

    def fetch(self, number: int, stop: int | None = None) -> ImageBlock:
        """Read a block, and have the system read those behind it. Blocks on the disk; any thread may call it.

        Args:
            number: Of the block.
            stop: Number of the first block behind it that will not be read; None: all will.

        Raises:
            ImageDamaged: It is not what was written, or cannot be read.
        """
        place = self._places[number]
        following = self._places[number : number + _READ_AHEAD][: None if stop is None else stop - number]
        data = pa.allocate_buffer(place.size_bytes)
        try:
            if hasattr(os, "posix_fadvise"):  # macOS has not.
                size = sum(each.size_bytes for each in following)
                os.posix_fadvise(self._file, place.at, size, os.POSIX_FADV_WILLNEED)
            read = _read_all(self._file, memoryview(data), place.at)
        except OSError as error:
            raise ImageDamaged(f"it cannot be read: {error.strerror or error}") from error
        return self._checked(data, read, place)

    def hold(self) -> None:
        """Keep it open until `release`."""
        self._holds += 1

    def release(self) -> None:
        """Give up one `hold`."""
        self._holds -= 1
        self._close_unused()

    def retire(self) -> None:
        """Close it as soon as nobody holds it. Idempotent."""
        self._retired = True
        self._close_unused()

    def _close_unused(self) -> None:
        if self._retired and not self._holds and self._file >= 0:
            os.close(self._file)
            self._file = -1
            if self.when_closed is not None:
                self.when_closed(self)

    def _read(self, at: int, size: int) -> bytes:
        if at + size > self.size_bytes:  # else the size is damaged, and may be more than there is memory
            raise ImageDamaged("it is shorter than it says")
        data = bytearray(size)
        if _read_all(self._file, memoryview(data), at) != size:
            raise ImageDamaged("it is shorter than it was")
        return bytes(data)

    def _read_cached(self, into: memoryview, at: int) -> int | None:
        """Read what is cached; None: not all of it is, or nothing tells, as on macOS."""
        if _NOWAIT is None:
            return None
        try:
            read = os.preadv(self._file, [into], at, _NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno not in _NO_NOWAIT:
                raise ImageDamaged(f"it cannot be read: {error.strerror or error}") from error
            return None
        # Too few may be a file that got shorter, or pages that are not cached: a reading that waits tells.
        return read if read == len(into) else None

    @staticmethod
    def _checked(data: pa.Buffer, read: int, place: BlockPlace) -> ImageBlock:
        if read != place.size_bytes:
            raise ImageDamaged("it is shorter than it was")
        payload = data.slice(0, place.payload_bytes)
        table = data.slice(place.payload_bytes)
        if checksum(payload) != place.payload_crc32c or checksum(table) != place.table_crc32c:
            raise ImageDamaged(f"the block at byte {place.at} is damaged")
        crcs, ends = np.frombuffer(table, "<u4").reshape(2, place.rows)
        return ImageBlock(payload, place.payload_crc32c, crcs, ends, place.last_key)


def file_id_of(status: os.stat_result) -> FileId:
    """Which file it is."""
    return status.st_dev, status.st_ino


def _read_all(descriptor: int, into: memoryview, at: int) -> int:
    """Read until the buffer is full or the file ends; how many bytes were read."""
    done = 0
    while done < len(into):
        read = os.preadv(descriptor, [into[done:]], at + done)
        if not read:
            break
        done += read
    return done
