"""What this process has open below a directory, or on a port.

Counting all its descriptors would count those of servers too that other tests have left running in it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import psutil


def open_files(directory: Path) -> list[str]:
    """Files below a directory that this process has open, deleted ones included."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(os.readlink(descriptor))
    return [each for each in found if each.startswith(f"{directory}/")]


def open_sockets(port: int) -> int:
    """TCP sockets of this process with this port at one end."""
    sockets = psutil.Process().net_connections("tcp")
    return sum(port in (end.port for end in (each.laddr, each.raddr) if end) for each in sockets)
