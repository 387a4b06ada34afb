"""What a run is to be: everything that chance decides, decided from the seed before anything runs.

Limits are drawn as well (every knob of server, client and network that a scan can feel), mostly small ones: what a big
table does to big limits, a few hundred rows do to small ones.
"""

from __future__ import annotations

import dataclasses
import enum
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.simulation.group_tasks import ReaderTask, reader_tasks
from bench.simulation.network import Fault, FaultPlan
from bench.simulation.pipes import Line
from bench.simulation.tables import Comparison, Key, Rows
from bench.simulation.transaction_tasks import TransactionTask, transaction_tasks
from scanner import ScanMode, ScanSource
from scanner.data.changes import CHANGE_TYPE, COMMIT_TIMESTAMP, LOG_OFFSET
from scanner.server.config import ScannerConfig
from transport import TransportConfig

KIB: Final = 1024
ROWS_MAX: Final = 200
SMALL_TABLES: Final = (0, 1, 7)
SCANNERS_MAX: Final = 4
"""Of those that read rows; one more may read changes."""
FAULT_AT_BYTES_MEAN: Final = 2_500
TAIL_CHANCE: Final = 0.4
TAIL_POLL_S: Final = 0.3
"""A tail that waits for others to write would do nothing but ask."""
POLL_S_MIN: Final = 0.005
"""A client that polls more often does nothing else through half a minute of silence."""
_MODES: Final = tuple(mode for mode in ScanMode if not mode.of_changes)
"""Those of states."""
IMAGE_CHANCE: Final = 0.25
HOLD_S: Final = (0.2, 1.0, 1.0, 5.0)
VISITOR_CHANCE: Final = 0.25
VISITS: Final = (
    *(
        "gets",
        "looks_up",
        "scans",
        "scans_snapshot",
        "leases_new",
        "leases_log",
        "fetches",
        "joins",
        "compacts",
    ),
    *("creates", "drops", "drops_unwritten", "writes", "stages"),
)
"""What visitors do; the second half to the table that comes and goes only."""
VISITS_OF_PASSING: Final = frozenset(VISITS[9:])
FAILURE_CHANCE: Final = 0.25
"""That the disk refuses some writes."""
GROUP_CHANCE: Final = 0.16
GROUP_KEYS_MAX: Final = 40
"""Keys of a table that has a reader group: its readers read every change, some of them more than once."""
GROUP_ROWS_MAX: Final = 150
"""Rows that the writers of such a table may write."""
FETCH_CHANCE: Final = 0.7
"""That a tail that can is a long poll."""
PAGE_A_ROW_KEYS_MAX: Final = 50
"""Keys of a table of which somebody may want a page for each row."""
RETRIES: Final = 200
"""Attempts without progress until a client gives up: more than any outage here takes."""


class Behaviour(enum.Enum):
    """What a consumer does with its batches."""

    FAST = "fast"
    SLOW = "slow"
    """A pause after every batch."""
    STALLED = "stalled"
    """Some batches, a long pause, then the rest."""
    EARLY = "early"
    """Leaves in the middle."""
    CANCELLED = "cancelled"
    """Is cancelled at some moment."""
    POLLING = "polling"
    """Asks for the next batch with a timeout, again and again."""


class Client(enum.Enum):
    """Who scans."""

    PRODUCT = "product"
    """`scanner.connect`."""
    RAW = "raw"
    """Push, message by message: repeats and lowers its demands, goes on from old tokens, drains."""


class State(enum.Enum):
    """Which state of its buckets a scan asks for."""

    NOW = "now"
    PAST = "past"
    """As of some earlier offset that the log still reaches back to."""
    CHECKPOINT = "checkpoint"
    """The newest checkpoint, if there is one."""
    LEASE = "lease"
    """What a lease keeps, for as long as it lives."""


class TailStart(enum.Enum):
    """Where a scan of the changelog is to begin."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    """At the end of some commit."""
    TIME = "time"
    """With the commit of some time."""


class TailStop(enum.Enum):
    """Where a scan of the changelog is to end."""

    END = "end"
    """Where the log ends when it is opened."""
    OFFSET = "offset"
    """At the end of some commit."""
    NEVER = "never"
    """Nowhere: it is left when nobody writes any more and everything has come."""


class StrikeKind(enum.Enum):
    """What happens to the server."""

    KILL = "kill"
    """It is gone from one moment to the next, and started again on the same store."""
    DRAIN = "drain"
    """It goes down in good order, and is started again."""
    TRUNCATE = "truncate"
    """A bucket's log loses its oldest changes, whoever needs them."""
    EMPTY_REGISTRY = "empty_registry"
    """Every snapshot that only lingers is dropped."""
    SWIZZLE = "swizzle"
    """All connections are clogged one after another, and unclogged in another order."""
    MAKE_IMAGE = "make_image"
    """A bucket gets an image as of now, in place of the one that it may have."""
    DROP_IMAGE = "drop_image"
    """It is removed, whoever scans it."""
    DAMAGE_IMAGE = "damage_image"
    """A bit of its file changes, or its end is lost, whoever scans it."""
    FAIL_WRITE = "fail_write"
    """The next write to a bucket fails, and may be there all the same."""


SERVER_STRIKES: Final = (
    StrikeKind.KILL,
    StrikeKind.DRAIN,
    StrikeKind.TRUNCATE,
    StrikeKind.EMPTY_REGISTRY,
    StrikeKind.SWIZZLE,
)
IMAGE_STRIKES: Final = (StrikeKind.MAKE_IMAGE, StrikeKind.DROP_IMAGE, StrikeKind.DAMAGE_IMAGE)


@dataclass(frozen=True, slots=True)
class Strike:
    """One of these, at a time."""

    at_s: float
    kind: StrikeKind
    bucket: int = 0
    keep: float = 0.0
    """TRUNCATE: the part of the log that stays. FAIL_WRITE: of the write; it is there all the same if that is 1."""
    down_s: float = 0.0
    """KILL, DRAIN: how long nobody answers."""
    refusals: int = 0
    """FAIL_WRITE: how often the bucket cannot be opened for writing then."""


@dataclass(frozen=True, slots=True)
class Holds:
    """Steps of storage that take much longer than others."""

    chance: float = 0.0
    """Of each, before its function runs and again behind it."""
    seconds: tuple[float, ...] = ()
    """For how long: any of these."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TailTask:
    """What a scan of changes reads."""

    source: ScanSource
    """LOG or HYBRID."""
    start: TailStart
    """Of a LOG."""
    stop: TailStop
    min_bytes: int = 1
    """Mode FETCH: bytes for which the server waits."""
    max_wait_s: float = 0.5
    """Mode FETCH: the longest that it waits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScanTask:
    """One scan to be made."""

    client: Client
    mode: ScanMode
    bucket: int | None
    columns: tuple[str, ...]
    filter: tuple[Comparison, ...]
    start: Key | None
    """Prefix of the first key, inclusive."""
    end: Key | None
    """Prefix of the last key, exclusive."""
    row_limit: int | None
    credit_bytes: int
    page_bytes: int
    page_depth: int
    resume_every_batches: int | None
    state: State
    behaviour: Behaviour
    after_s: float
    """Pause before it begins."""
    turn_at: int
    """Batches until it stalls or leaves."""
    pause_s: float
    """SLOW, STALLED, POLLING: how long; CANCELLED: when."""
    retries: int
    """Attempts without progress that may fail; 0: errors come at once."""
    batch_bytes_max: int = 0
    batch_rows_max: int = 0
    window_only: bool = False
    """RAW: never demands; HTTP/2's windows alone hold it back."""
    tail: TailTask | None = None
    """None: it reads rows, not changes."""


@dataclass(frozen=True, slots=True)
class ScannerTask:
    """One scanner."""

    scans: tuple[ScanTask, ...]
    at_once: bool
    """Over one client, instead of one after the other."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WriterTask:
    """One writer."""

    writes: int
    keys_max: int
    """Keys of one write, at most."""
    pause_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class VisitorTask:
    """One who makes short calls."""

    kinds: tuple[str, ...]
    """Of these, in any order: few of them meet more often than all would."""
    calls: int
    passing: float
    """The share of them that are about the table that comes and goes."""
    pause_s: float


@dataclass
class Workload:
    """One run."""

    seed: int
    rows: Rows = field(init=False)
    initial: list[list[Key]] = field(init=False)
    """Keys of the first commits, made before anybody comes."""
    server_config: ScannerConfig = field(init=False)
    transport_config: TransportConfig = field(init=False)
    scanners: list[ScannerTask] = field(init=False)
    readers: list[ReaderTask] = field(init=False)
    """Of the reader group; empty: there is none."""
    writers: list[WriterTask] = field(init=False)
    transactors: list[TransactionTask] = field(init=False)
    visitors: list[VisitorTask] = field(init=False)
    strikes: list[Strike] = field(init=False)
    image_rows: int = field(init=False)
    """Rows of a block of an image; 0: there are no images."""
    storage_s_max: float = field(init=False)
    """How long storage may take for what blocks, before it does it and again after that."""
    holds: Holds = field(init=False)
    chaos: float = field(init=False)
    """How likely a connection has a fault."""

    def __post_init__(self) -> None:
        rng = self.rng("workload")
        self.rows = Rows(
            self.rng("rows"),
            rng.choice((*SMALL_TABLES, 40, 40, 40, 80, 80, 80, ROWS_MAX)),
            rng.choice((1, 1, 2, 3)),
        )
        keys = self.rows.keys
        self.initial = [rng.sample(keys, len(keys) // 2) for _ in range(2)]
        self.server_config = _server_config(rng)
        self.transport_config = _transport_config(rng)
        self.chaos = rng.choice((0.0, 0.3, 0.7, 0.95))
        self.storage_s_max = rng.choice((0.0, 0.002, 0.05))
        self.scanners = [_scanner_task(rng, self.rows) for _ in range(rng.randint(1, SCANNERS_MAX))]
        self.writers = [
            WriterTask(
                writes=rng.randint(3, 15),
                keys_max=rng.choice((1, 5, 40)),
                pause_s=rng.choice((0.001, 0.02, 0.2, 1.0)),
            )
            for _ in range(rng.choice((0, 1, 1, 2)))
        ]
        self.strikes = _strikes(rng, self.rows.description.buckets)
        self._add_tails(self.rng("tails"))
        self._add_more_tails(self.rng("more tails"))
        self._fetch_tails(self.rng("fetches"))
        self.readers = []
        self._add_group(self.rng("groups"))
        self._add_transactions(self.rng("transactions"))
        self.image_rows = 0
        if self.rng("images").random() < IMAGE_CHANCE:
            self.add_images()
        self._add_troubles(self.rng("troubles"))

    def _add_troubles(self, rng: random.Random) -> None:
        """Steps of storage that are held, and writes that fail."""
        self.holds = Holds(rng.choice((0.0, 0.0, 0.02, 0.1)), HOLD_S)
        if rng.random() < FAILURE_CHANCE:
            self.add_failures(rng)

        self.visitors = []
        if rng.random() < VISITOR_CHANCE:
            self.add_visitors(rng)

    def add_visitors(self, rng: random.Random) -> None:
        """Who makes short calls, and what only they feel: buckets are closed early, one checkpoint is kept."""
        kinds = tuple(rng.sample(VISITS, rng.choice((3, 5, len(VISITS)))))
        self.visitors = [
            VisitorTask(
                kinds=kinds,
                calls=rng.randint(5, 20),
                passing=rng.choice((0.3, 0.9)),
                pause_s=rng.choice((0.0, 0.3, 1.0)),
            )
            for _ in range(rng.choice((1, 2, 3)))
        ]
        self.server_config = dataclasses.replace(
            self.server_config,
            bucket_idle_close_s=rng.choice((0.4, 2.0, 300.0)),
            checkpoints_kept=rng.choice((1, 2)),
        )

    def add_failures(self, rng: random.Random) -> None:
        """Writes that fail."""
        failures = [
            Strike(
                rng.expovariate(2.0),
                StrikeKind.FAIL_WRITE,
                rng.randrange(self.rows.description.buckets),
                keep=rng.choice((0.0, 1.0)),
                refusals=rng.choice((0, 0, 1, 3)),
            )
            for _ in range(rng.randint(1, 4))
        ]
        self.strikes = sorted([*self.strikes, *failures], key=lambda strike: strike.at_s)

    def add_images(self) -> None:
        """Images from the start, and what becomes of them."""
        rng, buckets = self.rng("image strikes"), self.rows.description.buckets
        self.image_rows = rng.choice((1, 5, 40))
        strikes = [Strike(0.0, StrikeKind.MAKE_IMAGE, bucket) for bucket in range(buckets)]
        strikes += [
            Strike(rng.expovariate(2.0), rng.choice(IMAGE_STRIKES), rng.randrange(buckets))
            for _ in range(rng.randint(0, 5))
        ]
        self.strikes = sorted([*self.strikes, *strikes], key=lambda strike: strike.at_s)

    def _add_tails(self, rng: random.Random) -> None:
        """Scans of changes, and the limits that only they feel."""
        if rng.random() < TAIL_CHANCE:
            self.scanners.append(ScannerTask((tail_task(rng, self.rows),), at_once=False))
        self.server_config = dataclasses.replace(
            self.server_config,
            tail_heartbeat_interval_s=rng.choice((5.0, 30.0)),
            log_ring_bytes=rng.choice((1, 3_000, 1024 * KIB)),
            log_rings_bytes=rng.choice((2_000, 1024 * KIB, 1024 * KIB)),
        )

    def _add_more_tails(self, rng: random.Random) -> None:
        """More of them where somebody writes: much of what can befall a tail is rare."""
        more = rng.choice((0, 0, 1, 2)) if self.writers else 0
        self.scanners += [ScannerTask((tail_task(rng, self.rows),), at_once=False) for _ in range(more)]

    def _fetch_tails(self, rng: random.Random) -> None:
        """Have some of the tails that can be pulled, not pushed."""
        self.scanners = [
            dataclasses.replace(each, scans=tuple(_perhaps_fetched(rng, scan) for scan in each.scans))
            for each in self.scanners
        ]

    def _add_group(self, rng: random.Random) -> None:
        """Readers of a group, the limits that only they feel, and mostly a log that is kept until they have read it."""
        written = sum(writer.writes * min(writer.keys_max, len(self.rows.keys)) for writer in self.writers)
        big = len(self.rows.keys) > GROUP_KEYS_MAX or written > GROUP_ROWS_MAX
        if rng.random() >= GROUP_CHANCE or big:
            return
        self.readers = reader_tasks(rng)
        self.server_config = dataclasses.replace(
            self.server_config,
            # Batches of a row and sweeps at any moment cost, and show nothing here that scans do not.
            retention_interval_s=2.0,
            block_rows_max=max(7, self.server_config.block_rows_max),
            batch_rows_max=max(10, self.server_config.batch_rows_max),
            batch_bytes=max(4 * KIB, self.server_config.batch_bytes),
            group_session_timeout_s=rng.choice((1.5, 3.0)),
            group_handover_s=rng.choice((0.5, 2.0)),
        )
        if rng.random() < 0.7:
            self.server_config = dataclasses.replace(
                self.server_config, log_retention_s=1e6, log_retention_bytes=1024 * KIB
            )

    def _add_transactions(self, rng: random.Random) -> None:
        """Writers of transactions, not beside a reader group, and the limit that only they feel."""
        self.transactors = [] if self.readers else transaction_tasks(rng)
        piece_bytes = rng.choice((100, 2_000, 1024 * KIB))
        self.server_config = dataclasses.replace(self.server_config, transaction_piece_bytes=piece_bytes)

    def rng(self, who: str) -> random.Random:
        """The random generator of one part of the run, which no other part draws from."""
        return random.Random(f"{self.seed} {who}")

    def line(self, rng: random.Random) -> Line:
        """What somebody's next connection is made of."""
        return Line(
            latency_s=rng.choice((0.0, 0.0, 0.001, 0.02)),
            buffer_bytes=rng.choice((4 * KIB, 16 * KIB, 64 * KIB)),
            read_bytes_max=rng.choice((500, 3 * KIB, 64 * KIB, 64 * KIB)),
        )

    def fault(self, rng: random.Random) -> FaultPlan | None:
        """What will happen to it."""
        if rng.random() >= self.chaos:
            return None
        return FaultPlan(
            fault=rng.choice(tuple(Fault)),
            to_client=rng.random() < 0.8,
            at=1 + int(rng.expovariate(1 / FAULT_AT_BYTES_MEAN)),
            clog_s=rng.choice((0.1, 2.0, 8.0)),
        )


def _server_config(rng: random.Random) -> ScannerConfig:
    block_rows_max = rng.choice((1, 7, 64, 512))
    return ScannerConfig(
        block_rows_max=block_rows_max,
        block_bytes_max=rng.choice((500, 8 * KIB, 1024 * KIB)),
        batch_bytes=rng.choice((300, 4 * KIB, 1024 * KIB)),
        batch_rows_max=max(block_rows_max, rng.choice((1, 10, 65_536))),
        heartbeat_interval_s=rng.choice((0.5, 5.0)),
        park_after_s=rng.choice((0.3, 5.0)),
        snapshot_linger_s=rng.choice((0.0, 1.0, 10.0)),
        snapshots_max=rng.choice((3, 64, 64)),
        overlay_bytes_max=rng.choice((3_000, 1024 * KIB, 1024 * KIB, 1024 * KIB)),
        log_retention_bytes=rng.choice((4_000, 1024 * KIB, 1024 * KIB)),
        log_pinned_bytes_max=rng.choice((2_000, *[1024 * KIB] * 4)),
        log_retention_s=rng.choice((0.5, 1e6)),
        retention_interval_s=rng.choice((0.5, 2.0)),
        checkpoint_interval_s=rng.choice((0.0, 0.5, 2.0)),
        session_ttl_s=rng.choice((3.0, 60.0)),
        session_sweep_interval_s=1.0,
        sessions_per_bucket_max=rng.choice((1, 8)),
        page_snapshot_ttl_s=rng.choice((3.0, 60.0)),
        page_snapshots_per_bucket_max=rng.choice((1, 8)),
        session_page_bytes_max=rng.choice((2_000, 1024 * KIB)),
        write_slice_rows_max=rng.choice((8, 2048)),
        commit_rows_max=rng.choice((1, 20, 65_536)),
        # Not drawn: what is drawn behind it stays as it was. Damage is met where blocks are not kept.
        image_cache_bytes_max={1: 0, 7: 3_000, 64: 0, 512: 1024 * KIB}[block_rows_max],
    )


def _transport_config(rng: random.Random) -> TransportConfig:
    return TransportConfig(
        stream_window_bytes=rng.choice((1_000, 20_000, 1024 * KIB)),
        connection_window_bytes=rng.choice((65_535, 1024 * KIB)),
        outbound_frame_bytes_max=rng.choice((300, 16 * KIB, 64 * KIB)),
        send_buffer_bytes=rng.choice((2_000, 64 * KIB, 1024 * KIB)),
        write_bytes_max=rng.choice((1_000, 64 * KIB)),
        receive_buffer_bytes=64 * KIB,
        drain_timeout_s=rng.choice((0.5, 5.0)),
    )


def _scanner_task(rng: random.Random, rows: Rows) -> ScannerTask:
    scans = tuple(_scan_task(rng, rows) for _ in range(rng.choice((1, 1, 2))))
    return ScannerTask(scans, at_once=rng.random() < 0.4)


def _scan_task(rng: random.Random, rows: Rows) -> ScanTask:
    client = rng.choice((Client.PRODUCT, Client.PRODUCT, Client.RAW))
    mode = ScanMode.PUSH if client is Client.RAW else rng.choice((ScanMode.PUSH, *_MODES))
    buckets = rows.description.buckets
    one_bucket = client is Client.RAW or rng.random() < 0.3
    behaviour = rng.choice(
        (Behaviour.FAST, Behaviour.FAST, Behaviour.SLOW, Behaviour.STALLED, Behaviour.STALLED, *Behaviour)
    )
    credit_bytes = rng.choice((1, 700, 6_000, 64 * KIB, 1024 * KIB))
    return ScanTask(
        client=client,
        mode=mode,
        bucket=rng.randrange(buckets) if one_bucket else None,
        columns=_columns(rng, rows),
        filter=tuple(rows.comparison() for _ in range(rng.choice((0, 0, 0, 1, 2)))),
        start=_prefix(rng, rows.keys),
        end=_prefix(rng, rows.keys),
        row_limit=rng.choice((0, 1, 10, 100)) if rng.random() < 0.2 else None,
        credit_bytes=credit_bytes,
        page_bytes=rng.choice(
            (1 if len(rows.keys) < PAGE_A_ROW_KEYS_MAX else 500, 2_000, 20_000, 1024 * KIB)
        ),
        page_depth=rng.choice((0, 1, 1, 4)),
        resume_every_batches=rng.choice((None, None, None, 1, 3)),
        state=_state(rng, client, mode),
        behaviour=behaviour,
        after_s=rng.choice((0.0, 0.0, 0.05, 0.5)),
        turn_at=rng.choice((0, 1, 2, 5)),
        pause_s=_pause_s(rng, behaviour),
        retries=0 if rng.random() < 0.1 else RETRIES,
        batch_bytes_max=rng.choice((0, 0, 1, 900)),
        batch_rows_max=rng.choice((0, 0, 1, 13)),
        window_only=rng.random() < 0.15,
    )


def tail_task(rng: random.Random, rows: Rows) -> ScanTask:
    """Any scan of changes, asked for as others are. Its offsets must be told, or nobody could judge it.

    Args:
        rng: Decides.
        rows: Of the table.
    """
    source = rng.choice((ScanSource.LOG, ScanSource.HYBRID))
    start = rng.choice(tuple(TailStart))
    stop = rng.choice((TailStop.END, TailStop.OFFSET, TailStop.NEVER, TailStop.NEVER))
    if source is ScanSource.LOG and start is TailStart.LATEST:
        stop = TailStop.NEVER
    task = _scan_task(rng, rows)
    columns = list(task.columns)
    if columns:
        columns += [CHANGE_TYPE, LOG_OFFSET, *rng.choice(((), (COMMIT_TIMESTAMP,)))]
        rng.shuffle(columns)
    return dataclasses.replace(
        task,
        mode=ScanMode.PUSH,
        columns=tuple(columns),
        start=None,
        end=None,
        state=rng.choice((State.NOW, State.NOW, State.PAST)) if source is ScanSource.HYBRID else State.NOW,
        pause_s=TAIL_POLL_S if task.behaviour is Behaviour.POLLING else task.pause_s,
        tail=TailTask(source=source, start=start, stop=stop),
    )


def _perhaps_fetched(rng: random.Random, task: ScanTask) -> ScanTask:
    """The task, or the same by long poll if it is one that can be."""
    tail = task.tail
    if tail is None or tail.source is not ScanSource.LOG or task.client is not Client.PRODUCT:
        return task
    return task if rng.random() >= FETCH_CHANCE else fetched(rng, task)


def fetched(rng: random.Random, task: ScanTask) -> ScanTask:
    """A tail of the changelog as a long poll."""
    assert task.tail is not None
    tail = dataclasses.replace(
        task.tail, min_bytes=rng.choice((1, 1, 2_000)), max_wait_s=rng.choice((0.5, 5.0))
    )
    return dataclasses.replace(task, mode=ScanMode.FETCH, tail=tail)


def _state(rng: random.Random, client: Client, mode: ScanMode) -> State:
    states = [State.NOW] * 6
    if mode in {ScanMode.PUSH, ScanMode.ASOF}:
        states.append(State.PAST)
    if mode is ScanMode.PUSH:
        states.append(State.CHECKPOINT)
    if mode is ScanMode.PUSH and client is Client.PRODUCT:
        states.append(State.LEASE)
    return rng.choice(states)


def _pause_s(rng: random.Random, behaviour: Behaviour) -> float:
    if behaviour is Behaviour.STALLED:
        return rng.choice((0.7, 7.0, 20.0))
    if behaviour is Behaviour.CANCELLED:
        return rng.uniform(0, 0.5)
    return max(POLL_S_MIN, rng.uniform(0, 0.05))


def _columns(rng: random.Random, rows: Rows) -> tuple[str, ...]:
    """Some columns in some order, from which each row can be told: all, or with the tag, or with the key."""
    if rng.random() < 0.5:
        return ()
    telling = rng.choice((("tag",), rows.key_columns))
    others = [name for name in rows.schema.names if name not in telling]
    columns = [*telling, *rng.sample(others, rng.randrange(len(others)))]
    rng.shuffle(columns)
    return tuple(columns)


def _prefix(rng: random.Random, keys: Sequence[Key]) -> Key | None:
    if not keys or rng.random() < 0.8:
        return None
    key = rng.choice(keys)
    return key[: rng.randint(1, len(key))]


def _strikes(rng: random.Random, buckets: int) -> list[Strike]:
    if rng.random() < 0.4:
        return []
    return sorted(
        (
            Strike(
                at_s=rng.expovariate(2.0),
                kind=rng.choice(SERVER_STRIKES),
                bucket=rng.randrange(buckets),
                keep=rng.choice((0.0, 0.5, 1.0)),
                down_s=rng.choice((0.0, 0.05, 2.0)),
            )
            for _ in range(rng.randint(1, 4))
        ),
        key=lambda strike: strike.at_s,
    )
