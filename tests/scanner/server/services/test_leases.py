"""`weir.v1.Leases` over real sockets: who may lease what, what is refused, and what is answered."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

import scanner
from scanner.errors import DataCorrupted, LeaseNotFound
from scanner.proto.weir.v1 import leases_pb2 as pb
from scanner.server.auth.principals import Credentials, make_token, token_sha256
from scanner.server.config import ScannerConfig
from scanner.server.retention.lease_registry import LEASES_DOCUMENT
from scanner.server.server import Server, open_server
from scanner.storage.memory.store import MemoryStore
from scanner.wire import methods
from tests.support.client import open_client
from tests.support.maintenance import refuse
from tests.support.scans import description, failure, filled_store, mutations, sample, serving

if TYPE_CHECKING:
    import transport
    from scanner.errors import ScannerError

pytestmark = [pytest.mark.socket, pytest.mark.rocks]

TOKENS = {name: make_token() for name in ("admin", "anna", "bert", "cleo")}
CREDENTIALS = Credentials.parse(
    "".join(
        f'[principals.{name}]\ntoken_sha256 = ["{token_sha256(TOKENS[name])}"]\n{rights}\n'
        for name, rights in (
            ("admin", "admin = true"),
            ("anna", 'read = ["items*"]'),
            ("bert", 'read = ["items"]'),
            ("cleo", 'read = ["items"]\nwrite = ["*"]'),
        )
    )
)


@asynccontextmanager
async def guarded(store: MemoryStore | None = None) -> AsyncIterator[Server]:
    """A server with table `items` and a checkpoint of it that knows its callers."""
    async with open_server(store or filled_store(20), credentials=CREDENTIALS) as server:
        async with connected(server, "admin") as admin:
            await admin.checkpoint("items")
        yield server


@asynccontextmanager
async def connected(server: Server, principal: str) -> AsyncIterator[scanner.Client]:
    """A client with a principal's token."""
    async with scanner.connect(f"127.0.0.1:{server.port}", token=TOKENS[principal], retries=0) as client:
        yield client


async def test_a_lease_belongs_to_its_principal() -> None:
    """To others its id names nothing, and is free for a lease of their own; an administrator sees and drops it."""
    async with (
        guarded() as server,
        connected(server, "anna") as anna,
        connected(server, "bert") as bert,
        connected(server, "admin") as admin,
    ):
        await anna.acquire_lease("items", lease_id="shared")
        assert await bert.list_leases() == []
        with pytest.raises(scanner.LeaseNotFound):
            await bert.leases.renew("shared", None)
        assert await bert.leases.drop("shared") is False
        assert await bert.leases.release("shared", "items", ()) is None
        with pytest.raises(scanner.LeaseNotFound):
            await (await bert.table("items")).new_scan().with_lease("shared").to_arrow()
        with pytest.raises(scanner.PermissionDenied, match="principal bert may not administer"):
            await bert.leases.drop("shared", "anna")
        await bert.acquire_lease("items", lease_id="shared")
        assert [(each.principal, each.lease_id) for each in await admin.list_leases("items")] == [
            ("anna", "shared"),
            ("bert", "shared"),
        ]
        assert await admin.list_leases("other") == []
        assert (await admin.leases.renew("shared", 50, "anna")).ttl_s == 50
        assert await admin.leases.drop("shared", "anna")
        (left,) = await admin.list_leases()
        assert left.principal == "bert"


async def test_checkpoints_are_made_by_administrators_alone() -> None:
    """A reader who asks a lease for a checkpoint that is not there gets PERMISSION_DENIED, and none is made."""
    credentials = Credentials.parse(
        f'[principals.anna]\ntoken_sha256 = "{token_sha256(TOKENS["anna"])}"\nread = "items"\n'
        f'[principals.admin]\ntoken_sha256 = "{token_sha256(TOKENS["admin"])}"\nadmin = true\nread = "items"\n'
    )
    store, states = filled_store(20), scanner.LeaseState
    async with open_server(store, credentials=credentials) as server:
        async with connected(server, "anna") as anna, connected(server, "admin") as admin:
            for state in (states.NEW, states.NEWEST):
                with pytest.raises(scanner.PermissionDenied, match="would have to be made"):
                    await anna.acquire_lease(scanner.LeaseTarget("items", state=state))
            assert await anna.list_leases() == []
            assert await admin.list_checkpoints("items") == []
            await anna.acquire_lease(scanner.LeaseTarget("items", state=states.LOG))
            await admin.acquire_lease(scanner.LeaseTarget("items", state=states.NEW))
            (made,) = await admin.list_checkpoints("items")
            lease = await anna.acquire_lease("items")  # the newest is there now
            assert [each.checkpoint_id for each in lease.buckets] == [made.checkpoint_id]
            with pytest.raises(scanner.PermissionDenied, match="would have to be made"):
                await anna.acquire_lease(scanner.LeaseTarget("items", state=states.NEW))


async def test_leasing_needs_the_right_to_read() -> None:
    """Of every table named, existing or not; and no refusal tells of tables that may not be seen."""
    store = filled_store(20)
    store.create_table(description("secret"))
    async with guarded(store) as server:
        async with connected(server, "cleo") as client:
            with pytest.raises(scanner.PermissionDenied, match="may not read table 'secret'"):
                await client.acquire_lease("items", "secret")
        async with connected(server, "anna") as client:
            with pytest.raises(scanner.TableNotFound) as missing:
                await client.acquire_lease("items", "items.old")
            assert "secret" not in str(missing.value)
            assert missing.value.metadata == {"not_leased": "items.old"}
            assert await client.list_leases() == []
            with pytest.raises(scanner.PermissionDenied):
                await client.checkpoint("items")


async def test_a_right_that_was_taken_away() -> None:
    """A renewal is refused then, and the lease ends with its time; dropping it is allowed."""
    store = filled_store(20)
    async with guarded(store) as server, connected(server, "anna") as client:
        await client.acquire_lease("items", lease_id="mine")
    without = Credentials.parse(f'[principals.anna]\ntoken_sha256 = ["{token_sha256(TOKENS["anna"])}"]\n')
    async with open_server(store, credentials=without) as server, connected(server, "anna") as client:
        with pytest.raises(scanner.PermissionDenied):
            await client.leases.renew("mine", None)
        assert await client.leases.drop("mine")


async def test_what_retention_took_is_told_with_the_oldest_offset() -> None:
    """In the error of an acquisition, and of each bucket of a partial one, as in other errors of retention."""
    store = filled_store(20)
    async with guarded(store) as server, connected(server, "anna") as anna:
        store.bucket("items", 0).truncate_log(12)
        oldest = store.bucket("items", 0).log_start
        assert oldest > 3
        for target in (
            scanner.LeaseTarget("items", (0,), log_offset=3),
            scanner.LeaseTarget("items", (0,), checkpoint_id=99),
        ):
            with pytest.raises((scanner.OffsetOutOfRange, scanner.SnapshotLost)) as caught:
                await anna.acquire_lease(target)
            assert caught.value.oldest_offset == oldest
            _, (missing,), _ = await anna.leases.acquire("part", [target], None, partial=True)
            assert missing.error.oldest_offset == oldest


async def test_an_acquisition_is_answered_with_the_lease() -> None:
    """Its buckets with checkpoint and offset; the time asked for, or as before, or the server's."""
    store = MemoryStore()
    store.create_table(description(buckets=3))
    store.bucket("items", 1).commit([mutations(store, "items", sample(range(10)))])
    async with serving(store) as (server, _), scanner.connect(f"127.0.0.1:{server.port}") as client:
        lease = await client.acquire_lease(
            scanner.LeaseTarget("items", [1]),
            scanner.LeaseTarget("items", [2], "log"),
            lease_id="mine",
        )
        assert [(each.bucket, each.checkpoint_id is None, each.log_offset) for each in lease.buckets] == [
            (1, False, 10),
            (2, True, 0),
        ]
        assert lease.info.ttl_s == 600
        assert 590 < lease.info.remaining_s <= 600
        assert (lease.info.principal, lease.not_leased) == ("anonymous", ())
        await lease.renew(30)
        again = await client.acquire_lease(scanner.LeaseTarget("items", [1], log_offset=5), lease_id="mine")
        assert again.info.ttl_s == 30
        assert [(each.bucket, each.checkpoint_id, each.log_offset) for each in again.buckets] == [
            (1, None, 5),
            (2, None, 0),
        ]
        table = await client.table("items")
        rows = await table.new_scan().bucket(1).with_lease(again).to_arrow()
        assert rows["id"].to_pylist() == [0, 1, 2, 3, 4]
        with pytest.raises(scanner.LeaseNotFound, match="keeps nothing of bucket 0"):
            await table.new_scan().bucket(0).with_lease("mine").to_arrow()
        partial = await client.acquire_lease(
            scanner.LeaseTarget("items", [0, 7]), "nothing", lease_id="mine", partial=True
        )
        assert [(each.table, each.bucket) for each in partial.not_leased] == [("items", 7), ("nothing", None)]
        assert [type(each.error) for each in partial.not_leased] == [
            scanner.BucketNotFound,
            scanner.TableNotFound,
        ]
        await partial.release("items", 0, 1)
        assert [each.bucket for each in (await client.list_leases())[0].buckets] == [2]
        with pytest.raises(scanner.TableNotFound, match=r"nothing cannot be leased"):
            await client.acquire_lease("nothing", partial=True)


def acquire_request(**fields: object) -> bytes:
    """An acquisition of table `items`, with a field that is different."""
    target = pb.LeaseTarget(table="items")
    request = {"lease_id": "mine", "targets": [target], **fields}
    return pb.AcquireLeaseRequest(**request).SerializeToString()  # type: ignore[arg-type]


def release_request(*buckets: Iterable[int]) -> bytes:
    """A release of table `items` for each."""
    return pb.ReleaseLeaseRequest(
        lease_id="mine", buckets=[pb.LeaseBuckets(table="items", buckets=each) for each in buckets]
    ).SerializeToString()


SENSELESS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "no id": ("AcquireLease", lambda: acquire_request(lease_id="")),
    "an odd id": ("AcquireLease", lambda: acquire_request(lease_id="a b")),
    "a long id": ("AcquireLease", lambda: acquire_request(lease_id="x" * 101)),
    "no target": ("AcquireLease", lambda: acquire_request(targets=[])),
    "no table": ("AcquireLease", lambda: acquire_request(targets=[pb.LeaseTarget()])),
    "a long life": ("AcquireLease", lambda: acquire_request(ttl_ms=10**9)),
    "an odd state": (
        "AcquireLease",
        lambda: acquire_request(targets=[pb.LeaseTarget(table="items", state=9)]),  # type: ignore[arg-type]
    ),
    "an offset of all": (
        "AcquireLease",
        lambda: acquire_request(targets=[pb.LeaseTarget(table="items", log_offset=1)]),
    ),
    "both": (
        "AcquireLease",
        lambda: acquire_request(
            targets=[pb.LeaseTarget(table="items", buckets=[0], log_offset=1, checkpoint_id=0)]
        ),
    ),
    "no bucket": ("ReleaseLease", lambda: pb.ReleaseLeaseRequest(lease_id="mine").SerializeToString()),
    "more buckets than there are": ("ReleaseLease", lambda: release_request(range(10_001))),
    "more tables than there are": ("ReleaseLease", lambda: release_request(*[[0]] * 10_001)),
    "no message": ("ListLeases", lambda: b"\xff"),
}


@pytest.mark.parametrize("what", SENSELESS)
async def test_senseless_requests_are_refused(what: str) -> None:
    """ARGUMENT_INVALID, before anything is done."""
    method, request = SENSELESS[what]
    async with serving(filled_store(5)) as (_, client):
        error = await _failure(client, method, request())
        assert isinstance(error, scanner.ArgumentInvalid), error
        listed = await client.call(methods.LEASES + "ListLeases", b"")
        assert pb.ListLeasesResponse.FromString(bytes(listed)).leases == []


async def _failure(client: transport.Client, method: str, request: bytes) -> ScannerError:
    return await failure(lambda: client.call(methods.LEASES + method, request))


async def test_what_cannot_be_written_down_is_not_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call fails as the disk does; tried again, it is done."""
    store = filled_store(5)

    async with serving(store) as (server, _), scanner.connect(f"127.0.0.1:{server.port}") as client:
        with monkeypatch.context() as patch:
            patch.setattr(store, "write_document", refuse)
            with pytest.raises(scanner.StoreFailed):
                await client.acquire_lease("items", lease_id="mine")
            assert store.read_document(LEASES_DOCUMENT) is None
        lease = await client.acquire_lease("items", lease_id="mine")
        written = store.read_document(LEASES_DOCUMENT)
        assert written is not None
        assert [each["id"] for each in json.loads(written)["leases"]] == ["mine"]
        with monkeypatch.context() as patch:
            patch.setattr(store, "write_document", refuse)
            with pytest.raises(scanner.StoreFailed):
                await lease.drop()
        await lease.drop()
        await lease.drop()


async def test_a_damaged_document_stops_the_start(tmp_path: Path) -> None:
    """One line that names the file and says what to do; without the file the server starts."""
    async with open_server(tmp_path):
        pass
    (tmp_path / "documents" / LEASES_DOCUMENT).write_bytes(b"{")
    with pytest.raises(
        DataCorrupted, match=r"restore leases\.json from a copy, or remove it to start without leases"
    ):
        async with open_server(tmp_path):
            pass
    (tmp_path / "documents" / LEASES_DOCUMENT).unlink()
    async with open_server(tmp_path):
        pass


async def test_the_shortest_lease_that_can_be_configured_harms_no_start() -> None:
    """Its time is told and written in milliseconds: one at least."""
    store = filled_store(20)
    async with serving(store, ScannerConfig(lease_ttl_s=1e-5)) as (_, client):
        await client.call(methods.LEASES + "AcquireLease", acquire_request())
    async with serving(store):
        pass


async def test_leases_and_their_checkpoints_survive_the_server(tmp_path: Path) -> None:
    """After a restart the same lease gives the same rows, while newer checkpoints come and go."""
    config = scanner_config()
    async with open_client(tmp_path, config=config) as (client, _):
        table = await client.create_table("items", description().schema, ["id"], 2)
        await table.write(sample(range(100)))
        await client.acquire_lease("items", lease_id="mine")
    async with open_client(tmp_path, config=config) as (client, _):
        table = await client.table("items")
        for number in range(3):
            await table.write(sample(range(100 + number * 10, 110 + number * 10)))
            await client.checkpoint("items")
        assert (await table.new_scan().with_lease("mine").to_arrow()).num_rows == 100
        assert (await table.new_scan().with_source("snapshot").to_arrow()).num_rows == 130
        leased = [each for each in await client.list_checkpoints("items") if each.leases]
        assert [(each.bucket, each.leases) for each in leased] == [(0, 1), (1, 1)]
        assert len(await client.list_checkpoints("items")) == 6
        await client.leases.drop("mine")
        assert len(await client.list_checkpoints("items")) == 4


@pytest.mark.parametrize("state", [scanner.LeaseState.NEWEST, scanner.LeaseState.LOG])
async def test_a_lease_that_keeps_too_much_ends_its_block(state: scanner.LeaseState) -> None:
    """Over the wire: the block is left with LEASE_NOT_FOUND and why, its scans are refused, and the log is cut."""
    config = ScannerConfig(
        log_retention_s=0.001,
        log_pinned_bytes_max=20_000,
        retention_interval_s=0.02,
        lease_sweep_interval_s=0.02,
        checkpoint_interval_s=0,
        snapshot_linger_s=0,
    )
    store = filled_store(100)
    async with serving(store, config) as (server, _):
        async with scanner.connect(f"127.0.0.1:{server.port}") as client:
            items = await client.table("items")
            with pytest.raises(LeaseNotFound, match=r"the lease kept \d+ bytes"):
                async with await client.acquire_lease(
                    scanner.LeaseTarget("items", state=state), lease_id="report", ttl_s=3
                ) as lease:
                    assert (await items.new_scan().with_lease(lease).to_arrow()).num_rows == 100
                    await items.write(sample(range(2000)))
                    await trio.sleep_forever()
            with pytest.raises(LeaseNotFound, match="acquire it first"):
                await items.new_scan().with_lease("report").to_arrow()
            bucket = store.bucket("items", 0)
            while bucket.log_start < bucket.log_end:
                await trio.lowlevel.checkpoint()
            assert await client.list_leases() == []
            assert server.statistics().iterators_open == 0


def scanner_config() -> ScannerConfig:
    """No checkpoint but those that are asked for."""
    return ScannerConfig(checkpoint_interval_s=0)


async def test_what_an_administrator_takes_from_others_is_audited_if_it_was_there() -> None:
    """A release or a drop that ends nothing leaves no line of the audit trail; one that ends something does."""
    async with guarded() as server, connected(server, "anna") as anna, connected(server, "admin") as admin:
        await anna.acquire_lease("items", lease_id="mine")

        def audited() -> int:
            return server.statistics().activity.audited.get("lease_dropped_by_admin", 0)

        assert await admin.leases.release("other", "items", (), "anna") is None
        assert await admin.leases.release("mine", "items.old", (), "anna") is not None
        assert not await admin.leases.drop("other", "anna")
        assert audited() == 0
        assert await admin.leases.release("mine", "items", (), "anna") is None
        assert audited() == 1
