"""Failures of what a server does from time to time: each is said once in its log, and once more when it is over.

This module knows no clock, no task and no storage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import logging

_REMEMBERED_MAX: Final = 10_000
"""Failures that last; of more the oldest is said again."""


class Failures:
    """What has failed and was not done since.

    Args:
        logger: Where it is said, as warnings.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._kinds: dict[str, type[Exception]] = {}

    def add(self, what: str, error: Exception) -> None:
        """Something has failed: say so, unless the attempt before failed with an error of the same kind.

        Args:
            what: What is not done, for people: a whole sentence before the colon.
            error: Why.
        """
        if self._kinds.get(what) is type(error):
            return
        self._kinds[what] = type(error)
        if len(self._kinds) > _REMEMBERED_MAX:
            del self._kinds[next(iter(self._kinds))]
        self._logger.warning("%s: %s", what, error)

    def clear(self, what: str, well: str) -> None:
        """Something went well: say so, if the attempt before failed.

        Args:
            what: As for `add`.
            well: What is done now, for people.
        """
        if self._kinds.pop(what, None) is not None:
            self._logger.warning("%s", well)
