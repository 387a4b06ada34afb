"""Fetches a scan of one bucket page by page, by whatever pull model: the client's half of all of them that does I/O.

What is asked for and what the answers mean is the model's `PageSource`, which is pure.

Invariants:

1. One request of a bucket is in flight at most.
2. Pages that arrived or are on their way and are not consumed: `page_depth` + 1 at most, the one in the consumer's
   hands included. With a depth of 1 the next page is asked for as soon as one arrives.
3. A page that failed to come is asked for again, by the same request, over a new connection if need be: every model
   answers with the same page. Nothing is lost or repeated by that. The first page may be asked for with its columns by
   name then (`AskedColumns`).
4. A model that makes the server keep something *confirms* its first page: it closes the request side only when the page
   is here. Until then the end of the stream or the connection releases what is kept, so a page that is lost leaks
   nothing.
5. What the server keeps is released, once, when the scan is left early; a scan that ended by itself sends nothing more.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

import pyarrow as pa
import trio

from scanner.client.failures import translated
from scanner.client.scan.sequence import no_rows
from scanner.client.scan.turns import Delivery
from scanner.errors import ScanIncomplete, ScannerError, TooManyScans
from scanner.tasks import bare
from scanner.wire.seals import sealed
from transport import TransportError

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from typing_extensions import Buffer

    from scanner.client.connection import Connection
    from scanner.client.retries import Attempts
    from scanner.client.scan.batch_queue import HandOff
    from scanner.client.scan.columns import AskedColumns
    from scanner.client.scan.resume_position import BucketPosition
    from scanner.client.scan.statistics import BucketProgress

OPEN_RETRY_DELAYS_S: Final = (0.1, 0.2, 0.4)
"""Pauses before a first page that a cap refused is asked for again; then the refusal is the scan's failure."""
RELEASE_TIMEOUT_S: Final = 2.0
"""How long leaving a scan waits for the release to be acknowledged; without it the server's TTL releases."""
TRAILERS_TIMEOUT_S: Final = 1.0
"""How long the end of a scan waits for the status of its first call; it decides nothing any more."""

_NO_COLUMNS: Final = pa.schema([])
Taken: TypeAlias = "tuple[pa.RecordBatch, int] | None"
"""A batch and the bytes of its message; None: a page without rows."""


class PageSource(Protocol):
    """The requests of one scan of one bucket, and what the answers mean."""

    columns: AskedColumns
    """Which ones are asked for."""

    @property
    def keeps(self) -> bool:
        """Whether the first page makes the server keep something."""

    @property
    def behind(self) -> BucketPosition | None:
        """Where the scan stands behind what was received last; None: the model has no positions."""

    @property
    def ended(self) -> bool:
        """Whether the last page has come."""

    @property
    def is_open(self) -> bool:
        """Whether the server keeps something for us, as far as we know."""

    def next_request(self) -> Message:
        """The request that fetches the next page; the same until one is received, but for the columns of the first."""

    def release_request(self) -> Message:
        """The request that releases what the server keeps."""

    def receive(self, message: Buffer) -> Taken:
        """Take the answer to `next_request`.

        Raises:
            ScannerError: It is of no use; if that may pass, nothing has changed.
        """


class PagesAhead:
    """Counts the pages that are not consumed, and holds the next request back while there are too many.

    Args:
        depth: Pages fetched ahead of the one in the consumer's hands, >= 0. 0: the next one is asked for when that one
            was consumed.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._unconsumed = 0
        self._dropped = trio.Event()

    def add(self, batches: int = 1) -> Callable[[], None]:
        """A page has arrived.

        Args:
            batches: Its batches, above 0. They may be consumed in any order.

        Returns:
            To be called when a batch of it was consumed; with the last of them the page is.
        """
        self._unconsumed += 1
        left = batches

        def consumed() -> None:
            nonlocal left
            left -= 1
            if not left:
                self._unconsumed -= 1
                self._dropped.set()

        return consumed

    async def wait_room(self) -> None:
        """Wait until the next page may be asked for.

        Cancellation:
            No effect.
        """
        while self._unconsumed > self._depth:
            self._dropped = trio.Event()
            await self._dropped.wait()


class BucketFetcher:
    """Fetches the pages of one bucket, into the hand-off. For one task.

    Args:
        connection: To the server.
        path: Of the model's call.
        source: Fresh.
        progress: Counters to keep.
        hand_off: Takes the batches.
        page_depth: Pages fetched ahead of the consumer, >= 0.
        what: Names the scan in errors.
        attempts: Fresh; a sibling of those of the other buckets.
    """

    def __init__(
        self,
        connection: Connection,
        path: str,
        source: PageSource,
        progress: BucketProgress,
        hand_off: HandOff,
        page_depth: int,
        what: str,
        attempts: Attempts,
    ) -> None:
        self._connection = connection
        self._path = path
        self._source = source
        self._progress = progress
        self._hand_off = hand_off
        self._pages = PagesAhead(page_depth)
        self._what = what
        self._attempts = attempts

    async def run(self) -> None:
        """Fetch the whole scan.

        Raises:
            ScannerError: The scan failed.

        Waits:
            For the server, for the delays between attempts, and while more than `page_depth` pages are not consumed.

        Cancellation:
            Releases what the server keeps, for which it waits a bounded time.
        """
        try:
            async with bare(trio.open_nursery()) as confirming:
                try:
                    await self._fetch_all(confirming)
                finally:
                    confirming.cancel_scope.deadline = trio.current_time() + TRAILERS_TIMEOUT_S
        finally:
            if self._source.is_open:
                with trio.move_on_after(RELEASE_TIMEOUT_S, shield=True):
                    await self._release()

    async def _fetch_all(self, confirming: trio.Nursery) -> None:
        open_scan = functools.partial(self._open, confirming)
        self._deliver(await self._until_taken(open_scan, iter(OPEN_RETRY_DELAYS_S)))
        while not self._source.ended:
            await self._pages.wait_room()
            self._deliver(await self._until_taken(self._continue))

    def _deliver(self, taken: Taken) -> None:
        bucket, behind = self._progress.bucket, self._source.behind
        if taken is not None:
            batch, size = taken
            self._hand_off.put(Delivery(bucket, batch, size, self._pages.add(), behind=behind))
        elif behind is not None:
            self._hand_off.put(Delivery(bucket, no_rows(_NO_COLUMNS), 0, lambda: None, behind=behind))

    async def _until_taken(
        self, ask: Callable[[], Awaitable[Taken]], refusal_delays_s: Iterator[float] | None = None
    ) -> Taken:
        """Ask until there is an answer that can be used.

        Args:
            ask: Makes one request and takes its answer.
            refusal_delays_s: How long to wait after each refusal by a cap; None: as after other failures.

        Raises:
            ScannerError: Asking again cannot help, or has not.
        """
        while True:
            try:
                taken = await ask()
            except ScannerError as error:
                failure = error
            else:
                self._attempts.progress()
                return taken
            if self._source.columns.asked_too_early(failure):
                continue
            if refusal_delays_s is not None and isinstance(failure, TooManyScans):
                delay_s = next(refusal_delays_s, None)
                if delay_s is None:
                    raise failure
                await trio.sleep(delay_s)
            else:
                await self._attempts.wait_retry(failure)
                self._progress.resumes += self._progress.log_offset is not None

    async def _open(self, confirming: trio.Nursery) -> Taken:
        request = self._source.next_request()
        if not self._source.keeps:
            return self._source.receive(await self._call(request))
        with translated(f"the scan of {self._what}"):
            taken: Taken = await confirming.start(self._call_confirmed, request)
        return taken

    async def _continue(self) -> Taken:
        return self._source.receive(await self._call(self._source.next_request()))

    async def _release(self) -> None:
        # A client that was left, or cannot connect any more, has the server's TTL do it.
        with suppress(ScannerError, trio.ClosedResourceError):
            await self._call(self._source.release_request())

    async def _call(self, request: Message) -> Buffer:
        with translated(f"the scan of {self._what}"):
            async with self._connection.client() as client:
                self._progress.requests += 1
                answer: Buffer = await client.call(
                    self._path,
                    sealed(request.SerializeToString()),
                    on_stalls=self._progress.add_server_stalls,
                )
                return answer

    async def _call_confirmed(self, request: Message, *, task_status: trio.TaskStatus[Taken]) -> None:
        """Make a call; go on when its answer has been taken, and see the call to its end meanwhile."""
        arrived = False
        try:
            async with self._connection.client() as client, client.open_stream(self._path) as stream:
                self._progress.requests += 1
                await stream.send(sealed(request.SerializeToString()))
                answer = await stream.receive()
                if answer is None:
                    raise ScanIncomplete(f"the scan of {self._what} was opened without an answer")
                # Before it is confirmed: whoever is cancelled from here on knows that there is something to release.
                taken = self._source.receive(answer)
                arrived = True
                task_status.started(taken)
                await stream.send_end()
                while await stream.receive() is not None:
                    pass
                if stream.peer_stalls is not None:
                    self._progress.add_server_stalls(stream.peer_stalls)
        except (TransportError, ScannerError):
            if not arrived:
                raise
            # The page is here; if more is lost than the end of its call, the next request finds out.
