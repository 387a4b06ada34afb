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
from scanner.wire.arrow_ipc import encode_rows
from scanner.wire.batches import PageFieldsT, Parts, encode_page

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from scanner.server.config import ScannerConfig
    from scanner.server.tables.open_scan import OpenScan
    from scanner.sources.kv import KvSource

_ROWS_ANY: Final = 2**31 - 1
"""Rows of a page are bounded by its bytes alone."""


@dataclass(frozen=True, slots=True)
class Page:
    """A response, ready to be sent, and sent again."""

    parts: Parts
    last: bool
    """It completes the scan."""


async def make_page(
    config: ScannerConfig, scan: OpenScan[KvSource], fields: PageFieldsT, size_bytes: int, *, keeps_rest: bool
) -> Buffer | None:
    """Read until the page is full, the scan is at its end, or the time for one page is over.

    Args:
        config: Bounds of size and time.
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
    size_bytes = min(size_bytes, config.session_page_bytes_max)
    await _fill(scan, size_bytes, config.session_page_time_max_s, keeps_rest=keeps_rest)
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


async def _fill(scan: OpenScan[KvSource], size_bytes: int, time_max_s: float, *, keeps_rest: bool) -> None:
    await scan.unpark()
    deadline = trio.current_time() + time_max_s
    begun_at = scan.source.position.last_key
    while (source := scan.source).wants_step and source.pending_bytes < size_bytes:
        if trio.current_time() >= deadline and (source.pending_bytes or source.position.last_key != begun_at):
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
