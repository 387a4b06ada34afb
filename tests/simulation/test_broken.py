"""Servers that are broken on purpose: each defect is found within a few seeds, by the validator that is there for it.

The defects are made here, by replacing one method of the product; nothing of it has a switch for them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from bench.simulation.group_tasks import ReaderTask, Stint, StintEnd
from bench.simulation.tables import Rows
from bench.simulation.transaction_tasks import TransactionTask
from bench.simulation.workload import (
    Behaviour,
    Client,
    Holds,
    ScannerTask,
    State,
    Strike,
    StrikeKind,
    TailStart,
    TailStop,
    TailTask,
    VisitorTask,
    Workload,
    WriterTask,
    fetched,
    tail_task,
)
from bench.simulation.world import simulate
from scanner import OffsetRange, ScanMode, ScanSource
from scanner.client.writer import Writer
from scanner.data.changes import change_rows
from scanner.data.filters import Filter
from scanner.errors import DataCorrupted, SessionExpired, SessionUnknown, SnapshotLost
from scanner.server.config import ScannerConfig
from scanner.server.log.bounds import Stop, start_offset
from scanner.server.log.opener import LogOpener
from scanner.server.pull.sessions import SessionRegistry
from scanner.server.retention.checkpoints import BucketCheckpoints
from scanner.server.scan.opener import ScanOpener
from scanner.server.scan.push import PushScan
from scanner.server.tables.bucket import ServedBucket
from scanner.server.tables.catalog import Catalog
from scanner.server.tables.log_pins import LogPins
from scanner.server.tables.open_scan import OpenScan
from scanner.server.tables.snapshots import SharedSnapshot, SnapshotPool, SnapshotRegistry
from scanner.sources.interface import EndReason
from scanner.sources.kv import KvSource
from scanner.sources.log import LogSource
from scanner.sources.log_blocks import LogBlock, LogBlocks
from scanner.sources.overlay import Overlay
from tests.support.broken_groups import (
    accept_stale_epochs,
    begin_one_commit_later,
    count_epochs_down,
    forget_positions,
    give_to_everybody,
    store_what_was_handed_to_nobody,
)
from tests.support.broken_images import BROKEN as BROKEN_IMAGES
from tests.support.broken_images import (
    fall_back_behind_the_damage,
    fall_back_to_the_start,
    take_later_changes,
    take_the_first_change,
)
from tests.support.broken_transactions import apply_all_attempts, decide_otherwise, lose_a_stage, lose_deletes
from tests.support.nightly import everyday

if TYPE_CHECKING:
    from scanner.server.log.log_scan import LogScan

SEEDS_MAX = 100
"""Seeds within which every defect is found."""

Break = Callable[[pytest.MonkeyPatch], None]
Shape = Callable[[Workload], None]


def drop_row_after_resume(patch: pytest.MonkeyPatch) -> None:
    """A source that goes on from a position reads over the first row behind it."""
    whole = KvSource.__init__

    def init(self: KvSource, scan: Any, *arguments: Any, **options: Any) -> None:
        if "position" in options and options["position"].rows:
            while scan.read(1, 1 << 20).unfinished:
                pass
        whole(self, scan, *arguments, **options)

    patch.setattr(KvSource, "__init__", init)


def reuse_fresh_snapshot(patch: pytest.MonkeyPatch) -> None:
    """A scan as of an earlier offset is read from the state of now, and says otherwise."""

    class Fresh:
        def __init__(self, live: Any, shared: Any, *_rest: Any) -> None:
            self.log_offset = shared.log_offset
            self.read = live.read
            self.close = live.close

    patch.setattr("scanner.server.scan.read_sources.AsOfScan", Fresh)


def send_past_credit(patch: pytest.MonkeyPatch) -> None:
    """A scan that never looks at its credit."""
    patch.setattr(PushScan, "_has_credit", True)


def fill_past_credit(patch: pytest.MonkeyPatch) -> None:
    """A batch that is not cut to the credit that is left."""
    take = KvSource.take
    patch.setattr(KvSource, "take", lambda self, _bytes_max, rows_max: take(self, 1 << 20, rows_max))


def end_early(patch: pytest.MonkeyPatch) -> None:
    """A scan that says it is exhausted after its first twenty rows."""
    end: Any = vars(KvSource)["end"]
    early = property(lambda self: EndReason.EXHAUSTED if self.rows >= 20 else end.fget(self))
    patch.setattr(KvSource, "end", early)


def repeat_last_row(patch: pytest.MonkeyPatch) -> None:
    """A push scan that goes on does so from the last delivered row, not behind it."""
    token = ScanOpener.open

    async def open_at(self: ScanOpener, *arguments: Any, **options: Any) -> Any:
        position = options.get("position")
        # Not the page models: with a row a page they would never come to an end.
        if position is not None and position.last_key and "pin_log" not in options:
            options["position"] = dataclasses.replace(position, last_key=position.last_key[:-1])
        return await token(self, *arguments, **options)

    patch.setattr(ScanOpener, "open", open_at)


def forget_digest(patch: pytest.MonkeyPatch) -> None:
    """A scan that goes on begins its digest anew."""
    whole = KvSource.__init__

    def init(self: KvSource, *arguments: Any, **options: Any) -> None:
        whole(self, *arguments, **options)
        self.digest = 0

    patch.setattr(KvSource, "__init__", init)


def reverse_blocks(patch: pytest.MonkeyPatch) -> None:
    """A source that decodes the rows of a block backwards."""
    decode = KvSource._decode

    def backwards(self: KvSource, stored: Any) -> Any:
        block = decode(self, stored)
        block.passing = block.passing.take(list(range(block.passing.num_rows))[::-1])
        return block

    patch.setattr(KvSource, "_decode", backwards)


def turn_in_circles(patch: pytest.MonkeyPatch) -> None:
    """A source that never comes to its end, and never to a row, without any time passing."""
    patch.setattr(KvSource, "step", lambda self, bytes_max=None: None)


def keep_snapshots(patch: pytest.MonkeyPatch) -> None:
    """A scan that is over keeps what it held."""
    patch.setattr(OpenScan, "close", lambda self, *, linger=False: None)


def never_reopen(patch: pytest.MonkeyPatch) -> None:
    """A parked scan that is not reopened when there is credit again."""

    async def wait_for_ever(self: PushScan) -> None:
        await self._wait_changed()

    patch.setattr(PushScan, "_reopen", wait_for_ever)


def lose_write(patch: pytest.MonkeyPatch) -> None:
    """A commit that leaves out the last mutation of each write, and acknowledges it."""
    submit = ServedBucket.submit
    patch.setattr(
        ServedBucket,
        "submit",
        lambda self, mutations, *rest, **named: submit(self, mutations[:-1] or mutations, *rest, **named),
    )


def lose_deletes_of_writes(patch: pytest.MonkeyPatch) -> None:
    """A commit that leaves out what is to be deleted, and acknowledges it."""
    submit = ServedBucket.submit
    patch.setattr(
        ServedBucket,
        "submit",
        lambda self, mutations, *rest, **named: submit(
            self, [each for each in mutations if each.row], *rest, **named
        ),
    )


def fail_unforeseen(patch: pytest.MonkeyPatch) -> None:
    """A park that fails in a way that nobody thought of."""

    def park(self: OpenScan[Any]) -> None:
        raise RuntimeError("nobody thought of this")

    patch.setattr(OpenScan, "park", park)


def lose_state(patch: pytest.MonkeyPatch) -> None:
    """A server that rebuilds no state: what is not open is lost, although the log reaches back."""

    def lost(*_arguments: Any) -> None:
        raise SnapshotLost("it was not tried", oldest_offset=0)

    patch.setattr("scanner.server.scan.read_sources.AsOfScan", lost)


def last_change_wins(patch: pytest.MonkeyPatch) -> None:
    """An overlay in which the last change of a key counts, instead of the first."""

    def add(self: Overlay, keys: list[bytes], rows: list[bytes | None]) -> None:
        self._first.update(zip(keys, rows, strict=True))

    patch.setattr(Overlay, "add", add)


def close_shared_snapshot(patch: pytest.MonkeyPatch) -> None:
    """A registry that closes a snapshot when the first of those who hold it lets go."""

    def released(self: SnapshotRegistry, shared: SharedSnapshot, *, linger: bool) -> None:
        shared.holds -= 1
        shared.close()

    patch.setattr(SnapshotRegistry, "released", released)


def ignore_pins(patch: pytest.MonkeyPatch) -> None:
    """Retention that cuts logs whoever needs them."""
    patch.setattr(LogPins, "oldest", lambda self: None)


def apply_again(patch: pytest.MonkeyPatch) -> None:
    """A bucket that recognises no request that comes again."""
    patch.setattr("scanner.server.tables.bucket.find_request", lambda *_: None)


def doubt_acknowledgements(patch: pytest.MonkeyPatch) -> None:
    """A client that takes some acknowledgements of its writes for damaged, though nothing has happened."""
    take = Writer._take_range

    def doubt(self: Writer, changed: OffsetRange) -> None:
        if changed.start_offset % 5 == 4:
            raise DataCorrupted("this acknowledgement is not believed")
        take(self, changed)

    patch.setattr(Writer, "_take_range", doubt)


def blame_lost_sessions(patch: pytest.MonkeyPatch) -> None:
    """A session that went with its connection is said to be damaged."""
    claim = SessionRegistry.claim

    def blame(self: Any, *arguments: Any) -> Any:
        try:
            return claim(self, *arguments)
        except (SessionExpired, SessionUnknown) as error:
            raise DataCorrupted(error.message) from error

    patch.setattr(SessionRegistry, "claim", blame)


def keep_no_new_checkpoint(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint that nothing keeps until the lease does that it was made for."""
    patch.setattr(BucketCheckpoints, "held", lambda self, checkpoint: nullcontext(checkpoint))


def stop_at_the_start(patch: pytest.MonkeyPatch) -> None:
    """A scan up to where the log ends that ends where it begins."""
    patch.setattr(Stop, "resolve", lambda _self, _storage, start: start)


BROKEN: list[tuple[Break, str]] = [
    (drop_row_after_resume, "resumable"),
    (drop_row_after_resume, "complete"),
    (reuse_fresh_snapshot, "isolated"),
    (send_past_credit, "bounded"),
    (fill_past_credit, "bounded"),
    (end_early, "complete"),
    (repeat_last_row, "unique"),
    (forget_digest, "resumable"),
    (reverse_blocks, "ordered"),
    (keep_snapshots, "released"),
    (never_reopen, "live"),
    (turn_in_circles, "live"),
    (lose_write, "durable"),
    (fail_unforeseen, "foreseen"),
    (lose_state, "justified"),
    (last_change_wins, "isolated"),
    (close_shared_snapshot, "justified"),
]


SHOWN_BY: dict[tuple[Break, str], int] = {
    (drop_row_after_resume, "resumable"): 6,
    (drop_row_after_resume, "complete"): 6,
    (reuse_fresh_snapshot, "isolated"): 5,
    (send_past_credit, "bounded"): 6,
    (fill_past_credit, "bounded"): 20,
    (end_early, "complete"): 8,
    (repeat_last_row, "unique"): 6,
    (forget_digest, "resumable"): 10,
    (never_reopen, "live"): 26,
    (lose_write, "durable"): 8,
    (fail_unforeseen, "foreseen"): 6,
    (last_change_wins, "isolated"): 20,
    (close_shared_snapshot, "justified"): 12,
    (lose_state, "justified"): 5,
    (take_the_first_change, "isolated"): 21,
    (fall_back_to_the_start, "unique"): 10,
    (fall_back_behind_the_damage, "complete"): 16,
    (take_later_changes, "isolated"): 5,
    (keep_no_new_checkpoint, "justified"): 20,
    (stop_at_the_start, "reliable"): 1,
}
"""Seeds that have shown a defect. Its search begins there, and goes on through all the others if they no longer do."""


def is_found(defect: Break, validator: str, shape: Shape | None = None) -> bool:
    """Whether a validator finds something in one of the seeds."""
    begin = SHOWN_BY.get((defect, validator), 0)
    return any(
        violation.validator == validator
        for turn in range(SEEDS_MAX)
        for violation in simulate((begin + turn) % SEEDS_MAX, shape).violations
    )


@pytest.mark.parametrize(("defect", "validator"), BROKEN, ids=lambda it: getattr(it, "__name__", it))
def test_defect_is_found_by_name(defect: Break, validator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken server is found within a hundred seeds, by the validator that is there for its defect."""
    defect(monkeypatch)
    assert is_found(defect, validator)


# ---------------------------------------------------------------------- in small worlds that are made for them


def small(workload: Workload) -> None:
    """Twenty keys in one bucket, and nobody scans yet."""
    workload.rows = Rows(workload.rng("small"), 20, 1)
    keys = workload.rows.keys
    workload.initial = [keys[:10], keys[5:]]
    workload.strikes = []
    workload.readers = []
    workload.visitors = []
    workload.holds = Holds()
    workload.storage_s_max = 0.0
    workload.writers = [WriterTask(writes=8, keys_max=5, pause_s=0.2)]


def tails(workload: Workload) -> None:
    """Three tails, some of which stall, in front of one writer, with small credits, over lines that break."""
    small(workload)
    rng = workload.rng("tails of a small world")
    made = [tail_task(rng, workload.rows) for _ in range(3)]
    workload.scanners = [
        ScannerTask(
            (dataclasses.replace(task, credit_bytes=rng.choice((700, 2_000)), row_limit=None),), at_once=False
        )
        for task in made
    ]
    workload.server_config = dataclasses.replace(
        ScannerConfig(), heartbeat_interval_s=0.5, park_after_s=1.0, checkpoint_interval_s=0.0
    )
    workload.chaos = 0.7


def held_tails(workload: Workload) -> None:
    """Tails that stall while retention would cut all that they do not keep."""
    tails(workload)
    workload.chaos = 0.0
    workload.scanners = [
        ScannerTask(
            tuple(
                dataclasses.replace(
                    task,
                    behaviour=Behaviour.STALLED,
                    turn_at=0,
                    pause_s=7.0,
                    credit_bytes=1,
                    batch_rows_max=1,
                )
                for task in scanner.scans
            ),
            at_once=False,
        )
        for scanner in workload.scanners
    ]
    workload.server_config = dataclasses.replace(
        workload.server_config, log_retention_s=0.5, log_retention_bytes=1_000, retention_interval_s=0.5
    )


def fetches(workload: Workload) -> None:
    """Three tails by long poll in front of one writer, over lines that break."""
    tails(workload)
    rng = workload.rng("fetches of a small world")
    log = TailTask(source=ScanSource.LOG, start=TailStart.EARLIEST, stop=TailStop.NEVER)
    workload.scanners = [
        dataclasses.replace(
            scanner,
            scans=tuple(
                fetched(rng, dataclasses.replace(task, client=Client.PRODUCT, state=State.NOW, tail=log))
                for task in scanner.scans
            ),
        )
        for scanner in workload.scanners
    ]


def readers(workload: Workload) -> None:
    """A group that reads what one writer writes: one reader freezes, one leaves and comes again, one dies and does.

    The writer goes on for longer than all that takes: what is stale comes to light, and holds nobody up.
    """
    small(workload)
    workload.rows = Rows(workload.rng("rows of readers"), 20, 2)
    keys = workload.rows.keys
    workload.initial = [keys[:10], keys[5:]]
    workload.writers = [WriterTask(writes=12, keys_max=6, pause_s=1.5)]
    workload.scanners = []
    workload.chaos = 0.0
    stays = Stint(after_s=0.0, end=StintEnd.STAYS, turn_at=0, freeze_at=3, frozen_s=4.0)
    leaves, dies = (
        dataclasses.replace(stays, end=end, turn_at=4, freeze_at=0, after_s=0.3)
        for end in (StintEnd.LEAVES, StintEnd.DIES)
    )
    awake = dataclasses.replace(stays, freeze_at=0, after_s=1.0)
    workload.readers = [
        ReaderTask(stints=stints, commit_every=2, credit_bytes=6_000, pause_s=0.05)
        for stints in ((stays,), (leaves, awake), (dies, awake))
    ]
    workload.server_config = dataclasses.replace(
        ScannerConfig(), checkpoint_interval_s=0.0, group_session_timeout_s=3.0, group_handover_s=0.5
    )


def cut_tokens(workload: Workload) -> None:
    """Scans by token over lines that break and come back, of a server that is left alone."""
    small(workload)
    task = dataclasses.replace(
        workload.scanners[0].scans[0], client=Client.PRODUCT, mode=ScanMode.TOKEN, bucket=None, filter=(), columns=(),
        start=None, end=None, row_limit=None, page_bytes=2_000, page_depth=0, state=State.NOW, tail=None,
        behaviour=Behaviour.FAST, retries=200, pause_s=0.0, after_s=0.0,
    )  # fmt: skip
    workload.scanners = [ScannerTask((task,) * 3, at_once=False) for _ in range(3)]
    workload.server_config = dataclasses.replace(ScannerConfig(), checkpoint_interval_s=0.0)
    workload.chaos = 0.95


def cut_sessions(workload: Workload) -> None:
    """The same by session, which goes with its connection."""
    cut_tokens(workload)
    workload.scanners = [
        ScannerTask(
            tuple(dataclasses.replace(task, mode=ScanMode.SESSION) for task in each.scans), at_once=False
        )
        for each in workload.scanners
    ]


def writes(workload: Workload) -> None:
    """Three writers over lines that break, of a server that is killed; nobody reads."""
    small(workload)
    workload.scanners = []
    workload.writers = [WriterTask(writes=20, keys_max=5, pause_s=0.02)] * 3
    workload.strikes = [Strike(at_s=0.3, kind=StrikeKind.KILL, bucket=0, down_s=0.05)]
    workload.chaos = 0.95


def transactions(workload: Workload) -> None:
    """Two writers of transactions beside one of rows and a scan, over lines that break, of a server that is killed."""
    small(workload)
    task = dataclasses.replace(
        workload.scanners[0].scans[0], client=Client.PRODUCT, mode=ScanMode.PUSH, bucket=None, filter=(), columns=(),
        start=None, end=None, row_limit=None, state=State.NOW, tail=None, behaviour=Behaviour.FAST, retries=200,
    )  # fmt: skip
    workload.scanners = [ScannerTask((task,) * 4, at_once=False)]
    workload.strikes = [Strike(at_s=0.4, kind=StrikeKind.KILL, bucket=0, down_s=0.05)]
    workload.transactors = [TransactionTask(versions=4, keys_max=10, pause_s=0.2)] * 2
    workload.writers = [WriterTask(writes=6, keys_max=5, pause_s=0.1)]
    workload.server_config = dataclasses.replace(
        ScannerConfig(), checkpoint_interval_s=0.0, transaction_piece_bytes=100
    )
    workload.chaos = 0.5


def visits(workload: Workload, *kinds: str) -> None:
    """Three visitors of a table that comes and goes, beside one writer, while many steps of storage are held."""
    small(workload)
    workload.scanners = []
    workload.holds = Holds(0.2, (0.2, 1.0))
    workload.chaos = 0.0
    workload.visitors = [VisitorTask(kinds=kinds, calls=8, passing=0.5, pause_s=0.1)] * 3
    workload.server_config = dataclasses.replace(
        ScannerConfig(), checkpoint_interval_s=0.0, checkpoints_kept=1, log_retention_bytes=1_000,
        retention_interval_s=0.5,
    )  # fmt: skip


def unwritten_visits(workload: Workload) -> None:
    """They stage rows, and drop what nobody has written to."""
    visits(workload, "stages", "drops_unwritten")


def leasing_visits(workload: Workload) -> None:
    """They lease new checkpoints, and write."""
    visits(workload, "leases_new", "writes")


def leased_scans(workload: Workload) -> None:
    """Scans of what leases keep, which stall, while retention would cut all that is not kept."""
    small(workload)
    task = dataclasses.replace(
        workload.scanners[0].scans[0], client=Client.PRODUCT, mode=ScanMode.PUSH, bucket=None, filter=(), columns=(),
        start=None, end=None, row_limit=None, credit_bytes=1, batch_rows_max=1, state=State.LEASE, tail=None,
        behaviour=Behaviour.STALLED, turn_at=0, pause_s=7.0, retries=200,
    )  # fmt: skip
    workload.scanners = [ScannerTask((task,) * 3, at_once=False)]
    workload.server_config = dataclasses.replace(
        ScannerConfig(), checkpoint_interval_s=0.0, checkpoints_kept=1, park_after_s=1.0, log_retention_s=0.5,
        log_retention_bytes=1_000, retention_interval_s=0.5,
    )  # fmt: skip
    workload.chaos = 0.0


def log_leasing_visits(workload: Workload) -> None:
    """They lease the changelog alone, and write, while retention would cut all that is not kept."""
    visits(workload, "leases_log", "writes")


def fetching_visits(workload: Workload) -> None:
    """They read changelogs, which retention cuts, and write."""
    visits(workload, "fetches", "writes")


def refused_visits(workload: Workload) -> None:
    """They look times up, while the disk refuses some writes."""
    visits(workload, "looks_up", "writes")
    workload.add_failures(workload.rng("failures of a small world"))


def images(workload: Workload) -> None:
    """Scans of an image that is made, damaged and dropped, beside a writer, over lines that break."""
    small(workload)
    rng = workload.rng("images of a small world")
    task = dataclasses.replace(
        workload.scanners[0].scans[0], client=Client.PRODUCT, mode=ScanMode.PUSH, bucket=None, filter=(), columns=(),
        start=None, end=None, row_limit=None, credit_bytes=1_500, state=State.NOW, tail=None, resume_every_batches=3,
        behaviour=Behaviour.FAST, retries=200, pause_s=0.3,
    )  # fmt: skip
    workload.scanners = [
        ScannerTask(
            tuple(
                dataclasses.replace(task, after_s=rng.uniform(0, 1.0), state=state)
                for state in (State.NOW, State.PAST)
            ),
            at_once=each == 0,
        )
        for each in range(2)
    ]
    workload.server_config = dataclasses.replace(ScannerConfig(), checkpoint_interval_s=0.0)
    workload.writers = [WriterTask(writes=12, keys_max=5, pause_s=0.1)]
    workload.chaos = 0.5
    workload.add_images()
    workload.image_rows = 5


def decode_otherwise(patch: pytest.MonkeyPatch, take: Callable[[int], list[int]]) -> None:
    """Blocks of the log with other rows than they have: those at `take(how many)`."""
    decode = LogBlocks._decode

    def other(self: LogBlocks, *arguments: Any) -> LogBlock:
        block = decode(self, *arguments)
        indices = take(block.rows.num_rows)
        return dataclasses.replace(
            block,
            rows=block.rows.take(pa.array(indices, pa.int64())),
            offsets=block.offsets[np.array(indices, int)],
        )

    patch.setattr(LogBlocks, "_decode", other)


def reverse_changes(patch: pytest.MonkeyPatch) -> None:
    """A log that is read backwards, block by block."""
    decode_otherwise(patch, lambda rows: list(range(rows))[::-1])


def repeat_change(patch: pytest.MonkeyPatch) -> None:
    """A block whose first change comes twice."""
    decode_otherwise(patch, lambda rows: [0, *range(rows)] if rows else [])


def lose_change(patch: pytest.MonkeyPatch) -> None:
    """A block whose last change is left out; the range that it covers is said to be the whole."""
    decode_otherwise(patch, lambda rows: list(range(rows - 1)))


def bookmark_anywhere(patch: pytest.MonkeyPatch) -> None:
    """Positions inside commits."""
    patch.setattr(LogBlock, "newest_entry_end", lambda self, offset: offset)


def promise_what_is_read(patch: pytest.MonkeyPatch) -> None:
    """A heartbeat whose position says what was read, not what was sent."""
    step = LogSource.step

    def read(self: LogSource, *arguments: Any) -> None:
        step(self, *arguments)
        if self._block is not None:
            self.bookmark = self._block.end

    patch.setattr(LogSource, "step", read)


def lose_change_after_resume(patch: pytest.MonkeyPatch) -> None:
    """A tail that goes on leaves out its first change."""
    resume = LogOpener.resume

    async def skip(self: LogOpener, *arguments: Any) -> Any:
        opened = await resume(self, *arguments)
        source = opened.scan.source
        source.step()
        if source._block is not None and source._block.rows.num_rows > 1:
            source._taken = 1
        return opened

    patch.setattr(LogOpener, "resume", skip)


def ignore_filter(patch: pytest.MonkeyPatch) -> None:
    """A tail that shows what its filter drops."""
    whole = LogBlocks.__init__

    def init(self: LogBlocks, bucket: Any, schema: Any, _: Filter, *arguments: Any, **options: Any) -> None:
        whole(self, bucket, schema, Filter((), schema), *arguments, **options)

    patch.setattr(LogBlocks, "__init__", init)


def call_updates_inserts(patch: pytest.MonkeyPatch) -> None:
    """A log that knows no updates: the row after one is an insert."""

    def rows(decoded: Any, schema: Any, kinds: Any, *arguments: Any) -> Any:
        return change_rows(decoded, schema, np.where(kinds == 3, 1, kinds).astype(np.uint8), *arguments)

    patch.setattr("scanner.sources.log_blocks.change_rows", rows)


def leave_a_gap(patch: pytest.MonkeyPatch) -> None:
    """A snapshot whose changes begin one commit too late, and say otherwise."""
    cross = LogOpener._cross

    def late(self: LogOpener, principal: str, snapshot: Any) -> LogScan:
        opened = cross(self, principal, snapshot)
        source, storage = opened.scan.source, opened.bucket.storage
        if source.next_offset < source._stop:
            source.next_offset = source.bookmark = storage.entry_at(source.next_offset).end
        return opened

    patch.setattr(LogOpener, "_cross", late)


def let_go_at_once(patch: pytest.MonkeyPatch) -> None:
    """A server that does not keep the last page of a scan by token for those who ask again."""
    patch.setattr(SnapshotPool, "let_linger", lambda *_: False)


def look_too_early(patch: pytest.MonkeyPatch) -> None:
    """A drop of what is unwritten that looks for staged rows, and then waits for a thread."""
    drop = Catalog._drop

    async def wait_and_drop(self: Catalog, *arguments: Any) -> None:
        await self._run_blocking(lambda: None)
        await drop(self, *arguments)

    patch.setattr(Catalog, "_drop", wait_and_drop)


def begin_late(patch: pytest.MonkeyPatch) -> None:
    """A scan from the earliest change on that leaves out the first commit, and says otherwise."""

    def late(storage: Any, *arguments: Any) -> int:
        at = start_offset(storage, *arguments)
        return storage.entry_at(at).end if storage.log_start == at < storage.log_end else at

    patch.setattr("scanner.server.log.opener.start_offset", late)


def look_beside_the_bucket(patch: pytest.MonkeyPatch) -> None:
    """Whoever looks into the changelog does not wait for storage that is being opened."""

    @asynccontextmanager
    async def at_once(self: ServedBucket) -> AsyncIterator[None]:
        yield

    patch.setattr(ServedBucket, "beside_commits", at_once)


BROKEN_IN_SMALL: list[tuple[Break, str, Shape]] = [
    (reverse_changes, "ordered", tails),
    (repeat_change, "unique", tails),
    (bookmark_anywhere, "atomic", tails),
    (lose_change, "reliable", tails),
    (lose_change_after_resume, "resumable", tails),
    (promise_what_is_read, "bookmarkable", held_tails),
    (ignore_filter, "filterable", tails),
    (call_updates_inserts, "faithful", tails),
    (leave_a_gap, "foldable", tails),
    (ignore_pins, "justified", held_tails),
    (let_go_at_once, "justified", cut_tokens),
    (lose_change, "reliable", fetches),
    (bookmark_anywhere, "atomic", fetches),
    (give_to_everybody, "owned", readers),
    (count_epochs_down, "ascending", readers),
    (begin_one_commit_later, "continued", readers),
    (accept_stale_epochs, "fenced", readers),
    (forget_positions, "forward", readers),
    (store_what_was_handed_to_nobody, "delivered", readers),
    *((defect, validator, images) for defect, validator in BROKEN_IMAGES.items()),
    (take_later_changes, "isolated", images),
    (apply_all_attempts, "transacted", transactions),
    (lose_a_stage, "transacted", transactions),
    (lose_deletes, "transacted", transactions),
    (lose_deletes_of_writes, "durable", writes),
    (decide_otherwise, "transacted", transactions),
    (apply_again, "once", writes),
    (doubt_acknowledgements, "justified", writes),
    (blame_lost_sessions, "justified", cut_sessions),
    (look_too_early, "durable", unwritten_visits),
    (keep_no_new_checkpoint, "justified", leasing_visits),
    (look_beside_the_bucket, "live", refused_visits),
    (begin_late, "reliable", fetching_visits),
    (stop_at_the_start, "reliable", fetching_visits),
    (call_updates_inserts, "reliable", fetching_visits),
    (ignore_pins, "justified", log_leasing_visits),
    (ignore_pins, "justified", leased_scans),
]


@pytest.mark.parametrize(
    ("defect", "validator", "shape"), BROKEN_IN_SMALL, ids=lambda it: getattr(it, "__name__", it)
)
def test_defect_is_found_in_a_small_world(
    defect: Break, validator: str, shape: Shape, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What few scans meet has a small world in which they all do."""
    defect(monkeypatch)
    assert is_found(defect, validator, shape)


@pytest.mark.parametrize(
    "shape",
    [
        *(
            tails,
            held_tails,
            leased_scans,
            cut_tokens,
            cut_sessions,
            fetches,
            readers,
            images,
            transactions,
            writes,
        ),
        *(unwritten_visits, leasing_visits, log_leasing_visits, fetching_visits, refused_visits),
    ],
    ids=lambda it: it.__name__,
)
def test_small_worlds_are_sound(shape: Shape) -> None:
    """With nothing broken nothing is found: what the other tests find is the defect."""
    for seed in range(everyday(3, nightly=8)):
        assert simulate(seed, shape).violations == []
