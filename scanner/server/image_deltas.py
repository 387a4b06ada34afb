"""Reads what was changed since images soon after the commit, so that scans need not read it before their first row.

Only for images that scans have read lately, and as long as changes are so few that a scan would still read the image.
The changelog is read in a thread. Taking over what was read takes the event loop half a millisecond at a time, and all
together a share of one core, so no commit and no scan waits for it. A scan that is opened before reads what is missing
by itself.

This module knows no wire.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Final

import trio

from scanner.errors import ScannerError, StoreClosed, TableNotFound
from scanner.server.failures import Failures
from scanner.server.scan.image_costs import changed_image_is_quicker
from scanner.storage.images.format import ImageDamaged

if TYPE_CHECKING:
    from scanner.server.config import ScannerConfig
    from scanner.server.tables.bucket import ServedBucket
    from scanner.server.tables.catalog import Catalog
    from scanner.sources.image_delta import ImageDelta
    from scanner.storage.images.reader import Image
    from scanner.tasks import RunBlocking

IN_USE_S: Final = 600.0
"""So long an image counts as in use that a scan has read, or that was made."""
_ADD_CHANGES: Final = 256
_logger = logging.getLogger(__name__)


class DeltaKeeper:
    """Extends the deltas of one server's images.

    Args:
        catalog: Whose buckets have them.
        config: Bounds of their memory, and of the time that this takes.
        run_blocking: Runs what blocks on the disk.
    """

    def __init__(self, catalog: Catalog, config: ScannerConfig, run_blocking: RunBlocking) -> None:
        self._catalog = catalog
        self._config = config
        self._run_blocking = run_blocking
        self._failures = Failures(_logger)

    async def extend_all(self) -> None:
        """Extend the delta of each image that is in use to the end of the changelog. A failure is logged.

        Waits:
            For commits that run, and for the disk.

        Cancellation:
            What was read is kept as far as it was taken over.
        """
        for name, index, bucket in list(self._catalog.open_buckets()):
            unused_s = trio.current_time() - bucket.image.use.used_at
            if bucket.image.current is None or not bucket.is_open or unused_s > IN_USE_S:
                continue
            changes = f"what was changed since the image of {name}[{index}]"
            try:
                await self._extend(bucket)
            except (StoreClosed, TableNotFound):
                continue  # It was dropped meanwhile.
            except ScannerError as error:
                self._failures.add(f"{changes} cannot be read", error)
            else:
                self._failures.clear(f"{changes} cannot be read", f"{changes} can be read again")

    async def _extend(self, bucket: ServedBucket) -> None:
        async with bucket.between_commits(upkeep=True):
            storage, opening = bucket.storage, bucket.storage_openings
            log_end = storage.log_end
            image = bucket.image.as_of(storage.lineage, log_end)
            if image is None or image.header.log_offset == log_end:
                return
            bytes_max = self._config.image_delta_bytes_max
            delta = bucket.image.delta_of(image, storage, opening, bytes_max)
        delta.count_blocks(image.block_of)
        try:
            while delta.end < log_end and _is_useful(image, delta, log_end):
                begun_at = trio.current_time()
                block = await self._run_blocking(functools.partial(delta.read, log_end))
                while delta.end < block.end:
                    if bucket.image.delta is not delta or bucket.storage_openings != opening:
                        return
                    delta.add(block, _ADD_CHANGES)
                    await trio.lowlevel.checkpoint()
                # The rest of the time is for others.
                spent_s = trio.current_time() - begun_at
                await trio.sleep(spent_s * (1 / self._config.image_core_share - 1))
        except ImageDamaged as error:
            if bucket.image.current is image:
                bucket.image.drop(str(error))


def _is_useful(image: Image, delta: ImageDelta, log_end: int) -> bool:
    """Whether a scan would read the image with all changes laid over it."""
    return changed_image_is_quicker(
        image.rows,
        len(image),
        changes=log_end - image.header.log_offset,
        unread=0,
        touched=delta.blocks_touched(log_end),
    )
