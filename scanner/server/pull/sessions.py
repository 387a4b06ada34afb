"""Sessions: scans that live on the server between the calls of a client that pulls page after page.

The service that handles a call *claims* the session, makes the page, and *completes* the call (or *abandons* it, and
the same call can be made again).

    IDLE --claim--> CLAIMED --complete--> IDLE
                       |----abandon-----> IDLE
    IDLE --close, expire, terminate, complete of the last page--> (gone)
    CLAIMED --close, terminate--> ENDING --complete, abandon--> (gone)

Invariants, beside those of `scanner.server.pull.kept`:

1. A session's scan is never closed while a call has it claimed.
2. The pages of a session are numbered 0 (the open), 1, 2, ... Repeating the last number returns the same page;
   any other number changes nothing.
3. Only a completed or repeated page extends a session's life.

This module knows no clock (`now` is passed in), no randomness (`make_id` is), no transport and no Arrow.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from scanner.errors import (
    ScannerError,
    SequenceInvalid,
    SessionBusy,
    SessionExpired,
    SessionUnknown,
)
from scanner.server.pull.kept import Kept, KeptLimits, KeptRegistry, ResourceT

if TYPE_CHECKING:
    from scanner.server.config import ScannerConfig
    from scanner.server.pull.slots import Reservation


class SessionState(enum.Enum):
    """Where a session is in its life."""

    IDLE = "idle"
    """No call is using it; its time runs."""
    CLAIMED = "claimed"
    """A call is using it; it cannot expire."""
    ENDING = "ending"
    """A call is using it, and it is gone as soon as that call ends."""


PageT = TypeVar("PageT")


@dataclass(slots=True, eq=False, kw_only=True)
class Session(Kept[bytes, ResourceT], Generic[ResourceT, PageT]):
    """One live scan between calls. Changed by the registry only."""

    page: PageT
    """The last page, kept in case its response was lost."""
    sequence: int = 0
    """Number of `page`."""
    state: SessionState = SessionState.IDLE
    ended_by: ScannerError | None = None
    """While ENDING: why; None if it was closed by its client."""

    @property
    def bucket(self) -> Hashable:
        """What it reads."""
        return self.slot.bucket


@dataclass(frozen=True, slots=True)
class Repeat(Generic[PageT]):
    """The answer to a call that was answered before."""

    page: PageT
    bucket: Hashable
    """What the session reads."""


class SessionRegistry(Generic[ResourceT, PageT]):
    """All sessions of a server.

    Args:
        config: Caps and TTL.
        make_id: Makes an unguessable id for a session.
    """

    def __init__(self, config: ScannerConfig, make_id: Callable[[], bytes]) -> None:
        ttl_s = config.session_ttl_s
        self.kept: KeptRegistry[bytes, Session[ResourceT, PageT]] = KeptRegistry(
            KeptLimits(
                what="sessions",
                per_bucket_max=config.sessions_per_bucket_max,
                total_max=config.sessions_max,
                ttl_s=ttl_s,
                remembered_max=config.sessions_expired_max,
            ),
            make_id,
            SessionExpired(
                f"the session was idle for more than {ttl_s:g} s, or was lost with the connection that had opened it,"
                " and is gone; scan again"
            ),
        )
        """Slots, time to live, and what is done to all."""

    def admit(
        self, reservation: Reservation, session_id: bytes, resource: ResourceT, page: PageT, now: float
    ) -> Session[ResourceT, PageT]:
        """Turn a slot into a session whose page 0 has been made and does not complete the scan.

        Args:
            reservation: Held; the session has its slot from now on.
            session_id: From `kept.new_id`.
            resource: Closed by the registry from now on.
            page: Page 0.
            now: Seconds, of the same clock in all calls.
        """
        session = Session(
            id=session_id,
            slot=reservation.hand_over(),
            resource=resource,
            page=page,
            expires_at=self.kept.expires_at(now),
        )
        self.kept.add(session)
        return session

    def claim(
        self, session_id: bytes, sequence: int, now: float
    ) -> Session[ResourceT, PageT] | Repeat[PageT]:
        """Begin a call.

        Args:
            session_id: From the peer.
            sequence: Number of the page wanted, from the peer.
            now: Seconds.

        Returns:
            The session, claimed: to be given to `complete` or `abandon`. Or the last page, if that is wanted again.

        Raises:
            SessionUnknown: There is none of that id: it ended, was closed, or never was.
            SessionExpired: It was idle past its TTL.
            SessionBusy: Another call has it claimed.
            SequenceInvalid: The number is missing or leaves a gap.
            ScannerError: What it was terminated by.
        """
        session = self.kept.find(session_id, now)
        if session is None:
            raise SessionUnknown(
                f"there is no session {session_id[:16].hex()}: it delivered its last page, was closed, or never was"
            )
        if session.state is not SessionState.IDLE:
            raise SessionBusy(
                "another call is using this session; it can be used again when that is answered"
            )
        wanted = session.sequence + 1
        if sequence == 0:
            raise SequenceInvalid(f"a continuation needs its call_seq_id; the next one is {wanted}")
        if sequence == session.sequence:
            self.kept.extend(session, now)
            return Repeat(session.page, session.bucket)
        if sequence != wanted:
            raise SequenceInvalid(
                f"call_seq_id {sequence} is out of sequence: {wanted} is next"
                + (f", {session.sequence} can be repeated." if session.sequence else "")
            )
        session.state = SessionState.CLAIMED
        self.kept.begin(session)
        return session

    def complete(self, session: Session[ResourceT, PageT], page: PageT, now: float, *, last: bool) -> None:
        """End a call with a page; the last page of the scan ends the session as well."""
        self.kept.end(session)
        self.kept.extend(session, now)
        if session.state is SessionState.ENDING:
            self.kept.remove(session, session.ended_by)
        elif last:
            self.kept.remove(session)
        else:
            session.page = page
            session.sequence += 1
            session.state = SessionState.IDLE
            session.confirmed = True

    def abandon(self, session: Session[ResourceT, PageT]) -> None:
        """End a call without a page, because its client has gone: the same call can be made again.

        What was decoded for the page stays with the resource. The session's life is not extended.
        """
        self.kept.end(session)
        if session.state is SessionState.ENDING:
            self.kept.remove(session, session.ended_by)
        else:
            session.state = SessionState.IDLE

    def terminate(self, session: Session[ResourceT, PageT], error: ScannerError) -> None:
        """End a session that cannot go on; its later calls fail with `error`. Idempotent."""
        if session.state is SessionState.IDLE:
            self.kept.remove(session, error)
        else:
            session.state = SessionState.ENDING
            session.ended_by = error

    def close(self, session_id: bytes) -> None:
        """End a session as its client asks; closing what is gone is no error.

        A call that is using the session finishes first, and frees it.
        """
        session = self.kept.get(session_id)
        if session is None:
            return
        if session.state is SessionState.IDLE:
            self.kept.remove(session)
        elif session.state is SessionState.CLAIMED:
            session.state = SessionState.ENDING
