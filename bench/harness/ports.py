"""A port of the loopback interface for a process that has to be told which, or that comes back under the same."""

from __future__ import annotations

import random
import socket
from pathlib import Path
from typing import Final

_GIVEN_AWAY: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST: Final = 10_000
_GIVEN_AWAY_FROM: Final = 32_768
"""Where the kernel does not say."""


def free_port() -> int:
    """A port that nobody has, of those that the kernel gives to nobody by itself.

    Between this and the moment at which it is listened on, any other may be given to a connection or to a listener of
    another process.

    Raises:
        OSError: All of them are taken.
    """
    end = int(_GIVEN_AWAY.read_text().split()[0]) if _GIVEN_AWAY.exists() else _GIVEN_AWAY_FROM
    for port in random.SystemRandom().sample(range(_LOWEST, max(end, _LOWEST + 1)), max(end - _LOWEST, 1)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("every port is taken")
