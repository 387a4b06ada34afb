"""Servers that are broken on purpose: each defect is found within a few seeds, by the validator that is there for it.

The defects are made here, by replacing one method of the product; nothing of it has a switch for them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from bench.simulation.world import simulate
from scanner.errors import SnapshotLost
from scanner.server.scan.opener import ScanOpener
from scanner.server.scan.push import PushScan
from scanner.server.tables.bucket import OpenScan, ServedBucket
from scanner.server.tables.log_pins import LogPins
from scanner.server.tables.snapshots import SharedSnapshot, SnapshotRegistry
from scanner.sources.interface import EndReason
from scanner.sources.kv import KvSource
from scanner.sources.overlay import Overlay

if TYPE_CHECKING:
    from bench.simulation.validators import Violation

SEEDS_MAX = 100
"""Seeds within which every defect is found."""

Break = Callable[[pytest.MonkeyPatch], None]


def drop_row_after_resume(patch: pytest.MonkeyPatch) -> None:
    """A source that goes on from a position reads over the first row behind it."""
    whole = KvSource.__init__

    def init(self: KvSource, scan: Any, *arguments: Any, **options: Any) -> None:
        if "position" in options and options["position"].rows:
            while scan.read(1, 1 << 20).unfinished:
                pass
        whole(self, scan, *arguments, **options)

    patch.setattr(KvSource, "__init__", init)


def reuse_fresh_snapshot(patch: pytest.MonkeyPatch) -> None:
    """A scan as of an earlier offset is read from the state of now, and says otherwise."""

    class Fresh:
        def __init__(self, _bucket: Any, live: Any, log_offset: int, *_rest: Any) -> None:
            self.log_offset = log_offset
            self.read = live.read
            self.close = live.close

    patch.setattr("scanner.server.scan.read_sources.AsOfScan", Fresh)


def send_past_credit(patch: pytest.MonkeyPatch) -> None:
    """A scan that never looks at its credit."""
    patch.setattr(PushScan, "_has_credit", True)


def fill_past_credit(patch: pytest.MonkeyPatch) -> None:
    """A batch that is not cut to the credit that is left."""
    take = KvSource.take
    patch.setattr(KvSource, "take", lambda self, _bytes_max, rows_max: take(self, 1 << 20, rows_max))


def end_early(patch: pytest.MonkeyPatch) -> None:
    """A scan that says it is exhausted after its first twenty rows."""
    end: Any = vars(KvSource)["end"]
    early = property(lambda self: EndReason.EXHAUSTED if self.rows >= 20 else end.fget(self))
    patch.setattr(KvSource, "end", early)


def repeat_last_row(patch: pytest.MonkeyPatch) -> None:
    """A push scan that goes on does so from the last delivered row, not behind it."""
    token = ScanOpener.open

    async def open_at(self: ScanOpener, *arguments: Any, **options: Any) -> Any:
        position = options.get("position")
        # Not the page models: with a row a page they would never come to an end.
        if position is not None and position.last_key and "pin_log" not in options:
            options["position"] = dataclasses.replace(position, last_key=position.last_key[:-1])
        return await token(self, *arguments, **options)

    patch.setattr(ScanOpener, "open", open_at)


def forget_digest(patch: pytest.MonkeyPatch) -> None:
    """A scan that goes on begins its digest anew."""
    whole = KvSource.__init__

    def init(self: KvSource, *arguments: Any, **options: Any) -> None:
        whole(self, *arguments, **options)
        self.digest = 0

    patch.setattr(KvSource, "__init__", init)


def reverse_blocks(patch: pytest.MonkeyPatch) -> None:
    """A source that decodes the rows of a block backwards."""
    decode = KvSource._decode

    def backwards(self: KvSource, stored: Any) -> Any:
        block = decode(self, stored)
        block.passing = block.passing.take(list(range(block.passing.num_rows))[::-1])
        return block

    patch.setattr(KvSource, "_decode", backwards)


def turn_in_circles(patch: pytest.MonkeyPatch) -> None:
    """A source that never comes to its end, and never to a row, without any time passing."""
    patch.setattr(KvSource, "step", lambda self, bytes_max=None: None)


def keep_snapshots(patch: pytest.MonkeyPatch) -> None:
    """A scan that is over keeps what it held."""
    patch.setattr(OpenScan, "close", lambda self, *, linger=False: None)


def never_reopen(patch: pytest.MonkeyPatch) -> None:
    """A parked scan that is not reopened when there is credit again."""

    async def wait_for_ever(self: PushScan) -> None:
        await self._wait_changed()

    patch.setattr(PushScan, "_reopen", wait_for_ever)


def lose_write(patch: pytest.MonkeyPatch) -> None:
    """A commit that leaves out the last mutation of each write, and acknowledges it."""
    submit = ServedBucket.submit
    patch.setattr(
        ServedBucket,
        "submit",
        lambda self, mutations, *rest: submit(self, mutations[:-1] or mutations, *rest),
    )


def fail_unforeseen(patch: pytest.MonkeyPatch) -> None:
    """A park that fails in a way that nobody thought of."""

    def park(self: OpenScan[Any]) -> None:
        raise RuntimeError("nobody thought of this")

    patch.setattr(OpenScan, "park", park)


def lose_state(patch: pytest.MonkeyPatch) -> None:
    """A server that rebuilds no state: what is not open is lost, although the log reaches back."""

    def lost(*_arguments: Any) -> None:
        raise SnapshotLost("it was not tried", oldest_offset=0)

    patch.setattr("scanner.server.scan.read_sources.AsOfScan", lost)


def last_change_wins(patch: pytest.MonkeyPatch) -> None:
    """An overlay in which the last change of a key counts, instead of the first."""

    def add(self: Overlay, keys: list[bytes], rows: list[bytes | None]) -> None:
        self._first.update(zip(keys, rows, strict=True))

    patch.setattr(Overlay, "add", add)


def close_shared_snapshot(patch: pytest.MonkeyPatch) -> None:
    """A registry that closes a snapshot when the first of those who hold it lets go."""

    def released(self: SnapshotRegistry, shared: SharedSnapshot, *, linger: bool) -> None:
        shared.holds -= 1
        shared.close()

    patch.setattr(SnapshotRegistry, "released", released)


def ignore_pins(patch: pytest.MonkeyPatch) -> None:
    """Retention that cuts logs whoever needs them."""
    patch.setattr(LogPins, "oldest", lambda self: None)


BROKEN: list[tuple[Break, str]] = [
    (drop_row_after_resume, "resumable"),
    (drop_row_after_resume, "complete"),
    (reuse_fresh_snapshot, "isolated"),
    (send_past_credit, "bounded"),
    (fill_past_credit, "bounded"),
    (end_early, "complete"),
    (repeat_last_row, "unique"),
    (forget_digest, "resumable"),
    (reverse_blocks, "ordered"),
    (keep_snapshots, "released"),
    (never_reopen, "live"),
    (turn_in_circles, "live"),
    (lose_write, "durable"),
    (fail_unforeseen, "foreseen"),
    (lose_state, "justified"),
    (last_change_wins, "isolated"),
    (close_shared_snapshot, "justified"),
    (ignore_pins, "justified"),
]


def first_found(validator: str) -> tuple[int, Violation] | None:
    """The first seed in which a validator finds something, and what."""
    for seed in range(SEEDS_MAX):
        for violation in simulate(seed).violations:
            if violation.validator == validator:
                return seed, violation
    return None


@pytest.mark.parametrize(("defect", "validator"), BROKEN, ids=lambda it: getattr(it, "__name__", it))
def test_defect_is_found_by_name(defect: Break, validator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken server is found within a hundred seeds, by the validator that is there for its defect."""
    defect(monkeypatch)
    assert first_found(validator) is not None
