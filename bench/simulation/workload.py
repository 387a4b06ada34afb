"""What a run is to be: everything that chance decides, decided from the seed before anything runs.

Limits are drawn as well (every knob of server, client and network that a scan can feel), mostly small ones: what a big
table does to big limits, a few hundred rows do to small ones.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from bench.simulation.network import Fault, FaultPlan
from bench.simulation.pipes import Line
from bench.simulation.tables import Comparison, Key, Rows
from scanner import ScanMode
from scanner.server.config import ScannerConfig
from transport import TransportConfig

KIB: Final = 1024
ROWS_MAX: Final = 200
SMALL_TABLES: Final = (0, 1, 7)
SCANNERS_MAX: Final = 4
FAULT_AT_BYTES_MEAN: Final = 2_500
POLL_S_MIN: Final = 0.005
"""Through half a minute of silence who asks more often does nothing but ask."""
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


@dataclass(frozen=True, slots=True)
class Strike:
    """One of these, at a time."""

    at_s: float
    kind: StrikeKind
    bucket: int = 0
    keep: float = 0.0
    """TRUNCATE: the part of the log that stays."""
    down_s: float = 0.0
    """KILL, DRAIN: how long nobody answers."""


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
    writers: list[WriterTask] = field(init=False)
    strikes: list[Strike] = field(init=False)
    storage_s_max: float = field(init=False)
    """How long storage may take for what blocks, before it does it and again after that."""
    chaos: float = field(init=False)
    """How likely a connection has a fault."""

    def __post_init__(self) -> None:
        dice = self.dice("workload")
        self.rows = Rows(
            self.dice("rows"),
            dice.choice((*SMALL_TABLES, 40, 40, 40, 80, 80, 80, ROWS_MAX)),
            dice.choice((1, 1, 2, 3)),
        )
        keys = self.rows.keys
        self.initial = [dice.sample(keys, len(keys) // 2) for _ in range(2)]
        self.server_config = _server_config(dice)
        self.transport_config = _transport_config(dice)
        self.chaos = dice.choice((0.0, 0.3, 0.7, 0.95))
        self.storage_s_max = dice.choice((0.0, 0.002, 0.05))
        self.scanners = [_scanner_task(dice, self.rows) for _ in range(dice.randint(1, SCANNERS_MAX))]
        self.writers = [
            WriterTask(
                writes=dice.randint(3, 15),
                keys_max=dice.choice((1, 5, 40)),
                pause_s=dice.choice((0.001, 0.02, 0.2, 1.0)),
            )
            for _ in range(dice.choice((0, 1, 1, 2)))
        ]
        self.strikes = _strikes(dice, self.rows.description.buckets)

    def dice(self, who: str) -> random.Random:
        """Dice of one part of the run, which nobody else throws."""
        return random.Random(f"{self.seed} {who}")

    def line(self, dice: random.Random) -> Line:
        """What somebody's next connection is made of."""
        return Line(
            latency_s=dice.choice((0.0, 0.0, 0.001, 0.02)),
            buffer_bytes=dice.choice((4 * KIB, 16 * KIB, 64 * KIB)),
            read_bytes_max=dice.choice((500, 3 * KIB, 64 * KIB, 64 * KIB)),
        )

    def fault(self, dice: random.Random) -> FaultPlan | None:
        """What will happen to it."""
        if dice.random() >= self.chaos:
            return None
        return FaultPlan(
            fault=dice.choice(tuple(Fault)),
            to_client=dice.random() < 0.8,
            at=1 + int(dice.expovariate(1 / FAULT_AT_BYTES_MEAN)),
            clog_s=dice.choice((0.1, 2.0, 8.0)),
        )


def _server_config(dice: random.Random) -> ScannerConfig:
    block_rows_max = dice.choice((1, 7, 64, 512))
    return ScannerConfig(
        block_rows_max=block_rows_max,
        block_bytes_max=dice.choice((500, 8 * KIB, 1024 * KIB)),
        batch_bytes=dice.choice((300, 4 * KIB, 1024 * KIB)),
        batch_rows_max=max(block_rows_max, dice.choice((1, 10, 65_536))),
        heartbeat_interval_s=dice.choice((0.5, 5.0)),
        park_after_s=dice.choice((0.3, 5.0)),
        snapshot_linger_s=dice.choice((0.0, 1.0, 10.0)),
        snapshots_max=dice.choice((3, 64, 64)),
        overlay_bytes_max=dice.choice((3_000, 1024 * KIB, 1024 * KIB, 1024 * KIB)),
        log_retention_bytes=dice.choice((4_000, 1024 * KIB, 1024 * KIB)),
        log_pinned_bytes_max=dice.choice((2_000, *[1024 * KIB] * 4)),
        log_retention_s=dice.choice((0.5, 1e6)),
        retention_interval_s=dice.choice((0.3, 2.0)),
        checkpoint_interval_s=dice.choice((0.0, 0.1, 1.0)),
        session_ttl_s=dice.choice((3.0, 60.0)),
        session_sweep_interval_s=1.0,
        sessions_per_bucket_max=dice.choice((1, 8)),
        page_snapshot_ttl_s=dice.choice((3.0, 60.0)),
        page_snapshots_per_bucket_max=dice.choice((1, 8)),
        session_page_bytes_max=dice.choice((2_000, 1024 * KIB)),
        write_slice_rows_max=dice.choice((8, 2048)),
        commit_rows_max=dice.choice((1, 20, 65_536)),
    )


def _transport_config(dice: random.Random) -> TransportConfig:
    return TransportConfig(
        stream_window_bytes=dice.choice((1_000, 20_000, 1024 * KIB)),
        connection_window_bytes=dice.choice((65_535, 1024 * KIB)),
        outbound_frame_bytes_max=dice.choice((300, 16 * KIB, 64 * KIB)),
        send_buffer_bytes=dice.choice((2_000, 64 * KIB, 1024 * KIB)),
        write_bytes_max=dice.choice((1_000, 64 * KIB)),
        receive_buffer_bytes=64 * KIB,
        drain_timeout_s=dice.choice((0.5, 5.0)),
    )


def _scanner_task(dice: random.Random, rows: Rows) -> ScannerTask:
    scans = tuple(_scan_task(dice, rows) for _ in range(dice.choice((1, 1, 2))))
    return ScannerTask(scans, at_once=dice.random() < 0.4)


def _scan_task(dice: random.Random, rows: Rows) -> ScanTask:
    client = dice.choice((Client.PRODUCT, Client.PRODUCT, Client.RAW))
    mode = ScanMode.PUSH if client is Client.RAW else dice.choice((ScanMode.PUSH, *ScanMode))
    buckets = rows.description.buckets
    one_bucket = client is Client.RAW or dice.random() < 0.3
    behaviour = dice.choice(
        (Behaviour.FAST, Behaviour.FAST, Behaviour.SLOW, Behaviour.STALLED, Behaviour.STALLED, *Behaviour)
    )
    credit_bytes = dice.choice((1, 700, 6_000, 64 * KIB, 1024 * KIB))
    return ScanTask(
        client=client,
        mode=mode,
        bucket=dice.randrange(buckets) if one_bucket else None,
        columns=_columns(dice, rows),
        filter=tuple(rows.comparison() for _ in range(dice.choice((0, 0, 0, 1, 2)))),
        start=_prefix(dice, rows.keys),
        end=_prefix(dice, rows.keys),
        row_limit=dice.choice((0, 1, 10, 100)) if dice.random() < 0.2 else None,
        credit_bytes=credit_bytes,
        page_bytes=dice.choice(
            (1 if len(rows.keys) < PAGE_A_ROW_KEYS_MAX else 500, 2_000, 20_000, 1024 * KIB)
        ),
        page_depth=dice.choice((0, 1, 1, 4)),
        resume_every_batches=dice.choice((None, None, None, 1, 3)),
        state=_state(dice, client, mode),
        behaviour=behaviour,
        after_s=dice.choice((0.0, 0.0, 0.05, 0.5)),
        turn_at=dice.choice((0, 1, 2, 5)),
        pause_s=_pause_s(dice, behaviour),
        retries=0 if dice.random() < 0.1 else RETRIES,
        batch_bytes_max=dice.choice((0, 0, 1, 900)),
        batch_rows_max=dice.choice((0, 0, 1, 13)),
        window_only=dice.random() < 0.15,
    )


def _state(dice: random.Random, client: Client, mode: ScanMode) -> State:
    states = [State.NOW] * 6
    if mode in {ScanMode.PUSH, ScanMode.ASOF}:
        states.append(State.PAST)
    if mode is ScanMode.PUSH:
        states.append(State.CHECKPOINT)
    if mode is ScanMode.PUSH and client is Client.PRODUCT:
        states.append(State.LEASE)
    return dice.choice(states)


def _pause_s(dice: random.Random, behaviour: Behaviour) -> float:
    if behaviour is Behaviour.STALLED:
        return dice.choice((0.7, 7.0, 20.0))
    if behaviour is Behaviour.CANCELLED:
        return dice.uniform(0, 0.5)
    return max(POLL_S_MIN, dice.uniform(0, 0.05))


def _columns(dice: random.Random, rows: Rows) -> tuple[str, ...]:
    """Some columns in some order, from which each row can be told: all, or with the tag, or with the key."""
    if dice.random() < 0.5:
        return ()
    telling = dice.choice((("tag",), rows.key_columns))
    others = [name for name in rows.schema.names if name not in telling]
    columns = [*telling, *dice.sample(others, dice.randrange(len(others)))]
    dice.shuffle(columns)
    return tuple(columns)


def _prefix(dice: random.Random, keys: Sequence[Key]) -> Key | None:
    if not keys or dice.random() < 0.8:
        return None
    key = dice.choice(keys)
    return key[: dice.randint(1, len(key))]


def _strikes(dice: random.Random, buckets: int) -> list[Strike]:
    if dice.random() < 0.4:
        return []
    return sorted(
        (
            Strike(
                at_s=dice.expovariate(2.0),
                kind=dice.choice(tuple(StrikeKind)),
                bucket=dice.randrange(buckets),
                keep=dice.choice((0.0, 0.5, 1.0)),
                down_s=dice.choice((0.0, 0.05, 2.0)),
            )
            for _ in range(dice.randint(1, 4))
        ),
        key=lambda strike: strike.at_s,
    )
