"""The options of reads of the changes, ``readChanges=true``: those of every read, and where to begin, end and stop.

Parsing is pure, as that of `spark_source.options`, which has the options that all reads share. It either returns a
complete `ChangeOptions` or raises `SourceOptionError`; which options go with a stream and which with a batch read is
checked when Spark asks for the one or the other.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from spark_source.errors import SourceOptionError, did_you_mean
from spark_source.options import (
    OPTION_NAMES,
    SourceOptions,
    parse_bool,
    parse_lease_ttl,
    refused,
    size_bytes,
    whole_number,
)

LATEST: Final = -1
"""In JSON of offsets, as Kafka has it: where the log ends."""
EARLIEST: Final = -2
"""Likewise: the oldest offset that the log has."""
LEASE_TTL_S_DEFAULT: Final = 3600
"""Of a read of changes: a query that is started anew within it goes on where it was, whatever retention does."""
TRIGGER_DELAY_S_DEFAULT: Final = 900.0

_NAMED: Final = {"earliest": EARLIEST, "latest": LATEST}
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
COUNT_MAX: Final = 2**62
"""Of changes or bytes, in a limit."""
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION: Final = re.compile(r"(?P<number>[0-9]{1,9})\s*(?P<unit>ms|s|m|h)")

_MILLISECONDS: Final = re.compile(r"[0-9]{12,16}")
"""Since 1970, of times from 1973 on; fewer digits are seconds, or a date without its dashes."""
_FINER: Final = re.compile(r"[.,][0-9]{7}")
"""Than microseconds: Python would leave out these digits of a time, and the time would be an earlier one."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Full:
    """Begin with the table as it is, and go on with its changes."""


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first commit at or after a time."""

    time: datetime.datetime
    """With a time zone."""


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset for every bucket, or one for each."""

    offsets: int | tuple[tuple[int, int], ...]
    """`EARLIEST` or `LATEST`, of all; or pairs of a bucket and an offset or one of these, ascending by bucket."""


Place = Full | AtTime | AtOffsets
"""Where in the changelogs to begin or to end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How much one micro-batch may hold. The commit that reaches a maximum is the last one in it."""

    rows_max: int | None = None
    """Changes, those that `where` drops included; None: no limit."""
    bytes_max: int | None = None
    """Their stored rows, in bytes."""
    rows_min: int | None = None
    """Wait for so many, but no longer than `delay_s`."""
    delay_s: float = TRIGGER_DELAY_S_DEFAULT
    """Seconds."""

    @property
    def unlimited(self) -> bool:
        """Whether there is no maximum."""
        return self.rows_max is None and self.bytes_max is None


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangeOptions:
    """One read of the changes of one table, as the user asked for it."""

    source: SourceOptions
    """What it has in common with a read of the table: server, table, columns, condition, credit."""
    starting: Place | None
    """None: the default, `Full` of a stream and the oldest offset of a batch read."""
    ending: Place | None
    """Of a batch read; None: where the logs end when Spark plans."""
    fail_on_data_loss: bool
    """Fail if changes that are wanted are not kept any more; False: go on from the oldest ones, with a warning."""
    limits: Limits
    """Of a micro-batch."""
    of_streams: tuple[str, ...] = ()
    """Options given that go with a stream alone, for messages."""
    of_batches: tuple[str, ...] = ()
    """Those that go with a batch read alone."""

    def require_stream(self) -> None:
        """Check that the options are those of a stream.

        Raises:
            SourceOptionError: One goes with a batch read alone.
        """
        for name in self.of_batches:
            raise SourceOptionError(
                name, None, f"option {name!r} goes with spark.read alone: a stream has no end"
            )
        if self.starting is not None and not isinstance(self.starting, Full):
            self._require_whole_buckets()

    def require_batch(self) -> None:
        """Check that the options are those of a batch read.

        Raises:
            SourceOptionError: One goes with a stream alone.
        """
        for name in self.of_streams:
            raise SourceOptionError(
                name,
                None,
                f"option {name!r} goes with spark.readStream alone: a batch read is read as a whole",
            )
        self._require_whole_buckets()
        if isinstance(self.starting, Full):
            raise SourceOptionError(
                "startingOffsets",
                "full",
                "option 'startingOffsets' cannot be 'full' in a batch read: it is earliest, or JSON; read the table as"
                " it is without option 'readChanges'",
            )
        for name, place, forbidden in (
            ("startingOffsets", self.starting, LATEST),
            ("endingOffsets", self.ending, EARLIEST),
        ):
            offsets = place.offsets if isinstance(place, AtOffsets) else ()
            if forbidden in ((offsets,) if isinstance(offsets, int) else dict(offsets).values()):
                word = "latest (-1)" if forbidden == LATEST else "earliest (-2)"
                raise SourceOptionError(name, word, f"option {name!r} of a batch read cannot be {word}")

    def _require_whole_buckets(self) -> None:
        source = self.source
        for name, value in (("splits", source.splits), ("targetSplitBytes", source.split_bytes)):
            if value is not None:
                raise SourceOptionError(
                    name,
                    str(value),
                    f"option {name!r} cuts the table of a stream from 'full'; changes are read bucket by bucket",
                )

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ChangeOptions:
        """Parse the options of one read of changes.

        Args:
            options: Names (in any case) and values, as Spark passes them.

        Raises:
            SourceOptionError: An option is unknown, missing, contradicts another, or its value is not allowed.
        """
        given = {name.lower(): (name, value) for name, value in options.items()}
        _require_known(given)
        for name, why in _NOT_WITH_CHANGES.items():
            if name.lower() in given and not _is_harmless(name, given[name.lower()][1]):
                raise SourceOptionError(
                    name, given[name.lower()][1], f"option {name!r} does not go with readChanges: {why}"
                )
        # All parts of a bucket are read as of its planned offset, leased or not: a stream is cut with leaseTtl 0, too.
        apart = _OWN | {"leasettl"}
        common = {name: value for name, value in options.items() if name.lower() not in apart}

        def take(name: str, parse: Callable[[str, str], T]) -> T | None:
            entry = given.get(name.lower())
            return None if entry is None else parse(name, entry[1].strip())

        fail = take("failOnDataLoss", parse_bool)
        ttl_s = take("leaseTtl", parse_lease_ttl)
        starting: tuple[Place | None, ...] = (
            take("startingTimestamp", _parse_time),
            take("startingOffsets", _parse_starting),
        )
        ending = take("endingTimestamp", _parse_time), take("endingOffsets", _parse_offsets)
        return cls(
            source=replace(
                SourceOptions.parse(common), lease_ttl_s=LEASE_TTL_S_DEFAULT if ttl_s is None else ttl_s
            ),
            # As Kafka's: a time counts before offsets, which have to be right all the same.
            starting=starting[0] or starting[1],
            ending=ending[0] or ending[1],
            fail_on_data_loss=fail is None or fail,
            limits=_limits(take),
            of_streams=tuple(name for name in _OF_STREAMS if name.lower() in given),
            of_batches=tuple(name for name in _OF_BATCHES if name.lower() in given),
        )


_TIME: Final = (
    "a time such as 2026-01-31T12:00:00Z (UTC without a zone, no finer than microseconds) or milliseconds since 1970"
    " (12 digits or more)"
)
_HELP: Final[Mapping[str, str]] = {
    "readChanges": "true, to read the changes of the table, or false (the default)",
    "startingOffsets": 'full (the default of a stream), earliest, latest, or JSON such as {"0": 12, "1": -2}, with an'
    " offset, -2 (earliest) or -1 (latest) for each bucket",
    "startingTimestamp": _TIME,
    "endingOffsets": 'latest (the default), or JSON such as {"0": 12, "1": -1}, with an offset or -1 (latest) for each'
    " bucket",
    "endingTimestamp": _TIME,
    "failOnDataLoss": "true (the default), or false",
    "maxRowsPerTrigger": "a number of changes, from 1",
    "maxBytesPerTrigger": "a number of bytes, from 1, with k, m or g for KiB, MiB or GiB",
    "minRowsPerTrigger": "a number of changes, from 1",
    "maxTriggerDelay": "a time such as 15m (the default), with ms, s, m or h",
}
CHANGE_OPTION_NAMES: Final = tuple(_HELP)
"""The options that only reads of changes have, in the spelling of the documentation."""
_OWN: Final = frozenset(name.lower() for name in CHANGE_OPTION_NAMES)
_OF_STREAMS: Final = ("maxRowsPerTrigger", "maxBytesPerTrigger", "minRowsPerTrigger", "maxTriggerDelay")
_OF_BATCHES: Final = ("endingOffsets", "endingTimestamp")
_NOT_WITH_CHANGES: Final[Mapping[str, str]] = {
    "mode": "changes are pushed; leave it out",
    "asOf": "startingOffsets says where the changes begin",
    "asOfTimestamp": "startingTimestamp says where the changes begin",
    "leaseId": "a stream leases what it has not read itself",
    "keyFrom": "a changelog is in the order of its commits; use option 'where'",
    "keyTo": "a changelog is in the order of its commits; use option 'where'",
    "pageBytes": "changes are pushed; leave it out",
    "pageDepth": "changes are pushed; leave it out",
    "statistics": "leave it out",
}


def reads_changes(options: Mapping[str, str]) -> bool:
    """Whether the options ask for the changes of the table: option ``readChanges``.

    Raises:
        SourceOptionError: It is neither true nor false; or it is not given, and an option that goes with it is.
    """
    given = {name.lower(): (name, value) for name, value in options.items()}
    _, value = given.get("readchanges", ("", "false"))
    if parse_bool("readChanges", value.strip()):
        return True
    for name in CHANGE_OPTION_NAMES:
        if name != "readChanges" and name.lower() in given:
            raise SourceOptionError(
                name,
                given[name.lower()][1],
                f"option {name!r} goes with option readChanges=true, which is not set",
            )
    return False


def without_read_changes(options: Mapping[str, str]) -> dict[str, str]:
    """The options but ``readChanges``."""
    return {name: value for name, value in options.items() if name.lower() != "readchanges"}


def _require_known(given: Mapping[str, tuple[str, str]]) -> None:
    known = _OWN.union(name.lower() for name in OPTION_NAMES)
    for lowered, (name, _) in given.items():
        hint = "" if lowered in known else did_you_mean(name, CHANGE_OPTION_NAMES)
        if hint:
            raise SourceOptionError(name, None, f"unknown option {name!r}{hint}")


def _is_harmless(name: str, value: str) -> bool:
    """Whether an option that does not go with changes says no more than what holds anyway."""
    return (name, value.strip().lower()) in {("mode", "push"), ("statistics", "false")}


def _limits(take: Callable[[str, Callable[[str, str], int]], int | None]) -> Limits:
    rows_max = take("maxRowsPerTrigger", _parse_count)
    rows_min = take("minRowsPerTrigger", _parse_count)
    delay_ms = take("maxTriggerDelay", _parse_duration_ms)
    if delay_ms is not None and rows_min is None:
        raise SourceOptionError(
            "maxTriggerDelay",
            None,
            "option 'maxTriggerDelay' has no effect without 'minRowsPerTrigger': it is how long to wait for so many",
        )
    if rows_min is not None and rows_max is not None and rows_min > rows_max:
        raise SourceOptionError(
            "minRowsPerTrigger",
            str(rows_min),
            f"option 'minRowsPerTrigger' cannot be {rows_min}: maxRowsPerTrigger, {rows_max}, is less",
        )
    return Limits(
        rows_max=rows_max,
        bytes_max=take("maxBytesPerTrigger", _parse_size),
        rows_min=rows_min,
        delay_s=TRIGGER_DELAY_S_DEFAULT if delay_ms is None else delay_ms / 1000,
    )


def _refused(name: str, value: str) -> SourceOptionError:
    return refused(name, value, f"it is {_HELP[name]}")


def _parse_count(name: str, value: str) -> int:
    count = whole_number(value, 1, COUNT_MAX)
    if count is None:
        raise _refused(name, value)
    return count


def _parse_size(name: str, value: str) -> int:
    size = size_bytes(value, COUNT_MAX)
    if size is None:
        raise _refused(name, value)
    return size


def _parse_duration_ms(name: str, value: str) -> int:
    match = _DURATION.fullmatch(value.lower())
    if match is None:
        raise _refused(name, value)
    return round(int(match["number"]) * _UNITS_S[match["unit"]] * 1000)


def _parse_time(name: str, value: str) -> AtTime:
    try:
        if _MILLISECONDS.fullmatch(value):
            return AtTime(_EPOCH + datetime.timedelta(milliseconds=int(value)))
        if value.isdigit() or _FINER.search(value):
            raise ValueError(value)
        time = datetime.datetime.fromisoformat(value)
    except (ValueError, OverflowError):
        raise _refused(name, value) from None
    return AtTime(time.replace(tzinfo=datetime.UTC) if time.tzinfo is None else time)


def _parse_starting(name: str, value: str) -> Place:
    return Full() if value.lower() == "full" else _parse_offsets(name, value)


def _parse_offsets(name: str, value: str) -> AtOffsets:
    named = _NAMED.get(value.lower())
    if named is not None:
        return AtOffsets(named)
    try:
        pairs = json.loads(value, object_pairs_hook=list)
        offsets = sorted((_bucket(key), _offset(offset)) for key, offset in pairs)
    except (ValueError, TypeError, RecursionError):
        raise _refused(name, value) from None
    if not offsets or len(dict(offsets)) < len(offsets):
        raise _refused(name, value)
    return AtOffsets(tuple(offsets))


def _bucket(key: str) -> int:
    if not (isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 10):
        raise ValueError(key)
    return int(key)


def _offset(offset: object) -> int:
    if isinstance(offset, bool) or not isinstance(offset, int) or not EARLIEST <= offset < 2**64:
        raise ValueError(offset)
    return offset
