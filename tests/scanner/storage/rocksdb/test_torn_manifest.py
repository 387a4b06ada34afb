"""What a power failure has left of a MANIFEST's newest records was not acted upon: it goes, and nothing else does.

RocksDB removes a file or a write-ahead log when the record that says so is synced. So a directory that a power failure
leaves has the records in pieces beside everything that they make unneeded; where that is gone, they were damaged later.
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import pytest

from scanner.data.digest import checksum
from scanner.errors import DataCorrupted, StoreFailed
from scanner.server.inspection import Inspection
from scanner.storage.group_states import GroupState
from scanner.storage.rocksdb import bucket as bucket_module
from scanner.storage.rocksdb import durable_end
from scanner.storage.rocksdb.bucket import RocksBucket
from scanner.storage.rocksdb.catalog import load_table_entry
from scanner.storage.rocksdb.manifest_length import current_manifest
from scanner.storage.rocksdb.store import RocksStore
from scanner.storage.rocksdb.wal_format import first_damage, record_heads
from tests.scanner.storage.rocksdb.test_manifest_length import record_starts
from tests.support.living import copy_living, end_background_work
from tests.support.storage_damage import flip
from tests.support.storage_tables import contents, one_bucket, put, replayed

if TYPE_CHECKING:
    from scanner.storage.interface import Bucket

pytestmark = pytest.mark.rocks

_ROWS: dict[int, str | None] = {1: "first", 2: "second", 3: "third"}


class _Cut(NamedTuple):
    """A data directory with records of a MANIFEST that are not whole yet, or not any more."""

    data: Path
    manifest: Path
    records: list[int]
    """Where the newest records begin, and the last one ends: those of one sync."""

    def tear(self, start: int, end: int) -> None:
        """Let some octets never reach the disk; the length of the file did."""
        with self.manifest.open("r+b") as file:
            file.seek(start)
            file.write(bytes(end - start))


def _commit_position(bucket: Bucket, name: str) -> None:
    bucket.commit_prepared(bucket.prepare([]), {name: GroupState(1)})


def _flush(store: RocksStore) -> None:
    # As RocksDB does by itself when its buffers are full.
    store.create_checkpoint("it", 0)


def _compact(store: RocksStore) -> None:
    bucket = store.bucket("it", 0)
    assert isinstance(bucket, RocksBucket)
    bucket.compact()


def _copying(source: Path, copy: Path, function: Callable[..., None]) -> Callable[..., None]:
    """A function of RocksDB's that is called when a directory has been copied."""

    def call(*args: object) -> None:
        copy_living(source, copy)
        function(*args)

    return call


def _cut_off(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: Callable[[RocksStore], None],
    *,
    acted_upon: bool = False,
    commit: Callable[[Bucket], None] | None = None,
    later: Callable[[Bucket], None] | None = None,
) -> _Cut:
    """A directory as a power failure leaves it in the middle of what RocksDB does, but for the failure.

    Args:
        path: Of the data directory that is made.
        monkeypatch: Of the test.
        what: What RocksDB does.
        acted_upon: The records were synced, and what they say is not needed any more is gone.
        commit: Done before; else rows are written, and flushed and written anew if they will be compacted.
        later: Done after it.
    """
    running, before = path / "running", path / "before"
    with RocksStore.open(running) as store:
        store.create_table(one_bucket("it"))
        bucket = store.bucket("it", 0)
        for number, text in _ROWS.items():
            bucket.commit([[put(number, "old" if what is _compact else text)]])
        if what is _compact:
            _flush(store)
            bucket.commit([[put(number, text) for number, text in _ROWS.items()]])
        if what is _compact or commit:
            _flush(store)
        if commit:
            commit(bucket)
        for name in ("make_checkpoint", "compact_database"):
            monkeypatch.setattr(bucket_module, name, _copying(running, before, getattr(bucket_module, name)))
        what(store)
        monkeypatch.undo()
        if later:
            later(bucket)
        end_background_work(bucket)
        shutil.copytree(running, path / "data")
    (directory,), (found,) = before.glob("tables/*/0000"), (path / "data").glob("tables/*/0000")
    old = current_manifest(directory).stat().st_size
    manifest = current_manifest(found)
    if not acted_upon:
        for file in directory.iterdir():
            if file.suffix in (".sst", ".log"):
                shutil.copy(file, found)
        assert {file.name for file in directory.iterdir()} <= {file.name for file in found.iterdir()}
    starts = [each for each in record_starts(manifest.read_bytes()) if each >= old]
    ends = [*starts[1:], manifest.stat().st_size]
    # A compaction is one record, a flush a group: one for each family with changes, and one of the logs.
    last = ends[0] if what is _compact else ends[-1]
    with manifest.open("r+b") as cut:
        cut.truncate(last)
    assert old == starts[0]
    return _Cut(path / "data", manifest, [*(each for each in starts if each < last), last])


def _pieces(cut: _Cut) -> list[tuple[int, int]]:
    """Each record, the head of the first one, the second half of the last one, and all of them."""
    first, last = cut.records[0], cut.records[-1]
    middle = (cut.records[-2] + last) // 2
    return [*pairwise(cut.records), (first, first + 7), (middle, last), (first, last)]


def _open(data: Path) -> None:
    with RocksStore.open(data) as store:
        store.bucket("it", 0)


@pytest.mark.parametrize("what", [_flush, _compact])
def test_records_in_pieces_are_dropped(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: Callable[[RocksStore], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whichever are missing, everything acknowledged is there, the doctor agrees, and the bucket goes on."""
    cut = _cut_off(tmp_path, monkeypatch, what)
    shutil.copytree(cut.data, tmp_path / "unharmed")
    for start, end in _pieces(cut):
        shutil.rmtree(cut.data)
        shutil.copytree(tmp_path / "unharmed", cut.data)
        cut.tear(start, end)
        assert [finding for finding in Inspection(cut.data, now_ms=0).findings() if finding.lost] == []
        with RocksStore.open(cut.data) as store:
            bucket = store.bucket("it", 0)
            assert contents(bucket) == replayed(bucket) == _ROWS
            assert (bucket.lost_changes, bucket.failure) == (0, None)
            bucket.commit([[put(9, "later")]])
        assert caplog.text.count("MANIFEST is there in pieces") == 1
        caplog.clear()
    with RocksStore.open(cut.data) as store:
        assert contents(store.bucket("it", 0)) == _ROWS | {9: "later"}
    assert caplog.text == ""


@pytest.mark.parametrize("what", [_flush, _compact])
def test_records_that_were_acted_upon_are_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: Callable[[RocksStore], None]
) -> None:
    """What they made unneeded is gone: without them rows would be missing."""
    cut = _cut_off(tmp_path, monkeypatch, what, acted_upon=True)
    whole = cut.manifest.read_bytes()
    for start, end in _pieces(cut):
        cut.manifest.write_bytes(whole)
        cut.tear(start, end)
        damaged = cut.manifest.read_bytes()
        with pytest.raises(DataCorrupted, match=r"is damaged at byte .* restore"):
            _open(cut.data)
        assert cut.manifest.read_bytes() == damaged
        assert any(finding.lost for finding in Inspection(cut.data, now_ms=0).findings())


def test_a_side_file_that_tells_of_the_changelog_alone_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older weir wrote it: in format 2, without RocksDB's number."""
    cut = _cut_off(tmp_path, monkeypatch, _flush, acted_upon=True)
    flip(cut.manifest, cut.records[0] + 20)
    entry = load_table_entry(cut.manifest.parent.parent)
    assert entry is not None
    fields = struct.pack(">4sBQ16s", b"WEND", 2, len(_ROWS), bytes(16))
    crc = checksum(fields, checksum(entry.bucket_identity(0)))
    path, record = cut.manifest.parent / durable_end.NAME, fields + struct.pack(">I", crc)
    # It writes over the head of what a newer one wrote.
    for behind in (b"", path.read_bytes()[len(record) :]):
        path.write_bytes(record + behind)
        known = durable_end.read_durable_end(path.parent, entry.bucket_identity(0))
        assert known == (3, bytes(16), 0), behind
    with pytest.raises(DataCorrupted, match="is damaged at byte"):
        _open(cut.data)


def test_commits_without_changes_are_missed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group's position is in `meta` alone; no offset of the changelog tells of it."""
    cut = _cut_off(
        tmp_path, monkeypatch, _flush, commit=lambda bucket: _commit_position(bucket, "a"), acted_upon=True
    )
    flip(cut.manifest, cut.records[0] + 20)
    with pytest.raises(DataCorrupted, match="is damaged at byte"):
        _open(cut.data)


def test_a_gap_before_the_logs_is_missed_without_a_side_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log that was removed is not the newest one: a later commit is there."""
    cut = _cut_off(
        tmp_path,
        monkeypatch,
        _flush,
        commit=lambda bucket: _commit_position(bucket, "a"),
        later=lambda bucket: _commit_position(bucket, "b"),
        acted_upon=True,
    )
    flip(cut.manifest, cut.records[0] + 20)
    (cut.manifest.parent / durable_end.NAME).unlink()
    with pytest.raises(DataCorrupted, match="is damaged at byte"):
        _open(cut.data)


def test_what_was_there_when_its_length_was_noted_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where RocksDB takes octets of zero for the end: it skips the block, and opens an older state."""
    cut = _cut_off(tmp_path, monkeypatch, _flush)
    with RocksStore.open(cut.data) as store:
        store.bucket("it", 0).commit([[put(4, "fourth")]])
    manifest = current_manifest(cut.manifest.parent)
    whole = manifest.read_bytes()
    start = record_starts(whole)[-1]
    for octets in (bytes(len(whole) - start), b"\xff" * (len(whole) - start)):
        manifest.write_bytes(whole[:start] + octets)
        with pytest.raises(DataCorrupted, match=f"is whole for {start} bytes, and had {len(whole)}"):
            _open(cut.data)
        assert any(finding.lost for finding in Inspection(cut.data, now_ms=0).findings())
    manifest.write_bytes(whole[:start])
    with pytest.raises(DataCorrupted, match=f"is whole for {start} bytes, and had {len(whole)}"):
        _open(cut.data)
    manifest.write_bytes(whole)
    _open(cut.data)


def test_it_is_the_same_where_the_disk_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket that can only be read shows everything, and nothing is cut off."""
    cut = _cut_off(tmp_path, monkeypatch, _flush)
    flip(cut.manifest, cut.records[0] + 20)
    damaged = cut.manifest.read_bytes()

    def refuse(directory: Path, size: int) -> NoReturn:
        raise StoreFailed(f"{directory} takes nothing, not {size} bytes")

    monkeypatch.setattr("scanner.storage.rocksdb.opening.cut_manifest", refuse)
    with RocksStore.open(cut.data) as store:
        bucket = store.bucket("it", 0)
        assert contents(bucket) == replayed(bucket) == _ROWS
        assert bucket.failure is not None
    assert cut.manifest.read_bytes() == damaged


def test_a_full_disk_that_cut_a_record_off_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no room for temporary files then; RocksDB drops the record by itself."""
    cut = _cut_off(tmp_path, monkeypatch, _flush)
    os.truncate(cut.manifest, cut.records[0] + 20)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with RocksStore.open(cut.data) as store:
        assert contents(store.bucket("it", 0)) == _ROWS


def test_a_commit_may_be_in_pieces_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread writes the log while RocksDB writes the MANIFEST."""
    cut = _cut_off(tmp_path, monkeypatch, _flush)
    log = max(cut.manifest.parent.glob("*.log"))
    with RocksStore.open(tmp_path / "other") as store:
        store.create_table(one_bucket("it"))
        store.bucket("it", 0).commit([[put(1, "in pieces")]])
        (other,) = (tmp_path / "other").glob("tables/*/0000/*.log")
        record = other.read_bytes()
    log.write_bytes(log.read_bytes() + record[:-5] + bytes(5))
    flip(cut.manifest, cut.records[0] + 20)
    assert [finding for finding in Inspection(cut.data, now_ms=0).findings() if finding.lost] == []
    with RocksStore.open(cut.data) as store:
        assert contents(store.bucket("it", 0)) == _ROWS


def test_what_a_checkpoint_holds_was_synced(tmp_path: Path) -> None:
    """Its MANIFEST may not be in pieces, though a bucket's might."""
    with RocksStore.open(tmp_path / "data") as store:
        store.create_table(one_bucket("it"))
        store.bucket("it", 0).commit([[put(1, "kept")]])
        checkpoint = store.create_checkpoint("it", 0)
        (directory,) = (tmp_path / "data").glob("checkpoints/*/0000/*")
        manifest = current_manifest(directory)
        flip(manifest, manifest.stat().st_size - 1)
        with pytest.raises(DataCorrupted, match="damaged"):
            store.open_checkpoint("it", 0, checkpoint.checkpoint_id)


@pytest.mark.parametrize("room", [0, 5, 12, 20])
def test_the_head_of_a_record_may_lie_in_two_fragments(tmp_path: Path, room: int) -> None:
    """The end of a block may have room for some octets of a record, or for none but those in front of a fragment."""
    first, second = bytes(range(100)) * 400, bytes(range(100, 200))
    first = first[: 32 * 1024 - 7 - 7 - room]
    path = tmp_path / "000005.log"
    path.write_bytes(_fragment(1, first) + _fragment(2, second[:room]) + _fragment(4, second[room:]))
    between, end = 7 + len(first), path.stat().st_size
    assert list(record_heads(path, 12)) == [(first[:12], between), (second[:12], end)]
    assert first_damage(path) is None
    os.truncate(path, path.stat().st_size - 1)
    assert list(record_heads(path, 12)) == [(first[:12], between)]
    assert first_damage(path) == 32 * 1024


def test_every_durable_write_is_counted(tmp_path: Path) -> None:
    """`DURABLE-END` knows of it, whether the changelog moves or not."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(one_bucket("it"))
        bucket = store.bucket("it", 0)
        (directory,) = tmp_path.glob("tables/*/0000")
        entry = load_table_entry(directory.parent)
        assert entry is not None
        counted = 0
        for write in (
            lambda: bucket.commit([[put(1, "a")]]),
            lambda: _commit_position(bucket, "group"),
            lambda: bucket.truncate_log(bucket.log_end),
            lambda: store.create_checkpoint("it", 0),
        ):
            write()
            known = durable_end.read_durable_end(directory, entry.bucket_identity(0))
            assert known is not None
            assert known.sequence > counted
            counted = known.sequence


def _fragment(kind: int, data: bytes) -> bytes:
    crc = checksum(bytes([kind]) + data)
    return struct.pack("<IHB", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF, len(data), kind) + data
