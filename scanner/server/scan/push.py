"""One push scan on one stream: what the client says, what goes out, and when.

Invariants:

1. Sent minus limit is at most one row's message: a batch goes out only while sent < limit, and one of more than
   one row fits into the credit left.
2. Storage is read only while there is credit, and one decoded block is held at most.
3. Whatever the scan does, something is sent within the heartbeat interval, unless the peer's window is shut; within the
   longer one of idle tails while it waits for a commit and has said where it is.
4. Data ends with `ScanEnd` or with an error, never otherwise.
5. Between two steps of the source, and between two batches, every other task gets its turn. Steps that take long
   are taken in turns with those of all other scans.
6. A scan that could send nothing for the park time, for lack of credit or window, holds no iterator, no snapshot and
   no rows, until it can send again. It never fails for being slow.
7. A server that drains waits for no scan that has no end.
8. Every batch, heartbeat and end carries the token that continues the scan right after it, and so does an error after
   which the scan can go on.

This module knows no storage, no tables, no Arrow, and not what a token says.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

import trio

from scanner.errors import InternalError, ScannerError, SlowConsumer, TooManyFiles, TooManyScans
from scanner.proto.weir.v1 import scanner_pb2 as pb
from scanner.server.fairness import (
    BEGINNING_ROUNDS,
    REOPEN_INTERVAL_S,
    DemandTurns,
    SlowStart,
    WholeBlocks,
    pass_turn,
)
from scanner.server.scan.push_requests import RequestSide
from scanner.sources.interface import EndReason
from scanner.tasks import run_with_companion
from transport import StallReason

if TYPE_CHECKING:
    from scanner.server.fairness import StepTurns
    from scanner.server.scan.idle_tails import IdleTails
    from scanner.server.scan.interface import BatchLimits, PushedScan
    from scanner.server.scan.park_timer import ParkTimer
    from scanner.wire.seals import Seal
    from transport import ServerStream


_logger = logging.getLogger(__name__)
_GOODBYE_S: Final = 2.0
"""How long a client that has not half-closed may be silent after its scan's end before the call ends. A client that was
silent for longer while the scan ran, as one that reads slowly is, may be so for twice as long as it was."""
_GOODBYE_S_MAX: Final = 30.0
_DRAINED_GOODBYE_S: Final = 1.0
"""The same while the server drains, for everybody."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PushLimits:
    """What one push scan keeps to."""

    batch: BatchLimits
    """What a batch may be at most; the credit left may allow less."""
    heartbeat_interval_s: float
    """The longest silence while there is something to say."""
    idle_interval_s: float
    """The longest silence of a scan that waits for a commit and has said where it is; not below the other."""
    park_after_s: float
    """The longest time for which storage is held and nothing can be sent."""
    seal: Seal
    """Of what is said beside the rows."""


class PushScan:
    """Drives one scan into one stream.

    Args:
        stream: Its open has been received.
        pushed: The scan. Not closed by this class.
        limits: To be kept.
        idle_tails: Keeps the time of those that wait for a commit.
        park_timer: And of those whose peer takes nothing.
        turns: Shared by all scans of a server.
    """

    def __init__(
        self,
        stream: ServerStream,
        pushed: PushedScan,
        limits: PushLimits,
        idle_tails: IdleTails,
        park_timer: ParkTimer,
        turns: StepTurns,
    ) -> None:
        self._stream = stream
        self._pushed = pushed
        self._scan = pushed.scan
        self._limits = limits
        self._idle_tails = idle_tails
        self._park_timer = park_timer
        self._turns = turns
        self._requests = RequestSide(stream.credit)
        self._demand_turns = DemandTurns()
        self._changed = trio.Event()
        self._first_row = pushed.rows
        self.sent_at = trio.current_time()
        """When something was sent last; seconds of trio's clock."""
        self._beat_due = False
        """Whether a heartbeat could not be made where it was due."""
        self._drained_by: ScannerError | None = None
        self._stalled_at: float | None = None
        """Since when nothing could be sent; None: something can."""
        self._slow_start = SlowStart()
        self._whole_blocks = WholeBlocks()
        self._moved = False
        """Whether the scan has begun, or read on, since a batch or a heartbeat was sent."""
        self._scope = trio.CancelScope()
        self._goodbye = trio.CancelScope()
        """Of the wait for the client after the scan's end."""
        self._goodbye_s = _GOODBYE_S
        self._heard_at = trio.current_time()
        """When the client sent something last; seconds of trio's clock."""
        self.end_reason: EndReason | None = None
        """Why the scan came to its explicit end; None until then."""

    @property
    def rows(self) -> int:
        """Rows sent on this stream so far; those before a resume went out on another one."""
        return self._pushed.rows - self._first_row

    async def run(self) -> None:
        """Send the scan, up to its end.

        Raises:
            ScannerError: The source failed, the client broke the rules, or the bucket ended the scan.
            TransportError: The stream or the connection is gone.

        Waits:
            For credit, and for the stream to take what is sent.

        Cancellation:
            The scan stops; nothing more is sent.
        """
        self._scan.when_ended(self._stop)
        ignore_commits = self._pushed.on_commit(self._wake)
        try:
            with self._scope:
                await self._send_first()
                if self.end_reason is None:
                    await run_with_companion(self._send_rest, self._receive_all)
        except ScannerError as error:
            resumable = self.with_resume_token(error)
            if resumable is error:
                raise
            raise resumable from error
        finally:
            ignore_commits()
        if self._scope.cancelled_caught and self._scan.ended_by is not None:
            raise self.with_resume_token(self._scan.ended_by)

    def stop(self, error: ScannerError) -> None:
        """End the scan with an error, whatever it is waiting for."""
        self._scan.end(error)

    def drain(self, error: ScannerError) -> None:
        """End the scan with an error if it has no end of its own, or as soon as it comes to where it has none.

        After its end: `wait_half_closed` waits less.
        """
        self._drained_by = error
        if self.end_reason is not None:
            self._await_goodbye()
        elif self._pushed.endless:
            self.stop(error)

    def with_resume_token(self, error: ScannerError) -> ScannerError:
        """The error as this scan's client gets it: with a token, if the scan can go on after it."""
        if error.resume_token or not (error.retriable or isinstance(error, SlowConsumer)):
            return error
        return type(error)(
            error.message,
            resume_token=self._pushed.token(),
            oldest_offset=error.oldest_offset,
            metadata={**error.metadata, "rows": str(self._pushed.rows)},
        )

    async def wait_half_closed(self) -> None:
        """After `run`: let a client that grants credit read up to the end before its call ends. The scan may be closed.

        The client may still be at an earlier batch, and send a demand for each that follows. Some libraries (grpc.aio)
        fail a whole call, and drop what they have received of it, when a message can no longer be sent. A client cannot
        waive that, since it does not know what is between: behind a status that comes before the half-close, nginx
        takes the connection out of its pool, nghttpx passes no half-close on, and Envoy resets the call.

        Raises:
            ScannerError: The client broke the rules.
            TransportError: The stream or the connection is gone.

        Waits:
            Until the client has half-closed, or has been silent for too long; see `_GOODBYE_S`.
        """
        self._await_goodbye()
        if not self._requests.half_closed:
            with self._goodbye:
                await self._receive_all(beside=False)

    def _stop(self, _error: ScannerError) -> None:
        self._scope.cancel()

    async def _receive_all(self, *, beside: bool = True) -> None:
        # Beside the sending task, which does the stream's work, waiting here holds nothing up.
        while (message := await self._stream.receive(attributed=not beside)) is not None:
            now = trio.current_time()
            self._goodbye_s = min(max(self._goodbye_s, 2 * (now - self._heard_at)), _GOODBYE_S_MAX)
            self._heard_at = now
            self._await_goodbye()
            if self._requests.receive(message):
                self._whole_blocks.granted(self._stream.credit.available)
                self._wake()
            await pass_turn(self._demand_turns.after(self._stream.credit.sent))
        self._requests.receive_end()
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _take_first_demand(self) -> None:
        """Take the demand that came with the open, if one did: the first step need not wait for the other task."""
        try:
            message = self._stream.receive_nowait()
        except trio.WouldBlock:
            return
        if message is None:
            self._requests.receive_end()
        elif self._requests.receive(message):
            self._whole_blocks.granted(self._stream.credit.available)
            self._wake()

    async def _send_first(self) -> None:
        """Begin the scan, and send what its first step brings; a short one has come to its end then.

        Nothing is received meanwhile: a step, and what it sends, wait for nothing that the client says. So a short scan
        needs no task beside this one.
        """
        self._take_first_demand()
        started = self._pushed.started()
        started.heartbeat_interval_ms = round(self._limits.idle_interval_s * 1000)
        await self._send(pb.ScanResponse(started=started))
        reason = await self._notice_or_end()
        if reason is None and self._can_step:
            await self._step()
            reason = await self._notice_or_end()
        if reason is not None:
            await self._send_end(reason)

    @property
    def _can_step(self) -> bool:
        return (
            self._stream.writable
            and self._has_credit
            and not (self._scan.parked or self._pushed.pending or self._pushed.waiting)
        )

    async def _send_rest(self) -> None:
        while (reason := await self._notice_or_end()) is None:
            if not self._stream.writable:
                await self._wait_writable()  # nothing is read for a peer that takes nothing
            elif not self._has_credit:
                await self._wait_changed()
            elif self._scan.parked:
                await self._reopen()
            elif self._pushed.pending:
                if self._awaits_credit():
                    await self._wait_whole()
                else:
                    await self._send_batch()
            elif self._pushed.waiting:
                await self._wait_commit()
            else:
                await self._step()
        await self._send_end(reason)

    async def _send_end(self, reason: EndReason) -> None:
        self._scan.finish(linger=reason is EndReason.DRAINED)
        end = self._pushed.ended(reason)
        end.stalls = self._stream.stalls().encode().decode()
        await self._send(pb.ScanResponse(end=end))
        self.end_reason = reason

    def _await_goodbye(self) -> None:
        """Set the end of the wait for the client after the scan's end."""
        silence_s = self._goodbye_s if self._drained_by is None else _DRAINED_GOODBYE_S
        self._goodbye.deadline = trio.current_time() + silence_s

    async def _notice_or_end(self) -> EndReason | None:
        """Send what is due before anything else, then look whether the scan has ended."""
        notice = self._pushed.notice()
        if notice is not None:
            await self._send(notice)
        if self._drained_by is not None and self._pushed.endless:
            raise self._drained_by
        return self._end_reason()

    @property
    def _has_credit(self) -> bool:
        return self._stream.credit.available > 0

    def _end_reason(self) -> EndReason | None:
        if self._pushed.end is not None:
            return self._pushed.end
        if self._requests.draining and not (self._pushed.pending and self._has_credit):
            return EndReason.DRAINED
        if self._requests.half_closed and not self._has_credit:
            return EndReason.DRAINED
        return None

    async def _step(self) -> None:
        self._stalled_at = None
        if self._pushed.steps_take_long:
            await self._step_in_turn()
        else:
            self._step_now()
            await pass_turn()
        # Not in front of the step: the scan may be parked meanwhile, and is looked at again first.
        if self._scan.source.fetch is not None:
            with self._stream.blocked_on(StallReason.STORAGE):
                await self._scan.fetch()
        if not self._pushed.pending:  # Else a batch goes out now, or what it waits for says so.
            await self._send_heartbeat_if_due(pb.Heartbeat.STATE_SCANNING)

    async def _step_in_turn(self) -> None:
        first = self._slow_start.first
        await self._turns.take(self._stream.connection_id, first=first)
        try:
            if not self._scan.parked:  # It may have been meanwhile.
                self._step_now()
                if self._pushed.pending and not self._awaits_credit():
                    await self._send_one()
        except BaseException:
            self._turns.give_back()
            raise
        if self._pushed.end is None:
            # The first batch is on the line before the next step, a long one: the connection's writer has its turn in
            # the next round, and may come after this task there.
            rounds = 1 + first + BEGINNING_ROUNDS * self._stream.calls_beginning
            await self._turns.pass_on(self._stream.connection_id, rounds)
        else:
            self._turns.give_back()  # The end goes out with the last batch.

    def _step_now(self) -> None:
        wanted = self._slow_start.next_step_bytes(self._stream.credit.available)
        with self._stream.blocked_on(StallReason.STORAGE):
            self._pushed.step(min(wanted, self._turns.step_bytes))
        self._moved = True

    def _awaits_credit(self) -> bool:
        """Whether a block is pending that the credit would cut, and that waits for more of it; see `WholeBlocks`."""
        if self._requests.draining or self._requests.half_closed:
            return False
        whole_bytes = self._pushed.whole_bytes(self._limits.batch)
        return self._whole_blocks.wait(whole_bytes, self._stream.credit.available, trio.current_time())

    async def _wait_whole(self) -> None:
        with self._stream.blocked_on(StallReason.CREDIT), trio.move_on_at(self._whole_blocks.cut_at):
            await self._changed.wait()

    async def _send_batch(self) -> None:
        self._stalled_at = None
        await self._send_one()
        # Sending does not wait while the send buffer has room, and a block may be cut into many batches.
        await pass_turn()

    async def _send_one(self) -> None:
        parts = self._pushed.take(self._stream.credit.available, self._limits.batch)
        self._whole_blocks.sent(trio.current_time())
        await self._stream.send_counted(*parts)
        self._sent()

    async def _wait_writable(self) -> None:
        with self._park_timer.parks(self, self._park_at()):
            await self._stream.wait_writable()

    async def _wait_commit(self) -> None:
        """Wait for the next commit, or for the client to say something. Nothing holds the scan up meanwhile."""
        self._stalled_at = None
        if self._moved:
            with trio.move_on_at(self._heartbeat_at):
                await self._changed.wait()
            await self._send_heartbeat_if_due(pb.Heartbeat.STATE_WAITING_DATA)
            return
        with self._idle_tails.idle(self._stream.connection_id, self):
            await self._changed.wait()
        if self._beat_due:
            self._beat_due = False
            await self._send_heartbeat(pb.Heartbeat.STATE_WAITING_DATA)

    def beat(self) -> None:
        """Called while the scan waits for a commit: say where it is, and wake the scan's task only if that fails."""
        try:
            if self._stream.writable:
                self._stream.send_nowait(self._heartbeat(pb.Heartbeat.STATE_WAITING_DATA))
                self._sent()
                return
        except Exception:
            # All tails have one timer: what is wrong with this one is for its own task to find, and to fail from.
            self._beat_due = True
        self._wake()

    async def _wait_changed(self) -> None:
        with self._stream.blocked_on(StallReason.CREDIT):
            with trio.move_on_at(min(self._heartbeat_at, self._park_at())):
                await self._changed.wait()
        self._park_if_due()
        await self._send_heartbeat_if_due(pb.Heartbeat.STATE_WAITING_CREDIT)

    def _park_at(self) -> float:
        """When to park, if nothing can be sent until then; the time runs from the first call after something could."""
        if self._stalled_at is None:
            self._stalled_at = trio.current_time()
        return math.inf if self._scan.parked else self._stalled_at + self._limits.park_after_s

    def _park_if_due(self) -> None:
        if trio.current_time() >= self._park_at():
            self._scan.park()
            self._slow_start.restart()

    def park(self) -> None:
        """Called while the scan waits for its peer to take something: it holds storage no longer."""
        try:
            self._park_if_due()
        except Exception as error:  # All scans have one timer: this one ends, and the others go on.
            _logger.exception("a scan could not be parked")
            self.stop(InternalError(f"the scan could not be parked: {error}"))

    async def _reopen(self) -> None:
        tried_at = trio.current_time()
        with self._stream.blocked_on(StallReason.STORAGE):
            try:
                # A commit may be under way, or a whole share of a transaction: that takes as long as it does.
                await run_with_companion(self._scan.unpark, self._keep_beating)
            except (TooManyScans, TooManyFiles):
                # It was admitted once, and does not fail for being slow: it waits for its turn. Its bucket, which
                # nobody has read meanwhile, may have closed its files for others.
                await trio.sleep_until(tried_at + min(self._limits.heartbeat_interval_s, REOPEN_INTERVAL_S))
        await self._send_heartbeat_if_due(pb.Heartbeat.STATE_SCANNING)

    async def _keep_beating(self) -> NoReturn:
        """Send heartbeats beside something that waits."""
        interval_s = self._limits.heartbeat_interval_s
        while True:
            await self._send_heartbeat_if_due(pb.Heartbeat.STATE_SCANNING)
            now = trio.current_time()
            # It is due still where the peer takes nothing now.
            await trio.sleep_until(self._heartbeat_at if self._heartbeat_at > now else now + interval_s)

    @property
    def _heartbeat_at(self) -> float:
        return self.sent_at + self._limits.heartbeat_interval_s

    async def _send_heartbeat_if_due(self, state: pb.Heartbeat.State) -> None:
        if trio.current_time() >= self._heartbeat_at:
            await self._send_heartbeat(state)

    async def _send_heartbeat(self, state: pb.Heartbeat.State) -> None:
        if self._stream.writable:
            await self._stream.send(self._heartbeat(state))
            self._sent()

    def _heartbeat(self, state: pb.Heartbeat.State) -> bytes:
        heartbeat = self._pushed.heartbeat()
        heartbeat.state = state
        return self._limits.seal(pb.ScanResponse(heartbeat=heartbeat).SerializeToString())

    async def _send(self, response: pb.ScanResponse) -> None:
        await self._stream.send(self._limits.seal(response.SerializeToString()))
        self._sent()
        # So a tail says soon that it waits: to be cut after that does not use its retries up.
        self._moved = True

    def _sent(self) -> None:
        self.sent_at, self._moved = trio.current_time(), False
