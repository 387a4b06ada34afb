"""The thread that renews the lease of a stream: what it says, and what the planner does when a renewal has failed."""

from __future__ import annotations

import logging
from queue import SimpleQueue
from typing import TYPE_CHECKING, cast

import pytest

from scanner import LeaseNotFound
from spark_source.stream.log_lease import LogLease
from spark_source.stream.offsets import Position

if TYPE_CHECKING:
    from scanner.sync import Client

TTL_S = 0.003
"""A renewal is due a millisecond after the one before."""
PLACE = {0: Position(7, b"")}


class Renewed:
    """A client whose renewals end as they are told, one after the other; then they wait."""

    def __init__(self) -> None:
        self.leases = self
        self.acquired: list[str] = []
        self.ends: SimpleQueue[Exception | None] = SimpleQueue()
        self.begun: SimpleQueue[str] = SimpleQueue()

    def acquire_lease(self, *_: object, lease_id: str, ttl_s: float) -> None:
        assert ttl_s == TTL_S
        self.acquired.append(lease_id)

    def renew(self, lease_id: str, _ttl_s: float | None = None) -> None:
        self.begun.put(lease_id)
        error = self.ends.get()
        if error is not None:
            raise error

    def wait_begun(self) -> None:
        """Wait until one more renewal is under way."""
        assert self.begun.get() == "lease"


def held(client: Renewed) -> LogLease:
    """A lease over a client, which is being renewed for the first time when this returns."""
    lease = LogLease(cast("Client", client), "orders", TTL_S)
    lease.hold("lease", PLACE)
    client.wait_begun()
    return lease


@pytest.mark.parametrize("error", [LeaseNotFound("it expired"), RuntimeError("unforeseen")])
def test_a_renewal_that_fails_is_told_once_and_the_lease_acquired_again(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it is: the next micro-batch acquires the lease where it stands, and one line says when it goes well."""
    caplog.set_level(logging.INFO, "weir.spark")
    client = Renewed()
    lease = held(client)
    lease.hold("lease", PLACE)
    assert client.acquired == ["lease"], "it stands there already"
    for end in (None, error, error):
        client.ends.put(end)
        client.wait_begun()
    lease.hold("lease", PLACE)
    assert client.acquired == ["lease"] * 2
    client.ends.put(None)
    client.wait_begun()
    lease.stop()
    client.ends.put(None)
    lease.wait_stopped()
    assert [(line.levelno, line.getMessage(), bool(line.exc_info)) for line in caplog.records] == [
        (
            logging.WARNING,
            f"the lease of the stream of table orders: {error}",
            isinstance(error, RuntimeError),
        ),
        (logging.INFO, "the lease of the stream of table orders is renewed again", False),
    ]


@pytest.mark.parametrize("ended", [False, True])
def test_a_query_that_goes_on_acquires_the_lease_that_has_ended(ended: bool) -> None:
    """What it has not read yet is kept from then on, and not at its next micro-batch, which may be long in coming."""
    client = Renewed()
    client.ends.put(LeaseNotFound("it expired") if ended else None)
    lease = LogLease(cast("Client", client), "orders", TTL_S)
    lease.resume("lease", PLACE)
    client.wait_begun()
    assert client.acquired == ["lease"] * ended
    client.wait_begun()
    lease.stop()
    client.ends.put(None)
    lease.wait_stopped()


def test_a_client_that_is_closed_ends_the_renewals_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """The planner stops the lease first, and then closes the client, maybe in the middle of a renewal."""
    client = Renewed()
    lease = held(client)
    lease.stop()
    client.ends.put(RuntimeError("closed"))
    lease.wait_stopped()
    assert not caplog.records


@pytest.mark.parametrize("end", [None, RuntimeError("closed")])
def test_renewals_go_on_over_another_client(end: Exception | None, caplog: pytest.LogCaptureFixture) -> None:
    """One with the credentials that the files have now; the one before is closed, maybe in the middle of a renewal."""
    first, second = Renewed(), Renewed()
    lease = held(first)
    lease.go_on(cast("Client", second))
    first.ends.put(end)
    second.wait_begun()
    lease.stop()
    second.ends.put(None)
    lease.wait_stopped()
    assert not caplog.records
