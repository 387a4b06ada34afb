"""TCP paths to a server that treat a connection badly, each in a way that its user has chosen.

Octets are forwarded in both directions and never changed: what arrives is what was sent, up to where it ends. A path
says whether its fault has struck, so that whoever sees an error knows whether it had a reason.
"""

from __future__ import annotations

import enum
import random
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import trio

READ_BYTES = 64 * 1024
DELAY_S_MAX = 0.02
CLOG_CHANCE = 0.02
CLOG_S_MAX = 2.0
_GONE = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class Fault(enum.Enum):
    """How a connection is treated."""

    NONE = "none"
    DELAY = "delay"
    """Each read waits a little, in both directions."""
    CLOG = "clog"
    """Now and then nothing gets through for up to two seconds."""
    RESET = "reset"
    """Both ends get a TCP reset, in the middle of whatever they are at."""
    CUT = "cut"
    """Both ends see an orderly end of the stream, in the middle of whatever they are at."""
    SILENCE = "silence"
    """From some moment on nothing gets through any more, and the server is not told: a dead host."""


BREAKING = frozenset({Fault.RESET, Fault.CUT, Fault.SILENCE})
"""Faults that a call does not survive once they have struck."""


class FaultyPath:
    """A port whose connections are forwarded, and all treated in one way. Made by `FaultProxy.open_path`.

    Args:
        proxy: Keeps what outlives the path.
        fault: How connections are treated.
        break_after: Octets of a connection, both directions together, until a breaking fault strikes.
    """

    def __init__(self, proxy: FaultProxy, fault: Fault, break_after: int) -> None:
        self._proxy = proxy
        self._break_after = break_after
        self.fault = fault
        self.endpoint = ""
        """HOST:PORT to connect to."""
        self.struck = False
        """Whether the fault has broken a connection."""

    async def forward_both(self, near: trio.SocketStream) -> None:
        """Forward one connection until it ends, or the fault strikes."""
        async with near:
            try:
                far = await trio.open_tcp_stream(*self._proxy.target)
            except OSError:  # The server is away: so is the path, for this connection.
                return
            connection = _Connection(self.fault, self._break_after, self._proxy.rng)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(connection.forward, near, far, nursery.cancel_scope)
                    nursery.start_soon(connection.forward, far, near, nursery.cancel_scope)
            finally:
                if connection.struck:
                    self.struck = True
                    self._proxy.struck[self.fault] += 1
                if connection.struck and self.fault is Fault.RESET:
                    _reset_on_close(near)
                    _reset_on_close(far)
                if connection.struck and self.fault is Fault.SILENCE:
                    self._proxy.bury(far)
                else:
                    await trio.aclose_forcefully(far)


class _Connection:
    """One connection, and how far it is from its fault."""

    def __init__(self, fault: Fault, break_after: int, rng: random.Random) -> None:
        self._fault = fault
        self._left = break_after
        self._rng = rng
        self.struck = False

    async def forward(
        self, source: trio.SocketStream, sink: trio.SocketStream, scope: trio.CancelScope
    ) -> None:
        """Forward one direction; the end of both is the end of `scope`."""
        try:
            while data := await source.receive_some(READ_BYTES):
                await self._be_mean(len(data))
                if self.struck:
                    scope.cancel()
                    return
                await sink.send_all(data)
            await sink.send_eof()
        except _GONE:
            scope.cancel()

    async def _be_mean(self, size: int) -> None:
        rng = self._rng
        self._left -= size
        if self._fault is Fault.DELAY:
            await trio.sleep(rng.uniform(0, DELAY_S_MAX))
        elif self._fault is Fault.CLOG and rng.random() < CLOG_CHANCE:
            await trio.sleep(rng.uniform(0, CLOG_S_MAX))
        elif self._fault in BREAKING and self._left < 0:
            self.struck = True


class FaultProxy:
    """Paths to one server. Made by `open_fault_proxy`.

    Args:
        target: Host and port to forward to.
        rng: Decides everything that is left to chance.
        nursery: Runs the forwarding.
    """

    def __init__(self, target: tuple[str, int], rng: random.Random, nursery: trio.Nursery) -> None:
        self.target = target
        self.rng = rng
        self.struck: Counter[Fault] = Counter()
        """Connections broken so far."""
        self._nursery = nursery

    @asynccontextmanager
    async def open_path(self, fault: Fault, break_after: int) -> AsyncIterator[FaultyPath]:
        """A path for the length of a block; leaving it closes its port and its connections.

        Args:
            fault: How connections are treated.
            break_after: Octets of a connection until a breaking fault strikes.
        """
        path = FaultyPath(self, fault, break_after)
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        path.endpoint = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, path.forward_both, listeners)
            try:
                yield path
            finally:
                nursery.cancel_scope.cancel()

    def bury(self, far: trio.SocketStream) -> None:
        """Keep a connection open, without an answer to anything, until the server gives it up."""
        self._nursery.start_soon(_ignore, far)


async def _ignore(stream: trio.SocketStream) -> None:
    async with stream:
        with suppress(*_GONE):
            while await stream.receive_some(READ_BYTES):
                pass


def _reset_on_close(stream: trio.SocketStream) -> None:
    with suppress(*_GONE):
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@asynccontextmanager
async def open_fault_proxy(target: str, rng: random.Random) -> AsyncIterator[FaultProxy]:
    """Run a proxy for a block; leaving it closes every connection.

    Args:
        target: HOST:PORT to forward to.
        rng: Decides everything that is left to chance.
    """
    host, _, port = target.rpartition(":")
    async with trio.open_nursery() as nursery:
        yield FaultProxy((host, int(port)), rng, nursery)
        nursery.cancel_scope.cancel()
