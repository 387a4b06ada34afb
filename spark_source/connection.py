"""Connections of the driver and the tasks, and what they prove themselves with.

Certificates and tokens are read here, from files of the machine that runs this: an option, a plan, a partition and a
log hold their paths only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import scanner
import scanner.sync

if TYPE_CHECKING:
    from spark_source.options import SourceOptions

_SYSTEM_CAS: Final = "system"


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
