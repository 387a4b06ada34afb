"""Scans of images beside scans of stored rows: the same rows, and what is particular to images.

That images keep to the contract of a source is in `test_kv`.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Never

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.harness.images import write_image
from scanner.data.filters import Operator, Predicate
from scanner.data.keys import ALL_KEYS, KeyRange
from scanner.data.position import START
from scanner.data.table import TableDescription
from scanner.errors import SnapshotLost, StoreClosed
from scanner.sources.block_cache import BlockCache
from scanner.sources.image import ImageScan
from scanner.sources.image_builder import FIRST_BLOCK_BYTES, ImageBuilder
from scanner.sources.image_delta import ImageDelta
from scanner.sources.interface import Batch, EndReason
from scanner.storage.images.format import BLOCK_BYTES_MIN, ImageDamaged, ImageHeader
from scanner.storage.images.reader import Image
from scanner.storage.images.writer import ImageWriter
from scanner.storage.interface import Mutation
from scanner.storage.memory.store import MemoryStore
from scanner.wire.arrow_ipc import decode_batch, encode_rows
from scanner.wire.queries import ScanQuery
from tests.support.histories import as_of
from tests.support.images import (
    ANY,
    FetchedScan,
    changed,
    drive,
    scan_of,
    scan_with_changes,
    source_over,
    table_of,
)
from tests.support.scans import SCHEMA, filled_store, mutations, sample

if TYPE_CHECKING:
    from pathlib import Path

    from scanner.sources.as_of import AsOfScan
    from scanner.sources.interface import RowScan

ROWS = 200
STORE = filled_store(ROWS)


def test_whole_blocks_go_out_as_they_lie(tmp_path: Path) -> None:
    """Payload and checksum are those of the file; they decode to the rows that the batch says."""
    image = write_image(tmp_path / "image", STORE)
    batches = drive(source_over(scan_of(image, STORE), STORE, ScanQuery(table="items")))

    assert [batch.rows.num_rows for batch in batches] == [64, 64, 64, 8]
    for batch in batches:
        assert batch.encoded is not None
        assert batch.payload_bytes == batch.encoded.payload.size
        assert decode_batch(batch.encoded.payload, SCHEMA).equals(batch.rows)
        assert batch.encoded.crc32c == encode_rows(batch.rows).crc32c


def test_a_block_that_is_not_whole_is_encoded_again(tmp_path: Path) -> None:
    """Cut by credit, by columns, or by a filter; a filter that all rows of a block pass cuts nothing."""
    image = write_image(tmp_path / "image", STORE)

    def whole(query: ScanQuery, payload_bytes_max: int = ANY) -> list[bool]:
        source = source_over(scan_of(image, STORE), STORE, query)
        return [batch.encoded is not None for batch in drive(source, payload_bytes_max)]

    size = image.fetch(0).payload.size
    assert whole(ScanQuery(table="items"), size - 1)[:2] == [False, False]
    assert not any(whole(ScanQuery(table="items", columns=("price", "id"))))
    below = ScanQuery(table="items", predicates=(Predicate("id", Operator.LESS, (100,)),))
    assert whole(below) == [True, False]


def test_columns_that_were_added_since_read_as_null(tmp_path: Path) -> None:
    """An image of before has nulls in them, as rows of before have; it is not sent as it lies."""
    store = filled_store(ROWS)
    image = write_image(tmp_path / "image", store)
    store.add_column("items", pa.field("colour", pa.string()))
    query = ScanQuery(table="items", columns=("id", "colour"))
    expected = drive(source_over(store.bucket("items", 0).open_snapshot().scan(), store, query))
    batches = drive(source_over(scan_of(image, store), store, query))

    assert table_of(batches, batches[0].rows.schema).equals(table_of(expected, expected[0].rows.schema))
    everything = ScanQuery(table="items", columns=store.table("items").column_names)
    batch = drive(source_over(scan_of(image, store), store, everything))[0]
    assert batch.encoded is None
    assert batch.rows.column("colour").null_count == batch.rows.num_rows


def test_a_damaged_block_is_read_from_the_row_store(tmp_path: Path) -> None:
    """Its rows and all behind come from there, with the digest of a whole scan; the damage is told once."""
    path = tmp_path / "image"
    image = write_image(path, STORE)
    with path.open("r+b") as file:
        file.seek(image.size_bytes // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes((byte[0] ^ 1,)))
    told: list[ImageDamaged] = []
    expected = source_over(STORE.bucket("items", 0).open_snapshot().scan(), STORE, ScanQuery(table="items"))
    source = source_over(scan_of(image, STORE, on_damage=told.append), STORE, ScanQuery(table="items"))
    batches = drive(source)

    assert table_of(batches).equals(table_of(drive(expected)))
    assert (source.position, source.end) == (expected.position, EndReason.EXHAUSTED)
    assert (batches[0].encoded is not None, batches[-1].encoded, len(told)) == (True, None, 1)


@pytest.mark.parametrize("read", range(4))
def test_a_file_cut_while_it_is_scanned_costs_no_row(tmp_path: Path, read: int) -> None:
    """Whatever was read before, the rest comes from the row store."""
    image = write_image(tmp_path / "image", STORE)
    source = source_over(scan_of(image, STORE, on_damage=lambda _: None), STORE, ScanQuery(table="items"))
    batches = drive(source, batches_max=read)
    os.truncate(image.path, 100)
    batches += drive(source)

    assert table_of(batches).equals(pa.Table.from_batches([sample(range(ROWS))]))


def test_a_closed_scan_releases_the_image(tmp_path: Path) -> None:
    """A retired image is closed with the last scan of it; reading on is refused."""
    image = write_image(tmp_path / "image", STORE)
    scan = scan_of(image, STORE)
    image.retire()
    while not (read := scan.read(1, 1)):
        pass  # It was not cached.
    assert len(read) == 64
    scan.close()
    scan.close()
    with pytest.raises(StoreClosed):
        scan.read(1, 1)
    with pytest.raises(ImageDamaged):
        image.fetch(0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_images_and_stored_rows_give_the_same_scan(tmp_path: Path, data: st.DataObject) -> None:
    """Cut and continued now from the image and now from the row store: rows, ordinals, digests, positions, end."""
    ids = data.draw(st.lists(st.integers(-300, 300), unique=True))
    store = MemoryStore()
    store.create_table(TableDescription("items", SCHEMA, ("id",), 1))
    store.bucket("items", 0).commit([mutations(store, "items", sample(ids))])
    codec = store.key_codec("items")
    image = write_image(tmp_path / "image", store, rows_max=data.draw(st.integers(1, 70)))
    low, high = data.draw(st.integers(-301, 301)), data.draw(st.integers(-301, 301))
    key_range = KeyRange(
        codec.encode([low]) if data.draw(st.booleans()) else b"",
        codec.encode([high]) if data.draw(st.booleans()) else b"",
    )
    query = ScanQuery(
        table="items",
        columns=data.draw(st.sampled_from([(), ("id",), ("sold", "id"), ("id", "name", "price", "sold")])),
        predicates=data.draw(
            st.sampled_from(
                [(), (Predicate("sold", Operator.EQUAL, (True,)),), (Predicate("name", Operator.IS_NULL),)]
            )
        ),
        row_limit=data.draw(st.none() | st.integers(0, 600)),
        range=key_range,
    )
    reference = source_over(store.bucket("items", 0).open_snapshot().scan(key_range), store, query)
    expected = drive(reference)

    batches: list[Batch] = []
    position, source = START, reference
    for cut in [*data.draw(st.lists(st.integers(0, 3), max_size=6)), ANY]:
        remaining = position.remaining(key_range)
        from_image = data.draw(st.booleans())
        scan = (
            scan_of(image, store, remaining)
            if from_image
            else store.bucket("items", 0).open_snapshot().scan(remaining)
        )
        source = source_over(scan, store, query, position)
        batches += drive(source, data.draw(st.integers(1, 20_000)), cut)
        position = source.position
        source.close()

    assert table_of(batches, reference.schema).equals(table_of(expected, reference.schema))
    ordinal = 0
    for batch in batches:
        assert batch.row_ordinal == ordinal
        ordinal += batch.rows.num_rows
    assert (position, source.end) == (reference.position, reference.end)


def test_a_builder_fills_blocks(tmp_path: Path) -> None:
    """Blocks take as many rows as fit into 256 KiB, however many are read at once; a larger row has one of its own.

    The first one takes less, for it is what scans wait for.
    """
    store = filled_store(0)
    rows = sample(range(20_000))
    names = pa.array(["x" * 600_000 if number == 12_345 else "y" * (number % 30) for number in range(20_000)])
    rows = rows.set_column(1, SCHEMA.field("name"), names)
    store.bucket("items", 0).commit([mutations(store, "items", rows)])
    codec, key_codec = store.row_codec("items"), store.key_codec("items")
    header = ImageHeader(0, 0, 0, 20_000, bytes(16), codec.schema)
    writer = ImageWriter(tmp_path / "image", header, ANY)
    scan = store.bucket("items", 0).open_snapshot().scan()
    builder = ImageBuilder(scan, writer, codec, key_codec, BLOCK_BYTES_MIN)
    while builder.read():
        builder.write()
    builder.write()
    writer.finish()
    scan.close()

    image = Image(tmp_path / "image")
    sizes = [image.fetch(number).payload.size for number in range(len(image))]
    assert (image.rows, builder.rows_written) == (20_000, 20_000)
    assert [size > BLOCK_BYTES_MIN for size in sizes].count(True) == 1
    assert len(sizes) == 6  # the first, full, up to the large row, that row, full, the rest
    assert 0.98 < sizes[0] / FIRST_BLOCK_BYTES <= 1
    assert all(0.98 < sizes[number] / BLOCK_BYTES_MIN <= 1 for number in (1, 4))
    source = source_over(scan_of(image, store), store, ScanQuery(table="items"))
    assert table_of(drive(source)).equals(pa.Table.from_batches([rows]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changes_are_laid_over_an_image(tmp_path: Path, data: st.DataObject) -> None:
    """As of any offset since, cut anywhere and continued from either: what the row store as of that offset gives."""
    number = st.integers(-100, 100)
    store = filled_store(data.draw(st.integers(0, 80)))
    image = write_image(tmp_path / "image", store, rows_max=data.draw(st.integers(1, 30)))
    bucket, codec = store.bucket("items", 0), store.key_codec("items")
    delta = ImageDelta(bucket, bucket.log_end, ANY)
    ends = [bucket.log_end]
    for _ in range(data.draw(st.integers(0, 4))):
        puts = data.draw(st.lists(number, unique=True, max_size=20))
        deletes = data.draw(st.lists(number, unique=True, max_size=20))
        changed(store, puts, deletes)
        ends.append(bucket.log_end)
        if data.draw(st.booleans()):
            delta.as_of(bucket.log_end, ALL_KEYS).step()
    log_offset = data.draw(st.integers(ends[0], ends[-1]))
    low, high = data.draw(st.integers(-101, 101)), data.draw(st.integers(-101, 101))
    key_range = KeyRange(
        codec.encode([low]) if data.draw(st.booleans()) else b"",
        codec.encode([high]) if data.draw(st.booleans()) else b"",
    )
    predicates = data.draw(st.sampled_from([(), (Predicate("sold", Operator.EQUAL, (True,)),)]))
    query = ScanQuery(
        table="items",
        columns=data.draw(st.sampled_from([(), ("name", "id")])),
        predicates=predicates,
        row_limit=data.draw(st.none() | st.integers(0, 200)),
        range=key_range,
    )

    def row_store(rest: KeyRange) -> AsOfScan:
        return as_of(bucket, log_offset, rest)

    reference = source_over(row_store(key_range), store, query)
    expected = drive(reference)
    batches: list[Batch] = []
    position, source, cache = START, reference, BlockCache(data.draw(st.sampled_from([0, 3000, ANY])))
    for cut in [*data.draw(st.lists(st.integers(0, 3), max_size=5)), ANY]:
        remaining = position.remaining(key_range)
        scan: RowScan = (
            scan_with_changes(image, store, delta, log_offset, remaining, cache=cache)
            if data.draw(st.booleans())
            else row_store(remaining)
        )
        source = source_over(scan, store, query, position)
        batches += drive(source, data.draw(st.integers(1, 5000)), cut)
        position = source.position
        source.close()

    assert table_of(batches, reference.schema).equals(table_of(expected, reference.schema))
    assert (position, source.end) == (reference.position, reference.end)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_scans_share_what_they_merge(tmp_path: Path, data: st.DataObject) -> None:
    """Beside changes and a new column, as of any offset and in any range: what the row store gives, and its digest."""
    number = st.integers(-20, 100)
    store = filled_store(80)
    image = write_image(tmp_path / "image", store, rows_max=data.draw(st.integers(1, 30)))
    bucket, codec = store.bucket("items", 0), store.key_codec("items")
    made_at = bucket.log_end
    delta, cache = ImageDelta(bucket, made_at, ANY), BlockCache(data.draw(st.sampled_from([3000, ANY])))
    for do in data.draw(st.lists(st.sampled_from(["change", "add", *["scan"] * 6]), min_size=4, max_size=24)):
        if do == "add":
            store.add_column(
                "items", pa.field(f"added_{len(store.table('items').column_names)}", pa.string())
            )
        elif do == "change":
            puts, deletes = (data.draw(st.lists(number, unique=True, max_size=6)) for _ in range(2))
            newest = store.table("items").column_names[-1]
            rows = pa.RecordBatch.from_pylist(
                [
                    {"id": each, "name": "new"} | ({} if newest == "sold" else {newest: "red"})
                    for each in puts
                ],
                schema=store.table("items").schema,
            )
            deleted = [Mutation(key, None) for key in codec.encode_batch(sample(deletes))]
            bucket.commit([mutations(store, "items", rows), deleted])
        else:
            # The newest state as a rule: others share nothing.
            log_offset = data.draw(st.just(bucket.log_end) | st.integers(made_at, bucket.log_end))
            key_range = data.draw(
                st.just(ALL_KEYS) | st.builds(lambda low: KeyRange(codec.encode([low]), b""), number)
            )
            scan = scan_with_changes(image, store, delta, log_offset, key_range, cache=cache)
            expected = as_of(bucket, log_offset, key_range)
            rows_max = data.draw(st.sampled_from([50, 1]))
            source, reference = (
                source_over(each, store, ScanQuery(table="items", range=key_range), rows_max=rows_max)
                for each in (scan, expected)
            )
            payload_bytes_max = data.draw(st.sampled_from([1000, ANY]))
            tables = [table_of(drive(each, payload_bytes_max), each.schema) for each in (source, reference)]
            assert tables[0].equals(tables[1])
            assert source.position == reference.position


def test_what_is_merged_is_kept_until_it_changes(tmp_path: Path) -> None:
    """From the second scan on a changed block is one of its own, which goes out as it lies, however it is cut."""
    store = filled_store(ROWS)
    image = write_image(tmp_path / "image", store)
    bucket, cache = store.bucket("items", 0), BlockCache(ANY)
    delta = ImageDelta(bucket, bucket.log_end, ANY)
    query, found = ScanQuery(table="items"), []
    for change in ([70, 71], [], [], [], [72], []):
        if change:
            changed(store, change, [127])
        scan = scan_with_changes(image, store, delta, bucket.log_end, cache=cache)
        source = source_over(scan, store, query)
        batches = drive(source)
        reference = source_over(bucket.open_snapshot().scan(), store, query)
        assert table_of(batches).equals(table_of(drive(reference)))
        assert source.position == reference.position
        found.append((batches[1].encoded is not None, scan.blocks_cached))
    # The second scan merges it and keeps it, like the blocks that nothing has changed.
    assert found == [(False, 0), (True, 0), (True, 4), (True, 4), (False, 4), (True, 4)]

    # A block that is read in pieces is not: no piece is all of it.
    changed(store, [65, 66, 67], [])
    for _ in range(4):
        scan = scan_with_changes(image, store, delta, bucket.log_end, cache=cache)
        assert table_of(drive(source_over(scan, store, query, rows_max=1))).num_rows == ROWS - 1

    key = store.key_codec("items").encode([100])
    inside = KeyRange(key, b"")
    scan = scan_with_changes(image, store, delta, bucket.log_end, inside, cache=cache)
    assert table_of(drive(source_over(scan, store, query), 1000)).column("id")[0].as_py() == 100


def test_who_reads_some_columns_keeps_nothing(tmp_path: Path) -> None:
    """To merge the others, too, would cost more than it saves; what others have kept is read."""
    store = filled_store(ROWS)
    image = write_image(tmp_path / "image", store)
    bucket, cache = store.bucket("items", 0), BlockCache(ANY)
    delta = ImageDelta(bucket, bucket.log_end, ANY)
    changed(store, [70], [])
    query, sizes = ScanQuery(table="items", columns=("name",)), []
    for all_columns in (False, False, False, True, False):
        scan = scan_with_changes(image, store, delta, bucket.log_end, cache=cache, all_columns=all_columns)
        rows = table_of(drive(source_over(scan, store, query)), pa.schema([SCHEMA.field("name")]))
        assert rows == table_of(drive(source_over(bucket.open_snapshot().scan(), store, query)), rows.schema)
        sizes.append(cache.size_bytes)
    # The second one keeps the blocks as they are in the image.
    assert sizes[0] == 0 < sizes[1] == sizes[2] < sizes[3] == sizes[4]


def test_rows_in_front_of_a_block_are_kept_with_it_or_not_at_all(tmp_path: Path) -> None:
    """They may be more than a read gives; then what the last read gives is not all of the block."""
    store = filled_store(ROWS)
    image = write_image(tmp_path / "image", store)
    bucket, cache = store.bucket("items", 0), BlockCache(ANY)
    delta = ImageDelta(bucket, bucket.log_end, ANY)
    changed(store, list(range(-120, 0)), [3])
    query = ScanQuery(table="items")
    for rows_max in (100, 100, 100, 200, 200, 100, 200):
        source = source_over(
            scan_with_changes(image, store, delta, bucket.log_end, cache=cache),
            store,
            query,
            rows_max=rows_max,
        )
        reference = source_over(bucket.open_snapshot().scan(), store, query)
        assert table_of(drive(source)).equals(table_of(drive(reference)))
        assert source.position == reference.position


def test_untouched_blocks_go_out_as_they_lie(tmp_path: Path) -> None:
    """A change in one block is merged there; the others are sent as before, and added rows come behind."""
    store = filled_store(ROWS)
    image = write_image(tmp_path / "image", store)
    bucket = store.bucket("items", 0)
    delta = ImageDelta(bucket, bucket.log_end, ANY)
    changed(store, [70, 500, 501], [71])
    source = source_over(
        scan_with_changes(image, store, delta, bucket.log_end), store, ScanQuery(table="items")
    )
    batches = drive(source)

    assert [batch.encoded is not None for batch in batches] == [True, False, True, True, False]
    assert [batch.rows.num_rows for batch in batches] == [64, 63, 64, 8, 2]


def test_damage_behind_merged_blocks_costs_no_row(tmp_path: Path) -> None:
    """Changes that were merged are not given again, those that were not are not lost."""
    store = filled_store(ROWS)
    image = write_image(tmp_path / "image", store)
    bucket = store.bucket("items", 0)
    delta = ImageDelta(bucket, bucket.log_end, ANY)
    changed(store, [10, 70, 150, 500], [11, 160])
    expected = drive(source_over(bucket.open_snapshot().scan(), store, ScanQuery(table="items")))
    for read in range(5):
        source = source_over(
            scan_with_changes(image, store, delta, bucket.log_end), store, ScanQuery(table="items")
        )
        batches = drive(source, batches_max=read)
        with image.path.open("r+b") as file:
            whole = file.read()
            os.truncate(image.path, 1000)
            batches += drive(source)
            file.seek(0)
            file.write(whole)
        assert table_of(batches).equals(table_of(expected))


@pytest.mark.parametrize("how", ["truncated", "large"])
def test_without_its_changes_an_image_is_given_up(tmp_path: Path, how: str) -> None:
    """If the changelog is gone, or more was changed than may be kept, the row store is read."""
    store = filled_store(ROWS)
    image = write_image(tmp_path / "image", store)
    bucket = store.bucket("items", 0)
    delta = ImageDelta(bucket, bucket.log_end, ANY if how == "truncated" else 1000)
    changed(store, list(range(50)), [])
    changed(store, [7], [])
    if how == "truncated":
        bucket.truncate_log(bucket.log_end - 2)
    told: list[ImageDamaged] = []
    scan = ImageScan(
        image,
        ALL_KEYS,
        store.key_codec("items"),
        store.row_codec("items"),
        lambda rest: bucket.open_snapshot().scan(rest),
        told.append,
        delta.as_of(bucket.log_end, ALL_KEYS),
    )
    batches = drive(source_over(scan, store, ScanQuery(table="items")))
    expected = drive(source_over(bucket.open_snapshot().scan(), store, ScanQuery(table="items")))

    assert table_of(batches).equals(table_of(expected))
    (damage,) = told
    assert ("cut behind it" if how == "truncated" else "image_delta_bytes_max") in str(damage)


def test_what_is_not_cached_is_fetched_first(tmp_path: Path) -> None:
    """A step does not wait for the disk: it says what to run in a thread, and goes on with that; without, it waits."""
    image = write_image(tmp_path / "image", STORE)
    source = source_over(scan_of(image, STORE), STORE, ScanQuery(table="items"))
    with image.path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    fetched = 0
    batches: list[Batch] = []
    while source.end is None:
        if source.fetch is not None and fetched < 2:
            source.fetch()
            fetched += 1
        source.step()
        batch = source.take(ANY, ANY)
        batches += [] if batch is None else [batch]

    assert table_of(batches).equals(pa.Table.from_batches([sample(range(ROWS))]))
    assert source.fetch is None


def test_a_read_touches_one_block(tmp_path: Path) -> None:
    """However many blocks have no row left, each is read by itself, and others get their turn between them."""
    store = filled_store(ROWS)
    image = write_image(tmp_path / "image", store, rows_max=4)
    bucket = store.bucket("items", 0)
    delta = ImageDelta(bucket, bucket.log_end, ANY)
    changed(store, [ROWS], list(range(ROWS)))
    scan = scan_with_changes(image, store, delta, bucket.log_end, kind=FetchedScan)
    reads = 0
    while not (read := scan.read(ANY, ANY)):
        assert read.unfinished
        reads += 1
    assert len(read) == 1
    assert reads >= len(image)
    scan.close()


@pytest.mark.parametrize("where", ["inside a block", "behind the last"])
def test_a_read_merges_a_bounded_number_of_changes(tmp_path: Path, where: str) -> None:
    """Many rows that were added between two of a block, or behind the last, come piece by piece."""
    store = filled_store(0)
    bucket = store.bucket("items", 0)
    bucket.commit([mutations(store, "items", sample([0, 1, 90_000]))])
    image = write_image(tmp_path / "image", store)
    delta = ImageDelta(bucket, bucket.log_end, ANY)
    added = range(10, 6000) if where == "inside a block" else range(90_010, 96_000)
    changed(store, list(added), [90_000])
    scan = scan_with_changes(image, store, delta, bucket.log_end)
    pieces = []
    while (read := scan.read(ANY, ANY)).unfinished or read:
        pieces.append(len(read))
    assert sum(pieces) == 2 + len(added)
    assert max(pieces) <= 4100


def test_a_read_merges_no_more_octets_than_are_asked_for(tmp_path: Path) -> None:
    """Large rows that were added come as a scan of the row store gives them; one may be larger."""
    store = filled_store(3)
    image = write_image(tmp_path / "image", store)
    bucket = store.bucket("items", 0)
    delta = ImageDelta(bucket, bucket.log_end, ANY)
    names = pa.array(["x" * (5_000 if number % 4 else 30_000) for number in range(40)])
    rows = sample(range(10, 50)).set_column(1, SCHEMA.field("name"), names)
    bucket.commit([mutations(store, "items", rows)])
    scan = scan_with_changes(image, store, delta, bucket.log_end)
    sizes, count = [], 0
    while (read := scan.read(ANY, 20_000)).unfinished or read:
        if read:
            assert len(read) == 1 or read.block.digest_of(0, len(read), 0)[1] <= 20_000
            sizes.append(len(read))
            count += len(read)
    assert count == 43
    assert max(sizes[1:]) == 3


def test_a_store_that_fails_too_is_asked_again(tmp_path: Path) -> None:
    """Damage is told once; the error is the row store's, at every read."""
    image = write_image(tmp_path / "image", STORE)
    os.truncate(image.path, 100)
    told: list[ImageDamaged] = []
    reads = 0

    def lost(_: KeyRange) -> Never:
        nonlocal reads
        reads += 1
        raise SnapshotLost("it is gone")

    scan = ImageScan(image, ALL_KEYS, STORE.key_codec("items"), STORE.row_codec("items"), lost, told.append)
    for _ in range(4):
        with suppress(SnapshotLost):
            scan.read(ANY, ANY)
    assert reads >= 2
    assert len(told) == 1
    scan.close()
