"""The lease by which a streaming query keeps the changes that it has not read yet.

The planner process lives as long as the query: a thread of it renews the lease, also while the query is idle or a
micro-batch takes hours. The lease outlives the process by its time to live, so a query that is started anew finds its
changes; its id stands in the offsets, so that it finds the lease, too.

Invariant: the lease stands where the newest planned micro-batch begins, and no further on: Spark may have that planned
and read again until it has planned the next one.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from scanner import LeaseTarget, ScannerError

if TYPE_CHECKING:
    from scanner.sync import Client
    from spark_source.stream.offsets import Positions

_RENEWALS_PER_TTL: Final = 3
_logger = logging.getLogger("weir.spark")


def log_targets(table: str, positions: Positions) -> list[LeaseTarget]:
    """What a lease of a table's changelogs from some positions on holds."""
    return [LeaseTarget(table, [bucket], log_offset=each.offset) for bucket, each in positions.items()]


class LogLease:
    """Keeps a table's changelogs from some positions on.

    Without room for another lease nothing is kept but what the server's retention keeps, and that is logged. With a
    time to live of 0, which the user asks for, nothing is kept either, and nothing is logged.

    Args:
        client: Of the planner; its calls may come from any thread.
        table: Name of the table.
        ttl_s: How long the lease lives behind the planner, in seconds; 0: there is no lease.
    """

    def __init__(self, client: Client, table: str, ttl_s: float) -> None:
        self._client = client
        self._table = table
        self._ttl_s = ttl_s
        self._held: tuple[str, dict[int, int]] | None = None
        self._begun = False
        self._lost = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, lease_id: str, positions: Positions) -> None:
        """Keep the changes from these positions on, and nothing before them.

        Args:
            lease_id: Of the query.
            positions: Where its newest micro-batch begins.

        Waits:
            For the server, unless the lease stands there already.
        """
        self._begun = True
        wanted = (lease_id, {bucket: position.offset for bucket, position in positions.items()})
        if self._ttl_s <= 0 or (wanted == self._held and not self._lost):
            return
        try:
            self._client.acquire_lease(
                *log_targets(self._table, positions), lease_id=lease_id, ttl_s=self._ttl_s
            )
        except ScannerError as error:
            _logger.warning(
                "table %s is streamed without a lease, so its changes are kept as retention says alone: %s",
                self._table,
                error.message,
            )
            return
        self._keep(wanted)

    def resume(self, lease_id: str, positions: Positions) -> None:
        """Keep what the lease of a query that is started anew keeps: its next micro-batch may be long in coming.

        Without effect once something was to be held: only a micro-batch moves the lease.

        Args:
            lease_id: Of the query.
            positions: Where its next micro-batch begins: what is kept if the lease has ended.

        Waits:
            For the server, the first time.
        """
        if self._begun or self._ttl_s <= 0:
            return
        self._begun = True
        try:
            self._client.leases.renew(lease_id, self._ttl_s)
        except ScannerError:
            self.hold(lease_id, positions)
        else:
            self._keep((lease_id, {}))

    def go_on(self, client: Client) -> None:
        """Hold and renew it over another client from now on."""
        self._client = client

    def stop(self) -> None:
        """Renew it no more; it ends with its time. Idempotent."""
        self._stopped.set()

    def wait_stopped(self) -> None:
        """Wait for the thread to end; a renewal that is under way ends when the client is closed."""
        if self._thread is not None:
            self._thread.join()

    def _keep(self, held: tuple[str, dict[int, int]]) -> None:
        self._held, self._lost = held, False
        if self._thread is None:
            self._thread = threading.Thread(target=self._renew_until_stopped, name="weir lease", daemon=True)
            self._thread.start()

    def _renew_until_stopped(self) -> None:
        failing = False
        while not self._stopped.wait(self._ttl_s / _RENEWALS_PER_TTL):
            assert self._held is not None
            client = self._client
            try:
                client.leases.renew(self._held[0])
            except Exception as error:
                if self._stopped.is_set():
                    return  # The client was closed meanwhile.
                if client is not self._client:
                    continue  # So was this one, behind the planner's next.
                # Whatever it is, the next renewal may succeed.
                if not failing:
                    unknown = not isinstance(error, ScannerError)
                    _logger.warning(
                        "the lease of the stream of table %s: %s", self._table, error, exc_info=unknown
                    )
                failing = self._lost = True
                continue
            if failing:
                _logger.info("the lease of the stream of table %s is renewed again", self._table)
            failing = False
