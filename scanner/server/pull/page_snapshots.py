"""What a server keeps for `token` scans between their pages: a snapshot each, for a time.

    KEPT --page--> KEPT                       the token names it by an id
    KEPT --the last page--> FINISHED          gone, and it may linger: the last page can be asked for again for a while
    KEPT --close, expire--> (gone)
    KEPT --end of the bucket--> ENDED         gone, and a later page fails with the reason

A page uses a kept snapshot (`enter`, `leave`) and has a hold of its own on it, so removing what is kept harms no page
that is being made.

Invariant, beside those of `scanner.server.pull.kept`: only a page that was made extends a life; one that is being made
outlasts it.

This module knows no clock (`now` is passed in), no randomness (`make_id` is), no transport and no Arrow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Generic

from scanner.errors import SnapshotLost
from scanner.server.pull.kept import Kept, KeptLimits, KeptRegistry, ResourceT

if TYPE_CHECKING:
    from scanner.errors import ScannerError
    from scanner.server.config import ScannerConfig
    from scanner.server.pull.slots import Reservation

_REMEMBERED_MAX: Final = 10_000
"""Ids of scans that have finished or were ended that are remembered."""


class PageSnapshots(Generic[ResourceT]):
    """All that a server keeps for scans by token.

    Args:
        config: Caps and TTL.
        make_id: Makes an unguessable id, 1 to 2^64 - 1.
    """

    def __init__(self, config: ScannerConfig, make_id: Callable[[], int]) -> None:
        self._ttl_s = config.page_snapshot_ttl_s
        self.kept: KeptRegistry[int, Kept[int, ResourceT]] = KeptRegistry(
            KeptLimits(
                what="scans by token",
                per_bucket_max=config.page_snapshots_per_bucket_max,
                total_max=config.page_snapshots_max,
                ttl_s=self._ttl_s,
                remembered_max=_REMEMBERED_MAX,
            ),
            make_id,
        )
        """Slots, time to live, and what is done to all."""

    def keep(
        self, reservation: Reservation, kept_id: int, resource: ResourceT, now: float
    ) -> Kept[int, ResourceT]:
        """Keep a snapshot whose scan has made its first page, and will make more.

        Args:
            reservation: Held; it is the snapshot's from now on.
            kept_id: From `kept.new_id`.
            resource: Closed by the registry from now on.
            now: Seconds, of the same clock in all calls.
        """
        kept = Kept(
            id=kept_id,
            slot=reservation.hand_over(),
            resource=resource,
            expires_at=self.kept.expires_at(now),
        )
        self.kept.add(kept)
        return kept

    def enter(self, kept_id: int, now: float) -> Kept[int, ResourceT] | None:
        """Begin a page.

        Args:
            kept_id: From a token that is one of ours.
            now: Seconds.

        Returns:
            What is kept, to be given to `leave`. None: the scan has finished, and its snapshot may linger.

        Raises:
            SnapshotLost: There is none of that id: its time was over, it was closed, or the server was started anew.
            ScannerError: What it was ended by.
        """
        kept = self.kept.find(kept_id, now)
        if kept is not None:
            self.kept.begin(kept)
            self.kept.confirm(kept)
            return kept
        if self.kept.has_finished(kept_id):
            return None
        raise lost(
            f"it is kept for {self._ttl_s:g} s after a page, until it is closed, or the server goes down"
        )

    def leave(self, kept: Kept[int, ResourceT], now: float, *, made: bool) -> None:
        """End a page.

        Args:
            kept: From `enter`.
            now: Seconds.
            made: Whether there is a page.
        """
        self.kept.end(kept)
        if made:
            self.kept.extend(kept, now)

    def finish(self, kept: Kept[int, ResourceT]) -> None:
        """Remove the snapshot of a scan whose last page was made; that page may be asked for again. Idempotent."""
        self.kept.remove(kept, finished=True, linger=True)

    def end(self, kept: Kept[int, ResourceT], error: ScannerError) -> None:
        """Remove it because its bucket ends; later pages fail with `error`. Idempotent."""
        self.kept.remove(kept, error)

    def close(self, kept_id: int) -> None:
        """Remove it as its client asks; closing what is gone is no error."""
        kept = self.kept.get(kept_id)
        if kept is not None:
            self.kept.remove(kept)


def lost(why: str) -> SnapshotLost:
    """The error of a page whose snapshot is gone."""
    return SnapshotLost(f"the snapshot of this scan by token is gone ({why}); start a new scan")
