"""What `meta` says of a bucket: which one it is, the range and the lineage of its log, and what it remembers by name.

A commit writes what it changes of this in its own batch. What is known of checkpoints and of a share that is being
applied is in `meta`, too: see `checkpoints` and `unfinished`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from scanner.errors import DataCorrupted
from scanner.storage.group_states import (
    GroupState,
    decode_group_names,
    decode_group_state,
    encode_group_names,
    encode_group_state,
)
from scanner.storage.lineage import Lineage
from scanner.storage.rocksdb.changelog import EMPTY_RANGE, LogRange
from scanner.storage.rocksdb.database import Database, rocksdb_errors
from scanner.storage.rocksdb.log import load_log_range, read_lineage, read_truncated
from scanner.storage.transactions import AppliedShare, decode_applied, encode_applied
from scanner.storage.writers import WRITERS_MAX, KnownWriters

if TYPE_CHECKING:
    from rocksdict import WriteBatch

_Value = TypeVar("_Value")
IDENTITY_KEY: Final = b"identity"
"""In `meta`: of which table, and which of its buckets, the database is."""
_WRITER_KEY: Final = b"writer/"
"""In `meta`: what is known of a writer; its place goes behind it, two octets, from 0 on without gaps."""
_WRITERS_READ: Final = 64
"""So many places are read at once."""


class Remembered(NamedTuple, Generic[_Value]):
    """How `meta` has what a bucket remembers by name."""

    names_key: bytes
    """Of the list of names."""
    prefix: bytes
    """Of the key of each; its name goes behind it."""
    encode: Callable[[_Value], bytes]
    decode: Callable[[str, bytes | None], _Value]

    def load(self, database: Database) -> Mapping[str, _Value]:
        """All of it."""
        names = decode_group_names(database.read_meta(self.names_key))
        return {name: self.decode(name, database.read_meta(self._key(name))) for name in names}

    def put(
        self,
        database: Database,
        batch: WriteBatch,
        before: Mapping[str, _Value],
        changed: Mapping[str, _Value | None],
    ) -> Mapping[str, _Value]:
        """Add to a commit what becomes of some of it, None if they go; all of it as it is then."""
        after = dict(before)
        for name, value in changed.items():
            if value is None:
                after.pop(name, None)
                batch.delete(self._key(name), database.meta_family)
            else:
                after[name] = value
                batch.put(self._key(name), self.encode(value), database.meta_family)
        if after.keys() != before.keys():
            batch.put(self.names_key, encode_group_names(list(after)), database.meta_family)
        return after

    def _key(self, name: str) -> bytes:
        return self.prefix + name.encode()


GROUPS: Final = Remembered(b"groups", b"group/", encode_group_state, decode_group_state)
"""The reader groups that have a state."""
APPLIED: Final = Remembered(b"transactions", b"transaction/", encode_applied, decode_applied)
"""The transactions of which something was applied."""


@dataclass(frozen=True, slots=True)
class BucketState:
    """A bucket as of its newest durable commit, but for its rows and changes."""

    log_range: LogRange = EMPTY_RANGE
    lineage: Lineage = field(default_factory=Lineage)
    groups: Mapping[str, GroupState] = field(default_factory=dict)
    applied: Mapping[str, AppliedShare] = field(default_factory=dict)
    writers: KnownWriters = field(default_factory=KnownWriters)
    """Changed in place: there are many, and a commit is of few."""
    truncated_us: int | None = None
    """See `Bucket.truncated_commit_us`."""

    def applied_until(self, end: int) -> BucketState:
        """The same, as if no share and no request behind an offset had been applied: who asks for one is not told so.

        Nor one at the offset that has changed nothing, since the commits there may be newer.
        """
        applied = {name: share for name, share in self.applied.items() if share.start < end >= share.end}
        return replace(self, applied=applied, writers=self.writers.until(end))


def load_state(database: Database) -> BucketState:
    """Read what `meta` says, and make sure that the log has just that range.

    Raises:
        DataCorrupted: Something of it is missing or damaged, or the log is.
        StoreFailed: The disk refused.
    """
    log_range, lineage = load_log_range(database), read_lineage(database)
    if not lineage.fits(log_range.end):
        raise DataCorrupted(
            f"{database.path}: the log ends at {log_range.end}, before its newest history begins, at"
            f" {lineage.histories[-1].start}; restore the files from a copy"
        )
    writers = KnownWriters(_load_writers(database))
    groups, applied = GROUPS.load(database), APPLIED.load(database)
    return BucketState(
        log_range, lineage, groups, applied, writers, read_truncated(database, log_range.start)
    )


def require_identity(database: Database, identity: bytes) -> None:
    """Refuse the directory of another bucket under the name of this one: its rows would pass for this one's."""
    stored = database.read_meta(IDENTITY_KEY)
    if stored is not None and stored != identity:
        raise DataCorrupted(
            f"{database.path} holds another bucket ({stored.decode(errors='replace')}, and not"
            f" {identity.decode()}): its directory was renamed or copied; give each its own name back"
        )


def put_writers(database: Database, batch: WriteBatch, records: Mapping[int, bytes]) -> None:
    """Add the records of writers to a commit, by place."""
    for place, record in records.items():
        batch.put(_writer_key(place), record, database.meta_family)


def _load_writers(database: Database) -> Iterator[bytes]:
    for first in range(0, WRITERS_MAX, _WRITERS_READ):
        places: Any = [_writer_key(place) for place in range(first, first + _WRITERS_READ)]
        with rocksdb_errors(database.path):
            stored: Any = database.meta.get(places) or ()
            values = [each for each in stored if each is not None]
        yield from values
        if len(values) < _WRITERS_READ:
            return


def _writer_key(place: int) -> bytes:
    return _WRITER_KEY + place.to_bytes(2, "big")
