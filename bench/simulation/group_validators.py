"""What a reader group must hold to, each rule by its name: judged from the records of its readers and of storage. Pure.

docs/simulation.md lists them.

Times are of any one clock that all readers share, so records of several processes can be put together.

A position may be stored and refused. The request did it, its answer was lost with the connection, and the repetition
came when the bucket had another epoch. That is right, and no server can do better: a refusal says that the bucket is
another reader's by now, not that nothing of before was stored. The next epoch begins behind such a position, and that
loses nothing: the reader was handed what is before it. What would be wrong is to begin at a position that was refused
and *not* stored. Only storage can tell these two apart: where its record is there (`GroupHistory.written`, as in the
simulation), an epoch begins exactly where that says. Where it is not (processes, seen from outside), the first batch
of an epoch may begin at any position that was refused, or not answered, before.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

Found = Iterator[tuple[str, str]]
"""Names of validators, and what is wrong."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """Changes that a reader was handed."""

    at: float
    reader: str
    bucket: int
    epoch: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A position that a reader has asked to store."""

    began_at: float
    reader: str
    bucket: int
    epoch: int
    position: int
    accepted: bool | None
    """None: nobody knows; the reader was killed before the answer."""


@dataclass(frozen=True, slots=True)
class Written:
    """What storage was given to keep of a bucket."""

    bucket: int
    epoch: int
    position: int | None


@dataclass
class GroupHistory:
    """The records of one group."""

    delivered: list[Delivered] = field(default_factory=list)
    stored: list[Stored] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)
    """All that storage was given, in order; empty: nobody has listened there."""
    ends: list[tuple[float, Mapping[int, int]]] = field(default_factory=list)
    """Where the logs of some buckets ended at a time: what is behind that was committed then, or later. In order."""

    def position(self, bucket: int) -> int | None:
        """What storage has kept last."""
        return next((each.position for each in reversed(self.written) if each.bucket == bucket), None)

    def violations(self, log_ends: Mapping[int, int]) -> list[tuple[str, str]]:
        """What is against the rules: the name of the rule, and a sentence.

        Args:
            log_ends: By bucket, up to where everything was read.
        """
        return [
            (name, f"bucket {bucket}: {detail}")
            for bucket, end in log_ends.items()
            for name, detail in self._violations(bucket, end)
        ]

    def _violations(self, bucket: int, log_end: int) -> Found:
        delivered = [each for each in self.delivered if each.bucket == bucket]
        stored = [each for each in self.stored if each.bucket == bucket]
        written = [each for each in self.written if each.bucket == bucket]
        by_epoch: dict[int, list[Delivered]] = defaultdict(list)
        for each in delivered:
            by_epoch[each.epoch].append(each)
        for epoch, parts in by_epoch.items():
            readers = {each.reader for each in parts}
            if len(readers) > 1:
                yield "owned", f"epoch {epoch} was given to {sorted(readers)}"
        yield from _ascending(delivered, written)
        yield from _continued(by_epoch, stored, written)
        began = {epoch: min(each.at for each in parts) for epoch, parts in by_epoch.items()}
        yield from _fenced(began, stored, written)
        for before, after in itertools.pairwise(each.position for each in written):
            if before is not None and (after is None or after < before):
                yield "forward", f"position {before} was stored, and {after} after it"
        for part in delivered:
            for epoch, at in began.items():
                if epoch > part.epoch and part.end > self._end_at(bucket, at):
                    yield (
                        "alone",
                        f"epoch {part.epoch} was given {part.end - 1}, committed after epoch {epoch} began",
                    )
        yield from _delivered(delivered, stored, written, log_end)

    def _end_at(self, bucket: int, at: float) -> int:
        """A place before which everything may have been committed by then."""
        return next((ends[bucket] for time, ends in self.ends if time > at and bucket in ends), 1 << 62)


def _ascending(delivered: Sequence[Delivered], written: Sequence[Written]) -> Found:
    for before, after in itertools.pairwise(each.epoch for each in written):
        if after < before:
            yield "ascending", f"storage was given epoch {after} after epoch {before}"
    by_reader: dict[str, int] = {}
    for each in delivered:
        before = by_reader.setdefault(each.reader, each.epoch)
        if each.epoch < before:
            yield "ascending", f"{each.reader} was given something of epoch {each.epoch} after epoch {before}"
        by_reader[each.reader] = each.epoch


def _continued(
    by_epoch: Mapping[int, Sequence[Delivered]], stored: Sequence[Stored], written: Sequence[Written]
) -> Found:
    kept: dict[int, int] = {}
    for each in written:
        if each.position is not None:
            kept.setdefault(each.epoch, each.position)
    for epoch, parts in sorted(by_epoch.items()):
        start, perhaps = (kept.get(epoch, -1), set[int]()) if written else _start(epoch, stored)
        for part in parts:
            if part.start != start and not (part is parts[0] and part.start in perhaps):
                yield "continued", f"epoch {epoch} goes on at {part.start}, not at {start}"
            start = part.end


def _start(epoch: int, stored: Sequence[Stored]) -> tuple[int, set[int]]:
    """Where an epoch begins as far as readers know, and where it may begin instead."""
    before = [each for each in stored if each.accepted and each.epoch < epoch]
    newest = max((each.epoch for each in before), default=0)
    positions = [each.position for each in before if each.epoch == newest]
    perhaps = {each.position for each in stored if not each.accepted and each.epoch < epoch}
    return positions[-1] if positions else 0, perhaps


def _fenced(began: Mapping[int, float], stored: Sequence[Stored], written: Sequence[Written]) -> Found:
    kept = {(each.epoch, each.position) for each in written}
    for place in stored:
        if not place.accepted:
            continue
        newer = [epoch for epoch, at in began.items() if epoch > place.epoch and at < place.began_at]
        if newer:
            yield (
                "fenced",
                f"position {place.position} of epoch {place.epoch} was stored after epoch {newer[0]} began",
            )
        if written and (place.epoch, place.position) not in kept:
            yield (
                "fenced",
                f"{place.reader} was told that {place.position} is stored by epoch {place.epoch}; it is not",
            )


def _delivered(
    delivered: Sequence[Delivered], stored: Sequence[Stored], written: Sequence[Written], log_end: int
) -> Found:
    start = next((each.position for each in written if each.position is not None), 0)
    given = {offset for each in delivered for offset in range(each.start, each.end)}
    missing = set(range(start, log_end)) - given
    if missing:
        yield "delivered", f"changes {sorted(missing)[:5]} were given to nobody"
    if written:
        positions = [each.position for each in written[-1:]]
    else:
        positions = [each.position for each in stored if each.accepted is not False]
    if log_end and log_end not in positions:
        yield "delivered", f"read was up to {log_end}, and the positions stored are {positions[-3:]}"
