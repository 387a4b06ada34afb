"""Places in changelogs as people type them: offsets, times, and names."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click

from scanner.cli.app import fail, note
from scanner.client.scan.plan import EARLIEST, END, LATEST

if TYPE_CHECKING:
    from scanner import OffsetsAt
    from scanner.sync import Table

_OFFSET: Final = re.compile(r"(?:(?P<bucket>[0-9]{1,10}):)?(?P<offset>[0-9]{1,20})")
_TIME: Final = "2026-03-29T08:00:00Z"
_FINER: Final = re.compile(r"[.,][0-9]{7}")
"""Than microseconds: Python would leave out these digits of a time, and the time would be an earlier one."""


def parse_offsets(option: str, texts: Sequence[str]) -> int | dict[int, int]:
    """Read offsets: one `OFFSET` for all buckets, or `BUCKET:OFFSET` any number of times.

    Args:
        option: Names them in errors.
        texts: At least one.

    Raises:
        Failure: They are neither.
    """
    offsets: dict[int, int] = {}
    for text in texts:
        match = _OFFSET.fullmatch(text.strip())
        if match is None or (match["bucket"] is None and len(texts) > 1):
            fail(
                f"cannot read {option} {text!r}; write one OFFSET for all buckets, or BUCKET:OFFSET for each of them"
            )
        if match["bucket"] is None:
            return int(match["offset"])
        bucket = int(match["bucket"])
        if bucket in offsets:
            fail(f"{option} names bucket {bucket} twice")
        offsets[bucket] = int(match["offset"])
    return offsets


as_of_option = click.option(
    "--as-of",
    multiple=True,
    callback=lambda _context, _option, texts: parse_offsets("--as-of", texts) if texts else None,
    metavar="[BUCKET:]OFFSET",
    help="The state as of this log offset; of one bucket if BUCKET is given (repeat it).",
)


def parse_time(option: str, text: str) -> datetime.datetime:
    """Read a time of ISO 8601; without a zone it is one of UTC.

    Raises:
        Failure: It is none.
    """
    try:
        time = _time(text.strip())
    except ValueError:
        fail(f"cannot read {option} {text!r}; write a time such as {_TIME}, no finer than microseconds")
    return time if time.tzinfo is not None else time.replace(tzinfo=datetime.UTC)


def require_places(option: str, places: Mapping[int, int], wanted: Sequence[int], buckets: int) -> None:
    """Check that offsets given by bucket are of the buckets that are read.

    Args:
        option: Names them in errors.
        places: By bucket.
        wanted: The buckets that are read.
        buckets: How many the table has.

    Raises:
        Failure: One is of a bucket that the table does not have, or one is missing.
    """
    unknown = [bucket for bucket in places if bucket >= buckets]
    if unknown:
        fail(f"{option} names bucket {unknown[0]}; the table has buckets 0..{buckets - 1}")
    missing = [bucket for bucket in wanted if bucket not in places]
    if missing:
        fail(
            f"{option} says nothing of bucket {missing[0]}; write {option} BUCKET:OFFSET for each bucket that is read"
        )


def resolve_start(table: Table, texts: Sequence[str], wanted: Sequence[int]) -> dict[int, int]:
    """The offset of each bucket that `--from` means now.

    Args:
        table: Asked where its changelogs begin and end, or where a time is.
        texts: `earliest`, `latest`, a time, `OFFSET`, or `BUCKET:OFFSET` any number of times.
        wanted: The buckets that begin there.

    Raises:
        Failure: They are none of these.
        ArgumentInvalid: The time is in the future.
    """
    first = texts[0].strip()
    if len(texts) > 1 or _OFFSET.fullmatch(first):
        offsets = parse_offsets("--from", texts)
        return dict.fromkeys(range(table.buckets), offsets) if isinstance(offsets, int) else offsets
    if first == LATEST:
        return {each.bucket: each.end_offset for each in table.offsets()}
    if first == EARLIEST:
        return {each.bucket: each.start_offset for each in table.offsets()}
    try:
        time = _time(first)
    except ValueError:
        fail(
            f"cannot read --from {first!r}; write {EARLIEST}, {LATEST}, OFFSET, BUCKET:OFFSET for each bucket,"
            f" or a time such as {_TIME}, no finer than microseconds"
        )
    return {each.bucket: each.at_offset for each in offsets_at(table, time, wanted)}


def offsets_at(table: Table, time: datetime.datetime, wanted: Sequence[int]) -> list[OffsetsAt]:
    """Where a time is in each bucket; says on standard error where what was committed since may be gone.

    Args:
        table: Asked.
        time: Without a zone it is one of UTC.
        wanted: The buckets of which that is said.

    Raises:
        ArgumentInvalid: The time is in the future.
    """
    found = table.offsets(at=time)
    starts = [
        f"{each.bucket}:{each.start_offset}" for each in found if each.bucket in wanted and not each.is_kept
    ]
    if starts:
        note(f"changes since {time.isoformat()} may be gone: what is kept begins at {', '.join(starts)}")
    return found


def parse_stop(texts: Sequence[str]) -> str | int | dict[int, int] | None:
    """Read `--to`: `end`, `OFFSET`, or `BUCKET:OFFSET` any number of times; nothing: None.

    Raises:
        Failure: It is none of these.
    """
    if not texts:
        return None
    if len(texts) == 1 and texts[0].strip() == END:
        return END
    return parse_offsets("--to", texts)


def _time(text: str) -> datetime.datetime:
    """Read a time of ISO 8601, every digit of it.

    Raises:
        ValueError: It is none, or finer than microseconds.
    """
    if _FINER.search(text):
        raise ValueError(text)
    return datetime.datetime.fromisoformat(text)
