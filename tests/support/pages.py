"""A scan by pages (token, cursor, asof), spoken call by call."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.config import ScannerConfig
from scanner.wire import methods
from scanner.wire.batches import ScanPage, decode_batch, decode_scan_page, decode_schema, verify_payload
from tests.support.scans import sample, write, write_request

if TYPE_CHECKING:
    import transport
    from scanner.client.connection import Connection
    from scanner.storage.memory.store import MemoryStore

Stored: TypeAlias = "MemoryStore | Path"
"""What a server can be opened on."""

PAGES = methods.SCAN_PAGE
PAGE = 5000
"""Bytes of a page that tests ask for."""
ROWS = 3000
"""Rows of the sample table."""
TABLE = pa.Table.from_batches([sample(range(ROWS))])
CONFIG = ScannerConfig(
    block_rows_max=100, page_snapshots_per_bucket_max=2, page_snapshots_max=3, snapshot_linger_s=0
)
"""Small blocks and caps, and nothing that outlives its scan."""
MODELS = {"token": pb.PAGE_MODEL_TOKEN, "cursor": pb.PAGE_MODEL_CURSOR, "asof": pb.PAGE_MODEL_ASOF}


@dataclass
class Pages:
    """A scan as its client sees it, that checks what every page must hold to."""

    client: transport.Client | Connection
    model: str = "token"
    query: pb.ScanQuery = field(default_factory=lambda: pb.ScanQuery(table="items"))
    page_bytes: int = PAGE
    token: bytes = b""
    """Fetches the next page."""
    schema: pa.Schema | None = None
    pages: list[ScanPage] = field(default_factory=list)
    batches: list[pa.RecordBatch] = field(default_factory=list)

    async def call(self, **fields: object) -> ScanPage:
        """One call; what is not given is what the next page needs."""
        given = {
            "model": MODELS[self.model],
            "query": self.query,
            "batch_size_bytes": self.page_bytes,
            "resume_token": self.token,
            **fields,
        }
        request = pb.ScanPageRequest(**given)  # type: ignore[arg-type]
        return decode_scan_page(await self.client.call(PAGES, request.SerializeToString()))

    async def next(self, **fields: object) -> ScanPage:
        """Take the next page."""
        page = await self.call(**fields)
        if self.schema is None:
            self.schema = decode_schema(page.fields.arrow_schema)
        assert page.fields.row_ordinal == self.rows
        self.pages.append(page)
        self.token = page.fields.resume_token
        assert page.fields.has_more_results == bool(self.token) != page.fields.HasField("rows")
        if page.fields.row_count:
            self.batches.append(self.batch(page))
        return page

    async def pull_all(self) -> None:
        """Take what is left."""
        while not self.pages or self.pages[-1].fields.has_more_results:
            await self.next()

    async def close(self) -> None:
        """Let go of what the server keeps."""
        await self.call(close=True, batch_size_bytes=0)

    def batch(self, page: ScanPage) -> pa.RecordBatch:
        """The rows of a page that has some."""
        verify_payload(page.payload, page.fields.crc32c)
        batch = decode_batch(page.payload, self.schema)
        assert batch.num_rows == page.fields.row_count
        return batch

    @property
    def rows(self) -> int:
        """Rows received."""
        return sum(each.num_rows for each in self.batches)

    @property
    def ids(self) -> list[int]:
        """The keys received, in order."""
        return [key for batch in self.batches for key in batch.column("id").to_pylist()]

    @property
    def digest(self) -> int:
        """What the last page says."""
        return self.pages[-1].fields.digest

    def table(self) -> pa.Table:
        """All rows received."""
        return pa.Table.from_batches(self.batches, self.schema)


async def shake(client: transport.Client) -> None:
    """Delete the first and the last rows, change every other one, and add some behind: two thirds of the bucket."""
    gone = [*range(0, ROWS, 30), ROWS - 1]
    changed = sample(range(1, ROWS - 1, 2)).set_column(
        3, "sold", pa.array([None] * (ROWS // 2 - 1), pa.bool_())
    )
    await write(
        client,
        write_request(sample(gone).select(["id"]), delete=True),
        write_request(changed),
        write_request(sample(range(ROWS, ROWS + 50))),
    )
