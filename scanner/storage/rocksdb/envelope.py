"""The envelope of every document on the disk: what it is, of which format, and its checksum.

    {"document": "leases.json", "format": 2, "crc32c": "0a1b2c3d"}
    the content, whatever it is, to the end of the file

The first line stays as it is in every format to come, so that an old server can tell a newer document from a damaged
one. The checksum covers name, format and content: one changed digit anywhere is found, and so is a document that was
copied over another one.

Pure: this module knows no files.
"""

from __future__ import annotations

import json
import re

from scanner.data.digest import checksum
from scanner.errors import DataCorrupted, StoreFailed

FORMAT = 2
"""Of the data directory and of every document in it. Format 1 was never released, and had no envelope."""
_HEADER = re.compile(
    rb'\{"document": "([A-Za-z0-9_.-]+)", "format": (\d{1,9}), "crc32c": "([0-9a-f]{8})"\}\n'
)


def seal(name: str, content: bytes, format_number: int = FORMAT) -> bytes:
    """Put a document into its envelope.

    Args:
        name: Of the document.
        content: The whole of it.
        format_number: That it is of.
    """
    crc = f"{_checksum(name.encode(), format_number, content):08x}"
    header = json.dumps({"document": name, "format": format_number, "crc32c": crc})
    return header.encode() + b"\n" + content


def unseal(name: str, sealed: bytes, where: object) -> bytes:
    """Take a document out of its envelope.

    Args:
        name: The document that it must be.
        sealed: What `seal` made.
        where: Named in errors: the file.

    Returns:
        The content.

    Raises:
        DataCorrupted: It is damaged, another document, or of an older format.
        StoreFailed: A newer version wrote it.
    """
    header = _HEADER.match(sealed)
    if header is None:
        raise DataCorrupted(f"{where} is damaged, or not of format {FORMAT}: its first line is no header")
    found, format_number, content = header[1], int(header[2]), sealed[header.end() :]
    if (
        int(header[3], 16) != _checksum(found, format_number, content)
        or str(format_number).encode() != header[2]
    ):
        raise DataCorrupted(f"{where} is damaged: its checksum is wrong")
    if found != name.encode():
        raise DataCorrupted(f"{where} is another document, {found.decode()}, under the name of this one")
    if format_number > FORMAT:
        raise StoreFailed(
            f"{where} has format {format_number}, and this version reads {FORMAT}: use a newer weir"
        )
    if format_number < FORMAT:
        raise DataCorrupted(f"{where} has format {format_number}, and its data directory {FORMAT}")
    return content


def _checksum(name: bytes, format_number: int, content: bytes) -> int:
    return checksum(content, checksum(name + b"\n%d\n" % format_number))
