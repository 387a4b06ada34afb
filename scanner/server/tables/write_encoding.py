"""A request to write, encoded and routed to buckets, slice by slice, so that no request holds up others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scanner.proto.weir.v1 import tables_pb2 as pb
from scanner.server.fairness import pass_turn
from scanner.server.tables.writes import WriteCall, conform_request, encode_mutations, route
from scanner.storage.interface import Mutations

if TYPE_CHECKING:
    from scanner.server.config import ScannerConfig
    from scanner.server.tables.catalog import TableSchema


async def encode_routed(
    request: WriteCall, schema: TableSchema, config: ScannerConfig
) -> dict[int, Mutations]:
    """The mutations of a request, by bucket, in row order.

    Args:
        request: From the peer.
        schema: Of the table.
        config: Bounds of writes.

    Raises:
        ArgumentInvalid, SchemaMismatch, KeyInvalid: It makes no sense, or does not fit the table.

    Waits:
        For its turn, between slices.

    Cancellation:
        No effect.
    """
    batch = conform_request(
        request, schema.description, config.write_rows_max, config.write_decoded_bytes_max
    )
    routed: dict[int, list[Mutations]] = {}
    for mutations in encode_mutations(
        batch,
        delete=request.operation == pb.WriteRequest.OPERATION_DELETE,
        key_codec=schema.key_codec,
        row_codec=schema.row_codec,
        slice_rows=config.write_slice_rows_max,
        row_bytes_max=config.row_bytes_max,
    ):
        for bucket, part in route(mutations, schema.description.buckets):
            routed.setdefault(bucket, []).append(part)
        await pass_turn()
    return {bucket: Mutations.concat(parts) for bucket, parts in routed.items()}
