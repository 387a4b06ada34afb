"""Servers and clients as processes of their own, for the length of a block, each with a pipe to the bench."""

from __future__ import annotations

import multiprocessing
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import psutil

from bench.harness.errors import BenchFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess

READY_S: Final = 60.0
ANSWER_S: Final = 600.0
AskedT = TypeVar("AskedT")
AnswerT = TypeVar("AnswerT")


class Peer:
    """A server that listens, and what it costs.

    Args:
        pid: Of its process.
        port: Of the loopback interface.
    """

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self._process = psutil.Process(pid)
        # The kernel's name of the CPU clock of another process: in nanoseconds, threads that have ended included.
        self._clock = (~pid << 3) | 2
        self.endpoint = f"127.0.0.1:{port}"
        self.port = port

    def cpu_s(self) -> float:
        """CPU seconds so far."""
        return time.clock_gettime(self._clock)

    def resident_bytes(self) -> int:
        """Resident memory now."""
        return int(self._process.memory_info().rss)

    def resident_bytes_max(self) -> int:
        """The most that it was, since the process began."""
        told = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        return 1024 * int(told.partition("VmHWM:")[2].split(maxsplit=1)[0])

    def disk_read_bytes(self) -> int:
        """That the process had fetched from the disk so far; what was in the page cache does not count."""
        return int(self._process.io_counters().read_bytes)


class Worker(Generic[AskedT, AnswerT]):
    """A client process that does what it is told, one after another."""

    def __init__(self, pipe: Any) -> None:
        self._pipe = pipe

    def do(self, asked: AskedT) -> AnswerT:
        """Have it done.

        Raises:
            BenchFailed: The process ended, or does not answer.
        """
        try:
            self._pipe.send(asked)
            if not self._pipe.poll(ANSWER_S):
                raise BenchFailed(f"no answer within {ANSWER_S:.0f} s: {asked}")
            answer: AnswerT = self._pipe.recv()
        except (EOFError, BrokenPipeError) as error:
            raise BenchFailed(f"the client ended, its last words are above: {asked}") from error
        return answer


def answer_all(commands: Connection, do: Callable[[Any], object]) -> None:
    """Do what comes over a pipe, and answer with what it gave, until None comes."""
    while (asked := commands.recv()) is not None:
        commands.send(do(asked))


@contextmanager
def running_process(target: Callable[..., None], *arguments: object) -> Iterator[tuple[SpawnProcess, Any]]:
    """Start a process with nothing of this one but its arguments and, as the last of them, a pipe; yields both.

    It is killed when the block ends.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        process.kill()
        process.join()
        ours.close()


@contextmanager
def running_peer(target: Callable[..., None], *arguments: object) -> Iterator[Peer]:
    """Start a server that tells its port over the pipe that it gets last.

    Raises:
        BenchFailed: It does not come up.
    """
    with running_process(target, *arguments) as (process, pipe):
        try:
            if not pipe.poll(READY_S):
                raise BenchFailed(f"{target.__name__} was not ready within {READY_S:.0f} s")
            port = pipe.recv()
        except EOFError as error:
            raise BenchFailed(f"{target.__name__} ended before it listened") from error
        assert process.pid is not None
        yield Peer(process.pid, port)


@contextmanager
def running_worker(target: Callable[..., None], *arguments: object) -> Iterator[Worker[Any, Any]]:
    """Start a client that takes what to do over the pipe that it gets last."""
    with running_process(target, *arguments) as (_, pipe):
        yield Worker(pipe)


@dataclass(slots=True)
class Written:
    """What a writer did during a block; known when that has ended."""

    rows: int = 0
    seconds: float = 0.0


@contextmanager
def running_writer(target: Callable[..., None], *arguments: object) -> Iterator[Written]:
    """Start a writer that sends something when it has begun, and its rows when it is told to end; for a block.

    Raises:
        BenchFailed: It does not begin, or fails.
    """
    written = Written()
    with running_process(target, *arguments) as (_, pipe):
        try:
            if not pipe.poll(READY_S):
                raise BenchFailed(f"{target.__name__} did not begin within {READY_S:.0f} s")
            pipe.recv()
            started = time.perf_counter()
            yield written
            pipe.send(None)
            if not pipe.poll(ANSWER_S):
                raise BenchFailed(f"{target.__name__} did not end within {ANSWER_S:.0f} s")
            written.rows, written.seconds = pipe.recv(), time.perf_counter() - started
        except EOFError as error:
            raise BenchFailed(f"{target.__name__} ended by itself") from error
