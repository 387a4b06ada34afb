"""The image of a bucket: opened once, and only the file that was found wrong is removed."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from bench.harness.images import write_image
from scanner.server.tables.images import BucketImage
from tests.support.file_limit import no_more_files
from tests.support.open_files import open_files
from tests.support.scans import filled_store, sample

ROWS = 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of an image of a table."""
    path = tmp_path / "0000.image"
    write_image(path, filled_store(ROWS)).retire()
    return path


def bucket_image(path: Path) -> BucketImage:
    """Of the bucket that it is an image of."""
    return BucketImage(path, 0, 0, sample([]).schema)


def test_dropping_spares_what_was_made_meanwhile(path: Path) -> None:
    """The name has a new image already: the old one is given up, and the new file stays."""
    image = bucket_image(path)
    image.open()
    newer = write_image(path, filled_store(ROWS + 1))
    assert not image.drop("it is damaged")
    assert (image.current, path.exists()) == (None, True)
    image.replace(newer)
    assert image.current is newer
    assert image.drop()
    assert not path.exists()


def test_a_damaged_file_that_was_replaced_is_spared(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was found damaged, and before it is removed its name has gone to a good one."""
    good = path.with_name("good")
    path.rename(good)
    path.write_bytes(b"no image")
    image = bucket_image(path)
    remove = image._remove

    def replaced_first(*arguments: object) -> bool:
        good.replace(path)
        return remove(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(image, "_remove", replaced_first)
    image.open()
    assert (image.current, path.exists()) == (None, True)
    image.open()
    assert image.current is not None
    image.close()


def test_opening_in_many_threads_opens_one(path: Path) -> None:
    """Whoever comes second closes what it has opened: no descriptor is left behind."""
    image = bucket_image(path)
    for _ in range(20):
        barrier = threading.Barrier(4)

        def wake(barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            image.open()

        threads = [threading.Thread(target=wake) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert image.current is not None
        image.close()
    assert open_files(path.parent) == []


def test_an_image_that_cannot_be_opened_now_stays(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a descriptor to spare scans read the row store; the image is there for the next time."""
    image = bucket_image(path)
    with no_more_files():
        image.open()
    assert (image.current, path.exists()) == (None, True)
    assert [line.levelno for line in caplog.records] == [logging.WARNING]
    image.open()
    assert image.current is not None
    image.close()


def test_a_split_knows_the_blocks_while_little_was_changed(path: Path) -> None:
    """They are all rows, block by block; none of an image that is of another history, or older than an eighth."""
    image = bucket_image(path)
    assert image.pieces(ROWS) == []
    image.open()
    assert image.current is not None
    offset, blocks = image.current.header.log_offset, image.current
    pieces = image.pieces(offset + ROWS // 8)
    assert [piece.end for piece in pieces] == [blocks.last_key(number) for number in range(len(blocks))]
    assert sum(piece.size_bytes for piece in pieces) == sum(
        int(blocks.fetch(number).ends[-1]) for number in range(len(blocks))
    )
    assert image.pieces(offset + ROWS // 8 + 1) == []
    assert image.pieces(offset - 1) == []
    image.close()
