"""What a server says, read: nothing but `DataCorrupted` if it cannot be, or if its seal shows that it was changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from google.protobuf.message import DecodeError, Message

from scanner.errors import DataCorrupted
from scanner.wire.seals import require_unbroken_answer

if TYPE_CHECKING:
    from typing_extensions import Buffer

_Answer = TypeVar("_Answer", bound=Message)


def parse_answer(kind: type[_Answer], message: Buffer, what: str) -> _Answer:
    """Read a message of a server.

    Args:
        kind: What it is to be.
        message: As received.
        what: It, for people: "the answer to Get".

    Raises:
        DataCorrupted: The bytes are not that message, or it was changed on its way.
    """
    require_unbroken_answer(message)
    try:
        return kind.FromString(bytes(message))
    except (DecodeError, UnicodeDecodeError) as error:  # The latter for text, by protobuf in pure Python.
        raise DataCorrupted(f"{what} cannot be read: {error}") from error
