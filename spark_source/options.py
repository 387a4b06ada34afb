"""The options of ``spark.read.format("weir")``, parsed once into a frozen object.

Spark hands options over as strings under names without case, so everything is compared in lower case and
reported in the spelling of the documentation. Parsing is pure: no network, no Spark. It either returns a
complete, valid `SourceOptions` or raises `SourceOptionError`.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from spark_source.errors import SourceOptionError, did_you_mean, shown

Mode = Literal["push", "session", "token", "cursor", "asof"]
"""How rows travel: server push, or pages pulled by one of the models that push is compared with."""

MODES: tuple[Mode, ...] = get_args(Mode)

AS_OF_MODES: tuple[Mode, ...] = ("push", "asof")
"""Modes that can read a state of the past."""

Offsets = int | tuple[tuple[int, int], ...]
"""A log offset for all buckets, or pairs of bucket and log offset, ascending by bucket."""

SIZE_BYTES_MAX = 1 << 30
"""Largest credit or page in bytes. More than this in flight per task is a mistake in the unit."""

PAGE_DEPTH_MAX = 64
"""Most pages asked for ahead."""

LEASE_TTL_S_DEFAULT = 600
LEASE_TTL_S_MAX = 86_400
"""Longest time to live of a read's lease that may be asked for, in seconds."""

SPLITS_MAX = 1024
"""Most parts of one bucket that may be asked for: each is a task of its own."""

_SIZE = re.compile(r"(?P<number>[0-9]{1,19})(?P<unit>[kmg]?)", re.IGNORECASE)
_OFFSET_MAX = 2**64 - 1
_OFFSET_DIGITS_MAX = 20
_UNIT_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_BUCKET_OFFSET = re.compile(r"(?P<bucket>[0-9]{1,10})\s*:\s*(?P<offset>[0-9]{1,20})")
_LIST_OF_TEXTS = re.compile(r"""[\[(](["']).*\1,?[\])]""")
"""What Spark makes of a list or a tuple."""
_LEASE_ID = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
_INSTANT = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})"
)
_HOST_PORT = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+(%[^\s\[\]/]+)?\]|[^\s:\[\]/]+):(?P<port>[0-9]{1,5})")

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceOptions:
    """One read of one table, as the user asked for it."""

    endpoint: str
    """``HOST:PORT`` of the server, reachable from the driver and from every executor."""
    table: str
    """Name of the table."""
    mode: Mode = "push"
    """How rows travel from the server to a task."""
    as_of: Offsets | None = None
    """What the buckets are read as of: the state in front of these log offsets; None: what is there now."""
    as_of_time: datetime.datetime | None = None
    """An instant, with a zone: what is read is every commit before it, and none from it on. None: as above."""
    lease_id: str | None = None
    """Names a lease that the user holds: what is read is what that keeps. None: the driver leases what is there now."""
    lease_ttl_s: int = LEASE_TTL_S_DEFAULT
    """Modes push and asof without `as_of` and `lease_id`: seconds for which the state of the planning is kept after the
    last task began or renewed it; 0: nothing is kept, and each task reads what is there when it begins."""
    splits: int | None = None
    """Into how many ranges of keys, each read by a task of its own, every bucket is cut; None: it is not cut, unless
    `split_bytes` says so."""
    split_bytes: int | None = None
    """Stored bytes that a task is to read, about; None: it reads a whole bucket, unless `splits` says so."""
    columns: tuple[str, ...] | None = None
    """Columns read, in this order; None for all of them, in the table's order."""
    where: str | None = None
    """The condition that a row has to meet, as `Scan.where` takes it; None: every row is read. Checked against the
    table by `spark_source.batch.scans`."""
    key_from: str | None = None
    """Values of the first key columns, where the keys that are read begin, inclusive; None: at the first key. Read
    by `spark_source.batch.keys`."""
    key_to: str | None = None
    """Likewise, where they end, exclusive; None: behind the last key."""
    credit_bytes: int | None = None
    """Push: the most bytes of batches that the server may have under way to one task; None for the client's default."""
    page_bytes: int | None = None
    """All modes but push: bytes asked for per page; None for the client's default."""
    page_depth: int | None = None
    """All modes but push: pages asked for ahead of the one in use; None for the client's default."""
    statistics: bool = False
    """Whether each bucket's rows are followed by one row that reports on its scan."""
    tls_ca: str | None = None
    """File with the CAs of the server, or ``system``; the path, as on every other machine. None: as below."""
    tls_cert: str | None = None
    """File with the client's certificate. TLS is used if this or `tls_ca` is given."""
    tls_key: str | None = None
    """File with its key; None: it is in `tls_cert`."""
    token_file: str | None = None
    """File with the bearer token. The token itself is never an option: options are in plans and in the Spark UI."""

    @property
    def names_state(self) -> bool:
        """Whether the caller says which state is read."""
        return self.as_of is not None or self.as_of_time is not None or self.lease_id is not None

    @property
    def takes_lease(self) -> bool:
        """Whether the driver leases what the tasks are to read."""
        named = self.as_of is not None or self.lease_id is not None
        return self.lease_ttl_s > 0 and not named and self.mode in AS_OF_MODES

    @property
    def reads_one_state(self) -> bool:
        """Whether all tasks that read parts of a bucket read them as of one log offset."""
        if self.mode not in AS_OF_MODES:
            return False
        return self.names_state or self.lease_ttl_s > 0

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Parse the options of one read.

        Args:
            options: Names (in any case) and values, as Spark passes them.

        Raises:
            SourceOptionError: An option is unknown, missing, or its value is not allowed.
        """
        given = {name.lower(): (name, value) for name, value in options.items()}
        if any(name.startswith("option.") or name in _OF_CATALOG_TABLES for name in given):
            raise SourceOptionError("table", None, _NO_CATALOG_TABLES)
        for lowered, (name, _) in given.items():
            if lowered not in _SPELLED:
                # The value may be a token that somebody meant to be kept.
                raise SourceOptionError(name, None, _describe_unknown(name))

        def take(name: str, parse: Callable[[str, str], T], default: T) -> T:
            entry = given.get(name.lower())
            if entry is None:
                return default
            return parse(name, entry[1] if name in _WITH_ITS_SPACES else entry[1].strip())

        for name in ("endpoint", "table"):
            if name not in given:
                problem = f"option {name!r} is missing: {_HELP[name]}"
                # So they arrive if such a table was given its columns, which Spark then does not ask for.
                hint = "" if given else f"; of a table in Spark's catalog: {_NO_CATALOG_TABLES}"
                raise SourceOptionError(name, None, problem + hint)
        parsed = cls(
            endpoint=take("endpoint", _parse_endpoint, ""),
            table=take("table", _parse_text, ""),
            mode=take("mode", _parse_mode, "push"),
            as_of=take("asOf", _parse_as_of, None),
            as_of_time=take("asOfTimestamp", _parse_instant, None),
            lease_id=take("leaseId", _parse_lease_id, None),
            lease_ttl_s=take("leaseTtl", parse_lease_ttl, LEASE_TTL_S_DEFAULT),
            splits=take("splits", _whole(1, SPLITS_MAX, "a number of tasks for each bucket"), None),
            split_bytes=take("targetSplitBytes", parse_size, None),
            columns=take("columns", _parse_columns, None),
            where=take("where", _parse_text, None),
            key_from=take("keyFrom", _parse_text, None),
            key_to=take("keyTo", _parse_text, None),
            credit_bytes=take("creditBytes", parse_size, None),
            page_bytes=take("pageBytes", parse_size, None),
            page_depth=take("pageDepth", _whole(0, PAGE_DEPTH_MAX, "a number of pages"), None),
            statistics=take("statistics", parse_bool, False),
            tls_ca=take("tlsCa", _parse_path, None),
            tls_cert=take("tlsCert", _parse_path, None),
            tls_key=take("tlsKey", _parse_path, None),
            token_file=take("tokenFile", _parse_path, None),
        )
        _refuse_contradictions(parsed, {_SPELLED[name]: value for name, (_, value) in given.items()})
        return parsed


_HELP: Mapping[str, str] = {
    "endpoint": "HOST:PORT of the server, such as 127.0.0.1:9123",
    "table": "the name of the table to read",
    "mode": "push (the default), session, token, cursor or asof",
    "asOf": "a log offset for all buckets, such as 1200, or one for each, such as 0:1200,1:1187",
    "asOfTimestamp": "an instant with its offset from UTC, such as 2013-07-01T12:30:00Z or 2013-07-01T14:30:00+02:00",
    "leaseId": "the id of a lease that you hold, of 1 to 100 letters, digits, _ . : -",
    "leaseTtl": "seconds for which the state that was planned is kept behind the last task, 0 for not at all",
    "splits": "the number of tasks that share the keys of each bucket, from 1 to 1024",
    "targetSplitBytes": "stored bytes that one task is to read, about, such as 64m",
    "columns": "column names, comma separated, in the order wanted",
    "where": "a condition, such as price > 10 AND item IS NOT NULL",
    "keyFrom": "the value of the first key column, or a JSON array of the values of several, where the keys begin",
    "keyTo": "the value of the first key column, or a JSON array of the values of several, in front of which they end",
    "creditBytes": "bytes under way to one task, such as 8m",
    "pageBytes": "bytes per page in all modes but push, such as 4m",
    "pageDepth": "pages asked for ahead in all modes but push",
    "statistics": "true or false (the default)",
    "tlsCa": "the path of a PEM file with the CAs of the server, or system",
    "tlsCert": "the path of a PEM file with the client's certificate",
    "tlsKey": "the path of a PEM file with its key",
    "tokenFile": "the path of a file with the bearer token",
}
OPTION_NAMES: tuple[str, ...] = tuple(_HELP)
"""Every option, in the spelling of the documentation."""

WRITE_OPTION_NAMES: tuple[str, ...] = (
    "txnName",
    "txnVersion",
    "failOnMissingBatches",
    "changeTypeColumn",
    "batchBytes",
)
"""What only a write has, see `spark_source.writing.options`; a read refuses them by name."""

_OF_CATALOG_TABLES = frozenset(["owner", "provider", "external", "is_managed_location"])
"""What Spark adds to the properties of a table in its catalog; it prefixes the user's options with ``option.``."""
_NO_CATALOG_TABLES = (
    "CREATE TABLE ... USING weir does not work, because Spark does not hand such a table's options to a source written"
    " in Python; use CREATE TEMPORARY VIEW ... USING weir OPTIONS (...), or spark.read.format('weir')"
)
_SPELLED: Mapping[str, str] = {name.lower(): name for name in OPTION_NAMES}
_WITH_ITS_SPACES = frozenset(["keyFrom", "keyTo"])
"""What is cut off here, a string column's value would lack: `spark_source.batch.keys` reads it, and knows the type."""

CONTRADICTIONS: Mapping[tuple[str, str], str] = {
    ("asOf", "asOfTimestamp"): "both say which state is read",
    ("asOf", "leaseId"): "both say which state is read",
    ("asOfTimestamp", "leaseId"): "both say which state is read",
    ("asOf", "leaseTtl"): "a state that asOf names is read without a lease",
    ("leaseId", "leaseTtl"): "how long your lease lives was said when you acquired it",
    ("splits", "targetSplitBytes"): "both say how large a task is",
}
"""Pairs of options that cannot both be given, whatever their values, and why."""

_OF_ONE_STATE = ("asOf", "asOfTimestamp", "leaseId", "splits", "targetSplitBytes")
"""What only the modes of `AS_OF_MODES` can do. Not without effect elsewhere, as sizes are: the rows would be others."""


def _describe_unknown(name: str) -> str:
    lowered = name.lower()
    if lowered == "pushfilters":
        return (
            "option 'pushFilters' is withdrawn: Spark keeps one reader for each load(), so the filters of one query"
            " took rows away from the others; name the rows with option 'where', in a load() of their own"
        )
    of_writes = {known.lower(): known for known in WRITE_OPTION_NAMES}
    if lowered in of_writes:
        return f"option {of_writes[lowered]!r} is one of writing: it belongs to df.write or df.writeStream"
    hint = did_you_mean(name, (*OPTION_NAMES, *WRITE_OPTION_NAMES))
    if lowered == "checkpointlocation":
        hint = "; it belongs to df.writeStream"
    if lowered in {"token", "password"}:
        hint = "; a token stands in a file, which option 'tokenFile' names"
    if lowered == "path":
        # Also of a write, whose options may be those of a read but for this one.
        hint = (
            "; a table has no path: call load() or save() without arguments and name it with option 'table'"
        )
    return (
        f"unknown option {name!r}{hint} (the options are {', '.join(OPTION_NAMES)};"
        f" of a write also {', '.join(WRITE_OPTION_NAMES)})"
    )


def _refuse_contradictions(options: SourceOptions, given: Mapping[str, str]) -> None:
    """Refuse options that do not go together.

    Args:
        options: What they say.
        given: Those that the user gave, in the spelling of the documentation, with the text of each.

    Raises:
        SourceOptionError: It names both options.
    """
    for (first, second), why in CONTRADICTIONS.items():
        if first in given and second in given:
            raise refused(
                second, given[second], f"option {first!r} is given too, and {why}; leave one of them out"
            )
    for name in _OF_ONE_STATE:
        if name not in given or options.reads_one_state:
            continue
        if options.mode not in AS_OF_MODES:
            why = (
                f"in mode {options.mode} each task reads what is there when it begins; use mode push or asof"
            )
            raise refused(name, given[name], why)
        # The parts of a bucket would be of several states: rows that move between them would come twice, or never.
        why = "with leaseTtl 0 each task reads what is there when it begins; leave leaseTtl out"
        raise refused(name, given[name], why)


def refused(name: str, value: str, allowed: str) -> SourceOptionError:
    """The error of an option whose value is not allowed, to be raised."""
    return SourceOptionError(name, value, f"option {name!r} cannot be {shown(value)}: {allowed}")


def _parse_endpoint(name: str, value: str) -> str:
    match = _HOST_PORT.fullmatch(value)
    if match is None or not 1 <= int(match["port"]) <= 65535:
        _, user, where = value.rpartition("@")  # Not shown: it may have a password.
        raise refused(name, f"...@{where}" if user else value, f"it is {_HELP['endpoint']}")
    return value


def _parse_text(name: str, value: str) -> str:
    if not value.strip():
        raise refused(name, value, f"it is {_HELP[name]}")
    return value


def _parse_path(name: str, value: str) -> str:
    if not value or "\n" in value or value.startswith("-----"):
        # The value is not quoted: who mistakes a file's name for its content has put a secret here.
        raise SourceOptionError(name, None, f"option {name!r} is {_HELP[name]}, not what is in it")
    return value


def _parse_mode(name: str, value: str) -> Mode:
    lowered = value.lower()
    if lowered not in MODES:
        raise refused(name, value, f"it is one of {', '.join(MODES)}")
    return lowered


def _parse_as_of(name: str, value: str) -> Offsets:
    if value.isascii() and value.isdigit() and len(value) <= _OFFSET_DIGITS_MAX:
        if int(value) > _OFFSET_MAX:
            raise refused(name, value, "an offset is 2^64 - 1 at most")
        return int(value)
    matches = [_BUCKET_OFFSET.fullmatch(part.strip()) for part in value.split(",")]
    pairs = sorted((int(each["bucket"]), int(each["offset"])) for each in matches if each is not None)
    if not all(matches):
        raise refused(name, value, f"it is {_HELP[name]}")
    if len(dict(pairs)) < len(pairs):
        raise refused(name, value, "a bucket is there more than once")
    if any(offset > _OFFSET_MAX for _, offset in pairs):
        raise refused(name, value, "an offset is 2^64 - 1 at most")
    return tuple(pairs)


def _parse_instant(name: str, value: str) -> datetime.datetime:
    try:
        instant = datetime.datetime.fromisoformat(value) if _INSTANT.fullmatch(value) else None
        # In UTC it may be of no year that Python has.
        instant = None if instant is None else instant.astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        instant = None
    if instant is None:
        raise refused(name, value, f"it is {_HELP[name]}")
    return instant


def _parse_lease_id(name: str, value: str) -> str:
    if not _LEASE_ID.fullmatch(value):
        raise refused(name, value, f"it is {_HELP[name]}")
    return value


def columns_text(columns: Sequence[str]) -> str:
    """Option ``columns`` of these names.

    Raises:
        SourceOptionError: A name would be read as another, or as several, or is no text.
    """
    others = [each for each in columns if not isinstance(each, str)]
    if others:
        problem = f"columns are named one by one, select('a', 'b'), not {others[0]!r}"
        raise SourceOptionError("columns", None, problem)
    mangled = [each for each in columns if "," in each or each != each.strip()]
    if mangled:
        problem = (
            f"column {mangled[0]!r} has a comma, or a space at an end: read all columns, and select in Spark"
        )
        raise SourceOptionError("columns", mangled[0], problem)
    return ",".join(columns)


def _parse_columns(name: str, value: str) -> tuple[str, ...]:
    columns = tuple(column.strip() for column in value.split(","))
    if not all(columns):
        raise refused(name, value, f"it is {_HELP['columns']}; leave it out to read all of them")
    if _LIST_OF_TEXTS.fullmatch(value):
        raise refused(
            name, value, f"an option is text, and this was a list; give {_HELP['columns']}: ','.join(names)"
        )
    repeated = sorted({column for column in columns if columns.count(column) > 1})
    if repeated:
        raise refused(name, value, f"{', '.join(repeated)} is there more than once")
    return columns


def parse_size(name: str, value: str) -> int:
    """A number of bytes, such as ``512k``.

    Args:
        name: Of the option, for messages.
        value: What the user gave it.

    Raises:
        SourceOptionError: It is none, or none from 1 to `SIZE_BYTES_MAX`.
    """
    size = size_bytes(value, SIZE_BYTES_MAX)
    if size is None:
        raise refused(name, value, "it is a number of bytes from 1 to 1g, with k, m or g for KiB, MiB or GiB")
    return size


def size_bytes(value: str, high: int) -> int | None:
    """The number of bytes that a text such as ``512k`` says; None: it says none, or none from 1 to `high`."""
    match = _SIZE.fullmatch(value)
    size = 0 if match is None else int(match["number"]) * _UNIT_BYTES[match["unit"].lower()]
    return size if 1 <= size <= high else None


def _whole(low: int, high: int, what: str) -> Callable[[str, str], int]:
    def parse(name: str, value: str) -> int:
        number = whole_number(value, low, high)
        if number is None:
            raise refused(name, value, f"it is {what} from {low} to {high}")
        return number

    return parse


def parse_lease_ttl(name: str, value: str) -> int:
    """How long a lease lives, in seconds; 0: there is none.

    Raises:
        SourceOptionError: It is no number of seconds, or more than a day of them.
    """
    return _whole(0, LEASE_TTL_S_MAX, "a number of seconds")(name, value)


def whole_number(value: str, low: int, high: int) -> int | None:
    """The number that some digits are; None: they are none, or none from `low`, 0 or more, to `high`."""
    digits = value.isascii() and value.isdigit() and len(value) <= len(str(high))
    return int(value) if digits and low <= int(value) <= high else None


def parse_bool(name: str, value: str) -> bool:
    """What an option that is true or false says.

    Raises:
        SourceOptionError: Neither.
    """
    lowered = value.lower()
    if lowered not in ("true", "false"):
        raise refused(name, value, "it is true or false")
    return lowered == "true"
