"""Fetches the changes of all buckets of a scan by long poll, one request at a time: the client's half that does I/O.

`scanner.client.scan.fetch_receiver` knows what to ask for, and what the answers mean.

Invariants:

1. One request of a scan is in flight at most. The next one goes out while answers wait for the consumer, up to the
   page depth.
2. An answer that failed to come is asked for again, over a new connection if need be. The server keeps nothing, so
   nothing is lost or repeated by that.
3. A bucket that is answered with an error does not keep back what the others have brought. If the error may pass, the
   bucket is asked for again.
4. A server that has not answered for a while after the time it was to wait counts as gone: what sits between may keep
   a connection alive behind which nobody is any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import trio

from scanner.client.failures import translated
from scanner.client.scan.pull import PagesAhead
from scanner.client.scan.turns import Delivery
from scanner.errors import ScannerError, ServerUnavailable
from scanner.wire import methods
from scanner.wire.seals import sealed

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from scanner.client.connection import Connection
    from scanner.client.retries import Attempts
    from scanner.client.scan.batch_queue import HandOff
    from scanner.client.scan.fetch_receiver import FetchedRows, FetchReceiver
    from scanner.client.scan.statistics import BucketProgress

_SILENCE_S: Final = 60.0
"""Beyond the wait that was asked for: an answer may be long, and the server busy."""


class LogFetcher:
    """Fetches the changes of one scan, into the hand-off. For one task.

    Args:
        connection: To the server.
        receiver: Fresh.
        progress: Of one of the buckets: requests and stalls of all are counted there.
        hand_off: Takes the batches.
        page_depth: Answers fetched ahead of the consumer, >= 0.
        max_wait_s: What the receiver has the server wait.
        what: Names the table in errors.
        attempts: Fresh.
    """

    def __init__(
        self,
        connection: Connection,
        receiver: FetchReceiver,
        progress: BucketProgress,
        hand_off: HandOff,
        page_depth: int,
        max_wait_s: float,
        what: str,
        attempts: Attempts,
    ) -> None:
        self._connection = connection
        self._receiver = receiver
        self._progress = progress
        self._hand_off = hand_off
        self._answers = PagesAhead(page_depth)
        self._patience_s = max_wait_s + _SILENCE_S
        self._what = what
        self._attempts = attempts

    async def run(self) -> None:
        """Fetch until every bucket has ended.

        Raises:
            ScannerError: The scan failed in a way that does not pass, or did not in as many attempts as there are.
            trio.ClosedResourceError: The client was left.

        Waits:
            For the server, for the delays between attempts, and while more than `page_depth` answers are not consumed.

        Cancellation:
            Resets the call.
        """
        while not self._receiver.ended:
            await self._answers.wait_room()
            try:
                rows, failure = self._receiver.receive(await self._call())
            except ScannerError as error:
                rows, failure = [], error
            self._deliver(rows)
            if failure is None:
                self._attempts.progress()
            else:
                await self._attempts.wait_retry(failure)
                self._progress.resumes += self._progress.log_offset is not None

    def _deliver(self, rows: Sequence[FetchedRows]) -> None:
        """Hand an answer out; it is consumed when all of its batches are. Buckets take turns: any may be the last."""
        if not rows:
            return
        consumed = self._answers.add(len(rows))
        for each in rows:
            self._hand_off.put(Delivery(each.bucket, each.batch, each.size, consumed, each.position))

    async def _call(self) -> Buffer:
        request = sealed(self._receiver.next_request().SerializeToString())
        with translated(f"the scan of {self._what}"):
            async with self._connection.client() as client:
                self._progress.requests += 1
                with trio.move_on_after(self._patience_s):
                    answer: Buffer = await client.call(
                        methods.FETCH_LOG, request, on_stalls=self._progress.add_server_stalls
                    )
                    return answer
        raise ServerUnavailable(f"a fetch of {self._what} was not answered within {self._patience_s:g} s")
