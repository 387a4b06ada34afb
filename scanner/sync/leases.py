"""The blocking twins of `scanner.client.held_lease` and `scanner.client.leases`; part of `scanner.sync`."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from scanner.client.held_lease import Lease as TrioLease
from scanner.client.leases import Leasable, LeasedBucket, LeaseInfo, NotLeased
from scanner.client.leases import Leases as TrioLeases
from scanner.data.half_applied import HalfApplied
from scanner.sync.portal import Held, Portal


class Lease:
    """A lease that this client acquired; made by `scanner.sync.Client.acquire_lease`. See `scanner.Lease`.

    In a `with` block it is renewed in the client's thread, and dropped at the end. When it is lost all the same,
    leaving the block raises LeaseNotFound, unless something else does.
    """

    def __init__(self, portal: Portal, lease: TrioLease) -> None:
        self._portal = portal
        self._lease = lease
        self._held: Held[TrioLease] | None = None

    @property
    def id(self) -> str:
        """Its id."""
        return self._lease.id

    @property
    def info(self) -> LeaseInfo:
        """As the server told of it last."""
        return self._lease.info

    @property
    def buckets(self) -> tuple[LeasedBucket, ...]:
        """What it keeps, as the server told of it last."""
        return self._lease.buckets

    def offsets(self, table: str) -> dict[int, int]:
        """By bucket of a table, the offset of its state; see `scanner.Lease.offsets`."""
        return self._lease.offsets(table)

    @property
    def not_leased(self) -> tuple[NotLeased, ...]:
        """What could not be leased, of a partial acquisition."""
        return self._lease.not_leased

    @property
    def half_applied(self) -> tuple[HalfApplied, ...]:
        """The versions of transactions of which the states that were acquired last have a part; usually none."""
        return self._lease.half_applied

    def __repr__(self) -> str:
        return repr(self._lease)

    def acquire(self, *targets: Leasable) -> None:
        """Add states to it, or move its buckets to them; see `scanner.Lease.acquire`."""
        self._portal.call(self._lease.acquire, *targets)

    def renew(self, ttl_s: float | None = None) -> None:
        """Begin its time anew; see `scanner.Lease.renew`."""
        self._portal.call(self._lease.renew, ttl_s)

    def release(self, table: str, *buckets: int) -> None:
        """Release buckets; see `scanner.Lease.release`."""
        self._portal.call(self._lease.release, table, *buckets)

    def drop(self) -> None:
        """Release all buckets. Idempotent."""
        self._portal.call(self._lease.drop)

    def __enter__(self) -> Self:
        try:
            self._held = self._portal.hold(self._lease)
            return self
        except BaseException:
            # An interrupt may come before it is entered, and then there is no end of the block, which would drop it. A
            # second block is refused, and the first one needs the lease.
            if self._held is None:
                self._portal.begin(self._lease.drop)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._held is not None
        self._held.leave(abandoned=error is not None)


class Leases:
    """The calls on leases by their ids; see `scanner.client.leases.Leases`."""

    def __init__(self, portal: Portal, leases: TrioLeases) -> None:
        self._portal = portal
        self._leases = leases

    def renew(self, lease_id: str, ttl_s: float | None = None, principal: str = "") -> LeaseInfo:
        """Begin a lease's time anew."""
        return self._portal.call(self._leases.renew, lease_id, ttl_s, principal)

    def release(
        self, lease_id: str, table: str, buckets: Sequence[int] = (), principal: str = ""
    ) -> LeaseInfo | None:
        """Release buckets; none: of all of the table. Returns what is left of the lease."""
        return self._portal.call(self._leases.release, lease_id, table, buckets, principal)

    def drop(self, lease_id: str, principal: str = "") -> bool:
        """Release all buckets. Returns whether the lease was there."""
        return self._portal.call(self._leases.drop, lease_id, principal)
