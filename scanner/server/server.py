"""A weir server: a store, the services on it, and the address where they are served.

    open_server
      store          opened and closed here, unless it is given
      catalog        tables and buckets, group commits
      services       scans, sessions, tables
      transport      one task per call; closed first, so nothing uses what is closed after it

Errors of one call end that call; see `scanner.wire.statuses.errors_as_statuses`.
"""

from __future__ import annotations

import errno
import functools
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import trio

import transport
from scanner.data.arrow_metadata import WIRE_BYTES_MAX
from scanner.errors import RETRY_AFTER_MS, ArgumentInvalid, Draining
from scanner.server.auth.access import Access, CredentialsFile
from scanner.server.clock import WallClock
from scanner.server.config import ScannerConfig
from scanner.server.counters import Activity, ActivityStatistics, HolderKind
from scanner.server.groups.registry import ReaderGroups
from scanner.server.log.opener import LogOpener
from scanner.server.maintenance import Maintenance, repeat
from scanner.server.pull.lifetimes import give_up_lost, sweep_forever
from scanner.server.scan.idle_tails import IdleTails
from scanner.server.scan.opener import ScanOpener
from scanner.server.scan.park_timer import ParkTimer
from scanner.server.scan.resumes import TokenReader
from scanner.server.scan.token_keys import load_token_keys
from scanner.server.scan.tokens import Tokens
from scanner.server.services.admin import AdminService
from scanner.server.services.fetch import FetchService
from scanner.server.services.groups import GroupService
from scanner.server.services.health_and_reflection import add_generic_services
from scanner.server.services.log_measures import MeasureService
from scanner.server.services.pages import PageService
from scanner.server.services.point_reads import GetService
from scanner.server.services.scans import ScanService
from scanner.server.services.sessions import SessionService
from scanner.server.services.splits import SplitService
from scanner.server.services.tables import TablesService
from scanner.server.services.transactions import TransactionService
from scanner.server.tables.catalog import Catalog
from scanner.server.tables.commit_floor import CommitTimeFloor
from scanner.server.tables.write_memory import WriteMemory
from scanner.server.transactions.registry import Transactions
from scanner.storage.rocksdb.store import RocksStore
from scanner.tasks import RunBlocking, bare, in_thread, inline
from scanner.wire import methods
from scanner.wire.queries import require_short
from scanner.wire.seals import sealed_like
from scanner.wire.statuses import errors_as_statuses, streaming, to_call_failed
from transport import ServerStream, TransportConfig, host_port

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from scanner.server.auth.principals import Credentials
    from scanner.storage.interface import Store
    from scanner.storage.rocksdb.config import StorageConfig

_Answer = Callable[["Buffer", ServerStream], Awaitable[bytes]]
_RESTART_MS = 1000
"""What a server that ends asks its clients to wait: the next one needs time to start."""


@dataclass(frozen=True, slots=True)
class ScannerStatistics:
    """What a server holds now."""

    push_scans_open: int
    """Running `Scan` calls with an open scan, or about to open one."""
    sessions_open: int
    """Sessions of the pull model."""
    page_snapshots_kept: int
    """Scans by `token` that are between two pages."""
    fetches_open: int
    """Running `FetchLog` calls."""
    overrun_bytes: int
    """The furthest that a push scan was past its credit, in message bytes: a row's message at most."""
    iterators_open: int
    """Scans of all kinds that are neither closed nor parked: each holds an iterator, or may."""
    scans_parked: int
    """Push scans that are parked: they hold nothing in storage."""
    snapshots_open: int
    """RocksDB snapshots that are held, or linger for a while; scans as of the same offset share one."""
    images: int
    """Images of buckets that are open."""
    image_disk_bytes: int
    """What all images take on the disk, also those that are not open."""
    image_memory_bytes: int
    """What they take in memory, about, while no scan reads them."""
    image_cache_bytes: int
    """What blocks of them take that are kept in memory, since scans read them again and again."""
    log_changes_lost: int
    """Acknowledged changes that were gone when their bucket was opened, ever; of the buckets in use."""
    leases: int
    """Leases that have not ended."""
    group_members: int
    """Members of reader groups."""
    disk_free_bytes: int | None
    """Free bytes of the data directory's disk at the last look; None: there is no disk, or none was taken yet."""
    disk_read_only: bool
    """Whether writes are refused because the disk is full, or a bucket takes none since one has failed."""
    buckets_failed: int
    """Buckets that take no writes since one has failed."""
    certificate_expires_at: float | None
    """When the server's certificate expires, seconds since 1970; None: there is none, or it is unknown."""
    write_queue_bytes: int
    """Octets of writes that are being decoded, or wait for their commits."""
    transaction_stage_bytes: int
    """Octets of the stages of all transactions, those that are being written included."""
    transactions_unapplied: int
    """Versions of transactions that are decided and not applied in every bucket."""
    transport: transport.ServerStatistics
    """The connections, and what waits in them."""
    activity: ActivityStatistics
    """What it has done since its start."""


class Server:
    """A server that is listening. Made by `open_server`."""

    def __init__(
        self,
        server: transport.Server,
        services: _Services,
        health: transport.Health,
        tls: transport.ServerTls | None,
    ) -> None:
        self._tls = tls
        self._server = server
        self._services = services
        self._health = health
        self._drained = trio.Event()
        services.admin.serve(self)
        server.on_answer_lost = services.answer_lost

    @property
    def host(self) -> str:
        """The address that it listens on."""
        return self._server.host

    @property
    def port(self) -> int:
        """The port that it listens on; a real one, also where 0 was asked for."""
        return self._server.port

    @property
    def draining(self) -> bool:
        """Whether a drain has begun."""
        return self._services.admin.drain_begun.is_set()

    def running(self) -> list[ServerStream]:
        """Every call that runs, in no order."""
        return self._server.running()

    async def wait_draining(self) -> None:
        """Wait until a drain has begun, at anyone's request.

        Cancellation:
            No effect.
        """
        await self._services.admin.drain_begun.wait()

    async def wait_drained(self) -> None:
        """Wait until a drain has ended: every call has, or the drain's time is over.

        Cancellation:
            No effect.
        """
        await self._drained.wait()

    def statistics(self) -> ScannerStatistics:
        """What is open now."""
        scans = [scan for _, _, _, scan in self._services.catalog.open_scans()]
        pushed = [scan for scan in scans if scan.holder is not None and scan.holder.kind is HolderKind.STREAM]
        images = self._services.catalog.images
        disk = self._services.maintenance.disk
        failed = disk.buckets_failed
        activity = self._services.catalog.activity.freeze()
        return ScannerStatistics(
            push_scans_open=self._services.scans.scans_open,
            sessions_open=len(self._services.sessions.kept),
            page_snapshots_kept=len(self._services.pages.kept),
            fetches_open=self._services.fetches.fetches_open,
            overrun_bytes=self._services.scans.overrun_bytes,
            iterators_open=sum(scan.holds_iterator for scan in scans),
            scans_parked=sum(scan.parked for scan in pushed),
            snapshots_open=self._services.catalog.snapshots.snapshots_open,
            images=len(images),
            image_disk_bytes=self._services.maintenance.images.disk_bytes,
            image_memory_bytes=sum(image.memory_bytes for image in images),
            image_cache_bytes=self._services.opener.image_cache_bytes,
            log_changes_lost=self._services.catalog.log_changes_lost,
            leases=len(self._services.maintenance.leases.leases()),
            group_members=self._services.groups.members,
            disk_free_bytes=None if disk.status is None else disk.status.free_bytes,
            disk_read_only=failed > 0 or (disk.status is not None and disk.status.read_only),
            buckets_failed=failed,
            certificate_expires_at=None if self._tls is None else self._tls.expires_at,
            write_queue_bytes=self._services.tables.write_queue_bytes,
            transaction_stage_bytes=self._services.transactions.staged_bytes,
            transactions_unapplied=self._services.transactions.unapplied,
            transport=self._server.statistics(),
            # Counted when a scan ends; but a tail may run for months.
            activity=replace(activity, scan_rows=activity.scan_rows + self._services.scans.rows_running),
        )

    async def drain(self, timeout_s: float | None = None) -> bool:
        """Take no new calls, report that by the health service, and wait for those that run.

        Tails without an end are not waited for: they end at once, with DRAINING and their tokens. So do memberships of
        reader groups, unless a scan of theirs has an end. A fetch of changes is answered without waiting for more, and
        a write stream ends where its client sends nothing for a second.

        Args:
            timeout_s: How long the drain takes at most, in seconds; None: the transport's `drain_timeout_s`.

        Returns:
            Whether all ended by themselves; what still runs then ends with DRAINING, and for a scan with the token
            that continues it elsewhere.
        """
        self._services.admin.drain_begun.set()
        self._health.drain()
        going_down = _draining("the server is going down; go on elsewhere or later")
        self._services.scans.drain(going_down)
        self._services.memberships.drain(going_down)
        self._services.fetches.drain()
        self._services.tables.drain(going_down)
        try:
            return await self._server.drain(timeout_s, self._cut_off)
        finally:
            self._drained.set()

    def _cut_off(self, stream: ServerStream) -> transport.CallFailed:
        error = _draining("the server is going down and did not wait any longer; go on elsewhere or later")
        return to_call_failed(self._services.scans.with_resume_token(stream, error))


def _draining(message: str) -> Draining:
    return Draining(message, metadata={RETRY_AFTER_MS: str(_RESTART_MS)})


@asynccontextmanager
async def open_server(
    store: Path | str | Store,
    host: str = "127.0.0.1",
    port: int = 0,
    config: ScannerConfig | None = None,
    *,
    storage_config: StorageConfig | None = None,
    transport_config: TransportConfig | None = None,
    ssl_context: ssl.SSLContext | transport.ServerTls | None = None,
    credentials: Credentials | CredentialsFile | None = None,
    listener: trio.abc.Listener[trio.abc.Stream] | None = None,
    clock: WallClock | None = None,
    run_blocking: RunBlocking = inline,
) -> AsyncIterator[Server]:
    """Serve a data directory for as long as the block runs.

    Args:
        store: A directory, made if it is missing; or an open store that does not block, such as the one in
            memory, which stays open.
        host: Name or address to listen on.
        port: Port to listen on; 0: any free one.
        config: Limits of the services.
        storage_config: Limits of the store, if it is opened here.
        transport_config: Limits of the connections.
        ssl_context: For TLS, with ALPN "h2"; `transport.ServerTls` makes it of files. None: plaintext.
        credentials: Who may call, and do what; None: everybody who gets a connection may do everything.
        listener: Where connections come from instead of an address, such as one in memory; owned, and without TLS.
        clock: Tells the time, for the ages of changes and leases; None: the system's.
        run_blocking: Runs what a store that is given does; one that is opened here has a thread for it.

    Yields:
        The server, listening.

    Raises:
        StoreLocked: Another server has the directory open.
        StoreFailed, DataCorrupted: The directory cannot be used.
        ArgumentInvalid: The address cannot be listened on.

    Cancellation:
        Calls that run are cut off, commits that run are finished, everything is closed.
    """
    config = config or ScannerConfig()
    async with AsyncExitStack() as stack:
        if isinstance(store, Path | str):
            run_blocking = in_thread
            store = await stack.enter_async_context(_open_store(Path(store), storage_config))
        activity = Activity()
        access = Access(credentials, activity)
        opening = _open_services(store, config, run_blocking, clock, access, activity)
        services = await stack.enter_async_context(bare(opening))
        handlers, health = add_generic_services(services.handlers())
        listening = transport.serve(
            access.guard_all(handlers),
            host=host,
            port=port,
            config=transport_config or TransportConfig(),
            ssl_context=ssl_context,
            listener=listener,
        )
        try:
            server = await stack.enter_async_context(listening)
        except (OSError, UnicodeError) as error:
            raise _cannot_listen(host, port, error) from error
        tls = ssl_context if isinstance(ssl_context, transport.ServerTls) else None
        yield Server(server, services, health, tls)


@dataclass(frozen=True, slots=True)
class _Services:
    config: ScannerConfig
    catalog: Catalog
    groups: ReaderGroups
    opener: ScanOpener
    scans: ScanService
    sessions: SessionService
    pages: PageService
    fetches: FetchService
    tables: TablesService
    gets: GetService
    splits: SplitService
    measures: MeasureService
    admin: AdminService
    memberships: GroupService
    staging: TransactionService
    transactions: Transactions
    maintenance: Maintenance

    def answer_lost(self, connection_id: int, stream_id: int | None) -> None:
        """See `transport.Server.on_answer_lost`."""
        grace_s = self.config.snapshot_linger_s
        give_up_lost(self.sessions.kept, connection_id, stream_id, grace_s)
        give_up_lost(self.pages.kept, connection_id, stream_id, grace_s)

    def handlers(self) -> Mapping[str, transport.Handler]:
        """The handler of every call, by path."""
        bytes_max = self.config.unary_request_bytes_max
        with_schema_max = bytes_max + WIRE_BYTES_MAX
        tables = {
            "DropTable": self.tables.drop_table,
            "DropUnwritten": self.tables.drop_unwritten,
            "ListTables": self.tables.list_tables,
            "DescribeTable": self.tables.describe_table,
            "ListOffsets": self.tables.list_offsets,
            "SplitBucket": self.splits.split_bucket,
            "MeasureLog": self.measures.measure,
        }
        return {
            methods.SCAN: streaming(self.scans.scan),
            methods.SCAN_SESSION: streaming(self.sessions.call),
            methods.SCAN_PAGE: streaming(self.pages.call),
            methods.FETCH_LOG: streaming(self.fetches.call),
            methods.WRITE: streaming(self.tables.write),
            methods.JOIN: streaming(self.memberships.join),
            methods.STAGE: streaming(self.staging.stage),
            methods.GET: _unary(self.gets.get, None),  # It says that clients should ask in parts.
            methods.TABLES + "CreateTable": _unary(self.tables.create_table, with_schema_max),
            methods.TABLES + "AddColumn": _unary(self.tables.add_column, with_schema_max),
            **_all_unary(methods.TABLES, tables, bytes_max),
            **_all_unary(methods.ADMIN, self.admin.calls(), bytes_max),
            **_all_unary("", self.maintenance.calls(), bytes_max),
            **_all_unary(methods.GROUPS, self.memberships.calls(), bytes_max),
            **_all_unary(methods.TRANSACTIONS, self.staging.calls(), bytes_max),
        }


def _all_unary(prefix: str, answers: Mapping[str, _Answer], bytes_max: int) -> dict[str, transport.Handler]:
    return {prefix + name: _unary(answer, bytes_max) for name, answer in answers.items()}


def _unary(answer: _Answer, bytes_max: int | None) -> transport.Handler:
    async def parse_and_answer(request: Buffer, stream: ServerStream) -> bytes:
        require_short(request, bytes_max)
        return sealed_like(request)(await answer(request, stream))

    async def handle(request: Buffer, stream: ServerStream) -> bytes:
        return await errors_as_statuses(functools.partial(parse_and_answer, request, stream), stream.path)

    return transport.unary(handle)


@asynccontextmanager
async def _open_store(path: Path, config: StorageConfig | None) -> AsyncIterator[Store]:
    store = await in_thread(functools.partial(RocksStore.open, path, config))
    try:
        yield store
    finally:
        # Shielded: the directory stays locked until it is closed. It takes as long as the disk takes.
        with trio.CancelScope(shield=True):
            await in_thread(store.close)


@asynccontextmanager
async def _open_services(
    store: Store,
    config: ScannerConfig,
    run_blocking: RunBlocking,
    clock: WallClock | None,
    access: Access,
    activity: Activity,
) -> AsyncIterator[_Services]:
    clock = clock or WallClock()
    keys = await run_blocking(functools.partial(load_token_keys, store))
    tokens = Tokens(keys, clock.now_s)
    async with bare(trio.open_nursery()) as nursery:
        floor = await CommitTimeFloor.load(store, run_blocking, clock.now_us)
        catalog = Catalog(store, config, nursery, run_blocking, activity, clock, floor)
        maintenance = await Maintenance.load(store, catalog, config, run_blocking, clock)
        opener = ScanOpener(catalog, config, tokens)
        reader = TokenReader(catalog, tokens)
        sessions = SessionService(opener, config, activity)
        nursery.start_soon(sweep_forever, sessions.kept, config.session_sweep_interval_s)
        pages = PageService(opener, reader, config)
        nursery.start_soon(sweep_forever, pages.kept, config.session_sweep_interval_s)
        logs = LogOpener(catalog, config, tokens, opener, clock.now_us)
        groups = ReaderGroups(catalog, config, nursery, clock.now_ms)
        idle_tails = IdleTails(config.idle_interval_s, floor.refresh)
        nursery.start_soon(idle_tails.run)
        park_timer = ParkTimer()
        nursery.start_soon(park_timer.run)
        snapshots = maintenance.snapshot_scans(opener)
        scans = ScanService(opener, snapshots, logs, groups, reader, config, activity, idle_tails, park_timer)
        transactions = await Transactions(store, catalog, config, nursery, run_blocking, clock.now_ms).load()
        memory = WriteMemory(config.write_queue_bytes_max)
        maintenance.start(nursery)
        freeing = "the freeing of old stages"
        nursery.start_soon(repeat, transactions.sweep, freeing, config.transaction_sweep_interval_s)
        if access.follows_file:
            nursery.start_soon(access.watch_forever)
        try:
            yield _Services(
                config=config,
                catalog=catalog,
                groups=groups,
                opener=opener,
                scans=scans,
                sessions=sessions,
                pages=pages,
                fetches=FetchService(catalog, logs, config),
                tables=TablesService(catalog, config, clock.now_us, memory),
                gets=GetService(catalog, config),
                splits=SplitService(catalog),
                measures=MeasureService(catalog),
                admin=AdminService(catalog, nursery),
                memberships=GroupService(groups, config, activity),
                staging=TransactionService(transactions, catalog, config, memory),
                transactions=transactions,
                maintenance=maintenance,
            )
        finally:
            sessions.kept.close_all()
            pages.kept.close_all()
            catalog.close_snapshots()
            # Ends the sweep, and lets the commits that run finish.
            nursery.cancel_scope.cancel()


def _cannot_listen(host: str, port: int, error: OSError | UnicodeError) -> ArgumentInvalid:
    refused = f"cannot listen on {host_port(host, port)}"
    if isinstance(error, UnicodeError):  # No machine can have that name.
        return ArgumentInvalid(f"{refused}: {error}")
    if error.errno == errno.EADDRINUSE:
        return ArgumentInvalid(f"port {port} on {host} is in use; choose another one, or 0 for any free one")
    reason = error.strerror or error
    if error.errno == errno.EADDRNOTAVAIL:
        reason = f"{reason}; name an address that this machine has, such as 127.0.0.1 where IPv6 is off"
    return ArgumentInvalid(f"{refused}: {reason}")
