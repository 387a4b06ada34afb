"""Unary calls of a client: a message there, a message back, and nothing but `ScannerError` if not."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import Message

from scanner.client.failures import translated
from scanner.client.retries import retried
from scanner.errors import DataCorrupted, ScannerError
from scanner.wire import methods
from scanner.wire.answers import parse_answer
from scanner.wire.seals import sealed
from scanner.wire.tables import description_from_proto

if TYPE_CHECKING:
    from collections.abc import Callable

    from scanner.client.connection import Connection
    from scanner.data.table import TableDescription
    from scanner.proto.weir.v1 import tables_pb2 as pb

_Reply = TypeVar("_Reply", bound=Message)


async def call_unary(
    connection: Connection,
    path: str,
    request: Message | Callable[[], bytes],
    reply: type[_Reply],
    *,
    retries: int | None = None,
) -> _Reply:
    """Make a call: once, or, if it changes nothing and is not the client's first, as often as a scan would go on.

    Args:
        connection: Connects first, if need be.
        path: /package.Service/Method.
        request: What to send. Or what encodes it, called when it goes out: connecting may put that off by a minute.
        reply: What to expect.
        retries: How often connecting, and a call that changes nothing, is tried again; None: as often as the connection
            was told.

    Raises:
        ScannerError: The server said so, or could not be reached.
        DataCorrupted: The answer cannot be read.

    Cancellation:
        The call is reset; the server may have done it.
    """
    method = path.rpartition("/")[2]
    sent = (
        functools.partial(_sealed_late, request) if callable(request) else sealed(request.SerializeToString())
    )

    async def call() -> Any:
        with translated(method):
            return await connection.call(path, sent, retries=retries)

    # A first call says at once that nobody is there, as one does that cannot connect.
    repeatable = method in methods.READS and connection.has_answered
    answer = await (retried(connection.attempts(retries), call) if repeatable else call())
    return parse_answer(reply, answer, f"the answer to {method}")


def require_about(method: str, asked: object, told: object) -> None:
    """See that an answer is about what was asked, as it says itself; one to another call looks like it.

    Raises:
        DataCorrupted: It is about something else.
    """
    if told != asked:
        raise DataCorrupted(f"{method} was asked about {asked}, and the answer is about {told}")


def table_told(told: pb.TableDescription) -> TableDescription:
    """The table that an answer describes.

    Raises:
        DataCorrupted: No table that this client knows of could be so.
    """
    try:
        return description_from_proto(told)
    except ScannerError as error:  # Made for who describes a table to us; this is no mistake of the caller's.
        raise DataCorrupted(
            f"this client cannot read the server's description of table {told.name!r}; is the server newer?"
            f" ({error.message})"
        ) from error


def _sealed_late(encode: Callable[[], bytes]) -> bytes:
    return sealed(encode())
