"""Pages of the pull models: a bounded piece of a scan, made in bounded steps and ready to be sent.

Invariants:

1. A page has at least one row if one is found in its time, and at most the bytes that were asked for, or than
   the server allows, except that a single row may be larger.
2. Its time is bounded, so that a filter that drops everything does not outlast the patience of clients and proxies.
   A page that takes all of it may have no rows and still not be the last; but it moves the scan's position, so a
   scan that begins anew with every page comes to its end.
3. The last page, and no other, tells rows and digest of the whole scan.

This module knows no registry of what is kept between pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from scanner.server.fairness import page_step_bytes, pass_turn
from scanner.wire.batches import PageFieldsT, Parts, encode_page, encode_rows
from transport import StreamReset, TransportError

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

    from scanner.server.config import ScannerConfig
    from scanner.server.tables.open_scan import OpenScan
    from scanner.sources.kv import KvSource
    from transport import ServerStream

_ROWS_ANY: Final = 2**31 - 1
"""Rows of a page are bounded by its bytes alone."""


@dataclass(frozen=True, slots=True)
class Page:
    """A response, ready to be sent, and sent again."""

    parts: Parts
    last: bool
    """It completes the scan."""


class PageMaker:
    """Makes the pages of one server.

    Args:
        config: Bounds of size and time.
    """

    def __init__(self, config: ScannerConfig) -> None:
        self._config = config

    async def make(
        self, scan: OpenScan[KvSource], fields: PageFieldsT, size_bytes: int, *, keeps_rest: bool
    ) -> Buffer | None:
        """Read until the page is full, the scan is at its end, or the time for one page is over.

        Args:
            scan: Its next rows become the page.
            fields: Of the response; gets all that the rows decide.
            size_bytes: Arrow bytes asked for, above 0; clamped.
            keeps_rest: The next page is made of the same scan, so what is decoded beyond this one is not lost.

        Returns:
            The payload, for `sealed`; None if the page has no rows.

        Raises:
            ScannerError: The scan failed, or its bucket ended it.

        Waits:
            Lets other tasks run between two steps.

        Cancellation:
            What was read stays with the source, for the next attempt.
        """
        size_bytes = min(size_bytes, self._config.session_page_bytes_max)
        await self._fill(scan, size_bytes, keeps_rest=keeps_rest)
        source = scan.source
        fields.row_ordinal = source.rows
        batch = source.take(size_bytes, _ROWS_ANY)
        fields.has_more_results = source.end is None
        if not fields.has_more_results:
            fields.rows = source.rows
            fields.digest = source.digest
            fields.stored_bytes = source.stored_bytes
        if batch is None:
            return None
        encoded = batch.encoded or encode_rows(batch.rows)
        fields.row_count = batch.rows.num_rows
        fields.crc32c = encoded.crc32c
        payload: Buffer = encoded.payload
        return payload

    async def _fill(self, scan: OpenScan[KvSource], size_bytes: int, *, keeps_rest: bool) -> None:
        await scan.unpark()
        deadline = trio.current_time() + self._config.session_page_time_max_s
        begun_at = scan.source.position.last_key
        while (source := scan.source).wants_step and source.pending_bytes < size_bytes:
            if trio.current_time() >= deadline and (
                source.pending_bytes or source.position.last_key != begun_at
            ):
                return
            if keeps_rest:
                source.step()
            else:
                source.step(page_step_bytes(size_bytes, source.pending_bytes))
            await pass_turn()
            await scan.fetch()
            if scan.ended_by is not None:
                raise scan.ended_by
            # Storage was opened anew: what was read for this page is read again.
            await scan.unpark()


def sealed(fields: PageFieldsT, payload: Buffer | None) -> Page:
    """The page of complete fields and their payload."""
    last = not fields.has_more_results
    if payload is None:
        return Page((fields.SerializeToString(),), last)
    return Page(encode_page(fields, payload), last)


async def send_confirmed(
    stream: ServerStream, page: Page, give_up: Callable[[float], None], grace_s: float
) -> bool:
    """Send the first page of a scan that is kept for the next, and see it arrive where the client lets us.

    A client that half-closes only once it has the page need not fear that the page is lost: until then the end of its
    stream or connection gives up what is kept.

    Args:
        stream: Of the call.
        page: The first.
        give_up: Called if the page may not have arrived, with the seconds for which the client may still continue it.
        grace_s: These seconds where the connection was lost: the client may have the page, and come back. A client that
            reset its stream does not.

    Returns:
        Whether the page has arrived. False if the client half-closed before it could: then it is unknown.

    Raises:
        TransportError: The stream or the connection is gone.

    Waits:
        For the stream to take the page, and for the client to half-close.
    """
    try:
        holds_open = _holds_open(stream)
        await stream.send(*page.parts)
        await stream.receive()
        return holds_open
    except BaseException:
        give_up(grace_s if _lost(stream) else 0.0)
        raise


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
