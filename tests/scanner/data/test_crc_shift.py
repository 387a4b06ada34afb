"""CRC-32Cs of joined pieces, worked out from those of the pieces."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.data.crc_shift import shifted, shifted_each
from scanner.data.digest import checksum


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_pieces_join(front: bytes, back: bytes) -> None:
    """The CRC-32C of two pieces together follows from both CRC-32Cs and the second one's length."""
    assert shifted(checksum(front), len(back)) ^ checksum(back) == checksum(front + back)


@pytest.mark.parametrize("length", [32 * 1024 - 1, 32 * 1024, 32 * 1024 + 1, 100_000])
def test_long_pieces_join(length: int) -> None:
    """Whichever way it is worked out."""
    front, back = b"front", bytes(range(256)) * (length // 256) + bytes(length % 256)
    assert shifted(checksum(front), length) ^ checksum(back) == checksum(front + back)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_lengths_add_up(crc: int, first: int, second: int) -> None:
    """Two shifts are one by both lengths, however large."""
    assert shifted(shifted(crc, first), second) == shifted(crc, first + second)


@given(
    st.lists(
        st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1) | st.integers(0, 1 << 20)), max_size=20
    )
)
def test_many_are_shifted_as_each(shifts: list[tuple[int, int]]) -> None:
    """Whatever the lengths, in one go."""
    crcs, lengths = np.array(shifts, object).reshape(-1, 2).T
    each = shifted_each(crcs.astype(np.uint32), lengths.astype(np.int64))
    assert each.tolist() == [shifted(crc, length) for crc, length in shifts]
