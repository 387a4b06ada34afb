"""Whether a server is there behind what answers PINGs: a proxy lives on, and takes calls, when its server is gone.

PINGs, SETTINGS and windows are of one hop, a call is of both its ends. So a server that says nothing on a call is asked
by another one, of `grpc.health.v1`, which proxies pass on. It answers that at once, however long the first call takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import TypeAlias

import trio

from transport.client import Client
from transport.errors import TransportError
from transport.fairness import ROUNDS_TO_READ, give_rounds
from transport.health import check_health

Movements: TypeAlias = Mapping[int, tuple[int, int]]
"""By the number of each call that runs, the octets that have come, and those that wait to go out."""


async def watch_server(client: Client, connect: Callable[[], AbstractAsyncContextManager[Client]]) -> None:
    """Give a connection up when the server behind it is gone, and return then.

    Once nothing of a call has come or gone for half of `answer_timeout_s`, the server is asked whether it is there. It
    is gone if it has not answered, and nothing of any call has moved, for the other half.

    Args:
        client: Whose connection it is.
        connect: Makes another one, to ask by if this one takes no more calls.

    Cancellation:
        Ends the watch.
    """
    timeout_s = client.config.answer_timeout_s
    while timeout_s:
        before = client.movements()
        await trio.sleep(timeout_s / 2)
        now = client.movements()
        stuck = any(now.get(call) == moved for call, moved in before.items())
        if stuck and not await _is_there(client, connect, timeout_s / 2):
            client.give_up(
                f"something answers at {client.peer}, and the server behind it is gone: it has said nothing for"
                f" {timeout_s:g} s, not even whether it is there; see that it runs"
            )
            return
    await trio.sleep_forever()


async def _is_there(
    client: Client, connect: Callable[[], AbstractAsyncContextManager[Client]], patience_s: float
) -> bool:
    if client.openable:
        return await server_answers(client, patience_s)
    try:
        async with connect() as other:
            return await server_answers(other, patience_s, beside=client)
    except TransportError:
        return True  # There is nobody to ask, as behind a server that drains.


async def server_answers(client: Client, patience_s: float, *, beside: Client | None = None) -> bool:
    """Ask a server whether it is there.

    Args:
        client: Takes a call now.
        patience_s: Seconds for which nothing has to move until it counts as gone.
        beside: The connection whose calls are looked at; None: this one.

    Returns:
        Whether anything was answered, be it an error.

    Cancellation:
        The call is reset.
    """
    watched, answered = beside or client, False

    async def ask() -> None:
        nonlocal answered
        with suppress(TransportError):
            await check_health(client)
        answered = True
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        moves = True
        while moves:
            before, acknowledged = watched.movements(), watched.acknowledged()
            await trio.sleep(patience_s)
            await give_rounds(ROUNDS_TO_READ)
            now = watched.movements()
            moves = any(now.get(call, moved) != moved for call, moved in before.items())
            # The question may stand behind much that was written before it.
            moves |= watched.acknowledged().goes_on(acknowledged)
        nursery.cancel_scope.cancel()
    return answered
