"""The command line, `weir`: one module per group of commands.

What users get wrong, and what the world does to them, is one line on standard error that says what to do, and an exit
code: 1 for a failure, 2 for a command that cannot be read, 130 for Ctrl-C. A traceback is a bug of ours.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from scanner.cli.admin import drain, snapshots, streams
from scanner.cli.adopt import adopt_table
from scanner.cli.app import Interrupted, weir
from scanner.cli.data import delete, load
from scanner.cli.leases import checkpoint, leases
from scanner.cli.scan import scan
from scanner.cli.security import token
from scanner.cli.serve import serve
from scanner.cli.tables import add_column, describe, drop, tables
from scanner.cli.token_keys import rotate_keys
from scanner.cli.top import top
from scanner.errors import ScannerError

__all__ = ["main", "weir"]

_BROKEN_PIPE_EXIT_CODE = 141
"""What a shell reports of a process that SIGPIPE ended."""

for _command in (
    serve,
    load,
    tables,
    describe,
    scan,
    delete,
    drop,
    add_column,
    token,
    rotate_keys,
    adopt_table,
    streams,
    snapshots,
    top,
    drain,
    leases,
    checkpoint,
):
    weir.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit.

    Args:
        arguments: Words after the program's name; None: those of this process.

    Raises:
        SystemExit: Always; its code is the exit code.
    """
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code.
    """
    try:
        code = weir.main(arguments, prog_name="weir", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (Interrupted, click.Abort, KeyboardInterrupt):
        _forget_output()
        _complain("interrupted")
        return Interrupted.exit_code
    except click.ClickException as error:
        _complain(error.format_message())
        return error.exit_code
    except ScannerError as error:
        _complain(str(error))
        return 1
    except BrokenPipeError:
        _forget_output()
        return _BROKEN_PIPE_EXIT_CODE
    except OSError as error:
        _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return 1


def _forget_output() -> None:
    """Nobody reads our output any more: what is left in the buffer must neither fail nor wait at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str) -> None:
    click.echo(f"weir: {' '.join(message.split())}", err=True)
