"""The `weir` command itself, and what its commands share: the endpoint, the client, the manner of failing."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

import click

from scanner import sync
from scanner.cli.connection import client_security_options, connection_arguments
from scanner.connection import PORT_DEFAULT, parse_endpoint
from scanner.errors import ServerUnavailable

_F = TypeVar("_F", bound=Callable[..., Any])


class Failure(click.ClickException):
    """A failure that is told in one line; exit code 1."""


class Interrupted(click.ClickException):
    """Ctrl-C; exit code 130, as of a process that SIGINT ended."""

    exit_code = 130

    def __init__(self) -> None:
        super().__init__("interrupted")


class CommandUnreadable(click.ClickException):
    """Arguments that make no sense; exit code 2."""

    exit_code = 2


class OneLineGroup(click.Group):
    """A group whose errors are one line, and that takes Ctrl-C before click prints an empty line for it."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None
        except click.UsageError as error:
            raise _with_hint(error) from error

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Read the arguments and run."""
        try:
            return super().main(*args, **kwargs)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
            return 0
        except click.UsageError as error:
            raise _with_hint(error) from error


class Seconds(click.FloatRange):
    """A time, as an option takes it; `inf` is one, unless there is a maximum."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read it."""
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):
            # It is neither below the minimum nor above the maximum, and so within any range.
            self.fail(f"{value!r} is no number of seconds.", param, ctx)
        return seconds


def _with_hint(error: click.UsageError) -> click.ClickException:
    path = error.ctx.command_path if error.ctx is not None else "weir"
    message = error.format_message()
    if "--help" in message:
        return error
    return CommandUnreadable(f"{message.rstrip('.')}; see {path} --help")


def example(*lines: str) -> str:
    """The end of a command's help: how it is used."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


@click.group(
    cls=OneLineGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=example(
        "weir serve --data ./data                                 start a server",
        "weir load flights.csv.zip --primary-key year,month,day   load a file into a table",
        "weir scan flights --limit 10                             look at it",
    ),
)
@click.version_option(package_name="weir", prog_name="weir")
def weir() -> None:
    """Live key-value tables, scanned by push."""


def endpoint_option(command: _F) -> _F:
    """The options that name the server, and prove who calls; `connected` reads them."""
    return click.option(
        "--endpoint",
        "-e",
        default=f"127.0.0.1:{PORT_DEFAULT}",
        show_default=True,
        metavar="HOST:PORT",
        help="The server.",
    )(client_security_options(command))


@contextmanager
def connected(endpoint: str) -> Iterator[sync.Client]:
    """A client for the length of a command.

    Raises:
        ArgumentInvalid: The endpoint cannot be read.
        ServerUnavailable: Nobody answers there; the message says how to start a server. Or TLS failed.
        Unauthenticated: The server does not accept the certificate.
    """
    host, port = parse_endpoint(endpoint)
    arguments = connection_arguments()
    try:
        client = sync.connect(endpoint, **arguments)
    except ServerUnavailable as error:
        if arguments["ssl_context"] is not None:
            raise
        raise ServerUnavailable(
            f"{error.message}; start one with: weir serve --data DIR --host {host} --port {port}"
        ) from error
    with client:
        yield client


def names(value: str | tuple[str, ...] | None) -> list[str]:
    """Column names given as `a,b`, as a repeated option, or both."""
    values = (value,) if isinstance(value, str) else value or ()
    return [name.strip() for each in values for name in each.split(",") if name.strip()]


def note(message: str) -> None:
    """Tell the user something that is not the command's output."""
    click.echo(message, err=True)


def fail(message: str) -> NoReturn:
    """End the command with one line and exit code 1.

    Raises:
        Failure: Always.
    """
    raise Failure(message)


def is_terminal(file: Any = None) -> bool:
    """Whether a person looks at this file; by default at standard error."""
    stream = sys.stderr if file is None else file
    return bool(stream.isatty())
