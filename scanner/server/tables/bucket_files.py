"""The files of a bucket, storage's and its image's: open while they are used, opened by the first who needs them.

Invariants:

1. One opens or closes them at a time. Who waits for room for them holds no lock that others need to make it.
2. Storage and image are opened in one go: who is cancelled between them would leave the image closed.

When they are unused is the bucket's to say. This module knows no commits and no scans.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING

import trio

from scanner.errors import StoreClosed

if TYPE_CHECKING:
    from collections.abc import Callable

    from scanner.server.tables.images import BucketImage
    from scanner.storage.interface import Bucket
    from scanner.tasks import RunBlocking


class BucketFiles:
    """The files of one bucket, open to begin with.

    Args:
        storage: Whose they are.
        image: Closed and opened with it.
        run_blocking: Runs what waits for the disk.
        room: Held while they are opened: makes room for them. None: there always is.
        check_served: Raises what ended the bucket, if it is retired.
    """

    def __init__(
        self,
        storage: Bucket,
        image: BucketImage,
        run_blocking: RunBlocking,
        room: Callable[[], AbstractAsyncContextManager[None]] | None,
        check_served: Callable[[], None],
    ) -> None:
        self._storage = storage
        self._image = image
        self._run_blocking = run_blocking
        self._room = room or nullcontext
        self._check_served = check_served
        self._opening: trio.Event | None = None
        """Set when the one who opens them has ended; None: nobody does."""
        self.under_way = False
        """Whether there is room for them, and they are being opened: storage may be open, and the image not yet."""
        self._closing: trio.Event | None = None
        """Set when they are closed; None: nobody closes them."""
        self._closed = False
        """They were closed, and not opened by `open`. Who reads storage beside commits, as the upkeep of the log does,
        may have opened it again without the image, and without room."""

    @property
    def closed(self) -> bool:
        """Whether `open` has something to do."""
        return self._closed or self._storage.idle

    async def open(self) -> None:
        """Open what is closed.

        Raises:
            TooManyFiles: There is no room for them.
            ScannerError: They cannot be opened, or the bucket is retired; this says why.

        Waits:
            For room, and for storage.
        """
        while self.closed or self._closing is not None:
            if self._closing is not None:
                await self._closing.wait()
            elif self._opening is not None:
                await self._opening.wait()
            else:
                await self._open_for_all()

    async def settled(self) -> None:
        """Wait until nobody is opening them; who waits for room is not waited for."""
        while self.under_way and self._opening is not None:
            await self._opening.wait()

    async def _open_for_all(self) -> None:
        """One waits for room, so that none is left waiting for it when storage is open: above all not the commits."""
        self._opening = opened = trio.Event()
        try:
            async with self._room():
                if self.closed:
                    self.under_way = True
                    try:
                        await self._run_blocking(self._open_now)
                    except StoreClosed:
                        self._check_served()  # Where the table was dropped, that is the error.
                        raise
                    finally:
                        self.under_way = False
        finally:
            self._opening = None
            opened.set()

    def _open_now(self) -> None:
        self._storage.wake()
        self._image.open()
        self._closed = False

    async def close(self) -> None:
        """Close them. No commit runs, and nothing is read.

        Waits:
            For storage.
        """
        self._closing = closed = trio.Event()
        try:
            await self._run_blocking(self._storage.close_idle)
            # It stays open after a failed write, and only what opens it opens the image again.
            if self._storage.idle:
                self._closed = True
                self._image.close()
        finally:
            self._closing = None
            closed.set()
