"""The command line, `weir`: one module per group of commands.

What users get wrong, and what the world does to them, is one line on standard error that says what to do, and an exit
code: 1 for a failure, 2 for a command that cannot be read, 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP. A traceback
is a bug of ours.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NoReturn, TextIO

import click

from scanner.cli.app import OutputClosed, forget_output, runs_one_command, weir
from scanner.cli.signals import Ended, end_at_once
from scanner.cli.waiting import PatientFile, WaitingFile
from scanner.cli.without_pandas import NO_PANDAS
from scanner.errors import ScannerError
from scanner.escapes import escaped

__all__ = ["main", "weir"]

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a write fails with where nothing more goes in."""
_NO_THREAD: Final = ("can't start new thread", "Failed to launch worker thread")
"""Python's and Arrow's words for EAGAIN."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit.

    Args:
        arguments: Words after the program's name; None: those of this process.

    Raises:
        SystemExit: Always; its code is the exit code.
    """
    words = sys.argv[1:] if arguments is None else arguments
    # What `weir health` answers with is its exit code.
    if not _open_standard_files() and words[:1] != ["health"]:
        _complain("standard output is closed; send it to /dev/null if nobody wants it")
        _exit(1)
    sys.stdout = _waiting(sys.stdout)
    # The log of a server goes on behind a gap instead, which it tells of.
    sys.stderr = _patient(sys.stderr) if words[:1] == ["serve"] else _waiting(sys.stderr)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As Python has it for standard error: what the encoding lacks is written out.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.meta_path.insert(0, NO_PANDAS)  # Not in `run`: who calls that may want pandas.
    runs_one_command()  # Nor this.
    # numpy starts a thread for each processor to multiply matrices with, which no command does.
    os.putenv("OPENBLAS_NUM_THREADS", "1")
    end_at_once()  # What is around a command takes time, too: reading the arguments, and the end of the process.
    _exit(run(arguments))


def _exit(code: int) -> NoReturn:
    for descriptor, file in ((1, sys.stdout), (2, sys.stderr)):
        try:
            file.flush()
        except (OSError, ValueError):  # ValueError: a table that could not be written has closed it.
            forget_output(descriptor)  # Else Python fails to write it, too, and its exit code is 120.
    sys.exit(code)


def _open_standard_files() -> bool:
    """Put /dev/null where a standard file is closed, lest another file gets its number. False: no output."""
    output = sys.stdout is not None
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))
    return output


def _waiting(output: TextIO) -> TextIO:
    """The same output, but a write of it is whole or fails, and waits where the descriptor is non-blocking.

    With PYTHONUNBUFFERED or `python -u` Python writes to the descriptor itself. That may take a part, as on a disk that
    becomes full, and tells by a number that nobody looks at.
    """
    buffer = getattr(output, "buffer", None)
    if not isinstance(getattr(buffer, "raw", buffer), io.FileIO):
        return output  # It is no file, as in a test.
    file = WaitingFile(output.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(file),
        output.encoding,
        output.errors,
        line_buffering=output is sys.stderr or file.isatty(),
    )


def _patient(output: TextIO) -> TextIO:
    """The same output, but a write of it fails where nobody takes it; see `PatientFile`."""
    buffer = getattr(output, "buffer", None)
    if not isinstance(getattr(buffer, "raw", buffer), io.FileIO):
        return output  # It is no file, as in a test.
    # Without a buffer, lest a line that was refused comes later after all.
    return io.TextIOWrapper(
        PatientFile(output.fileno()), output.encoding, output.errors, line_buffering=True, write_through=True
    )


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code.
    """
    try:
        code = weir.main(arguments, prog_name="weir", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (Ended, click.Abort, KeyboardInterrupt) as error:
        forget_output()
        end = error if isinstance(error, Ended) else Ended()
        _complain(end.format_message())
        return end.exit_code
    except (OutputClosed, BrokenPipeError):
        forget_output()
        return OutputClosed.exit_code
    except click.ClickException as error:
        _complain(error.format_message())
        return error.exit_code
    except ScannerError as error:
        _complain(str(error))
        return 1
    except MemoryError as error:
        _complain(f"no memory is left; make room, or raise the limit (ulimit -v) {error}")
        return 1
    except UnicodeEncodeError as error:
        word = str(error.object)
        if error.reason != "surrogates not allowed":
            raise  # It is not what Python makes of an argument whose octets are no text.
        _complain(f"{word!r} is not valid text in the encoding of this terminal")
        return 1
    except OSError as error:
        if error.errno in _FULL:
            if not error.filename:
                forget_output()
            _complain(f"cannot write {error.filename or 'standard output'}: {error.strerror}")
        elif isinstance(error, FileNotFoundError) and not error.filename:  # Of os.getcwd alone.
            _complain("the current directory is gone; change to another one")
        else:
            _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return 1
    except Exception as error:
        if not any(words in str(error) for words in _NO_THREAD):
            raise
        _complain(f"{error}: raise the limit of processes (ulimit -u), or make room in memory")
        return 1


def _complain(message: str) -> None:
    with suppress(OSError):  # The exit code says it, too.
        click.echo(f"weir: {escaped(' '.join(message.split()))}", err=True)
