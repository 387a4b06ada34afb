"""Fairness: what calls share, and in what pieces each gets its part.

One event loop runs all calls, and a task keeps it until it waits. So long work is cut into pieces of a few
milliseconds, and after each piece every other task that can run has a turn (`pass_turn`).

    shared            among                a piece is
    the event loop    push scans, pages    one step of the source: `block_rows_max`, `block_bytes_max` of the config;
                                           of push scans that step together less (`StepTurns.step_bytes`); or one batch
                      writes               `write_slice_rows_max` rows encoded
                      point reads          the same of keys, or what `Lookup` reads at once
                      demands              one message, for 64 KiB sent or for eight turns of the others
                                           (`DemandTurns`)
                      calls on many        sixteen buckets (`pass_turn_among`)
                      buckets
                      steps of rows        one in each pass of the loop (`StepTurns`)
    disk and decoder  push scans           what the consumer has shown that it takes (`SlowStart`)
                      pages                what is missing on the page (`page_step_bytes`)
    snapshots         parked scans         one attempt in `REOPEN_INTERVAL_S`

Bytes on a connection are shared out by the transport.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import Final

import trio

DEMAND_TURNS: Final = 8
"""Turns of every other task after a demand that was not earned."""
_BUCKETS_AT_ONCE: Final = 16
"""Looked at without a turn of the others: each costs some point reads."""
_DEMAND_BYTES: Final = 64 * 1024
"""Octets sent that earn a demand."""
BEGINNING_ROUNDS: Final = 6
"""Rounds of the loop without a step, beside the usual one, where calls of the connection wait to begin. It is what each
of them waits for (`transport.fairness`): so a call begins with each step, and not with every sixth. Scans of other
connections do not wait for it: who opens calls without an end would leave them little."""
REOPEN_INTERVAL_S: Final = 1.0
"""How often a parked scan that finds no room for its snapshot tries again."""
_FIRST_STEP_BYTES: Final = 48 * 1024
"""A batch of them is sent at once on a new connection, too, which takes 64 KiB by TCP as by HTTP/2: the rest of a
longer one would wait until the next step, a long one, has ended. Less would be all overhead."""
_STEP_GROWTH: Final = 4
"""The second batch is what a socket takes at once (half of `near_send_buffer_bytes`; of all of that it often takes a
part): the rest of a longer one would wait for the third step, so that rows come at once and then none for as long as
two whole steps take. Each step costs server and client something beside its rows, so steps do not grow by less."""
_FIRST_STEPS_MAX: Final = 8
"""First steps in a row while further ones wait: half of what the further one reads (`_FIRST_STEP_BYTES`,
`_SHARED_STEP_BYTES_MIN`). At three, a third of what 64 new scans waited for were second steps of the quicker ones."""
_ROUND_BYTES: Final = 4 << 20
"""Stored bytes that all scans read which take their steps in turns, until each has had one."""
_SHARED_STEP_BYTES_MIN: Final = 704 * 1024
"""Of a step in turns, however many take them: 8192 rows of 86 bytes. A step costs server and client something beside
its rows, so scans of many small steps are slow ones."""
_WHOLE_BLOCKS: Final = 2
"""A consumer that has granted so many at a time has one of them at least to go on with when the next one waits."""
_WHOLE_WAIT_S: Final = 0.02
"""So long a block waits for credit, in seconds."""
_CUTS_MAX: Final = 63
"""Blocks that are cut before one waits again."""
_STEP_BYTES_MAX: Final = 1 << 30
"""More than any source reads in one step."""
_PAGE_STEPS: Final = 8
"""A step for a page reads at least this part of the page."""


async def pass_turn(turns: int = 1) -> None:
    """Let every other task that can run have its turn, so many times.

    Cancellation:
        No effect.
    """
    for _ in range(turns):
        await trio.lowlevel.checkpoint()


async def pass_turn_among(number: int) -> None:
    """Let every other task have its turn in a call that looks at one bucket after the other, every sixteenth time.

    Args:
        number: Of those that were looked at.

    Cancellation:
        No effect.
    """
    if number % _BUCKETS_AT_ONCE == _BUCKETS_AT_ONCE - 1:
        await pass_turn()


class DemandTurns:
    """The turns of every other task that a demand costs the one who listens to it.

    Receiving does not wait while a message is buffered, and one DATA frame may bring hundreds; no consumer needs more
    than one in a while, so one that floods gets fewer turns than the others. One that takes what it has asked for earns
    its demands by that: eight rounds of the event loop cost as much as a batch of a megabyte.
    """

    __slots__ = ("_earned_at",)

    def __init__(self) -> None:
        self._earned_at = 0

    def after(self, sent_bytes: int) -> int:
        """How many turns of the others follow a demand that has just come; 0: none.

        Args:
            sent_bytes: Octets that were sent on the stream so far.
        """
        if sent_bytes - self._earned_at < _DEMAND_BYTES:
            return DEMAND_TURNS
        self._earned_at = sent_bytes
        return 0


class StepTurns:
    """Whose step is next, where each takes milliseconds: one in each pass of the event loop, first come first served.

    If all took theirs in the same pass, whatever needs several passes would wait for as many rounds of all of them: a
    new scan needs about six until its first row, which is a second beside 64 scans.

    Invariants:

    1. From one step to the next every other task that can run has its turn.
    2. While there are both, eight first steps come to one further, which reads twice as much at most: neither many
       running scans nor many new ones keep the others waiting.
    3. A connection whose calls begin may have quiet rounds behind its steps, but no step of another one waits for them.
    4. The more wait, the smaller the steps are (`step_bytes`), down to a least size: a scan that steps alone pays for
       few steps, and a round of many does not take longer for it.
    """

    __slots__ = ("_first", "_firsts_in_row", "_further", "_taken", "_waiting")

    def __init__(self) -> None:
        self._taken = False
        self._first: deque[trio.Event] = deque()
        self._further: deque[trio.Event] = deque()
        self._waiting: Counter[int] = Counter()
        """Of each connection that has any: how many wait."""
        self._firsts_in_row = 0

    @property
    def step_bytes(self) -> int:
        """Stored bytes that the step which is taken now should read at most; as many as it likes if nobody waits."""
        waiting = len(self._first) + len(self._further)
        return max(_SHARED_STEP_BYTES_MIN, _ROUND_BYTES // (1 + waiting)) if waiting else _STEP_BYTES_MAX

    async def take(self, connection_id: int, *, first: bool) -> None:
        """Wait for a turn; it must be passed on, or given back.

        Args:
            connection_id: Of the scan.
            first: Whether it is for the first step of a scan.

        Waits:
            For the turns of those before; at once, without a checkpoint, if there are none.

        Cancellation:
            There is no turn to pass on.
        """
        if not self._taken:
            self._taken = True
            return
        turn = trio.Event()
        waiting = self._first if first else self._further
        waiting.append(turn)
        self._waiting[connection_id] += 1
        try:
            await turn.wait()
        except BaseException:
            if turn.is_set():
                self.give_back()
            else:
                waiting.remove(turn)
            raise
        finally:
            self._waiting[connection_id] -= 1
            if not self._waiting[connection_id]:
                del self._waiting[connection_id]

    async def pass_on(self, connection_id: int, rounds: int = 1) -> None:
        """After a step: let every other task have its turns, and then one of those that wait take its step.

        Args:
            connection_id: Of the scan.
            rounds: Of the event loop until then, above 0; one only as soon as a scan of another connection waits.

        Cancellation:
            The turn is passed on all the same.
        """
        passed = False
        try:
            while rounds > 1 and not self._others_wait(connection_id):
                await trio.lowlevel.checkpoint()
                rounds -= 1
            # Whoever is woken runs in the next round.
            passed = self._wake_next()
            await trio.lowlevel.checkpoint()
        finally:
            # Kept until here if nobody waited, so that who comes in the same round waits for the next.
            if not passed:
                self.give_back()

    def give_back(self) -> None:
        """Without a step, or after the last one: somebody else may step at once."""
        if not self._wake_next():
            self._taken = False

    def _others_wait(self, connection_id: int) -> bool:
        return len(self._waiting) > (connection_id in self._waiting)

    def _wake_next(self) -> bool:
        if not self._first and not self._further:
            return False
        first = bool(self._first) and not (self._further and self._firsts_in_row >= _FIRST_STEPS_MAX)
        self._firsts_in_row = self._firsts_in_row + 1 if first else 0
        (self._first if first else self._further).popleft().set()
        return True


class SlowStart:
    """The size of a push scan's steps: small at first, and after a park.

    A consumer that asks for little and then takes nothing costs one small read; one that goes on taking soon gets
    steps as large as its source makes them, and one that has room for them from the fourth step on.
    """

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = 0
        """Of the last step; 0: there was none."""

    @property
    def first(self) -> bool:
        """Whether the next step is the first one, or the first after a park."""
        return not self._bytes

    def next_step_bytes(self, credit_bytes: int) -> int:
        """Stored bytes to read in the next step: 48 KiB, then twice as many; four times if the credit allows.

        Args:
            credit_bytes: Credit left. The first step reads 48 KiB whatever it is.
        """
        last = self._bytes
        wanted = min(_STEP_GROWTH * last, max(credit_bytes, 2 * last), _STEP_BYTES_MAX)
        self._bytes = wanted or _FIRST_STEP_BYTES
        return self._bytes

    def restart(self) -> None:
        """Begin anew: the consumer has stalled."""
        self._bytes = 0


class WholeBlocks:
    """Whether a block that can go out as it lies is cut where the credit ends, or waits for more.

    Cutting decodes it and encodes both parts, which takes longer than all else that is done for it. A consumer that
    takes what it has asked for grants more within milliseconds, and has a block at least to go on with meanwhile. So a
    block waits, but not for long, and only where the consumer has once granted two blocks at a time. Who grants more
    later than that, over a long line or because it waits for the last octet, gets more blocks cut before one waits
    again: one, then three, then seven, up to `_CUTS_MAX`.
    """

    __slots__ = ("_cuts", "_cuts_left", "_room_bytes", "cut_at")

    def __init__(self) -> None:
        self._room_bytes = 0
        self._cuts = 0
        self._cuts_left = 0
        self.cut_at = math.inf
        """When the block that waits is cut, seconds of the clock of `wait`."""

    def granted(self, available_bytes: int) -> None:
        """Credit was granted; so much is left now."""
        self._room_bytes = max(self._room_bytes, available_bytes)

    def wait(self, block_bytes: int, available_bytes: int, now: float) -> bool:
        """Whether to wait until `cut_at`, or for credit, instead of sending.

        Args:
            block_bytes: Message of the block; 0: it does not go out as it lies.
            available_bytes: Credit left.
            now: Any clock, in seconds.
        """
        if block_bytes <= available_bytes or _WHOLE_BLOCKS * block_bytes > self._room_bytes:
            return False
        if self.cut_at == math.inf:
            if self._cuts_left:
                self._cuts_left -= 1
                return False
            self.cut_at = now + _WHOLE_WAIT_S
        return now < self.cut_at

    def sent(self, now: float) -> None:
        """Something was sent, the block or a part of it."""
        if self.cut_at != math.inf:
            self._cuts = self._cuts // 2 if now < self.cut_at else min(2 * self._cuts + 1, _CUTS_MAX)
            self._cuts_left = self._cuts
            self.cut_at = math.inf


def page_step_bytes(page_bytes: int, pending_bytes: int) -> int:
    """Stored bytes to read in the next step for a page whose rest is thrown away.

    Args:
        page_bytes: Of the page, above 0.
        pending_bytes: Read for it so far.
    """
    return max(page_bytes - pending_bytes, page_bytes // _PAGE_STEPS, 1)
