"""CRC-32C: known values, any buffer, any cut."""

from __future__ import annotations

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.data.digest import DIGEST_EMPTY, checksum, checksums, combine_digests, join_digests
from scanner.errors import ArgumentInvalid


def test_the_checksum_is_crc32c() -> None:
    """The check value of CRC-32C comes out, and nothing has the checksum of nothing."""
    assert checksum(b"123456789") == 0xE3069283
    assert checksum(b"") == DIGEST_EMPTY == 0


def test_the_library_is_the_compiled_one() -> None:
    """The pure Python fallback of the library would make every scan slow."""
    assert google_crc32c.implementation == "c"


@pytest.mark.parametrize(
    "wrap",
    [bytes, bytearray, memoryview, pa.py_buffer, lambda data: np.frombuffer(data, np.uint8)],
    ids=["bytes", "bytearray", "memoryview", "arrow", "numpy"],
)
@pytest.mark.parametrize("data", [b"", b"123456789"])
def test_any_buffer_will_do(wrap: type[bytes], data: bytes) -> None:
    """The same bytes have the same checksum, whatever they are in."""
    assert checksum(wrap(data)) == checksum(data)


@st.composite
def _values(draw: st.DrawFn) -> list[bytes]:
    """Of one length, or of several."""
    length = draw(st.integers(0, 40))
    shortest = draw(st.sampled_from([length, 0]))
    return draw(st.lists(st.binary(min_size=shortest, max_size=length), max_size=8))


@given(values=_values(), cut=st.integers(0, 128))
def test_many_checksums_are_those_of_each(values: list[bytes], cut: int) -> None:
    """Of one length or several, in a slice as well."""
    values *= 64
    array = pa.array(values, pa.binary())
    assert checksums(array).tolist() == [checksum(value) for value in values]
    assert checksums(array[cut:]).tolist() == [checksum(value) for value in values[cut:]]


@given(data=st.binary(max_size=200), cut=st.integers(0, 200))
def test_a_checksum_can_be_continued_at_any_cut(data: bytes, cut: int) -> None:
    """The checksum of a whole does not depend on how it was cut."""
    view = memoryview(data)
    assert checksum(view[cut:], checksum(view[:cut])) == checksum(data)


def test_combined_digests_depend_on_values_and_order() -> None:
    """The digest of a table scan is fixed for ever, and notices swapped buckets."""
    assert combine_digests([]) == 0
    assert combine_digests([0x04030201, 0x08070605]) == checksum(bytes([1, 2, 3, 4, 5, 6, 7, 8]))
    assert combine_digests([1, 2]) != combine_digests([2, 1])


@given(parts=st.lists(st.binary(max_size=300), max_size=8))
def test_digests_of_adjacent_parts_join_to_that_of_the_whole(parts: list[bytes]) -> None:
    """In key order, empty parts included; and parts can be joined in turn."""
    digests = [(checksum(part), len(part)) for part in parts]
    assert join_digests(digests) == checksum(b"".join(parts))
    first, second = digests[::2], digests[1::2]
    halves = [(join_digests(half), sum(length for _, length in half)) for half in (digests[:3], digests[3:])]
    assert join_digests(halves) == join_digests(digests)
    assert join_digests([*first, *second]) == checksum(b"".join([*parts[::2], *parts[1::2]]))


def test_a_long_part_joins_as_fast_as_a_short_one() -> None:
    """By the length alone: a hundred terabytes are fifty steps."""
    assert join_digests([(checksum(b"a"), 1), (checksum(b""), 0)]) == checksum(b"a")
    zeros = bytes(1 << 20)
    assert join_digests([(checksum(b"a"), 1), (checksum(zeros), len(zeros))]) == checksum(b"a" + zeros)
    assert 0 <= join_digests([(1, 1), (2, 10**14)]) < 2**32


@pytest.mark.parametrize("part", [(None, None), (5, None)])
def test_a_part_that_has_no_digest_is_refused(part: tuple[int | None, int | None]) -> None:
    """Its scan has not come to its end: the statistics have None then."""
    with pytest.raises(ArgumentInvalid, match="part 1 has no digest, since its scan has not come to its end"):
        join_digests([(0, 0), part])
