"""Table descriptions as messages, and back."""

from __future__ import annotations

from scanner.data.table import TableDescription
from scanner.proto.weir.v1 import tables_pb2 as pb
from scanner.wire.arrow_ipc import decode_schema, encode_schema


def description_to_proto(description: TableDescription) -> pb.TableDescription:
    """Write a description as its message."""
    return pb.TableDescription(
        name=description.name,
        arrow_schema=encode_schema(description.schema),
        primary_key=description.primary_key,
        buckets=description.buckets,
    )


def description_from_proto(message: pb.TableDescription) -> TableDescription:
    """Read a description.

    Raises:
        ScannerError: It describes no table that could be; see `TableDescription`.
    """
    return TableDescription(
        name=message.name,
        schema=decode_schema(message.arrow_schema),
        primary_key=tuple(message.primary_key),
        buckets=message.buckets,
    )
