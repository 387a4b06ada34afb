"""A weir server: a store, the services on it, and the address where they are served.

    open_server
      store          opened and closed here, unless it is given
      catalog        tables and buckets, group commits
      services       scans, sessions, tables
      transport      one task per call; closed first, so nothing uses what is closed after it

Errors of one call end that call; see `scanner.statuses.translated`.
"""

from __future__ import annotations

import errno
import functools
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import trio

import transport
from scanner.access import Access, CredentialsFile
from scanner.activity import Activity, ActivityStatistics
from scanner.admin_service import AdminService
from scanner.catalog import Catalog
from scanner.config import ScannerConfig
from scanner.errors import ArgumentInvalid, Draining
from scanner.generic_services import add_generic_services
from scanner.nesting import bare
from scanner.scan_service import ScanOpener, ScanService
from scanner.session_service import SessionService
from scanner.statuses import streaming, to_call_failed, translated
from scanner.storage.store import RocksStore
from scanner.tables_service import TablesService
from scanner.tasks import RunBlocking, in_thread, inline
from transport import ServerStream, TransportConfig

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from scanner.auth import Credentials
    from scanner.storage.config import StorageConfig
    from scanner.storage.interface import Store

SCAN_PATH = "/weir.v1.Scanner/Scan"
SESSION_PATH = "/weir.v1.Scanner/ScanSession"
TABLES_PREFIX = "/weir.v1.Tables/"
ADMIN_PREFIX = "/weir.v1.Admin/"


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    """What a server holds now."""

    push_scans_open: int
    """Running `Scan` calls with an open scan, or about to open one."""
    sessions_open: int
    """Sessions of the pull model."""
    overrun_bytes: int
    """The furthest that a push scan that has ended was past its credit, in message bytes: a row's message at most."""
    iterators_open: int
    """Scans of both kinds that are not closed yet."""
    transport: transport.ServerStatistics
    """The connections, and what waits in them."""
    activity: ActivityStatistics
    """What it has done since its start."""


class Server:
    """A server that is listening. Made by `open_server`."""

    def __init__(self, server: transport.Server, services: _Services, health: transport.Health) -> None:
        self._server = server
        self._services = services
        self._health = health
        self._draining = False
        self._drained = trio.Event()
        services.admin.serve(self)

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
        return self._draining

    def running(self) -> list[ServerStream]:
        """Every call that runs, in no order."""
        return self._server.running()

    async def wait_draining(self) -> None:
        """Wait until a drain has begun, whoever asked for it.

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

    def statistics(self) -> ServerStatistics:
        """What is open now."""
        return ServerStatistics(
            push_scans_open=self._services.scans.scans_open,
            sessions_open=self._services.sessions.sessions_open,
            overrun_bytes=self._services.scans.overrun_bytes,
            iterators_open=self._services.catalog.scans_open,
            transport=self._server.statistics(),
            activity=self._services.catalog.activity.freeze(),
        )

    async def drain(self, timeout_s: float | None = None) -> bool:
        """Take no new calls, say so to those who watch the server's health, and wait for those that run.

        Args:
            timeout_s: How long they may take, in seconds; None: the transport's `drain_timeout_s`.

        Returns:
            Whether all ended by themselves; what still runs then ends with DRAINING.
        """
        self._draining = True
        self._services.admin.drain_begun.set()
        self._health.drain()
        last_word = Draining(
            "the server is going down and did not wait any longer; start again, elsewhere or later"
        )
        try:
            return await self._server.drain(timeout_s, to_call_failed(last_word))
        finally:
            self._drained.set()


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
    run_blocking: RunBlocking = inline
    async with AsyncExitStack() as stack:
        if isinstance(store, Path | str):
            run_blocking = in_thread
            store = await stack.enter_async_context(_open_store(Path(store), storage_config))
        services = await stack.enter_async_context(bare(_open_services(store, config, run_blocking)))
        handlers, health = add_generic_services(services.handlers())
        listening = transport.serve(
            Access(credentials).guard_all(handlers),
            host=host,
            port=port,
            config=transport_config or TransportConfig(),
            ssl_context=ssl_context,
        )
        try:
            server = await stack.enter_async_context(listening)
        except OSError as error:
            raise _cannot_listen(host, port, error) from error
        yield Server(server, services, health)


@dataclass(frozen=True, slots=True)
class _Services:
    catalog: Catalog
    scans: ScanService
    sessions: SessionService
    tables: TablesService
    admin: AdminService

    def handlers(self) -> Mapping[str, transport.Handler]:
        """The handler of every call, by path."""
        unary = {
            "CreateTable": self.tables.create_table,
            "DropTable": self.tables.drop_table,
            "ListTables": self.tables.list_tables,
            "DescribeTable": self.tables.describe_table,
            "ListOffsets": self.tables.list_offsets,
        }
        return {
            SCAN_PATH: streaming(self.scans.scan),
            SESSION_PATH: streaming(self.sessions.call),
            TABLES_PREFIX + "Write": streaming(self.tables.write),
            **{TABLES_PREFIX + name: _unary(answer) for name, answer in unary.items()},
            **{ADMIN_PREFIX + name: _unary(answer) for name, answer in self.admin.calls().items()},
        }


def _unary(answer: Callable[[Buffer, ServerStream], Awaitable[bytes]]) -> transport.Handler:
    async def handle(request: Buffer, stream: ServerStream) -> bytes:
        return await translated(functools.partial(answer, request, stream), stream.path)

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
    store: Store, config: ScannerConfig, run_blocking: RunBlocking
) -> AsyncIterator[_Services]:
    async with trio.open_nursery() as nursery:
        activity = Activity()
        catalog = Catalog(store, config, nursery, run_blocking, activity)
        opener = ScanOpener(catalog, config)
        sessions = SessionService(opener, config, activity)
        nursery.start_soon(sessions.sweep_forever)
        scans = ScanService(opener, config, activity)
        try:
            yield _Services(
                catalog, scans, sessions, TablesService(catalog, config), AdminService(catalog, nursery)
            )
        finally:
            sessions.close_all()
            # Ends the sweep, and lets the commits that run finish.
            nursery.cancel_scope.cancel()


def _cannot_listen(host: str, port: int, error: OSError) -> ArgumentInvalid:
    if error.errno == errno.EADDRINUSE:
        return ArgumentInvalid(f"port {port} on {host} is in use; choose another one, or 0 for any free one")
    return ArgumentInvalid(f"cannot listen on {host}:{port}: {error.strerror or error}")
