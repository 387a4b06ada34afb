"""One run: a server, its network, writers, scanners and strikes, in one seeded trio run on a virtual clock.

Determinism, and where it comes from:

1. Time is a `MockClock` that jumps: nothing ever waits for real.
2. trio runs its tasks in an order of its own generator, which is seeded (the switch that Hypothesis uses).
3. Everything else that is random is drawn from the seed (`Workload.rng`), the secrets that the server makes included.
   Threads that the process has besides, the one of `scanner.sync` say, draw from others.
4. No threads, no sockets, no disk but the overlay's spill files and images; the store is in memory and does not block.
   Whether a block of an image is cached is drawn from the seed. The cyclic garbage collector is held back meanwhile:
   what it finalizes, and when, depends on everything that ran before.
"""

from __future__ import annotations

import gc
import logging
import os
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import trio
import trio.testing

from bench.harness.scheduling import seeded_scheduling
from bench.simulation.actors import Actors
from bench.simulation.group_validators import Written
from bench.simulation.history import History
from bench.simulation.model import Model
from bench.simulation.network import Connection, Fault, Network
from bench.simulation.readers import GROUP
from bench.simulation.serving import Serving
from bench.simulation.storage import REFUSED
from bench.simulation.tables import TABLE
from bench.simulation.threads import long_turns
from bench.simulation.validators import Violation, judge
from bench.simulation.workload import Workload
from scanner.storage.images.reader import Image

if TYPE_CHECKING:
    from scanner.storage.images.reader import ImageBlock
    from scanner.storage.interface import GroupState, Mutation
    from scanner.storage.records import Entry

PATIENCE_S = 600.0
"""Virtual time within which everybody comes to an end."""
QUIET_S = 300.0
"""Virtual time that a server has to let go of everything: keepalive, lingering, times to live included."""
QUIET_POLL_S = 0.5
STEPS_MAX = 200_000
"""Steps of tasks in one run; some thousands are usual, and some ten thousand where somebody polls a silent server."""
_STEPS_A_SECOND = 1_000
LOGGERS = ("scanner", "weir")
_MEMORY = "/dev/shm"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run was."""

    seed: int
    history: History
    violations: list[Violation]

    @property
    def fingerprint(self) -> str:
        """Equal for equal runs."""
        return self.history.fingerprint()


def simulate(seed: int, shape: Callable[[Workload], None] | None = None) -> Outcome:
    """Run one seed and judge it.

    Args:
        seed: Decides everything.
        shape: Changes what the seed has decided, to look at one thing at little cost.

    Raises:
        Exception: Something failed that is neither a scan nor a write: the run itself is broken.
    """
    with _deterministic(seed), _logged_errors() as logged, ExitStack() as stack:
        workload = Workload(seed)
        if shape is not None:
            shape(workload)
        images = Path(stack.enter_context(_image_directory())) if workload.image_rows else None
        world = World(workload, images)
        trio.run(world.run, clock=trio.testing.MockClock(autojump_threshold=0))
    # Of what the disk refuses the server may well say so.
    world.history.logged = [message for message in logged if REFUSED not in message]
    world.history.found += [("live", "the event loop", stall) for stall in world.serving.faults.stalls]
    return Outcome(seed, world.history, judge(world.history, world.model, world.models))


@contextmanager
def _deterministic(seed: int) -> Iterator[None]:
    """Take chance out of this thread, for the length of a run; the others keep theirs, and draw nothing of ours."""
    collecting = gc.isenabled()
    token_bytes, randbelow = secrets.token_bytes, secrets.randbelow
    here, rng = threading.get_ident(), Random(f"{seed} secrets")

    def is_here() -> bool:
        return threading.get_ident() == here

    read_block, cached = Image.read_block, Random(f"{seed} cached")

    def read_by_chance(self: Image, number: int) -> ImageBlock | None:
        if not is_here():
            return read_block(self, number)
        return self.fetch(number) if cached.random() < 0.5 else None

    Image.read_block = read_by_chance  # type: ignore[method-assign]
    secrets.token_bytes = lambda nbytes=None: (
        rng.randbytes(nbytes or 32) if is_here() else token_bytes(nbytes)
    )
    secrets.randbelow = lambda exclusive_upper_bound: (
        rng.randrange(exclusive_upper_bound) if is_here() else randbelow(exclusive_upper_bound)
    )
    gc.disable()
    try:
        with seeded_scheduling(seed):
            yield
    finally:
        secrets.token_bytes, secrets.randbelow = token_bytes, randbelow
        Image.read_block = read_block  # type: ignore[method-assign]
        if collecting:
            gc.enable()


def _image_directory() -> tempfile.TemporaryDirectory[str]:
    """Where images are, in memory if the system has a place for that: each is made durable, which takes its time."""
    return tempfile.TemporaryDirectory(prefix="weir-images-", dir=_MEMORY if os.path.isdir(_MEMORY) else None)


@contextmanager
def _logged_errors() -> Iterator[list[str]]:
    """Catch what is logged as an error in this thread: nobody foresaw it."""
    logged: list[str] = []
    here = threading.get_ident()
    handler = logging.Handler(logging.ERROR)
    handler.addFilter(lambda record: record.thread == here)
    handler.emit = lambda record: logged.append(_message_of(record))  # type: ignore[method-assign]
    loggers = [logging.getLogger(name) for name in LOGGERS]
    propagating = [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield logged
    finally:
        for logger, propagate in zip(loggers, propagating, strict=True):
            logger.removeHandler(handler)
            logger.propagate = propagate


def _message_of(record: logging.LogRecord) -> str:
    error = record.exc_info[1] if record.exc_info else None
    return record.getMessage() + ("" if error is None else f" ({type(error).__name__}: {error})")


class _Bound(trio.abc.Instrument):
    """Ends what goes round in circles without any time passing.

    Args:
        scope: Cancelled after `STEPS_MAX` steps of tasks. From then on a second passes every `_STEPS_A_SECOND`: who
            says goodbye has a time for it, and what is on its way arrives.
        clock: Of the run.
    """

    def __init__(self, scope: trio.CancelScope, clock: trio.testing.MockClock) -> None:
        self._scope = scope
        self._clock = clock
        self._steps = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """See trio."""
        self._steps += 1
        if self._steps > STEPS_MAX:
            self._scope.cancel()
            if self._steps % _STEPS_A_SECOND == 0:
                self._clock.jump(1.0)


class World:
    """Everything of one run.

    Args:
        workload: What it is to be.
        images: Directory of images; None: there are none.
    """

    def __init__(self, workload: Workload, images: Path | None = None) -> None:
        self._workload = workload
        self.history = History()
        self.network = Network(self._told)
        self.serving = Serving(
            workload,
            self.network,
            self.history,
            self._committed,
            self._group_written,
            images,
            self._other_committed,
        )
        self.serving.store.create_table(workload.rows.description)
        self.model = Model(workload.rows, self.serving.store.row_codec(TABLE).decode)
        self.models = {self.serving.store.table_id(TABLE): self.model}
        """By id, those of all tables that were written to."""
        self._actors = Actors(workload, self.network, self.serving, self.history, self.model, self.models)

    async def run(self) -> None:
        """Run it to its end."""
        tasks = trio.lowlevel.current_statistics().tasks_living
        self._actors.load()
        with long_turns(self._workload.holds, self._workload.rng("turns")):
            async with trio.open_nursery() as nursery:
                await self.serving.start(nursery)
                await self._run_actors(nursery)
                await self._wait_quiet()
                await self.serving.kill("stopped")
        self.history.left["tasks"] = trio.lowlevel.current_statistics().tasks_living - tasks

    async def _run_actors(self, servers: trio.Nursery) -> None:
        with trio.move_on_after(PATIENCE_S) as scope:
            clock = trio.lowlevel.current_clock()
            assert isinstance(clock, trio.testing.MockClock)
            trio.lowlevel.add_instrument(_Bound(scope, clock))
            await self._actors.run(servers)
        if scope.cancelled_caught:
            self.history.stuck += self._actors.running

    async def _wait_quiet(self) -> None:
        """Ask what is held until it is nothing, or the time for that is over."""
        deadline = trio.current_time() + QUIET_S
        # Clients have just left; nothing announces when the last of what they held is gone.
        while any((left := self.serving.held()).values()) and trio.current_time() < deadline:  # noqa: ASYNC110
            await trio.sleep(QUIET_POLL_S)
        self.history.left |= left
        self.history.add("server", "quiet", **left)

    def _told(self, connection: Connection, fault: Fault) -> None:
        self.history.add(connection.name, fault.value)

    def _committed(
        self, bucket: int, start: int, end: int, mutations: Sequence[Mutation], entry: Entry | None
    ) -> None:
        self.model.commit(bucket, start, end, mutations, entry, trio.current_time())
        self.history.add("storage", "committed", bucket=bucket, start=start, end=end)
        self.history.group.ends.append((trio.current_time(), {bucket: start}))

    def _other_committed(
        self,
        table_id: int,
        bucket: int,
        start: int,
        end: int,
        mutations: Sequence[Mutation],
        entry: Entry | None,
    ) -> None:
        model = self.models.setdefault(table_id, Model(self._workload.rows, self.model.decode))
        model.commit(bucket, start, end, mutations, entry, trio.current_time())
        self.history.add("storage", "committed", table=table_id, bucket=bucket, start=start, end=end)

    def _group_written(self, bucket: int, states: Mapping[str, GroupState | None]) -> None:
        state = states.get(GROUP)
        if state is not None:
            self.history.group.written.append(Written(bucket, state.epoch, state.position))
            self.history.add(
                "storage", "keeps position", bucket=bucket, epoch=state.epoch, position=state.position
            )
