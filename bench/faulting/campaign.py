"""Runs cases one after another, each in a process of its own: a crash or a hang is a verdict, and not our end."""

from __future__ import annotations

import multiprocessing
import queue
import random
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from bench.faulting.case import Case, Verdict
from bench.faulting.damage import KINDS
from bench.faulting.history import build
from bench.faulting.truth import Built
from bench.harness.errors import BenchFailed

CASES_PER_HISTORY: Final = 50
_HANGS_AFTER_S: Final = 180.0
"""A case takes a second; only one that waits for ever takes this long."""


def run_cases(seed: int, cases: range, jobs: int = 1) -> Iterator[Verdict]:
    """Run cases.

    Args:
        seed: Chooses histories and faults.
        cases: Their numbers. Each is the same case, whichever others are run.
        jobs: How many histories at a time, each in a directory of its own.

    Yields:
        The verdict of each; those of one history in order.

    Raises:
        BenchFailed: A history went wrong before there was any fault.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["bench.faulting.case"])
    histories: dict[int, list[int]] = {}
    for case in cases:
        histories.setdefault(case // CASES_PER_HISTORY, []).append(case)
    verdicts = queue.SimpleQueue[Verdict | None]()
    left = threading.Event()

    def run_history(number: int) -> None:
        try:
            for verdict in _run_history(context, seed, number, histories[number]):
                verdicts.put(verdict)
                if left.is_set():
                    break
        finally:
            verdicts.put(None)

    with ThreadPoolExecutor(jobs) as pool:
        running = [pool.submit(run_history, number) for number in histories]
        try:
            for _ in running:
                while (verdict := verdicts.get()) is not None:
                    yield verdict
            for each in running:
                each.result()
        finally:
            left.set()  # Ctrl-C waits for a case, not for a whole history.
            pool.shutdown(cancel_futures=True)


def _run_history(
    context: multiprocessing.context.ForkServerContext, seed: int, number: int, cases: Sequence[int]
) -> Iterator[Verdict]:
    """Run the cases that begin with one history."""
    with tempfile.TemporaryDirectory(prefix="weir-faults-") as name:
        place = Path(name)
        # An unprivileged server must get to its data.
        place.chmod(0o711)
        built = _in_child(context, _build, f"{seed} {number}", place)
        if not isinstance(built, Built):
            raise BenchFailed(f"the history {number} of seed {seed} failed: {built}")
        for case in cases:
            yield _run_case(context, built, place, seed, case)


def kind_of(seed: int, case: int) -> str:
    """The kind of a case's fault: all kinds in turn, in an order that the seed chooses."""
    turn, at = divmod(case, len(KINDS))
    order = list(KINDS)
    random.Random(f"{seed} order {turn}").shuffle(order)
    return order[at]


def _run_case(
    context: multiprocessing.context.ForkServerContext, built: Built, place: Path, seed: int, case: int
) -> Verdict:
    kind = kind_of(seed, case)
    work = place / "work"
    work.mkdir(0o711)
    try:
        found = _in_child(context, _judge, built, place, work, case, kind, f"{seed} {case}")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if isinstance(found, Verdict):
        return found
    return Verdict(case, kind, wrong=[str(found)])


def _in_child(context: multiprocessing.context.ForkServerContext, act: object, *arguments: object) -> object:
    """The result of a function in a process of its own, or what became of that."""
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=act, args=(theirs, *arguments))  # type: ignore[arg-type]
    child.start()
    theirs.close()
    try:
        if not ours.poll(_HANGS_AFTER_S):
            return f"it hangs: nothing for {_HANGS_AFTER_S:.0f} s"
        try:
            return ours.recv()
        except EOFError:
            child.join()
            return f"it crashed with status {child.exitcode}"
    finally:
        child.kill()
        child.join()
        ours.close()


def _build(answer: Connection, seed: str, place: Path) -> None:
    answer.send(build(seed, place))


def _judge(
    answer: Connection, built: Built, place: Path, work: Path, case: int, kind: str, seed: str
) -> None:
    answer.send(Case(built, place, work, case, kind, seed).run())
