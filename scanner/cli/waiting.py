"""Files whose descriptors may be full: one waits until its data is taken, the other gives up.

O_NONBLOCK belongs to the open file and not to the descriptor: whoever shares the terminal, pipe or socket, as Node does
with the commands that it starts, sets it for us, too. Unsetting it would unset it for them.
"""

from __future__ import annotations

import errno
import io
import math
import os
import select
import stat
import sys
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing_extensions import Buffer

PATIENCE_S: Final = 1.0
"""How long a server waits for whoever reads its log. Nothing is served meanwhile, and no peer takes it for dead."""
_IMPATIENT_S: Final = 60.0
"""After such a wait none for so long: a reader that is always late would hold the server up again and again."""


def takes_more(descriptor: int, wait_s: float = 0.0) -> bool:
    """Whether a write of a few octets would not wait, now or within this time."""
    poll = select.poll()  # `select.select` takes no descriptor from 1024 on.
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(wait_s * 1000))


class WaitingFile(io.FileIO):
    """A file that a write waits for while it is full."""

    def write(self, data: Buffer, /) -> int:
        """Write some of it, one octet at least."""
        # None, which typeshed does not know of: it would block.
        while (written := super().write(data)) is None:
            poll = select.poll()
            poll.register(self, select.POLLOUT)
            poll.poll()
        return written


class PatientFile(io.FileIO):
    """A file that refuses what nobody takes, as a pipe whose reader is stopped, where a plain one waits for ever.

    It waits for a while, and then not again for a minute. A write is whole or fails.

    Args:
        descriptor: Stays open.
        patience_s: How long to wait.
    """

    def __init__(self, descriptor: int, patience_s: float = PATIENCE_S) -> None:
        own = _of_terminal(descriptor)
        super().__init__(descriptor if own is None else own, "w", closefd=own is not None)
        # So much a pipe that is ready takes without waiting; a file on a disk is always ready, and gets a line whole.
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self._piece_bytes = sys.maxsize if regular else select.PIPE_BUF
        self._patience_s = patience_s
        self._patient_from = -math.inf
        """When it waits again, seconds of a clock that nobody sets."""

    def write(self, data: Buffer, /) -> int:
        """Write all of it.

        Raises:
            OSError: It was not written, or only its beginning.
        """
        left = memoryview(data).cast("B")
        size, now = len(left), time.monotonic()
        end = now + self._patience_s if now >= self._patient_from else now
        while left:
            ready = takes_more(self.fileno(), max(0.0, end - now))
            # None, which typeshed does not know of: another process was quicker, or a terminal has no room for "\r\n".
            written = (super().write(left[: self._piece_bytes]) or 0) if ready else 0
            left, now = left[written:], time.monotonic()
            if not written and now >= end:
                self._patient_from = now + _IMPATIENT_S
                raise TimeoutError(errno.ETIMEDOUT, "nobody reads it")
        return size


def _of_terminal(descriptor: int) -> int | None:
    """A descriptor of our own of a terminal, which never waits; None: it is none, or belongs to somebody else.

    A terminal whose window hangs takes what fits and waits for room for the rest, also where it was ready.
    """
    try:
        return os.open(os.ttyname(descriptor), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
