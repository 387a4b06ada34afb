"""The five models of a scan as one: through the client, and response by response on the wire.

What binds every model is tested through `Model.scan` and `Wire`; what a model cannot have is a property of `Model`, and
tests ask for it.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.wire import methods
from scanner.wire.arrow_ipc import decode_batch, decode_schema, verify_payload
from scanner.wire.batches import (
    ReceivedPage,
    RowBatch,
    decode_scan_page,
    decode_scan_response,
    decode_session_page,
)
from tests.support.scans import SCAN, SCHEMA, SESSION

if TYPE_CHECKING:
    import scanner
    import transport
    from scanner.client.connection import Connection

PAGE_BYTES: Final = 5_000
"""Of a page, and of the credit: a few thousand small rows are many of them."""


@dataclass(frozen=True, slots=True)
class Model:
    """One way for rows to travel."""

    name: str
    mode: str
    isolated: bool = True
    """Every row is as of the offset at which the scan was opened."""
    page_model: pb.PageModel = pb.PAGE_MODEL_UNSPECIFIED
    resume_every_batches: int | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def by_pages(self) -> bool:
        """Whether it goes by `ScanPage`, from tokens that the client keeps."""
        return self.page_model != pb.PAGE_MODEL_UNSPECIFIED

    @property
    def pulls(self) -> bool:
        """Whether each page is asked for."""
        return self.mode != "push"

    def scan(self, table: scanner.Table, page_bytes: int = PAGE_BYTES) -> scanner.Scan:
        """A scan of a table by this model, in small pieces."""
        scan = table.new_scan().with_mode(self.mode).with_page_bytes(page_bytes).with_credit(page_bytes)
        if self.resume_every_batches is not None:
            scan = scan.resume_every_batches(self.resume_every_batches)
        return scan


PUSH = Model("push", "push")
PUSH_RESUMED = Model("push-resumed", "push", resume_every_batches=1)
"""Cut and resumed by its own client after every single batch."""
SESSION_MODEL = Model("session", "session")
TOKEN = Model("token", "token", page_model=pb.PAGE_MODEL_TOKEN)
CURSOR = Model("cursor", "cursor", isolated=False, page_model=pb.PAGE_MODEL_CURSOR)
ASOF = Model("asof", "asof", page_model=pb.PAGE_MODEL_ASOF)

FIVE: Final = (PUSH, SESSION_MODEL, TOKEN, CURSOR, ASOF)
PAGED: Final = (TOKEN, CURSOR, ASOF)

every_model = pytest.mark.parametrize("model", FIVE, ids=str)
every_scan = pytest.mark.parametrize("model", [*FIVE, PUSH_RESUMED], ids=str)
pull_models = pytest.mark.parametrize("model", [SESSION_MODEL, *PAGED], ids=str)
paged_models = pytest.mark.parametrize("model", PAGED, ids=str)


@dataclass(frozen=True, slots=True)
class Page:
    """One response of a scan, whatever the model calls it."""

    ordinal: int
    row_count: int = 0
    payload: bytes = b""
    log_offset: int | None = None
    """None: it does not say."""
    token: bytes = b""
    """Continues behind it."""
    more: bool = True
    rows: int | None = None
    """Of the whole scan; said at its end."""
    digest: int | None = None


class Wire(abc.ABC):
    """One scan of one bucket of a table whose key is `id`, asked for piece by piece; checks every checksum.

    Args:
        client: The connection.
        query: What to scan.
        page_bytes: Of each piece.
    """

    def __init__(self, client: transport.Client | Connection, query: pb.ScanQuery, page_bytes: int) -> None:
        self.client = client
        self.query = query
        self.page_bytes = page_bytes
        self.pages: list[Page] = []
        self.batches: list[pa.RecordBatch] = []
        self.schema: pa.Schema = SCHEMA
        """Of the sample table, until the server says one: a later page does not."""

    @property
    def ids(self) -> list[int]:
        """Keys received, in order."""
        return [key for batch in self.batches for key in batch.column("id").to_pylist()]

    @property
    def token(self) -> bytes:
        """Continues behind what was received."""
        return self.pages[-1].token if self.pages else b""

    def table(self) -> pa.Table:
        """All rows received."""
        return pa.Table.from_batches(self.batches, self.schema)

    async def open(self, token: bytes = b"") -> Page:
        """Begin, or go on from a token."""
        return self._take(await self._open(token))

    async def next(self) -> Page:
        """Ask for the next piece, or for the first."""
        return self._take(await self._next()) if self.pages else await self.open()

    async def read_all(self) -> None:
        """Ask for everything that is left."""
        while not self.pages or self.pages[-1].more:
            await self.next()

    @abc.abstractmethod
    async def release(self) -> None:
        """Let the server free what it keeps, as the model's client does; again is fine."""

    @abc.abstractmethod
    async def _open(self, token: bytes) -> Page:
        pass

    @abc.abstractmethod
    async def _next(self) -> Page:
        pass

    def _take(self, page: Page) -> Page:
        if self.pages:
            assert page.ordinal == self.pages[-1].ordinal + self.pages[-1].row_count
        self.pages.append(page)
        if page.row_count:
            self.batches.append(decode_batch(page.payload, self.schema))
            assert self.batches[-1].num_rows == page.row_count
        return page

    def _page(
        self, received: ReceivedPage[Any], token: bytes, log_offset: int | None, *, first: bool
    ) -> Page:
        fields = received.fields
        assert bool(fields.arrow_schema) == first
        if first:
            self.schema = decode_schema(fields.arrow_schema)
        if fields.row_count:
            verify_payload(received.payload, fields.crc32c)
        last = not fields.has_more_results
        assert fields.HasField("rows") == fields.HasField("digest") == last
        return Page(
            ordinal=fields.row_ordinal,
            row_count=fields.row_count,
            payload=bytes(received.payload),
            log_offset=log_offset,
            token=token,
            more=not last,
            rows=fields.rows if last else None,
            digest=fields.digest if last else None,
        )


class PushWire(Wire):
    """By push; a piece is asked for with credit."""

    def __init__(
        self, client: transport.Client, query: pb.ScanQuery, page_bytes: int, stack: AsyncExitStack
    ) -> None:
        super().__init__(client, query, page_bytes)
        self._stack = stack
        self._received_bytes = 0
        self.stream: transport.Stream | None = None

    async def _open(self, token: bytes) -> Page:
        opening = pb.ScanOpen(source=pb.SCAN_SOURCE_LIVE_KV, query=self.query, resume_token=token)
        self.stream = await self._stack.enter_async_context(self.client.open_stream(SCAN))
        await self.stream.send(pb.ScanRequest(open=opening).SerializeToString())
        started = decode_scan_response(await self.stream.receive())
        assert isinstance(started, pb.ScanResponse)
        assert started.WhichOneof("response") == "started"
        self.schema = decode_schema(started.started.arrow_schema)
        page = await self._next()
        assert started.started.row_ordinal == page.ordinal
        return replace(page, log_offset=started.started.log_offset)

    async def _next(self) -> Page:
        assert self.stream is not None
        demand = pb.ScanRequest(demand=pb.Demand(bytes_limit=self._received_bytes + self.page_bytes))
        await self.stream.send(demand.SerializeToString())
        while True:
            response = decode_scan_response(await self.stream.receive())
            if isinstance(response, RowBatch):
                self._received_bytes += response.message_bytes
                verify_payload(response.payload, response.crc32c)
                return Page(
                    ordinal=response.row_ordinal,
                    row_count=response.row_count,
                    payload=bytes(response.payload),
                    token=response.resume_token,
                )
            assert not response.HasField("started"), "the scan started twice"
            if response.HasField("end"):
                end = response.end
                await self.stream.send_end()
                return Page(end.rows, more=False, rows=end.rows, digest=end.digest, token=end.resume_token)

    async def release(self) -> None:
        """Reset the stream."""
        if self.stream is not None:
            self.stream.reset()


class SessionWire(Wire):
    """By session."""

    def __init__(self, client: transport.Client | Connection, query: pb.ScanQuery, page_bytes: int) -> None:
        super().__init__(client, query, page_bytes)
        self.scanner_id = b""
        self.sequence = 0

    async def call(self, **fields: object) -> Page:
        """Any call, not counted."""
        request = pb.ScanSessionRequest(**{"batch_size_bytes": self.page_bytes, **fields})  # type: ignore[arg-type]
        received = decode_session_page(await self.client.call(SESSION, request.SerializeToString()))
        self.scanner_id = received.fields.scanner_id
        if not request.close:
            offset = received.fields.log_offset if received.fields.HasField("log_offset") else None
            return self._page(received, b"", offset, first=request.HasField("query"))
        return Page(0)

    async def _open(self, token: bytes) -> Page:
        assert not token, "a session has no tokens"
        return await self.call(query=self.query)

    async def _next(self) -> Page:
        page = await self.call(scanner_id=self.scanner_id, call_seq_id=self.sequence + 1)
        self.sequence += 1
        return page

    async def release(self) -> None:
        """Close the session."""
        await self.call(scanner_id=self.scanner_id, close=True, batch_size_bytes=0)


class PagesWire(Wire):
    """By pages from tokens."""

    def __init__(
        self,
        client: transport.Client | Connection,
        query: pb.ScanQuery,
        page_bytes: int,
        page_model: pb.PageModel,
    ) -> None:
        super().__init__(client, query, page_bytes)
        self._model = page_model

    async def call(self, token: bytes | None = None, **fields: object) -> Page:
        """Any call, not counted; without a token it is the next page's."""
        request = pb.ScanPageRequest(
            **{
                "model": self._model,
                "query": self.query,
                "resume_token": self.token if token is None else token,
                "batch_size_bytes": self.page_bytes,
                **fields,
            }  # type: ignore[arg-type]
        )
        received = decode_scan_page(await self.client.call(methods.SCAN_PAGE, request.SerializeToString()))
        if request.close:
            return Page(0)
        token, offset = received.fields.resume_token, received.fields.log_offset
        assert received.fields.has_more_results == bool(token)
        return self._page(received, token, offset, first=not request.resume_token)

    async def _open(self, token: bytes) -> Page:
        return await self.call(token)

    async def _next(self) -> Page:
        return await self.call()

    async def release(self) -> None:
        """Let go of what the newest token names."""
        for token in [page.token for page in self.pages if page.token][-1:]:
            await self.call(token, close=True, batch_size_bytes=0)


def pull_wire(
    model: Model,
    client: transport.Client | Connection,
    query: pb.ScanQuery | None = None,
    *,
    page_bytes: int = PAGE_BYTES,
) -> Any:
    """A scan by pages, by hand.

    Args:
        model: How.
        client: The connection.
        query: What; None: bucket 0 of the sample table.
        page_bytes: Of each page.
    """
    query = query or pb.ScanQuery(table="items")
    if model.by_pages:
        return PagesWire(client, query, page_bytes, model.page_model)
    return SessionWire(client, query, page_bytes)


@asynccontextmanager
async def open_wire(
    model: Model,
    client: transport.Client,
    query: pb.ScanQuery | None = None,
    *,
    page_bytes: int = PAGE_BYTES,
) -> AsyncIterator[Any]:
    """The same for a scan by any model; leaving the block resets its stream, if it has one."""
    if model.pulls:
        yield pull_wire(model, client, query, page_bytes=page_bytes)
    else:
        async with AsyncExitStack() as stack:
            yield PushWire(client, query or pb.ScanQuery(table="items"), page_bytes, stack)
