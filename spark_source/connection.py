"""Connections of the driver and the tasks, and what they prove themselves with.

Certificates and tokens are read here, from files of the machine that runs this: an option, a plan, a partition and a
log hold their paths only.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final

import scanner
import scanner.sync

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_source.options import SourceOptions

_SYSTEM_CAS: Final = "system"
_ATTEMPTS: Final = 16
_PAUSE_S_MAX: Final = 5.0
"""With `_ATTEMPTS`, half a minute on average."""


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
        context = scanner.tls(ca, options.tls_cert, options.tls_key)
    token = None if options.token_file is None else scanner.read_token(options.token_file)
    return scanner.sync.connect(options.endpoint, ssl_context=context, token=token)


def open_client_again(
    options: SourceOptions, pause: Callable[[float], None] = time.sleep
) -> scanner.sync.Client:
    """Connect as `open_client` does, and again while the server is away, for about as long as a restart takes.

    Raises:
        ArgumentInvalid: A file cannot be used on this machine, or the token would go out in plaintext.
        ServerUnavailable: Nobody answers at the endpoint after `_ATTEMPTS` attempts.
        Unauthenticated: The server does not accept the certificate.

    Waits: For the connection, and between attempts by `pause`.
    """
    for failed in range(1, _ATTEMPTS):
        try:
            return open_client(options)
        except scanner.ServerUnavailable:
            # At random, so that the tasks of a job do not come back together.
            pause(random.uniform(0.0, min(_PAUSE_S_MAX, 0.1 * 2.0**failed)))
    return open_client(options)
