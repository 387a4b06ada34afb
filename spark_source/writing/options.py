"""The options of ``df.write.format("weir")`` and of ``df.writeStream.format("weir")``.

Where to and as whom is said as a read says it, and read by `spark_source.options`; the rest is here. Parsing is pure:
it returns complete, valid `WriteOptions` or raises `SourceOptionError`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from spark_source.errors import SourceOptionError, did_you_mean
from spark_source.options import (
    OPTION_NAMES,
    WRITE_OPTION_NAMES,
    SourceOptions,
    parse_bool,
    parse_size,
    refused,
    whole_number,
)
from spark_source.stream.options import CHANGE_OPTION_NAMES

BATCH_BYTES_DEFAULT: Final = 4 << 20
ONCE: Final = "once:"
"""The server remembers a name that begins so for an hour, and not for as long as those of jobs."""
_TXN_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
TXN_VERSION_MAX: Final = 2**63 - 1
CHANGE_TYPE_COLUMN: Final = "_change_type"

T = TypeVar("T")

CONNECTION_OPTION_NAMES: Final = ("endpoint", "table", "tlsCa", "tlsCert", "tlsKey", "tokenFile")
"""What a write says as a read does."""
_OF_STREAMS: Final = frozenset(["checkpointlocation", "queryname"])
"""Spark's own, which it hands to the sink among the options."""

_SPELLED: Final = {name.lower(): name for name in (*CONNECTION_OPTION_NAMES, *WRITE_OPTION_NAMES)}
_ONLY_WRITES: Final = _OF_STREAMS | {name.lower() for name in WRITE_OPTION_NAMES}


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteOptions:
    """One save, or all the micro-batches of one query, as the user asked for it."""

    target: SourceOptions
    """The server, the table and the credentials; nothing else of it is used."""
    txn_name: str | None = None
    """Names the transactions of a job, so that each version is published once; None: each save has its own."""
    txn_version: int = 0
    """The version that a save publishes, 0 to 2^63 - 1; later ones are higher."""
    fail_on_missing_batches: bool = True
    """Fail if the table lacks micro-batches of the query before the one that is written; False: go on, with a
    warning."""
    change_type_column: str = CHANGE_TYPE_COLUMN
    """Where a DataFrame has a column of this name, its rows are changes and this is their kind."""
    requires_change_type: bool = False
    """Whether the user named that column, so that it has to be there."""
    batch_bytes: int = BATCH_BYTES_DEFAULT
    """About as many bytes of rows are gathered before they are staged."""

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
        """Parse the options of one write.

        Args:
            options: Names (in any case) and values, as Spark passes them.
            streaming: Whether a query writes; Spark then adds options of its own.

        Raises:
            SourceOptionError: An option is unknown, missing, of the other kind of write or of reads, or its value is
                not allowed.
        """
        given = {name.lower(): value.strip() for name, value in options.items()}
        for name in options:
            if name.lower() not in _SPELLED and not (streaming and name.lower() in _OF_STREAMS):
                # The value may be a token that somebody meant to be kept.
                raise SourceOptionError(name, None, _describe_unknown(name))
        if streaming:
            _refuse_in_streams(given)
        elif "failonmissingbatches" in given:
            raise SourceOptionError(
                "failOnMissingBatches",
                None,
                "option 'failOnMissingBatches' is one of df.writeStream: the versions of saves may leave numbers out",
            )
        if ("txnname" in given) != ("txnversion" in given):
            there, absent = ("txnName", "txnVersion") if "txnname" in given else ("txnVersion", "txnName")
            raise SourceOptionError(
                absent,
                None,
                f"option {there!r} needs option {absent!r}: together they name what is written once",
            )

        def take(name: str, parse: Callable[[str, str], T], default: T) -> T:
            value = given.get(name.lower())
            return default if value is None else parse(name, value)

        return cls(
            target=SourceOptions.parse(
                {name: value for name, value in given.items() if name not in _ONLY_WRITES}
            ),
            txn_name=take("txnName", _parse_name, None),
            txn_version=take("txnVersion", _parse_version, 0),
            fail_on_missing_batches=take("failOnMissingBatches", parse_bool, True),
            change_type_column=take("changeTypeColumn", _parse_column, CHANGE_TYPE_COLUMN),
            requires_change_type="changetypecolumn" in given,
            batch_bytes=take("batchBytes", parse_size, BATCH_BYTES_DEFAULT),
        )


def is_of_write(options: Iterable[str]) -> bool:
    """Whether a name is among these that only writes have."""
    return any(name.lower() in _ONLY_WRITES for name in options)


def _refuse_in_streams(given: Mapping[str, str]) -> None:
    for name in ("txnName", "txnVersion"):
        if name.lower() in given:
            raise SourceOptionError(
                name,
                None,
                f"option {name!r} is one of df.write: a stream's transactions have the query's id and batch numbers",
            )


def _describe_unknown(name: str) -> str:
    lowered = name.lower()
    if lowered in _OF_STREAMS:
        return f"option {name!r} is one of df.writeStream: a save has no checkpoint"
    if lowered == "path":
        return (
            "unknown option 'path': a table has no path; call save() or start() without arguments and name it with"
            " option 'table'"
        )
    of_reads = {known.lower(): known for known in (*OPTION_NAMES, *CHANGE_OPTION_NAMES)}
    if lowered in of_reads:
        return f"option {of_reads[lowered]!r} is one of reading: it belongs to spark.read, not to a write"
    if lowered in {"token", "password"}:
        return f"unknown option {name!r}; a token stands in a file, which option 'tokenFile' names"
    known = _SPELLED.values()
    return (
        f"unknown option {name!r}{did_you_mean(name, known)} (the options of a write are {', '.join(known)})"
    )


def _parse_name(option: str, value: str) -> str:
    if value.startswith(ONCE):
        raise refused(
            option, value, f"the server forgets a name that begins with {ONCE} after an hour; use another one"
        )
    if _TXN_NAME.fullmatch(value) is None:
        raise refused(
            option,
            value,
            "it is a name of the job's own, the same in every run of it, of 1 to 100 letters, digits, _ . : or -",
        )
    return value


def _parse_version(option: str, value: str) -> int:
    version = whole_number(value, 0, TXN_VERSION_MAX)
    if version is None:
        raise refused(
            option, value, f"it is a whole number from 0 to {TXN_VERSION_MAX}, higher for each later save"
        )
    return version


def _parse_column(option: str, value: str) -> str:
    if not value:
        raise refused(option, value, "it is the name of a column of the DataFrame")
    return value
