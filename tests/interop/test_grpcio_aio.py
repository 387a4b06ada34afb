"""grpc.aio: scans on one event loop, straight and through proxies, and what metadata survives the way."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest
import trio

import transport
from scanner.proto.weir.v1 import scanner_pb2 as pb
from tests.interop.blobs import ROWS, Served
from tests.interop.stock import SCAN_PATH, TIMEOUT_S, open_request
from transport import ServerStream

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

CREDIT = 48 * 1024
UNLIMITED = [("grpc.max_receive_message_length", -1)]


async def scan(channel: grpc.aio.Channel, credit: int) -> tuple[int, int, pb.ScanEnd | None]:
    """One scan: rows, bytes past the credit, and the end."""
    method = channel.stream_stream(
        SCAN_PATH,
        request_serializer=pb.ScanRequest.SerializeToString,
        response_deserializer=pb.ScanResponse.FromString,
    )
    call = method(timeout=TIMEOUT_S)
    rows = read = overrun = 0
    limit, end = credit, None
    await call.write(open_request())
    if credit:
        await call.write(pb.ScanRequest(demand=pb.Demand(bytes_limit=limit)))
    else:
        await call.done_writing()
    async for response in call:
        kind = response.WhichOneof("response")
        if kind == "batch":
            rows, read = rows + response.batch.row_count, read + response.ByteSize()
            overrun = max(overrun, read - limit)
            if credit:
                limit = read + credit
                await call.write(pb.ScanRequest(demand=pb.Demand(bytes_limit=limit)))
        elif kind == "end":
            end = response.end
            if credit:
                await call.done_writing()
    return rows, overrun if credit else 0, end


def test_scans_side_by_side(endpoint: str, blobs: Served) -> None:
    """Four scans of either mode at once on one channel: each is whole, and within its own credit."""

    async def main() -> list[tuple[int, int, pb.ScanEnd | None]]:
        async with grpc.aio.insecure_channel(endpoint, options=UNLIMITED) as channel:
            return await asyncio.gather(*(scan(channel, credit) for credit in (0, CREDIT, 0, CREDIT)))

    for rows, overrun, end in asyncio.run(main()):
        assert rows == ROWS
        assert end is not None
        assert end.digest == blobs.digest
        assert overrun <= blobs.row_bytes
    assert blobs.overrun_bytes() <= blobs.row_bytes


async def test_metadata() -> None:
    """Values of one name keep their order; octets, nothing at all, and 8 KiB come through; 20 KB fail their call."""
    sent = (
        ("x-twice", "first"),
        ("x-twice", "second"),
        ("x-empty", ""),
        ("x-blob-bin", bytes(range(256))),
        ("x-blob-bin", b""),
        ("x-long", "v" * 8_192),
        ("x-odd.name_1-", "~!@#$%^&*()"),
    )
    received: list[tuple[str, str | bytes]] = []

    async def handle(_request: bytes, stream: ServerStream) -> bytes:
        received.extend(entry for entry in stream.metadata if entry[0].startswith("x-"))
        return b""

    async with transport.serve({"/t.T/Do": transport.unary(handle)}) as server:

        def call() -> grpc.StatusCode:
            with grpc.insecure_channel(f"{server.host}:{server.port}") as channel:
                method: Any = channel.unary_unary("/t.T/Do")
                method(b"", metadata=sent, timeout=100)
                with pytest.raises(grpc.RpcError) as caught:
                    method(b"", metadata=(("x-too-long", "v" * 20_000),), timeout=100)
                method(b"", timeout=100)  # on a connection that lives, or on a new one
                return caught.value.code()

        code = await trio.to_thread.run_sync(call)

    assert sorted(received) == sorted(sent)
    assert [value for name, value in received if name == "x-twice"] == ["first", "second"]
    assert code in {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE}
