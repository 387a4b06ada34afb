"""Which stages there are of one transaction name, by version and attempt.

Pure: this module knows no files and no tasks.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from scanner.storage.transactions import StageKey, StoredStage


class Attempt(NamedTuple):
    """Who stages: of one part one attempt is published."""

    part: int
    attempt: int


class _OfAttempt:
    """The stages of one attempt, of which there may be thousands."""

    def __init__(self, stages: Iterable[StoredStage] = ()) -> None:
        self.in_order: list[StoredStage] = []
        """As they are applied."""
        self.by_session: dict[bytes, StoredStage] = {}
        for stage in stages:
            self.add(stage)

    def add(self, stage: StoredStage) -> None:
        bisect.insort(self.in_order, stage, key=lambda each: each.key[4:])
        self.by_session.setdefault(stage.key.session, stage)


class Stages:
    """The durable stages of one transaction name.

    Args:
        on_change: Called with how many octets came; less than 0: went.
    """

    def __init__(self, on_change: Callable[[int], None]) -> None:
        self._on_change = on_change
        self._versions: dict[int, dict[Attempt, _OfAttempt]] = {}
        self.size = 0
        """Their octets on the disk."""

    def __bool__(self) -> bool:
        return bool(self._versions)

    def __iter__(self) -> Iterator[StoredStage]:
        """Every stage, in no order."""
        for version in self._versions:
            yield from self.of_version(version)

    @property
    def versions(self) -> list[int]:
        """Those of which something is staged, ascending."""
        return sorted(self._versions)

    def add(self, stage: StoredStage) -> None:
        """A stage is durable."""
        key = stage.key
        attempts = self._versions.setdefault(key.version, {})
        attempt = Attempt(key.part, key.attempt)
        if attempt not in attempts:
            attempts[attempt] = _OfAttempt()
        attempts[attempt].add(stage)
        self._resize(stage.size)

    def of_version(self, version: int) -> list[StoredStage]:
        """The stages of a version."""
        return [stage for found in self._versions.get(version, {}).values() for stage in found.in_order]

    def of_attempt(self, version: int, attempt: Attempt) -> list[StoredStage]:
        """The stages of an attempt, in order; none if it has staged nothing."""
        found = self._found(version, attempt)
        return [] if found is None else list(found.in_order)

    def last_sequence(self, version: int, attempt: Attempt) -> int:
        """The `sequence` of the last stage of an attempt; 0: it has staged nothing."""
        found = self._found(version, attempt)
        return 0 if found is None else found.in_order[-1].key.sequence

    def find(self, version: int, attempt: Attempt, session: bytes) -> StoredStage | None:
        """The stage that was sent in a session."""
        found = self._found(version, attempt)
        return None if found is None else found.by_session.get(session)

    def remove(self, keys: list[StageKey]) -> None:
        """Stages are gone."""
        gone = set(keys)
        for version in list(self._versions):
            attempts = self._versions[version]
            for attempt in list(attempts):
                before = attempts[attempt].in_order
                left = [stage for stage in before if stage.key not in gone]
                self._resize(-sum(stage.size for stage in before if stage.key in gone))
                if not left:
                    del attempts[attempt]
                elif len(left) < len(before):
                    attempts[attempt] = _OfAttempt(left)
            if not attempts:
                del self._versions[version]

    def _found(self, version: int, attempt: Attempt) -> _OfAttempt | None:
        return self._versions.get(version, {}).get(attempt)

    def _resize(self, octets: int) -> None:
        self.size += octets
        self._on_change(octets)
