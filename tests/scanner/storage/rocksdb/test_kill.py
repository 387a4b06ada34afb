"""What a crash leaves: everything acknowledged, whole batches only, a log that replays to the rows."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scanner.errors import DataCorrupted
from scanner.storage.memory.store import MemoryStore
from scanner.storage.rocksdb.store import RocksStore
from tests.support.storage_damage import delete_chunk
from tests.support.storage_tables import ITEMS, changes_of, contents, drain, replayed
from tests.support.storage_writer import SMALL, batches_until, mutations, plan

_ROOT = Path(__file__).parents[4]


def _write_and_kill(directory: Path, seed: int, acknowledgements: int, *more: str) -> int:
    """Run the writer, kill it after that many acknowledgements, return the last offset it acknowledged."""
    command = [sys.executable, "-m", "tests.support.storage_writer", str(directory), str(seed), *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_ROOT) as process:
        assert process.stdout is not None
        seen = 0
        for line in process.stdout:
            word, offset = line.split()
            seen += word == "acknowledged"
            if seen == acknowledgements:
                process.send_signal(signal.SIGKILL)
                # What it still said before the signal arrived is acknowledged too.
                rest = process.stdout.read().split("\n")
                complete = [text for text in rest[:-1] if text.startswith("acknowledged")]
                return int((complete[-1] if complete else line).split()[1])
        raise AssertionError(f"the writer ended by itself after {seen} acknowledgements: {offset}")


def _check(directory: Path, seed: int, acknowledged: int) -> None:
    with RocksStore.open(directory, SMALL) as store:
        bucket = store.bucket("items", 0)
        assert bucket.log_end >= acknowledged
        _, expected = batches_until(seed, bucket.log_end)
        assert contents(bucket) == expected
        assert replayed(bucket) == expected


def test_every_acknowledged_row_survives_kill_9(tmp_path: Path) -> None:
    """Killed again and again at seeded points, reopened each time: nothing acknowledged is missing."""
    seed = 13
    source = random.Random(seed)
    for _ in range(4):
        acknowledged = _write_and_kill(tmp_path / "data", seed, source.randrange(1, 60))
        _check(tmp_path / "data", seed, acknowledged)


def test_truncations_and_checkpoints_survive_kill_9(tmp_path: Path) -> None:
    """Killed amid truncations and checkpoints: the log is dense from where it starts, each checkpoint is whole."""
    seed, kept = 17, 100
    source = random.Random(seed)
    for _ in range(2):
        acknowledged = _write_and_kill(tmp_path / "data", seed, source.randrange(8, 30), str(kept))
        with RocksStore.open(tmp_path / "data", SMALL) as store:
            bucket = store.bucket("items", 0)
            number, expected = batches_until(seed, bucket.log_end)
            assert bucket.log_end >= acknowledged
            assert 0 < bucket.log_start <= bucket.log_end - kept
            # Whole commits are kept, and this one began before what was to be kept.
            assert bucket.entry_at(bucket.log_start).end > acknowledged - kept
            assert contents(bucket) == expected
            model = MemoryStore()
            model.create_table(ITEMS)
            for batch in range(number):
                model.bucket("items", 0).commit([mutations(plan(seed, batch))])
            assert changes_of(bucket) == changes_of(model.bucket("items", 0), bucket.log_start)
            checkpoints = store.checkpoints("items", 0)
            assert 1 <= len(checkpoints) <= 3
            for checkpoint in checkpoints:
                snapshot = store.open_checkpoint("items", 0, checkpoint.checkpoint_id)
                assert dict(drain(snapshot.scan(), 1000)) == batches_until(seed, checkpoint.log_offset)[1]
                snapshot.close()
        assert len(list((tmp_path / "data").glob("checkpoints/*/*/*"))) == len(checkpoints)


def _killed_store(tmp_path: Path, seed: int, acknowledgements: int) -> tuple[Path, list[Path]]:
    """A store that was killed while its newest rows were in write-ahead logs only, and these, oldest first."""
    directory = tmp_path / "data"
    _write_and_kill(directory, seed, acknowledgements)
    (bucket,) = directory.glob("tables/*/0000")
    wals = sorted(path for path in bucket.glob("*.log") if path.stat().st_size)
    return directory, wals


@pytest.mark.parametrize("cut_bytes", [1, 7, 100])
def test_a_torn_end_of_the_write_ahead_log_costs_whole_batches_only(tmp_path: Path, cut_bytes: int) -> None:
    """A last record that was written in part was promised to no one: it goes as a whole, the rest stays."""
    directory, wals = _killed_store(tmp_path, 5, 4)
    with wals[-1].open("r+b") as file:
        file.truncate(wals[-1].stat().st_size - cut_bytes)
    _check(directory, 5, 1)


def test_a_hole_in_the_write_ahead_log_is_never_a_silent_loss(tmp_path: Path) -> None:
    """RocksDB takes the end of every log file for a torn one; the hole that an older one leaves is refused."""
    directory, _ = _killed_store(tmp_path, 5, 4)
    delete_chunk(directory, 1)
    with RocksStore.open(directory, SMALL) as store, pytest.raises(DataCorrupted, match="1 of the"):
        store.bucket("items", 0)


def test_without_the_write_ahead_log_rows_and_changes_are_of_one_state(tmp_path: Path) -> None:
    """Rows, changes and the log's range reach the files together: what is left without the logs is a whole state."""
    # Many times what the buffers hold: no write is taken while full ones wait to be written.
    directory, wals = _killed_store(tmp_path, 5, 300)
    for wal in wals:
        wal.unlink()
    _check(directory, 5, 1)


def test_damage_inside_the_write_ahead_log_is_never_a_silent_loss(tmp_path: Path) -> None:
    """What was acknowledged and cannot be read is DATA_CORRUPTED, not an older state."""
    directory, (wal, *_) = _killed_store(tmp_path, 5, 4)
    data = bytearray(wal.read_bytes())
    data[len(data) // 3] ^= 0xFF
    wal.write_bytes(data)
    with RocksStore.open(directory, SMALL) as store, pytest.raises(DataCorrupted, match="damaged"):
        store.bucket("items", 0)
