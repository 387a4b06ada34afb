"""The blocking twin of `scanner.client.transactions`; part of `scanner.sync`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from scanner.client.arrow_input import Rows
from scanner.client.transactions import Operation, Published, Staged
from scanner.client.transactions import PartWriter as TrioPartWriter
from scanner.client.transactions import Transaction as TrioTransaction
from scanner.sync.portal import Portal
from scanner.sync.rows import read_rows


class Transaction:
    """One version of a transaction; made by `Table.transaction`. See `scanner.Transaction`. For any thread."""

    def __init__(self, portal: Portal, transaction: TrioTransaction) -> None:
        self._portal = portal
        self._transaction = transaction

    @property
    def name(self) -> str:
        """Of the transaction."""
        return self._transaction.name

    @property
    def version(self) -> int:
        """Of it."""
        return self._transaction.version

    def stage(self, rows: Rows, *, part: int, attempt: int, operation: Operation = "upsert") -> Staged:
        """Stage rows, or keys to delete; see `scanner.Transaction.stage`."""
        return self._portal.call(
            self._transaction.stage, read_rows(rows), part=part, attempt=attempt, operation=operation
        )

    @contextmanager
    def part(self, part: int, attempt: int) -> Iterator[PartWriter]:
        """Stage batch by batch, for the length of a block; see `scanner.Transaction.part`.

        Example:
            >>> with orders.transaction("load", 7).part(0, 0) as writer:
            ...     writer.upsert(batch)
            >>> writer.close().rows
        """
        held = self._portal.hold(self._transaction.part(part, attempt))
        try:
            yield PartWriter(self._portal, held.value)
        except BaseException:
            held.leave(abandoned=True)
            raise
        held.finish()

    def publish(
        self,
        attempts: Mapping[int, int],
        *,
        overwrite: bool = False,
        rows: Mapping[int, int] | None = None,
        previous_version: int | None = None,
    ) -> Published:
        """Decide that these attempts count, and wait until they are applied; see `scanner.Transaction.publish`."""
        return self._portal.call(
            self._transaction.publish,
            attempts,
            overwrite=overwrite,
            rows=rows,
            previous_version=previous_version,
        )

    def abort(self) -> int:
        """Free what is staged of the version; see `scanner.Transaction.abort`."""
        return self._portal.call(self._transaction.abort)


class PartWriter:
    """Stages rows of one part; made by `Transaction.part`. For one thread."""

    def __init__(self, portal: Portal, writer: TrioPartWriter) -> None:
        self._portal = portal
        self._writer = writer

    def upsert(self, rows: Rows) -> None:
        """Send rows; see `scanner.client.transactions.PartWriter.upsert`."""
        self._portal.call(self._writer.upsert, read_rows(rows))

    def delete(self, keys: Rows) -> None:
        """Send keys to delete; see `scanner.client.transactions.PartWriter.delete`."""
        self._portal.call(self._writer.delete, read_rows(keys))

    def close(self) -> Staged:
        """Make durable what was sent, and say what it was. Idempotent, and fine after the block."""
        return self._portal.call(self._writer.close)
