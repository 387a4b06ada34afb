"""CRC-32C of joined pieces, from the pieces' CRC-32Cs and lengths, without their bytes.

To append zeros to a message multiplies its CRC by a power of x, which is a linear map of its 32 bits. Few zeros are
appended: the difference that they make to the CRC and to that of no message is the map. Maps for 1, 2, 4, ... bytes
are kept as tables of four times 256 numbers; a greater length needs one of them for each of its set bits. Either takes
a few microseconds. CRC(A + B) is then `shifted(CRC(A), len(B)) ^ CRC(B)`.

This module knows no rows and no files.
"""

from __future__ import annotations

import functools
from typing import Final, TypeAlias

import google_crc32c

_POLYNOMIAL: Final = 0x82F63B78
"""Of CRC-32C, lowest bit first."""
_ZEROS: Final = bytes(32 * 1024)
_WORD_BITS: Final = 32
_LENGTH_BITS: Final = 48
"""Of the greatest length."""
_Columns: TypeAlias = tuple[int, ...]
"""What a linear map makes of each of the 32 bits."""
_Tables: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""What it makes of each value of each of the four bytes."""


def shifted(crc: int, length: int) -> int:
    """The CRC-32C of a message's share in a longer one, as far as it depends on the message.

    Args:
        crc: Of the message.
        length: Bytes behind it, 0 to 2**48 - 1.

    Returns:
        To be combined by exclusive or with the CRC-32C of these bytes.
    """
    if length <= len(_ZEROS):
        return int(google_crc32c.extend(crc, _ZEROS[:length]) ^ _of_zeros(length))
    for first, second, third, fourth in _maps():
        if length & 1:
            crc = first[crc & 255] ^ second[crc >> 8 & 255] ^ third[crc >> 16 & 255] ^ fourth[crc >> 24]
        length >>= 1
        if not length:
            break
    return crc


@functools.cache
def _of_zeros(length: int) -> int:
    return int(google_crc32c.value(_ZEROS[:length]))


@functools.cache
def _maps() -> tuple[_Tables, ...]:
    """Made at the first use, in some milliseconds."""
    return tuple(_tables(_columns(bit)) for bit in range(_LENGTH_BITS))


def _tables(columns: _Columns) -> _Tables:
    first, second, third, fourth = (_table(columns[place : place + 8]) for place in (0, 8, 16, 24))
    return first, second, third, fourth


def _table(columns: _Columns) -> tuple[int, ...]:
    """What a map makes of each value of a byte, of what it makes of the byte's bits."""
    values = [0]
    for column in columns:
        values += [value ^ column for value in values]
    return tuple(values)


@functools.cache
def _columns(bit: int) -> _Columns:
    """The map that appends 2**bit bytes of zeros."""
    if bit:
        half = _columns(bit - 1)
        return tuple(_applied(half, column) for column in half)
    one_bit = (_POLYNOMIAL, *(1 << place for place in range(_WORD_BITS - 1)))
    columns = one_bit
    for _ in range(7):
        columns = tuple(_applied(one_bit, column) for column in columns)
    return columns


def _applied(columns: _Columns, word: int) -> int:
    result = 0
    while word:
        lowest = word & -word
        result ^= columns[lowest.bit_length() - 1]
        word ^= lowest
    return result
