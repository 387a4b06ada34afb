"""Failures of what a server does from time to time: each is said once in its log, and once more when it is over.

Also what an error keeps in memory that is kept itself. This module knows no clock, no task and no storage.
"""

from __future__ import annotations

import re
import traceback
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import logging

_REMEMBERED_MAX: Final = 10_000
"""Failures that last; of more the oldest is said again."""
_NUMBERS: Final = re.compile(r"\d+")


def cause_of(error: Exception) -> str:
    """What tells one cause of failure from another: numbers, such as of free bytes, differ at each attempt."""
    return f"{type(error).__name__}: {_NUMBERS.sub('', str(error))}"


def free_frames(error: BaseException) -> None:
    """Free what the functions that an error went through had in hand, such as rows of a request.

    They are not counted any more where the error is kept. And one that is raised by a function which has it in hand
    keeps itself until the garbage is collected.
    """
    seen: list[BaseException] = []
    pending: list[BaseException | None] = [error]
    while pending:
        each = pending.pop()
        if each is not None and each not in seen:
            seen.append(each)
            traceback.clear_frames(each.__traceback__)
            pending += (each.__cause__, each.__context__)


class Failures:
    """What has failed and was not done since.

    Args:
        logger: Where it is said, as warnings.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._causes: dict[str, str] = {}

    def add(self, what: str, error: Exception) -> None:
        """Something has failed: say so, unless the attempt before failed for the same cause.

        Args:
            what: What is not done, for people: a whole sentence before the colon.
            error: Why.
        """
        cause = cause_of(error)
        if self._causes.get(what) == cause:
            return
        self._causes[what] = cause
        if len(self._causes) > _REMEMBERED_MAX:
            del self._causes[next(iter(self._causes))]
        self._logger.warning("%s: %s", what, error)

    def clear(self, what: str, well: str) -> None:
        """Something went well: say so, if the attempt before failed.

        Args:
            what: As for `add`.
            well: What is done now, for people.
        """
        if self._causes.pop(what, None) is not None:
            self._logger.warning("%s", well)
