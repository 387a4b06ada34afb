"""A session of the pull model, spoken call by call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.wire.batches import SessionPage, decode_batch, decode_schema, decode_session_page, verify_payload
from tests.support.scans import SESSION

if TYPE_CHECKING:
    import transport

PAGE = 5000
"""Bytes of a page that tests ask for."""


@dataclass
class Session:
    """A session as its client sees it."""

    client: transport.Client
    query: pb.ScanQuery = field(default_factory=lambda: pb.ScanQuery(table="items"))
    page_bytes: int = PAGE
    id: bytes = b""
    sequence: int = 0
    schema: pa.Schema | None = None
    pages: list[SessionPage] = field(default_factory=list)
    batches: list[pa.RecordBatch] = field(default_factory=list)

    async def call(self, **fields: object) -> SessionPage:
        """One call."""
        request = pb.ScanSessionRequest(**{"batch_size_bytes": self.page_bytes, **fields})  # type: ignore[arg-type]
        return decode_session_page(await self.client.call(SESSION, request.SerializeToString()))

    async def open(self) -> SessionPage:
        """Open, and take page 0."""
        page = await self.call(query=self.query)
        self.schema = decode_schema(page.fields.arrow_schema)
        self.id = page.fields.scanner_id
        self._take(page)
        return page

    async def next(self) -> SessionPage:
        """Take the next page."""
        page = await self.call(scanner_id=self.id, call_seq_id=self.sequence + 1)
        self.sequence += 1
        self._take(page)
        return page

    async def pull_all(self) -> None:
        """Take what is left."""
        while self.pages[-1].fields.has_more_results:
            await self.next()

    async def close(self) -> None:
        """Release it."""
        await self.call(scanner_id=self.id, close=True, batch_size_bytes=0)

    def table(self) -> pa.Table:
        """All rows received."""
        return pa.Table.from_batches(self.batches, self.schema)

    def _take(self, page: SessionPage) -> None:
        assert page.fields.row_ordinal == sum(each.num_rows for each in self.batches)
        self.pages.append(page)
        if page.fields.row_count:
            verify_payload(page.payload, page.fields.crc32c)
            batch = decode_batch(page.payload, self.schema)
            assert batch.num_rows == page.fields.row_count
            self.batches.append(batch)
