"""CRC-32C over buffers: the checksum of a batch, and the digest of a scan.

A scan's digest is the CRC-32C of its stored rows, concatenated in key order. CRC-32C of a concatenation is
built up piece by piece, so the digest does not depend on how the rows were cut into batches. Nothing is
copied: whatever offers a contiguous buffer is read where it is.

This module knows no rows and no batches.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import google_crc32c
import numpy as np
import pyarrow as pa

from scanner.data.crc_shift import POLYNOMIAL, shifted
from scanner.data.octets import octets_of
from scanner.errors import ArgumentInvalid

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

DIGEST_EMPTY = 0
"""Digest of a scan that has no rows yet."""
_TABLE_BYTES_MAX: Final = 24
"""Values of one length are taken an octet of all of them at a time; longer ones are quicker one by one."""
_TABLE_VALUES_MIN: Final = 64
"""Fewer are quicker one by one, too."""


def _crc_table() -> NDArray[np.uint32]:
    """What an octet makes of a CRC-32C of zero, for each octet."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ np.uint32(POLYNOMIAL), table >> 1).astype(np.uint32)
    return table


_TABLE: Final = _crc_table()


def checksum(data: Buffer, crc: int = DIGEST_EMPTY) -> int:
    """Continue a CRC-32C with more bytes.

    Args:
        data: Any contiguous buffer; it is not retained.
        crc: The CRC-32C of everything before `data`.

    Returns:
        The CRC-32C of everything up to the end of `data`, 0 to 2**32 - 1.
    """
    if not isinstance(data, bytes):
        # The C extension takes no memoryview or bytearray; Arrow's wrapper around either is fine, and free.
        data = pa.py_buffer(data)
    # The library's annotation names bytes alone, and is narrower than what it takes.
    return int(google_crc32c.extend(crc, data))


def checksums(values: pa.BinaryArray) -> NDArray[np.uint32]:
    """The CRC-32C of each value of a binary array without nulls."""
    octets = octets_of(values) if len(values) >= _TABLE_VALUES_MIN else None
    if octets is None or octets.shape[1] > _TABLE_BYTES_MAX:
        return np.fromiter(map(google_crc32c.value, values.to_pylist()), np.uint32, len(values))
    crcs = np.full(len(values), 0xFFFFFFFF, np.uint32)
    for column in range(octets.shape[1]):
        crcs = _TABLE[(crcs ^ octets[:, column]) & np.uint32(0xFF)] ^ (crcs >> np.uint32(8))
    return ~crcs


def join_digests(parts: Iterable[tuple[int | None, int | None]]) -> int:
    """Digest of a bucket's scan, from those of scans of adjacent key ranges that together are all of it.

    It depends on the order of the parts: a digest is of rows in key order, and the parts are joined in that order.

    Args:
        parts: In key order, of each range: the digest, 0 to 2**32 - 1, and the length of the stored rows that it
            covers, bytes, 0 or more. All as of one log offset.

    Returns:
        What one scan of all of the ranges has as its digest.

    Raises:
        ArgumentInvalid: A range has None: its scan has not come to its end.
    """
    joined = DIGEST_EMPTY
    for place, (digest, stored_bytes) in enumerate(parts):
        if digest is None or stored_bytes is None:
            raise ArgumentInvalid(f"part {place} has no digest, since its scan has not come to its end")
        joined = shifted(joined, stored_bytes) ^ digest
    return joined


def combine_digests(digests: Iterable[int]) -> int:
    """Digest of a table scan: CRC-32C over its buckets' digests, as little-endian u32, in bucket order."""
    return checksum(b"".join(struct.pack("<I", digest) for digest in digests))
