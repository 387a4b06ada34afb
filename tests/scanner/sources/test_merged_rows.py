"""Rows of an image merged with changed rows, beside a dict that the same changes were made to."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from bench.harness.images import write_image
from scanner.data.digest import checksum
from scanner.data.keys import KeyCodec
from scanner.data.row_block import RowBlock
from scanner.sources.image_rows import BlockKeys, ImageRows
from scanner.sources.merged_rows import merged
from scanner.sources.sorted_runs import Entries
from scanner.storage.memory.store import MemoryStore
from scanner.wire.arrow_ipc import decode_batch
from tests.support.scans import SCHEMA, description, mutations, sample

if TYPE_CHECKING:
    from scanner.storage.images.reader import ImageBlock

ROWS = 40
"""Of the image; their keys are the even numbers below 2 * ROWS."""
CHANGES = st.dictionaries(st.integers(0, 2 * ROWS - 1), st.none() | st.integers(1000, 1100), min_size=1)
"""Of each key that is changed, a number to make its new row of, or None for none."""

ROW = st.integers(0, ROWS)

KEYS = KeyCodec(description())


def stored(numbers: dict[int, int]) -> dict[int, bytes]:
    """A row as it is stored for each key, made of a number."""
    keys, made = sample(numbers), sample(numbers.values())
    return dict(
        zip(numbers, CODEC.encode_batch(made.set_column(0, SCHEMA.field(0), keys.column(0))), strict=True)
    )


def image_store() -> MemoryStore:
    """A store with the table as the image has it."""
    store = MemoryStore()
    store.create_table(description())
    store.bucket("items", 0).commit([mutations(store, "items", sample(range(0, 2 * ROWS, 2)))])
    return store


STORE = image_store()
CODEC = STORE.row_codec("items")


@pytest.fixture(scope="module")
def block(tmp_path_factory: pytest.TempPathFactory) -> ImageBlock:
    """All rows of the image."""
    image = write_image(tmp_path_factory.mktemp("images") / "image", STORE, rows_max=ROWS)
    try:
        return image.fetch(0)
    finally:
        image.retire()


@given(changes=CHANGES, bounds=st.tuples(ROW, ROW), cuts=st.tuples(st.tuples(ROW, ROW), st.tuples(ROW, ROW)))
@example(changes={2 * ROWS - 1: 1000}, bounds=(0, ROWS), cuts=((1, ROWS), (1, ROWS)))
@example(changes={2: None, 4: None}, bounds=(1, 3), cuts=((0, 0), (0, 0)))  # Nothing is left.
def test_rows_are_those_of_a_dict(
    block: ImageBlock,
    changes: dict[int, int | None],
    bounds: tuple[int, int],
    cuts: tuple[tuple[int, int], ...],
) -> None:
    """Their number, sizes, digests, keys and columns; of the whole, of a slice, and of a slice of that."""
    start, stop = sorted(bounds)
    batch = decode_batch(block.payload, SCHEMA)
    truth = stored({key: key for key in range(2 * start, 2 * stop, 2)})
    # Those in front of, between and behind the rows of the slice.
    keys = [key for key in sorted(changes) if 2 * start - 1 <= key <= 2 * stop - 1]
    assume(keys)
    rows = stored({key: number for key in keys if (number := changes[key]) is not None})
    encoded = KEYS.encode_batch(sample(keys))
    places, found = BlockKeys(batch, KEYS).find(encoded)
    base = ImageRows(block, batch, start, stop)
    entries = Entries(encoded, [rows.get(key) for key in keys])
    result = merged(base, [place - start for place in places], found, entries)

    for key in keys:
        truth.pop(key, None)
    truth |= rows
    left = [truth[key] for key in sorted(truth)]
    if result is None:
        assert not left
        return
    ids = sorted(truth)
    for start, more in ((0, len(left) - 1), *cuts):
        first = start % len(left)
        end = first + 1 + more % (len(left) - first)
        result, left, ids = result.slice(first, end), left[first:end], ids[first:end]
        assert len(result) == len(left)
        assert result.row_bytes_max >= max(map(len, left))
        assert result.decode(CODEC, SCHEMA.names).equals(CODEC.decode_block(RowBlock.join(left)))
        assert [result.key_of(index, CODEC, KEYS)() for index in range(len(left))] == KEYS.encode_batch(
            sample(ids)
        )
        again = result.as_block(CODEC, KEYS)
        assert decode_batch(again.payload, SCHEMA).equals(result.decode(CODEC, ()))
        assert again.payload_crc32c == checksum(again.payload)
        assert again.last_key == KEYS.encode_batch(sample(ids[-1:]))[0]
        assert again.ends.tolist() == list(accumulate(map(len, left)))
        assert again.crcs.tolist() == [checksum(b"".join(left[: end + 1])) for end in range(len(left))]
        for first in range(len(left)):
            for end in range(first + 1, len(left) + 1, 7):
                octets = b"".join(left[first:end])
                assert result.digest_of(first, end, 77) == (checksum(octets, 77), len(octets))
