"""The scan that `to_table` folds: a snapshot and its changes up to an offset. Pure.

The key columns are fetched, whether they were selected or not, and dropped at the end.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from scanner.client.arguments import offsets_by_bucket
from scanner.client.scan.plan import END, ScanPlan, ScanSource
from scanner.data.changes import CHANGE_COLUMN_NAMES, CHANGE_TYPE
from scanner.data.folding import Fold
from scanner.errors import ArgumentInvalid

if TYPE_CHECKING:
    import pyarrow as pa

TableAt: TypeAlias = int | Mapping[int, int] | datetime.datetime | None
"""What a table is to be as of: an offset or one per bucket, a time, or None for now."""


@dataclass(frozen=True, slots=True)
class FoldedScan:
    """A scan, and what to make of it."""

    plan: ScanPlan
    """What to run; its batches are to be applied to `new_fold()`."""
    columns: tuple[str, ...]
    """Those wanted."""

    def new_fold(self) -> Fold:
        """An empty table with the columns that are fetched."""
        table = self.plan.table
        return Fold(
            table.project([name for name in self.plan.columns if name != CHANGE_TYPE]), table.primary_key
        )

    def finish(self, fold: Fold) -> pa.Table:
        """The table, once all batches are applied."""
        return fold.to_table().select(self.columns)


def folded_scan(plan: ScanPlan, at: int | Mapping[int, int] | None) -> FoldedScan:
    """What `to_table` runs.

    Args:
        plan: As the user described it.
        at: Offsets at which the table is wanted; None: where the plan stops, or as of now.

    Raises:
        ArgumentInvalid: The plan is not one of a table, or a bucket is left out.
    """
    if plan.source is not ScanSource.HYBRID:
        raise ArgumentInvalid(
            f"to_table() folds a snapshot and its changes, source HYBRID, not {plan.source.name};"
            " use with_source('hybrid')"
        )
    if plan.row_limit is not None:
        raise ArgumentInvalid("to_table() needs every change; leave limit(...) away")
    if plan.resume_at is not None:
        raise ArgumentInvalid("to_table() needs every row; leave resume_at(...) away")
    own = CHANGE_COLUMN_NAMES.intersection(plan.columns)
    if own:
        raise ArgumentInvalid(f"the rows of a table have no {min(own)}; select columns of the table")
    wanted = plan.columns or plan.table.column_names
    keys = tuple(name for name in plan.table.primary_key if name not in wanted)
    fetched = dataclasses.replace(plan, columns=(*wanted, *keys, CHANGE_TYPE))
    return FoldedScan(_bounded(fetched, at), wanted)


def _bounded(plan: ScanPlan, at: int | Mapping[int, int] | None) -> ScanPlan:
    if at is None:
        return dataclasses.replace(plan, stop_at=END if plan.stop_at is None else plan.stop_at)
    if plan.stop_at is not None:
        raise ArgumentInvalid("to_table(at=...) says where the changes end; leave stop_at(...) away")
    offsets = offsets_by_bucket(at, plan.table.buckets, "at")
    start = offsets if plan.as_of is None else plan.as_of
    return dataclasses.replace(plan, as_of=start, stop_at=offsets)
