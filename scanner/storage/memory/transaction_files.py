"""The stages and decisions of one table of the store in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from scanner.errors import DataCorrupted
from scanner.storage.transactions import StageKey, StoredStage


@dataclass(slots=True)
class TransactionContents:
    """What a table keeps of its transactions."""

    stages: dict[StageKey, bytes] = field(default_factory=dict)
    decisions: dict[str, bytes] = field(default_factory=dict)
    used: bool = False


class MemoryTransactionFiles:
    """See `scanner.storage.transactions.TransactionFiles`.

    Args:
        table_id: Of the table.
        contents: What the table keeps.
    """

    def __init__(self, table_id: int, contents: TransactionContents) -> None:
        self.table_id = table_id
        self._contents = contents

    @property
    def used(self) -> bool:
        """See `TransactionFiles.used`."""
        return self._contents.used

    def stages(self) -> list[StoredStage]:
        """See `TransactionFiles.stages`."""
        return [StoredStage(key, len(content)) for key, content in self._contents.stages.items()]

    def open_sink(self, key: StageKey) -> MemoryStageSink:
        """See `TransactionFiles.open_sink`."""
        self._contents.used = True
        return MemoryStageSink(self._contents)

    def open_source(self, key: StageKey) -> MemoryStageSource:
        """See `TransactionFiles.open_source`."""
        if key not in self._contents.stages:
            raise DataCorrupted(f"a stage of {key.name} is gone, and it was staged")
        return MemoryStageSource(self._contents.stages[key])

    def drop_stages(self, keys: Sequence[StageKey]) -> None:
        """See `TransactionFiles.drop_stages`."""
        for key in keys:
            self._contents.stages.pop(key, None)

    def decisions(self) -> dict[str, bytes]:
        """See `TransactionFiles.decisions`."""
        return dict(self._contents.decisions)

    def write_decision(self, name: str, content: bytes) -> None:
        """See `TransactionFiles.write_decision`."""
        self._contents.used = True
        self._contents.decisions[name] = content

    def drop_decision(self, name: str) -> None:
        """See `TransactionFiles.drop_decision`."""
        self._contents.decisions.pop(name, None)

    def require_room(self, wanted_bytes: int) -> None:
        """See `TransactionFiles.require_room`; memory has it."""


class MemoryStageSink:
    """See `scanner.storage.transactions.StageSink`."""

    def __init__(self, contents: TransactionContents) -> None:
        self._contents = contents
        self._written = bytearray()

    def append(self, frames: Sequence[bytes]) -> None:
        """See `StageSink.append`."""
        for frame in frames:
            self._written += frame

    def sync(self) -> None:
        """See `StageSink.sync`."""

    def open_source(self) -> MemoryStageSource:
        """See `StageSink.open_source`."""
        return MemoryStageSource(bytes(self._written))

    def finish(self, key: StageKey) -> int:
        """See `StageSink.finish`."""
        self._contents.stages[key] = bytes(self._written)
        return len(self._written)

    def discard(self) -> None:
        """See `StageSink.discard`."""
        self._written.clear()


class MemoryStageSource:
    """See `scanner.storage.transactions.StageSource`."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    @property
    def size(self) -> int:
        """See `StageSource.size`."""
        return len(self._content)

    def read(self, offset: int, size: int) -> bytes:
        """See `StageSource.read`."""
        return self._content[offset : offset + size]

    def close(self) -> None:
        """See `StageSource.close`."""
