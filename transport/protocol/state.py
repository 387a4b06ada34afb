"""The life of a stream, RFC 9113 section 5.1, as a table.

What affects the transitions of a stream is here; the table knows no role and no frames. Streams are born open: the
idle state is the absence of a stream, and reserved states do not occur because push is disabled. An input that the
table lacks is illegal in that state; callers look whether it may come, and report it.

                 SEND_END                    RECEIVE_END
      OPEN ─────────────────► HALF_CLOSED_LOCAL ─────────► CLOSED
        │     RECEIVE_END                    SEND_END        ▲
        ├───────────────────► HALF_CLOSED_REMOTE ────────────┤
        └──────────────────────── RESET ─────────────────────┘
"""

from __future__ import annotations

import enum
from typing import Final


class StreamState(enum.Enum):
    """Where a stream stands."""

    OPEN = enum.auto()
    HALF_CLOSED_LOCAL = enum.auto()
    """We have sent our end; the peer may go on."""
    HALF_CLOSED_REMOTE = enum.auto()
    """The peer has sent its end; we may go on."""
    CLOSED = enum.auto()


class StreamInput(enum.Enum):
    """What happens to a stream."""

    SEND_END = enum.auto()
    RECEIVE_END = enum.auto()
    RESET = enum.auto()
    """RST_STREAM in either direction, or the loss of the connection."""


TRANSITIONS: Final[dict[StreamState, dict[StreamInput, StreamState]]] = {
    StreamState.OPEN: {
        StreamInput.SEND_END: StreamState.HALF_CLOSED_LOCAL,
        StreamInput.RECEIVE_END: StreamState.HALF_CLOSED_REMOTE,
        StreamInput.RESET: StreamState.CLOSED,
    },
    StreamState.HALF_CLOSED_LOCAL: {
        StreamInput.RECEIVE_END: StreamState.CLOSED,
        StreamInput.RESET: StreamState.CLOSED,
    },
    StreamState.HALF_CLOSED_REMOTE: {
        StreamInput.SEND_END: StreamState.CLOSED,
        StreamInput.RESET: StreamState.CLOSED,
    },
    StreamState.CLOSED: {},
}

SENDABLE: Final = frozenset({StreamState.OPEN, StreamState.HALF_CLOSED_REMOTE})
"""States in which we may send messages and our end."""
RECEIVABLE: Final = frozenset({StreamState.OPEN, StreamState.HALF_CLOSED_LOCAL})
"""States in which the peer may."""
