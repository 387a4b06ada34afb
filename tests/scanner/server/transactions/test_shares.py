"""What buckets read of the stages of a version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scanner.server.transactions.verification import ChosenStages, share_pieces
from scanner.storage.interface import Mutation
from scanner.storage.memory.store import MemoryStore
from scanner.storage.memory.transaction_files import MemoryStageSource
from scanner.storage.stage_frames import head_frame, mutation_frames, tail_frame
from scanner.storage.transactions import StageKey
from tests.support.storage_tables import ITEMS

if TYPE_CHECKING:
    import pytest

PARTS = 3


def _reads(buckets: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How often stages are read until each bucket has its share, which is what was staged for it, in order."""
    store = MemoryStore()
    store.create_table(ITEMS)
    files = store.transaction_files(ITEMS.name)
    keys = [StageKey("load", 1, part, 0, part + 1, 0, bytes(16)) for part in range(PARTS)]
    for key in keys:
        routed = {bucket: [Mutation(b"%d.%d" % (bucket, key.part), b"row")] for bucket in range(buckets)}
        frames = [frame for frame, _ in mutation_frames(routed)]
        sink = files.open_sink(key)
        sink.append([head_frame(files.table_id, key), *frames, tail_frame(buckets, buckets)])
        sink.finish(key)
    reads, read = 0, MemoryStageSource.read

    def count(source: Any, offset: int, size: int) -> bytes:
        nonlocal reads
        reads += 1
        return read(source, offset, size)

    with monkeypatch.context() as patch:
        patch.setattr(MemoryStageSource, "read", count)
        stages = ChosenStages(files, keys)
        for bucket in range(buckets):
            (piece,) = share_pieces(stages, bucket, 1 << 20, 1 << 20)
            assert [each.key for each in piece] == [b"%d.%d" % (bucket, part) for part in range(PARTS)]
    return reads


def test_the_shares_of_all_buckets_cost_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads go with the frames. When each bucket walked all stages they went with the square of the buckets."""
    assert _reads(64, monkeypatch) <= 4.5 * _reads(16, monkeypatch)
