"""A line to a server that is long, or that breaks: made around a TCP connection, in the client's own process.

What comes from the server is read as soon as it is there, and handed on when its time has come; what goes there
leaves when its time has come. So a line delays and does not limit: any number of octets can be on their way, and no
third process takes a processor from the two that are measured. A line without delay goes through the same code.

A line of some octets is closed on both ends when so many have come down it; the next one is whole again.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Final

import trio

_READ_BYTES: Final = 256 * 1024
_SPOKEN_BYTES: Final = 16 * 1024
"""More than what opens a connection: from here on there are rows."""
_GONE: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


@dataclass(slots=True)
class Link:
    """The lines of one client to one server, one after another.

    Args:
        endpoint: HOST:PORT.
        nursery: Carries what is on its way; ends the lines when it is cancelled.
        round_trip_s: How long an octet and its answer take, added to what loopback takes.
        cut_bytes: Octets from the server after which a line breaks, on average; infinite: never. Lines differ, from
            half of it to one and a half: a cut at always the same place would tell of that place only.
        rng: Draws the lengths of the lines.
    """

    endpoint: str
    nursery: trio.Nursery
    round_trip_s: float = 0.0
    cut_bytes: float = math.inf
    rng: Random = field(default_factory=lambda: Random(5))
    cuts: int = 0
    recoveries_s: list[float] = field(default_factory=list)
    """From each break to the first rows on the line after it."""
    lost_at: float | None = None
    """When the last line broke, unless rows have come since."""

    async def dial(self) -> trio.abc.Stream:
        """Make a line.

        Raises:
            OSError: Nobody answers.
        """
        host, _, port = self.endpoint.rpartition(":")
        inner = await trio.open_tcp_stream(host, int(port))
        await trio.sleep(self.round_trip_s)  # TCP's own handshake
        line = Line(self, inner)
        self.nursery.start_soon(line.carry_down)
        self.nursery.start_soon(line.carry_up)
        return line

    def passed(self, line: Line) -> None:
        """Octets have come down a line."""
        if self.lost_at is not None and line.down_bytes >= _SPOKEN_BYTES:
            self.recoveries_s.append(trio.current_time() - self.lost_at)
            self.lost_at = None

    def broke(self) -> None:
        """A line is broken; of several breaks without a row between them the first counts."""
        if self.lost_at is None:
            self.lost_at = trio.current_time()


class Line(trio.abc.HalfCloseableStream):
    """One connection. Made by `Link.dial`."""

    def __init__(self, link: Link, inner: trio.SocketStream) -> None:
        self._link = link
        self._inner = inner
        self._one_way_s = link.round_trip_s / 2
        self._cut_bytes = link.cut_bytes * (0.5 + link.rng.random())
        self._down: deque[tuple[float, bytes | bytearray]] = deque()
        self._up: deque[tuple[float, bytes | None]] = deque()
        self._came, self._goes = trio.Event(), trio.Event()
        self._ended = self._broken = False
        self.down_bytes = 0
        """That have passed."""

    async def carry_down(self) -> None:
        """Read what comes, until there is no more."""
        try:
            while data := await self._inner.receive_some(_READ_BYTES):
                self._down.append((trio.current_time() + self._one_way_s, data))
                self._came.set()
        except _GONE:
            pass
        self._ended = True
        self._came.set()

    async def carry_up(self) -> None:
        """Send what is to go, when its time has come."""
        try:
            while True:
                while self._up:
                    due, data = self._up.popleft()
                    await trio.sleep_until(due)
                    if data is None:
                        await self._inner.send_eof()
                        return
                    await self._inner.send_all(data)
                self._goes = trio.Event()
                await self._goes.wait()
        except _GONE:
            return

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """See trio; raises BrokenResourceError when the line has broken."""
        while not self._down and not self._broken:
            if self._ended:
                self._link.broke()
                return b""
            self._came = trio.Event()
            await self._came.wait()
        self._check()
        due, data = self._down[0]
        await trio.sleep_until(due)
        self._check()
        self._down.popleft()
        if max_bytes is not None and len(data) > max_bytes:
            self._down.appendleft((due, data[max_bytes:]))
            data = data[:max_bytes]
        if self.down_bytes + len(data) > self._cut_bytes:
            self._link.cuts += 1
            await self.break_off()
        self._check()
        self.down_bytes += len(data)
        self._link.passed(self)
        return data

    async def break_off(self) -> None:
        """Lose the connection: both ends learn of it at once, and what is on its way is gone."""
        self._broken = True
        self._link.broke()
        self._came.set()
        await trio.aclose_forcefully(self._inner)

    def _check(self) -> None:
        if self._broken:
            raise trio.BrokenResourceError("the line is broken")

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """See trio; takes everything at once."""
        self._check()
        self._up.append((trio.current_time() + self._one_way_s, bytes(data)))
        self._goes.set()
        await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        """See trio."""
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        """See trio."""
        self._check()
        self._up.append((trio.current_time() + self._one_way_s, None))
        self._goes.set()
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """See trio."""
        self._ended = self._broken = True
        self._came.set()
        await self._inner.aclose()
