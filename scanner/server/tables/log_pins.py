"""What keeps the changelog of one bucket: scans that may have to be rebuilt from it, and leases.

Invariants:

1. A change at or after `oldest()` is still needed; retention cuts in front of it only.
2. A pin that was released or ended keeps nothing, whatever is done with it afterwards.

Pure: no storage, no clock, no task. How much a pin may keep, and for how long, is the business of retention, which
ends the pin that keeps the most (`longest_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scanner.errors import ScannerError


class LogPin:
    """One reason to keep the log from an offset on. Made by `LogPins.pin`."""

    __slots__ = ("_on_end", "_pins", "offset", "principal", "what")

    def __init__(
        self,
        pins: LogPins,
        offset: int,
        principal: str,
        what: str,
        on_end: Callable[[ScannerError], None] | None,
    ) -> None:
        self._pins = pins
        self._on_end = on_end
        self.offset = offset
        """The oldest change that is needed."""
        self.principal = principal
        """Name of who needs it."""
        self.what = what
        """What needs it, for people: `scan`, `lease`."""

    @property
    def held(self) -> bool:
        """Whether it keeps anything."""
        return self in self._pins

    def advance(self, offset: int) -> None:
        """Need the changes before `offset` no more; one that is not higher changes nothing."""
        self.offset = max(self.offset, offset)

    def release(self) -> None:
        """Keep nothing any more. Idempotent."""
        self._pins.discard(self)

    def end(self, error: ScannerError) -> None:
        """Keep nothing any more, and tell the holder why. Of a pin that `longest_of` has found."""
        assert self._on_end is not None
        self.release()
        self._on_end(error)


class LogPins:
    """The pins on one bucket's log."""

    def __init__(self) -> None:
        self._pins: dict[LogPin, None] = {}

    def __len__(self) -> int:
        return len(self._pins)

    def __iter__(self) -> Iterator[LogPin]:
        return iter(tuple(self._pins))

    def __contains__(self, pin: object) -> bool:
        return pin in self._pins

    def pin(
        self,
        offset: int,
        principal: str,
        what: str,
        on_end: Callable[[ScannerError], None] | None = None,
    ) -> LogPin:
        """Keep the log.

        Args:
            offset: The oldest change that is needed.
            principal: Name of who needs it, whose share of the log it counts into.
            what: What needs it, for people.
            on_end: Called with the reason when the log is taken away from it; does not wait. None: it cannot be.
        """
        pin = LogPin(self, offset, principal, what, on_end)
        self._pins[pin] = None
        return pin

    def oldest(self) -> int | None:
        """The oldest change that is needed; None: none is."""
        return min((pin.offset for pin in self._pins), default=None)

    def oldest_by_principal(self) -> dict[str, int]:
        """The oldest change that each principal needs: what it keeps is the log from there on."""
        oldest: dict[str, int] = {}
        for pin in self._pins:
            oldest[pin.principal] = min(pin.offset, oldest.get(pin.principal, pin.offset))
        return oldest

    def longest_of(self, principal: str) -> LogPin | None:
        """The pin of a principal that keeps the most of the log and can be ended; of several, the oldest pin."""
        ended = (pin for pin in self._pins if pin.principal == principal and pin._on_end is not None)
        return min(ended, key=lambda pin: pin.offset, default=None)

    def discard(self, pin: LogPin) -> None:
        """A pin keeps nothing any more."""
        self._pins.pop(pin, None)
