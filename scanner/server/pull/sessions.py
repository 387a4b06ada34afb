"""Sessions: scans that live on the server between the calls of a client that pulls page after page.

Whoever serves a call *claims* the session, makes the page, and *completes* the call (or *abandons* it, and the
same call can be made again). Everything here is synchronous, so a check and what follows from it are one
step for every other task.

    IDLE --claim--> CLAIMED --complete--> IDLE
                       |----abandon-----> IDLE
    IDLE --close, expire, terminate, complete of the last page--> (gone)
    CLAIMED --close, terminate--> ENDING --complete, abandon--> (gone)

Invariants:

1. A session's resource is closed exactly once, and never while a call has it claimed.
2. Slots: reservations plus sessions, per bucket and in all, never exceed the caps. A refused open changes nothing.
3. The pages of a session are numbered 0 (the open), 1, 2, ... Repeating the last number returns the same page;
   any other number changes nothing.
4. Only a completed or repeated page extends a session's life.
5. What is remembered of sessions that are gone has a bound.

This module knows no clock (`now` is passed in), no randomness (`make_id` is), no transport and no Arrow.
"""

from __future__ import annotations

import enum
import functools
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from scanner.errors import (
    ScannerError,
    SequenceInvalid,
    SessionBusy,
    SessionExpired,
    SessionUnknown,
)
from scanner.server.pull.slots import Reservation, Slots

if TYPE_CHECKING:
    from scanner.server.config import ScannerConfig


class Resource(Protocol):
    """What a session holds: a scan."""

    def close(self) -> None:
        """Free it."""


class SessionState(enum.Enum):
    """Where a session is in its life."""

    IDLE = "idle"
    """No call is using it; its time runs."""
    CLAIMED = "claimed"
    """A call is using it; it cannot expire."""
    ENDING = "ending"
    """A call is using it, and it is gone as soon as that call lets go."""


ResourceT = TypeVar("ResourceT", bound=Resource)
PageT = TypeVar("PageT")


@dataclass(slots=True, eq=False)
class Session(Generic[ResourceT, PageT]):
    """One live scan between calls. Changed by the registry only."""

    id: bytes
    slot: Reservation
    resource: ResourceT
    page: PageT
    """The last page, kept in case its response was lost."""
    expires_at: float
    sequence: int = 0
    """Number of `page`."""
    state: SessionState = SessionState.IDLE
    confirmed: bool = False
    """Page 0 has arrived."""
    given_up: bool = False
    """Page 0 may not have arrived, and nobody has come back yet: it makes room for others."""
    ended_by: ScannerError | None = field(default=None)
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
        self._config = config
        self._make_id = make_id
        self._sessions: dict[bytes, Session[ResourceT, PageT]] = {}
        self._slots = Slots("sessions", config.sessions_per_bucket_max, config.sessions_max)
        self._gone: OrderedDict[bytes, ScannerError] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def reserve(self, bucket: Hashable) -> Reservation:
        """Take a slot for a session that is about to be opened; give it to `admit` or to `release`.

        Raises:
            TooManyScans: A cap is reached; nothing has changed.
        """
        given_up = [
            each for each in self._sessions.values() if each.given_up and each.state is SessionState.IDLE
        ]
        self._slots.make_room(
            bucket, ((each.slot, functools.partial(self._remove, each, None)) for each in given_up)
        )
        return self._slots.reserve(bucket)

    def sessions(self) -> list[Session[ResourceT, PageT]]:
        """All there are now."""
        return list(self._sessions.values())

    def release(self, reservation: Reservation) -> None:
        """Give a slot back: the open failed, or all rows fitted into its page. Idempotent."""
        self._slots.release(reservation)

    def new_id(self) -> bytes:
        """An id for a session, to be written into its first page."""
        return self._make_id()

    def admit(
        self, reservation: Reservation, session_id: bytes, resource: ResourceT, page: PageT, now: float
    ) -> Session[ResourceT, PageT]:
        """Turn a slot into a session whose page 0 has been made and does not complete the scan.

        Args:
            reservation: Held; the session has its slot from now on.
            session_id: From `new_id`.
            resource: Closed by the registry from now on.
            page: Page 0.
            now: Seconds, of the same clock in all calls.
        """
        expires_at = now + self._config.session_ttl_s
        session = Session(session_id, reservation.hand_over(), resource, page, expires_at)
        self._sessions[session_id] = session
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
        session = self._find(session_id, now)
        if session.state is not SessionState.IDLE:
            raise SessionBusy(
                "another call is using this session; it can be used again when that is answered"
            )
        wanted = session.sequence + 1
        if sequence == 0:
            raise SequenceInvalid(f"a continuation needs its call_seq_id; the next one is {wanted}")
        if sequence == session.sequence:
            session.expires_at = now + self._config.session_ttl_s
            return Repeat(session.page, session.bucket)
        if sequence != wanted:
            raise SequenceInvalid(
                f"call_seq_id {sequence} is out of sequence: {wanted} is next"
                + (f", {session.sequence} can be repeated." if session.sequence else "")
            )
        session.state = SessionState.CLAIMED
        session.given_up = False
        return session

    def complete(self, session: Session[ResourceT, PageT], page: PageT, now: float, *, last: bool) -> None:
        """End a call with a page; the last page of the scan ends the session as well."""
        if session.state is SessionState.ENDING:
            self._remove(session, session.ended_by)
        elif last:
            self._remove(session, None)
        else:
            session.page = page
            session.sequence += 1
            session.state = SessionState.IDLE
            session.expires_at = now + self._config.session_ttl_s

    def abandon(self, session: Session[ResourceT, PageT]) -> None:
        """End a call without a page, because its client has gone: the same call can be made again.

        What was decoded for the page stays with the resource. The session's life is not extended.
        """
        if session.state is SessionState.ENDING:
            self._remove(session, session.ended_by)
        else:
            session.state = SessionState.IDLE

    def terminate(self, session: Session[ResourceT, PageT], error: ScannerError) -> None:
        """End a session that cannot go on; its later calls fail with `error`. Idempotent."""
        if self._sessions.get(session.id) is not session:
            return
        if session.state is SessionState.IDLE:
            self._remove(session, error)
        else:
            session.state = SessionState.ENDING
            session.ended_by = error

    def give_up(self, session: Session[ResourceT, PageT], now: float, grace_s: float) -> None:
        """End a session because page 0 may not have arrived, unless it is continued, now or soon.

        Args:
            session: Gone is fine.
            now: Seconds.
            grace_s: How soon, seconds; 0: now.
        """
        if self._sessions.get(session.id) is not session:
            return
        if session.confirmed or session.sequence or session.state is not SessionState.IDLE:
            return
        session.given_up = True
        session.expires_at = min(session.expires_at, now + grace_s)
        if grace_s <= 0:
            self._remove(session, None)

    def close(self, session_id: bytes) -> None:
        """End a session as its client asks; closing what is gone is no error.

        A call that is using the session finishes first, and frees it.
        """
        session = self._sessions.get(session_id)
        if session is None:
            return
        if session.state is SessionState.IDLE:
            self._remove(session, None)
        elif session.state is SessionState.CLAIMED:
            session.state = SessionState.ENDING

    def sweep(self, now: float) -> int:
        """Reclaim the sessions that are idle past their TTL.

        Returns:
            How many these were.
        """
        overdue = [each for each in self._sessions.values() if self._is_overdue(each, now)]
        for session in overdue:
            self._expire(session)
        return len(overdue)

    def close_all(self) -> None:
        """Free everything; for the end of the server, when no call runs any more."""
        for session in list(self._sessions.values()):
            self._remove(session, None)

    def _find(self, session_id: bytes, now: float) -> Session[ResourceT, PageT]:
        session = self._sessions.get(session_id)
        if session is not None and self._is_overdue(session, now):
            self._expire(session)
            session = None
        if session is not None:
            return session
        gone = self._gone.get(session_id)
        if gone is not None:
            raise type(gone)(gone.message, metadata=gone.metadata)
        raise SessionUnknown(
            f"there is no session {session_id[:16].hex()}: it delivered its last page, was closed, or never was"
        )

    @staticmethod
    def _is_overdue(session: Session[ResourceT, PageT], now: float) -> bool:
        return session.state is SessionState.IDLE and now >= session.expires_at

    def _expire(self, session: Session[ResourceT, PageT]) -> None:
        ttl_s = self._config.session_ttl_s
        self._remove(
            session, SessionExpired(f"the session was idle for more than {ttl_s:g} s and is gone; scan again")
        )

    def _remove(self, session: Session[ResourceT, PageT], reason: ScannerError | None) -> None:
        del self._sessions[session.id]
        self._slots.release(session.slot)
        if reason is not None:
            self._gone[session.id] = reason
            if len(self._gone) > self._config.sessions_expired_max:
                self._gone.popitem(last=False)
        session.resource.close()
