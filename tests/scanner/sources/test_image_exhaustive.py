"""Small images, exhaustively: a token of every row, every octet damaged, every length that a file can be cut to.

What a scan gives is compared with a scan of the row store as of the same offset, positions and digest included.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pytest

from bench.harness.images import write_image
from scanner.data.filters import Operator, Predicate
from scanner.data.keys import KeyRange
from scanner.data.position import START, Position
from scanner.sources.image import ImageScan
from scanner.sources.image_delta import ImageDelta
from scanner.sources.overlay import OverlayLimits
from scanner.sources.past import PastChanges, SharedPast
from scanner.storage.images.format import ImageDamaged
from scanner.storage.images.reader import Image
from scanner.wire.queries import ScanQuery
from tests.support.histories import as_of
from tests.support.images import ANY, changed, drive, source_over
from tests.support.nightly import everyday
from tests.support.scans import filled_store, mutations

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scanner.sources.as_of import AsOfScan
    from scanner.sources.image import Changes
    from scanner.sources.interface import EndReason, RowScan
    from scanner.sources.kv import KvSource
    from scanner.storage.memory.store import MemoryStore

SOLD = (Predicate("sold", Operator.EQUAL, (True,)),)


class Found(NamedTuple):
    """All that a scan gives."""

    rows: list[dict[str, object]]
    position: Position
    end: EndReason | None


class Setting:
    """A store, an image of it, what was changed since, and a query.

    Args:
        path: Of the image.
        share: Of the rows that were changed, spread; a third of them deleted.
        query: What is scanned.
        rows: Of the image.
        behind: Changes after the offset that is scanned.
        new_column: A column was added between the image and the changes.
        image_is_later: The image is of the end, and the scan as of an offset in front of the changes.
    """

    def __init__(
        self,
        path: Path,
        share: float,
        query: ScanQuery,
        *,
        rows: int = 60,
        behind: int = 0,
        new_column: bool = False,
        image_is_later: bool = False,
    ) -> None:
        self.store: MemoryStore = filled_store(rows)
        self.query = query
        self.bucket = self.store.bucket("items", 0)
        self.image = write_image(path, self.store, rows_max=7)
        self.delta = ImageDelta(self.bucket, self.bucket.log_end, ANY)
        if new_column:
            self.store.add_column("items", pa.field("colour", pa.string()))
        touched = [round(number / share) for number in range(1, int(rows * share))] if share else []
        if touched:
            self._change([*touched, 6, 13, 61, 62], touched[::3])
        self.log_offset = self.bucket.log_end
        if behind:
            self._change(list(range(behind)), list(range(behind, 2 * behind)))
        if image_is_later:
            self.image = write_image(path, self.store, rows_max=7)

    def _change(self, puts: list[int], deletes: list[int]) -> None:
        if self.store.table("items").column_names[-1] != "colour":
            changed(self.store, puts, deletes)
            return
        changed_rows = pa.RecordBatch.from_pylist(
            [{"id": number, "name": "new", "colour": f"red {number}"} for number in puts],
            schema=self.store.table("items").schema,
        )
        self.bucket.commit([mutations(self.store, "items", changed_rows)])

    def from_rows(self, position: Position = START) -> KvSource:
        """A scan of the row store from a position on."""
        return self._source(self._row_scan(position.remaining(self.query.range)), position)

    def from_image(
        self,
        position: Position = START,
        image: Image | None = None,
        on_damage: Callable[[ImageDamaged], None] = lambda _: None,
    ) -> KvSource:
        """A scan of the image from a position on."""
        key_range = position.remaining(self.query.range)
        scan = ImageScan(
            image or self.image,
            key_range,
            self.store.key_codec("items"),
            self.store.row_codec("items"),
            self._row_scan,
            on_damage,
            self._changes(key_range),
        )
        return self._source(scan, position)

    def _changes(self, key_range: KeyRange) -> Changes:
        made_at = self.image.header.log_offset
        if self.log_offset < made_at:
            limits = OverlayLimits(bytes_max=2_000)
            return PastChanges(SharedPast(self.bucket, self.log_offset, limits), made_at, key_range)
        return self.delta.as_of(self.log_offset, key_range)

    def _row_scan(self, key_range: KeyRange) -> AsOfScan:
        return as_of(self.bucket, self.log_offset, key_range)

    def _source(self, scan: RowScan, position: Position) -> KvSource:
        return source_over(scan, self.store, self.query, position)


def found(source: KvSource) -> Found:
    """Drive it to its end."""
    rows = [row for batch in drive(source) for row in batch.rows.to_pylist()]
    return Found(rows, source.position, source.end)


ITEMS = ScanQuery(table="items")
SETTINGS = {
    "of an offset before the image": (0.2, ITEMS, 25, False),
    "fresh": (0.0, ITEMS, 0, False),
    "stale by little": (0.05, ITEMS, 0, False),
    "stale by a third, and later": (0.34, ITEMS, 20, False),
    "filtered": (0.2, ScanQuery(table="items", columns=("name",), predicates=SOLD), 5, False),
    "limited": (0.2, ScanQuery(table="items", row_limit=37), 5, False),
    "with a new column": (0.2, ScanQuery(table="items", columns=("id", "colour", "price")), 5, True),
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("begins", ["image", "rows"])
def test_a_token_of_every_row_goes_on_from_either(tmp_path: Path, name: str, begins: str) -> None:
    """Behind every row, the other one gives the rest, with the digest and the end of a whole scan."""
    share, query, behind, new_column = SETTINGS[name]
    later = name == "of an offset before the image"
    at = Setting(tmp_path / "image", share, query, behind=behind, new_column=new_column, image_is_later=later)
    whole = found(at.from_rows())
    source = at.from_image() if begins == "image" else at.from_rows()
    go_on = at.from_rows if begins == "image" else at.from_image
    taken: list[dict[str, object]] = []
    while source.end is None:
        batch = source.take(ANY, 1)
        if batch is None:
            source.step()
            continue
        taken += batch.rows.to_pylist()
        rest = found(go_on(source.position))
        assert Found(taken + rest.rows, *rest[1:]) == whole
    assert len(taken) > 15
    assert Found(taken, source.position, source.end) == whole


@pytest.mark.parametrize("first", range(3))
def test_every_damaged_octet_costs_no_row(tmp_path: Path, first: int) -> None:
    """One bit of each octet: the file is refused when it is opened, or the scan says so once and loses nothing."""
    path = tmp_path / "image"
    at = Setting(path, 0.34, ITEMS, rows=16)
    whole, content = found(at.from_rows()), path.read_bytes()
    refused = fell_back = 0
    for place in range(first, len(content), 3):
        damaged = bytes((content[place] ^ 1 << place % 8,))
        with path.open("r+b") as file:
            os.pwrite(file.fileno(), damaged, place)
            told: list[ImageDamaged] = []
            try:
                image = Image(path)
            except ImageDamaged:
                refused += 1
            else:
                assert found(at.from_image(image=image, on_damage=told.append)) == whole
                image.retire()
                assert len(told) == 1
                fell_back += 1
            os.pwrite(file.fileno(), content[place : place + 1], place)
    assert min(refused, fell_back) > 100


@pytest.mark.parametrize("batches", [0, 2])
def test_a_file_cut_anywhere_while_it_is_scanned_costs_no_row(tmp_path: Path, batches: int) -> None:
    """Whatever was read before, and whatever is left of it."""
    path = tmp_path / "image"
    at = Setting(path, 0.2, ITEMS)
    whole, content = found(at.from_rows()), path.read_bytes()
    for length in range(0, len(content), everyday(61, nightly=1)):
        source = at.from_image()
        rows = [row for batch in drive(source, batches_max=batches) for row in batch.rows.to_pylist()]
        os.truncate(path, length)
        rest = found(source)
        assert Found(rows + rest.rows, *rest[1:]) == whole
        path.write_bytes(content)


@pytest.mark.parametrize("later", [False, True], ids=["changed since", "of before"])
def test_a_file_of_all_keys_is_read_by_key(tmp_path: Path, later: bool) -> None:
    """Ranges of keys, from many rows on up to many."""
    at = Setting(tmp_path / "image", 0.2, ITEMS, behind=20, image_is_later=later)
    codec = at.store.key_codec("items")
    everything = found(at.from_rows()).rows
    for low in range(-1, 64, 3):
        for high in range(low - 1, 65, 4):
            at.query = ScanQuery(table="items", range=KeyRange(codec.encode([low]), codec.encode([high])))
            expected = [row for row in everything if low <= int(str(row["id"])) < high]
            assert found(at.from_image()).rows == expected
