"""Where a table scan stands, as text that a program keeps: behind the batch that was handed out last. Pure.

The text is `weir-position-1:` and base64 (the alphabet of URLs, without padding) of these octets, big-endian:

    flags      1     1: the table id is known
    table id   8
    columns    4     of the table when the scan began, in its order; those added since come behind them
    parts      8     for each of `_parts`: what must be asked for again, as the beginning of its SHA-256
    buckets          until the checksum; of each that had begun:
                         4 bucket, 1 flags (1 to 3: ended, why; 4: HYBRID, behind the snapshot; 8: the commit's end is
                         known; 16: so is the floor), 8 rows, 8 log offset, 16 history or zeros, 8 end of the changes,
                         8 commit's end, 8 floor of commit times, 4 digest, 8 stored bytes, 4 length of the token,
                         the token
    checksum   4     CRC-32C of everything before it, the text in front included

Invariants:

1. What `read_position` returns is what `ResumePosition.text` wrote. Everything else is ResumeTokenInvalid.
2. Positions of every version that was ever released stay readable, or are refused by their version. Golden ones in the
   tests hold that in place.

What a token says is the server's business: it refuses one of another query or principal.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from scanner.data.digest import checksum
from scanner.errors import ArgumentInvalid, ResumeTokenInvalid, SchemaMismatch
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.wire.predicates import predicate_to_proto

if TYPE_CHECKING:
    from scanner.client.scan.plan import ScanPlan

_VERSION: Final = 1
_BEGINNING: Final = f"weir-position-{_VERSION}:"
_ANY_VERSION: Final = re.compile(r"weir-position-([0-9]{1,9}):")
_HEADER: Final = struct.Struct(">BQI")
_BUCKET: Final = struct.Struct(">IBQQ16sQQqIQI")
_CHECKSUM: Final = struct.Struct(">I")
_PART_BYTES: Final = 8
_PARTS: Final = 12
_REASONS: Final = (None, "EXHAUSTED", "LIMIT", "STOP_OFFSET")
_BEHIND_SNAPSHOT: Final = 4
_COMMIT_END: Final = 8
_FLOOR: Final = 16
_ADVICE: Final = "bring it as it came, or begin anew without a position"


@dataclass(frozen=True, kw_only=True, slots=True)
class BucketPosition:
    """Where the scan of one bucket stands."""

    log_offset: int
    """What it is as of; HYBRID: what its snapshot is."""
    history: bytes
    """The history that the offset is of; empty: the server has not said."""
    token: bytes = b""
    """Continues it; empty: nothing of it has come, it has ended, or the server makes none."""
    rows: int = 0
    """Handed out up to here."""
    changes_end: int = 0
    """HYBRID: where the changes that came end."""
    behind_snapshot: bool = False
    """HYBRID: the snapshot is complete."""
    commit_end: int | None = None
    """HYBRID: the end of the last commit that came whole; None: there is none yet."""
    commit_time_floor_us: int | None = None
    """HYBRID: what is complete, by commit time, in microseconds since 1970 UTC; None: it is not known."""
    reason: str | None = None
    """Why it ended; None: it has not."""
    digest: int = 0
    """Once it has ended."""
    stored_bytes: int = 0
    """Likewise."""

    def octets(self, bucket: int) -> bytes:
        """As they stand in the text."""
        flags = _REASONS.index(self.reason)
        flags |= _BEHIND_SNAPSHOT if self.behind_snapshot else 0
        flags |= 0 if self.commit_end is None else _COMMIT_END
        flags |= 0 if self.commit_time_floor_us is None else _FLOOR
        fields = _BUCKET.pack(
            bucket,
            flags,
            self.rows,
            self.log_offset,
            self.history,
            self.changes_end,
            self.commit_end or 0,
            self.commit_time_floor_us or 0,
            self.digest,
            self.stored_bytes,
            len(self.token),
        )
        return fields + self.token


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumePosition:
    """Where a table scan stands, and which scan that is."""

    table_id: int | None
    """Of the table; None: it is not known."""
    columns: int
    """How many the table had when the scan began."""
    parts: tuple[bytes, ...]
    """What must be asked for again."""
    buckets: tuple[tuple[int, BucketPosition], ...]
    """Those that had begun, by their numbers; the others begin when the scan goes on."""

    def text(self) -> str:
        """What a program keeps."""
        known = self.table_id is not None
        header = _HEADER.pack(known, self.table_id or 0, self.columns)
        buckets = b"".join(position.octets(bucket) for bucket, position in self.buckets)
        octets = header + b"".join(self.parts) + buckets
        return _as_text(octets + _checksum(octets))

    def require_of(self, plan: ScanPlan) -> None:
        """Check that a plan describes the scan that this is a position of, as far as that can be told here.

        Raises:
            ResumeTokenInvalid: It describes another one.
            SchemaMismatch: Its table lacks columns of the scan.
        """
        if None not in (self.table_id, plan.table_id) and self.table_id != plan.table_id:
            raise ResumeTokenInvalid(
                "the position is of another table, or of one of this name that was dropped since;"
                " begin anew without a position"
            )
        wanted = _parts(plan).items()
        differ = [
            name for (name, octets), part in zip(wanted, self.parts, strict=True) if _hashed(octets) != part
        ]
        if differ:
            raise ResumeTokenInvalid(
                f"the position is of another scan; what differs: {', '.join(differ)}. Describe the scan as before, or"
                " begin anew without a position"
            )
        if self.columns > len(plan.table.column_names):
            raise SchemaMismatch(
                f"the position is of a scan of {plan.table.name} with {self.columns} columns, and"
                f" {len(plan.table.column_names)} are known here; ask the client for the table again"
            )


def position_of(plan: ScanPlan, buckets: dict[int, BucketPosition]) -> ResumePosition:
    """Where the scan that a plan describes stands.

    Args:
        plan: It may be one that was resumed itself.
        buckets: Those that have begun.
    """
    before = plan.resume_at
    return ResumePosition(
        table_id=plan.table_id,
        columns=len(plan.table.column_names) if before is None else before.columns,
        parts=tuple(_hashed(octets) for octets in _parts(plan).values()),
        buckets=tuple(sorted(buckets.items())),
    )


def read_position(text: str) -> ResumePosition:
    """Read what `ResumePosition.text` wrote.

    Raises:
        ArgumentInvalid: It is no text.
        ResumeTokenInvalid: It is no position, was changed or cut off on its way, or is of a version that is not read.
    """
    if not isinstance(text, str):
        raise ArgumentInvalid(f"resume_at takes the text that resume_position() gave, not {text!r}")
    beginning = _ANY_VERSION.match(text)
    if beginning is None:
        raise ResumeTokenInvalid(
            f"{text[:40]!r} is no position of a scan, which begins with {_BEGINNING!r}; {_ADVICE}"
        )
    if beginning[0] != _BEGINNING:
        raise ResumeTokenInvalid(
            f"the position is of version {beginning[1]}, and this client reads version {_VERSION};"
            " begin anew without a position"
        )
    try:
        return _read(text)
    except (ValueError, struct.error) as error:
        raise ResumeTokenInvalid(f"the position was changed or cut off on its way; {_ADVICE}") from error


def _read(text: str) -> ResumePosition:
    encoded = text[len(_BEGINNING) :].encode("ascii")
    octets = base64.b64decode(encoded + b"=" * (-len(encoded) % 4), b"-_", validate=True)
    content = octets[: -_CHECKSUM.size]
    # base64 has several ways to write some octets, and one of them is ours.
    if _as_text(octets) != text or _checksum(content) != octets[len(content) :]:
        raise ValueError("another checksum")
    known, table_id, columns = _HEADER.unpack_from(content)
    start = _HEADER.size + _PARTS * _PART_BYTES
    return ResumePosition(
        table_id=table_id if known else None,
        columns=columns,
        parts=tuple(content[at : at + _PART_BYTES] for at in range(_HEADER.size, start, _PART_BYTES)),
        buckets=tuple(_buckets(content, start)),
    )


def _buckets(content: bytes, start: int) -> Iterator[tuple[int, BucketPosition]]:
    while start < len(content):
        bucket, flags, rows, log_offset, history, changes_end, commit_end, floor_us, *rest = (
            _BUCKET.unpack_from(content, start)
        )
        digest, stored_bytes, token_bytes = rest
        start += _BUCKET.size
        token = content[start : start + token_bytes]
        if len(token) < token_bytes:
            raise ValueError("a token is cut off")
        start += token_bytes
        yield (
            bucket,
            BucketPosition(
                log_offset=log_offset,
                history=history if any(history) else b"",
                token=token,
                rows=rows,
                changes_end=changes_end,
                behind_snapshot=bool(flags & _BEHIND_SNAPSHOT),
                commit_end=commit_end if flags & _COMMIT_END else None,
                commit_time_floor_us=floor_us if flags & _FLOOR else None,
                reason=_REASONS[flags % _BEHIND_SNAPSHOT],
                digest=digest,
                stored_bytes=stored_bytes,
            ),
        )


def _parts(plan: ScanPlan) -> dict[str, bytes]:
    """What must be the same when a scan goes on, by what users call it; always in this order."""
    conditions = pb.ScanQuery(filter=[predicate_to_proto(each) for each in plan.predicates])
    said: dict[str, object] = {
        "table": plan.table.name,
        "source": plan.source.value,
        "mode": plan.mode.value,
        "columns": plan.columns,
        "conditions": conditions.SerializeToString(deterministic=True).hex(),
        "key range": (plan.key_range.start.hex(), plan.key_range.end.hex()),
        "limit": plan.row_limit,
        "bucket": plan.bucket,
        "lease": plan.lease_id,
        "as_of": None if plan.as_of is None else [plan.as_of_bucket(bucket) for bucket in plan.buckets],
        "stop_at": None if plan.stop_at is None else [plan.log_stop_of(bucket) for bucket in plan.buckets],
        # One that was handed out in part cannot be made whole.
        "whole commits": plan.whole_commits,
    }
    assert len(said) == _PARTS
    return {name: json.dumps(value).encode() for name, value in said.items()}


def _hashed(octets: bytes) -> bytes:
    return hashlib.sha256(octets).digest()[:_PART_BYTES]


def _checksum(content: bytes) -> bytes:
    return _CHECKSUM.pack(checksum(_BEGINNING.encode() + content))


def _as_text(octets: bytes) -> str:
    return _BEGINNING + base64.urlsafe_b64encode(octets).rstrip(b"=").decode()
