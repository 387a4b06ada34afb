"""Which stages there are of one transaction name, by version and attempt.

Pure: this module knows no files and no tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from scanner.storage.transactions import StageKey, StoredStage


class Attempt(NamedTuple):
    """Who stages: of one part one attempt is published."""

    part: int
    attempt: int


class Stages:
    """The durable stages of one transaction name.

    Args:
        on_change: Called with how many octets came; less than 0: went.
    """

    def __init__(self, on_change: Callable[[int], None]) -> None:
        self._on_change = on_change
        self._versions: dict[int, dict[Attempt, list[StoredStage]]] = {}
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
        stages = attempts.setdefault(Attempt(key.part, key.attempt), [])
        stages.append(stage)
        self._resize(stage.size)
        stages.sort(key=lambda each: each.key[4:])

    def of_version(self, version: int) -> list[StoredStage]:
        """The stages of a version."""
        return [stage for stages in self._versions.get(version, {}).values() for stage in stages]

    def of_attempt(self, version: int, attempt: Attempt) -> list[StoredStage]:
        """The stages of an attempt, in order; none if it has staged nothing."""
        return list(self._versions.get(version, {}).get(attempt, ()))

    def find(self, version: int, attempt: Attempt, session: bytes) -> StoredStage | None:
        """The stage that was sent in a session."""
        stages = self.of_attempt(version, attempt)
        return next((stage for stage in stages if stage.key.session == session), None)

    def remove(self, keys: list[StageKey]) -> None:
        """Stages are gone."""
        gone = set(keys)
        for version in list(self._versions):
            attempts = self._versions[version]
            for attempt in list(attempts):
                before = attempts[attempt]
                attempts[attempt] = [stage for stage in before if stage.key not in gone]
                self._resize(-sum(stage.size for stage in before if stage.key in gone))
                if not attempts[attempt]:
                    del attempts[attempt]
            if not attempts:
                del self._versions[version]

    def _resize(self, octets: int) -> None:
        self.size += octets
        self._on_change(octets)
