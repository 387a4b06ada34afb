"""What a command says that waits for a server: on a terminal, when it begins to try again, and at rare intervals."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from scanner.cli.app import is_terminal, note
from scanner.client.retries import LOGGER_NAME

_AGAIN_S: Final = 30.0


class _Waits(logging.Handler):
    """Tells of failures after which something is tried again: of the first, and then of one in a while."""

    def __init__(self) -> None:
        super().__init__()
        self._silent_until = -math.inf

    def emit(self, record: logging.LogRecord) -> None:
        """Tell of one, or be silent."""
        now = time.monotonic()
        if now >= self._silent_until:
            self._silent_until = now + _AGAIN_S
            with suppress(OSError):  # A terminal that is gone ends no attempt.
                note(f"weir: {record.getMessage()}; Ctrl-C ends that")


@contextmanager
def told_of_waits() -> Iterator[None]:
    """Run a block in which a person is told why it takes so long. Standard error that is a file gets nothing."""
    if not is_terminal():
        yield
        return
    logger, handler = logging.getLogger(LOGGER_NAME), _Waits()
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
