"""What the readers of a group were given and have stored, and whether that is what a group promises. Pure.

Times are of any one clock that all readers share, so records of several processes can be put together.

What is checked:

1. One reader for each epoch of a bucket, ever.
2. An epoch gives changes in order, each once, beginning at the position that was stored last before it. Where a
   connection was cut that may be one that was refused: the first request did it, and its repetition came too late.
3. A position is stored by its bucket's newest epoch only: none by one after another epoch has brought something.
4. One reader at a time: what is committed after an epoch has brought something is given by no older one.
5. Nothing is lost: every change before a stored position was given to somebody, and in the end that is every change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


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


@dataclass
class GroupHistory:
    """The records of one group."""

    delivered: list[Delivered] = field(default_factory=list)
    stored: list[Stored] = field(default_factory=list)
    ends: list[tuple[float, Mapping[int, int]]] = field(default_factory=list)
    """Where the logs ended at a time: what is behind that was committed later. In order."""

    def violations(self, log_ends: Mapping[int, int]) -> list[str]:
        """What is against the rules.

        Args:
            log_ends: Where the logs end when everything was read.
        """
        found: list[str] = []
        for bucket, end in log_ends.items():
            found += [f"bucket {bucket}: {each}" for each in self._violations(bucket, end)]
        return found

    def _violations(self, bucket: int, log_end: int) -> Iterator[str]:
        delivered = [each for each in self.delivered if each.bucket == bucket]
        stored = [each for each in self.stored if each.bucket == bucket]
        by_epoch: dict[int, list[Delivered]] = defaultdict(list)
        for each in delivered:
            by_epoch[each.epoch].append(each)
        for epoch, parts in by_epoch.items():
            readers = {each.reader for each in parts}
            if len(readers) > 1:
                yield f"epoch {epoch} was given to {sorted(readers)}"
        yield from self._out_of_order(by_epoch, stored)
        began = {epoch: min(each.at for each in parts) for epoch, parts in by_epoch.items()}
        for place in stored:
            newer = [epoch for epoch, at in began.items() if epoch > place.epoch and at < place.began_at]
            if place.accepted and newer:
                yield f"position {place.position} of epoch {place.epoch} was stored after epoch {newer[0]} began"
        for part in delivered:
            for epoch, at in began.items():
                if epoch > part.epoch and part.end > self._end_at(bucket, at):
                    yield f"epoch {part.epoch} was given {part.end - 1}, committed after epoch {epoch} began"
        yield from self._lost(delivered, stored, log_end)

    @staticmethod
    def _out_of_order(by_epoch: Mapping[int, list[Delivered]], stored: list[Stored]) -> Iterator[str]:
        for epoch, parts in sorted(by_epoch.items()):
            before = [each for each in stored if each.accepted and each.epoch < epoch]
            newest = max((each.epoch for each in before), default=0)
            positions = [each.position for each in before if each.epoch == newest]
            start = positions[-1] if positions else 0
            perhaps = {each.position for each in stored if not each.accepted and each.epoch < epoch}
            for part in parts:
                if part.start != start and not (part is parts[0] and part.start in perhaps):
                    yield f"epoch {epoch} goes on at {part.start}, not at {start}"
                start = part.end

    @staticmethod
    def _lost(delivered: list[Delivered], stored: list[Stored], log_end: int) -> Iterator[str]:
        given = {offset for each in delivered for offset in range(each.start, each.end)}
        missing = set(range(log_end)) - given
        if missing:
            yield f"changes {sorted(missing)[:5]} were given to nobody"
        accepted = [each.position for each in stored if each.accepted is not False]
        if log_end and log_end not in accepted:
            yield f"the log ends at {log_end}, and the positions stored are {accepted[-3:]}"

    def _end_at(self, bucket: int, at: float) -> int:
        """A place before which everything may have been committed by then."""
        later = [ends.get(bucket, 0) for time, ends in self.ends if time > at]
        return later[0] if later else 1 << 62
