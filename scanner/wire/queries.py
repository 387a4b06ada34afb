"""What a scan is asked for, the same for every source and model.

A `ScanQuery` is data: the client's builder makes it, the wire carries it, the source binds it to a
table. It says nothing of how the rows travel.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message

from scanner.data.keys import KeyRange
from scanner.errors import ArgumentInvalid
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.wire.predicates import predicate_from_proto, predicate_to_proto
from scanner.wire.seals import require_unbroken_request

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from scanner.data.filters import Predicate

_EVERYTHING = KeyRange()
_Message = TypeVar("_Message", bound=Message)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanQuery:
    """One scan of one bucket."""

    table: str
    bucket: int = 0
    columns: tuple[str, ...] = ()
    """In the order in which they are wanted; empty: all columns."""
    predicates: tuple[Predicate, ...] = ()
    """All of them must be true of a row that is delivered."""
    row_limit: int | None = None
    """Rows delivered at most, 0 or more; None: no limit."""
    range: KeyRange = _EVERYTHING
    """Of encoded keys."""
    table_id: int | None = None
    """Of the table that is meant; None: of whichever has the name. No part of a token's fingerprint, which names it."""


def query_to_proto(query: ScanQuery) -> pb.ScanQuery:
    """Write a query as its message."""
    return pb.ScanQuery(
        table=query.table,
        bucket=query.bucket,
        columns=query.columns,
        filter=[predicate_to_proto(each) for each in query.predicates],
        row_limit=query.row_limit,
        range=pb.KeyRange(start=query.range.start, end=query.range.end),
        table_id=query.table_id,
    )


def query_from_proto(message: pb.ScanQuery, *, predicates_max: int, literals_max: int) -> ScanQuery:
    """Read a query.

    Args:
        message: From the peer.
        predicates_max: Predicates allowed in its filter, comparisons and combinations.
        literals_max: Literals allowed in its filter.

    Raises:
        ArgumentInvalid: It names no table, names a column twice, or has a filter that is too large or
            makes no sense.
    """
    if not message.table:
        raise ArgumentInvalid("the query names no table")
    columns = tuple(message.columns)
    if len(set(columns)) != len(columns):
        ((twice, _),) = Counter(columns).most_common(1)
        raise ArgumentInvalid(f"the query asks for column {twice!r} more than once")
    predicates, literals = _filter_size(message, predicates_max)
    if predicates > predicates_max:
        raise ArgumentInvalid(
            f"the filter has {predicates} predicates at least, and {predicates_max} are allowed"
        )
    if literals > literals_max:
        raise ArgumentInvalid(f"the filter has {literals} literals; {literals_max} are allowed")
    return ScanQuery(
        table=message.table,
        bucket=message.bucket,
        columns=columns,
        predicates=tuple(predicate_from_proto(each) for each in message.filter),
        row_limit=message.row_limit if message.HasField("row_limit") else None,
        range=KeyRange(start=message.range.start, end=message.range.end),
        table_id=message.table_id if message.HasField("table_id") else None,
    )


def _filter_size(query: pb.ScanQuery, predicates_max: int) -> tuple[int, int]:
    """How many predicates are in a filter, on the levels that have no more than are allowed, and how many literals."""
    predicates, literals = len(query.filter), 0
    pending = [query.filter]
    while pending and predicates <= predicates_max:
        for message in pending.pop():
            predicates += len(message.operands)
            literals += len(message.literals)
            pending.append(message.operands)
    return predicates, literals


class _NamesTable(Protocol):
    """A request that may say which table of a name is meant."""

    table_id: int

    def HasField(self, field_name: Literal["table_id"]) -> bool:
        """Whether it does."""


def meant_table_id(message: _NamesTable) -> int | None:
    """The only table that a request means; None: whichever has the name."""
    return message.table_id if message.HasField("table_id") else None


def require_short(message: Buffer, bytes_max: int | None) -> None:
    """Refuse a long request before it is parsed: the transport's 64 MiB hold millions of messages, which take seconds.

    Args:
        message: From the peer.
        bytes_max: Octets at most; None: as many as there are.

    Raises:
        ArgumentInvalid: It is longer.
    """
    if bytes_max is not None and (size := memoryview(message).nbytes) > bytes_max:
        raise ArgumentInvalid(f"a request of {size} octets is too large; {bytes_max} are allowed")


def parse_request(kind: type[_Message], message: Buffer | None, bytes_max: int | None = None) -> _Message:
    """Read a request message.

    Args:
        kind: What it is to be.
        message: From the peer; None: it has ended its side without one.
        bytes_max: See `require_short`.

    Raises:
        ArgumentInvalid: There is none, or the bytes are not that message, or too many, or it was changed on its way, as
            its seal shows.
    """
    if message is None:
        raise ArgumentInvalid("the call ended without a request")
    require_short(message, bytes_max)
    require_unbroken_request(message)
    parsed = kind()
    try:
        parsed.MergeFromString(message)  # type: ignore[arg-type]  # Any buffer will do; the stubs say bytes.
    except (DecodeError, UnicodeDecodeError) as error:  # The latter for text, by protobuf in pure Python.
        raise ArgumentInvalid(f"the request is not a {kind.__name__} message: {error}") from error
    return parsed
