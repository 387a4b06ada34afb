"""Tells the user at a terminal that a command waits for its server, and why."""

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
    """Shows the first failure that is retried, and then one every `_AGAIN_S`."""

    def __init__(self) -> None:
        super().__init__()
        self._silent_until = -math.inf

    def emit(self, record: logging.LogRecord) -> None:
        """Show one, or be silent."""
        now = time.monotonic()
        if now >= self._silent_until:
            self._silent_until = now + _AGAIN_S
            with suppress(OSError):  # A terminal that is gone ends no attempt.
                note(f"weir: {record.getMessage()}; Ctrl-C ends that")


@contextmanager
def told_of_waits() -> Iterator[None]:
    """Run a block; its retries are told to a user at a terminal, and nothing goes into a file."""
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
