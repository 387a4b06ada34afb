"""The table of rights in docs/security.md, call by call: a new call without a row here fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import trio

import scanner
import transport
from scanner.client.leases import LeaseTarget
from scanner.proto.weir.v1 import admin_pb2 as admin
from scanner.proto.weir.v1 import groups_pb2 as groups
from scanner.proto.weir.v1 import leases_pb2 as leases
from scanner.proto.weir.v1 import scanner_pb2 as scans
from scanner.proto.weir.v1 import tables_pb2 as tables
from scanner.proto.weir.v1 import transactions_pb2 as transactions
from scanner.server.auth.principals import Credentials, make_token, token_sha256
from scanner.server.retention.lease_registry import LeaseKey
from scanner.server.server import Server, open_server
from scanner.storage.memory.store import MemoryStore
from transport import CallFailed, StatusCode

if TYPE_CHECKING:
    from google.protobuf.message import Message

pytestmark = pytest.mark.socket

RIGHTS = {
    "nothing": "",
    "reader": 'read = ["orders"]',
    "pattern": 'read = ["orders.*"]',
    "writer": 'write = ["orders"]',
    "all_reader": 'read = ["*"]',
    "all_writer": 'write = ["*"]',
    "admin": "admin = true",
}
TOKENS = {name: make_token() for name in (*RIGHTS, "owner")}
CREDENTIALS = "".join(
    f'[principals.{name}]\ntoken_sha256 = "{token_sha256(TOKENS[name])}"\n{rights}\n'
    for name, rights in {**RIGHTS, "owner": 'read = ["*"]\nwrite = ["*"]'}.items()
)
TABLES = ("orders", "orders.old")
"""The second was never created, which nobody without a right must notice."""
SEEING = {"all_reader", "all_writer", "admin"}
"""Who sees every table: errors may name them."""
MAY: dict[str, tuple[set[str], set[str]]] = {
    "read": ({"reader", "all_reader"}, {"pattern", "all_reader"}),
    "write": ({"writer", "all_writer"}, {"all_writer"}),
    "see": ({"reader", "writer", *SEEING}, {"pattern", *SEEING}),
    "manage": ({"all_writer", "admin"}, {"all_writer", "admin"}),
    "administer": ({"admin"}, {"admin"}),
    "nothing": (set(RIGHTS), set(RIGHTS)),
}
"""Who may, of each of the two tables."""

SCHEMA = pa.schema([("k", pa.int64())])


def query(table: str) -> scans.ScanQuery:
    """A query of a bucket."""
    return scans.ScanQuery(table=table)


def version(table: str) -> transactions.TransactionVersion:
    """A version of a transaction."""
    return transactions.TransactionVersion(table=table, name="nightly")


CALLS: dict[str, tuple[str, Callable[[str], Message]]] = {
    "Scanner/Scan": (
        "read",
        lambda table: scans.ScanRequest(
            open=scans.ScanOpen(source=scans.SCAN_SOURCE_LIVE_KV, query=query(table))
        ),
    ),
    "Scanner/ScanSession": (
        "read",
        lambda table: scans.ScanSessionRequest(query=query(table), batch_size_bytes=1),
    ),
    "Scanner/ScanPage": (
        "read",
        lambda table: scans.ScanPageRequest(
            model=scans.PAGE_MODEL_CURSOR, query=query(table), batch_size_bytes=1
        ),
    ),
    "Scanner/FetchLog": (
        "read",
        lambda table: scans.FetchLogRequest(
            query=query(table), positions=[scans.FetchPosition(offset=0)], max_wait_ms=0
        ),
    ),
    "Tables/Get": ("read", lambda table: tables.GetRequest(table=table)),
    "Tables/SplitBucket": ("read", lambda table: tables.SplitBucketRequest(table=table, splits=2)),
    "Tables/Write": ("write", lambda table: tables.WriteRequest(table=table)),
    "Tables/DescribeTable": ("see", lambda table: tables.DescribeTableRequest(table=table)),
    "Tables/ListOffsets": ("see", lambda table: tables.ListOffsetsRequest(table=table)),
    "Tables/MeasureLog": ("see", lambda table: tables.MeasureLogRequest(table=table)),
    "Tables/ListTables": ("nothing", lambda _: tables.ListTablesRequest()),
    "Tables/CreateTable": (
        "manage",
        lambda table: tables.CreateTableRequest(table=tables.TableDescription(name=table)),
    ),
    "Tables/AddColumn": ("manage", lambda table: tables.AddColumnRequest(table=table)),
    "Tables/DropTable": ("manage", lambda table: tables.DropTableRequest(table=table, table_id=1000)),
    "Tables/DropUnwritten": (
        "manage",
        lambda table: tables.DropUnwrittenRequest(table=table, table_id=1000),
    ),
    "Groups/Join": (
        "read",
        lambda table: groups.JoinRequest(
            join=groups.Join(table=table, group="billing", member="one", instance=bytes(16))
        ),
    ),
    "Groups/CommitPositions": (
        "read",
        lambda table: groups.CommitPositionsRequest(table=table, group="billing"),
    ),
    "Groups/DeleteGroup": ("read", lambda table: groups.DeleteGroupRequest(table=table, group="billing")),
    "Groups/ListGroups": ("see", lambda table: groups.ListGroupsRequest(table=table)),
    "Groups/DescribeGroup": ("see", lambda table: groups.DescribeGroupRequest(table=table, group="billing")),
    "Leases/AcquireLease": (
        "read",
        lambda table: leases.AcquireLeaseRequest(
            lease_id="mine",
            targets=[leases.LeaseTarget(table=table, state=leases.LeaseTarget.STATE_LOG)],
        ),
    ),
    "Leases/RenewLease": ("nothing", lambda _: leases.RenewLeaseRequest(lease_id="theirs")),
    "Leases/ReleaseLease": (
        "nothing",
        lambda table: leases.ReleaseLeaseRequest(
            lease_id="theirs", buckets=[leases.LeaseBuckets(table=table)]
        ),
    ),
    "Leases/DropLease": ("nothing", lambda _: leases.DropLeaseRequest(lease_id="theirs")),
    "Leases/ListLeases": ("nothing", lambda table: leases.ListLeasesRequest(table=table)),
    "Transactions/Stage": (
        "write",
        lambda table: transactions.StageRequest(
            open=transactions.StageOpen(version=version(table), session=bytes(16))
        ),
    ),
    "Transactions/Publish": ("write", lambda table: transactions.PublishRequest(version=version(table))),
    "Transactions/Abort": ("write", lambda table: transactions.AbortRequest(version=version(table))),
    "Transactions/ListTransactions": (
        "see",
        lambda table: transactions.ListTransactionsRequest(table=table),
    ),
    "Admin/ListStreams": ("administer", lambda _: admin.ListStreamsRequest()),
    "Admin/ListSnapshots": ("administer", lambda table: admin.ListSnapshotsRequest(table=table)),
    "Admin/Checkpoint": ("administer", lambda table: admin.CheckpointRequest(table=table)),
    "Admin/ListCheckpoints": ("administer", lambda table: admin.ListCheckpointsRequest(table=table)),
    "Admin/CompactLog": ("administer", lambda table: admin.CompactLogRequest(table=table)),
    "Admin/MakeImages": ("administer", lambda table: admin.MakeImagesRequest(table=table)),
    "Admin/ListImages": ("see", lambda table: admin.ListImagesRequest(table=table)),
    "Admin/DropImages": ("administer", lambda table: admin.DropImagesRequest(table=table)),
    "Admin/Drain": ("administer", lambda _: admin.DrainRequest(timeout_ms=0)),
}
"""What each call needs, and a request that says which table it is about, and may make no sense otherwise."""


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    """A server with the table `orders`, of which its owner has a lease, until the end."""
    async with open_server(MemoryStore(), credentials=Credentials.parse(CREDENTIALS)) as server:
        where = f"{server.host}:{server.port}"
        async with scanner.connect(where, token=TOKENS["owner"]) as client:
            await client.create_table("orders", SCHEMA, ["k"], buckets=1)
            await client.acquire_lease(LeaseTarget("orders", state="log"), lease_id="theirs")
        yield server
        held = {each.key for each in server._services.maintenance.leases.leases()}
        assert LeaseKey("owner", "theirs") in held


async def outcome(client: transport.Client, path: str, request: Message, principal: str) -> tuple[str, str]:
    """The status and the message of a call; of one that runs, after its first answer."""
    metadata = [("authorization", f"Bearer {TOKENS[principal]}")]
    async with client.open_stream(path, metadata=metadata) as stream:
        await stream.send(request.SerializeToString())
        await stream.send_end()
        try:
            await stream.receive()
        except CallFailed as failure:
            return failure.status.name, failure.message
    return StatusCode.OK.name, ""


def paths() -> set[str]:
    """Every call that the .proto files have."""
    files = (admin, groups, leases, scans, tables, transactions)
    services = [service for file in files for service in file.DESCRIPTOR.services_by_name.values()]
    return {f"{service.name}/{method.name}" for service in services for method in service.methods}


async def test_every_call_has_a_row() -> None:
    """Each call of the .proto files is served, and stands in the table above."""
    async with serving() as server:
        served = {path.removeprefix("/weir.v1.") for path in server._server._handlers if "/weir" in path}
    assert paths() == served == set(CALLS)


@pytest.mark.parametrize("principal", RIGHTS)
async def test_rights_of_each_call(principal: str) -> None:
    """A call is denied to who has not the right, whether its table exists or not, and to nobody else."""
    async with serving() as server, transport.connect(server.host, server.port) as client:
        for call, (right, request_of) in CALLS.items():
            if call == "Admin/Drain" and principal == "admin":
                continue  # The others could not be made any more.
            for table, allowed in zip(TABLES, MAY[right], strict=True):
                with trio.fail_after(100):
                    status, message = await outcome(client, f"/weir.v1.{call}", request_of(table), principal)
                denied = status == StatusCode.PERMISSION_DENIED.name
                assert denied == (principal not in allowed), (call, table, status, message)
                if denied:
                    told = message.removeprefix(f"principal {principal} may not ")
                    assert told in refusals(table), (call, message)
                elif principal not in SEEING and table == "orders.old":
                    assert "'orders'" not in message, (call, message)


def refusals(table: str) -> Iterable[str]:
    """All that a refusal may say behind its principal: what was asked for, and nothing of what there is."""
    rights = ("read", "write", "see", "create, change or drop")
    return {*(f"{right} table {table!r}" for right in rights), "administer this server"}


@pytest.mark.parametrize("principal", ["nothing", "all_writer"])
async def test_a_name_that_no_table_can_have_is_not_repeated(principal: str) -> None:
    """No error is made of a name of megabytes, whatever its caller may."""
    async with serving() as server, transport.connect(server.host, server.port) as client:
        request = tables.WriteRequest(table="t" * 10_000)
        answer = await outcome(client, "/weir.v1.Tables/Write", request, principal)
        assert answer == ("INVALID_ARGUMENT", "no table has a name of 10000 characters")
