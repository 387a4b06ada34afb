"""The offsets of a stream, as they stand in Spark's checkpoint: JSON, version 1.

    {"version": 1, "phase": "initial"}
    {"version": 1, "phase": "full", "table_id": 7, "lease": "spark-5c...",
     "buckets": {"0": {"offset": 12, "history": "ab.."}}}
    {"version": 1, "phase": "log", "table_id": 7, "lease": "spark-5c...", "buckets": {...}, "first": {...}}

A stream begins at ``initial``, which says nothing: Spark asks for the initial offset again when the first micro-batch
has to be repeated, so where that began stands in its *end*. A stream from ``full`` ends it at ``full``: the rows of the
table as of these offsets, and nothing else, were in it. Any other ends it at ``log``, with ``first``, where it began.
Every later micro-batch is the changes from its start's ``buckets`` to its end's.

Invariants:

1. Parsing what was written gives the same offset, and writing that the same text: Spark compares texts.
2. What is not of a known version and shape is refused by name, never guessed.
3. Versions that were released stay readable (tests/golden/spark_offsets).

Pure: knows no network and no Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from spark_source.errors import SourceError

VERSION: Final = 1
_HISTORY_DIGITS: Final = 32
_KEYS: Final = {
    "initial": ({"version", "phase"}, set[str]()),
    "full": ({"version", "phase", "table_id", "lease", "buckets"}, set[str]()),
    "log": ({"version", "phase", "table_id", "lease", "buckets"}, {"first"}),
}


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the changelog of one bucket."""

    offset: int
    """The end of a commit: the changes with a smaller offset are behind it."""
    history: bytes
    """The history of the bucket that the offset is of, by which a restored copy is told from it; 16 octets."""


Positions = Mapping[int, Position]
"""By bucket, every bucket of the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """Where a stream is."""

    phase: str
    """``initial``, ``full`` or ``log``."""
    table_id: int = 0
    """Of the table; another one of its name has another."""
    lease_id: str = ""
    """What keeps the changes from the last micro-batch on readable."""
    buckets: Positions = field(default_factory=dict)
    """How far each bucket was read; empty in ``initial``."""
    first: Positions | None = None
    """In the end of the first micro-batch of ``log``: where that began."""

    def to_json(self) -> dict[str, Any]:
        """The offset as Spark keeps it: a dict of plain values, its keys in order."""
        if self.phase == "initial":
            return {"phase": "initial", "version": VERSION}
        offset: dict[str, Any] = {
            "buckets": _positions_to_json(self.buckets),
            "lease": self.lease_id,
            "phase": self.phase,
            "table_id": self.table_id,
            "version": VERSION,
        }
        if self.first is not None:
            offset["first"] = _positions_to_json(self.first)
        return dict(sorted(offset.items()))

    @classmethod
    def from_json(cls, offset: Mapping[str, Any]) -> StreamOffset:
        """Read what `to_json` made, of this version or an older one.

        Raises:
            SourceError: It is of another version, or no offset of this source.
        """
        version = offset.get("version") if isinstance(offset, Mapping) else None
        if isinstance(version, int) and version != VERSION:
            raise SourceError(
                f"the checkpoint has an offset of version {version}, and this release of weir reads version {VERSION}:"
                " run the query with the release that wrote it, or begin a new checkpoint"
            )
        try:
            return cls._parse(offset)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise SourceError(
                f"the checkpoint has an offset that weir did not write ({error!r}): {str(offset)[:200]}"
            ) from None

    @classmethod
    def _parse(cls, offset: Mapping[str, Any]) -> StreamOffset:
        _whole(offset["version"])
        phase = offset["phase"]
        required, optional = _KEYS[phase]
        if not required <= offset.keys() <= required | optional:
            raise ValueError(f"keys {sorted(offset)}")
        if phase == "initial":
            return cls(phase=phase)
        first = offset.get("first")
        return cls(
            phase=phase,
            table_id=_whole(offset["table_id"]),
            lease_id=_text(offset["lease"]),
            buckets=_positions_from_json(offset["buckets"]),
            first=None if first is None else _positions_from_json(first),
        )

    def at(self, buckets: Positions) -> StreamOffset:
        """The end of a later micro-batch."""
        return replace(self, phase="log", buckets=buckets, first=None)


INITIAL: Final = StreamOffset(phase="initial")


def _positions_to_json(positions: Positions) -> dict[str, Any]:
    return {
        name: {"history": positions[bucket].history.hex(), "offset": positions[bucket].offset}
        for name, bucket in sorted((str(bucket), bucket) for bucket in positions)
    }


def _positions_from_json(positions: Mapping[str, Any]) -> dict[int, Position]:
    read = {}
    for name, position in positions.items():
        if position.keys() != {"history", "offset"} or len(position["history"]) != _HISTORY_DIGITS:
            raise ValueError(f"bucket {name}: {position}")
        read[int(name)] = Position(_whole(position["offset"]), bytes.fromhex(position["history"]))
    if sorted(read) != list(range(len(read))):
        raise ValueError(f"buckets {sorted(read)}")
    return dict(sorted(read.items()))


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no whole number")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
