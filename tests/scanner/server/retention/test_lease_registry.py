"""The registry of leases: counting, time, and the document, by example and by random walks."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from scanner.errors import DataCorrupted, LeaseNotFound
from scanner.server.retention.lease_registry import (
    BucketKey,
    CheckpointKey,
    LeasedState,
    LeaseKey,
    LeaseRegistry,
)
from tests.support.python_calls import counted_calls

KEY = LeaseKey("anna", "report")


def state(bucket: int = 0, checkpoint: int | None = 1, *, table_id: int = 7) -> LeasedState:
    """A state of the table of this id; its offset is a hundred times the checkpoint's id."""
    return LeasedState(
        table="items",
        table_id=table_id,
        bucket=bucket,
        checkpoint_id=checkpoint,
        log_offset=100 * (checkpoint or 0),
    )


def test_moving_a_bucket_lets_go_of_the_state_before() -> None:
    """A bucket is kept once, as the last acquisition says; the others of the lease stay."""
    registry = LeaseRegistry()
    registry.acquire(KEY, [state(0), state(1)], ttl_ms=10, now_ms=0)
    lease = registry.acquire(KEY, [state(0, 2)], ttl_ms=10, now_ms=5)
    assert lease is not None
    assert lease.sorted_states() == [state(0, 2), state(1)]
    assert lease.expires_at_ms == 15
    assert [registry.references(CheckpointKey(7, 0, number)) for number in (1, 2)] == [0, 1]


def test_an_acquisition_of_nothing_makes_no_lease() -> None:
    """A lease has at least one bucket; acquiring nothing under a known id renews it."""
    registry = LeaseRegistry()
    assert registry.acquire(KEY, [], ttl_ms=10, now_ms=0) is None
    registry.acquire(KEY, [state()], ttl_ms=10, now_ms=0)
    renewed = registry.acquire(KEY, [], ttl_ms=20, now_ms=1)
    assert renewed is not None
    assert (renewed.expires_at_ms, renewed.sorted_states()) == (21, [state()])


def test_time_ends_a_lease_whether_collected_or_not() -> None:
    """At its last moment a lease is gone for everybody who asks, and it is counted no longer when it is collected."""
    registry = LeaseRegistry()
    registry.acquire(KEY, [state()], ttl_ms=10, now_ms=0)
    assert [lease.key for lease in registry.leases(9)] == [KEY]
    assert registry.leases(10) == []
    registry.expire(10)
    assert (len(registry), registry.references(CheckpointKey(7, 0, 1))) == (0, 0)
    with pytest.raises(LeaseNotFound, match="expired"):
        registry.renew(KEY, now_ms=10)


def test_a_renewal_tells_why_a_lease_was_ended() -> None:
    """The reason is remembered until the lease is acquired again."""
    registry = LeaseRegistry()
    registry.acquire(KEY, [state()], ttl_ms=10, now_ms=0)
    assert registry.drop(KEY, now_ms=1, why="it kept too much")
    with pytest.raises(LeaseNotFound, match="it kept too much"):
        registry.renew(KEY, now_ms=1)
    registry.acquire(KEY, [state()], ttl_ms=10, now_ms=2)
    assert registry.drop(KEY, now_ms=3)
    with pytest.raises(LeaseNotFound, match="was dropped"):
        registry.renew(KEY, now_ms=3)


def test_dropped_tables_are_forgotten() -> None:
    """Their buckets leave the leases, by id, so that a new table of the name is another one."""
    registry = LeaseRegistry()
    other = LeaseKey("anna", "other")
    registry.acquire(KEY, [state(), state(table_id=8)], ttl_ms=10, now_ms=0)
    registry.acquire(other, [state()], ttl_ms=10, now_ms=0)
    assert {state.table_id for _, state in registry.states()} == {7, 8}
    registry.forget_tables([7], now_ms=5)
    assert registry.get(other, 0) is None
    with pytest.raises(LeaseNotFound, match="its table was dropped"):
        registry.renew(other, now_ms=0)
    kept = registry.get(KEY, 0)
    assert kept is not None
    assert list(kept.states) == [BucketKey(8, 0)]


def test_a_clock_set_back_gives_no_lease_more_than_its_time() -> None:
    """What is read has at most its time to live left."""
    registry = LeaseRegistry()
    registry.acquire(KEY, [state()], ttl_ms=10, now_ms=1000)
    read = LeaseRegistry.from_document(
        registry.to_document(registry.frozen(), registry.frozen_ended()), now_ms=500
    )
    assert read.leases(500)[0].remaining_ms(500) == 10


def test_what_has_expired_is_not_read() -> None:
    """A lease whose time went by while nobody served it is not there, and counts nowhere."""
    registry = LeaseRegistry()
    registry.acquire(KEY, [state()], ttl_ms=10, now_ms=1000)
    read = LeaseRegistry.from_document(
        registry.to_document(registry.frozen(), registry.frozen_ended()), now_ms=1010
    )
    assert (len(read), read.references(CheckpointKey(7, 0, 1))) == (0, 0)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"leases": [{"id": "x"}]}',
        b'{"leases": [{"principal": "a", "id": "x", "ttl_ms": 1, "expires_at_ms": 2, "buckets": []}]}',
    ],
)
def test_a_document_that_cannot_be_read(content: bytes) -> None:
    """Damage is an error; leases are not silently forgotten."""
    with pytest.raises(DataCorrupted):
        LeaseRegistry.from_document(content, now_ms=0)


def test_the_document_is_text_that_people_can_read() -> None:
    """Its fields have the names of the protocol."""
    registry = LeaseRegistry()
    registry.acquire(KEY, [state(3, None)], ttl_ms=10, now_ms=0)
    assert json.loads(registry.to_document(registry.frozen(), registry.frozen_ended())) == {
        "leases": [
            {
                "principal": "anna",
                "id": "report",
                "ttl_ms": 10,
                "expires_at_ms": 10,
                "buckets": [
                    {
                        "table": "items",
                        "table_id": 7,
                        "bucket": 3,
                        "checkpoint_id": None,
                        "log_offset": 0,
                        "history": "0" * 32,
                    }
                ],
            }
        ],
        "ended": [],
        "forgotten_ms": 0,
    }
    registry.drop(KEY, now_ms=7, why="it kept too much")
    assert json.loads(registry.to_document(registry.frozen(), registry.frozen_ended())) == {
        "leases": [],
        "ended": [{"principal": "anna", "id": "report", "at_ms": 7, "why": "it kept too much"}],
        "forgotten_ms": 0,
    }


def test_a_lease_that_is_renewed_is_written_without_its_states_being_encoded_again() -> None:
    """Each renewal writes all leases: with 1000 of ten buckets that was 60 ms of encoding."""

    def calls_of_writing(buckets: int) -> int:
        registry = LeaseRegistry()
        registry.acquire(KEY, [state(index) for index in range(buckets)], ttl_ms=10, now_ms=0)
        LeaseRegistry.to_document(registry.frozen())
        renewed = registry.renew(KEY, now_ms=5)
        calls = counted_calls(lambda: LeaseRegistry.to_document([renewed]))
        assert LeaseRegistry.from_document(LeaseRegistry.to_document([renewed]), 5).frozen() == (renewed,)
        return calls

    assert calls_of_writing(2) == calls_of_writing(200)


def reread(registry: LeaseRegistry, now_ms: int) -> LeaseRegistry:
    """What the next server has."""
    return LeaseRegistry.from_document(
        registry.to_document(registry.frozen(), registry.frozen_ended()), now_ms
    )


@pytest.mark.parametrize("restarted", [False, True])
def test_a_lease_that_ended_is_remembered(restarted: bool) -> None:
    """Whatever ended it, also while no server ran; an id that never named one is not taken for it."""
    registry = LeaseRegistry()
    ended = [LeaseKey("anna", name) for name in ("expired", "dropped", "released", "without a table")]
    for key, ttl_ms in zip(ended, (10, 99, 99, 99), strict=True):
        registry.acquire(key, [state(table_id=8 if key == ended[3] else 7)], ttl_ms=ttl_ms, now_ms=1)
    registry.drop(ended[1], now_ms=2)
    registry.release(ended[2], [state().bucket_key], now_ms=2)
    registry.forget_tables([8], now_ms=2)
    if restarted:
        registry = reread(registry, 20)
    assert registry.get(ended[0], 20) is None
    assert all(registry.may_have_ended(key, 1) for key in ended)
    assert not registry.may_have_ended(LeaseKey("anna", "new"), 1)
    assert not registry.may_have_ended(LeaseKey("bert", "expired"), 1)


def test_what_is_forgotten_may_have_been() -> None:
    """Of so many leases that the first ones are forgotten, an id as old as these is refused, and a younger one not."""
    registry = LeaseRegistry()
    for number in range(1, 1501):
        registry.acquire(LeaseKey("anna", f"{number}"), [state()], ttl_ms=1, now_ms=number)
    registry.expire(9999)
    for read in (registry, reread(registry, 9999)):
        new = LeaseKey("anna", "new")
        assert all(read.may_have_ended(LeaseKey("anna", f"{each}"), each) for each in range(1, 1501))
        assert read.may_have_ended(new, 500)
        assert not read.may_have_ended(new, 502)
        assert len(read.frozen_ended().leases) == 1000


def test_a_lease_that_was_found_to_have_expired_late_makes_nothing_known_again() -> None:
    """Its end is older than that of one that was forgotten before it; ids as old as the latter are refused still."""
    registry = LeaseRegistry()
    dropped = LeaseKey("anna", "dropped")
    registry.acquire(KEY, [state()], ttl_ms=10, now_ms=0)
    registry.acquire(dropped, [state()], ttl_ms=9999, now_ms=0)
    registry.drop(dropped, now_ms=5000)
    registry.expire(6000)
    for number in range(1000):
        registry.acquire(LeaseKey("bert", f"{number}"), [state()], ttl_ms=1, now_ms=6000)
    registry.expire(7000)
    assert not registry.has_ended(dropped)
    assert registry.may_have_ended(dropped, 4000)


def test_a_clock_set_back_makes_no_new_id_older_than_what_is_forgotten() -> None:
    """Ended by a clock that was ahead, or restored by one: ids from before this start are refused, and no others."""
    registry = LeaseRegistry(forgotten_ms=9000)
    for number in range(1000):
        registry.acquire(LeaseKey("anna", f"{number}"), [state()], ttl_ms=1, now_ms=9000 + number)
    registry.expire(99_999)
    read = reread(registry, 500)
    new = LeaseKey("anna", "new")
    assert read.may_have_ended(new, 500)
    assert not read.may_have_ended(new, 501)
    for number in range(10):  # Now the oldest of those that were read are forgotten.
        read.acquire(LeaseKey("bert", f"{number}"), [state()], ttl_ms=1, now_ms=510)
    read.expire(600)
    assert read.may_have_ended(LeaseKey("anna", "0"), 500)
    assert not read.may_have_ended(new, 512)


def test_an_older_server_wrote_down_no_ends() -> None:
    """What ended before this one began is not known: an id that was there by then is refused."""
    document = json.dumps({"leases": []}).encode()
    registry = LeaseRegistry.from_document(document, 100)
    assert registry.may_have_ended(KEY, 100)
    assert not registry.may_have_ended(KEY, 101)


KEYS = st.builds(LeaseKey, st.sampled_from("ab"), st.sampled_from("xyz"))
STATES = st.builds(state, st.integers(0, 2), st.none() | st.integers(0, 2), table_id=st.integers(1, 2))
TTLS = st.integers(1, 20)


class RegistryWalk(RuleBasedStateMachine):
    """Random calls, beside a model that is nothing but dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = LeaseRegistry()
        self.now = 0
        self.model: dict[LeaseKey, tuple[int, int, dict[BucketKey, LeasedState]]] = {}
        self.ever: set[LeaseKey] = set()

    def living(self, key: LeaseKey) -> tuple[int, int, dict[BucketKey, LeasedState]] | None:
        """TTL, end and states of a lease that is there."""
        found = self.model.get(key)
        return found if found is not None and found[1] > self.now else None

    @rule(key=KEYS, states=st.lists(STATES, max_size=4), ttl_ms=TTLS)
    def acquire(self, key: LeaseKey, states: list[LeasedState], ttl_ms: int) -> None:
        was = self.living(key)
        kept = dict(was[2]) if was else {}
        kept.update({each.bucket_key: each for each in states})
        lease = self.registry.acquire(key, states, ttl_ms=ttl_ms, now_ms=self.now)
        if kept:
            self.model[key] = (ttl_ms, self.now + ttl_ms, kept)
            self.ever.add(key)
        else:
            self.model.pop(key, None)
        assert (lease is None) == (not kept)

    @rule(key=KEYS, ttl_ms=st.none() | TTLS)
    def renew(self, key: LeaseKey, ttl_ms: int | None) -> None:
        was = self.living(key)
        if was is None:
            with pytest.raises(LeaseNotFound):
                self.registry.renew(key, now_ms=self.now, ttl_ms=ttl_ms)
            return
        ttl_ms = ttl_ms or was[0]
        self.model[key] = (ttl_ms, self.now + ttl_ms, was[2])
        assert self.registry.renew(key, now_ms=self.now, ttl_ms=ttl_ms).remaining_ms(self.now) == ttl_ms

    @rule(key=KEYS, buckets=st.lists(st.builds(BucketKey, st.integers(1, 2), st.integers(0, 2))))
    def release(self, key: LeaseKey, buckets: list[BucketKey]) -> None:
        was = self.living(key)
        left = {} if was is None else {at: each for at, each in was[2].items() if at not in buckets}
        if was is None or not left:
            self.model.pop(key, None)
        else:
            self.model[key] = (was[0], was[1], left)
        for _ in range(2):  # idempotent
            assert (self.registry.release(key, buckets, now_ms=self.now) is None) == (not left)

    @rule(key=KEYS)
    def drop(self, key: LeaseKey) -> None:
        assert self.registry.drop(key, now_ms=self.now) == (self.living(key) is not None)
        self.model.pop(key, None)
        assert not self.registry.drop(key, now_ms=self.now)

    @rule(table=st.integers(1, 2))
    def forget_table(self, table: int) -> None:
        self.registry.forget_tables([table], now_ms=self.now)
        for key, (ttl_ms, end, states) in list(self.model.items()):
            left = {at: each for at, each in states.items() if at.table_id != table}
            if left:
                self.model[key] = (ttl_ms, end, left)
            else:
                del self.model[key]

    @rule(by=st.integers(1, 15), sweep=st.booleans())
    def pass_time(self, by: int, sweep: bool) -> None:
        self.now += by
        if sweep:
            self.registry.expire(self.now)
            assert all(lease.expires_at_ms > self.now for lease in self.registry.leases(0))

    @rule()
    def restart(self) -> None:
        self.registry = LeaseRegistry.from_document(
            self.registry.to_document(self.registry.frozen(), self.registry.frozen_ended()), self.now
        )

    @invariant()
    def the_same_leases_are_there(self) -> None:
        expected = {key: living for key in self.model if (living := self.living(key))}
        found = {
            lease.key: (lease.ttl_ms, lease.expires_at_ms, dict(lease.states))
            for lease in self.registry.leases(self.now)
        }
        assert found == expected

    @invariant()
    def what_was_there_is_or_has_ended(self) -> None:
        for key in (LeaseKey(principal, lease_id) for principal in "ab" for lease_id in "xyz"):
            there = self.registry.get(key, self.now) is not None
            assert self.registry.has_ended(key) == (key in self.ever and not there)

    @invariant()
    def references_are_the_sum_of_what_is_kept(self) -> None:
        held = Counter(each.checkpoint_key for _, each in self.registry.states())
        for table in (1, 2):
            for bucket in range(3):
                for number in range(3):
                    at = CheckpointKey(table, bucket, number)
                    assert self.registry.references(at) == held[at] >= 0


TestRegistryWalk = RegistryWalk.TestCase
TestRegistryWalk.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
