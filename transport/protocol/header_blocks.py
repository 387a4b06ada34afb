"""Header blocks and lists that repeat: coded once, checked once, read once.

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
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

import hpack
from h2.exceptions import ProtocolError as H2ProtocolError
from h2.utilities import CONNECTION_HEADERS, HeaderValidationFlags, validate_headers
from hpack.hpack import encode_integer
from hpack.table import HeaderTable

from transport.errors import RemoteProtocolError

_REMEMBERED: Final = 32
_BLOCK_BYTES_MAX: Final = 256
_LIST_BYTES_MAX: Final = 1024
"""Of a header list that is remembered, as SETTINGS_MAX_HEADER_LIST_SIZE counts: a block of few octets may mean much."""
_FIELD_OVERHEAD_BYTES: Final = 32
_ORDINARY_NAME: Final = re.compile(rb"[a-z0-9_.-]+")
_ORDINARY_VALUE: Final = re.compile(rb"(?:[!-~](?:[ -~]*[!-~])?)?")
_LENGTH_DIGITS_MAX: Final = 19
"""Of a content-length: no body is longer, and what announces one is malformed."""
_SHOWN_CHARACTERS_MAX: Final = 200
"""Of what h2 says of a list, with a field that may be as long as the list."""
_CONSTRAINED: Final = CONNECTION_HEADERS | {b"te", b"host", b"content-length"}
"""Fields of which the rules say more than how they are written."""
AnswerT = TypeVar("AnswerT")
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
        announced = self._announced_sizes() if self.table_size_changes else b""
        fields = list(headers)
        plain = tuple(itertools.takewhile(_is_plain, fields))
        block: bytes | None = self._known.get(plain)
        if block is None:
            block = super().encode(plain, huffman)
            if self._known.holds() and len(block) <= _BLOCK_BYTES_MAX:
                self._known.put(plain, block)
        if len(plain) == len(fields):
            return announced + block if announced else block
        rest = (
            super(BlockEncoder, self).encode((field,), huffman=False)
            if _is_plain(field)
            else _never_indexed(*field)
            for field in fields[len(plain) :]
        )
        return b"".join((announced, block, *rest))

    def _announced_sizes(self) -> bytes:
        """What was asked of the table since the last block: the least size and the last, as decoders expect it.

        hpack would tell every change, and none if the last size was given twice (section 4.2).
        """
        least, last = min(self.table_size_changes), self.table_size_changes[-1]
        self.table_size_changes = [least, last] if least < last else [last]
        self.header_table.resized = False
        return self._encode_table_size_change()


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
        if raw and (simple := self._decode_simple(block)) is not None:
            headers = simple
        else:
            headers = list(super().decode(block, raw))
        # A block that begins with a change of the table's size is rare, and does more than to name fields.
        resizes = block[:1] and block[0] & 0xE0 == 0x20
        if self._known.holds() and not resizes and len(block) <= _BLOCK_BYTES_MAX and _memorable(headers):
            self._known.put((block, raw), tuple(headers))
        return headers

    def _decode_simple(self, block: bytes) -> list[hpack.HeaderTuple] | None:
        """Decode fields that change no table and have no Huffman codes, in a third of hpack's time.

        Such are the fields of a peer that repeats itself, and sensitive ones behind them.

        Returns:
            None: There is something else in the block, or something wrong; nothing has changed.
        """
        fields: list[hpack.HeaderTuple] = []
        get_by_index, size, at, end = self.header_table.get_by_index, 0, 0, len(block)
        try:
            while at < end:
                octet = block[at]
                if octet & 0x80:  # indexed
                    if octet == 0xFF:
                        return None
                    field = hpack.HeaderTuple(*get_by_index(octet & 0x7F))
                    at += 1
                elif octet & 0xE0:  # it would be indexed from now on, or the table changes its size
                    return None
                else:
                    kind = hpack.NeverIndexedHeaderTuple if octet & 0x10 else hpack.HeaderTuple
                    at += 1
                    if index := octet & 0x0F:
                        if index == 0x0F:
                            index += block[at]
                            if block[at] & 0x80:
                                return None
                            at += 1
                        name = get_by_index(index)[0]
                    else:
                        name, at = _plain_text(block, at)
                    value, at = _plain_text(block, at)
                    field = kind(name, value)
                fields.append(field)
                size += len(field[0]) + len(field[1]) + _FIELD_OVERHEAD_BYTES
                # hpack says that: a block of many such fields is not read on.
                if size > self.max_header_list_size:
                    return None
        except (IndexError, ValueError, hpack.InvalidTableIndexError):
            return None
        return fields


class Remembered(Generic[AnswerT]):
    """A function of header lists, asked once for each list that repeats.

    Args:
        function: Depends on the list alone. What it raises is not remembered.
    """

    __slots__ = ("_answers", "_function")

    def __init__(self, function: Callable[[Sequence[tuple[bytes, bytes]]], AnswerT]) -> None:
        self._function = function
        self._answers: dict[tuple[tuple[bytes, bytes], ...], AnswerT] = {}

    def __call__(self, headers: Sequence[tuple[bytes, bytes]]) -> AnswerT:
        """The answer for a list."""
        key = tuple(headers)
        if key in self._answers:
            return self._answers[key]
        answer = self._function(headers)
        if _memorable(headers):
            if len(self._answers) >= _REMEMBERED:
                self._answers.clear()
            self._answers[key] = answer
        return answer


class HeaderRules:
    """What HTTP/2 forbids in header lists (RFC 9113 section 8), checked by h2, once for each list that repeats.

    Sensitive fields at the end of a list change with every call. They are looked at each time, and if they are such as
    make no list unlawful, the fields before them are what repeats.

    Args:
        client: Which end has received them.
    """

    def __init__(self, *, client: bool) -> None:
        self._client = client
        self._request = Remembered(self._checker(response=False, trailers=False))
        self._response = Remembered(self._checker(response=True, trailers=False))
        self._trailers = Remembered(self._checker(response=False, trailers=True))

    def check_untrusted(
        self, headers: Sequence[tuple[bytes, bytes]], *, response: bool = False, trailers: bool = False
    ) -> None:
        """Check a list.

        Raises:
            RemoteProtocolError: Something in it is forbidden.
        """
        check = self._trailers if trailers else self._response if response else self._request
        end = len(headers)
        while end and _is_sensitive(headers[end - 1]) and _is_ordinary(headers[end - 1]):
            end -= 1
        check(headers if end == len(headers) else headers[:end])

    def _checker(self, *, response: bool, trailers: bool) -> Callable[[Sequence[tuple[bytes, bytes]]], None]:
        flags = HeaderValidationFlags(
            is_client=self._client,
            is_trailer=trailers,
            is_response_header=response,
            is_push_promise=False,
        )

        def check_untrusted(headers: Sequence[tuple[bytes, bytes]]) -> None:
            try:
                for _ in validate_headers(headers, flags):
                    pass
            except H2ProtocolError as error:
                raise RemoteProtocolError(" ".join(str(error).split())[:_SHOWN_CHARACTERS_MAX]) from error
            _check_content_length_untrusted(headers)

        return check_untrusted


def _never_indexed(name: bytes, value: bytes) -> bytes:
    """A field that no table ever holds, whatever is in the tables (RFC 7541 section 6.2.3)."""
    known = HeaderTable.STATIC_TABLE_MAPPING.get(name)
    coded = encode_integer(known[0] if known else 0, 4)
    coded[0] |= 0x10
    if not known:
        coded += encode_integer(len(name), 7) + name
    return bytes(coded + encode_integer(len(value), 7) + value)


def _plain_text(block: bytes, at: int) -> tuple[bytes, int]:
    """A string literal without Huffman codes, and where it ends (RFC 7541 section 5.2).

    Raises:
        ValueError, IndexError: It is another one, longer than 254 octets, or cut off.
    """
    size = block[at]
    at += 1
    if size >= 0x7F:
        if size != 0x7F or block[at] & 0x80:
            raise ValueError
        size += block[at]
        at += 1
    end = at + size
    if end > len(block):
        raise IndexError
    return block[at:end], end


def _check_content_length_untrusted(headers: Sequence[tuple[bytes, bytes]]) -> None:
    lengths = {value for name, value in headers if name == b"content-length"}
    if not lengths:
        return
    digits = {length.lstrip(b"0") for length in lengths}
    if not all(map(bytes.isdigit, lengths)) or len(digits) > 1 or len(*digits) > _LENGTH_DIGITS_MAX:
        raise RemoteProtocolError(f"content-length {b' and '.join(sorted(lengths))[:100]!r}")


def _memorable(headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether a list is short, and nothing in it is sensitive."""
    size = 0
    for field in headers:
        if _is_sensitive(field):
            return False
        size += len(field[0]) + len(field[1]) + _FIELD_OVERHEAD_BYTES
    return size <= _LIST_BYTES_MAX


def _is_plain(field: Any) -> bool:
    """Whether the field may be indexed; what is no HeaderTuple may."""
    return getattr(field, "indexable", True)


def _is_sensitive(field: tuple[bytes, bytes]) -> bool:
    return field[0] in _CREDENTIALS or not _is_plain(field)


def _is_ordinary(field: tuple[bytes, bytes]) -> bool:
    """Whether a field is lawful in any list, and makes none unlawful."""
    name, value = field
    return (
        _ORDINARY_NAME.fullmatch(name) is not None
        and name not in _CONSTRAINED
        and _ORDINARY_VALUE.fullmatch(value) is not None
    )
