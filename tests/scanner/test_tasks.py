"""Nurseries around a block of a user."""

from __future__ import annotations

import pytest
import trio

import transport
from scanner.tasks import bare
from transport import Client, Server


@pytest.mark.parametrize("kind", [KeyError, KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("cancelled", [False, True], ids=["", "cancelled"])
async def test_an_error_of_the_block_leaves_it_as_it_is(
    kind: type[BaseException], *, cancelled: bool
) -> None:
    """Also if all is cancelled meanwhile, as by a time limit around it: else nobody would learn of it."""
    with pytest.raises(kind), trio.CancelScope() as scope:
        async with bare(trio.open_nursery()) as nursery:
            nursery.start_soon(trio.sleep_forever)
            (scope if cancelled else nursery.cancel_scope).cancel()
            raise kind


@pytest.mark.socket
async def test_so_it_does_the_transports_own() -> None:
    """Which know no tables, and no `bare`."""
    seen: list[Server | Client] = []
    for blocks in (1, 2):
        with pytest.raises(KeyboardInterrupt), trio.CancelScope() as scope:
            async with transport.serve({}) as server:
                seen.append(server)
                if blocks == 2:
                    async with transport.connect("127.0.0.1", server.port) as client:
                        seen.append(client)
                        scope.cancel()
                        raise KeyboardInterrupt
                scope.cancel()
                raise KeyboardInterrupt
    assert len(seen) == 3
