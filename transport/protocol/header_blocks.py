"""Header blocks that repeat: coded once, and checked once.

A connection's calls have the same few header lists, and HPACK (RFC 7541) codes each as the same few octets once its
fields are in the dynamic table. A block that leaves the table as it is means the same for as long as nothing else
changes the table. So both coders remember such blocks, and forget them all at every change. What is remembered is
bounded in number and length, because a peer chooses it (docs/limits.md).

Sensitive fields (never indexed, section 7.1.3; and credentials, however their sender marks them) are never remembered:
what is quicker the second time tells whoever shares a connection what another one sent, and credentials must not stay
in memory. Ours are coded anew, behind the others, and without Huffman codes, which take longer to make and to read than
the octets that they save.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import hpack
from h2.exceptions import ProtocolError as H2ProtocolError
from h2.utilities import HeaderValidationFlags, validate_headers

from transport.errors import RemoteProtocolError

if TYPE_CHECKING:
    from hpack.table import HeaderTable

_REMEMBERED: Final = 32
_BLOCK_BYTES_MAX: Final = 256
_LIST_BYTES_MAX: Final = 1024
"""Of a header list that is remembered, as SETTINGS_MAX_HEADER_LIST_SIZE counts: a block of few octets may mean much."""
_FIELD_OVERHEAD_BYTES: Final = 32
_CREDENTIALS: Final = frozenset({b"authorization", b"proxy-authorization", b"cookie"})


class _Known:
    """Answers that hold while a dynamic table is as it is.

    A table's newest entry is another object after every insertion, and its length tells what was evicted. Its size
    decides whether the same block, or list, would be inserted again.
    """

    __slots__ = ("_answers", "_length", "_newest", "_size", "_table")

    def __init__(self, table: HeaderTable) -> None:
        self._table = table
        self._answers: dict[Any, Any] = {}
        self._newest: object = None
        self._length = 0
        self._size = table.maxsize

    def get(self, key: Any) -> Any:
        """The answer, or None."""
        return self._answers.get(key) if self.holds() else None

    def holds(self) -> bool:
        """Whether the table is as it was; if not, all is forgotten."""
        table = self._table
        entries, size = table.dynamic_entries, table.maxsize
        length = len(entries)
        newest = entries[0] if length else None
        if newest is self._newest and length == self._length and size == self._size:
            return True
        self._newest, self._length, self._size = newest, length, size
        self._answers.clear()
        return False

    def put(self, key: Any, answer: Any) -> None:
        """Remember it; the caller has found that the table `holds`."""
        if len(self._answers) >= _REMEMBERED:
            self._answers.clear()
        self._answers[key] = answer


class BlockEncoder(hpack.Encoder):
    """An HPACK encoder for our own header lists, which are few."""

    def __init__(self) -> None:
        super().__init__()
        self._known = _Known(self.header_table)

    def encode(self, headers: Iterable[Any], huffman: bool = True) -> bytes:
        """The header list as a block, as `hpack.Encoder.encode`, but for what this module says."""
        if self.table_size_changes:
            self._announce_least_and_last()  # in this block alone
            return super().encode(headers, huffman)
        fields = list(headers)
        plain = tuple(itertools.takewhile(_is_plain, fields))
        block: bytes | None = self._known.get(plain)
        if block is None:
            block = super().encode(plain, huffman)
            if self._known.holds() and len(block) <= _BLOCK_BYTES_MAX:
                self._known.put(plain, block)
        rest = fields[len(plain) :]
        return block + super().encode(rest, huffman=False) if rest else block

    def _announce_least_and_last(self) -> None:
        """Bring what was asked of the table since the last block to what a decoder expects to hear (section 4.2).

        hpack would tell every change, and none if the last size was given twice.
        """
        least, last = min(self.table_size_changes), self.table_size_changes[-1]
        self.table_size_changes = [least, last] if least < last else [last]
        self.header_table.resized = True


class BlockDecoder(hpack.Decoder):
    """An HPACK decoder for blocks that a peer repeats."""

    def __init__(self, max_header_list_size: int) -> None:
        super().__init__(max_header_list_size)
        self._known = _Known(self.header_table)

    def decode(self, data: bytes, raw: bool = False) -> list[hpack.HeaderTuple]:
        """The header list of a block, as `hpack.Decoder.decode`."""
        block = bytes(data)
        if found := self._known.get((block, raw)):
            return list(found)
        headers = list(super().decode(block, raw))
        # A block that begins with a change of the table's size is rare, and does more than to name fields.
        resizes = block[:1] and block[0] & 0xE0 == 0x20
        if self._known.holds() and not resizes and len(block) <= _BLOCK_BYTES_MAX and _memorable(headers):
            self._known.put((block, raw), tuple(headers))
        return headers


class HeaderRules:
    """What HTTP/2 forbids in header lists (RFC 9113 section 8), checked by h2, once for each list that repeats.

    Args:
        client: Which end has received them.
    """

    def __init__(self, *, client: bool) -> None:
        self._client = client
        self._lawful: set[tuple[Any, ...]] = set()

    def check_untrusted(
        self, headers: Sequence[tuple[bytes, bytes]], *, response: bool = False, trailers: bool = False
    ) -> None:
        """Check a list.

        Raises:
            RemoteProtocolError: Something in it is forbidden.
        """
        key = (response, trailers, *headers)
        if key in self._lawful:
            return
        flags = HeaderValidationFlags(
            is_client=self._client,
            is_trailer=trailers,
            is_response_header=response,
            is_push_promise=False,
        )
        try:
            for _ in validate_headers(headers, flags):
                pass
        except H2ProtocolError as error:
            raise RemoteProtocolError(" ".join(str(error).split())) from error
        _check_content_length_untrusted(headers)
        if _memorable(headers):
            if len(self._lawful) >= _REMEMBERED:
                self._lawful.clear()
            self._lawful.add(key)


def _check_content_length_untrusted(headers: Sequence[tuple[bytes, bytes]]) -> None:
    lengths = {value for name, value in headers if name == b"content-length"}
    if not lengths:
        return
    if (
        not all(length.isdigit() for length in lengths)
        or len({length.lstrip(b"0") for length in lengths}) > 1
    ):
        raise RemoteProtocolError(f"content-length {b' and '.join(sorted(lengths))[:100]!r}")


def _memorable(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether a list is short, and nothing in it is sensitive."""
    size = 0
    for field in headers:
        if field[0] in _CREDENTIALS or not _is_plain(field):
            return False
        size += len(field[0]) + len(field[1]) + _FIELD_OVERHEAD_BYTES
    return size <= _LIST_BYTES_MAX


def _is_plain(field: Any) -> bool:
    """Whether the field may be indexed; what is no HeaderTuple may."""
    return getattr(field, "indexable", True)
