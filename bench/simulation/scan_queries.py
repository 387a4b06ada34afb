"""A scan's task as the product's builder takes it, and as the wire does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, TypeVar

from scanner.client.scan.builder import ScanBuilder
from scanner.client.scan.plan import ScanPlan
from scanner.wire.queries import ScanQuery, query_to_proto

if TYPE_CHECKING:
    from bench.simulation.workload import ScanTask
    from scanner.data.table import TableDescription
    from scanner.proto.weir.v1 import scanner_pb2 as pb

BuilderT = TypeVar("BuilderT", bound=ScanBuilder)


def describe(scan: BuilderT, task: ScanTask) -> BuilderT:
    """Tell a builder which rows a task wants."""
    if task.tail is not None:
        scan = scan.with_source(task.tail.source)
    if task.columns:
        scan = scan.select(*task.columns)
    if task.filter:
        scan = scan.where(*(each.condition() for each in task.filter))
    if task.start is not None or task.end is not None:
        scan = scan.key_range(task.start, task.end)
    if task.row_limit is not None:
        scan = scan.limit(task.row_limit)
    if task.bucket is not None:
        scan = scan.bucket(task.bucket)
    return scan


def query_of(table: TableDescription, task: ScanTask) -> pb.ScanQuery:
    """What a task asks of its one bucket."""
    plan = describe(_Description(ScanPlan(table=table)), task).plan
    assert plan.bucket is not None
    return query_to_proto(
        ScanQuery(
            table=table.name,
            bucket=plan.bucket,
            columns=plan.columns,
            predicates=plan.predicates,
            row_limit=plan.row_limit,
            range=plan.key_range,
        )
    )


class _Description(ScanBuilder):
    """A builder of plans that nobody executes."""

    def _derive(self, plan: ScanPlan) -> Self:
        return type(self)(plan)
