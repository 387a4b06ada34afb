"""What keeps a changelog: pins, their sum, and the one that is ended first."""

from __future__ import annotations

from scanner.errors import ScannerError, SlowConsumer
from scanner.server.tables.log_pins import LogPins


def test_the_oldest_pin_keeps_the_log() -> None:
    """What is oldest of what is held counts; without pins nothing is kept."""
    pins = LogPins()
    assert pins.oldest() is None
    first, second = pins.pin(70, "ann", "scan"), pins.pin(30, "bob", "lease")
    assert pins.oldest() == 30
    second.release()
    second.release()
    assert (pins.oldest(), len(pins)) == (70, 1)
    first.release()
    assert pins.oldest() is None
    assert not first.held


def test_each_principal_is_counted_by_its_oldest_pin() -> None:
    """A principal's share is the log from its oldest pin on."""
    pins = LogPins()
    for offset, principal in ((70, "ann"), (30, "ann"), (50, "bob")):
        pins.pin(offset, principal, "scan")
    assert pins.oldest_by_principal() == {"ann": 30, "bob": 50}


def test_the_longest_pin_is_ended_and_told_why() -> None:
    """Of a principal's pins that can be ended the one that keeps the most goes first, once; the others stay."""
    pins = LogPins()
    told: list[tuple[str, ScannerError]] = []
    lease = pins.pin(10, "ann", "lease")
    pins.pin(20, "ann", "scan", lambda error: told.append(("first", error)))
    pins.pin(20, "ann", "scan", lambda error: told.append(("second", error)))
    pins.pin(0, "bob", "scan", lambda error: told.append(("bob", error)))
    error = SlowConsumer("too long")

    longest = pins.longest_of("ann")
    assert longest is not None
    longest.end(error)
    assert (told, longest.held) == ([("first", error)], False)
    following = pins.longest_of("ann")
    assert following is not None
    following.end(error)
    assert told == [("first", error), ("second", error)]
    assert pins.longest_of("ann") is None
    assert lease.held
    assert {pin.principal for pin in pins} == {"ann", "bob"}
