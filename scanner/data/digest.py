"""CRC-32C over buffers: the checksum of a batch, and the digest of a scan.

A scan's digest is the CRC-32C of its stored rows, concatenated in key order. CRC-32C of a concatenation is
built up piece by piece, so the digest does not depend on how the rows were cut into batches. Nothing is
copied: whatever offers a contiguous buffer is read where it is.

This module knows no rows and no batches.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING

import google_crc32c
import pyarrow as pa

if TYPE_CHECKING:
    from typing_extensions import Buffer

DIGEST_EMPTY = 0
"""Digest of a scan that has no rows yet."""


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


def combine_digests(digests: Iterable[int]) -> int:
    """Digest of a table scan: CRC-32C over its buckets' digests, as little-endian u32, in bucket order."""
    return checksum(b"".join(struct.pack("<I", digest) for digest in digests))
