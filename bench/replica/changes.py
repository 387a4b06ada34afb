"""What a micro-batch of changes comes to: for each key the last change alone. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

_REMOVE: Final = pa.array(["delete", "update_preimage"])
_PLACE: Final = "_place"


class LastChanges(NamedTuple):
    """What is to be done to a copy of the table."""

    puts: pa.Table
    """Whole rows to be inserted or updated."""
    deletes: pa.Table
    """Keys to be deleted; none of them is among the puts."""


def last_changes(changes: pa.Table, schema: pa.Schema, primary_key: Sequence[str]) -> LastChanges:
    """Reduce the changes of a micro-batch.

    Args:
        changes: Rows of the table with `_change_type` and `_log_offset`, in any order.
        schema: Of the table.
        primary_key: Its key columns.
    """
    # Changes of one key are in one bucket, so offsets order them; rows of the table itself are in front of any.
    ordered = changes.take(pc.sort_indices(pc.fill_null(changes.column("_log_offset"), -1)))
    ordered = ordered.append_column(_PLACE, pa.array(range(len(ordered)), pa.int64()))
    places = ordered.group_by(list(primary_key)).aggregate([(_PLACE, "max")]).column(f"{_PLACE}_max")
    last = ordered.take(places)
    removed = pc.is_in(last.column("_change_type"), value_set=_REMOVE)
    keys = pa.schema([schema.field(name) for name in primary_key])
    return LastChanges(
        last.filter(pc.invert(removed)).select(schema.names).cast(schema),
        last.filter(removed).select(list(primary_key)).cast(keys),
    )
