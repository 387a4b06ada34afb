"""The image of a bucket, as far as it has one: opened, replaced, and removed as soon as it cannot be used any more.

Nothing is stored in an image alone, so removing it is always right. It belongs to a bucket if it says so itself: by
table id, bucket and history. One that does not is removed, and so is one that is damaged. One that the system cannot
open now, for lack of descriptors, say, stays for later.

Invariants:

1. Only the file that was found wrong is removed: never one that got its name meanwhile.
2. At most one file is open for new scans. `open` may run in several threads at once, all else runs in one.

This module knows no wire and no tasks.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from scanner.server.tables.image_use import ImageUse
from scanner.sources.image_delta import ImageDelta
from scanner.storage.images.format import ImageDamaged
from scanner.storage.images.reader import Image, file_id_of
from scanner.storage.splits import Piece

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from scanner.storage.images.format import FileId
    from scanner.storage.interface import Bucket
    from scanner.storage.lineage import Lineage

_UNCHANGED_PER_CHANGE: Final = 8
"""Rows of an image for each change since, as long as splits are made by its blocks."""

_logger = logging.getLogger(__name__)


class BucketImage:
    """Where the image of one bucket is, and the image.

    Args:
        path: Of its file; None: this bucket has none, ever.
        table_id: Whose it has to be.
        bucket: Its index.
        schema: The table's columns now; the image has these, or the first of them.
    """

    def __init__(
        self, path: Path | None = None, table_id: int = 0, bucket: int = 0, schema: pa.Schema | None = None
    ) -> None:
        self.path = path
        self.naming = threading.Lock()
        """Held for a moment by whoever changes which file has the name, or is open."""
        self._of = (table_id, bucket)
        self._schema = schema
        self.current: Image | None = None
        """Open; None: there is none."""
        self.delta: ImageDelta | None = None
        """What was changed since, as far as a scan has asked for it."""
        self._delta_opening = 0
        self.use = ImageUse()
        """What scans have asked of it."""

    @property
    def memory_bytes(self) -> int:
        """What it and its delta take while no scan reads it, about."""
        if self.current is None:
            return 0
        return self.current.memory_bytes + (0 if self.delta is None else self.delta.memory_bytes)

    def open(self) -> None:
        """Open the image, if there is one that can be used and is not open. Blocks on the disk, in any thread."""
        if self.path is None or self.current is not None:
            return
        try:
            image = Image(self.path)
        except FileNotFoundError:
            return
        except OSError as error:
            _logger.warning("the image %s cannot be opened: %s; scans read the row store", self.path, error)
            return
        except ImageDamaged as error:
            self._remove(str(error), error.file_id)
            return
        header = image.header
        if (header.table_id, header.bucket) != self._of or not self._fits(header.schema):
            image.retire()
            self._remove("it is of another table or bucket", image.file_id)
        elif not self._use(image):
            image.retire()  # Another thread was quicker, or a newer one was made.

    def as_of(self, lineage: Lineage, log_end: int) -> Image | None:
        """The image, if what it shows is a state of the bucket; one that is of another history is removed."""
        image = self.current
        if image is None:
            return None
        header = image.header
        if header.log_offset > log_end or not lineage.holds(header.history, header.log_offset):
            self.drop("it is of another history of the bucket")
            return None
        return image

    def pieces(self, log_end: int) -> list[Piece]:
        """The bucket's rows, block by block, as a split may know them; none if there is no image, or an old one."""
        image = self.current
        if image is None or not 0 <= log_end - image.header.log_offset <= image.rows // _UNCHANGED_PER_CHANGE:
            return []
        places = map(image.place, range(len(image)))
        return [Piece(place.last_key, place.stored_bytes) for place in places]

    def delta_of(self, image: Image, storage: Bucket, opening: int, bytes_max: int) -> ImageDelta:
        """What was changed since the image, for all scans of it.

        Args:
            image: The current one.
            storage: Has the changelog.
            opening: How often storage was opened anew: what was read before may have been lost.
            bytes_max: Memory of the delta.
        """
        if self.delta is None or self._delta_opening != opening:
            self.delta = ImageDelta(storage, image.header.log_offset, bytes_max)
            self._delta_opening = opening
        return self.delta

    def replace(self, image: Image) -> None:
        """Use another image from now on; what scans the old one goes on."""
        with self.naming:
            self._close()
            self.current = image
        self.use.begin_anew()

    def drop(self, why: str | None = None) -> bool:
        """Remove the image; what scans it goes on.

        Args:
            why: What is wrong with it, for the log; None: nothing is.

        Returns:
            Whether there was one.
        """
        with self.naming:
            image = self.current
            self._close()
        self.use.begin_anew()
        return self._remove(why, None if image is None else image.file_id)

    def close(self) -> None:
        """Close the file as soon as nothing scans it, until `open`. Idempotent."""
        with self.naming:
            self._close()

    def _use(self, image: Image) -> bool:
        """Use an image unless there is one already; whether it is used."""
        with self.naming:
            if self.current is not None:
                return False
            self.current = image
            return True

    def _close(self) -> None:
        if self.current is not None:
            self.current.retire()
            self.current = self.delta = None

    def _remove(self, why: str | None, file_id: FileId | None) -> bool:
        """Remove the file, as far as the disk lets us; whether it was.

        Args:
            why: As in `drop`.
            file_id: Which file has to have the name; None: any.
        """
        if self.path is None:
            return False
        with suppress(OSError), self.naming:
            if file_id is not None and file_id_of(self.path.stat()) != file_id:
                return False
            self.path.unlink()
            if why is not None:
                _logger.warning("the image %s is removed: %s; scans read the row store", self.path, why)
            return True
        return False

    def _fits(self, schema: pa.Schema) -> bool:
        """Whether these are the table's columns, apart from those that were added on either side."""
        ours, theirs = list(self._schema or ()), list(schema)
        count = min(len(ours), len(theirs))
        return ours[:count] == theirs[:count]
