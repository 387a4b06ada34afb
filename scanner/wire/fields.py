"""The fields of a message as they stand on the wire, without an object for each.

Source: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from scanner.errors import ArgumentInvalid

if TYPE_CHECKING:
    from typing_extensions import Buffer

_SHORT_BYTES: Final = 16 * 1024
"""A request of that many octets is parsed in less than a millisecond, whatever it holds."""
_FIELDS_MAX: Final = 64
"""Of a request without lists; more than any has, for those that are to come."""
_VARINT_BYTES_MAX: Final = 10


def require_few_fields(message: Buffer, *, inside: int = 0) -> None:
    """Refuse a long request of many fields before it is parsed: 60 MiB of empty ones take seconds and a gigabyte.

    For requests without lists, in which each field stands once.

    Args:
        message: From the peer; short ones are not looked at.
        inside: Number of a field that holds a message; its fields are counted, too. 0: none.

    Raises:
        ArgumentInvalid: It has more than any such request.
    """
    octets = memoryview(message).cast("B")
    if len(octets) <= _SHORT_BYTES:
        return
    fields, at, pending = 0, 0, [len(octets)]
    try:
        while pending:
            if at >= pending[-1]:
                at = pending.pop()
                continue
            fields += 1
            if fields > _FIELDS_MAX:
                raise ArgumentInvalid(
                    f"a request of {len(octets)} octets has more than {_FIELDS_MAX} fields; no such request has"
                )
            tag, at = read_varint(octets, at)
            match tag & 7:
                case 0:
                    _, at = read_varint(octets, at)
                case 1:
                    at += 8
                case 2:
                    size, at = read_varint(octets, at)
                    if tag >> 3 == inside and len(pending) == 1:
                        pending.append(at + size)
                    else:
                        at += size
                case 5:
                    at += 4
                case _:  # The ends of a group, whose fields are counted as they come.
                    pass
    except (IndexError, ValueError):
        return  # It is no message, as the parser finds behind these few fields.


def read_varint(view: memoryview, position: int) -> tuple[int, int]:
    """A number, and where it ends.

    Raises:
        ValueError: It has more octets than a number can have.
        IndexError: It is cut off.
    """
    value = 0
    for index in range(_VARINT_BYTES_MAX):
        byte = view[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise ValueError("a varint has more than 10 bytes")
