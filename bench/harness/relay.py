"""One connection of this machine, passed on, and what is said on it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Final

_READ_BYTES: Final = 1 << 18


def _nobody(_octets: bytes) -> None:
    pass


@contextlib.contextmanager
def relayed(
    port: int, *, up: Callable[[bytes], None] = _nobody, down: Callable[[bytes], None] = _nobody
) -> Iterator[int]:
    """Pass the first connection that comes on to a port of the loopback interface.

    Args:
        port: The server's.
        up: Called, in a thread, with each piece of what the client says, before it is passed on.
        down: The same of what the server says.

    Yields:
        The port to connect to instead.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_serve, args=(listener, port, up, down), daemon=True).start()
        yield listener.getsockname()[1]


def _serve(
    listener: socket.socket, port: int, up: Callable[[bytes], None], down: Callable[[bytes], None]
) -> None:
    client, _ = listener.accept()
    with client, socket.create_connection(("127.0.0.1", port)) as server:
        downwards = threading.Thread(target=_pass_on, args=(server, client, down), daemon=True)
        downwards.start()
        _pass_on(client, server, up)
        downwards.join()


def _pass_on(source: socket.socket, sink: socket.socket, see: Callable[[bytes], None]) -> None:
    with contextlib.suppress(OSError):  # an end has gone; the bench has what it wanted
        while octets := source.recv(_READ_BYTES):
            see(octets)
            sink.sendall(octets)
        sink.shutdown(socket.SHUT_WR)
