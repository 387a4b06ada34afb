"""Connections of the driver and the tasks, and what they prove themselves with.

Certificates and tokens are read here, from files of the machine that runs this: an option, a plan, a partition and a
log hold their paths only.
"""

from __future__ import annotations

import functools
import random
import time
from typing import TYPE_CHECKING, Final, TypeVar

import scanner
import scanner.sync

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_source.load import Load
    from spark_source.options import SourceOptions

AWAY: Final = (scanner.ServerUnavailable, scanner.ScanIncomplete, scanner.Draining, scanner.StoreClosed)
"""What a server that is going down, or is gone, makes of a call, or a proxy in front of it, which may cut it off: it
may succeed at its successor."""
_SYSTEM_CAS: Final = "system"
_ATTEMPTS: Final = 16
_PAUSE_S_MAX: Final = 5.0
"""With `_ATTEMPTS`, half a minute on average."""
_FILE_ATTEMPTS: Final = 5
"""With files that cannot be used, which may be being replaced: 1.5 seconds on average."""

T = TypeVar("T")


def open_client(options: SourceOptions) -> scanner.sync.Client:
    """Connect to the server of a read, and prove who reads; to be used in a `with` block.

    Raises:
        ArgumentInvalid: A file cannot be used on this machine, or the token would go out in plaintext.
        ServerUnavailable: Nobody answers at the endpoint, or TLS failed.
        Unauthenticated: The server does not accept the certificate.

    Waits: For the connection.
    """
    context = None
    if options.tls_ca is not None or options.tls_cert is not None or options.tls_key is not None:
        ca = None if options.tls_ca == _SYSTEM_CAS else options.tls_ca
        context = functools.partial(scanner.tls, ca, options.tls_cert, options.tls_key)
    token = None if options.token_file is None else functools.partial(scanner.read_token, options.token_file)
    return scanner.sync.connect(options.endpoint, ssl_context=context, token=token)


def open_client_again(
    options: SourceOptions, pause: Callable[[float], None] = time.sleep
) -> scanner.sync.Client:
    """Connect as `open_client` does, and again while the server is away, for about as long as a restart takes.

    Raises:
        ArgumentInvalid: A file cannot be used on this machine after `_FILE_ATTEMPTS` attempts, or the token would go
            out in plaintext.
        ServerUnavailable: Nobody answers at the endpoint after `_ATTEMPTS` attempts.
        Unauthenticated: The server does not accept the certificate.

    Waits: For the connection, and between attempts by `pause`.
    """
    of_files = 0
    for failed in range(1, _ATTEMPTS):
        try:
            return open_client(options)
        except (scanner.ServerUnavailable, scanner.ArgumentInvalid) as error:
            of_files += isinstance(error, scanner.ArgumentInvalid)
            if of_files == _FILE_ATTEMPTS:
                raise
            _back_off(failed, pause)
    return open_client(options)


def ask_again(question: Callable[[], T]) -> T:
    """Ask over a connection that is there, and again while the server is away behind a proxy, which answers for it.

    Args:
        question: As that of `ask`.

    Raises:
        ServerUnavailable: As for the last of `_ATTEMPTS` questions; or the client has waited for the server by itself.
        ScannerError: As `question` does.

    Waits: For the answers, and between attempts.
    """
    for failed in range(1, _ATTEMPTS):
        try:
            return question()
        except scanner.ServerUnavailable as error:
            if "attempts" in error.metadata:
                raise
            _back_off(failed, time.sleep)
    return question()


def _back_off(failed: int, pause: Callable[[float], None]) -> None:
    # At random, so that the tasks of a job do not come back together.
    pause(random.uniform(0.0, min(_PAUSE_S_MAX, 0.1 * 2.0**failed)))


def patience(load: Load) -> Callable[[SourceOptions], scanner.sync.Client]:
    """How a load connects when Spark plans it: again and again, if Spark has its schema from that server."""
    return open_client if load.table_id is None else open_client_again


def ask(
    options: SourceOptions,
    question: Callable[[scanner.sync.Client], T],
    connect: Callable[[SourceOptions], scanner.sync.Client] = open_client,
) -> T:
    """Connect, and ask what may be asked twice: once more, as `open_client_again`, if the server goes away meanwhile.

    A server that is restarted takes connections until it says that it takes no more calls. Whoever asks just then has
    one that is of no use any more, and nobody but a task is begun anew by Spark.

    Args:
        options: Where.
        question: Calls that change nothing, or nothing more when they are made again.
        connect: Makes the first connection. If it is another one than `open_client`, the second question is asked by
            `ask_again`.

    Raises:
        ScannerError: As `connect` and `question` do; if both times, what the second one did. What the client has tried
            again by itself, as often as it may, is not asked a second time.

    Waits: For the connection and the answers.
    """
    with connect(options) as client:
        try:
            return question(client)
        except AWAY as failure:
            if failure.metadata.get("attempts"):
                raise  # The client has waited for its successor by itself.
    with open_client_again(options) as client:
        if connect is open_client:  # Who begins with that need not wait for a server that is not there.
            return question(client)
        return ask_again(lambda: question(client))
