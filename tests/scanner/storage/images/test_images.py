"""Files of images: what is written is read, and whatever is damaged is found."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from bench.harness.images import write_image
from scanner.data.digest import checksum
from scanner.data.row_block import RowBlock
from scanner.errors import DiskFull, StoreFailed
from scanner.storage.images import reader
from scanner.storage.images.format import ImageDamaged, ImageHeader
from scanner.storage.images.reader import Image
from scanner.storage.images.removal import UNFINISHED
from scanner.storage.images.writer import ImageWriter
from tests.support.faulty_disk import faulty_disk
from tests.support.file_limit import file_size_limit
from tests.support.images import ANY
from tests.support.open_files import open_files
from tests.support.scans import filled_store, sample

GOLDEN = Path(__file__).parent / "golden.image"
OLD = Path(__file__).parent / "golden-1.image"
"""The same rows in the first format, which had no statistics."""
ROWS = 10
HEADER = ImageHeader(7, 3, 2, 812, b"history-of-bytes", sample([]).schema)


def read_all(image: Image) -> pa.Table:
    """All rows of an image."""
    blocks = [image.fetch(number) for number in range(len(image))]
    batches = [pa.ipc.read_record_batch(block.payload, image.header.schema) for block in blocks]
    return pa.Table.from_batches(batches, image.header.schema)


def read_and_close(path: Path) -> None:
    """Open an image, and read all of it."""
    image = Image(path)
    try:
        read_all(image)
    finally:
        image.retire()


def test_an_image_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Header, rows, keys and the running digests of every row; what the page cache holds is read without waiting."""
    store = filled_store(ROWS)
    image = write_image(tmp_path / "image", store, rows_max=4)

    assert (len(image), image.rows, image.header.log_offset, image.header.table_id) == (3, ROWS, ROWS, 0)
    assert read_all(image).equals(pa.Table.from_batches([sample(range(ROWS))]))
    assert image.last_key(1) == store.key_codec("items").encode([7])
    block = image.fetch(1)
    cached = image.read_block(1)
    assert cached is None or cached.payload == block.payload
    stored = store.row_codec("items").encode_batch(sample(range(4, 8)))
    assert block.crcs.tolist() == [checksum(b"".join(stored[: count + 1])) for count in range(4)]
    assert block.ends.tolist() == [sum(map(len, stored[: count + 1])) for count in range(4)]


def test_blocks_are_found_by_key(tmp_path: Path) -> None:
    """The first block that may hold a key; behind the last key there is none."""
    store = filled_store(ROWS)
    image, encode = write_image(tmp_path / "image", store, rows_max=4), store.key_codec("items").encode

    assert [image.block_of(encode([key])) for key in (-5, 0, 3, 4, 9, 10)] == [0, 0, 0, 1, 2, 3]
    assert image.block_of(b"") == 0


def test_an_empty_image_has_no_blocks(tmp_path: Path) -> None:
    """A bucket without rows has an image, too."""
    image = write_image(tmp_path / "image", filled_store(0))
    assert (len(image), image.rows, image.block_of(b"")) == (0, 0, 0)


def test_damage_of_every_byte_is_found(tmp_path: Path) -> None:
    """Whichever byte changes, the image cannot be opened, or the block that it is in cannot be read."""
    path = tmp_path / "image"
    write_image(path, filled_store(ROWS), rows_max=4).retire()
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes((whole[place] ^ 1 << place % 8,)) + whole[place + 1 :])
        with pytest.raises(ImageDamaged):
            read_and_close(path)
    assert open_files(tmp_path) == []


def test_zeros_behind_the_magic_number_are_damage(tmp_path: Path) -> None:
    """They name a head of no octets, and its right checksum."""
    path = tmp_path / "image"
    write_image(path, filled_store(ROWS)).retire()
    whole = path.read_bytes()
    path.write_bytes(whole[:8] + bytes(8) + whole[16:])
    with pytest.raises(ImageDamaged, match="head is damaged"):
        Image(path)


def test_a_file_of_another_length_is_damaged(tmp_path: Path) -> None:
    """Cut at any byte, or longer than it was written."""
    path = tmp_path / "image"
    write_image(path, filled_store(ROWS), rows_max=4).retire()
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ImageDamaged):
            Image(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(ImageDamaged):
        Image(path)


def test_an_image_is_read_without_linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block is fetched: macOS does not tell what is cached, and takes no advice."""
    monkeypatch.setattr(reader, "_NOWAIT", None)
    monkeypatch.delattr(os, "posix_fadvise")
    image = write_image(tmp_path / "image", filled_store(ROWS), rows_max=4)
    assert [image.read_block(number) for number in range(len(image))] == [None] * len(image)
    assert read_all(image).num_rows == ROWS
    image.retire()


def test_a_file_that_gets_shorter_while_it_is_open_is_damaged(tmp_path: Path) -> None:
    """Blocks that are gone are found missing, however they are read; nothing is read as zeros."""
    image = write_image(tmp_path / "image", filled_store(ROWS), rows_max=4)
    os.truncate(image.path, image.size_bytes // 2)
    last = len(image) - 1

    assert image.read_block(last) is None
    with pytest.raises(ImageDamaged, match="shorter"):
        image.fetch(last)


def test_an_image_that_is_removed_or_replaced_is_read_on(tmp_path: Path) -> None:
    """Who has it open reads the file that was opened."""
    path = tmp_path / "image"
    image = write_image(path, filled_store(ROWS), rows_max=4)
    write_image(path, filled_store(2)).retire()
    assert read_all(image).num_rows == ROWS
    path.unlink()
    assert read_all(image).num_rows == ROWS


def test_an_image_is_closed_with_its_last_hold(tmp_path: Path) -> None:
    """Retired while it is read, its file stays open until nobody reads it."""
    image = write_image(tmp_path / "image", filled_store(ROWS))
    image.hold()
    image.retire()
    assert read_all(image).num_rows == ROWS
    image.release()
    image.retire()
    with pytest.raises(ImageDamaged, match="cannot be read"):
        image.fetch(0)


def test_what_is_not_finished_has_no_name(tmp_path: Path) -> None:
    """Until all of it is durable there is no image; given up, there is no file. It is for its user only."""
    path = tmp_path / "image"
    writer = ImageWriter(path, HEADER, ANY)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name + UNFINISHED]
    writer.abort()
    writer.abort()
    assert list(tmp_path.iterdir()) == []

    (tmp_path / (path.name + UNFINISHED)).write_text("of a crash")
    ImageWriter(path, HEADER, ANY).finish()
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o600
    assert Image(path).header == HEADER


def test_a_disk_that_refuses_while_an_image_gets_its_name(tmp_path: Path) -> None:
    """Either the image has it, or the one before still has it and the failure is told; nothing else is left."""
    path, told = tmp_path / "image", []
    for at in range(4):
        ImageWriter(path, HEADER, ANY).finish()
        writer = ImageWriter(path, replace(HEADER, log_offset=900), ANY)
        with faulty_disk(at, kill=False) as faults:
            try:
                writer.finish()
            except StoreFailed:
                told.append(at)
        writer.abort()
        image = Image(path)
        image.retire()
        assert image.header.log_offset == (812 if at in told else 900)
        assert list(tmp_path.iterdir()) == [path]
        assert faults.hit == (at < 3)
    assert told == [0, 1]  # The sync of the file, and its renaming; not the sync of the directory.


def test_an_image_that_cannot_be_begun_leaves_nothing(tmp_path: Path) -> None:
    """The disk refuses the head of a wide table already: neither a file nor a descriptor is left."""
    wide = pa.schema([(f"column-{number}", pa.int64()) for number in range(5000)])
    header = ImageHeader(7, 3, 2, 812, b"history-of-bytes", wide)
    with file_size_limit(10_000), pytest.raises(StoreFailed):
        ImageWriter(tmp_path / "image", header, ANY)
    assert list(tmp_path.iterdir()) == []
    assert open_files(tmp_path) == []


def test_an_image_has_a_bound(tmp_path: Path) -> None:
    """A block that would make it longer than it may be is refused."""
    store = filled_store(ROWS)
    rows = store.row_codec("items").encode_batch(sample(range(ROWS)))
    writer = ImageWriter(tmp_path / "image", HEADER, 1000)
    with pytest.raises(DiskFull, match="image_disk_bytes_max"):
        writer.add(sample(range(ROWS)), RowBlock.join(rows), b"key")
    writer.abort()


def test_an_image_of_another_format_is_none() -> None:
    """Who opens it is told, and which file it is, so that it is removed."""
    with pytest.raises(ImageDamaged, match="of this format") as caught:
        Image(OLD)
    assert caught.value.file_id is not None


def test_the_golden_image_is_read() -> None:
    """An image that was written when this format was made; `write_image` made it."""
    image = Image(GOLDEN)
    store = filled_store(ROWS)

    assert image.header == ImageHeader(0, 0, 0, ROWS, b"golden--history-", sample([]).schema)
    assert read_all(image).equals(pa.Table.from_batches([sample(range(ROWS))]))
    assert [image.last_key(number) for number in range(len(image))] == [
        store.key_codec("items").encode([key]) for key in (3, 7, 9)
    ]
    stored = store.row_codec("items").encode_batch(sample(range(8, ROWS)))
    assert image.fetch(2).crcs.tolist() == [checksum(stored[0]), checksum(b"".join(stored))]
    place = image.place(2)
    assert (place.stored_bytes, place.row_bytes_max) == (len(b"".join(stored)), max(map(len, stored)))
    assert place.stored_crc32c == checksum(b"".join(stored))
    prices = image.ranges(sample([]).schema.field("price"))
    assert (prices.low.cells.to_pylist(), prices.high.cells.to_pylist()) == (
        [0.0, 1.0, 2.0],
        [0.75, 1.75, 2.25],
    )
    assert image.ranges(sample([]).schema.field("name")).nulls.tolist() == [True, True, True]
