"""How often the log says what any peer can bring about: one line of a kind in ten seconds."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import logging

_LOGGED_S: Final = 10.0
_KINDS_MAX: Final = 64
"""More of them are one kind."""
_NUMBERS: Final = re.compile(r"\d+")


class LineRate:
    """When one kind of line is due."""

    def __init__(self) -> None:
        self._written = -math.inf
        self._unwritten = 0

    def due(self, now: float) -> bool:
        """Whether a line may be written now, after which the next ten seconds are silent.

        Args:
            now: In seconds, of any clock. One that was set back silences nothing.
        """
        if 0 <= now - self._written < _LOGGED_S:
            self._unwritten += 1
            return False
        self._written = now
        return True

    def take_unwritten(self) -> int:
        """How many lines were not written since this was asked."""
        unwritten, self._unwritten = self._unwritten, 0
        return unwritten


class RatedLog:
    """Lines that peers bring about, at level info.

    Args:
        logger: Where they are written.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._rates: dict[str, LineRate] = {}

    def info(self, now: float, what: str, peer: str, why: str) -> None:
        """Write a line, unless one of its kind was written in the last ten seconds.

        Lines are of one kind if they differ only in their peers and in the numbers of their reasons. So a health check
        that opens the port every few seconds hides no line about another fault. The next line of a kind says how many
        were left out.

        Args:
            now: In seconds, of any clock.
            what: What happened; `%s` stands for the peer.
            peer: Its address.
            why: The reason.
        """
        kind = what + _NUMBERS.sub("", why)
        if kind not in self._rates and len(self._rates) >= _KINDS_MAX:
            kind = ""
        rate = self._rates.setdefault(kind, LineRate())
        if rate.due(now):
            more = rate.take_unwritten()
            since = f"; {more} more like it since the last line" if more else ""
            self._logger.info(f"{what}: %s%s", peer, why, since)
