"""`weir serve`."""

from __future__ import annotations

import logging
import os
import signal
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
import trio

from scanner.cli.allocator import give_back_free_memory, keep_freed_memory
from scanner.cli.amounts import Bytes, Seconds
from scanner.cli.app import example, fail, note
from scanner.cli.descriptors import buckets_within, files_within, raise_files_limit
from scanner.cli.logs import LOG_FORMATS, configure_logging
from scanner.cli.options import data_option
from scanner.cli.security import ServerSecurity, server_security, server_security_options
from scanner.cli.signals import end_now, ended, interrupted_at_once
from scanner.cli.warm_up import warm_up
from scanner.client.endpoints import PORT_DEFAULT
from scanner.server.config import IMAGES, ScannerConfig
from scanner.server.metrics_http import serve_metrics
from scanner.server.server import Server, open_server
from scanner.storage.rocksdb.config import StorageConfig
from scanner.tasks import bare
from transport import TransportConfig, host_port

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LOG_LEVELS = ("debug", "info", "warning", "error")

_DEFAULTS = ScannerConfig()

_logger = logging.getLogger(__name__)


@click.command(
    epilog=example(
        "weir serve --data ./data --port 9123",
        "weir serve --host 0.0.0.0 --tls-cert server.pem --credentials users.toml",
    )
)
@data_option("The data directory; created if it is missing.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; 0.0.0.0 is every one of IPv4, :: every one of IPv6.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT_DEFAULT,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option(
    "--insecure-bind-any",
    is_flag=True,
    help="Listen beyond this machine without TLS or without credentials.",
)
@click.option(
    "--drain-timeout",
    type=Seconds(0),
    default=5.0,
    show_default=True,
    help="How long a shutdown takes at most; running calls may finish in four fifths of it.",
)
@click.option(
    "--session-ttl",
    type=Seconds(1),
    default=_DEFAULTS.session_ttl_s,
    show_default=True,
    help="How long a pull scan may be idle before the server reclaims what it keeps for it.",
)
@click.option(
    "--park-after",
    type=Seconds(0, min_open=True),
    default=_DEFAULTS.park_after_s,
    show_default=True,
    help="A push scan that can send nothing for so long drops its snapshot, until its consumer continues.",
)
@click.option(
    "--log-retention",
    type=Seconds(0, min_open=True),
    default=_DEFAULTS.log_retention_s,
    show_default=True,
    help="How long changes stay in the changelogs; longer if a scan or a lease needs them.",
)
@click.option(
    "--log-retention-bytes",
    type=Bytes(1),
    default=_DEFAULTS.log_retention_bytes,
    show_default=True,
    help="Size of a bucket's changelog beyond which its oldest changes go, unless a scan or a lease needs them.",
)
@click.option(
    "--checkpoint-interval",
    type=Seconds(0),
    default=_DEFAULTS.checkpoint_interval_s,
    show_default=True,
    help="How often buckets that were written to get a checkpoint; 0: only on demand.",
)
@click.option(
    "--images",
    type=click.Choice(IMAGES),
    default=_DEFAULTS.images,
    show_default=True,
    help="Make columnar images of what full scans read again and again automatically (auto), or only on demand (off).",
)
@click.option(
    "--disk-reserve",
    type=Bytes(0, 1 << 40),
    default=StorageConfig().disk_reserve_bytes,
    show_default=True,
    help="Writes are refused while less is free on the disk, or a twentieth of it if that is less; 0: never.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve Prometheus metrics at http://METRICS-HOST:PORT/metrics; 0 takes a free port. [default: not served]",
)
@click.option(
    "--metrics-host",
    help="Address of --metrics-port, which has no authentication. [default: 127.0.0.1]",
)
@click.option(
    "--log-level",
    type=click.Choice(LOG_LEVELS, case_sensitive=False),
    default="warning",
    show_default=True,
    help="Level of the log on standard error; info has a line for each scan that ends.",
)
@click.option(
    "--log-format",
    type=click.Choice(LOG_FORMATS, case_sensitive=False),
    default="text",
    show_default=True,
    help="Plain lines, or a JSON object per line.",
)
@server_security_options
def serve(
    data: Path,
    host: str,
    port: int,
    insecure_bind_any: bool,
    drain_timeout: float,
    session_ttl: float,
    park_after: float,
    log_retention: float,
    log_retention_bytes: int,
    checkpoint_interval: float,
    images: str,
    disk_reserve: int,
    metrics_port: int | None,
    metrics_host: str | None,
    log_level: str,
    log_format: str,
) -> None:
    """Run a server until Ctrl-C or SIGTERM.

    Prints "listening on HOST:PORT" when it is ready. A shutdown lets running calls finish for a while; a second
    signal ends the server at once. Certificates and credentials are read again when they change, and on SIGHUP.

    A TIME is in seconds, or has a unit: 90s, 10m, 12h, 7d. A SIZE is in bytes, or has one: 64K, 512M, 10G (a K is
    1024 bytes).
    """
    # Rows are in files that RocksDB makes whenever it likes; nobody else is to read them.
    os.umask(0o077)
    if os.getpid() == 1:
        # In a container orphans, as of a health check that was cut short, become its children: the kernel reaps them.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if metrics_host is not None and metrics_port is None:
        fail("--metrics-host needs --metrics-port: no metrics are served without it")
    keep_freed_memory()
    configure_logging(log_level, log_format)
    _warn_of_owner(data)
    with interrupted_at_once():  # What runs in it, finalizers among them, may take the exception for its own.
        warm_up()
    files_max = raise_files_limit()
    security = server_security(host, insecure_bind_any)
    if security.reloads:
        # It asks for these files to be read again, and ends nothing: neither before the server listens nor in a drain.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sweep_s = min(_DEFAULTS.session_sweep_interval_s, session_ttl / 2)
    config = ScannerConfig(
        session_ttl_s=session_ttl,
        page_snapshot_ttl_s=session_ttl,
        session_sweep_interval_s=sweep_s,
        park_after_s=park_after,
        log_retention_s=log_retention,
        log_retention_bytes=log_retention_bytes,
        checkpoint_interval_s=checkpoint_interval,
        images=images,
        buckets_open_max=buckets_within(files_max),
    )
    storage = StorageConfig(disk_reserve_bytes=disk_reserve, bucket_files_open_max=files_within(files_max))
    metrics = None if metrics_port is None else (metrics_host or "127.0.0.1", metrics_port)
    trio.run(_serve, data, (host, port), drain_timeout, security, config, storage, metrics)


async def _serve(
    data: Path,
    address: tuple[str, int],
    drain_timeout_s: float,
    security: ServerSecurity,
    config: ScannerConfig,
    storage: StorageConfig,
    metrics: tuple[str, int] | None,
) -> None:
    ending = _Ending()
    # SIGHUP by itself, lest it come as SIGINT; not where it is ignored, as after nohup.
    hangup = () if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else (signal.SIGHUP,)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, *hangup) as signals:
        async with bare(trio.open_nursery()) as beside, AsyncExitStack() as stack:
            stack.callback(beside.cancel_scope.cancel)  # Last of all: storage is closed by then.
            stack.enter_context(ending.start)
            beside.start_soon(ending.hear, signals)
            serving = open_server(
                data,
                *address,
                config,
                storage_config=storage,
                transport_config=TransportConfig(drain_timeout_s=drain_timeout_s),
                ssl_context=security.tls,
                credentials=security.credentials,
            )
            server = await stack.enter_async_context(serving)
            if metrics is not None:
                metrics_port = await stack.enter_async_context(serve_metrics(server.statistics, *metrics))
                _remark(f"weir: metrics at http://{host_port(metrics[0], metrics_port)}/metrics")
            async with bare(trio.open_nursery()) as nursery:
                await nursery.start(_reload_on_hangup, security)
                nursery.start_soon(_cancel_when_draining, server, nursery.cancel_scope)
                nursery.start_soon(give_back_free_memory)
                try:
                    click.echo(f"listening on {host_port(server.host, server.port)}")
                    ending.serves = True
                    await ending.asked.wait()
                finally:
                    nursery.cancel_scope.cancel()
            _remark("weir: ending; running calls may finish")
            await ending.drain(server)
    if ending.cut_short is not None:
        raise ending.cut_short  # Out here, where no nursery wraps it


class _Ending:
    """A server's end, and what signals do.

    The first one begins it, whether the server serves or is on its way. Of further ones one cuts the drain short, then
    one the closing of storage.
    """

    def __init__(self) -> None:
        self.start = trio.CancelScope()
        """Around the server. Its start can take long, as where many leased buckets are opened."""
        self.serves = False
        """Whether it has started, and is to be drained."""
        self.asked = trio.Event()
        self.first: int | None = None
        """The signal that began it; None: `weir drain` did."""
        self.cut_short: click.ClickException | None = None
        """How the command ends if the drain was cut short."""
        self._drain = trio.CancelScope()
        self._drained = False

    async def drain(self, server: Server) -> None:
        """Let running calls finish."""
        self.asked.set()
        with self._drain:
            if server.draining:  # `weir drain` asked for it, and said how long it may take
                await server.wait_drained()
            else:
                await server.drain()
        self._drained = True

    async def hear(self, signals: AsyncIterator[int]) -> None:
        """Take signals, until storage is closed: that takes as long as the disk takes, perhaps for ever."""
        async for number in signals:
            if not self.asked.is_set():
                self.first = number
                self.asked.set()
                if not self.serves:
                    self._drained = True  # There is nothing to drain.
                    _remark("weir: ending; it had not started to serve")
                    self.start.cancel()
                continue
            if number == self.first == signal.SIGHUP:
                continue  # A shell that goes sends one after the kernel's.
            if self._drained:
                end_now(number)  # What was acknowledged is durable.
            self.cut_short = ended(number)
            self._drain.cancel()


def _warn_of_owner(data: Path) -> None:
    """Say that a data directory is another user's, who will not be able to open what this server makes there."""
    with suppress(OSError):  # There is none yet, or its opening tells what is wrong.
        owner = data.stat().st_uid
        if owner != os.geteuid():
            _logger.warning(
                "%s belongs to user %d, and this server runs as user %d: a later one of that user cannot open the"
                " files that it makes; run it as user %d",
                data,
                owner,
                os.geteuid(),
                owner,
            )


def _remark(message: str) -> None:
    """Tell the operator, as the log does: a standard error that takes nothing any more ends no server."""
    with suppress(OSError):  # Its disk is full, or Ctrl-C has ended its reader as well.
        note(message)


async def _reload_on_hangup(
    security: ServerSecurity, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Read certificates and credentials again on SIGHUP; they also are when they have changed."""
    if not security.reloads:
        task_status.started()
        return  # SIGHUP shuts down, as SIGTERM does
    with trio.open_signal_receiver(signal.SIGHUP) as hangups:
        task_status.started()
        async for _ in hangups:
            security.reload()


async def _cancel_when_draining(server: Server, scope: trio.CancelScope) -> None:
    await server.wait_draining()
    scope.cancel()
