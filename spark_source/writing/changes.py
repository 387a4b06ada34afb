"""The rows of a task, as upserts and deletes of a table.

Spark hands a task batches of at most 10 000 rows. They are gathered first, so that what goes to the server is worth its
sync; and where rows are changes, each gathered piece becomes at most one delete and one upsert, of the last change of
each key: what a transaction passes through is not to be seen.

Invariant: applied in order, the operations leave a table as the changes would, one by one.

Pure: knows no network and no Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark_source.errors import SourceDataError

if TYPE_CHECKING:
    from spark_source.writing.plan import WritePlan

_UPSERTS: Final = pa.array(["insert", "update_postimage"])
_DELETES: Final = pa.array(["delete", "update_preimage"])
"""Of a log of ours the row before an update goes: the one after it comes behind it, unless a condition left it out."""
_KNOWN: Final = pa.array(["insert", "update_preimage", "update_postimage", "delete"])


class Operation(Enum):
    """What is done with rows."""

    UPSERT = "upsert"
    """They are inserted, or put in place of those of their keys."""
    DELETE = "delete"
    """Those of these keys are deleted."""


class Step(NamedTuple):
    """Rows that are upserted, all columns of the table; or keys that are deleted, the key's columns."""

    operation: Operation
    rows: pa.RecordBatch


def gathered(batches: Iterable[pa.RecordBatch], batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """The same rows in the same order, in batches of at least so many bytes but for the last. None is empty.

    Args:
        batches: Of one schema.
        batch_bytes: Above 0. Nothing is copied of a batch that has as many.
    """
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            held_bytes += batch.nbytes
        if held_bytes >= batch_bytes:
            yield _joined(held)
            held, held_bytes = [], 0
    if held:
        yield _joined(held)


def steps(batch: pa.RecordBatch, plan: WritePlan) -> Iterator[Step]:
    """What is to be done for the rows of a batch, in this order.

    Args:
        batch: Of the DataFrame.
        plan: Of the write.

    Raises:
        SourceDataError: A row is of no known kind of change.
    """
    if plan.change_type is None:
        yield Step(Operation.UPSERT, _whole_rows(batch, plan))
        return
    for piece in _without_order(batch, plan):
        kinds = piece.column(plan.change_type)
        deleted = piece.filter(pc.is_in(kinds, _DELETES))
        if deleted.num_rows:
            yield Step(Operation.DELETE, deleted.select(list(plan.key)))
        put = piece.filter(pc.is_in(kinds, _UPSERTS))
        if put.num_rows:
            yield Step(Operation.UPSERT, _whole_rows(put, plan))


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _whole_rows(batch: pa.RecordBatch, plan: WritePlan) -> pa.RecordBatch:
    columns = [batch.column(name) for name in plan.columns]
    columns += [pa.nulls(batch.num_rows, field.type) for field in plan.absent]
    names = [*plan.columns, *(field.name for field in plan.absent)]
    return pa.RecordBatch.from_arrays(columns, names=names)


def _without_order(batch: pa.RecordBatch, plan: WritePlan) -> Iterator[pa.RecordBatch]:
    """Pieces in each of which deletes may go before upserts."""
    assert plan.change_type is not None
    kinds = batch.column(plan.change_type)
    _require_known(kinds)
    if not plan.of_log:
        batch = batch.filter(pc.not_equal(kinds, "update_preimage"))
    if any(pa.types.is_floating(batch.schema.field(name).type) for name in plan.key):
        # Whether two floats are one key is for the server to say: Arrow's answer for NaN and -0.0 is its own.
        yield from _runs(_without_replaced(batch, plan), plan.change_type)
    elif batch.num_rows:
        yield _last_of_each_key(batch, plan.key)


def _require_known(kinds: pa.Array) -> None:
    known = pc.is_in(kinds, _KNOWN)
    if not pc.all(known, min_count=0).as_py():
        value = kinds[known.index(False).as_py()].as_py()
        shown = "null" if value is None else repr(value)
        raise SourceDataError(
            f"a change of kind {shown} is not known: it is one of {', '.join(_KNOWN.to_pylist())}"
        )


def _last_of_each_key(batch: pa.RecordBatch, key: tuple[str, ...]) -> pa.RecordBatch:
    # Under names of their own: Arrow takes a name that begins with a dot for a path into another column.
    names = [str(place) for place in range(len(key))]
    columns = [*(batch.column(name) for name in key), pa.array(range(batch.num_rows), pa.int64())]
    rows = pa.Table.from_arrays(columns, [*names, "row"])
    last = rows.group_by(names, use_threads=False).aggregate([("row", "max")]).column("row_max")
    if len(last) == batch.num_rows:
        return batch
    return batch.take(last.combine_chunks().sort())


def _without_replaced(batch: pa.RecordBatch, plan: WritePlan) -> pa.RecordBatch:
    """The changes but for each row before an update that is followed by the row after it: of one run, not of two."""
    before, after = batch.slice(0, max(0, batch.num_rows - 1)), batch.slice(1)
    replaced = pc.and_(
        pc.equal(before.column(plan.change_type), "update_preimage"),
        pc.equal(after.column(plan.change_type), "update_postimage"),
    )
    for name in plan.key:
        replaced = pc.and_(replaced, pc.equal(before.column(name), after.column(name)))
    kept = pc.invert(replaced.fill_null(False))
    return batch.filter(pa.concat_arrays([kept, pa.array([True] * (batch.num_rows - len(kept)), pa.bool_())]))


def _runs(batch: pa.RecordBatch, change_type: str) -> Iterator[pa.RecordBatch]:
    """Pieces of one operation each, as they follow one another."""
    deletes = pc.is_in(batch.column(change_type), _DELETES).to_pylist()
    start = 0
    for row in range(1, batch.num_rows + 1):
        if row == batch.num_rows or deletes[row] != deletes[start]:
            yield batch.slice(start, row - start)
            start = row
