"""A port of the loopback interface for a process that has to be told which, or that comes back under the same."""

from __future__ import annotations

import random
import socket
from pathlib import Path
from typing import Final

_GIVEN_AWAY: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_ALL: Final = range(10_000, 65_536)
_GIVEN_AWAY_ELSEWHERE: Final = "32768 60999"
"""Where the kernel does not say."""


def free_port() -> int:
    """A port that nobody has, of those that the kernel gives to nobody by itself, where it leaves any.

    Between this and the moment at which it is listened on, any other may be given to a connection or to a listener of
    another process.

    Raises:
        OSError: All of them are taken.
    """
    said = _GIVEN_AWAY.read_text() if _GIVEN_AWAY.exists() else _GIVEN_AWAY_ELSEWHERE
    first, last = map(int, said.split())
    ports = [port for port in _ALL if not first <= port <= last] or _ALL
    for port in random.SystemRandom().sample(ports, len(ports)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("every port is taken")
