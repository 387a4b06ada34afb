"""What `weir doctor` says of a table's transactions."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from scanner.server.inspection import Inspection
from scanner.server.transactions.decisions import Decision
from scanner.storage.rocksdb.store import RocksStore
from scanner.storage.stage_frames import head_frame, mutation_frames, tail_frame
from scanner.storage.transactions import StageKey
from tests.support.storage_tables import ITEMS, put

pytestmark = pytest.mark.rocks

KEY = StageKey("load", 1, 0, 2, 1, 0, bytes(16))
DECISION = Decision(table_id=0, name="load", version=1, attempts={0: 2}, buckets=(0,), decided_ms=0, order=1)


def problems(path: Path) -> list[str]:
    """What is found that is wrong, each with its place."""
    found = Inspection(path, now_ms=0).findings()
    return [f"{each.where}: {each.problem}" for each in found if "transactions" in each.where]


def test_decisions_and_the_stages_that_they_need(tmp_path: Path) -> None:
    """A stage that is needed and damaged or gone, and a damaged decision, are errors; what nobody needs is not."""
    with RocksStore.open(tmp_path) as store:
        store.create_table(ITEMS)
        files = store.transaction_files("items")
        frames = [frame for frame, _ in mutation_frames({0: [put(1, "a")]})]
        sink = files.open_sink(KEY)
        sink.append([head_frame(0, KEY), *frames, tail_frame(1, 1)])
        sink.finish(KEY)
        files.write_decision("load", DECISION.to_document())
    assert problems(tmp_path) == []
    [stage] = tmp_path.rglob("*.stage")
    whole = stage.read_bytes()
    stage.write_bytes(whole[:-1])
    [damaged] = problems(tmp_path)
    assert "cut off" in damaged
    stage.write_bytes(whole)
    with RocksStore.open(tmp_path) as store:
        files = store.transaction_files("items")
        files.write_decision("load", dataclasses.replace(DECISION, stages=2).to_document())
    [fewer] = problems(tmp_path)
    assert "1 of its 2 stages are there" in fewer
    stage.unlink()
    [gone] = problems(tmp_path)
    assert "the stage of its part 0 is gone" in gone
    with RocksStore.open(tmp_path) as store:
        files = store.transaction_files("items")
        files.write_decision("load", dataclasses.replace(DECISION, shares={}).to_document())
    assert problems(tmp_path) == []
    [decision] = tmp_path.rglob("decision.json")
    decision.write_bytes(decision.read_bytes()[:-2])
    [unreadable] = problems(tmp_path)
    assert "checksum" in unreadable
