"""Entries of the changelog, from plain bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from scanner.storage.rocksdb.changelog import encode_entry

if TYPE_CHECKING:
    from scanner.storage.records import Entry


def chunks(entry: Entry, ordinal: int, kinds: bytes, rows: list[bytes]) -> list[tuple[bytes, bytes]]:
    """The stored keys and values of an entry."""
    return list(encode_entry(entry, ordinal, np.frombuffer(kinds, np.uint8), pa.array(rows, pa.binary())))
