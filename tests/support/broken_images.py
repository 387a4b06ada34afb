"""Images that are read wrong on purpose, each by one method of the product replaced: what campaigns have to find."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from scanner.data.keys import KeyRange
from scanner.sources.image import ImageScan
from scanner.sources.image_delta import ImageDelta
from scanner.sources.sorted_runs import Entries

if TYPE_CHECKING:
    import pytest


def _entries(found: Iterable[tuple[bytes, bytes | None]]) -> Entries:
    pairs = list(found)
    return Entries([key for key, _ in pairs], [row for _, row in pairs])


def miss_deletes(patch: pytest.MonkeyPatch) -> None:
    """What was deleted since the image is still shown."""
    whole = ImageDelta.entries

    def entries(self: ImageDelta, keys: list[bytes], log_offset: int) -> Entries:
        return _entries(
            (key, row) for key, row in zip(*whole(self, keys, log_offset), strict=True) if row is not None
        )

    patch.setattr(ImageDelta, "entries", entries)


def take_the_first_change(patch: pytest.MonkeyPatch) -> None:
    """Of a key's changes the oldest counts, not the last."""

    def entries(self: ImageDelta, keys: list[bytes], log_offset: int) -> Entries:
        firsts = [(key, self._changes[key][0]) for key in keys]
        return _entries((key, row) for key, (offset, row) in firsts if offset < log_offset)

    patch.setattr(ImageDelta, "entries", entries)


def take_later_changes(patch: pytest.MonkeyPatch) -> None:
    """All that was changed is shown, whatever offset the scan is as of."""
    whole = ImageDelta.entries
    patch.setattr(ImageDelta, "entries", lambda self, keys, _: whole(self, keys, 1 << 60))


def combine_without_shift(patch: pytest.MonkeyPatch) -> None:
    """Digests of pieces are combined as if all were of the same length."""
    for module in ("image_rows", "merged_rows"):
        patch.setattr(f"scanner.sources.{module}.shifted", lambda crc, _length: crc)
    patch.setattr("scanner.sources.merged_rows.shifted_each", lambda crcs, _lengths: crcs)


def exclude_the_last_key(patch: pytest.MonkeyPatch) -> None:
    """A change of a block's last key is merged with the next block."""
    patch.setattr("scanner.sources.image_delta.bisect_right", bisect_left)


def fall_back_to_the_start(patch: pytest.MonkeyPatch) -> None:
    """Where a block is damaged the row store gives all rows, not only the rest."""
    whole = ImageScan._give_up

    def give_up(self: ImageScan, error: Exception) -> None:
        whole(self, error)  # type: ignore[arg-type]
        self._rest = KeyRange(self._range.start, self._range.end)

    patch.setattr(ImageScan, "_give_up", give_up)


def fall_back_behind_the_damage(patch: pytest.MonkeyPatch) -> None:
    """The rows of a damaged block are passed over."""
    whole = ImageScan._give_up

    def give_up(self: ImageScan, error: Exception) -> None:
        if self._image is not None and self._next < len(self._image):
            self._next += 1
        whole(self, error)  # type: ignore[arg-type]

    patch.setattr(ImageScan, "_give_up", give_up)


BROKEN: Final[dict[Callable[[pytest.MonkeyPatch], None], str]] = {
    miss_deletes: "isolated",
    take_the_first_change: "isolated",
    combine_without_shift: "resumable",
    exclude_the_last_key: "isolated",
    fall_back_to_the_start: "unique",
    fall_back_behind_the_damage: "complete",
}
"""What is broken, and the validator that finds it. `take_later_changes` takes scans as of several offsets at once."""
