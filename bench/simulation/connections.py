"""How actors get to the server: connections with lines and faults of their own, made again when they are lost."""

from __future__ import annotations

import functools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import trio

import scanner
from bench.simulation.storage import REFUSED
from bench.simulation.workload import RETRIES

if TYPE_CHECKING:
    from bench.simulation.network import Network
    from bench.simulation.workload import Workload

AGAIN_S_MAX = 0.5
ReplyT = TypeVar("ReplyT")


class Connections:
    """The way of one actor to the server.

    Args:
        who: For the history.
        workload: What its connections are made of.
        network: Where they are made.
        rng: Of this actor.
    """

    def __init__(self, who: str, workload: Workload, network: Network, rng: random.Random) -> None:
        self._who = who
        self._workload = workload
        self._network = network
        self._rng = rng

    async def dial(self) -> trio.abc.Stream:
        """Make a connection.

        Raises:
            OSError: Nobody answers.
        """
        return await self._network.dial(
            self._who, self._workload.line(self._rng), self._workload.fault(self._rng)
        )

    async def freeze(self, seconds: float) -> None:
        """Stand still, as a stopped process does: nothing gets through to it, nor from it."""
        self._network.freeze(self._who, seconds)
        await trio.sleep(seconds)

    def die(self) -> None:
        """Break all connections, as the end of a process does."""
        self._network.reset_of(self._who)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[scanner.Client]:
        """The product's client, for a block. Its first connection, which it tries once, is tried again."""
        connect = functools.partial(
            scanner.connect,
            "simulated:1",
            config=self._workload.transport_config,
            dial=self.dial,
            retries=RETRIES,
            rng=self._rng,
        )
        async with AsyncExitStack() as stack:
            yield await self.again(lambda: stack.enter_async_context(connect()))

    async def again(self, call: Callable[[], Awaitable[ReplyT]]) -> ReplyT:
        """Make a call; one that is cut fails, or that the disk refuses, and may be made again."""
        while True:
            try:
                return await call()
            except scanner.ScannerError as error:
                if not error.retriable and REFUSED not in error.message:
                    raise
                await trio.sleep(self._rng.uniform(0, AGAIN_S_MAX))
