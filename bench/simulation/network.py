"""A network in memory: connections between clients and one server, and what breaks them.

Everything random comes from generators that are given; time is trio's, so a virtual clock makes it all deterministic.
"""

from __future__ import annotations

import enum
import errno
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import trio

from bench.simulation.pipes import Line, Pipe, PipeEnd


class Fault(enum.Enum):
    """What can happen to a connection."""

    CLOG = "clog"
    """Nothing gets through one way for a while."""
    RESET = "reset"
    """Both ends get a TCP reset, in the middle of whatever they are at; what was under way is lost."""
    CUT = "cut"
    """Both ends see an orderly end of the stream, in the middle of whatever they are at."""
    SILENCE = "silence"
    """Nothing gets through any more, either way, and nobody is told: a dead host, until keepalive notices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultPlan:
    """A fault of a connection, decided before it is made."""

    fault: Fault
    to_client: bool = True
    """In which direction octets are counted, and which one is clogged."""
    at: int = 1
    """Octets that are delivered in that direction before it strikes, >= 1."""
    clog_s: float = 0.0


class Connection:
    """Two pipes, and what breaks them.

    Args:
        name: Who has made it, for the history.
        line: What it is made of.
        plan: The fault that it has; None: none.
        told: Called with the connection and its fault when that strikes.
    """

    def __init__(
        self, name: str, line: Line, plan: FaultPlan | None, told: Callable[[Connection, Fault], None]
    ) -> None:
        self.name = name
        self._plan = plan
        self._told = told
        self._to_server, self._to_client = Pipe(line), Pipe(line)
        self.client_end = PipeEnd(self._to_server, self._to_client)
        self.server_end = PipeEnd(self._to_client, self._to_server)
        self.struck: Fault | None = None
        """The last fault that has struck."""
        if plan is not None:
            pipe = self._to_client if plan.to_client else self._to_server
            pipe.strike_at(plan.at, self._strike)

    def _strike(self) -> None:
        assert self._plan is not None
        self.strike(self._plan.fault)

    def strike(self, fault: Fault) -> None:
        """Let a fault happen now."""
        self.struck = fault
        if fault is Fault.CLOG:
            self.clog(self._plan.clog_s if self._plan is not None else 0.0)
        else:
            for pipe in (self._to_server, self._to_client):
                {Fault.RESET: pipe.reset, Fault.CUT: pipe.cut, Fault.SILENCE: pipe.silence}[fault]()
        self._told(self, fault)

    def clog(self, seconds: float) -> None:
        """Let nothing through one way for a while."""
        (self._to_client if self._plan is None or self._plan.to_client else self._to_server).clog(seconds)

    def freeze(self, seconds: float) -> None:
        """Let nothing through either way for a while."""
        for pipe in (self._to_server, self._to_client):
            pipe.clog(seconds)

    def reset(self) -> None:
        """Break it for both ends, as the end of a process does; nobody is told."""
        for pipe in (self._to_server, self._to_client):
            pipe.reset()


class Network:
    """All connections to one address. While nobody listens there, nobody answers.

    Args:
        told: Called when a fault strikes a connection.
    """

    def __init__(self, told: Callable[[Connection, Fault], None]) -> None:
        self._told = told
        self._listener: _Listener | None = None
        self._connections: list[Connection] = []
        self._frozen_until_s: dict[str, float] = {}

    def listen(self) -> trio.abc.Listener[trio.abc.Stream]:
        """Take connections from now on, until the listener is closed."""
        self._listener = _Listener()
        return self._listener

    async def dial(self, name: str, line: Line, plan: FaultPlan | None = None) -> trio.abc.Stream:
        """Connect; a round trip, once the caller is not frozen.

        Raises:
            OSError: Nobody listens.
        """
        await trio.sleep_until(self._frozen_until_s.get(name, 0.0))
        await trio.sleep(2 * line.latency_s)
        if self._listener is None or self._listener.closed:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "connection refused")
        connection = Connection(name, line, plan, self._told)
        self._connections.append(connection)
        self._listener.add(connection.server_end)
        return connection.client_end

    def swizzle(self, rng: random.Random, clog_s_max: float) -> None:
        """Clog all connections, to be unclogged one after another in a random order."""
        for connection in self._connections:
            connection.clog(rng.uniform(0, clog_s_max))

    def reset_all(self) -> None:
        """Break every connection, as the end of the server's process does."""
        for connection in self._connections:
            connection.reset()
        self._connections.clear()

    def reset_of(self, name: str) -> None:
        """Break every connection of somebody, as the end of its process does."""
        for connection in self._connections:
            if connection.name == name:
                connection.reset()

    def freeze(self, name: str, seconds: float) -> None:
        """Let nothing of somebody through for a while: its connections stand still, and it makes no new one."""
        self._frozen_until_s[name] = trio.current_time() + seconds
        for connection in self._connections:
            if connection.name == name:
                connection.freeze(seconds)


class _Listener(trio.abc.Listener[trio.abc.Stream]):
    def __init__(self) -> None:
        self._waiting: deque[trio.abc.Stream] = deque()
        self._changed = trio.Event()
        self.closed = False

    def add(self, stream: trio.abc.Stream) -> None:
        self._waiting.append(stream)
        self._changed.set()

    async def accept(self) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        while not self._waiting:
            if self.closed:
                raise trio.ClosedResourceError("the listener was closed")
            self._changed = trio.Event()
            await self._changed.wait()
        return self._waiting.popleft()

    async def aclose(self) -> None:
        self.closed = True
        self._changed.set()
        for stream in self._waiting:  # nobody will ever take them
            await trio.aclose_forcefully(stream)
        self._waiting.clear()
        await trio.lowlevel.checkpoint()
