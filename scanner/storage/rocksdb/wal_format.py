"""The format of RocksDB's write-ahead logs and of its MANIFEST: one record after the other, in fragments.

No fragment reaches over the end of a block of 32 KiB:

    octets  0-3   CRC-32C of what follows but the length, masked
            4-5   length of the data, little-endian
            6     whole, first, middle or last
            7-    data

This module knows nothing else of RocksDB.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from scanner.data.digest import checksum

_BLOCK_BYTES: Final = 32 * 1024
_HEADER: Final = struct.Struct("<IHB")
_DAMAGE, _WHOLE, _FIRST, _MIDDLE, _LAST = range(5)
_BEGINS: Final = re.compile(rb"[\x01\x02]")


def first_damage(path: Path) -> int | None:
    """From which place on a file is not one whole record after the other; None: it is, to its end.

    Raises:
        OSError: It cannot be read.
    """
    return next((place for kind, place, _ in _fragments(path) if kind == _DAMAGE), None)


def record_heads(path: Path, size: int) -> Iterator[tuple[bytes, int]]:
    """The first octets of each record in front of the first damage, and the place where it ends.

    Raises:
        OSError: It cannot be read.
    """
    head = b""
    for kind, place, data in _fragments(path):
        head = data[:size] if kind in (_WHOLE, _FIRST) else (head + data[:size])[:size]
        if kind in (_WHOLE, _LAST):
            yield head, place + _HEADER.size + len(data)


def begins_after(path: Path, place: int) -> bool:
    """Whether a record begins at a place or behind it: wherever that is, since lengths before it may be wrong.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        at = place % _BLOCK_BYTES
        file.seek(place - at)
        while block := file.read(_BLOCK_BYTES):
            for found in _BEGINS.finditer(block, at + _HEADER.size - 1):
                if _fragment(block, found.start() - _HEADER.size + 1)[0]:
                    return True
            at = 0
    return False


def _fragments(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Kind, place and data of each fragment, as far as one follows the other; then of the damage, if there is any."""
    inside = False
    number = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            at = 0
            while at + _HEADER.size <= len(block):
                place = number * _BLOCK_BYTES + at
                kind, end = _fragment(block, at)
                if kind not in ((_MIDDLE, _LAST) if inside else (_WHOLE, _FIRST)):
                    yield _DAMAGE, place, b""
                    return
                yield kind, place, block[at + _HEADER.size : end]
                inside = kind in (_FIRST, _MIDDLE)
                at = end
            number += 1
        if inside:
            yield _DAMAGE, file.tell(), b""


def _fragment(block: bytes, at: int) -> tuple[int, int]:
    """Kind of the fragment at a place of a block, and where it ends."""
    masked, size, kind = _HEADER.unpack_from(block, at)
    end = at + _HEADER.size + size
    if kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST) or end > len(block):
        return _DAMAGE, end
    crc = checksum(block[at + _HEADER.size - 1 : end])
    return (kind if masked == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF else _DAMAGE), end
