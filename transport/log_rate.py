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
        """Whether a line may be written now. It is, then; also where a clock of the machine's was set back."""
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
        """Write `what`, which names the peer by %s, and why; now and then.

        Lines of one kind differ in their peers, and in numbers of their reasons: what checks every few seconds whether
        a port is open hides no line about another fault. The next line of a kind says how many there were meanwhile.
        """
        kind = what + _NUMBERS.sub("", why)
        if kind not in self._rates and len(self._rates) >= _KINDS_MAX:
            kind = ""
        rate = self._rates.setdefault(kind, LineRate())
        if rate.due(now):
            more = rate.take_unwritten()
            since = f"; {more} more like it since the last line" if more else ""
            self._logger.info(f"{what}: %s%s", peer, why, since)
