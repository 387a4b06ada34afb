"""What happened in a run, in order: one list of events, and its fingerprint.

An event says when (virtual seconds), who, what, and the facts of it, as plain values: two runs of one seed have equal
lists, and so equal fingerprints, in whatever process. Rows are told by their number and a checksum; the rows themselves
are kept beside, with the scans (`ScanRecord`), for those who judge.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from bench.simulation.group_validators import GroupHistory
from bench.simulation.network import Fault
from scanner.data.changes import CHANGE_COLUMNS
from scanner.data.keys import ALL_KEYS

if TYPE_CHECKING:
    from bench.simulation.tables import Row, Rows
    from bench.simulation.tails import TailBounds
    from bench.simulation.transaction_validators import VersionRecord
    from bench.simulation.visitors import Lookup
    from bench.simulation.workload import ScanTask
    from scanner import ScannerError
    from scanner.data.keys import KeyRange


CHANGE_NAMES: Final = tuple(field.name for field in CHANGE_COLUMNS)
DISTURBING: Final = frozenset({*(fault.value for fault in Fault), "killed", "draining", "swizzled"})
"""Events after which a connection, or what the server kept for it, may be gone."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened."""

    at_s: float
    """Virtual seconds since the start of the run."""
    who: str
    what: str
    facts: tuple[tuple[str, object], ...]

    def __str__(self) -> str:
        facts = " ".join(f"{name}={value}" for name, value in self.facts)
        return f"{self.at_s:11.6f}  {self.who:<12} {self.what:<16} {facts}".rstrip()


class History:
    """The events of a run, and the scans and writes in it that can be judged."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.counts: Counter[str] = Counter()
        """Events by what they are; what the reports call coverage."""
        self._struck: Counter[str] = Counter()
        self.scans: list[ScanRecord] = []
        self.writes: list[WriteRecord] = []
        self.versions: list[VersionRecord] = []
        """Of transactions."""
        self.group = GroupHistory()
        self.group_failed: list[GroupFailure] = []
        """What has ended readers of the group."""
        self.lookups: list[Lookup] = []
        self.written_to: set[int] = set()
        """Ids of tables that somebody wrote to, or staged rows for, and was told so; of those that come and go."""
        self.dropped_unwritten: set[int] = set()
        """Ids of tables that were dropped since they were said to be unwritten."""
        self.found: list[tuple[str, str, str]] = []
        """What was seen to be wrong at once: the name of the validator, who, and a sentence."""
        self.left: dict[str, int] = {}
        """What was still held at the end, by kind; should be zeros."""
        self.logged: list[str] = []
        """What the server or a client logged as an error."""
        self.stuck: list[str] = []
        """Who did not come to an end in time."""

    def add(self, who: str, what: str, **facts: object) -> None:
        """Record an event, now."""
        self.events.append(Event(round(trio.current_time(), 9), who, what, tuple(facts.items())))
        self.counts[what] += 1
        self._struck[who] += what in DISTURBING

    def disturbances(self, who: str) -> int:
        """How often something has struck that can cut off what somebody is doing."""
        return sum(self._struck[each] for each in (who, "server", "network"))

    @property
    def restarts(self) -> int:
        """How often the server has lost what it keeps for scans that are cut, of some bucket at least."""
        return sum(self.counts[what] for what in ("killed", "draining", "emptied", "opens_anew"))

    def fingerprint(self) -> str:
        """Of everything that happened; equal for equal histories."""
        digest = hashlib.sha256()
        for event in self.events:
            digest.update(repr((event.at_s, event.who, event.what, event.facts)).encode())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """An acknowledged write."""

    who: str
    rows: Mapping[tuple[object, ...], tuple[object, ...] | None]
    """What each key holds afterwards, as the writer meant it; None: nothing."""
    ranges: tuple[tuple[int, int, int], ...]
    """(bucket, start, end) of its changes."""
    began_s: float
    """When it was asked for, virtual seconds."""
    ended_s: float
    """When it was acknowledged."""


@dataclass(frozen=True, slots=True)
class GroupFailure:
    """The end of a reader of the group that it has not chosen."""

    who: str
    error: ScannerError
    excused: bool
    """Something happened that may cause this error."""


@dataclass(slots=True)
class BucketRecord:
    """What a consumer was told of one bucket's scan."""

    log_offset: int | None = None
    digest: int | None = None
    """None unless the scan came to its end."""
    reason: str | None = None
    key_range: KeyRange = ALL_KEYS
    """What the scan's digest is of; the product's client leaves out keys that cannot match."""


@dataclass(frozen=True, slots=True)
class Bookmark:
    """A position of a tail that its consumer was told."""

    bucket: int
    rows: int
    """Rows of the bucket that it had been given by then."""
    offset: int
    """Every change before it that passes was among them."""


@dataclass(slots=True)
class ScanRecord:
    """One scan, as its consumer saw it."""

    who: str
    task: ScanTask
    opened_at_s: float = 0.0
    rows: list[Row] = field(default_factory=list)
    """What was delivered, in the order of arrival; a row that came again when an old token was used counts once."""
    buckets: dict[int, BucketRecord] = field(default_factory=dict)
    skipped: tuple[int, ...] = ()
    """Buckets that its client did not ask for, since no row of theirs could match."""
    bounds: TailBounds | None = None
    """Where it was to begin and to end, if it is a tail."""
    changes: dict[int, list[Row]] = field(default_factory=dict)
    """A tail's rows by bucket."""
    bookmarks: list[Bookmark] = field(default_factory=list)
    """A tail's positions, in the order in which they were told."""
    promised: Mapping[int, int] = field(default_factory=dict)
    """The log offsets, by bucket, that it was told it would show."""
    asked_for_existing: bool = False
    """It was to be of a lease of checkpoints that there were already."""
    resumes: int = 0
    """How often it went on after a cut."""
    rewound_to: int | None = None
    """The ordinal of an old token with which it went on, until it has what it had before; None: of its newest one."""
    overrun_bytes: int = 0
    """The furthest that the product's client saw the server go past the credit."""
    found: list[tuple[str, str]] = field(default_factory=list)
    """What its consumer saw to be wrong at once: the name of the validator, and a sentence."""
    ended: bool = False
    """It came to its explicit end."""
    left: bool = False
    """Its consumer left it."""
    waited_s: float = 0.0
    """At its end, of a bucket that was not complete: how long ago its newest page was asked for, at most."""
    error: ScannerError | None = None
    excused: bool = False
    """Something happened that may cause this error."""
    closed_at_s: float = 0.0

    def columns(self, rows: Rows) -> tuple[str, ...]:
        """The columns of what was delivered."""
        changed = CHANGE_NAMES if self.task.tail is not None else ()
        return self.task.columns or (*rows.schema.names, *changed)

    def bookmark(self, bucket: int, offset: int) -> None:
        """Take a position that was told now."""
        told = Bookmark(bucket, len(self.changes.get(bucket, ())), offset)
        if told not in self.bookmarks[-1:]:
            self.bookmarks.append(told)

    def reached(self, bucket: int) -> int:
        """The newest position of a bucket that was told, in front of where it was rewound to; -1: none."""
        rewound_to = self.rewound_to
        told = (
            each.offset
            for each in self.bookmarks
            if each.bucket == bucket and (rewound_to is None or each.rows < rewound_to)
        )
        return max(told, default=-1)
