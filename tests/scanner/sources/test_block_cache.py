"""Blocks of images in memory: which are kept, which make room, and that scans get the same rows from them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.harness.images import write_image
from scanner.data.keys import KeyCodec
from scanner.data.table import TableDescription
from scanner.sources.block_cache import BlockCache, DecodedBlock
from scanner.sources.image_rows import BlockKeys
from scanner.wire.arrow_ipc import decode_batch
from scanner.wire.queries import ScanQuery
from tests.support.images import ANY, drive, scan_of, source_over, table_of
from tests.support.scans import filled_store

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from scanner.storage.images.reader import Image
    from scanner.storage.memory.store import MemoryStore

ROWS = 160
BLOCK_ROWS = 16
BLOCKS = 10


@pytest.fixture
def store() -> MemoryStore:
    """With some rows."""
    return filled_store(ROWS)


@pytest.fixture
def image(tmp_path: Path, store: MemoryStore) -> Image:
    """Of them, in blocks of about one size."""
    return write_image(tmp_path / "image", store, rows_max=BLOCK_ROWS)


def block_of(store: MemoryStore, image: Image, number: int) -> DecodedBlock:
    """As a scan reads it."""
    block = image.fetch(number)
    batch = decode_batch(block.payload, image.header.schema)
    return DecodedBlock(block, batch, BlockKeys(batch, store.key_codec("items")))


def ask(cache: BlockCache, store: MemoryStore, image: Image, numbers: Iterable[int]) -> list[bool]:
    """Ask for blocks as scans do; of each whether it was kept."""
    found = []
    for number in numbers:
        kept = cache.get(image, number)
        found.append(kept is not None)
        if kept is None:
            cache.put(image, number, block_of(store, image, number))
        else:
            assert kept.block.last_key == image.last_key(number)
    return found


def test_a_block_is_kept_from_the_second_time_on(store: MemoryStore, image: Image) -> None:
    """One scan of everything keeps nothing; the third scan needs no file any more."""
    cache, query = BlockCache(ANY), ScanQuery(table="items")
    sizes, cached, tables = [], [], []
    for _ in range(3):
        scan = scan_of(image, store, cache=cache)
        tables.append(table_of(drive(source_over(scan, store, query))))
        sizes.append(cache.size_bytes)
        cached.append((scan.blocks_read, scan.blocks_cached))
        if cache.size_bytes:
            os.truncate(image.path, 0)
    assert cached == [(BLOCKS, 0), (BLOCKS, 0), (0, BLOCKS)]
    assert sizes[0] == 0 < sizes[1] == sizes[2]
    assert tables[0] == tables[1] == tables[2]


def test_what_is_kept_is_counted(store: MemoryStore, image: Image) -> None:
    """The memory of a block, its keys included; none once the image is closed."""
    cache = BlockCache(ANY)
    ask(cache, store, image, [3, 3, 4])
    block = block_of(store, image, 3)
    assert cache.size_bytes == block.size_bytes == block.block.size_bytes + 8 * BLOCK_ROWS
    image.retire()
    assert cache.size_bytes == 0


def test_keys_of_many_lengths_are_counted() -> None:
    """A short last key does not make little of long ones."""
    table = TableDescription(
        "words", pa.schema([pa.field("word", pa.string(), nullable=False)]), ("word",), 1
    )
    words = [letter * 10_000 for letter in "abcdefgh"] + ["z"]
    keys = BlockKeys(pa.record_batch([words], table.schema), KeyCodec(table))
    assert keys.find([b"a"]) == ([0], [False])
    assert isinstance(keys._keys, list)
    assert sum(map(sys.getsizeof, keys._keys)) <= keys.size_bytes <= 100_000


def test_scans_that_go_round_find_what_fits(store: MemoryStore, image: Image) -> None:
    """Where half of the blocks fit, half of them are found; the least recently used rule would find none."""
    half = sum(block_of(store, image, number).size_bytes for number in range(BLOCKS // 2))
    cache = BlockCache(half + 300)
    rounds = [sum(ask(cache, store, image, range(BLOCKS))) for _ in range(5)]
    assert rounds == [0, 0, 5, 5, 5]
    assert cache.size_bytes <= half + 300


def test_what_is_asked_for_again_takes_the_place_of_what_is_not(store: MemoryStore, image: Image) -> None:
    """Two questions for each of some blocks, and none for the kept ones in between."""
    half = sum(block_of(store, image, number).size_bytes for number in range(BLOCKS // 2))
    cache = BlockCache(half + 300)
    ask(cache, store, image, [0, 1, 2, 3, 4] * 3)
    first, second = (ask(cache, store, image, [5, 6, 7]) for _ in range(2))
    assert (first, second) == ([False] * 3, [False] * 3)
    assert ask(cache, store, image, [5, 6, 7, 3, 4]) == [True] * 5


@pytest.mark.parametrize("bytes_max", [0, 10])
def test_without_room_nothing_is_kept(store: MemoryStore, image: Image, bytes_max: int) -> None:
    """Not even a part."""
    cache = BlockCache(bytes_max)
    assert ask(cache, store, image, [0] * 5) == [False] * 5
    assert cache.size_bytes == 0


def test_only_the_last_state_of_a_block_is_kept(store: MemoryStore, image: Image) -> None:
    """Who asks for another one makes room for it; the block without changes is another matter."""
    cache, block = BlockCache(ANY), block_of(store, image, 3)
    for state in (None, "old", "new"):
        for _ in range(2):
            assert cache.get(image, 3, state) is None
            cache.put(image, 3, block, state)
        assert cache.get(image, 3, state) is block
        assert cache.size_bytes == block.size_bytes * (1 if state is None else 2)
    assert cache.get(image, 3, "old") is None
    assert cache.get(image, 3) is block
    assert cache.size_bytes == block.size_bytes


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    questions=st.lists(
        st.tuples(st.booleans(), st.integers(0, BLOCKS - 1), st.sampled_from([None, "one", "two"])),
        max_size=60,
    ),
    blocks=st.integers(0, 2 * BLOCKS),
    closed_after=st.integers(0, 60),
)
def test_any_questions(
    tmp_path: Path,
    store: MemoryStore,
    questions: list[tuple[bool, int, str | None]],
    blocks: int,
    closed_after: int,
) -> None:
    """Each answer is the block that was asked for, of the image that was; memory keeps its bound, and all returns."""
    images = [write_image(tmp_path / name, store, rows_max=BLOCK_ROWS) for name in ("one", "two")]
    bound = blocks * block_of(store, images[0], 0).size_bytes
    cache, batches = BlockCache(bound), {}
    for count, (second, number, state) in enumerate(questions):
        if count == closed_after:
            images[0].retire()
        image = images[second]
        if not second and count >= closed_after:
            continue
        kept = cache.get(image, number, state)
        if kept is None:
            kept = batches[second, number, state] = block_of(store, image, number)
            wanted = cache.wants(image, number, kept.size_bytes, state)
            cache.put(image, number, kept, state)
            before = cache.size_bytes
            cache.put(image, number, kept, state)
            assert cache.size_bytes == before
            assert (number, state) in cache._images[image].kept if wanted else True
        assert kept is batches[second, number, state]
        assert cache.size_bytes <= bound
    for image in images:
        image.retire()
    assert cache.size_bytes == 0
