"""Scans of one state: which rows come, in which pieces, with which digest, from where, and when storage is read.

Every test runs twice: over stored rows, and over an image of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.harness.images import write_image
from scanner.data.filters import Operator, Predicate
from scanner.data.keys import KeyRange
from scanner.data.position import START, Position
from scanner.errors import ArgumentInvalid, ColumnNotFound, StoreClosed
from scanner.sources.interface import Batch, EndReason
from scanner.sources.kv import KvSource
from scanner.storage.interface import Mutation
from scanner.wire.arrow_ipc import batch_size_bytes
from scanner.wire.queries import ScanQuery
from tests.support.images import FetchedScan, unexpected_damage
from tests.support.scans import SCHEMA, filled_store, mutations, sample, stored_digest, stored_size

if TYPE_CHECKING:
    from pathlib import Path

    from scanner.sources.interface import RowScan
    from scanner.storage.images.reader import Image
    from scanner.storage.memory.store import MemoryStore

ROWS = 200
STORE = filled_store(ROWS)
ANY = 1 << 30
EVERYTHING = KeyRange()


class OpenSource:
    """Opens scans of the sample table.

    Args:
        images: Where images are made; None: stored rows are scanned.
    """

    def __init__(self, images: Path | None) -> None:
        self._images = images
        self._made: dict[tuple[int, int, int, int], Image] = {}

    def __call__(
        self,
        store: MemoryStore = STORE,
        *,
        columns: tuple[str, ...] = (),
        predicates: tuple[Predicate, ...] = (),
        limit: int | None = None,
        key_range: KeyRange = EVERYTHING,
        position: Position = START,
        block_rows_max: int = 64,
        block_bytes_max: int = ANY,
    ) -> KvSource:
        """A scan of the sample table."""
        remaining = position.remaining(key_range)
        return KvSource(
            self._scan(store, remaining, block_rows_max, block_bytes_max),
            store.table("items"),
            store.row_codec("items"),
            ScanQuery(
                table="items", columns=columns, predicates=predicates, row_limit=limit, range=key_range
            ),
            position=position,
            block_rows_max=block_rows_max,
            block_bytes_max=block_bytes_max,
        )

    def _scan(self, store: MemoryStore, key_range: KeyRange, rows_max: int, bytes_max: int) -> RowScan:
        bucket = store.bucket("items", 0)
        if self._images is None:
            return bucket.open_snapshot().scan(key_range)
        made = (id(store), bucket.log_end, rows_max, bytes_max)
        if made not in self._made:
            path = self._images / f"{len(self._made)}"
            self._made[made] = write_image(path, store, rows_max=rows_max, bytes_max=bytes_max)
        return FetchedScan(
            self._made[made],
            key_range,
            store.key_codec("items"),
            store.row_codec("items"),
            lambda rest: bucket.open_snapshot().scan(rest),
            unexpected_damage,
        )


@pytest.fixture(scope="module", params=["rows", "image"])
def open_source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OpenSource:
    """Opens scans of stored rows, or of images."""
    return OpenSource(tmp_path_factory.mktemp("images") if request.param == "image" else None)


def drive(source: KvSource, payload_bytes_max: int = ANY, rows_max: int = ANY) -> list[Batch]:
    """Step and take as a push scan does, to the end."""
    batches = []
    while source.end is None:
        batch = source.take(payload_bytes_max, rows_max)
        if batch is not None:
            batches.append(batch)
        elif source.wants_step:
            source.step()
    return batches


def ids(batches: list[Batch]) -> list[int]:
    """The keys delivered, in order."""
    return [key for batch in batches for key in batch.rows.column("id").to_pylist()]


def test_a_scan_delivers_every_row_in_key_order(open_source: OpenSource) -> None:
    """Rows come back as written, whole and in order, and the end is said once there is nothing left."""
    source = open_source()
    batches = drive(source)

    assert pa.concat_batches([each.rows for each in batches]).equals(sample(range(ROWS)))
    assert [each.row_ordinal for each in batches] == [0, 64, 128, 192]
    assert (source.end, source.rows) == (EndReason.EXHAUSTED, ROWS)
    assert source.digest == stored_digest(STORE, range(ROWS))
    assert source.take(ANY, ANY) is None


def test_an_empty_bucket_ends_at_once_and_has_an_offset(open_source: OpenSource) -> None:
    """No rows, a proven end, the log offset, and the digest of nothing."""
    source = open_source(filled_store(0))

    assert (source.log_offset, source.wants_step) == (0, True)
    assert drive(source) == []
    assert (source.end, source.rows, source.digest) == (EndReason.EXHAUSTED, 0, 0)


def test_later_writes_are_invisible(open_source: OpenSource) -> None:
    """The scan shows the bucket as of its offset, whatever is committed meanwhile."""
    store = filled_store(100)
    source = open_source(store, block_rows_max=10)
    source.step()
    keys = store.key_codec("items").encode_batch(sample([50]))
    store.bucket("items", 0).commit(
        [[*mutations(store, "items", sample([70, 500])), Mutation(keys[0], None)]]
    )

    assert source.log_offset == 100
    assert ids(drive(source)) == list(range(100))
    assert source.digest == stored_digest(store, range(100))


@given(st.integers(1, 3000), st.integers(1, 80), st.integers(1, 80), st.integers(1, 4000), st.booleans())
def test_pieces_fit_and_do_not_change_the_whole(
    open_source: OpenSource, payload_max: int, rows_max: int, block_rows: int, block_bytes: int, some: bool
) -> None:
    """However blocks and batches are cut: same rows, same digest, ordinals without a gap, bounds kept."""
    predicates = (Predicate("sold", Operator.EQUAL, (True,)),) if some else ()
    source = open_source(predicates=predicates, block_rows_max=block_rows, block_bytes_max=block_bytes)
    batches = drive(source, payload_max, rows_max)

    assert ids(batches) == list(range(0, ROWS, 2 if some else 1))
    assert source.digest == stored_digest(STORE, range(ROWS))
    ordinal = 0
    for batch in batches:
        assert batch.row_ordinal == ordinal
        assert batch.payload_bytes == batch_size_bytes(batch.rows)
        assert 1 <= batch.rows.num_rows <= rows_max
        assert batch.payload_bytes <= payload_max or batch.rows.num_rows == 1
        ordinal += batch.rows.num_rows
    assert source.rows == ordinal


@given(st.integers(0, ROWS + 5), st.integers(1, 50), st.integers(1, 2000), st.booleans())
def test_a_limit_is_exact_and_the_digest_ends_with_it(
    open_source: OpenSource, limit: int, block_rows: int, payload_max: int, some: bool
) -> None:
    """Exactly `limit` rows come; the digest covers what was scanned up to the last of them."""
    predicates = (Predicate("sold", Operator.EQUAL, (False,)),) if some else ()
    source = open_source(limit=limit, predicates=predicates, block_rows_max=block_rows)
    delivered = ids(drive(source, payload_max))
    passing = list(range(1, ROWS, 2)) if some else list(range(ROWS))

    assert delivered == passing[:limit]
    if limit <= len(passing):
        assert source.end is EndReason.LIMIT
        assert source.digest == stored_digest(STORE, range(delivered[-1] + 1) if delivered else ())
    else:
        assert source.end is EndReason.EXHAUSTED
        assert source.digest == stored_digest(STORE, range(ROWS))


def test_the_digest_ends_with_a_limit_that_a_block_just_meets(open_source: OpenSource) -> None:
    """Rows behind the last one that the limit allows do not count, though none of those in its block passes."""
    predicates = (Predicate("sold", Operator.EQUAL, (False,)),)
    source = open_source(limit=2, predicates=predicates, block_rows_max=5)
    assert ids(drive(source)) == [1, 3]
    assert source.digest == stored_digest(STORE, range(4))


def test_a_limit_reads_no_more_than_it_needs(open_source: OpenSource) -> None:
    """Without a filter, a limit of 3 reads 3 stored rows, and the iterator is freed with the last of them."""
    source = open_source(limit=3)
    source.step()

    assert not source.wants_step
    assert 0 <= source.pending_bytes - batch_size_bytes(sample(range(3))) < 64  # padding
    with pytest.raises(StoreClosed):
        source.step()
    assert ids(drive(source)) == [0, 1, 2]


def test_the_position_is_behind_the_last_row_delivered(open_source: OpenSource) -> None:
    """Of a block delivered in part, the digest covers the part; behind it, also what was filtered out."""
    source = open_source(predicates=(Predicate("id", Operator.IN, (3, 7)),), block_rows_max=10)
    source.step()
    assert (source.rows, source.digest) == (0, 0)
    source.take(ANY, 1)
    assert (source.rows, source.digest) == (1, stored_digest(STORE, range(4)))
    source.take(ANY, 1)
    assert (source.rows, source.digest) == (2, stored_digest(STORE, range(10)))


def test_a_filter_that_drops_everything_returns_after_every_block(open_source: OpenSource) -> None:
    """Each step is bounded and moves the position, though there is nothing to take."""
    source = open_source(predicates=(Predicate("id", Operator.LESS, (0,)),), block_rows_max=50)
    for block in range(1, 5):
        assert source.end is None
        source.step()
        assert source.take(ANY, ANY) is None
        assert source.pending_bytes == 0
        assert source.digest == stored_digest(STORE, range(50 * block))
    assert source.end is EndReason.EXHAUSTED


def test_columns_come_in_the_order_asked_for(open_source: OpenSource) -> None:
    """Projection keeps the asked order; columns only the filter needs are not delivered."""
    source = open_source(columns=("price", "id"), predicates=(Predicate("name", Operator.IS_NULL),), limit=2)

    assert source.schema == pa.schema([SCHEMA.field("price"), SCHEMA.field("id")])
    assert [each.rows.to_pydict() for each in drive(source)] == [{"price": [0.0, 0.75], "id": [0, 3]}]


def test_the_digest_is_of_stored_rows_whatever_is_projected(open_source: OpenSource) -> None:
    """Two scans of one state have one digest, whichever columns they ask for."""
    narrow = open_source(columns=("sold",))
    drive(narrow)

    assert narrow.digest == stored_digest(STORE, range(ROWS))


@given(st.integers(-5, ROWS + 5), st.integers(-5, ROWS + 5))
def test_a_key_range_is_half_open(open_source: OpenSource, start: int, end: int) -> None:
    """Keys from the start, included, to the end, excluded; crossed bounds hold nothing."""
    codec = STORE.key_codec("items")
    source = open_source(key_range=KeyRange(codec.encode([start]), codec.encode([end])))

    expected = list(range(max(start, 0), min(end, ROWS)))
    assert ids(drive(source)) == expected
    assert source.digest == stored_digest(STORE, expected)


def test_pages_gather_several_blocks(open_source: OpenSource) -> None:
    """Stepped until a page is full, `take` makes one batch of the blocks and keeps the rest."""
    source = open_source(block_rows_max=10)
    page_bytes = 2000
    while source.pending_bytes < page_bytes:
        source.step()
    batch = source.take(page_bytes, ANY)

    assert batch is not None
    assert batch.rows.num_rows > 10
    assert 0.9 * page_bytes < batch.payload_bytes <= page_bytes
    assert batch.rows.equals(sample(range(batch.rows.num_rows)))
    assert source.digest == stored_digest(STORE, range(batch.rows.num_rows))
    assert ids([batch, *drive(source)]) == list(range(ROWS))


def test_unknown_columns_are_refused(open_source: OpenSource) -> None:
    """A column that is not there, in projection or filter, lists those that are."""
    with pytest.raises(ColumnNotFound, match="id, name, price, sold"):
        open_source(columns=("id", "colour"))
    with pytest.raises(ColumnNotFound, match="id, name, price, sold"):
        open_source(predicates=(Predicate("colour", Operator.IS_NULL),))
    with pytest.raises(ArgumentInvalid, match="price"):
        open_source(predicates=(Predicate("price", Operator.EQUAL, ("red",)),))


def test_a_closed_source_is_closed(open_source: OpenSource) -> None:
    """Closing is idempotent, frees what was decoded, and a further step raises."""
    source = open_source()
    source.step()
    source.close()
    source.close()

    assert source.take(ANY, ANY) is None
    with pytest.raises(StoreClosed):
        source.step()


def test_a_refused_source_closes_its_scan() -> None:
    """What the source was given is freed, though nobody gets the source."""
    scan = STORE.bucket("items", 0).open_snapshot().scan()
    query = ScanQuery(table="items", columns=("colour",))
    with pytest.raises(ColumnNotFound):
        KvSource(
            scan,
            STORE.table("items"),
            STORE.row_codec("items"),
            query,
            block_rows_max=1,
            block_bytes_max=ANY,
        )
    with pytest.raises(StoreClosed):
        scan.read(1, ANY)


@given(
    st.lists(st.integers(1, 30), max_size=8),
    st.integers(1, 40),
    st.sampled_from([None, 0, 1, 50, ROWS, ROWS + 1]),
    st.booleans(),
    st.tuples(st.integers(-5, ROWS), st.integers(0, ROWS + 5)),
)
def test_a_scan_goes_on_from_any_position(
    open_source: OpenSource,
    takes: list[int],
    block_rows: int,
    limit: int | None,
    some: bool,
    bounds: tuple[int, int],
) -> None:
    """Cut after any batches and opened again by position: rows, ordinals, digest and end as without a cut."""
    codec = STORE.key_codec("items")
    predicates = (Predicate("sold", Operator.EQUAL, (True,)),) if some else ()
    key_range = KeyRange(codec.encode([bounds[0]]), codec.encode([bounds[1]]))
    reference = open_source(limit=limit, predicates=predicates, key_range=key_range)
    expected = ids(drive(reference))

    batches: list[Batch] = []
    position = START
    for rows_max in [*takes, ANY]:
        source = open_source(
            limit=limit,
            predicates=predicates,
            key_range=key_range,
            position=position,
            block_rows_max=block_rows,
        )
        while source.wants_step and not source.pending_bytes:
            source.step()
        batch = source.take(ANY, rows_max)
        batches += [] if batch is None else [batch]
        if rows_max == ANY:
            batches += drive(source)
        position = source.position
        source.close()

    assert ids(batches) == expected
    assert [batch.row_ordinal for batch in batches] == [
        sum(each.rows.num_rows for each in batches[:index]) for index in range(len(batches))
    ]
    assert position == reference.position
    assert source.end is reference.end


def test_the_position_names_the_last_row_that_the_digest_covers(open_source: OpenSource) -> None:
    """Filtered rows in front of a delivered one count; a block of which nothing passes counts as a whole."""
    codec = STORE.key_codec("items")
    source = open_source(predicates=(Predicate("id", Operator.IN, (3, 7)),), block_rows_max=10)
    assert source.position == START
    source.step()
    assert source.position == START
    source.take(ANY, 1)
    assert source.position == Position(
        codec.encode([3]), 1, stored_digest(STORE, range(4)), stored_size(STORE, range(4))
    )
    source.take(ANY, 1)
    assert source.position == Position(
        codec.encode([9]), 2, stored_digest(STORE, range(10)), stored_size(STORE, range(10))
    )
    source.step()
    assert source.position == Position(
        codec.encode([19]), 2, stored_digest(STORE, range(20)), stored_size(STORE, range(20))
    )


def test_nothing_remains_behind_the_end_of_a_range(open_source: OpenSource) -> None:
    """A position never widens a range, and one at its end leaves an empty range, not an open one."""
    codec = STORE.key_codec("items")
    key_range = KeyRange(codec.encode([5]), codec.encode([8]))

    assert START.remaining(key_range) == key_range
    assert Position(codec.encode([2])).remaining(key_range) == key_range
    assert ids(drive(open_source(key_range=key_range, position=Position(codec.encode([6]))))) == [7]
    assert ids(drive(open_source(key_range=key_range, position=Position(codec.encode([7]))))) == []
    assert ids(drive(open_source(key_range=key_range, position=Position(codec.encode([90]))))) == []
