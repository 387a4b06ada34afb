"""A request to write, encoded and routed to buckets, slice by slice, so that no request holds up others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scanner.errors import SchemaMismatch
from scanner.proto.weir.v1 import tables_pb2 as pb
from scanner.server.fairness import pass_turn
from scanner.server.tables.writes import (
    WriteCall,
    conform_request,
    encode_mutations,
    read_arrow_stream,
    route,
)
from scanner.storage.interface import Mutations

if TYPE_CHECKING:
    import pyarrow as pa

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
    deletes = request.operation == pb.WriteRequest.OPERATION_DELETE
    return await _encode(batch, schema, config, deletes=deletes)


async def route_keys(
    request: WriteCall, schema: TableSchema, config: ScannerConfig, misfit: SchemaMismatch
) -> dict[int, Mutations]:
    """No mutation for each bucket that a request touches, whose columns do not fit the table but for its keys.

    Args:
        request: From the peer.
        schema: Of the table.
        config: Bounds of writes.
        misfit: How it does not fit.

    Raises:
        SchemaMismatch: Its keys do not fit, either, or there are none: `misfit`.
        KeyInvalid: A key is null, or too long.

    Waits:
        For its turn, between slices.

    Cancellation:
        No effect.
    """
    table, size = schema.description, config.write_decoded_bytes_max
    batch = read_arrow_stream(request.arrow_stream, config.write_rows_max, size, request.measured)
    names = batch.schema.names
    keys = batch.select([index for index, name in enumerate(names) if name in table.primary_key])
    try:
        conformed = table.conform_keys(keys, size)
    except SchemaMismatch:
        raise misfit from None
    routed = await _encode(conformed, schema, config, deletes=True)
    if not routed:
        raise misfit
    return {bucket: mutations[:0] for bucket, mutations in routed.items()}


async def _encode(
    batch: pa.RecordBatch, schema: TableSchema, config: ScannerConfig, *, deletes: bool
) -> dict[int, Mutations]:
    routed: dict[int, list[Mutations]] = {}
    for mutations in encode_mutations(
        batch,
        delete=deletes,
        key_codec=schema.key_codec,
        row_codec=schema.row_codec,
        slice_rows=config.write_slice_rows_max,
        row_bytes_max=config.row_bytes_max,
    ):
        for bucket, part in route(mutations, schema.description.buckets):
            routed.setdefault(bucket, []).append(part)
        await pass_turn()
    joined = {}
    for bucket, parts in routed.items():
        joined[bucket] = Mutations.concat(parts)
        if len(parts) > 1:
            await pass_turn()
    return joined
