"""Whether an image of a bucket is to be made now by itself, and why there is one or none, in words for people.

An image is made when scans have read its rows from the row store twice over, and anew when so many changes lie over it
that its scans merge a lot. It is never made for a bucket of which no scan reads much, nor for one that changes so fast
that the image would be old when it is finished: after a making that was of no use there is a rest.

Pure: this module knows no clock, no task and no file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from scanner.server.config import ScannerConfig
    from scanner.server.tables.image_use import ImageUse

WANTED_READS: Final = 2
"""An image costs about as much as a scan of the row store, and its disk. The second scan shows that there are more."""
_CHANGES_MIN: Final = 1000
"""So few are no reason to make one anew, however small it is."""
_DELTA_SHARE: Final = 0.5
"""Of the memory that the changes since may take."""
_MIB: Final = 1024 * 1024


class Verdict(NamedTuple):
    """What is to be done about a bucket's image."""

    due: bool
    """One is to be made."""
    why: str
    """Why, or why not: a phrase for people."""


@dataclass(frozen=True, slots=True)
class Shown:
    """An image that there is."""

    rows: int
    log_behind: int
    """Changes of the bucket since."""
    log_lost: bool
    """Some of these are not in the changelog any more."""
    delta_bytes: int = 0
    """Memory of those that were read for scans."""


def judge(config: ScannerConfig, use: ImageUse, shown: Shown | None, now: float) -> Verdict:
    """Tell whether an image is to be made.

    Args:
        config: The limits.
        use: What scans have asked for.
        shown: The image; None: there is none.
        now: Seconds of trio's clock.
    """
    if config.images == "off":
        return Verdict(False, "made on demand alone (--images off)")
    verdict = _judge_missing(config, use) if shown is None else _judge_shown(config, use, shown)
    if verdict.due and now < use.rest_until:
        return Verdict(False, f"tried again in {use.rest_until - now:.0f} s: {use.rest_why}")
    return verdict


def is_stale(config: ScannerConfig, shown: Shown) -> bool:
    """Whether an image is worth making anew, if it is used."""
    changes_max = max(_CHANGES_MIN, config.image_changes_share * shown.rows)
    # Made anew in time: where the changes would take more than they may, the image is removed.
    full = shown.delta_bytes > _DELTA_SHARE * config.image_delta_bytes_max
    return shown.log_lost or full or shown.log_behind > changes_max


def _judge_missing(config: ScannerConfig, use: ImageUse) -> Verdict:
    if not use.read_bytes:
        return Verdict(False, "no scan has asked for one")
    if use.scan_bytes < config.image_bytes_min:
        return Verdict(
            False,
            f"scans have read {use.scan_bytes / _MIB:.1f} MiB of rows at most, and one is made from"
            f" {config.image_bytes_min / _MIB:.1f} MiB on",
        )
    wanted_bytes = WANTED_READS * use.scan_bytes
    so_far = f"scans have read {use.read_bytes / _MIB:.1f} MiB of rows"
    if use.read_bytes < wanted_bytes:
        return Verdict(False, f"{so_far}; one is made at {wanted_bytes / _MIB:.1f} MiB")
    return Verdict(True, f"to be made: {so_far}")


def _judge_shown(config: ScannerConfig, use: ImageUse, shown: Shown) -> Verdict:
    if not is_stale(config, shown):
        return Verdict(False, "fresh enough")
    what = "the changelog was cut behind it" if shown.log_lost else "many changes since"
    if use.image_scans < WANTED_READS and use.read_bytes < config.image_bytes_min:
        return Verdict(False, f"{what}, and hardly a scan has asked for it")
    return Verdict(True, f"to be made anew: {what}")
