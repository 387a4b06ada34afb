"""Where a scan stands: what a token carries, and all that a source needs to go on from there.

A position is just behind a stored row. It says nothing of the state that is scanned: together with a log
offset it names the rest of a scan exactly.

This module knows no storage and no wire.
"""

from __future__ import annotations

from dataclasses import dataclass

from scanner.data.digest import DIGEST_EMPTY
from scanner.data.keys import KeyRange, successor


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two stored rows of a scan."""

    last_key: bytes = b""
    """Encoded key of the last stored row that the digest covers; empty: the scan has covered none yet."""
    rows: int = 0
    """Rows delivered up to here, which is the ordinal of the next one."""
    digest: int = DIGEST_EMPTY
    """Digest of the scan up to here."""
    stored_bytes: int = 0
    """Length of the stored rows that the digest covers; with it digests of adjacent parts of a range combine."""

    def remaining(self, key_range: KeyRange) -> KeyRange:
        """The part of the scan's key range that lies behind this position; it never grows past the range."""
        if not self.last_key:
            return key_range
        return KeyRange(max(key_range.start, successor(self.last_key)), key_range.end)


START = Position()
"""In front of the first row."""
