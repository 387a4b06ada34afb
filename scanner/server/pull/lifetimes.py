"""The time to live of what is kept for pull scans: when it is looked at, and the calls whose answers were lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import trio

from transport import StreamReset, TransportError

if TYPE_CHECKING:
    from scanner.server.pull.kept import Kept, KeptRegistry
    from scanner.server.pull.pages import Page
    from scanner.server.tables.open_scan import OpenScan
    from transport import ServerStream

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


async def send_first(
    stream: ServerStream,
    page: Page,
    registry: KeptRegistry[Any, KeptScanT],
    kept: KeptScanT | None,
    grace_s: float,
) -> None:
    """Send the first page of a scan, and see it arrive where the client lets us.

    A client that half-closes only once it has the page need not fear that the page is lost: until then the end of its
    stream or connection gives up what is kept. If it half-closes before, nobody knows whether the page has arrived.

    Args:
        stream: Of the call.
        page: The first.
        registry: Of what is kept.
        kept: For the next page; None: this one is the last.
        grace_s: Seconds for which the client may still go on where the connection was lost: it may have the page, and
            come back. A client that reset its stream does not.

    Raises:
        TransportError: The stream or the connection is gone.

    Waits:
        For the stream to take the page, and for the client to half-close.
    """
    try:
        holds_open = _holds_open(stream)
        await stream.send(*page.parts)
        await stream.receive()
    except BaseException:
        if kept is not None:
            registry.give_up(kept, trio.current_time(), grace_s if _lost(stream) else 0.0)
        raise
    if holds_open and kept is not None:
        registry.confirm(kept)


def _holds_open(stream: ServerStream) -> bool:
    """Whether the client has not half-closed."""
    try:
        return stream.receive_nowait() is not None
    except trio.WouldBlock:
        return True


def _lost(stream: ServerStream) -> bool:
    """Whether a call that was cut off was so by anything but its client's will."""
    try:
        stream.receive_nowait()
    except StreamReset as reset:
        return not reset.by_peer
    except TransportError:
        return True
    except trio.WouldBlock:
        return False
    return False
