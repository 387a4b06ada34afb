"""`weir serve`."""

from __future__ import annotations

import ipaddress
import logging
import signal
from pathlib import Path

import click
import trio

from scanner.cli.app import example, fail, note
from scanner.client import PORT_DEFAULT
from scanner.server import open_server


@click.command(epilog=example("weir serve --data ./data --port 9123"))
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("weir-data"),
    show_default=True,
    metavar="DIR",
    help="Where the tables are; made if it is missing.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
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
    help="Listen beyond this machine although nothing is encrypted and everyone may do everything.",
)
@click.option(
    "--drain-timeout",
    type=click.FloatRange(0),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How long running calls may take to finish when the server is told to end.",
)
def serve(data: Path, host: str, port: int, insecure_bind_any: bool, drain_timeout: float) -> None:
    """Run a server until Ctrl-C or SIGTERM.

    Prints "listening on HOST:PORT" when it is ready. The end lets running calls finish for a while; a second
    signal ends at once.
    """
    if not insecure_bind_any and not _is_loopback(host):
        fail(
            f"{host} can be reached from other machines and the connection is not encrypted;"
            " listen on 127.0.0.1, or say --insecure-bind-any"
        )
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    trio.run(_serve, data, host, port, drain_timeout)


async def _serve(data: Path, host: str, port: int, drain_timeout_s: float) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with open_server(data, host=host, port=port) as server:
            shown = f"[{server.host}]" if ":" in server.host else server.host
            click.echo(f"listening on {shown}:{server.port}")
            await anext(signals)
            note("weir: ending; running calls may finish")
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_cancel_on_next, signals, scope)
                    await server.drain(drain_timeout_s)
                    nursery.cancel_scope.cancel()


async def _cancel_on_next(signals: object, scope: trio.CancelScope) -> None:
    await anext(signals)  # type: ignore[call-overload]
    scope.cancel()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
