"""The fault campaign: a small sample of it, and broken variants of weir that it must catch."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from bench.faulting.case import Case, Verdict
from bench.faulting.history import build
from bench.harness.bars import failures
from bench.questions.faults import Found, bars, line_of, run
from scanner.data.digest import checksum
from scanner.errors import DataCorrupted
from scanner.storage.images import format as format_
from scanner.storage.images import reader
from scanner.storage.lineage import Lineage
from scanner.storage.rocksdb import files, opening
from scanner.storage.rocksdb.durable_end import DurableEnd
from scanner.storage.rocksdb.opening import BucketOpener
from scanner.storage.rocksdb.store import RocksStore
from tests.support.nightly import everyday

if TYPE_CHECKING:
    from bench.faulting.truth import Built

pytestmark = pytest.mark.slow

TRIES = 8
SAMPLE = everyday(5, nightly=100)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Built, Path]]:
    """A data directory, with its copies."""
    place = tmp_path_factory.mktemp("faults")
    yield build("a killed test", place), place  # so that the write-ahead logs have something
    shutil.rmtree(place)


def judge(built: tuple[Built, Path], work: Path, kind: str, seed: int) -> Verdict:
    """One case, in this process."""
    made, place = built
    work.mkdir()
    try:
        return Case(made, place, work, seed, kind, f"a test {seed}").run()
    finally:
        shutil.rmtree(work)


def test_a_sample_of_the_campaign(tmp_path: Path) -> None:
    """Some cases: nothing is wrong, and the JSON has bars and counts."""
    output, said = tmp_path / "faults.json", io.StringIO()
    judged = run(output, Console(file=said, width=200), seed=1, cases=range(SAMPLE))
    assert failures(judged) == [], said.getvalue()
    document = json.loads(output.read_text())
    assert (document["cases"], document["wrong"]) == (SAMPLE, [])
    assert sum(document["kinds"].values()) == SAMPLE


def _no_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "require_identity", lambda *_: None)


def _no_lineage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lineage, "require", lambda *_: None)


def _no_durable_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DurableEnd, "is_reached", lambda *_: True)


def _no_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "unseal", lambda _name, sealed, _where: sealed.partition(b"\n")[2])


class _Alike(int):
    """Equal to every number."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def _no_checksums_of_images(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (format_, reader):
        monkeypatch.setattr(module, "checksum", lambda data: _Alike(checksum(data)))


def _none_behind_a_damaged_one(monkeypatch: pytest.MonkeyPatch) -> None:
    real, damaged = BucketOpener.open, list[DataCorrupted]()

    def open_first(self: BucketOpener, *arguments: Any, **named: Any) -> Any:
        if damaged:
            raise DataCorrupted(str(damaged[0]))
        try:
            return real(self, *arguments, **named)
        except DataCorrupted as error:
            damaged.append(error)
            raise

    monkeypatch.setattr(BucketOpener, "open", open_first)


def _started_once(monkeypatch: pytest.MonkeyPatch) -> None:
    real, opened = RocksStore.open, set[Path]()

    def open_once(path: Path, *arguments: Any, **named: Any) -> RocksStore:
        if path in opened:
            raise DataCorrupted("this directory was opened before")
        opened.add(path)
        return real(path, *arguments, **named)

    monkeypatch.setattr(RocksStore, "open", open_once)


@pytest.mark.parametrize(
    ("breaks", "kind"),
    [
        (_no_identity, "bucket swap"),
        (_no_lineage, "everything older"),
        (_no_durable_end, "wal cut"),
        (_no_checksums, "document flip"),
        (_no_checksums_of_images, "image flip"),
        (_none_behind_a_damaged_one, "manifest empty"),
        (_started_once, "image delete"),
    ],
    ids=[
        "identity",
        "lineage",
        "durable end",
        "checksums",
        "checksums of images",
        "other buckets",
        "second start",
    ],
)
def test_a_broken_variant_is_caught(
    built: tuple[Built, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, breaks: object, kind: str
) -> None:
    """Without one of its checks weir gives a wrong answer in one of a few cases, and with it in none."""
    assert not any(
        judge(built, tmp_path / "whole", kind, seed).wrong for seed in range(everyday(1, nightly=TRIES))
    )
    assert callable(breaks)
    breaks(monkeypatch)
    assert any(judge(built, tmp_path / "broken", kind, seed).wrong for seed in range(TRIES))


def test_a_wrong_case_is_one_line() -> None:
    """A wrong case misses its bar, and its line has the command that replays it."""
    found = Found(7)
    found.take(Verdict(3, "wal cut", "a log", wrong=["12 changes are lost in silence"]))
    assert [bar.name for bar in bars(found) if not bar.ok] == ["wrong", "silent losses"]
    line = line_of(7, found.wrong[0])
    assert "\n" not in line
    assert line.endswith("python -m bench faults --seed 7 --case 3")
