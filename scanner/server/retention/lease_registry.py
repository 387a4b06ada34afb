"""Leases: who keeps which states of buckets readable, and until when. Pure: the time is passed in.

A lease belongs to a principal and has an id of the principal's choice. Of each of its buckets it keeps one state: a
checkpoint, unless the log alone is kept, and the log from the state's offset on.

Invariants:

1. A lease keeps at most one state of a bucket, and has at least one bucket.
2. The references of a checkpoint are the buckets of leases that keep it: each lease counts once.
3. A lease whose time is over is not there, whether it has been collected or not.
4. What `to_document` writes, `from_document` reads back, but for leases whose time is over meanwhile: these have ended.
5. Of a lease that ended it is known that it did, or that leases which ended as late as it are not known any more.

This module knows no storage, no wire, no clock and no trio. Times are milliseconds since 1970 UTC.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from scanner.errors import DataCorrupted, LeaseNotFound
from scanner.storage.lineage import NO_HISTORY

LEASES_DOCUMENT: Final = "leases.json"
"""Where a server writes them down."""
_ENDED_MAX: Final = 1000
"""Leases that ended and are remembered; the oldest are forgotten first."""


class LeaseKey(NamedTuple):
    """Names a lease."""

    principal: str
    lease_id: str


class BucketKey(NamedTuple):
    """Names a bucket, also apart from one of a table of the same name that was created later."""

    table_id: int
    bucket: int


class CheckpointKey(NamedTuple):
    """Names a checkpoint."""

    table_id: int
    bucket: int
    checkpoint_id: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LeasedState:
    """What a lease keeps of one bucket."""

    table: str
    table_id: int
    bucket: int
    checkpoint_id: int | None
    """None: only the log is kept, and the state is rebuilt from it."""
    log_offset: int
    """The state: the changes with a smaller offset. The log is kept from here on."""
    history: bytes = NO_HISTORY
    """The history of the bucket that the state is of."""

    @property
    def bucket_key(self) -> BucketKey:
        """The bucket."""
        return BucketKey(self.table_id, self.bucket)

    @property
    def checkpoint_key(self) -> CheckpointKey | None:
        """The checkpoint, if one is kept."""
        if self.checkpoint_id is None:
            return None
        return CheckpointKey(self.table_id, self.bucket, self.checkpoint_id)


class LeasedStates(dict[BucketKey, LeasedState]):
    """What one lease keeps, never changed: a lease that is renewed has the same, and a lease that keeps others, others.

    So it is encoded once. Most changes of leases are renewals, and each writes all leases.
    """

    def in_order(self) -> list[LeasedState]:
        """By table and bucket."""
        return sorted(self.values(), key=lambda state: (state.table, state.table_id, state.bucket))

    @functools.cached_property
    def text(self) -> str:
        """As the document has it."""
        return json.dumps([_state_to_json(state) for state in self.in_order()])


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """One lease as it is at one moment."""

    key: LeaseKey
    ttl_ms: int
    """How long it lives from each acquisition and renewal on, above 0."""
    expires_at_ms: int
    """It exists before this time, and not from it on."""
    states: LeasedStates
    """What it keeps, at least one."""

    def remaining_ms(self, now_ms: int) -> int:
        """How long it lives from now on, 0 or more."""
        return max(0, self.expires_at_ms - now_ms)

    def sorted_states(self) -> list[LeasedState]:
        """What it keeps, by table and bucket."""
        return self.states.in_order()


class _Ended(NamedTuple):
    """How a lease ended."""

    at_ms: int
    why: str
    """What a renewal fails with; empty: it expired, or was dropped."""


@dataclass(frozen=True, slots=True)
class EndedLeases:
    """Leases that ended; a copy."""

    leases: tuple[tuple[LeaseKey, _Ended], ...] = ()
    """Those that are remembered, in the order in which they ended."""
    forgotten_ms: int = 0
    """No lease that is forgotten ended later."""


class LeaseRegistry:
    """All leases of a server.

    Args:
        forgotten_ms: Of leases that ended up to this time nothing is known.
    """

    def __init__(self, forgotten_ms: int = 0) -> None:
        self._leases: dict[LeaseKey, Lease] = {}
        self._references: Counter[CheckpointKey] = Counter()
        self._ended: dict[LeaseKey, _Ended] = {}
        self._forgotten_ms = forgotten_ms
        self.kept_changes = 0
        """Grows whenever other states are kept than before; while it is the same, they are the same."""

    def __len__(self) -> int:
        """Leases that have not been collected."""
        return len(self._leases)

    def acquire(
        self, key: LeaseKey, states: Iterable[LeasedState], *, ttl_ms: int, now_ms: int
    ) -> Lease | None:
        """Add buckets to a lease, or move them to another state, and begin its time anew.

        Args:
            key: The lease; made if there is none.
            states: What it is to keep; the last one of a bucket counts. What it kept of these buckets is released.
            ttl_ms: Above 0.
            now_ms: The time.

        Returns:
            The lease; None if it would have no bucket.
        """
        before = self.get(key, now_ms)
        after = dict(before.states) if before is not None else {}
        after.update((state.bucket_key, state) for state in states)
        self._put(key, after, ttl_ms, now_ms + ttl_ms)
        return self._leases.get(key)

    def renew(self, key: LeaseKey, *, now_ms: int, ttl_ms: int | None = None) -> Lease:
        """Begin a lease's time anew.

        Args:
            key: The lease.
            now_ms: The time.
            ttl_ms: Above 0; None: as before.

        Raises:
            LeaseNotFound: There is none, or not any more; the message says why, where that is known.
        """
        lease = self.get(key, now_ms)
        if lease is None:
            ended = self._ended.get(key)
            why = (ended and ended.why) or "it was never acquired, was dropped, or expired; acquire it again"
            raise LeaseNotFound(f"there is no lease {key.lease_id!r}: {why}")
        ttl_ms = lease.ttl_ms if ttl_ms is None else ttl_ms
        renewed = replace(lease, ttl_ms=ttl_ms, expires_at_ms=now_ms + ttl_ms)
        self._leases[key] = renewed
        return renewed

    def release(self, key: LeaseKey, buckets: Iterable[BucketKey], *, now_ms: int) -> Lease | None:
        """Release buckets. Those that the lease does not keep, and an unknown lease, are no error.

        Returns:
            The lease; None if it is gone, now or before.
        """
        lease = self.get(key, now_ms)
        if lease is not None:
            gone = set(buckets)
            left = {at: state for at, state in lease.states.items() if at not in gone}
            if left:
                self._put(key, left, lease.ttl_ms, lease.expires_at_ms)
            else:
                self._end(key, now_ms)
        return self._leases.get(key)

    def drop(self, key: LeaseKey, *, now_ms: int, why: str = "") -> bool:
        """Release everything that a lease keeps. An unknown lease is no error.

        Args:
            key: The lease.
            now_ms: The time.
            why: What a renewal fails with; empty: it was dropped.

        Returns:
            Whether it was there.
        """
        if self.get(key, now_ms) is None:
            return False
        self._end(key, now_ms, why)
        return True

    def has_ended(self, key: LeaseKey) -> bool:
        """Whether a lease of this id is remembered to have ended."""
        return key in self._ended

    def may_have_ended(self, key: LeaseKey, since_ms: int) -> bool:
        """Whether a lease of this id ended after a time, as far as that is known."""
        return self.has_ended(key) or since_ms <= self._forgotten_ms

    def expire(self, now_ms: int) -> None:
        """Collect the leases whose time is over."""
        for lease in [lease for lease in self._leases.values() if lease.expires_at_ms <= now_ms]:
            self._end(lease.key, lease.expires_at_ms)

    def forget_tables(self, gone: Iterable[int], *, now_ms: int) -> None:
        """Release every bucket of dropped tables, named by their ids."""
        tables = set(gone)
        for lease in list(self._leases.values()):
            left = {at: state for at, state in lease.states.items() if at.table_id not in tables}
            if not left:
                self._end(lease.key, now_ms, "its table was dropped")
            elif len(left) < len(lease.states):
                self._put(lease.key, left, lease.ttl_ms, lease.expires_at_ms)

    def get(self, key: LeaseKey, now_ms: int) -> Lease | None:
        """A lease, if it exists now; an expired one is removed."""
        lease = self._leases.get(key)
        if lease is not None and lease.expires_at_ms <= now_ms:
            self._end(key, lease.expires_at_ms)
            return None
        return lease

    def leases(self, now_ms: int) -> list[Lease]:
        """The leases that exist now, by principal and id."""
        return sorted(
            (lease for lease in self._leases.values() if lease.expires_at_ms > now_ms),
            key=lambda lease: lease.key,
        )

    def states(self) -> Iterator[tuple[LeaseKey, LeasedState]]:
        """Everything that is kept, by leases that have not been collected."""
        for key, lease in self._leases.items():
            for state in lease.states.values():
                yield key, state

    def references(self, checkpoint: CheckpointKey) -> int:
        """How many leases keep a checkpoint."""
        return self._references[checkpoint]

    def count_of(self, principal: str) -> int:
        """Leases of one principal that have not been collected."""
        return sum(key.principal == principal for key in self._leases)

    def bucket_count_of(self, principal: str) -> int:
        """Buckets that these keep, added up."""
        return sum(len(lease.states) for key, lease in self._leases.items() if key.principal == principal)

    def frozen(self) -> tuple[Lease, ...]:
        """All that have not been collected, by principal and id, as they are now."""
        return tuple(sorted(self._leases.values(), key=lambda lease: lease.key))

    def frozen_ended(self) -> EndedLeases:
        """What is known of leases that ended, as it is now."""
        return EndedLeases(tuple(self._ended.items()), self._forgotten_ms)

    @staticmethod
    def to_document(leases: Iterable[Lease], ended: EndedLeases = EndedLeases()) -> bytes:
        """Leases as text for a file; needs no registry, so that another thread can do it."""
        written = ",\n".join(map(_lease_to_text, leases))
        over = ",\n".join(
            json.dumps({"principal": key.principal, "id": key.lease_id, "at_ms": each.at_ms, "why": each.why})
            for key, each in ended.leases
        )
        document = (
            f'{{"leases": [\n{written}\n], "ended": [\n{over}\n], "forgotten_ms": {ended.forgotten_ms}}}\n'
        )
        return document.encode()

    @staticmethod
    def document_without_past(now_ms: int) -> bytes:
        """The text of a server that does not know which leases ended before a time, such as a restored one.

        Args:
            now_ms: The time.
        """
        return LeaseRegistry.to_document((), EndedLeases(forgotten_ms=now_ms))

    @classmethod
    def from_document(cls, content: bytes | None, now_ms: int) -> LeaseRegistry:
        """Read what `to_document` wrote.

        However the clock was set back meanwhile, a lease has at most its time to live left, and none ended later than
        now: else the ids of all that are made from now on would be older than what is forgotten.

        Args:
            content: The text; None: nothing was ever written.
            now_ms: The time.

        Raises:
            DataCorrupted: It cannot be read.
        """
        if content is None:
            return cls()
        try:
            document = json.loads(content)
            # An older server has not written down what ended.
            registry = cls(min(int(document.get("forgotten_ms", now_ms)), now_ms))
            for each in document.get("ended", ()):
                key = LeaseKey(str(each["principal"]), str(each["id"]))
                registry._remember(key, _Ended(min(int(each["at_ms"]), now_ms), str(each["why"])))
            for each in document["leases"]:
                registry._read(each, now_ms)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataCorrupted(f"there is something else in it ({error!r})") from error
        return registry

    def _read(self, lease: Any, now_ms: int) -> None:
        expires_at_ms, ttl_ms = int(lease["expires_at_ms"]), int(lease["ttl_ms"])
        states = [_state_from_json(each) for each in lease["buckets"]]
        if ttl_ms <= 0 or not states:
            raise ValueError("a lease without time or without buckets")
        key = LeaseKey(str(lease["principal"]), str(lease["id"]))
        if expires_at_ms <= now_ms:
            self._remember(key, _Ended(expires_at_ms, ""))
        else:
            by_bucket = {state.bucket_key: state for state in states}
            self._put(key, by_bucket, ttl_ms, min(expires_at_ms, now_ms + ttl_ms))

    def _put(
        self, key: LeaseKey, states: Mapping[BucketKey, LeasedState], ttl_ms: int, expires_at_ms: int
    ) -> None:
        """Let a lease be this, and count its references instead of those that it had."""
        if key in self._leases:
            self._remove(key)
        if not states:
            return
        self._ended.pop(key, None)
        self._leases[key] = Lease(
            key=key, ttl_ms=ttl_ms, expires_at_ms=expires_at_ms, states=LeasedStates(states)
        )
        self.kept_changes += 1
        self._references.update(_checkpoints(states))

    def _end(self, key: LeaseKey, now_ms: int, why: str = "") -> None:
        """Release everything that a lease keeps, and remember that it ended."""
        self._remove(key)
        self._remember(key, _Ended(now_ms, why))

    def _remember(self, key: LeaseKey, ended: _Ended) -> None:
        self._ended[key] = ended
        if len(self._ended) > _ENDED_MAX:
            forgotten = self._ended.pop(next(iter(self._ended)))
            self._forgotten_ms = max(self._forgotten_ms, forgotten.at_ms)

    def _remove(self, key: LeaseKey) -> None:
        self.kept_changes += 1
        for checkpoint in _checkpoints(self._leases.pop(key).states):
            self._references[checkpoint] -= 1
            if not self._references[checkpoint]:
                del self._references[checkpoint]


def _checkpoints(states: Mapping[BucketKey, LeasedState]) -> Iterator[CheckpointKey]:
    for state in states.values():
        if state.checkpoint_key is not None:
            yield state.checkpoint_key


def _lease_to_text(lease: Lease) -> str:
    key = lease.key
    head = {
        "principal": key.principal,
        "id": key.lease_id,
        "ttl_ms": lease.ttl_ms,
        "expires_at_ms": lease.expires_at_ms,
    }
    return f'{json.dumps(head)[:-1]}, "buckets": {lease.states.text}}}'


def _state_to_json(state: LeasedState) -> dict[str, object]:
    return {
        "table": state.table,
        "table_id": state.table_id,
        "bucket": state.bucket,
        "checkpoint_id": state.checkpoint_id,
        "log_offset": state.log_offset,
        "history": state.history.hex(),
    }


def _state_from_json(state: Any) -> LeasedState:
    checkpoint_id = state["checkpoint_id"]
    return LeasedState(
        table=str(state["table"]),
        table_id=int(state["table_id"]),
        bucket=int(state["bucket"]),
        checkpoint_id=None if checkpoint_id is None else int(checkpoint_id),
        log_offset=int(state["log_offset"]),
        history=bytes.fromhex(state["history"]),
    )
