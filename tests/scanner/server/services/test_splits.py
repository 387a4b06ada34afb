"""`SplitBucket` message by message: what it answers, what it refuses, and who may ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import scanner
from scanner.errors import ArgumentInvalid, BucketNotFound, PermissionDenied, ScannerError, TableNotFound
from scanner.proto.weir.v1 import tables_pb2 as pb
from scanner.server.auth.principals import Credentials, make_token, token_sha256
from scanner.server.server import open_server
from tests.support.scans import TABLES, failure, filled_store, serving

if TYPE_CHECKING:
    import transport

pytestmark = pytest.mark.socket


async def split(client: transport.Client, **fields: object) -> pb.SplitBucketResponse:
    """Make the call."""
    request = pb.SplitBucketRequest(**{"table": "items", **fields})  # type: ignore[arg-type]
    answer = await client.call(TABLES + "SplitBucket", request.SerializeToString())
    return pb.SplitBucketResponse.FromString(bytes(answer))


async def test_cuts_ascend_inside_the_range() -> None:
    """Any client can use them as they are: the bounds of `KeyRange`."""
    async with serving(filled_store(1000)) as (_, client):
        whole = await split(client, splits=4)
        assert list(whole.cut_keys) == sorted(set(whole.cut_keys))
        assert len(whole.cut_keys) == 3
        start, end = whole.cut_keys[0], whole.cut_keys[1]
        part = await split(client, target_split_bytes=whole.stored_bytes // 16, key_start=start, key_end=end)
        assert 3 <= len(part.cut_keys) <= 4
        assert all(start < cut < end for cut in part.cut_keys)
        assert whole.stored_bytes / 5 < part.stored_bytes < whole.stored_bytes / 3


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, ArgumentInvalid),
        ({"splits": 0}, ArgumentInvalid),
        ({"splits": 1025}, ArgumentInvalid),
        ({"target_split_bytes": 0}, ArgumentInvalid),
        ({"splits": 2, "key_start": b"b", "key_end": b"a"}, ArgumentInvalid),
        ({"splits": 2, "bucket": 7}, BucketNotFound),
        ({"splits": 2, "table": "none"}, TableNotFound),
    ],
)
async def test_what_makes_no_sense_is_refused(fields: dict[str, object], kind: type[ScannerError]) -> None:
    """By name, and the connection goes on."""
    async with serving(filled_store(10)) as (_, client):
        assert type(await failure(lambda: split(client, **fields))) is kind
        assert (await split(client, splits=1)).stored_bytes > 0


async def test_who_may_not_read_may_not_ask() -> None:
    """Keys are data."""
    token = make_token()
    credentials = Credentials.parse(
        f'[principals.writer]\ntoken_sha256 = ["{token_sha256(token)}"]\nwrite = ["items"]\n'
    )
    async with open_server(filled_store(10), credentials=credentials) as server:
        async with scanner.connect(f"127.0.0.1:{server.port}", token=token, retries=0) as client:
            table = await client.table("items")
            with pytest.raises(PermissionDenied, match="may not read"):
                await table.split(0, splits=2)
