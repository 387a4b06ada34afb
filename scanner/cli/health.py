"""`weir health`: asks `grpc.health.v1`, as load balancers and orchestrators do."""

from __future__ import annotations

import click
import trio

import transport
from scanner.cli.amounts import Seconds
from scanner.cli.app import endpoint_option, example, forget_output, note
from scanner.cli.connection import connection_arguments
from scanner.client.connection import open_connection
from scanner.client.endpoints import connect_by_tcp, parse_endpoint
from scanner.client.failures import translated
from scanner.errors import ScannerError


class Unanswered(click.ClickException):
    """Nobody has answered the question; exit code 2."""

    exit_code = 2


@click.command(
    epilog=example(
        "weir health",
        "weir health --timeout 2 || systemctl restart weir",
        "weir health -e weir.example.com:9123 --tls-ca ca.pem",
    )
)
@click.option(
    "--service",
    default=transport.WHOLE_SERVER,
    metavar="NAME",
    help="Ask for this service, such as weir.v1.Scanner. [default: the whole server]",
)
@click.option(
    "--timeout",
    type=Seconds(0, min_open=True),
    default=5.0,
    show_default=True,
    help="How long to wait for the answer, connecting included.",
)
@endpoint_option
def health(service: str, timeout: float, endpoint: str) -> int:
    """Ask a server whether it takes calls. It needs no token.

    Exit code 0: it does; 1: it says that it does not; 2: nobody answers, or the service is unknown. A server that
    drains takes no new connections, so nobody answers there.
    """
    try:
        # Where it waits, not between any two instructions: there it would leave coroutines that nobody awaits.
        serving = trio.run(_ask, endpoint, service, timeout, restrict_keyboard_interrupt_to_checkpoints=True)
    except (ScannerError, OSError) as error:  # The system's, where this process may open no more files.
        raise Unanswered(str(error)) from error
    except trio.TooSlowError:
        raise Unanswered(f"the server at {endpoint} did not answer within {timeout:g} s") from None
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is None:
            raise
        raise KeyboardInterrupt from None  # A signal while the connection is open comes out of its nursery in a group.
    try:
        click.echo("serving" if serving else "not serving")
    except BrokenPipeError:
        raise
    except OSError as error:
        # As on a full disk. The exit code is the answer, and scripts restart servers by it.
        forget_output()
        note(f"weir: cannot write standard output: {error.strerror}")
    return 0 if serving else 1


async def _ask(endpoint: str, service: str, timeout_s: float) -> bool:
    connect = connect_by_tcp(*parse_endpoint(endpoint), ssl_context=connection_arguments()["ssl_context"])
    with trio.fail_after(timeout_s):
        async with open_connection(connect, endpoint) as connection, connection.client() as client:
            with translated("Check"):
                return await transport.check_health(client, service)
