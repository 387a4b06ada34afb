"""What scans of one bucket have asked of an image, whether there was one or not: what decides whether one is made.

Counted in stored bytes, as `Position.stored_bytes` does, so filters and projections do not matter. It begins anew with
each start of the server, and with each image.

Pure: this module knows no clock, no task and no file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

REST_S_MIN: Final = 60.0
REST_S_MAX: Final = 3600.0
"""How long nothing is made after a making was of no use; each time twice as long."""


@dataclass(slots=True)
class ImageUse:
    """Written where scans are opened and closed, and read by what makes images."""

    scan_bytes: int = 0
    """The most that one scan has read: about the size of the bucket, if scans are whole."""
    read_bytes: int = 0
    """What all have read from the row store since there is this image, or none."""
    image_scans: int = 0
    """Scans of the image."""
    used_at: float = -math.inf
    """When the last one was opened, or the image was made; seconds of trio's clock."""
    rest_until: float = -math.inf
    """Until then none is made by itself, seconds of trio's clock."""
    rest_why: str = ""
    rest_s: float = 0.0
    """How long the last rest was; 0: the last making was of use."""

    def read_rows(self, read_bytes: int, scan_bytes: int) -> None:
        """A scan of the row store is over that could have read an image.

        Args:
            read_bytes: What it has read.
            scan_bytes: The same with what it had read before it was continued.
        """
        self.read_bytes += read_bytes
        self.scan_bytes = max(self.scan_bytes, scan_bytes)

    def read_image(self, now: float) -> None:
        """A scan of the image was opened."""
        self.image_scans += 1
        self.used_at = now

    def begin_anew(self) -> None:
        """There is another image, or none any more."""
        self.scan_bytes = self.read_bytes = self.image_scans = 0

    def rest(self, now: float, why: str) -> None:
        """A making was of no use: make none for a while, longer each time.

        Args:
            now: Seconds of trio's clock.
            why: For people.
        """
        self.rest_s = min(REST_S_MAX, max(REST_S_MIN, 2 * self.rest_s))
        self.rest_until = now + self.rest_s
        self.rest_why = why

    def was_useful(self) -> None:
        """A making was of use: the next failure begins with a short rest."""
        self.rest_s = 0.0
        self.rest_until = -math.inf
