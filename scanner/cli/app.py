"""The `weir` command itself, and what its commands share: the endpoint, the client, the manner of failing.

What takes time to import (Arrow, trio, the client) is imported when a command is known to need it: `weir --version`,
`--help` and a mistyped command answer at once.
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click
from click.shell_completion import CompletionItem

from scanner.cli.signals import ended, ended_in_good_order, interrupted_at_once
from scanner.escapes import escaped, listed
from scanner.extras import DISTRIBUTION, ExtraMissing, extras_needed

if TYPE_CHECKING:
    from scanner import sync

_NAME: Final = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^,]*?))\s*(?:,|$)')
_IS_VALUE: Final = re.compile(r"-[0-9]|-.*\s")
"""What no option is called: a number, or text such as a query that begins with a comment."""
_SHORTAGES: Final = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
"""Why no connection can be made by this process, whoever listens."""
_F = TypeVar("_F", bound=Callable[..., Any])
_runs_one_command = False


class Failure(click.ClickException):
    """A failure that is told in one line; exit code 1."""


class OutputClosed(click.ClickException):
    """Nobody reads our output any more; exit code 141, as of a process that SIGPIPE ended, and not a word."""

    exit_code = 141

    def __init__(self) -> None:
        super().__init__("nobody reads the output")


class CommandUnreadable(click.ClickException):
    """Arguments that make no sense; exit code 2."""

    exit_code = 2


class OneLineGroup(click.Group):
    """A group whose errors are one line, and that takes signals and a closed pipe before click does."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Read the arguments, and print what `--help` and `--version` ask for."""
        try:
            return super().make_context(*args, **kwargs)
        except BrokenPipeError:
            raise OutputClosed from None  # Before click makes exit code 1 of it.

    def invoke(self, ctx: click.Context) -> Any:
        """Run the chosen command."""
        try:
            with ended_in_good_order():
                return super().invoke(ctx)
        except (KeyboardInterrupt, RuntimeError) as error:
            # Python's conditions, in threads that begin and in futures, make a RuntimeError of an interrupt that comes
            # when they have given their lock back.
            if isinstance(error, RuntimeError) and not isinstance(error.__context__, KeyboardInterrupt):
                raise
            _show_cursor()
            raise ended() from None
        except BrokenPipeError:
            raise OutputClosed from None  # Before click makes exit code 1 of it.

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Read the arguments and run."""
        try:
            return super().main(*args, **kwargs)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
            return 0
        except click.UsageError as error:
            raise _with_hint(error) from error


_COMMANDS: Final = {
    "add-column": ("scanner.cli.tables:add_column", "Add a column to a table."),
    "adopt": ("scanner.cli.adopt:adopt_table", "Bring back a table that the catalog does not name."),
    "backup": ("scanner.cli.backup:backup", "Back up a server's tables, or list backups."),
    "checkpoint": ("scanner.cli.leases:checkpoint", "Make a checkpoint of a table, or list its checkpoints."),
    "compact-log": ("scanner.cli.compact_log:compact_log", "Cut a table's changelogs off now."),
    "delete": ("scanner.cli.delete:delete", "Delete rows by their primary key."),
    "describe": ("scanner.cli.tables:describe", "Show a table's columns, key, buckets and log offsets."),
    "doctor": ("scanner.cli.doctor:doctor", "Look for damage in a data directory that no server has open."),
    "drain": ("scanner.cli.admin:drain", "Shut the server down gracefully, as SIGTERM does."),
    "drop": ("scanner.cli.tables:drop", "Drop a table with all its rows."),
    "get": ("scanner.cli.get:get", "Read rows by their primary key."),
    "groups": ("scanner.cli.groups:groups", "Show a table's reader groups, or delete one."),
    "health": ("scanner.cli.health:health", "Ask a server whether it takes calls."),
    "image": ("scanner.cli.image:image", "Make, list or drop columnar images of a table."),
    "leases": ("scanner.cli.leases:leases", "Keep states of tables readable for a while."),
    "load": ("scanner.cli.load:load", "Load a Parquet, Arrow or CSV file into a table."),
    "offsets": (
        "scanner.cli.offsets:offsets",
        "Show where a table's changelogs begin and end, and where a time is.",
    ),
    "restore": ("scanner.cli.backup:restore_backup", "Restore a backup into a data directory."),
    "rotate-token-keys": (
        "scanner.cli.token_keys:rotate_keys",
        "Make a new key for signing resume tokens.",
    ),
    "scan": ("scanner.cli.scan:scan", "Read a table."),
    "serve": ("scanner.cli.serve:serve", "Run a server."),
    "snapshots": ("scanner.cli.admin:snapshots", "List the states of buckets that scans and sessions pin."),
    "sql": ("scanner.cli.sql:sql", "Run one SELECT over tables, in DuckDB."),
    "streams": ("scanner.cli.admin:streams", "List the calls that run at the server."),
    "tables": ("scanner.cli.tables:tables", "List the tables."),
    "tail": ("scanner.cli.tail:tail", "Print a table's changes as they are committed."),
    "token": ("scanner.cli.security:token", "Make tokens that prove who calls."),
    "top": ("scanner.cli.top:top", "Watch the server's streams."),
    "transactions": ("scanner.cli.transactions:transactions", "Show a table's transactions of writers."),
}
"""Where each command is, and what `weir --help` says of it."""


class LazyGroup(OneLineGroup):
    """The group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Their names, in alphabetical order."""
        return sorted({*_COMMANDS, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one; None if there is none of that name."""
        if cmd_name not in _COMMANDS:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = _COMMANDS[cmd_name][0].partition(":")
        try:
            with interrupted_at_once(), imported_for_good(), extras_needed(f"weir {cmd_name}"):
                command: click.Command = getattr(importlib.import_module(module), attribute)
        except ExtraMissing as error:
            if ctx.resilient_parsing:  # A shell asks how a word may go on: it has no use for an error.
                return None
            raise Failure(str(error)) from None
        # Python's -OO takes docstrings, which are the help.
        command.help = command.help or _COMMANDS[cmd_name][1]
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands and options that begin so, without importing a command: one may need what is not installed."""
        names = [
            CompletionItem(name, help=text)
            for name, (_, text) in sorted(_COMMANDS.items())
            if name.startswith(incomplete)
        ]
        return names + super(click.Group, self).shell_complete(ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List them without importing one."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in sorted(_COMMANDS.items())])


def runs_one_command() -> None:
    """Say that this process is there for one command: what it imports then stays as long as the process."""
    global _runs_one_command
    _runs_one_command = True


@contextmanager
def imported_for_good() -> Iterator[None]:
    """Import without the garbage collector, which never looks at what is there by then, also not at the end.

    That is a quarter of the time of a small command. A process that does more than one command is left alone.
    """
    if not _runs_one_command:
        yield
        return
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def _show_cursor() -> None:
    """Show the cursor, which rich leaves hidden where it is interrupted while it begins or ends a bar."""
    if "rich.console" in sys.modules and is_terminal():
        from rich.console import Console

        with suppress(OSError):  # The terminal is gone.
            Console(stderr=True).show_cursor()


def _with_hint(error: click.UsageError) -> click.ClickException:
    path = error.ctx.command_path if error.ctx is not None else "weir"
    message = error.format_message()
    if "--help" in message:
        return error
    if isinstance(error, click.NoSuchOption) and _IS_VALUE.match(error.option_name):
        message = f"{message.rstrip('.')}; if it is a value, write it at the end, behind --"
    return CommandUnreadable(f"{message.rstrip('.')}; see {path} --help")


def example(*lines: str) -> str:
    """The end of a command's help: how it is used."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=example(
        "weir serve --data ./data              start a server",
        "weir load orders.csv -k order_id      load a file into a table",
        "weir scan orders --limit 10           look at it",
    ),
)
@click.version_option(package_name=DISTRIBUTION, prog_name="weir")
def weir() -> None:
    """Live key-value tables, scanned by push."""


def endpoint_option(command: _F) -> _F:
    """The options that name the server, and prove who calls; `connected` reads them."""
    from scanner.cli.connection import client_security_options
    from scanner.client.endpoints import PORT_DEFAULT

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
    """A client for the length of a command, which tells a person at a terminal when it waits for the server.

    Raises:
        ArgumentInvalid: The endpoint cannot be read.
        ServerUnavailable: Nobody answers there; if that is this machine, the message says how to start a server. Or
            TLS failed.
        Unauthenticated: The server does not accept the certificate.
    """
    with interrupted_at_once(), imported_for_good():
        from scanner import sync
        from scanner.cli.connection import connection_arguments
        from scanner.cli.waits import told_of_waits
        from scanner.client.credentials import is_loopback
        from scanner.client.endpoints import parse_endpoint
        from scanner.errors import ServerUnavailable

    host, port = parse_endpoint(endpoint)
    arguments = connection_arguments()
    try:
        client = sync.connect(endpoint, **arguments)
    except ServerUnavailable as error:
        cause: BaseException | None = error
        while cause is not None and getattr(cause, "errno", None) not in _SHORTAGES:
            cause = cause.__cause__
        if arguments["ssl_context"] is not None or cause is not None or not is_loopback(host):
            raise
        raise ServerUnavailable(
            f"{error.message}; start one with: weir serve --data DIR --host {host} --port {port}"
        ) from error
    with client, told_of_waits():
        yield client


def names(value: str | tuple[str, ...] | None) -> list[str]:
    """Column names given as `a,b`, as a repeated option, or both; in double quotes as in SQL, `"a,b"`, or plain."""
    values = (value,) if isinstance(value, str) else value or ()
    found = (match.groups() for each in values for match in _NAME.finditer(each))
    return [plain if quoted is None else quoted.replace('""', '"') for quoted, plain in found if plain != ""]


def shown_names(columns: Sequence[str]) -> str:
    """Column names as `names` reads them; of many the first ones."""
    plain = {name for name in columns if '"' not in name and names(name) == [name]}
    return listed(name if name in plain else '"' + name.replace('"', '""') + '"' for name in columns)


def forget_output(descriptor: int = 1) -> None:
    """Nobody reads our output any more: what is left in the buffer must neither fail nor wait at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def note(message: str) -> None:
    """Tell the user something that is not the command's output, in one line."""
    # Click's own standard error goes around a bar that is drawn there: the line would be behind it, on the same line.
    with suppress(OSError):  # Nothing takes it, as on a full disk; what the command does is the same.
        click.echo(escaped(message), sys.stderr, err=True)


def tell_done(line: str) -> None:
    """Print what a command has done: on standard error if its output takes it not, since it is done all the same.

    Raises:
        OSError, KeyboardInterrupt: The line was not printed, or not wholly.
    """
    try:
        click.echo(line)
    except (OSError, KeyboardInterrupt):
        note(line)
        raise


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


def takes_colour(file: Any) -> bool:
    """Whether colours may be written to this file: to a terminal that has them, unless `NO_COLOR` asks for none."""
    from rich.console import Console

    console = Console(file=file)
    return is_terminal(file) and not console.is_dumb_terminal and not console.no_color
