"""A descriptor that takes what it is given, also where another process has made it non-blocking.

O_NONBLOCK belongs to the open file and not to the descriptor: whoever shares the terminal, pipe or socket, as Node does
with the commands that it starts, sets it for us, too. Unsetting it would unset it for them.
"""

from __future__ import annotations

import io
import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer


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
