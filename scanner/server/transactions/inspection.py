"""What `weir doctor` looks at of a table's transactions: decisions, and the stages of those that are not applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scanner.errors import ScannerError
from scanner.server.transactions.decisions import Decision
from scanner.storage.rocksdb.files import read_sealed
from scanner.storage.rocksdb.findings import Finding, Severity
from scanner.storage.rocksdb.transaction_files import RocksStageSource, decision_paths, stage_paths
from scanner.storage.stage_frames import read_mutations

if TYPE_CHECKING:
    from scanner.storage.transactions import StageKey

_ANEW: Final = "write its rows again, under another transaction name"


def transaction_findings(directory: Path, table_id: int, name_of: Callable[[Path], str]) -> Iterator[Finding]:
    """Inspect a table's transactions; nothing is changed.

    Args:
        directory: Of the transactions; it may not exist.
        table_id: Of the table.
        name_of: A path as findings name it.

    Raises:
        StoreFailed: The disk refused.
    """
    stages: dict[tuple[str, int, int, int], list[tuple[Path, StageKey]]] = {}
    for path, key in stage_paths(directory):
        if not path.name.endswith("~"):
            stages.setdefault((key.name, key.version, key.part, key.attempt), []).append((path, key))
    for name, path in decision_paths(directory):
        try:
            content = read_sealed(path)
            if content is None:
                continue
            decision = Decision.from_document(content, table_id, name)
        except ScannerError as error:
            lost = "what was decided; all transactions of the table are refused"
            advice = "remove it: then the buckets alone say what was applied"
            yield Finding(Severity.ERROR, name_of(path), error.message, lost, advice)
            continue
        if decision.applied:
            continue
        parts = {
            part: stages.get((name, decision.version, part, attempt), [])
            for part, attempt in decision.attempts.items()
        }
        for part, chosen in parts.items():
            if not chosen:
                problem = f"version {decision.version} is decided, and the stage of its part {part} is gone"
                yield Finding(Severity.ERROR, name_of(path), problem, "the version cannot be applied", _ANEW)
            for stage, key in chosen:
                problem = _damage(stage, table_id, key)
                if problem:
                    yield Finding(
                        Severity.ERROR, name_of(stage), problem, "the version cannot be applied", _ANEW
                    )
        there = sum(map(len, parts.values()))
        if all(parts.values()) and there < decision.stages:
            problem = f"version {decision.version} is decided, and {there} of its {decision.stages} stages are there"
            yield Finding(Severity.ERROR, name_of(path), problem, "the version cannot be applied", _ANEW)


def _damage(path: Path, table_id: int, key: StageKey) -> str:
    """What is wrong with a stage; empty: nothing."""
    try:
        source = RocksStageSource(path)
        try:
            for _ in read_mutations(source, table_id, key):
                pass
        finally:
            source.close()
    except ScannerError as error:
        return error.message
    return ""
