"""Seals: the checksum of a whole message at its end, so that what a network changes past TCP's checksum is found.

A seal is the last field of a message, one that no message declares: number 2047, eight octets, `weir` and the CRC-32C
of all octets before the field, least octet first. Who knows no seals skips it, as protobuf does with unknown fields. It
is looked for at the end of the octets, not among the fields: a length that was changed can swallow a field.

A client may seal its requests, and then the answers are sealed, too: all but those that carry batches of rows, which
have checksums and positions of their own.

This module knows no messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from scanner.data.digest import checksum
from scanner.errors import ArgumentInvalid, DataCorrupted

if TYPE_CHECKING:
    from typing_extensions import Buffer

_MARK: Final = b"\xfa\x7f\x08weir"
"""The field's tag (2047 << 3 | 2), its length, and the first half of it."""
_CRC_BYTES: Final = 4
SEAL_BYTES: Final = len(_MARK) + _CRC_BYTES
"""By which a message grows."""
Seal: TypeAlias = Callable[[bytes], bytes]
"""Makes what goes out of a message's octets."""


def sealed(message: bytes) -> bytes:
    """A message with its seal."""
    return message + _MARK + checksum(message).to_bytes(_CRC_BYTES, "little")


def sealed_like(request: Buffer | None) -> Seal:
    """What makes answers to a request out of their octets: who seals a request wants sealed answers."""
    return sealed if request is not None and _is_sealed(memoryview(request).cast("B")) else bytes


def require_unbroken_request(message: Buffer) -> None:
    """Compare a request with its seal, if it has one.

    Raises:
        ArgumentInvalid: It was changed on its way.
    """
    if _is_broken(message):
        raise ArgumentInvalid(
            "the request was changed on its way, and nothing was done; the network damages what it carries, which TLS"
            " would find"
        )


def require_unbroken_answer(message: Buffer) -> None:
    """Compare what a server says with its seal, if it has one.

    Raises:
        DataCorrupted: It was changed on its way.
    """
    if _is_broken(message):
        raise DataCorrupted(
            "what the server said was changed on its way; the network damages what it carries, which TLS would find"
        )


def _is_broken(message: Buffer) -> bool:
    octets = memoryview(message).cast("B")
    told = int.from_bytes(octets[-_CRC_BYTES:], "little")
    return _is_sealed(octets) and checksum(octets[:-SEAL_BYTES]) != told


def _is_sealed(octets: memoryview) -> bool:
    return octets[-SEAL_BYTES:-_CRC_BYTES].tobytes() == _MARK
