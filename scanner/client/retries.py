"""What is tried again after a failure, when, and how often.

Whether an error is worth another try stands in `scanner.errors.ERRORS`. How long to wait grows with every attempt that
brought nothing, and is drawn at random below that ("full jitter"), so that clients which failed together do not come
back together. What counts is attempts without progress: a scan over a bad line goes on for as long as each attempt
brings something.

The policy is pure; `Attempts` waits, draws from the random that it is given, and logs why it waits.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from scanner.errors import ScannerError

if TYPE_CHECKING:
    from random import Random

RETRIES_DEFAULT: Final = 16
"""With the delays below: 28 seconds on average, 56 at most, for a server to come back. A drain takes 5 s unless
`weir serve --drain-timeout` says otherwise, and the next start some seconds."""
RETRIES_MAX: Final = 2**32 - 1

LOGGER_NAME: Final = "weir.client"
"""Has a line of level INFO for each failure after which something is tried again."""

_ATTEMPTS: Final = "attempts"
"""In the metadata of an error: how many attempts there were."""

_logger = logging.getLogger(LOGGER_NAME)
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryPolicy:
    """How often and how patiently.

    Raises:
        ValueError: A field is out of its range.
    """

    retries: int = RETRIES_DEFAULT
    """Attempts without progress after the first one, 0 to 2^32 - 1; 0: errors come at once."""
    delay_s_min: float = 0.1
    """The first delay at most, seconds, above 0; each later one may be twice as long."""
    delay_s_max: float = 5.0
    """No delay is longer, seconds."""

    def __post_init__(self) -> None:
        if not 0 <= self.retries <= RETRIES_MAX:
            raise ValueError(f"retries must be 0 to {RETRIES_MAX}, not {self.retries}")
        if not 0 < self.delay_s_min <= self.delay_s_max:
            raise ValueError(
                f"delays must be 0 < delay_s_min <= delay_s_max, not {self.delay_s_min} and {self.delay_s_max}"
            )

    def delay_bound_s(self, failed: int) -> float:
        """The longest delay after so many failed attempts in a row, seconds.

        Args:
            failed: >= 1.
        """
        doublings = min(failed - 1, 64)  # Far past any bound, and no overflow.
        return min(self.delay_s_max, self.delay_s_min * 2.0**doublings)


class _Progress:
    """What several attempts bring together."""

    __slots__ = ("made",)

    def __init__(self) -> None:
        self.made = 0


class Attempts:
    """The attempts at one thing, in a row. For one task.

    Args:
        policy: How often and how patiently.
        rng: Draws the delays.
    """

    def __init__(self, policy: RetryPolicy, rng: Random) -> None:
        self._policy = policy
        self._rng = rng
        self._progress = _Progress()
        self._made_before = 0
        self.failed = 0
        """Attempts in a row that failed and brought nothing."""

    @property
    def wanted(self) -> bool:
        """Whether there is more than one attempt."""
        return self._policy.retries > 0

    def sibling(self) -> Attempts:
        """Fresh attempts at another part of the same whole: what one brings counts for all.

        Parts share a line, and one may have the bad luck to be cut every time while the others advance.
        """
        attempts = Attempts(self._policy, self._rng)
        attempts._progress = self._progress
        attempts._made_before = self._progress.made
        return attempts

    def progress(self) -> None:
        """Say that the attempt that runs has brought something."""
        self._progress.made += 1

    async def wait_retry(self, error: ScannerError, *, alone: bool = False) -> None:
        """Take the failure of an attempt; return when it is time for the next.

        Args:
            error: The failure.
            alone: Whether it counts whatever was brought meanwhile.

        Raises:
            ScannerError: There will be none: the failure as it is, if trying again cannot help, was not wanted, or was
                done as often as it may be; or one of its kind that says how many attempts there were.

        Waits:
            For the delay, drawn at random from 0 to `RetryPolicy.delay_bound_s`, and what the server asks for on top.

        Cancellation:
            Ends the wait at once.
        """
        # Connecting has attempts of its own: what has used them up would use them up at each attempt of ours.
        if not error.retriable or not self.wanted or _ATTEMPTS in error.metadata:
            raise error
        if self._progress.made != self._made_before and not alone:
            self._made_before = self._progress.made
            self.failed = 0
        self.failed += 1
        if self.failed > self._policy.retries:
            message = f"{error.message} (after {self.failed} attempts without progress)"
            raise error.reworded(message, **{_ATTEMPTS: str(self.failed)}) from error
        _logger.info("%s; trying again (%d of %d)", error.message, self.failed, self._policy.retries)
        drawn_s = self._rng.uniform(0.0, self._policy.delay_bound_s(self.failed))
        await trio.sleep(error.retry_after_s + drawn_s)


async def retried(attempts: Attempts, act: Callable[[], Awaitable[_T]]) -> _T:
    """Do something that may be done again, until it succeeds or no attempt is left.

    Args:
        attempts: Counts; `progress` is up to the caller.
        act: Raises ScannerError where it fails.

    Raises:
        ScannerError: See `Attempts.wait_retry`.
    """
    while True:
        try:
            return await act()
        except ScannerError as error:
            failure = error
        await attempts.wait_retry(failure)
