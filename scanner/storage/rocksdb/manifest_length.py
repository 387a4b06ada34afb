"""How long a bucket's MANIFEST was when its database was opened, flushed or closed, in a small file beside it.

When RocksDB opens a database it replays the write-ahead logs, writes their contents into files, one column family after
another, and adds a record for each to the MANIFEST. Then the logs go. A MANIFEST that later loses the last of these
records, or has zeros there, opens without complaint: RocksDB takes it for one whose writer was killed. The rows are
then newer than the changelog, a state that never was. The same goes for a flush that is asked for, and for closing,
which flush each family by itself. What RocksDB appends by itself counts for all families or for none.

    octets  0-3   "WMAN"
            4     format, 1
            5-12  number of the MANIFEST, big-endian
            13-20 its length in bytes
            21-24 CRC-32C of the bucket's identity and of what precedes

The file is not synced: what a power failure leaves of it says nothing, or says what is true. For that the MANIFEST is
synced first: RocksDB may just be appending what it has compacted by itself, and would sync it later.

This module knows no RocksDB.
"""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path
from typing import Final

from scanner.data.digest import checksum

NAME: Final = "OPENED-MANIFEST"
_FIELDS: Final = struct.Struct(">4sBQQ")
_CHECKSUM: Final = struct.Struct(">I")
_MAGIC: Final = b"WMAN"
_FORMAT: Final = 1


def write_manifest_length(directory: Path, identity: bytes) -> None:
    """Note how long the MANIFEST is now, when the database has been opened for writing, flushed or closed.

    A disk that refuses is no reason to stay closed: nothing is known then.
    """
    try:
        manifest = current_manifest(directory)
        with manifest.open("rb") as file:
            length = os.fstat(file.fileno()).st_size
            os.fsync(file.fileno())  # Else the note could outlive what it counts.
        fields = _FIELDS.pack(_MAGIC, _FORMAT, _number(manifest), length)
        descriptor = os.open(directory / NAME, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, fields + _CHECKSUM.pack(checksum(fields, checksum(identity))), 0)
        finally:
            os.close(descriptor)
    except (OSError, ValueError):
        pass


def noted_length(directory: Path, identity: bytes) -> int:
    """How long the MANIFEST that is in use was when that was noted last.

    0, where the file is missing, damaged, of another bucket or of another MANIFEST: nothing is known then.

    Raises:
        OSError, ValueError: As `current_manifest`; or there is no descriptor for the file, which says nothing of it.
    """
    in_use = _number(current_manifest(directory))
    try:
        content = (directory / NAME).read_bytes()
        fields, (crc,) = content[: _FIELDS.size], _CHECKSUM.unpack(content[_FIELDS.size :])
        magic, form, number, length = _FIELDS.unpack(fields)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return 0
    except struct.error:
        return 0
    if (magic, form, number, crc) != (_MAGIC, _FORMAT, in_use, checksum(fields, checksum(identity))):
        return 0
    return int(length)


def current_manifest(directory: Path) -> Path:
    """The MANIFEST that is in use.

    Raises:
        OSError: It cannot be read which one that is.
        ValueError: `CURRENT` names none.
    """
    manifest = directory / (directory / "CURRENT").read_text().strip()
    _number(manifest)
    return manifest


def _number(manifest: Path) -> int:
    return int(manifest.name.removeprefix("MANIFEST-"))
