"""A stage that is being written, and the room that all stages of a server share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import trio

from scanner.errors import ArgumentInvalid, StagesFull
from scanner.server.transactions.stages import Attempt
from scanner.storage.stage_frames import count_mutations, digest_mutations, head_frame, tail_frame
from scanner.storage.transactions import StoredStage

if TYPE_CHECKING:
    from scanner.server.transactions.names import TransactionName, TransactionTable, VersionKey
    from scanner.storage.transactions import StageKey, StageSink


class StageRoom:
    """What the stages of a server take, and may take.

    Args:
        bytes_max: That they may.
        tables: All that have transactions.
    """

    def __init__(self, bytes_max: int, tables: Mapping[int, TransactionTable]) -> None:
        self._bytes_max = bytes_max
        self._tables = tables
        self.writing_bytes = 0
        """Octets of stages that are being written."""

    @property
    def bytes_taken(self) -> int:
        """Octets of all stages, those that are being written included. Each piece of one asks: it walks no names."""
        return self.writing_bytes + sum(table.staged_bytes for table in self._tables.values())

    def require(self, wanted_bytes: int) -> None:
        """See that there is room.

        Raises:
            StagesFull: There is not.
        """
        if self.bytes_taken + wanted_bytes >= self._bytes_max:
            more = f", and {wanted_bytes} more do not fit" if wanted_bytes else ""
            raise StagesFull(
                f"the stages of this server take {self.bytes_taken} of the {self._bytes_max} bytes that are allowed"
                f" (transaction_stage_bytes_max){more}; publish or abort what is staged, or wait until it expires"
            )


class StageWriter:
    """A stage that is being written; made by `Transactions.open_stage`. For one task; it must be finished or left."""

    def __init__(
        self,
        room: StageRoom,
        name: TransactionName,
        key: VersionKey,
        stage: StageKey,
        sink: StageSink,
        now_ms: Callable[[], int],
    ) -> None:
        self._room = room
        self._name = name
        self._key = key
        self._stage = stage
        self._sink = sink
        self._now_ms = now_ms
        self._frames = 0
        self._mutations = 0
        self._bytes = 0
        self._open = True

    async def append(self, frames: Sequence[tuple[bytes, int]]) -> None:
        """Write frames of mutations; see `scanner.storage.stage_frames.mutation_frames`.

        Raises:
            StageNotFound: The version was aborted.
            StagesFull, DiskFull: There is no room.
            ScannerError: Storage failed.

        Waits:
            For storage.

        Cancellation:
            Leave it then.
        """
        if self._name.is_decided(self._key):
            return  # It would not be kept.
        self._name.require_kept(self._key, self._stage.sequence)
        encoded = [frame for frame, _ in frames]
        if not self._bytes:
            encoded.insert(0, head_frame(self._name.table.files.table_id, self._stage))
        size = sum(map(len, encoded))
        self._room.require(size)
        self._bytes += size
        self._room.writing_bytes += size
        self._frames += len(frames)
        self._mutations += sum(count for _, count in frames)
        await self._name.table.run(self._sink.append, encoded)

    async def finish(self) -> tuple[int, bool]:
        """Make the stage durable.

        Returns:
            Its octets, and whether the version was decided meanwhile: it was not kept then.

        Raises:
            ArgumentInvalid: Its session is that of a stage with other rows; nothing of this one was kept.
            TableNotFound: The table was dropped, or is being dropped.
            StageNotFound: The version was aborted.
            VersionSuperseded: A newer version was decided.
            ScannerError: Storage failed; nothing was kept.

        Waits:
            For storage, and while the version is being decided.

        Cancellation:
            It may be durable.
        """
        name, key, stage = self._name, self._key, self._stage
        try:
            if not name.is_decided(key):
                await self.append([])
                await name.table.run(self._sink.append, [tail_frame(self._frames, self._mutations)])
                await name.table.run(self._sink.sync)
            async with name.lock:
                name.require_newest(key)
                if name.is_decided(key):
                    return 0, True
                name.require_kept(key, stage.sequence)
                await name.table.served()
                found = name.stages.find(key.version, Attempt(stage.part, stage.attempt), stage.session)
                if found is None:
                    # It may have been written for days: its time begins now.
                    stage = stage._replace(staged_ms=self._now_ms())
                    size = await name.table.run(self._sink.finish, stage)
                    found = StoredStage(stage, size)
                    name.stages.add(found)
                else:
                    await self._require_same(found.key)
                return found.size, False
        finally:
            with trio.CancelScope(shield=True):
                await self.leave()

    async def leave(self) -> None:
        """Give it up, unless it is finished. Idempotent.

        Waits:
            For storage.
        """
        if self._open:
            self._open = False
            self._name.stage_ended()
            self._room.writing_bytes -= self._bytes
            await self._name.table.run(self._sink.discard)

    async def _require_same(self, kept: StageKey) -> None:
        """See that this stage is one that is there, sent again: in each bucket it has the same rows."""
        other = await self._name.table.run(self._other_rows, kept)
        if not other:
            return
        raise ArgumentInvalid(
            f"the session of a stage of {self._mutations} rows is that of one of {other}, of {self._key};"
            " nothing of it was kept: every stage has a session of its own, and the same only when it is sent again"
        )

    def _other_rows(self, kept: StageKey) -> str:
        """How the rows of a stage that is there are others; empty: they are the same."""
        files = self._name.table.files
        with closing(files.open_source(kept)) as before, closing(self._sink.open_source()) as now:
            rows = count_mutations(before, kept)
            if rows != self._mutations:
                return f"{rows} rows"
            theirs = digest_mutations(before, files.table_id, kept)
            return "" if theirs == digest_mutations(now, files.table_id, self._stage) else "other rows"
