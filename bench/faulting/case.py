"""One case: a copy of a data directory, one fault, two starts of the server, and a verdict on everything it says."""

from __future__ import annotations

import logging
import os
import random
import resource
import shutil
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

import pyarrow as pa
import trio

from bench.faulting.damage import NOBODY, Fault, inflict, restore_modes
from bench.faulting.history import NOW, OLDER
from bench.faulting.reading import (
    MODELS,
    Reading,
    WrongAnswer,
    read_bucket,
    read_lease,
    read_mark,
    resume,
    serving,
    write_rows,
)
from bench.faulting.truth import Built, Mark, Rows, TableTruth, after
from scanner.errors import (
    InternalError,
    LeaseNotFound,
    ScanIncomplete,
    ScannerError,
    ServerUnavailable,
    SnapshotLost,
    TableNotFound,
)
from scanner.storage.rocksdb.store import RocksStore

if TYPE_CHECKING:
    import scanner
    from scanner.client.table import Table
    from scanner.server.server import Server

_T = TypeVar("_T")


class _OfTable(Protocol):
    @property
    def table(self) -> str: ...


class _Leased(NamedTuple):
    table: str
    lease_id: str
    state: Mark


_K = TypeVar("_K", bound=_OfTable)
_KEPT_READ: Final = 2
_ROWS_WRITTEN: Final = 2
_WRITES_MAX: Final = 12
"""More than the changes that an older copy lacks."""
_SUSPECT: Final = (InternalError, ServerUnavailable, ScanIncomplete)
"""What a client may not get because of a fault on the disk: it tells nothing of it."""


@dataclass(slots=True)
class Verdict:
    """What came of a case."""

    case: int
    kind: str
    what: str = ""
    outcomes: Counter[str] = field(default_factory=Counter)
    """What the reads and writes ended with: `right`, `older`, `shorter`, or the name of an error."""
    wrong: list[str] = field(default_factory=list)
    """What must not be; empty: all is well."""
    refused: str = ""
    """Why the server did not start, the first time."""


class Lines(logging.Handler):
    """What the server logged, from warnings on."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        self.tracebacks: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        line = record.getMessage()
        self.lines.append(line)
        if record.exc_info is not None:
            self.tracebacks.append(f"{line}: {record.exc_info[1]!r}")


@dataclass(slots=True)
class _BucketNow:
    """What is known of a bucket since the fault."""

    states: list[tuple[int, Rows]] = field(default_factory=list)
    """Any of which it may show; empty: it was never read."""
    lost: int = 0
    """Changes that it is known to have lost."""


class Case:
    """One case, in a process of its own.

    Args:
        built: What the history made.
        place: Where: the directory with `now` and the older copies.
        work: A directory for the copy; made here.
        case: Its number, for the verdict.
        kind: Of the fault.
        seed: Chooses the rest.
    """

    def __init__(self, built: Built, place: Path, work: Path, case: int, kind: str, seed: str) -> None:
        self._truth = built.truth
        self._older_ends = built.older_ends
        self._place = place
        self._data = work / "data"
        self._rng = random.Random(seed)
        self._verdict = Verdict(case, kind)
        self._lines = Lines()
        self._now: dict[tuple[str, int], _BucketNow] = {}
        self._fault = Fault(kind=kind, what="")
        self._sample = self._rng.choice(sorted(built.truth.tables))

    def run(self) -> Verdict:
        """Do it all; what nobody foresaw is a finding."""
        shutil.copytree(self._place / NOW, self._data)
        older = sorted(self._place.glob(f"{OLDER}-*"))
        self._fault = fault = inflict(self._verdict.kind, self._data, older, self._rng)
        self._verdict.what = fault.what
        logging.getLogger().addHandler(self._lines)
        try:
            if fault.passing:
                # What Python loads late must be loaded before the limits are there.
                trio.run(_warm_up, self._data.with_name("warm"))
            with _limited(fault):
                self._start(first=True)
            if fault.unprivileged or fault.kind == "permission":
                restore_modes(self._data)
            self._start(first=False)
            self._require_counted()
        except Exception as error:
            self._say("".join(traceback.format_exception(error)[-4:]))
        finally:
            logging.getLogger().removeHandler(self._lines)
        for line in self._lines.tracebacks:
            self._say(f"the log has a traceback: {line}")
        return self._verdict

    def _say(self, what: str) -> None:
        self._verdict.wrong.append(what)

    def _start(self, *, first: bool) -> None:
        try:
            trio.run(self._serve, first)
        except BaseExceptionGroup as group:
            self._say(f"the server fell: {group!r} {group.exceptions!r}")
        except ScannerError as error:
            self._require_readable(error, "the start")
            if isinstance(error, _SUSPECT) and not self._fault.passing:
                self._say(f"the start failed with {error!r}")
            if first:
                self._verdict.refused = str(error)
                self._verdict.outcomes[f"start {type(error).__name__}"] += 1
            elif self._fault.passing:
                self._say(f"the fault is over, and the server does not start: {error}")
            elif not self._verdict.refused:
                self._say(f"the server has started, and does not start again: {error}")
        except OSError as error:
            # Of the case's own sockets, when there are no descriptors left.
            if not (first and self._fault.descriptors is not None):
                self._say(f"the start failed with {error!r}")

    async def _serve(self, first: bool) -> None:
        async with serving(self._data) as (server, client):
            await self._read_all(client, all_models=first, first=first)
            await self._read_kept(
                server, client, _KEPT_READ if first or not self._fault.units else 3 * _KEPT_READ
            )
            if first:
                await self._write_all(client)

    # Reading.

    async def _read_all(self, client: scanner.Client, *, all_models: bool, first: bool) -> None:
        names = await self._ask(client.tables, "the list of tables")
        if names is None:
            return
        for truth in [*self._truth.tables.values(), *self._truth.dropped.values()]:
            if self._is_to_come(truth):
                continue
            if truth.name not in {each.name for each in names}:
                self._require_table_logged(truth)
                continue
            if not self._is_looked_at(truth):
                continue
            table = await self._ask(partial(client.table, truth.name), f"table {truth.name}")
            if table is not None and table.table_id != truth.table_id:
                self._say(f"table {truth.name} has id {table.table_id}, and not {truth.table_id}")
            elif table is not None:
                for bucket in range(truth.buckets):
                    # The other ways to read take their time: of tables that the fault may have touched, or of one.
                    hit = self._is_hit(truth) or (truth.name == self._sample and not self._any_hit())
                    thorough = all_models and hit
                    models = MODELS if thorough else ("push",)
                    await self._read_bucket(table, truth, bucket, models, first=first)

    async def _read_bucket(
        self, table: Table, truth: TableTruth, bucket: int, models: tuple[str, ...], *, first: bool
    ) -> None:
        for model in models:
            where = f"{truth.name}/{bucket} by {model}"
            found = await self._ask(partial(read_bucket, table, truth.key, bucket, model), where)
            if found is None:
                if self._fault.passing and not first:
                    self._say(f"{where}: the fault is over, and it cannot be read")
                elif not self._fault.passing and self._any_hit() and not self._is_hit(truth):
                    self._say(f"{where}: the fault did not touch it, and it cannot be read")
                continue
            self._judge(truth, bucket, found, where)

    def _judge(self, truth: TableTruth, bucket: int, found: Reading, where: str) -> None:
        now = self._now.setdefault((truth.name, bucket), _BucketNow())
        if now.states:
            fitting = [state for state in now.states if self._is(found, *state)]
            if not fitting:
                told = [(end, len(rows)) for end, rows in now.states]
                self._say(f"{where}: {len(found.rows)} rows as of {found.offset}, after {told} (end, rows)")
            else:
                now.states = fitting
                self._verdict.outcomes["right"] += 1
            return
        ends = [end for end, rows in truth.states[bucket].items() if self._is(found, end, rows)]
        if not ends:
            self._say(f"{where}: {len(found.rows)} rows as of {found.offset}, which never was")
            return
        now.states = [(end, truth.states[bucket][end]) for end in ends]
        self._judge_end(truth, bucket, max(ends), where)

    @staticmethod
    def _is(found: Reading, end: int, rows: Rows) -> bool:
        return found.offset in (None, end) and found.rows == rows

    def _judge_end(self, truth: TableTruth, bucket: int, end: int, where: str) -> None:
        missing = truth.ends[bucket] - end
        if not missing:
            self._verdict.outcomes["right"] += 1
            return
        path = f"tables/{truth.table_id:06d}/{bucket:04d}"
        if any(not unit or path == unit or path.startswith(f"{unit}/") for unit in self._fault.units):
            assert self._fault.older is not None
            if end == self._older_ends[self._fault.older].get((truth.table_id, bucket)):
                self._verdict.outcomes["older"] += 1
                return
            self._say(f"{where}: ends at {end}, which is not where the older copy did")
        if self._fault.passing:
            self._say(f"{where}: {missing} changes are lost though nothing was damaged")
        said = f"{missing} acknowledged changes are lost"
        if not any(str(self._data / path) in line and said in line for line in self._lines.lines):
            self._say(f"{where}: {missing} changes are lost in silence")
        self._now[truth.name, bucket].lost = missing
        self._verdict.outcomes["shorter"] += 1

    def _require_table_logged(self, truth: TableTruth) -> None:
        if truth.name in self._truth.dropped:
            return
        self._verdict.outcomes["table not served"] += 1
        directory = f"{truth.table_id:06d}"
        if not any(directory in line for line in self._lines.lines):
            self._say(f"table {truth.name!r} is missing in silence")

    # What was kept before.

    async def _read_kept(self, server: Server, client: scanner.Client, count: int) -> None:
        """So many of each kind of the tables that the fault may have touched, and one of the others."""
        for mark in self._chosen(self._truth.marks, count):
            await self._read_state(client, mark, "as of a mark", read_mark)
        leased = [
            _Leased(state.table, lease_id, state)
            for lease_id, states in self._truth.leases.items()
            for state in states
        ]
        for _, lease_id, state in self._chosen(leased, count):
            await self._read_state(client, state, f"lease {lease_id}", partial(_read_leased, lease_id))
        for taken in self._chosen(self._truth.tokens, count):
            where = f"{taken.table}/{taken.bucket} behind a token of row {taken.ordinal}"
            rows = await self._ask(partial(resume, server, taken), where, soft=True)
            if rows is not None and rows != taken.rows:
                self._say(f"{where}: {len(rows)} other rows than the {len(taken.rows)} that were to come")

    def _chosen(self, kept: Sequence[_K], count: int) -> list[_K]:
        hit = [each for each in kept if self._is_hit(self._truth.tables[each.table])]
        others = [each for each in kept if not self._is_hit(self._truth.tables[each.table])]
        chosen = self._rng.sample(hit, min(count, len(hit)))
        return [*chosen, *self._rng.sample(others, min(len(others), 1 if hit else count))]

    def _is_looked_at(self, truth: TableTruth) -> bool:
        """Tables that the fault may have touched and one more; all, if it touched none by name."""
        return self._is_hit(truth) or truth.name == self._sample or not self._any_hit()

    def _is_to_come(self, truth: TableTruth) -> bool:
        """Whether everything is an older copy, of before the table was made."""
        if "" not in self._fault.units:
            return False
        assert self._fault.older is not None
        return (truth.table_id, 0) not in self._older_ends[self._fault.older]

    def _any_hit(self) -> bool:
        return any(map(self._is_hit, self._truth.tables.values()))

    def _is_hit(self, truth: TableTruth) -> bool:
        return f"{truth.table_id:06d}" in self._fault.what

    async def _read_state(
        self,
        client: scanner.Client,
        state: Mark,
        how: str,
        read: Callable[[Table, str, Mark], Awaitable[Reading]],
    ) -> None:
        where = f"{state.table}/{state.bucket} {how} ({state.offset})"
        table = await self._ask(partial(client.table, state.table), where, soft=True)
        if table is None:
            return
        key = self._truth.tables[state.table].key
        found = await self._ask(partial(read, table, key, state), where, soft=True)
        if found is not None:
            if (found.rows, found.offset, found.history) != (state.rows, state.offset, state.history):
                self._say(f"{where}: another state: {len(found.rows)} rows as of {found.offset}")
            self._verdict.outcomes[f"kept {how.split()[0]}"] += 1

    # Writing.

    async def _write_all(self, client: scanner.Client) -> None:
        for truth in filter(self._is_looked_at, self._truth.tables.values()):
            if self._is_to_come(truth):
                continue
            table = await self._ask(partial(client.table, truth.name), f"table {truth.name}")
            for bucket in range(truth.buckets if table is not None else 0):
                assert table is not None
                await self._write(table, truth, bucket)

    async def _write(self, table: Table, truth: TableTruth, bucket: int) -> None:
        """Write; where changes are gone, until others have their offsets, so that only histories tell them apart."""
        for _ in range(_WRITES_MAX):
            if not await self._write_once(table, truth, bucket):
                return
            if all(end > truth.ends[bucket] for end, _ in self._now[truth.name, bucket].states):
                return

    async def _write_once(self, table: Table, truth: TableTruth, bucket: int) -> bool:
        now = self._now.setdefault((truth.name, bucket), _BucketNow())
        keys = truth.keys_of(bucket)
        keys = self._rng.sample(keys, max(_ROWS_WRITTEN, len(keys) // 2))
        rows = [{truth.key: key, "text": f"after the fault {self._rng.random()}"} for key in keys]
        changed = {row[truth.key]: row for row in rows}
        # Of a bucket that could not be read the state is not known, but it is one of these.
        before = now.states or list(truth.states[bucket].items())
        written = [after(end, state, changed) for end, state in before]
        ranges = await self._ask(partial(write_rows, table, rows), f"a write to {truth.name}/{bucket}")
        if ranges is None:
            # Nothing is promised of a write that fails: it may be there, or not.
            if now.states:
                now.states = [*now.states, *written]
            return False
        known = bool(now.states)
        fitting = [
            (end, state)
            for (end, _), state in zip(before, written, strict=True)
            if [(bucket, state[0])] == [(at, after_it) for at, _, after_it in ranges]
        ]
        now.states = [state for _, state in fitting]
        if fitting and not known:
            # It could not be read, and takes writes: where it ended is known only now.
            self._judge_end(
                truth, bucket, max(end for end, _ in fitting), f"{truth.name}/{bucket} by a write"
            )
        if not now.states:
            ends = [end for end, _ in written]
            self._say(f"a write to {truth.name}/{bucket} made {ranges}, which should end at one of {ends}")
        return bool(now.states)

    def _require_counted(self) -> None:
        """After all, what is lost is counted in the bucket, and nothing else is."""
        try:
            with RocksStore.open(self._data) as store:
                for (name, bucket), now in self._now.items():
                    try:
                        counted = store.bucket(name, bucket).lost_changes
                    except ScannerError:
                        continue
                    if now.states and counted != now.lost:
                        self._say(f"{name}/{bucket} counts {counted} lost changes, and {now.lost} are lost")
        except ScannerError:
            return

    async def _ask(self, act: Callable[[], Awaitable[_T]], where: str, *, soft: bool = False) -> _T | None:
        """Ask for something; None if the answer is an error, which must be a good one."""
        try:
            return await act()
        except WrongAnswer as error:
            self._say(f"{where}: {error}")
        except ScannerError as error:
            self._require_readable(error, where)
            self._verdict.outcomes[type(error).__name__] += 1
            if isinstance(error, _SUSPECT) and not self._fault.passing:
                self._say(f"{where}: {error!r}")
            if not soft and isinstance(error, SnapshotLost | LeaseNotFound | TableNotFound):
                self._say(f"{where}: {error!r}")
        return None

    def _require_readable(self, error: ScannerError, where: str) -> None:
        text = str(error)
        if not text or "\n" in text or "Traceback" in text:
            self._say(f"{where}: an error that nobody can read: {text!r}")


async def _warm_up(data: Path) -> None:
    async with serving(data) as (_, client):
        table = await client.create_table(
            "warm", pa.schema([pa.field("id", pa.int64(), nullable=False)]), ["id"], 1
        )
        await write_rows(table, [{"id": 1}])
        for model in MODELS:
            await read_bucket(table, "id", 0, model)


async def _read_leased(lease_id: str, table: Table, key: str, state: Mark) -> Reading:
    return await read_lease(table, key, state.bucket, lease_id)


@contextmanager
def _limited(fault: Fault) -> Iterator[None]:
    """The limits of a fault, for the length of a block."""
    before = {kind: resource.getrlimit(kind) for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE)}
    if fault.descriptors is not None:
        used = max(map(int, os.listdir("/proc/self/fd")))
        limit = min(before[resource.RLIMIT_NOFILE][1], used + fault.descriptors)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[resource.RLIMIT_NOFILE][1]))
    if fault.file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault.file_bytes, before[resource.RLIMIT_FSIZE][1]))
    if fault.unprivileged:
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if fault.unprivileged:
            os.seteuid(0)
            os.setegid(0)
        for kind, limits in before.items():
            resource.setrlimit(kind, limits)
