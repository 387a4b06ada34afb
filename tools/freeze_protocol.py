"""Writes down the protocol as it is released, for the test that no later version may break it.

    python -m tools.freeze_protocol

Run at a release, and only then: what was released stays. `tests/test_protocol_compatibility.py` compares the protocol
of today with the file: what is in it must be there still, as it was; anything may be added.
"""

import json
from pathlib import Path
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor

from scanner.proto.weir.v1 import (
    admin_pb2,
    errors_pb2,
    groups_pb2,
    leases_pb2,
    scanner_pb2,
    tables_pb2,
    transactions_pb2,
)

FROZEN: Final = Path(__file__).resolve().parent.parent / "tests" / "golden" / "protocol.json"
FILES: Final[tuple[FileDescriptor, ...]] = tuple(
    module.DESCRIPTOR
    for module in (admin_pb2, errors_pb2, groups_pb2, leases_pb2, scanner_pb2, tables_pb2, transactions_pb2)
)


def describe() -> dict[str, dict[str, Any]]:
    """What clients and servers of other versions rely on.

    Returns:
        By full name: of a message its fields by number, of an enum its names by number, of a method its types.
    """
    found: dict[str, dict[str, Any]] = {}
    for file in FILES:
        for message in file.message_types_by_name.values():
            _describe_message(message, found)
        for enum in file.enum_types_by_name.values():
            found[enum.full_name] = _enum(enum)
        for service in file.services_by_name.values():
            for method in service.methods:
                found[method.full_name] = {
                    "request": [method.input_type.full_name, method.client_streaming],
                    "response": [method.output_type.full_name, method.server_streaming],
                }
    return dict(sorted(found.items()))


def _describe_message(message: Descriptor, found: dict[str, dict[str, Any]]) -> None:
    found[message.full_name] = {str(field.number): _field(field) for field in message.fields}
    for inner in message.nested_types:
        _describe_message(inner, found)
    for enum in message.enum_types:
        found[enum.full_name] = _enum(enum)


def _enum(enum: EnumDescriptor) -> dict[str, Any]:
    return {str(value.number): value.name for value in enum.values}


def _field(field: FieldDescriptor) -> list[Any]:
    kind = field.message_type or field.enum_type
    oneof = field.containing_oneof
    return [
        field.name,
        kind.full_name if kind is not None else field.type,
        "repeated" if field.is_repeated else "single",
        oneof.name if oneof is not None else "",
    ]


def main() -> None:
    """Write the file."""
    FROZEN.parent.mkdir(exist_ok=True)
    FROZEN.write_text(json.dumps(describe(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
