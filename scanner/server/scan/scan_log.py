"""What is kept of a push scan that has ended: its count, and one line in the log (`weir.scans`, INFO).

The line names table, bucket, sizes, times and whose call it was. It has nothing of what was read: no column, no
predicate, no key.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from scanner.errors import InternalError, ScannerError
from scanner.server.auth.access import revocation
from scanner.server.log_fields import Fields
from transport import TransportError

if TYPE_CHECKING:
    from scanner.server.counters import Activity, Holder
    from scanner.server.scan.push import PushScan
    from scanner.wire.queries import ScanQuery
    from transport import ServerStream

CUT_OFF: Final = "cut_off"
"""Reason of a scan whose client or connection went away, or that the end of the server cut off."""
_log: Final = logging.getLogger("weir.scans")


@contextmanager
def recorded(
    activity: Activity, stream: ServerStream, query: ScanQuery, holder: Holder, push: PushScan
) -> Iterator[None]:
    """Count the scan that the block runs, and log how it ended.

    Args:
        activity: Counts.
        stream: Of the scan.
        query: What it reads.
        holder: Whose it is.
        push: The scan.
    """
    activity.scans_opened += 1
    reason = CUT_OFF
    try:
        yield
        if push.end_reason is not None:
            reason = push.end_reason.name.lower()
    except TransportError:
        raise
    except Exception as error:
        # What nobody has foreseen is told as INTERNAL.
        reason = (error.reason if isinstance(error, ScannerError) else InternalError.reason).lower()
        raise
    finally:
        if (revoked := revocation(stream)) is not None:
            reason = revoked.reason.lower()
        activity.scans_ended[reason] += 1
        activity.scan_rows += push.rows
        if _log.isEnabledFor(logging.INFO):
            _log.info("scan ended %s", _fields(reason, stream, query, holder, push))


def _fields(reason: str, stream: ServerStream, query: ScanQuery, holder: Holder, push: PushScan) -> Fields:
    stalls = stream.stalls()
    times = ",".join(f"{why.label}:{seconds:.3f}" for why, seconds in stalls if seconds >= 0.0005)
    return Fields(
        reason=reason,
        table=query.table,
        bucket=query.bucket,
        source=holder.source,
        rows=push.rows,
        bytes=stream.credit.sent,
        seconds=round(stalls.total_s, 3),
        peer=holder.peer,
        principal=holder.principal,
        stream=f"{holder.connection_id}/{holder.stream_id}",
        stalls=times or "-",
    )
