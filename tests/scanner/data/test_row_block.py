"""Blocks of stored rows: slices, digests, bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanner.data.digest import checksum
from scanner.data.row_block import BLOCK_BYTES_MAX, RowBlock
from scanner.data.rows import RowCodec
from tests.support.arrow_values import batches

if TYPE_CHECKING:
    import pyarrow as pa


@given(batch=batches(), data=st.data())
def test_slices_of_a_block_are_slices_of_its_batch(batch: pa.RecordBatch, data: st.DataObject) -> None:
    """A block, its slices and its batch correspond row by row; the digest does not depend on the slicing."""
    codec = RowCodec(batch.schema)
    rows = codec.encode_batch(batch)
    block = RowBlock.join(rows)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    digest = 0
    for start, stop in zip([0, *cuts], [*cuts, len(rows)], strict=True):
        part = block.slice(start, stop)
        assert len(part) == stop - start
        assert part.nbytes == sum(map(len, rows[start:stop]))
        assert bytes(block.bytes(start, stop)) == b"".join(rows[start:stop])
        assert [part.row(index) for index in range(len(part))] == rows[start:stop]
        assert codec.decode_block(part).equals(batch.slice(start, stop - start))
        digest = part.digest(digest)
    assert digest == block.digest() == checksum(b"".join(rows))


def test_a_block_has_a_greatest_size() -> None:
    """More bytes than Arrow's 32-bit offsets reach are refused before they are copied."""
    row = bytes(1 << 20)
    with pytest.raises(ValueError, match="at most 2147483647 are allowed"):
        RowBlock.join([row] * (BLOCK_BYTES_MAX // len(row) + 1))


@given(st.lists(st.lists(st.binary(max_size=20), max_size=4), max_size=4), st.data())
def test_blocks_put_together_are_their_rows(parts: list[list[bytes]], data: st.DataObject) -> None:
    """Slices, put together, are the rows of the slices; a list of them is a copy."""
    blocks, expected = [], []
    for rows in parts:
        start = data.draw(st.integers(0, len(rows)))
        stop = data.draw(st.integers(start, len(rows)))
        blocks.append(RowBlock.join(rows).slice(start, stop))
        expected += rows[start:stop]
    whole = RowBlock.concat(blocks)
    assert whole.to_list() == expected
    assert bytes(whole.bytes(0, len(whole))) == b"".join(expected)


@given(st.lists(st.binary(max_size=5), max_size=6), st.integers(0, 30), st.integers(0, 3))
def test_rows_that_fit(rows: list[bytes], bytes_max: int, skipped: int) -> None:
    """As many of the first rows as take no more than the limit together, out of a slice too."""
    block = RowBlock.join(rows).slice(min(skipped, len(rows)), len(rows))
    fitting = block.fitting(bytes_max)
    left = block.to_list()
    assert sum(map(len, left[:fitting])) <= bytes_max
    assert fitting == len(left) or sum(map(len, left[: fitting + 1])) > bytes_max


def test_blocks_put_together_have_a_greatest_size() -> None:
    """More bytes than Arrow's 32-bit offsets reach are refused before they are copied."""
    block = RowBlock.join([bytes(1 << 20)])
    with pytest.raises(ValueError, match=str(BLOCK_BYTES_MAX)):
        RowBlock.concat([block] * (BLOCK_BYTES_MAX // len(block.buffer) + 1))
