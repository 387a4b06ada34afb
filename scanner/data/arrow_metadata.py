"""What the metadata of a peer's Arrow IPC message take once they are read, worked out before anything reads them.

Metadata are FlatBuffers, whose tables and strings may be named any number of times: a schema of a few kilobytes can be
one of gigabytes, because Arrow copies each at each place. So they are counted as often as they are named.

Sources: Arrow's `Message.fbs` and `Schema.fbs`, and the FlatBuffers encoding.

This module knows no tables.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from typing_extensions import Buffer

WIRE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of the metadata of one message. 4096 columns with long names, and what pandas says of each, take less."""
SPELLED_OUT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of them with every field and every string as often as it is named."""
_SMALL_BYTES: Final = 16 * 1024
"""Metadata that cannot name too much, as most are: to name something takes four octets."""
_ENTRY_BYTES: Final = 1024
"""Of a field, or of a key and its value, beside its strings; more than it takes, so that few are looked at."""
_CONTINUATION: Final = -1
"""In front of the length of metadata, but for Arrow before 0.15."""
_U32, _I32, _U16 = struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<H")
# Numbers of fields, and of the kinds of two unions.
_MESSAGE_KIND, _MESSAGE_HEADER, _MESSAGE_PAIRS, _IS_SCHEMA = 1, 2, 4, 1
_SCHEMA_FIELDS, _SCHEMA_PAIRS = 1, 2
_FIELD_NAME, _FIELD_KIND, _FIELD_TYPE, _FIELD_CHILDREN, _FIELD_PAIRS, _IS_TIMESTAMP = 0, 2, 3, 5, 6, 10
_TIMESTAMP_ZONE = 1
_PAIR_KEY, _PAIR_VALUE = 0, 1


def require_small_metadata(message: Buffer) -> None:
    """Refuse a message whose metadata take too much.

    Args:
        message: In its encapsulation, and whatever stands behind it.

    Raises:
        ValueError: It is one.
    """
    metadata = metadata_of(memoryview(message).cast("B"))
    if len(metadata) <= _SMALL_BYTES:
        return
    if len(metadata) > WIRE_BYTES_MAX or _spelled_out(bytes(metadata)) > SPELLED_OUT_BYTES_MAX:
        raise ValueError("the names and metadata of its columns take too much; leave metadata out")


class Table:
    """A FlatBuffers table, by the numbers of its fields. Nothing is trusted: what is read may make no sense.

    Args:
        buffer: What it is in.
        at: Where it begins.
    """

    def __init__(self, buffer: bytes, at: int) -> None:
        self._buffer = buffer
        self._at = at
        self._fields_at: int = at - _I32.unpack_from(buffer, at)[0]

    @classmethod
    def root(cls, buffer: bytes) -> Table:
        """The one that the others are named from."""
        return cls(buffer, _U32.unpack_from(buffer)[0])

    def position(self, field: int) -> int | None:
        """Where a field is; None: it has its default."""
        entry = 2 * _U16.size + field * _U16.size
        if entry >= _U16.unpack_from(self._buffer, self._fields_at)[0]:
            return None
        offset: int = _U16.unpack_from(self._buffer, self._fields_at + entry)[0]
        return self._at + offset if offset else None

    def octet(self, field: int) -> int:
        """A field of one octet; 0 is its default."""
        position = self.position(field)
        return 0 if position is None else self._buffer[position]

    def table(self, field: int) -> Table:
        """The table that a field refers to."""
        return Table(self._buffer, self._referred(field))

    def tables(self, field: int) -> Iterator[Table]:
        """Those of the vector that a field refers to, if it does."""
        if self.position(field) is not None:
            at = self._referred(field) + _U32.size
            for entry in range(at, at + self.length(field) * _U32.size, _U32.size):
                yield Table(self._buffer, entry + _U32.unpack_from(self._buffer, entry)[0])

    def structs(self, field: int, layout: struct.Struct) -> list[tuple[Any, ...]]:
        """The vector of structs that a field refers to."""
        start = self._referred(field) + _U32.size
        return list(layout.iter_unpack(self._buffer[start : start + self.length(field) * layout.size]))

    def length(self, field: int) -> int:
        """Of the vector or string that a field refers to; 0: it refers to none."""
        if self.position(field) is None:
            return 0
        return int(_U32.unpack_from(self._buffer, self._referred(field))[0])

    def _referred(self, field: int) -> int:
        position = self.position(field)
        if position is None:
            raise LookupError(f"field {field} is missing")
        return position + int(_U32.unpack_from(self._buffer, position)[0])


def metadata_of(octets: memoryview) -> memoryview:
    """The metadata of the message that octets begin with; empty: they end a stream, or begin with none."""
    prefix = octets[: 2 * _I32.size].tobytes().ljust(2 * _I32.size, b"\0")
    first, second = struct.unpack("<2i", prefix)
    at, size = (2 * _I32.size, second) if first == _CONTINUATION else (_I32.size, first)
    return octets[at : at + max(0, size)]


def _spelled_out(metadata: bytes) -> int:
    """What metadata take, or more than is allowed, if it is more."""
    total = 0
    try:
        for part in _parts(Table.root(metadata)):
            total += part
            if total > SPELLED_OUT_BYTES_MAX:
                break
    except (struct.error, LookupError) as error:
        raise ValueError(f"the metadata of a message cannot be read: {error}") from error
    return total


def _parts(message: Table) -> Iterator[int]:
    """What it takes, field by field and pair by pair."""
    yield from _pairs(message, _MESSAGE_PAIRS)
    if message.octet(_MESSAGE_KIND) != _IS_SCHEMA:
        return
    schema = message.table(_MESSAGE_HEADER)
    yield from _pairs(schema, _SCHEMA_PAIRS)
    pending = [schema.tables(_SCHEMA_FIELDS)]
    while pending:
        field = next(pending[-1], None)
        if field is None:
            pending.pop()
            continue
        yield _ENTRY_BYTES + field.length(_FIELD_NAME)
        if field.octet(_FIELD_KIND) == _IS_TIMESTAMP:
            yield field.table(_FIELD_TYPE).length(_TIMESTAMP_ZONE)
        yield from _pairs(field, _FIELD_PAIRS)
        pending.append(field.tables(_FIELD_CHILDREN))


def _pairs(table: Table, field: int) -> Iterator[int]:
    for pair in table.tables(field):
        yield _ENTRY_BYTES + pair.length(_PAIR_KEY) + pair.length(_PAIR_VALUE)
