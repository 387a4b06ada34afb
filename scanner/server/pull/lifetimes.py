"""The time to live of what is kept for pull scans: when it is looked at, and the calls whose answers were lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import trio

if TYPE_CHECKING:
    from scanner.server.pull.kept import Kept, KeptRegistry
    from scanner.server.tables.open_scan import OpenScan

KeptScanT = TypeVar("KeptScanT", bound="Kept[Any, OpenScan[Any]]")


async def sweep_forever(registry: KeptRegistry[Any, Any], interval_s: float) -> NoReturn:
    """Remove what has expired, every interval.

    Args:
        registry: To be swept.
        interval_s: Seconds, above 0.

    Cancellation:
        No effect; this is how it ends.
    """
    while True:
        await trio.sleep(interval_s)
        registry.sweep(trio.current_time())


def give_up_lost(
    registry: KeptRegistry[Any, KeptScanT],
    connection_id: int,
    stream_id: int | None,
    grace_s: float,
) -> None:
    """Give up what a call has opened whose answer may be lost, unless its client has continued or confirmed it.

    Args:
        registry: That keeps it.
        connection_id: Of the call.
        stream_id: Of the call; None: every call of the connection.
        grace_s: How long it is kept still: the client may have the page, and come back over another connection.
    """
    now = trio.current_time()
    for kept in registry.all():
        holder = kept.resource.holder
        if holder is not None and holder.is_call(connection_id, stream_id):
            registry.give_up(kept, now, grace_s)
