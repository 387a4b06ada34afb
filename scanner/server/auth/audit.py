"""Who did what from where: one line at level INFO for each (logger `weir.audit`), and counters.

Only what a server has decided is said: an authentication that failed, a call that was denied, what was created, dropped
or reloaded. No token, key or row is in a line.
"""

from __future__ import annotations

import enum
import logging
from typing import TYPE_CHECKING, Final

from scanner.server.log_fields import Fields

if TYPE_CHECKING:
    from scanner.server.counters import Activity
    from transport import ServerStream

_log: Final = logging.getLogger("weir.audit")


class AuditEvent(enum.Enum):
    """What is worth a line."""

    AUTHENTICATION_FAILED = "authentication_failed"
    """The caller was not authenticated."""
    CALL_DENIED = "call_denied"
    """Who calls is known, and may not do that."""
    RIGHTS_WITHDRAWN = "rights_withdrawn"
    """A running call was ended, because its right or its principal is gone."""
    TABLE_CREATED = "table_created"
    TABLE_DROPPED = "table_dropped"
    COLUMN_ADDED = "column_added"
    CHECKPOINT_MADE = "checkpoint_made"
    """On demand."""
    TRANSACTION_PUBLISHED = "transaction_published"
    """A version of a transaction was decided, so that its rows appear; not when it is asked for again."""
    TRANSACTION_ABORTED = "transaction_aborted"
    """What was staged of a version was freed."""
    LOG_COMPACTED = "log_compacted"
    IMAGES_MADE = "images_made"
    IMAGES_DROPPED = "images_dropped"
    """On demand."""
    LEASE_DROPPED_BY_ADMIN = "lease_dropped_by_admin"
    """The lease of another principal, or a part of it."""
    GROUP_DELETED = "group_deleted"
    """A reader group, with its positions."""
    DRAIN_BEGUN = "drain_begun"
    """By a call."""
    CREDENTIALS_RELOADED = "credentials_reloaded"
    CREDENTIALS_REJECTED = "credentials_rejected"
    """The file has changed and cannot be used."""


def audit(
    activity: Activity,
    event: AuditEvent,
    stream: ServerStream | None = None,
    principal: str = "",
    **fields: object,
) -> None:
    """Count an event, and log it.

    Args:
        activity: Counts.
        event: What was done.
        stream: The call that did it; None: no call.
        principal: Who calls; empty: it is not known.
        fields: What else is to be said, in order.
    """
    activity.audited[event.value] += 1
    if _log.isEnabledFor(logging.INFO):
        said = Fields(event=event.value)
        if stream is not None:
            said.update(principal=principal or "-", peer=stream.peer, call=stream.path)
        said.update(fields)
        _log.info("audit %s", said)
