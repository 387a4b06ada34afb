"""Tells what a power failure has torn off a write-ahead log from damage.

A commit is one record, and the next one is written once that is synced. A power failure leaves of what was not synced
some pages and not others, in any order: the end of a record, its length or its middle may be there without the rest.
RocksDB drops a record that is too short, and takes any other that is not whole for damage, even if it is the last.

So the newest record, and no other, may be in pieces: nothing begins behind it. A piece of a log is taken for damage as
soon as a whole record begins behind it, since that was written after it was synced.

A record lies in fragments, none of which reaches over the end of a block of 32 KiB:

    octets  0-3   CRC-32C of what follows but the length, masked
            4-5   length of the data, little-endian
            6     whole, first, middle or last
            7-    data

This module knows no RocksDB but the format of its logs.
"""

from __future__ import annotations

import re
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

from scanner.data.digest import checksum

_BLOCK_BYTES: Final = 32 * 1024
_HEADER: Final = struct.Struct("<IHB")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_BEGINS: Final = re.compile(rb"[\x01\x02]")
_LOG: Final = re.compile(r"(\d+)\.log")


def has_torn_tail(directory: Path) -> bool:
    """Whether the newest record of a database's write-ahead logs is in pieces, and nothing else in them is damaged.

    Not if they cannot be read.
    """
    with suppress(OSError):
        numbered = {
            int(found[1]): path for path in directory.iterdir() if (found := _LOG.fullmatch(path.name))
        }
        logs = [path for _, path in sorted(numbered.items()) if path.stat().st_size]
        if logs and not any(map(_first_damage, logs[:-1])):
            damage = _first_damage(logs[-1])
            return damage is not None and not _begins_after(logs[-1], *damage)
    return False


def _first_damage(log: Path) -> tuple[int, int] | None:
    """Number of the block, and place in it, from which on a log is not one whole record after the other."""
    inside = False
    with log.open("rb") as file:
        number = 0
        while block := file.read(_BLOCK_BYTES):
            at = 0
            while at + _HEADER.size <= len(block):
                kind, end = _fragment(block, at)
                if kind not in ((_MIDDLE, _LAST) if inside else (_WHOLE, _FIRST)):
                    return number, at
                inside = kind in (_FIRST, _MIDDLE)
                at = end
            number += 1
    return (number, 0) if inside else None


def _begins_after(log: Path, number: int, at: int) -> bool:
    """Whether a record begins at a place or behind it: wherever that is, since lengths before it may be wrong."""
    with log.open("rb") as file:
        file.seek(number * _BLOCK_BYTES)
        while block := file.read(_BLOCK_BYTES):
            for found in _BEGINS.finditer(block, at + _HEADER.size - 1):
                if _fragment(block, found.start() - _HEADER.size + 1)[0]:
                    return True
            at = 0
    return False


def _fragment(block: bytes, at: int) -> tuple[int, int]:
    """Kind of the fragment at a place of a block, and where it ends; kind 0: there is no whole one."""
    masked, size, kind = _HEADER.unpack_from(block, at)
    end = at + _HEADER.size + size
    if kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST) or end > len(block):
        return 0, end
    crc = checksum(block[at + _HEADER.size - 1 : end])
    return (kind if masked == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF else 0), end
