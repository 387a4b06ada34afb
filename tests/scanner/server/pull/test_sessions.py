"""The session registry: caps, TTL, sequence, concurrency, and who frees what when."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from scanner.errors import (
    ScannerError,
    SequenceInvalid,
    SessionBusy,
    SessionExpired,
    SessionUnknown,
    TableNotFound,
    TooManyScans,
)
from scanner.server.config import ScannerConfig
from scanner.server.pull.sessions import Repeat, Session, SessionRegistry

TTL_S = 60.0
CONFIG = ScannerConfig(
    sessions_per_bucket_max=2,
    sessions_max=3,
    session_ttl_s=TTL_S,
    session_sweep_interval_s=10.0,
    sessions_expired_max=2,
)


@dataclass(eq=False)
class Resource:
    """Counts how often it was closed."""

    closed: int = 0

    def close(self, *, linger: bool = False) -> None:
        """Free it."""
        self.closed += 1


Registry = SessionRegistry[Resource, str]


def registry() -> Registry:
    """A registry with small caps and predictable ids."""
    numbers = itertools.count(1)
    return SessionRegistry(CONFIG, lambda: b"session-%d" % next(numbers))


def opened(
    sessions: Registry, bucket: str = "a", now: float = 0.0, resource: Resource | None = None
) -> Session[Resource, str]:
    """A session whose page 0 has been made."""
    reservation = sessions.kept.reserve(bucket)
    return sessions.admit(reservation, sessions.kept.new_id(), resource or Resource(), "page 0", now)


def claimed(sessions: Registry, session: Session[Resource, str], sequence: int, now: float = 0.0) -> None:
    """Claim a page that is not a repetition."""
    assert sessions.claim(session.id, sequence, now) is session


def pull(sessions: Registry, session: Session[Resource, str], sequence: int, now: float = 0.0) -> None:
    """One whole call."""
    claimed(sessions, session, sequence, now)
    sessions.complete(session, f"page {sequence}", now, last=False)


def test_pages_come_in_sequence() -> None:
    """Open is call 0, continuations are 1, 2, 3; the last page ends the session by itself."""
    sessions = registry()
    session = opened(sessions)
    pull(sessions, session, 1)
    pull(sessions, session, 2)
    claimed(sessions, session, 3)
    sessions.complete(session, "page 3", 0.0, last=True)

    assert (len(sessions.kept), session.resource.closed) == (0, 1)
    with pytest.raises(SessionUnknown):
        sessions.claim(session.id, 4, 0.0)


def test_a_repeated_continuation_returns_the_same_page() -> None:
    """A lost response is asked for again and costs no progress."""
    sessions = registry()
    session = opened(sessions)
    pull(sessions, session, 1)

    assert sessions.claim(session.id, 1, 0.0) == Repeat("page 1", "a")
    assert sessions.claim(session.id, 1, 0.0) == Repeat("page 1", "a")
    pull(sessions, session, 2)


@pytest.mark.parametrize(
    ("sequence", "says"), [(0, "needs its call_seq_id"), (3, "2 is next"), (99, "2 is next")]
)
def test_a_missing_number_and_a_gap_are_refused(sequence: int, says: str) -> None:
    """The refusal says which number is next, and the session is unharmed."""
    sessions = registry()
    session = opened(sessions)
    pull(sessions, session, 1)

    with pytest.raises(SequenceInvalid, match=says):
        sessions.claim(session.id, sequence, 0.0)
    pull(sessions, session, 2)


def test_a_repetition_of_the_past_is_refused() -> None:
    """Only the last page is kept; an older number is out of sequence."""
    sessions = registry()
    session = opened(sessions)
    pull(sessions, session, 1)
    pull(sessions, session, 2)

    with pytest.raises(SequenceInvalid, match="3 is next, 2 can be repeated"):
        sessions.claim(session.id, 1, 0.0)


def test_concurrent_use_has_one_winner() -> None:
    """While a call has the session claimed every other one is told so, whatever its number."""
    sessions = registry()
    session = opened(sessions)
    claimed(sessions, session, 1)

    for sequence in (0, 1, 2):
        with pytest.raises(SessionBusy):
            sessions.claim(session.id, sequence, 0.0)
    sessions.complete(session, "page 1", 0.0, last=False)
    pull(sessions, session, 2)


def test_an_abandoned_call_can_be_made_again() -> None:
    """A client that went away while its page was made loses nothing."""
    sessions = registry()
    session = opened(sessions)
    claimed(sessions, session, 1)
    sessions.abandon(session)

    pull(sessions, session, 1)


def test_caps_refuse_and_leave_the_count_unchanged() -> None:
    """The one too many on a bucket, and on the server, is refused; a freed slot can be taken again."""
    sessions = registry()
    first = opened(sessions, "a")
    opened(sessions, "a")
    for _ in range(3):
        with pytest.raises(TooManyScans, match="2 sessions are open on this bucket"):
            sessions.kept.reserve("a")
    opened(sessions, "b")
    for _ in range(3):
        with pytest.raises(TooManyScans, match="3 sessions are open on this server"):
            sessions.kept.reserve("c")
    sessions.close(first.id)

    opened(sessions, "a")


def test_a_released_reservation_is_free_again() -> None:
    """An open that failed, or fitted into one page, holds no slot, however often it lets go."""
    sessions = registry()
    for _ in range(5):
        reservation = sessions.kept.reserve("a")
        sessions.kept.release(reservation)
        sessions.kept.release(reservation)
    admitted = sessions.kept.reserve("a")
    sessions.admit(admitted, sessions.kept.new_id(), Resource(), "page 0", 0.0)
    sessions.kept.release(admitted)

    assert len(sessions.kept) == 1
    sessions.kept.reserve("a")
    with pytest.raises(TooManyScans):
        sessions.kept.reserve("a")


def test_an_idle_session_expires_and_is_not_unknown() -> None:
    """Past its TTL a session is gone, swept or not, and says so; one that never was is unknown."""
    sessions = registry()
    swept, found = opened(sessions, "a"), opened(sessions, "b")

    assert sessions.kept.sweep(TTL_S - 0.1) == 0
    with pytest.raises(SessionExpired, match="60 s"):
        sessions.claim(found.id, 1, TTL_S)
    assert sessions.kept.sweep(TTL_S) == 1
    with pytest.raises(SessionExpired):
        sessions.claim(swept.id, 1, TTL_S)
    with pytest.raises(SessionUnknown):
        sessions.claim(b"never", 1, TTL_S)
    assert (swept.resource.closed, found.resource.closed, len(sessions.kept)) == (1, 1, 0)


def test_only_pages_extend_a_life() -> None:
    """A page, also a repeated one, extends it; a lookup, a refused or an abandoned call does not."""
    sessions = registry()
    session = opened(sessions)
    pull(sessions, session, 1, now=50.0)
    assert sessions.claim(session.id, 1, 100.0) == Repeat("page 1", "a")
    with pytest.raises(SequenceInvalid):
        sessions.claim(session.id, 7, 150.0)
    claimed(sessions, session, 2, 155.0)
    sessions.abandon(session)

    assert sessions.kept.sweep(159.0) == 0
    assert sessions.kept.sweep(160.0) == 1


def test_a_claimed_session_does_not_expire() -> None:
    """However long its page takes, a call keeps the session; its time starts over with the page."""
    sessions = registry()
    session = opened(sessions)
    claimed(sessions, session, 1)

    assert sessions.kept.sweep(1000.0) == 0
    sessions.complete(session, "page 1", 1000.0, last=False)
    pull(sessions, session, 2, now=1059.0)


def test_close_is_idempotent() -> None:
    """Closing frees the slot once; closing again, or what never was, is no error; then it is unknown."""
    sessions = registry()
    session = opened(sessions)
    sessions.close(session.id)
    sessions.close(session.id)
    sessions.close(b"never")

    assert (session.resource.closed, len(sessions.kept)) == (1, 0)
    with pytest.raises(SessionUnknown):
        sessions.claim(session.id, 1, 0.0)


@pytest.mark.parametrize("way", ["complete", "complete last", "abandon"])
def test_close_never_frees_what_a_call_is_using(way: str) -> None:
    """The call that has the session claimed frees it when it lets go."""
    sessions = registry()
    session = opened(sessions)
    claimed(sessions, session, 1)
    sessions.close(session.id)
    sessions.close(session.id)
    assert session.resource.closed == 0
    with pytest.raises(SessionBusy):
        sessions.claim(session.id, 1, 0.0)

    if way == "abandon":
        sessions.abandon(session)
    else:
        sessions.complete(session, "page 1", 0.0, last=way == "complete last")
    assert (session.resource.closed, len(sessions.kept)) == (1, 0)


@pytest.mark.parametrize("busy", [False, True])
def test_a_terminated_session_says_why(busy: bool) -> None:
    """After the table was dropped, a continuation fails with that, not with unknown."""
    sessions = registry()
    session = opened(sessions)
    if busy:
        claimed(sessions, session, 1)
    sessions.terminate(session, TableNotFound("table 'a' was dropped"))
    if busy:
        assert session.resource.closed == 0
        sessions.abandon(session)
    sessions.terminate(session, TableNotFound("again"))

    assert session.resource.closed == 1
    with pytest.raises(TableNotFound, match="'a' was dropped"):
        sessions.claim(session.id, 1, 0.0)


def test_the_memory_of_what_is_gone_is_bounded() -> None:
    """Past the bound the oldest expired ids become unknown."""
    sessions = registry()
    gone = [opened(sessions, bucket) for bucket in "abc"]
    for index, session in enumerate(gone):
        sessions.terminate(session, TableNotFound(str(index)))

    with pytest.raises(SessionUnknown):
        sessions.claim(gone[0].id, 1, 0.0)
    with pytest.raises(TableNotFound):
        sessions.claim(gone[1].id, 1, 0.0)


@dataclass
class Model:
    """What a session should be."""

    session: Session[Resource, str]
    sequence: int = 0
    busy: bool = False
    ending: bool = False
    resource: Resource = field(default_factory=Resource)


class SessionMachine(RuleBasedStateMachine):
    """Any order of calls by any number of clients keeps the invariants of the registry."""

    @initialize()
    def start(self) -> None:
        """Begin without sessions."""
        self.sessions = registry()
        self.now = 0.0
        self.live: list[Model] = []
        self.dead: list[Model] = []

    def _drop(self, model: Model) -> None:
        self.live.remove(model)
        self.dead.append(model)

    def _pick(self, data: st.DataObject) -> Model:
        return data.draw(st.sampled_from(self.live))

    @rule(bucket=st.sampled_from("ab"))
    def open(self, bucket: str) -> None:
        """Open, or be refused by exactly the caps."""
        on_bucket = sum(model.session.bucket == bucket for model in self.live)
        if on_bucket >= CONFIG.sessions_per_bucket_max or len(self.live) >= CONFIG.sessions_max:
            with pytest.raises(TooManyScans):
                self.sessions.kept.reserve(bucket)
        else:
            resource = Resource()
            self.live.append(Model(opened(self.sessions, bucket, self.now, resource), resource=resource))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), sequence=st.integers(0, 4))
    def claim(self, data: st.DataObject, sequence: int) -> None:
        """Claim any page: the model knows what should come of it."""
        model = self._pick(data)
        overdue = not model.busy and self.now >= model.session.expires_at
        try:
            result = self.sessions.claim(model.session.id, sequence, self.now)
        except SessionExpired:
            assert overdue
            self._drop(model)
        except SessionBusy:
            assert model.busy
        except SequenceInvalid:
            assert not model.busy
            assert sequence == 0 or sequence not in (model.sequence, model.sequence + 1)
        else:
            assert not model.busy
            assert not overdue
            if isinstance(result, Repeat):
                assert 0 < sequence == model.sequence
            else:
                assert sequence == model.sequence + 1
                model.busy = True

    @precondition(lambda self: any(model.busy for model in self.live))
    @rule(data=st.data(), way=st.sampled_from(["page", "last", "abandon"]))
    def let_go(self, data: st.DataObject, way: str) -> None:
        """End a call in any way."""
        model = data.draw(st.sampled_from([model for model in self.live if model.busy]))
        model.busy = False
        if way == "abandon":
            self.sessions.abandon(model.session)
        else:
            self.sessions.complete(model.session, "page", self.now, last=way == "last")
            model.sequence += 1
        if model.ending or way == "last":
            self._drop(model)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), error=st.sampled_from([None, TableNotFound("dropped")]))
    def end(self, data: st.DataObject, error: ScannerError | None) -> None:
        """Close or terminate, claimed or not."""
        model = self._pick(data)
        if error is None:
            self.sessions.close(model.session.id)
        else:
            self.sessions.terminate(model.session, error)
        if model.busy:
            model.ending = True
        else:
            self._drop(model)

    @rule(seconds=st.floats(0, TTL_S))
    def sweep(self, seconds: float) -> None:
        """Let time pass, and sweep."""
        self.now += seconds
        overdue = [m for m in self.live if not m.busy and self.now >= m.session.expires_at]
        assert self.sessions.kept.sweep(self.now) == len(overdue)
        for model in overdue:
            self._drop(model)

    @invariant()
    def resources_are_freed_once_and_in_time(self) -> None:
        """What lives is open, what is gone was closed exactly once."""
        if hasattr(self, "sessions"):
            assert len(self.sessions.kept) == len(self.live)
            assert {model.resource.closed for model in self.live} <= {0}
            assert {model.resource.closed for model in self.dead} <= {1}


TestSessionMachine = SessionMachine.TestCase
