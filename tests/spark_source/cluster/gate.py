"""A TCP path to a server that lets a number of connections get stuck in the middle, until it is opened.

What passes is what was sent, in order. A stuck connection holds what the server has sent since; so a test knows that a
task is in the middle of its read, and decides what happens meanwhile.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Final

READ_BYTES: Final = 1 << 16


class Gate:
    """Made by `open_gate`.

    Args:
        target: Host and port of the server.
        stuck_max: Connections that get stuck.
        stuck_after: Octets from the server after which one does, if it may.
        upward: Count octets to the server instead, and hold those.
        stuck_when: Asked when there are so many; without a yes none gets stuck.
    """

    def __init__(
        self,
        target: tuple[str, int],
        stuck_max: int,
        stuck_after: int,
        *,
        upward: bool = False,
        stuck_when: Callable[[], bool] = lambda: True,
    ) -> None:
        self._target = target
        self._upward = upward
        self._stuck_when = stuck_when
        self._stuck_max = stuck_max
        self._stuck_after = stuck_after
        self._stuck = 0
        self._open = False
        self._changed = threading.Condition()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        """HOST:PORT to connect to."""

    @property
    def stuck(self) -> int:
        """Connections that have got stuck so far."""
        with self._changed:
            return self._stuck

    def wait_stuck(self) -> None:
        """Wait until as many connections are stuck as may be."""
        with self._changed:
            self._changed.wait_for(lambda: self._stuck == self._stuck_max)

    def open(self) -> None:
        """Let everything pass from now on."""
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def serve(self) -> None:
        """Forward connections until `close`."""
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._forward_both, args=(near,), daemon=True).start()

    def close(self) -> None:
        """Let go of everything."""
        self.open()
        _close(self._listener)
        with self._changed:
            sockets = list(self._sockets)
        for each in sockets:
            _close(each)

    def _forward_both(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(self._target)
        except OSError:  # Nobody listens there for the moment.
            _close(near)
            return
        with self._changed:
            self._sockets += (near, far)
        upward = threading.Thread(target=self._forward, args=(near, far, self._upward), daemon=True)
        upward.start()
        self._forward(far, near, not self._upward)
        upward.join()

    def _forward(self, source: socket.socket, sink: socket.socket, may_get_stuck: bool) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(READ_BYTES):
                passed += len(data)
                if may_get_stuck and passed > self._stuck_after and self._stuck_when():
                    may_get_stuck = False
                    self._get_stuck()
                sink.sendall(data)
        # One direction is over: so is the connection.
        for each in (source, sink):
            _close(each)

    def _get_stuck(self) -> None:
        with self._changed:
            if self._open or self._stuck == self._stuck_max:
                return
            self._stuck += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._open)


def _close(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()


@contextlib.contextmanager
def open_gate(
    endpoint: str,
    *,
    stuck_max: int,
    stuck_after: int,
    upward: bool = False,
    stuck_when: Callable[[], bool] = lambda: True,
) -> Iterator[Gate]:
    """A gate for the length of a block.

    Args:
        endpoint: HOST:PORT of the server.
        stuck_max: Connections that get stuck.
        stuck_after: Octets from the server after which one does, if it may.
        upward: Count octets to the server instead, and hold those.
        stuck_when: Asked when there are so many; without a yes none gets stuck.
    """
    host, _, port = endpoint.rpartition(":")
    gate = Gate((host, int(port)), stuck_max, stuck_after, upward=upward, stuck_when=stuck_when)
    threading.Thread(target=gate.serve, daemon=True).start()
    try:
        yield gate
    finally:
        gate.close()
