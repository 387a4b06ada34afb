"""What a bucket remembers of its writers, so that a request that comes again is recognised.

A writer draws an id and numbers its requests from 1, ascending. With the changes of a request a bucket keeps, in the
same atomic commit, the request's number and the offsets of these changes. A request that comes a second time, since
its answer was lost or since something on the way held it back, is answered from there and changes nothing. What
Kafka's idempotent producers do, here for each bucket by itself: a request reaches several, and a crash may lie between
them.

Invariants:

1. Of a writer the newest `SEQUENCES_KEPT` requests are known, whatever gaps their numbers have; it has no more on their
   way at once. A request that is not among them, though a later one is, comes too late, or was refused when it came
   first: what it would overwrite may be newer. It is refused.
2. Of a bucket's writers the `WRITERS_MAX` that wrote last are known. What a forgotten one sends again is taken for new.

This module knows no RocksDB.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

from scanner.errors import DataCorrupted, SequenceInvalid

WRITER_ID_BYTES: Final = 16
SEQUENCE_MAX: Final = 2**63 - 1
SEQUENCES_KEPT: Final = 16
WRITERS_MAX: Final = 1024

_FORMAT: Final = 1
_HEADER: Final = struct.Struct(f">B{WRITER_ID_BYTES}s")
_REQUEST: Final = struct.Struct(">QQQL")


class RequestNumber(NamedTuple):
    """What a request is recognised by."""

    writer_id: bytes
    """`WRITER_ID_BYTES` octets that the writer drew at random."""
    sequence: int
    """1 to `SEQUENCE_MAX`."""
    checksum: int
    """Of what it asks for, 32 bits: two requests that a writer gave one number are told apart by it."""


class AppliedRequest(NamedTuple):
    """A request that a bucket has applied."""

    sequence: int
    """The number that its writer gave it, 1 to `SEQUENCE_MAX`."""
    start: int
    """Offset of the first change that it made in this bucket."""
    end: int
    """One past the last; equal to `start` if it changed nothing."""
    checksum: int
    """As its `RequestNumber` has it."""


AppliedRequests: TypeAlias = tuple[AppliedRequest, ...]
"""Those of one writer, by number, ascending."""


class Writer(NamedTuple):
    """A writer, and what is known of it."""

    writer_id: bytes
    applied: AppliedRequests
    """Not empty."""


def find_request(applied: AppliedRequests, number: RequestNumber) -> AppliedRequest | None:
    """What became of a request when it came before; None: it is new.

    Args:
        applied: What is known of its writer.
        number: Its number.

    Raises:
        SequenceInvalid: It was not applied, or nobody knows any more, and a later one of its writer was. Or another
            request had its number.
    """
    for each in applied:
        if each.sequence == number.sequence:
            if each.checksum != number.checksum:
                raise SequenceInvalid(
                    f"request {number.sequence} of this writer was applied with other rows; draw a writer_id at random"
                    " whenever you begin to count"
                )
            return each
    if applied and number.sequence < applied[-1].sequence:
        forgotten = len(applied) == SEQUENCES_KEPT and number.sequence < applied[0].sequence
        state = (
            f"is older than the {SEQUENCES_KEPT} that are remembered: nobody knows whether it was applied"
            if forgotten
            else "was not applied: it came late, or was refused when it came first"
        )
        raise SequenceInvalid(
            f"request {number.sequence} of this writer comes after its request {applied[-1].sequence}, and {state};"
            " its rows could replace newer ones; write them anew, with a number or a writer_id of their own"
        )
    return None


class KnownWriters:
    """The writers that a bucket knows, and the places at which storage keeps them.

    They are kept as records, which take a quarter of the memory: there are many, and few of them write.

    Args:
        stored: The records that storage has, by place from 0 on, without gaps.

    Raises:
        DataCorrupted: One is none.
    """

    def __init__(self, stored: Iterable[bytes] = ()) -> None:
        # Who wrote last comes last, as far as offsets tell.
        placed = sorted(enumerate(stored), key=lambda each: decode_writer(each[1]).applied[-1].end)
        self._records = dict(placed)
        """By place; who wrote last comes last."""
        self._places = {_writer_id_of(record): place for place, record in placed}

    def requests_of(self, writer_id: bytes) -> AppliedRequests:
        """What is known of a writer; empty: nothing."""
        place = self._places.get(writer_id)
        return () if place is None else decode_writer(self._records[place]).applied

    def until(self, end: int) -> KnownWriters:
        """Those of requests whose changes are in front of an offset; for a bucket that takes no writes."""
        known = []
        for record in self._records.values():
            writer = decode_writer(record)
            applied = tuple(each for each in writer.applied if each.start < end >= each.end)
            if applied:
                known.append(encode_writer(writer._replace(applied=applied)))
        return KnownWriters(known)

    def updated(self, requests: Mapping[bytes, Sequence[AppliedRequest]]) -> dict[int, bytes]:
        """The records that storage has to keep once requests are applied, by place. Nothing is changed here.

        Args:
            requests: By writer, `WRITERS_MAX` at most, those that are being applied, ascending.
        """
        free = self._places_to_give(requests)
        return {
            self._places[writer_id] if writer_id in self._places else next(free): encode_writer(
                Writer(writer_id, (*self.requests_of(writer_id), *applied)[-SEQUENCES_KEPT:])
            )
            for writer_id, applied in requests.items()
        }

    def take(self, updated: Mapping[int, bytes]) -> None:
        """Know what `updated` has told, now that it is durable; who had these places before is forgotten."""
        for place, record in updated.items():
            before = self._records.pop(place, None)
            if before is not None:
                del self._places[_writer_id_of(before)]
            self._records[place], self._places[_writer_id_of(record)] = record, place

    def _places_to_give(self, kept: Mapping[bytes, object]) -> Iterator[int]:
        """Those that are free, and then those of the writers that have not written for the longest time."""
        old = (place for place, record in self._records.items() if _writer_id_of(record) not in kept)
        return chain(range(len(self._records), WRITERS_MAX), old)


def _writer_id_of(record: bytes) -> bytes:
    return record[_HEADER.size - WRITER_ID_BYTES : _HEADER.size]


def encode_writer(writer: Writer) -> bytes:
    """What `meta` holds of a writer, big-endian."""
    return _HEADER.pack(_FORMAT, writer.writer_id) + b"".join(_REQUEST.pack(*each) for each in writer.applied)


def decode_writer(value: bytes) -> Writer:
    """Read what `meta` holds of a writer.

    Raises:
        DataCorrupted: It is no record of this format.
    """
    try:
        form, writer_id = _HEADER.unpack_from(value)
        applied = tuple(map(AppliedRequest._make, _REQUEST.iter_unpack(value[_HEADER.size :])))
    except struct.error as error:
        raise DataCorrupted(f"what is known of a writer is damaged: {error}") from error
    if form != _FORMAT or not applied:
        raise DataCorrupted(f"what is known of a writer is of format {form}, or nothing")
    return Writer(writer_id, applied)
